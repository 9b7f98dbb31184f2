// gamma_grad.c - how a sample x of a gamma distribution moves with its shape a while its probability P(a, x) stays: dx/da =
// -(dP/da) / density. Implicit reparameterization gradients, Figurnov et al., "Implicit Reparameterization Gradients" (2018).
//
// The forms are those of gamma.c, each with its derivative beside it and divided by the density, which leaves no factor to
// over- or underflow:
//   P's series, S = sum of c_n = x^n / ((a + 1) ... (a + n)):   x / a ((digamma(a + 1) - log x) S - dS/da)
//   Q's continued fraction C:                                   x C (log x - digamma(a) + d(log C)/da)
//   Temme's form, R = tt_stirling_rest, C and D its sums:       x / a (1 - R ((eta + (eta^2 + 1 / a) C) / 2 + D / a))
// The last one follows from DLMF 8.12.7-10: what is left after differentiation telescopes.
#include "op/gamma.h"
#include "op/pointwise.h"

#include <math.h>

tt_value *tt_emit_digamma(tt_builder *b, tt_value *x);

// --- the series -----------------------------------------------------------------------------------------------------------

// TERM is c_n, SLOPE is -d(log c_n)/da, and the sums are of c_n and -dc_n/da.
enum { STEP, SHAPE, POINT, TERM, SLOPE, SUM, SLOPE_SUM, CARRIED };

static void series_open(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)user;
  tt_value *sums = tt_hlo_add(b, state[SUM], state[SLOPE_SUM]);
  tt_value *now = tt_hlo_multiply(b, state[TERM], tt_add_constant(b, state[SLOPE], 1));
  tt_value *open = tt_hlo_compare(b, TT_GT, now, tt_multiply_constant(b, sums, tt_half_epsilon(sums)));
  results[0] = tt_hlo_and(b, tt_step_is_left(b, state[STEP]), tt_any(b, open));
}

static void series_step(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)user;
  tt_value *step = tt_step_next(b, state[STEP]);
  tt_value *inverse = tt_reciprocal(b, tt_hlo_add(b, state[SHAPE], tt_step_like(b, step, state[SHAPE])));
  results[STEP] = step;
  results[SHAPE] = state[SHAPE];
  results[POINT] = state[POINT];
  results[TERM] = tt_hlo_multiply(b, state[TERM], tt_hlo_multiply(b, state[POINT], inverse));
  results[SLOPE] = tt_hlo_add(b, state[SLOPE], inverse);
  results[SUM] = tt_hlo_add(b, state[SUM], results[TERM]);
  results[SLOPE_SUM] = tt_hlo_add(b, state[SLOPE_SUM], tt_hlo_multiply(b, results[TERM], results[SLOPE]));
}

static tt_value *by_series(tt_builder *b, tt_value *a, tt_value *x) {
  tt_value *one = tt_hlo_constant_like(b, x, 1), *zero = tt_hlo_constant_like(b, x, 0);
  tt_value *state[CARRIED] = {tt_hlo_constant_i64(b, TT_S32, 0), a, x, one, zero, one, zero};
  tt_hlo_while(b, CARRIED, state, series_open, series_step, NULL, state);
  tt_value *factor = tt_hlo_subtract(b, tt_emit_digamma(b, tt_add_constant(b, a, 1)), tt_hlo_log(b, x));
  tt_value *sum = tt_hlo_add(b, tt_hlo_multiply(b, factor, state[SUM]), state[SLOPE_SUM]);
  return tt_hlo_multiply(b, tt_hlo_divide(b, x, a), sum);
}

// --- the continued fraction -------------------------------------------------------------------------------------------------

// Lentz's C and D (see fraction in gamma.c) and their derivatives by a; LOG_SLOPE is d(log VALUE)/da. CHANGE and SLOPE_CHANGE are
// what the last step did, the second beside the numbers it is the difference of.
enum { F_STEP, F_SHAPE, F_B, F_C, F_DC, F_D, F_DD, F_VALUE, F_LOG_SLOPE, F_CHANGE, F_SLOPE_CHANGE, F_CARRIED };

static void fraction_open(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)user;
  double small = 8 * tt_half_epsilon(state[F_CHANGE]);
  tt_value *distance = tt_hlo_abs(b, tt_add_constant(b, state[F_CHANGE], -1));
  tt_value *open = tt_compare_constant(b, TT_GT, tt_hlo_maximum(b, distance, state[F_SLOPE_CHANGE]), small);
  results[0] = tt_hlo_and(b, tt_step_is_left(b, state[F_STEP]), tt_any(b, open));
}

static void fraction_step(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)user;
  tt_value *step = tt_step_next(b, state[F_STEP]), *a = state[F_SHAPE], *i = tt_step_like(b, step, a);
  tt_value *numerator = tt_hlo_multiply(b, i, tt_hlo_subtract(b, a, i)); // its derivative is i
  tt_value *denominator = tt_add_constant(b, state[F_B], 2);             // its derivative is -1
  tt_value *ratio = tt_hlo_divide(b, numerator, state[F_C]);
  tt_value *c = tt_hlo_add(b, denominator, ratio);
  tt_value *dc = tt_hlo_divide(b, tt_hlo_subtract(b, i, tt_hlo_multiply(b, ratio, state[F_DC])), state[F_C]);
  dc = tt_add_constant(b, dc, -1);
  tt_value *d = tt_reciprocal(b, tt_hlo_add(b, denominator, tt_hlo_multiply(b, numerator, state[F_D])));
  tt_value *dd = tt_hlo_add(b, tt_hlo_multiply(b, i, state[F_D]), tt_hlo_multiply(b, numerator, state[F_DD]));
  dd = tt_hlo_multiply(b, tt_constant_minus(b, 1, dd), tt_square(b, d));
  tt_value *of_c = tt_hlo_divide(b, dc, c), *slope = tt_hlo_add(b, of_c, tt_hlo_divide(b, dd, d));
  results[F_STEP] = step;
  results[F_SHAPE] = a;
  results[F_B] = denominator;
  results[F_C] = c;
  results[F_DC] = dc;
  results[F_D] = d;
  results[F_DD] = dd;
  results[F_CHANGE] = tt_hlo_multiply(b, c, d);
  results[F_VALUE] = tt_hlo_multiply(b, state[F_VALUE], results[F_CHANGE]);
  results[F_LOG_SLOPE] = tt_hlo_add(b, state[F_LOG_SLOPE], slope);
  tt_value *beside = tt_hlo_add(b, tt_hlo_abs(b, results[F_LOG_SLOPE]), tt_hlo_abs(b, of_c));
  results[F_SLOPE_CHANGE] = tt_hlo_divide(b, tt_hlo_abs(b, slope), beside);
}

static tt_value *by_fraction(tt_builder *b, tt_value *a, tt_value *x) {
  tt_value *first = tt_add_constant(b, tt_hlo_subtract(b, x, a), 1), *value = tt_reciprocal(b, first);
  tt_value *one = tt_hlo_constant_like(b, x, 1), *zero = tt_hlo_constant_like(b, x, 0);
  tt_value *state[F_CARRIED] = {tt_hlo_constant_i64(b, TT_S32, 0),
                                a,
                                first,
                                tt_hlo_constant_like(b, x, 1e30), // instead of infinity
                                zero,
                                value,
                                tt_square(b, value),
                                value,
                                value,
                                zero,
                                one};
  tt_hlo_while(b, F_CARRIED, state, fraction_open, fraction_step, NULL, state);
  tt_value *factor = tt_hlo_subtract(b, tt_hlo_log(b, x), tt_emit_digamma(b, a));
  factor = tt_hlo_add(b, factor, state[F_LOG_SLOPE]);
  return tt_hlo_multiply(b, x, tt_hlo_multiply(b, state[F_VALUE], factor));
}

static tt_value *by_temme(tt_builder *b, tt_value *a, tt_value *x, const tt_temme *t) {
  tt_value *sum = tt_hlo_multiply(b, tt_hlo_add(b, tt_square(b, t->eta), tt_reciprocal(b, a)), t->sum);
  sum = tt_multiply_constant(b, tt_hlo_add(b, t->eta, sum), 0.5);
  sum = tt_hlo_add(b, sum, tt_hlo_divide(b, t->slope, a));
  sum = tt_hlo_multiply(b, tt_stirling_rest(b, a), sum);
  return tt_hlo_multiply(b, tt_hlo_divide(b, x, a), tt_constant_minus(b, 1, sum));
}

// (self, output): the derivative of the sample `output` by the shape `self`.
tt_value *tt_emit_standard_gamma_grad(tt_builder *b, tt_value *a, tt_value *x) {
  tt_temme temme = tt_temme_at(b, a, x);
  // Q's fraction converges too slowly for small x, where the series does not lose much.
  tt_value *above = tt_hlo_and(b, tt_compare_constant(b, TT_GT, x, 1.1), tt_hlo_compare(b, TT_GE, x, a));
  tt_value *use_fraction = tt_hlo_and(b, above, tt_hlo_not(b, temme.holds));
  tt_value *skip_series = tt_hlo_or(b, above, temme.holds), *skip_fraction = tt_hlo_not(b, use_fraction);
  tt_value *result = by_series(b, tt_select_constant(b, skip_series, 1, a), tt_select_constant(b, skip_series, 0.5, x));
  tt_value *fraction =
      by_fraction(b, tt_select_constant(b, skip_fraction, 1, a), tt_select_constant(b, skip_fraction, 2, x));
  result = tt_hlo_select(b, use_fraction, fraction, result);
  result = tt_hlo_select(b, temme.holds, by_temme(b, a, x, &temme), result);
  return tt_select_constant(b, tt_compare_constant(b, TT_EQ, x, 0), 0, result);
}
