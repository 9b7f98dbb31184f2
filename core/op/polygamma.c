// polygamma.c - the derivatives of log gamma: digamma, and by Hurwitz' zeta function the higher ones.
#include "op/axes.h"
#include "op/pointwise.h"
#include "op/series.h"
#include "op/transcendental.h"

#include <math.h>

// --- digamma ------------------------------------------------------------------------------------------------------------------

// 0 < x <= 2: a series times the distance from the zero, after a step up below 1. The zero is taken away in two parts, the first of
// which is a number of x's dtype; the second only counts near the zero, where the slope is known.
static tt_value *digamma_near(tt_builder *b, tt_value *x) {
  const double zero = 1.4616321449683622, beyond = 9.549995429965697e-17, slope = 0.9676722454; // DLMF 5.4(iii)
  double first = x->dtype == TT_F64 ? zero : (float)zero, second = zero - first + beyond;
  tt_value *low = tt_compare_constant(b, TT_LT, x, 1), *from_one = tt_hlo_select(b, low, x, tt_add_constant(b, x, -1));
  tt_value *distance = tt_add_constant(b, from_one, 1 - first);
  tt_value *result =
      tt_hlo_multiply(b, distance, tt_series_at(b, &tt_series_digamma_near, tt_add_constant(b, from_one, 1)));
  result = tt_add_constant(b, result, -second * slope);
  return tt_hlo_select(b, low, tt_hlo_subtract(b, result, tt_reciprocal(b, x)), result);
}

static tt_value *digamma_right(tt_builder *b, tt_value *x) {
  tt_value *two = tt_hlo_constant_like(b, x, 2), *far_x = tt_hlo_maximum(b, x, two), *inverse = tt_reciprocal(b, far_x);
  tt_value *rest = tt_series_at(b, &tt_series_digamma_far, tt_square(b, inverse));
  rest = tt_hlo_multiply(b, inverse, tt_add_constant(b, tt_hlo_multiply(b, inverse, rest), 0.5));
  tt_value *far = tt_hlo_subtract(b, tt_hlo_log(b, far_x), rest);
  return tt_hlo_select(b, tt_hlo_compare(b, TT_LE, x, two), digamma_near(b, tt_hlo_minimum(b, x, two)), far);
}

// pi / tan(pi d) for |d| <= 1/2, right where it is 0 too.
static tt_value *pi_cotangent(tt_builder *b, tt_value *d) {
  tt_value *size = tt_hlo_abs(b, d), *pi = tt_hlo_constant_like(b, d, M_PI);
  tt_value *steep = tt_hlo_divide(b, pi, tt_hlo_tan(b, tt_hlo_multiply(b, size, pi)));
  tt_value *flat = tt_hlo_multiply(b, pi, tt_hlo_tan(b, tt_hlo_multiply(b, tt_constant_minus(b, 0.5, size), pi)));
  tt_value *result = tt_hlo_select(b, tt_compare_constant(b, TT_LT, size, 0.25), steep, flat);
  return tt_hlo_select(b, tt_compare_constant(b, TT_LT, d, 0), tt_hlo_negate(b, result), result);
}

// Below 0 by reflection: digamma(x) = digamma(-x) - 1 / x - pi / tan(pi x). -inf and inf at 0 and -0, NaN at the other poles.
static tt_value *digamma(tt_builder *b, tt_value *x) {
  tt_value *size = tt_hlo_abs(b, x), *right = digamma_right(b, size), *inverse = tt_reciprocal(b, x);
  tt_value *distance = tt_hlo_subtract(b, x, tt_hlo_round_nearest_even(b, x));
  tt_value *left = tt_hlo_subtract(b, tt_hlo_subtract(b, right, inverse), pi_cotangent(b, distance));
  left = tt_select_constant(b, tt_compare_constant(b, TT_EQ, distance, 0), NAN, left);
  tt_value *result = tt_hlo_select(b, tt_compare_constant(b, TT_LT, x, 0), left, right);
  return tt_hlo_select(b, tt_compare_constant(b, TT_EQ, x, 0), tt_hlo_negate(b, inverse), result);
}

// Below 0 float32 is worked out in float64: the reflection's terms cancel at each zero.
tt_value *tt_emit_digamma(tt_builder *b, tt_value *x) {
  if (x->dtype != TT_F32) return digamma(b, x);
  tt_value *right = digamma_right(b, tt_hlo_abs(b, x)), *is_zero = tt_compare_constant(b, TT_EQ, x, 0);
  right = tt_hlo_select(b, is_zero, tt_hlo_negate(b, tt_reciprocal(b, x)), right);
  return tt_wide_where(b, tt_compare_constant(b, TT_LT, x, 0), x, digamma, right);
}

// --- zeta -----------------------------------------------------------------------------------------------------------------------

// (leading + rest)^-x, rest small beside leading: the power times 1 - t + t^2 / 2, t = x rest / leading.
static tt_value *inverse_power(tt_builder *b, tt_value *x, tt_value *leading, tt_value *rest) {
  tt_value *one = tt_hlo_constant_like(b, x, 1), *finite = tt_hlo_minimum(b, x, tt_hlo_constant_like(b, x, 1e30));
  tt_value *t = tt_hlo_divide(b, tt_hlo_multiply(b, finite, rest), leading);
  t = tt_hlo_clamp(b, tt_hlo_negate(b, one), t, one); // beyond, the power is 0 or infinite
  tt_value *factor =
      tt_add_constant(b, tt_hlo_multiply(b, t, tt_add_constant(b, tt_multiply_constant(b, t, 0.5), -1)), 1);
  return tt_hlo_multiply(b, factor, tt_hlo_power(b, leading, tt_hlo_negate(b, x)));
}

// q > 0: the first terms, and for the others Euler and Maclaurin's formula (DLMF 25.11.5 with 2.10.1) at w behind them:
// w^-x (w / (x - 1) + 1/2 + sum of B_2j / (2j)! x (x + 1) ... (x + 2j - 2) / w^(2j - 1)). A rounded
// q + k would lose x / 2 ulp, so only q's leading bits are counted up, and its rest goes into the powers.
static tt_value *zeta_of_positive(tt_builder *b, tt_value *x, tt_value *q) {
  static const double bernoulli[] = {1.0 / 12,          -1.0 / 720,
                                     1.0 / 30240,       -1.0 / 1209600,
                                     1.0 / 47900160,    -691.0 / 1307674368000,
                                     1.0 / 74724249600, -3617.0 / 10670622842880000};
  bool wide = x->dtype == TT_F64;
  int first = wide ? 12 : 8, corrections = wide ? 8 : 4;
  tt_value *leading = tt_hlo_reduce_precision(b, q, wide ? 11 : 8, wide ? 44 : 15);
  tt_value *rest = tt_hlo_subtract(b, q, leading), *w = tt_add_constant(b, leading, first);
  tt_value *inverse = tt_reciprocal(b, w), *square = tt_square(b, inverse), *factor = tt_hlo_multiply(b, x, inverse);
  tt_value *sum = tt_hlo_constant_like(b, x, 0.5);
  for (int j = 0; j < corrections; ++j) {
    sum = tt_hlo_add(b, sum, tt_multiply_constant(b, factor, bernoulli[j]));
    factor = tt_hlo_multiply(b, tt_hlo_multiply(b, factor, square), tt_add_constant(b, x, 2 * j + 1));
    factor = tt_hlo_multiply(b, factor, tt_add_constant(b, x, 2 * j + 2));
  }
  // For an x that large beside w, w^-x is nothing beside q^-x, and the corrections only overflow.
  tt_value *large = tt_hlo_compare(b, TT_GT, x, tt_multiply_constant(b, w, 100));
  sum = tt_hlo_multiply(b, tt_select_constant(b, large, 0, sum), inverse_power(b, x, w, rest));
  for (int k = first - 1; k >= 0; --k)
    sum = tt_hlo_add(b, sum, inverse_power(b, x, tt_add_constant(b, leading, k), rest));
  // w^-x alone would underflow for large q. The greatest part where q is large, so last; nothing beside q^-x where x is.
  tt_value *less = tt_add_constant(b, x, -1);
  sum = tt_hlo_add(b, sum, tt_hlo_divide(b, inverse_power(b, less, w, rest), less));
  return sum;
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

// Hurwitz' zeta function. Terms of q < 0 are summed one by one; x = 1 and whole q <= 0 are poles, as in torch.
tt_value *tt_emit_zeta(tt_builder *b, tt_value *x, tt_value *q) {
  tt_value *state[3];
  tt_hlo_while(b, 3, (tt_value *[]){x, q, tt_hlo_constant_like(b, q, 0)}, zeta_condition, zeta_term, NULL, state);
  tt_value *result = tt_hlo_add(b, state[2], zeta_of_positive(b, x, state[1]));
  tt_value *fraction_left = tt_hlo_compare(b, TT_NE, x, tt_hlo_floor(b, x));
  tt_value *low = tt_compare_constant(b, TT_LE, q, 0);
  tt_value *none = tt_hlo_or(b, tt_hlo_and(b, low, fraction_left), tt_compare_constant(b, TT_LT, x, 1));
  result = tt_select_constant(b, none, NAN, result);
  tt_value *pole = tt_hlo_and(b, low, tt_hlo_compare(b, TT_EQ, q, tt_hlo_floor(b, q)));
  pole = tt_hlo_and(b, pole, tt_hlo_not(b, tt_compare_constant(b, TT_LT, x, 1))); // NaN too, as in torch
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
