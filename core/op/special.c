// special.c - special functions that neither StableHLO nor CHLO has.
//
// Bessel functions are in bessel.c, orthogonal polynomials in orthogonal.c, the incomplete gamma functions in gamma.c.
#include "op/axes.h"
#include "op/pointwise.h"
#include "op/series.h"

#include <math.h>

// --- the normal distribution ------------------------------------------------------------------------------------------------

// exp(x^2) erfc(x). For x >= 0 a series of (1 + 2x) erfcx(x) in (x - 3.75) / (x + 3.75); reflected below.
tt_value *tt_emit_erfcx(tt_builder *b, tt_value *x) {
  tt_value *size = tt_hlo_abs(b, x);
  tt_value *u = tt_hlo_divide(b, tt_add_constant(b, size, -3.75), tt_add_constant(b, size, 3.75));
  u = tt_select_constant(b, tt_hlo_is_inf(b, size), 1, u);
  tt_value *scaled = tt_series_at(b, &tt_series_erfcx_scaled, u);
  tt_value *upper = tt_hlo_divide(b, scaled, tt_add_constant(b, tt_multiply_constant(b, size, 2), 1));
  tt_value *lower = tt_hlo_subtract(b, tt_multiply_constant(b, tt_hlo_exponential(b, tt_square(b, x)), 2), upper);
  return tt_hlo_select(b, tt_compare_constant(b, TT_LT, x, 0), lower, upper);
}

// log of the distribution function: from erfcx where that is tiny.
tt_value *tt_emit_log_ndtr(tt_builder *b, tt_value *x) {
  tt_value *t = tt_multiply_constant(b, x, M_SQRT1_2);
  tt_value *tail = tt_hlo_log(b, tt_multiply_constant(b, tt_emit_erfcx(b, tt_hlo_negate(b, t)), 0.5));
  tail = tt_hlo_subtract(b, tail, tt_square(b, t));
  tt_value *rest = tt_hlo_log_plus_one(b, tt_multiply_constant(b, tt_hlo_erfc(b, t), -0.5));
  return tt_hlo_select(b, tt_compare_constant(b, TT_LT, x, -1), tail, rest);
}

// For p <= exp(-2): -(z - log(z) / z - series(1 / z) / z) with z = sqrt(-2 log(p)), and in float64 a Newton step.
static tt_value *ndtri_of_tail(tt_builder *b, tt_value *p) {
  tt_value *z = tt_hlo_sqrt(b, tt_multiply_constant(b, tt_hlo_log(b, p), -2));
  tt_value *inverse = tt_reciprocal(b, z);
  tt_value *correction = tt_hlo_add(b, tt_hlo_log(b, z), tt_series_at(b, &tt_series_ndtri_tail, inverse));
  tt_value *x = tt_hlo_subtract(b, tt_hlo_multiply(b, correction, inverse), z);
  if (p->dtype != TT_F64) return x;
  tt_value *reached = tt_multiply_constant(b, tt_hlo_erfc(b, tt_multiply_constant(b, x, -M_SQRT1_2)), 0.5);
  tt_value *density = tt_hlo_exponential(b, tt_multiply_constant(b, tt_square(b, x), -0.5));
  density = tt_multiply_constant(b, density, M_2_SQRTPI * M_SQRT1_2 / 2);
  // On the logarithm of p, since differences of such small numbers are denormal and flushed.
  tt_value *distance = tt_hlo_log(b, tt_hlo_divide(b, reached, p));
  return tt_hlo_subtract(b, x, tt_hlo_multiply(b, distance, tt_hlo_divide(b, reached, density)));
}

// Inverse of the distribution function: infinite at 0 and 1, NaN outside.
tt_value *tt_emit_ndtri(tt_builder *b, tt_value *p) {
  tt_value *upper = tt_compare_constant(b, TT_GT, p, 0.5);
  tt_value *side = tt_hlo_select(b, upper, tt_constant_minus(b, 1, p), p);
  double edge = exp(-2);
  tt_value *middle =
      tt_multiply_constant(b, tt_hlo_erf_inv(b, tt_add_constant(b, tt_multiply_constant(b, side, 2), -1)), M_SQRT2);
  // Kept inside (0, edge], so that the side not taken stays finite.
  tt_value *in_tail = tt_compare_constant(b, TT_LT, side, edge);
  tt_value *tail = ndtri_of_tail(b, tt_select_constant(b, tt_hlo_not(b, in_tail), edge, side));
  tt_value *x = tt_hlo_select(b, in_tail, tail, middle);
  x = tt_select_constant(b, tt_compare_constant(b, TT_EQ, side, 0), -HUGE_VAL, x);
  x = tt_hlo_select(b, upper, tt_hlo_negate(b, x), x);
  tt_value *valid = tt_hlo_and(b, tt_compare_constant(b, TT_GE, p, 0), tt_compare_constant(b, TT_LE, p, 1));
  return tt_hlo_select(b, valid, x, tt_hlo_constant_like(b, x, NAN));
}

// --- derivatives of log gamma ---------------------------------------------------------------------------------------------

// -inf and inf at 0 and -0, where CHLO gives NaN.
tt_value *tt_emit_digamma(tt_builder *b, tt_value *x) {
  tt_value *is_zero = tt_compare_constant(b, TT_EQ, x, 0);
  return tt_hlo_select(b, is_zero, tt_hlo_divide(b, tt_hlo_constant_like(b, x, -1), x), tt_hlo_digamma(b, x));
}

// One term of the series for the elements whose q is not positive yet: (x, q, sum) -> (x, q + 1, sum + q^-x).
static tt_value *zeta_is_open(tt_builder *b, tt_value *q) {
  // Far below 0, and at -inf, the series would not end.
  return tt_hlo_and(b, tt_compare_constant(b, TT_LT, q, 0), tt_compare_constant(b, TT_GT, q, -1e6));
}

static void zeta_condition(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)user;
  tt_value *open = zeta_is_open(b, state[1]);
  results[0] = tt_reduce(b, open, TT_REDUCE_OR, tt_axes_range(0, open->rank));
}

static void zeta_term(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)user;
  tt_value *x = state[0], *q = state[1], *open = zeta_is_open(b, q);
  results[0] = x;
  results[1] = tt_hlo_select(b, open, tt_add_constant(b, q, 1), q);
  results[2] = tt_hlo_select(b, open, tt_hlo_add(b, state[2], tt_hlo_power(b, q, tt_hlo_negate(b, x))), state[2]);
}

// Hurwitz' zeta function. CHLO's expansion is right for positive q only, so the terms before are summed here; x = 1 and whole
// q <= 0 are poles, as in torch.
tt_value *tt_emit_zeta(tt_builder *b, tt_value *x, tt_value *q) {
  tt_value *state[3];
  tt_hlo_while(b, 3, (tt_value *[]){x, q, tt_hlo_constant_like(b, q, 0)}, zeta_condition, zeta_term, NULL, state);
  tt_value *result = tt_hlo_add(b, state[2], tt_hlo_zeta(b, x, state[1]));
  tt_value *fraction_left = tt_hlo_compare(b, TT_NE, x, tt_hlo_floor(b, x));
  tt_value *low = tt_compare_constant(b, TT_LE, q, 0);
  tt_value *none = tt_hlo_or(b, tt_hlo_and(b, low, fraction_left), tt_compare_constant(b, TT_LT, x, 1));
  result = tt_select_constant(b, none, NAN, result);
  tt_value *pole = tt_hlo_and(b, low, tt_hlo_compare(b, TT_EQ, q, tt_hlo_floor(b, q)));
  pole = tt_hlo_and(b, pole, tt_compare_constant(b, TT_GT, x, 1));
  return tt_select_constant(b, tt_hlo_or(b, pole, tt_compare_constant(b, TT_EQ, x, 1)), HUGE_VAL, result);
}

// (n, x): the n-th derivative of digamma, (-1)^(n + 1) n! zeta(n + 1, x).
static tt_value *polygamma(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *x = p->x[0];
  int64_t n = tt_int(p->l, 0);
  if (n < 0) tt_fail(p->l, TT_INVALID_ARGUMENT, "polygamma(n, x) does not support negative n.");
  if (n <= 0) return tt_emit_digamma(b, x);
  tt_value *zeta = tt_emit_zeta(b, tt_hlo_constant_like(b, x, (double)n + 1), x);
  return tt_multiply_constant(b, zeta, (n % 2 == 0 ? -1 : 1) * tgamma((double)n + 1));
}
void tt_lower_polygamma(tt_lowering *l) { tt_pointwise_each(l, polygamma, 1, (int[]){1}); }
