// gamma.c - the incomplete gamma functions P and Q = 1 - P (igamma, igammac), for a > 0 and x > 0.
//
// Which of the two is found, and how, depends on where (a, x) lies, as in Gil, Segura and Temme, "Efficient and accurate
// algorithms for the computation and inversion of the incomplete gamma function ratios" (2012), and DLMF chapter 8:
//   large a, x within 30 % of a   Temme's uniform expansion, DLMF 8.12.3
//   P: x below a                  the power series, DLMF 8.7.1
//   Q: x below 1.1, a smaller     the series in x, DLMF 8.7.3
//   Q: elsewhere                  the continued fraction, DLMF 8.9.2, in its even part
// All are evaluated for all elements, on harmless numbers where they do not apply; a loop ends with its slowest element.
#include "op/gamma.h"

#include "op/axes.h"
#include "op/pointwise.h"
#include "op/series.h"
#include "op/transcendental.h"

#include <math.h>

double tt_half_epsilon(const tt_value *x) { return x->dtype == TT_F64 ? 0x1p-53 : 0x1p-24; }

tt_value *tt_step_is_left(tt_builder *b, tt_value *step) {
  return tt_hlo_compare(b, TT_LT, step, tt_hlo_constant_i64(b, TT_S32, TT_GAMMA_STEPS));
}
tt_value *tt_step_next(tt_builder *b, tt_value *step) { return tt_hlo_add(b, step, tt_hlo_constant_i64(b, TT_S32, 1)); }
tt_value *tt_step_like(tt_builder *b, tt_value *step, const tt_value *like) {
  return tt_hlo_broadcast_like(b, tt_hlo_convert(b, step, like->dtype), like);
}
tt_value *tt_any(tt_builder *b, tt_value *x) { return tt_reduce(b, x, TT_REDUCE_OR, tt_axes_range(0, x->rank)); }

// --- factors --------------------------------------------------------------------------------------------------------------

// a (mu - log(1 + mu)), mu = (x - a) / a, right to the last digits around mu = 0: with s = mu / (2 + mu) it is
// a (mu s - 2 (s^3/3 + s^5/5 + ...)). exp(-this) is x^a exp(-x) over its value at x = a.
static tt_value *log_drop(tt_builder *b, tt_value *a, tt_value *x, tt_value *mu) {
  tt_value *s = tt_hlo_divide(b, mu, tt_add_constant(b, mu, 2)), *square = tt_square(b, s);
  int terms = mu->dtype == TT_F64 ? 17 : 7; // s^2 is 1/9 at most
  tt_value *sum = tt_hlo_constant_like(b, mu, 1.0 / (2 * terms + 1));
  for (int i = terms - 1; i > 0; --i) sum = tt_add_constant(b, tt_hlo_multiply(b, sum, square), 1.0 / (2 * i + 1));
  tt_value *cube = tt_multiply_constant(b, tt_hlo_multiply(b, s, square), 2);
  tt_value *near = tt_hlo_subtract(b, tt_hlo_multiply(b, mu, s), tt_hlo_multiply(b, cube, sum));
  // Kept finite: where it overflows, a times the logarithm is nothing beside x.
  tt_value *ratio = tt_hlo_minimum(b, tt_hlo_divide(b, x, a), tt_hlo_constant_like(b, x, 3e38));
  tt_value *far = tt_hlo_subtract(b, tt_hlo_subtract(b, x, a), tt_hlo_multiply(b, a, tt_hlo_log(b, ratio)));
  tt_value *is_near = tt_compare_constant(b, TT_LT, tt_hlo_abs(b, mu), 0.5);
  return tt_hlo_select(b, is_near, tt_hlo_multiply(b, a, near), far);
}

// log(gamma(t)) / ((t - 1) (t - 2)) for 1 <= t <= 4.
static tt_value *log_gamma_quotient(tt_builder *b, tt_value *t) {
  if (t->dtype == TT_F32) return tt_polynomial_at(b, &tt_polynomial_log_gamma_quotient, t);
  return tt_series_at(b, &tt_series_log_gamma, t);
}

// log(gamma(1 + a)) / a for 0 <= a <= 1.25.
static tt_value *small_log_gamma(tt_builder *b, tt_value *a) {
  a = tt_hlo_minimum(b, a, tt_hlo_constant_like(b, a, 1.25));
  return tt_hlo_multiply(b, tt_add_constant(b, a, -1), log_gamma_quotient(b, tt_add_constant(b, a, 1)));
}

tt_value *tt_stirling_rest(tt_builder *b, tt_value *a) {
  return tt_series_at(b, &tt_series_stirling, tt_reciprocal(b, a));
}

// a^a exp(-a) / gamma(a + 1)
static tt_value *peak(tt_builder *b, tt_value *a) {
  tt_value *exponent = tt_add_constant(b, tt_hlo_subtract(b, tt_hlo_log(b, a), small_log_gamma(b, a)), -1);
  tt_value *near = tt_hlo_exponential(b, tt_hlo_multiply(b, a, exponent));
  tt_value *far_a = tt_hlo_maximum(b, a, tt_hlo_constant_like(b, a, 1.25));
  tt_value *far =
      tt_hlo_multiply(b, tt_stirling_rest(b, far_a), tt_hlo_sqrt(b, tt_multiply_constant(b, far_a, 2 * M_PI)));
  return tt_hlo_select(b, tt_compare_constant(b, TT_LT, a, 1.25), near, tt_reciprocal(b, far));
}

// log(gamma(x)) for x > 0: by its zeros up to 4, after a step up below 1, and Stirling's formula beyond.
static tt_value *log_gamma_right(tt_builder *b, tt_value *x) {
  tt_value *one = tt_hlo_constant_like(b, x, 1), *four = tt_hlo_constant_like(b, x, 4);
  tt_value *low = tt_hlo_compare(b, TT_LT, x, one), *near = tt_hlo_minimum(b, x, four);
  // x - 1 and x - 2, of x + 1 below 1: never from a rounded x + 1.
  tt_value *from_one = tt_hlo_select(b, low, near, tt_add_constant(b, near, -1));
  tt_value *zeros = tt_hlo_multiply(b, from_one, tt_add_constant(b, from_one, -1));
  near = tt_hlo_multiply(b, zeros, log_gamma_quotient(b, tt_add_constant(b, from_one, 1)));
  tt_value *log_rest, *log = tt_log_in_parts(b, x, &log_rest);
  near = tt_hlo_select(b, low, tt_hlo_subtract(b, near, log), near);
  tt_value *factor = tt_add_constant(b, x, -0.5), *rest = tt_stirling_rest(b, tt_hlo_maximum(b, x, four));
  rest = tt_add_constant(b, tt_hlo_log(b, rest), 0.9189385332046727 - 0.5); // log(2 pi) / 2
  rest = tt_hlo_add(b, rest, tt_hlo_multiply(b, tt_hlo_minimum(b, factor, tt_hlo_constant_like(b, x, 3e38)), log_rest));
  tt_value *far = tt_hlo_add(b, tt_hlo_multiply(b, factor, tt_add_constant(b, log, -1)), rest);
  return tt_hlo_select(b, tt_hlo_compare(b, TT_LT, x, four), near, far);
}

// log |gamma(x)|. Below 0 by gamma(x) gamma(-x) = -pi / (x sin(pi x)), the sine by the distance from the
// next whole number.
static tt_value *log_gamma(tt_builder *b, tt_value *x) {
  tt_value *size = tt_hlo_abs(b, x), *right = log_gamma_right(b, size);
  tt_value *distance = tt_hlo_subtract(b, size, tt_hlo_round_nearest_even(b, size));
  tt_value *sine = tt_hlo_abs(b, tt_hlo_sine(b, tt_multiply_constant(b, distance, M_PI)));
  tt_value *product = tt_hlo_multiply(b, size, sine);
  tt_value *left =
      tt_hlo_subtract(b, tt_hlo_log(b, tt_hlo_divide(b, tt_hlo_constant_like(b, x, M_PI), product)), right);
  tt_value *whole = tt_hlo_or(b, tt_hlo_is_inf(b, size), tt_compare_constant(b, TT_EQ, distance, 0));
  left = tt_select_constant(b, whole, HUGE_VAL, left);
  return tt_hlo_select(b, tt_compare_constant(b, TT_LT, x, 0), left, right);
}

// CHLO is 100 ulp off. Below 0, where both terms of the reflection cancel at each zero, float32 is worked out in float64.
tt_value *tt_emit_lgamma(tt_builder *b, tt_value *x) {
  if (x->dtype != TT_F32) return log_gamma(b, x);
  tt_value *right = log_gamma_right(b, tt_hlo_abs(b, x));
  return tt_wide_where(b, tt_compare_constant(b, TT_LT, x, 0), x, log_gamma, right);
}

// log of the multivariate gamma function of dimension n: the sum of log(gamma(x - i / 2)), i < n, and n (n - 1) / 4 log(pi).
static tt_value *mvlgamma(tt_pointwise *p) {
  int64_t n = tt_int(p->l, 1);
  const tt_tensor *self = tt_tensor_arg(p->l, 0);
  if (self && self->dtype == TT_BOOL)
    tt_fail(p->l, TT_INVALID_ARGUMENT, "The input tensor may not be a boolean tensor.");
  else if (n < 1)
    tt_fail(p->l, TT_INVALID_ARGUMENT, "p has to be greater than or equal to 1");
  tt_value *sum = tt_hlo_constant_like(p->b, p->x[0], (double)n * ((double)n - 1) / 4 * log(M_PI));
  for (int64_t i = 0; i < n && !tt_failed(p->l); ++i)
    sum = tt_hlo_add(p->b, sum, tt_emit_lgamma(p->b, tt_add_constant(p->b, p->x[0], -0.5 * (double)i)));
  return sum;
}
// torch sums over a dimension of its own, so that the result is row-major.
void tt_lower_mvlgamma(tt_lowering *l) {
  tt_pointwise_each(l, mvlgamma, 1, NULL);
  tt_set_order(l, 0, NULL);
}

// --- the four forms ---------------------------------------------------------------------------------------------------------

// The loop over the terms x^n / ((a + 1) ... (a + n)).
enum { SERIES_STEP, SERIES_A, SERIES_X, SERIES_TERM, SERIES_SUM, SERIES_CARRIED };

static void series_open(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)user;
  tt_value *seen = tt_multiply_constant(b, state[SERIES_SUM], tt_half_epsilon(state[SERIES_SUM]));
  tt_value *open = tt_hlo_compare(b, TT_GT, state[SERIES_TERM], seen);
  results[0] = tt_hlo_and(b, tt_step_is_left(b, state[SERIES_STEP]), tt_any(b, open));
}

static void series_step(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)user;
  tt_value *step = tt_step_next(b, state[SERIES_STEP]), *a = state[SERIES_A];
  tt_value *factor = tt_hlo_divide(b, state[SERIES_X], tt_hlo_add(b, a, tt_step_like(b, step, a)));
  results[SERIES_STEP] = step;
  results[SERIES_A] = a;
  results[SERIES_X] = state[SERIES_X];
  results[SERIES_TERM] = tt_hlo_multiply(b, state[SERIES_TERM], factor);
  results[SERIES_SUM] = tt_hlo_add(b, state[SERIES_SUM], results[SERIES_TERM]);
}

// P over x^a exp(-x) / gamma(a + 1).
static tt_value *power_series(tt_builder *b, tt_value *a, tt_value *x) {
  tt_value *one = tt_hlo_constant_like(b, x, 1);
  tt_value *state[SERIES_CARRIED] = {tt_hlo_constant_i64(b, TT_S32, 0), a, x, one, one};
  tt_hlo_while(b, SERIES_CARRIED, state, series_open, series_step, NULL, state);
  return state[SERIES_SUM];
}

// Lentz's evaluation of 1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / (x + 5 - a - ...))).
enum {
  FRACTION_STEP,
  FRACTION_A,
  FRACTION_B,
  FRACTION_C,
  FRACTION_D,
  FRACTION_VALUE,
  FRACTION_CHANGE,
  FRACTION_CARRIED
};

static void fraction_open(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)user;
  tt_value *change = state[FRACTION_CHANGE];
  tt_value *distance = tt_hlo_abs(b, tt_add_constant(b, change, -1));
  tt_value *open = tt_compare_constant(b, TT_GT, distance, 4 * tt_half_epsilon(change));
  results[0] = tt_hlo_and(b, tt_step_is_left(b, state[FRACTION_STEP]), tt_any(b, open));
}

static void fraction_step(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)user;
  tt_value *step = tt_step_next(b, state[FRACTION_STEP]), *a = state[FRACTION_A], *i = tt_step_like(b, step, a);
  tt_value *numerator = tt_hlo_multiply(b, i, tt_hlo_subtract(b, a, i));
  tt_value *denominator = tt_add_constant(b, state[FRACTION_B], 2);
  tt_value *c = tt_hlo_add(b, denominator, tt_hlo_divide(b, numerator, state[FRACTION_C]));
  tt_value *d = tt_reciprocal(b, tt_hlo_add(b, denominator, tt_hlo_multiply(b, numerator, state[FRACTION_D])));
  results[FRACTION_STEP] = step;
  results[FRACTION_A] = a;
  results[FRACTION_B] = denominator;
  results[FRACTION_C] = c;
  results[FRACTION_D] = d;
  results[FRACTION_CHANGE] = tt_hlo_multiply(b, c, d);
  results[FRACTION_VALUE] = tt_hlo_multiply(b, state[FRACTION_VALUE], results[FRACTION_CHANGE]);
}

// Q over x^a exp(-x) / gamma(a), for x >= a.
static tt_value *fraction(tt_builder *b, tt_value *a, tt_value *x) {
  tt_value *first = tt_add_constant(b, tt_hlo_subtract(b, x, a), 1), *value = tt_reciprocal(b, first);
  // C of the first step is infinite; a number that vanishes beside it serves.
  tt_value *state[FRACTION_CARRIED] = {tt_hlo_constant_i64(b, TT_S32, 0), a,     first,
                                       tt_hlo_constant_like(b, x, 1e30),  value, value,
                                       tt_hlo_constant_like(b, x, 0)};
  tt_hlo_while(b, FRACTION_CARRIED, state, fraction_open, fraction_step, NULL, state);
  return state[FRACTION_VALUE];
}

// Q for x <= 1.1 and small a: 1 - f - a f S, where f = x^a / gamma(a + 1) and S is the sum of (-x)^n / (n! (a + n)) from n = 1.
static tt_value *small_series(tt_builder *b, tt_value *a, tt_value *x) {
  int terms = x->dtype == TT_F64 ? 20 : 12;
  tt_value *power = tt_hlo_constant_like(b, x, 1), *sum = tt_hlo_constant_like(b, x, 0);
  for (int n = 1; n <= terms; ++n) {
    power = tt_multiply_constant(b, tt_hlo_multiply(b, power, x), -1.0 / n);
    sum = tt_hlo_add(b, sum, tt_hlo_divide(b, power, tt_add_constant(b, a, n)));
  }
  tt_value *exponent = tt_hlo_multiply(b, a, tt_hlo_subtract(b, tt_hlo_log(b, x), small_log_gamma(b, a)));
  tt_value *rest = tt_hlo_multiply(b, tt_hlo_multiply(b, a, tt_hlo_exponential(b, exponent)), sum); // a f S
  return tt_hlo_negate(b, tt_hlo_add(b, tt_emit_expm1(b, exponent), rest));
}

tt_temme tt_temme_at(tt_builder *b, tt_value *a, tt_value *x) {
  static const tt_series *const terms[] = {&tt_series_temme0, &tt_series_temme1, &tt_series_temme2, &tt_series_temme3,
                                           &tt_series_temme4, &tt_series_temme5, &tt_series_temme6};
  bool wide = a->dtype == TT_F64;
  int last = wide ? 6 : 2;
  tt_temme t = {.mu = tt_hlo_divide(b, tt_hlo_subtract(b, x, a), a)};
  t.holds = tt_hlo_and(b, tt_compare_constant(b, TT_GT, a, wide ? 200 : 30),
                       tt_compare_constant(b, TT_LT, tt_hlo_abs(b, t.mu), 0.3));
  t.drop = log_drop(b, a, x, t.mu);
  tt_value *eta = tt_hlo_sqrt(b, tt_multiply_constant(b, tt_hlo_divide(b, t.drop, a), 2));
  t.eta = tt_hlo_select(b, tt_compare_constant(b, TT_LT, t.mu, 0), tt_hlo_negate(b, eta), eta);
  t.sum = tt_series_at(b, terms[last], t.eta);
  t.slope = tt_hlo_constant_like(b, a, 0);
  for (int k = last - 1; k >= 0; --k) {
    t.slope = tt_hlo_divide(b, tt_hlo_add(b, t.slope, t.sum), a);
    t.sum = tt_hlo_add(b, tt_hlo_divide(b, t.sum, a), tt_series_at(b, terms[k], t.eta));
  }
  return t;
}

// P or Q: half an erfc, and the sum.
static tt_value *uniform(tt_builder *b, tt_value *a, const tt_temme *t, bool upper) {
  tt_value *scale = tt_hlo_sqrt(b, tt_multiply_constant(b, a, 2 * M_PI));
  scale = tt_hlo_divide(b, tt_hlo_exponential(b, tt_hlo_negate(b, t->drop)), scale);
  tt_value *sum = tt_hlo_multiply(b, t->sum, scale), *root = tt_hlo_sqrt(b, t->drop);
  tt_value *left = tt_compare_constant(b, TT_LT, t->mu, 0);
  tt_value *point = tt_hlo_select(b, upper ? left : tt_hlo_not(b, left), tt_hlo_negate(b, root), root);
  tt_value *half = tt_multiply_constant(b, tt_emit_erfc(b, point), 0.5);
  return upper ? tt_hlo_add(b, half, sum) : tt_hlo_subtract(b, half, sum);
}

// --- putting them together ----------------------------------------------------------------------------------------------------

tt_value *tt_gamma_is_lower(tt_builder *b, tt_value *a, tt_value *x) {
  tt_value *tiny_edge = tt_hlo_divide(b, tt_hlo_constant_like(b, x, -0.4), tt_hlo_log(b, x));
  tt_value *tiny = tt_hlo_compare(b, TT_LT, tiny_edge, a);
  tt_value *small = tt_hlo_compare(b, TT_LT, tt_multiply_constant(b, x, 1.1), a);
  tt_value *result = tt_hlo_select(b, tt_compare_constant(b, TT_LE, x, 0.5), tiny, small);
  return tt_hlo_select(b, tt_compare_constant(b, TT_GT, x, 1.1), tt_hlo_compare(b, TT_LT, x, a), result);
}

// The values at 0 and infinity, where the limit `at_end` of P or Q for x -> infinity is 1 or 0, and outside; in torch's order,
// which shows for NaN.
static tt_value *at_edges(tt_builder *b, tt_value *a, tt_value *x, double at_end, tt_value *result) {
  tt_value *all_x = tt_hlo_is_inf(b, x), *nan = tt_hlo_constant_like(b, x, NAN);
  tt_value *end = tt_hlo_constant_like(b, x, at_end), *start = tt_hlo_constant_like(b, x, 1 - at_end);
  result = tt_hlo_select(b, all_x, end, result);
  result = tt_hlo_select(b, tt_hlo_is_inf(b, a), tt_hlo_select(b, all_x, nan, start), result);
  result = tt_hlo_select(b, tt_compare_constant(b, TT_EQ, x, 0), start, result);
  tt_value *without_a = tt_hlo_select(b, tt_compare_constant(b, TT_GT, x, 0), end, nan);
  result = tt_hlo_select(b, tt_compare_constant(b, TT_EQ, a, 0), without_a, result);
  tt_value *outside = tt_hlo_or(b, tt_compare_constant(b, TT_LT, a, 0), tt_compare_constant(b, TT_LT, x, 0));
  return tt_hlo_select(b, outside, nan, result);
}

static tt_value *incomplete_gamma(tt_builder *b, tt_value *a, tt_value *x, bool upper) {
  tt_temme temme = tt_temme_at(b, a, x);
  tt_value *lower = tt_gamma_is_lower(b, a, x), *large = tt_compare_constant(b, TT_GT, x, 1.1);
  tt_value *not_temme = tt_hlo_not(b, temme.holds), *by_series = tt_hlo_and(b, lower, not_temme);
  tt_value *by_fraction = tt_hlo_and(b, tt_hlo_and(b, tt_hlo_not(b, lower), not_temme), large);

  // Their product is x^a exp(-x) / gamma(a + 1); the exponential, which may be tiny, comes last.
  tt_value *decay = tt_hlo_exponential(b, tt_hlo_negate(b, temme.drop)), *scale = peak(b, a);
  tt_value *series = power_series(b, tt_select_constant(b, tt_hlo_not(b, by_series), 1, a),
                                  tt_select_constant(b, tt_hlo_not(b, by_series), 0.5, x));
  tt_value *tail = fraction(b, tt_select_constant(b, tt_hlo_not(b, by_fraction), 1, a),
                            tt_select_constant(b, tt_hlo_not(b, by_fraction), 2, x));
  series = tt_hlo_multiply(b, tt_hlo_multiply(b, series, scale), decay);
  tail = tt_hlo_multiply(b, tt_hlo_multiply(b, tail, tt_hlo_multiply(b, a, scale)), decay);
  tail = tt_hlo_select(b, large, tail, small_series(b, a, x));

  tt_value *found = tt_hlo_select(b, lower, series, tail);
  tt_value *wanted = upper ? tt_hlo_not(b, lower) : lower;
  tt_value *result = tt_hlo_select(b, wanted, found, tt_constant_minus(b, 1, found));
  result = tt_hlo_select(b, temme.holds, uniform(b, a, &temme, upper), result);
  return at_edges(b, a, x, upper ? 0 : 1, result);
}

tt_value *tt_emit_igamma(tt_builder *b, tt_value *a, tt_value *x) { return incomplete_gamma(b, a, x, false); }
tt_value *tt_emit_igammac(tt_builder *b, tt_value *a, tt_value *x) { return incomplete_gamma(b, a, x, true); }
