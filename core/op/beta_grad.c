// beta_grad.c - how a component x of a Dirichlet sample moves with its concentration a, the others held (_dirichlet_grad).
//
// x has the distribution I_x(a, b) of Beta(a, b), b = total - a, and torch's op gives -(dI/da) / density / (1 - x). With the
// continued fraction K of DLMF 8.17.22 differentiated beside its evaluation, the density cancels:
//   x below about a / (a + b):  -x / a K (log x + digamma(a + b) - digamma(a + 1) + d(log K)/da),   K of (a, b, x)
//   above:                       x / b K (log x + digamma(a + b) - digamma(a) + d(log K)/da),       K of (b, a, 1 - x)
#include "op/gamma.h"
#include "op/pointwise.h"
#include "op/transcendental.h"

#include <math.h>

tt_value *tt_emit_digamma(tt_builder *b, tt_value *x);

// K is a fraction in (p, q, z), and DP and DQ are the derivatives of p and q: one of them is 1, the other 0. C and D are Lentz's,
// DC and DD their derivatives, LOG_SLOPE that of log VALUE; see gamma_grad.c.
enum { STEP, P, Q, Z, DP, DQ, C, DC, D, DD, VALUE, LOG_SLOPE, CHANGE, CARRIED };

static void is_open(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)user;
  tt_value *open = tt_compare_constant(b, TT_GT, state[CHANGE], 8 * tt_half_epsilon(state[CHANGE]));
  results[0] = tt_hlo_and(b, tt_step_is_left(b, state[STEP]), tt_any(b, open));
}

// Takes one more partial numerator into the fraction. CHANGE becomes the greatest of itself and what this did.
static void take(tt_builder *b, tt_value **s, tt_value *numerator, tt_value *slope) {
  tt_value *ratio = tt_hlo_divide(b, numerator, s[C]);
  s[DC] = tt_hlo_divide(b, tt_hlo_subtract(b, slope, tt_hlo_multiply(b, ratio, s[DC])), s[C]);
  s[C] = tt_add_constant(b, ratio, 1);
  tt_value *below = tt_hlo_add(b, tt_hlo_multiply(b, slope, s[D]), tt_hlo_multiply(b, numerator, s[DD]));
  s[D] = tt_reciprocal(b, tt_add_constant(b, tt_hlo_multiply(b, numerator, s[D]), 1));
  s[DD] = tt_hlo_negate(b, tt_hlo_multiply(b, below, tt_square(b, s[D])));
  tt_value *factor = tt_hlo_multiply(b, s[C], s[D]), *of_c = tt_hlo_divide(b, s[DC], s[C]);
  tt_value *added = tt_hlo_add(b, of_c, tt_hlo_divide(b, s[DD], s[D]));
  s[VALUE] = tt_hlo_multiply(b, s[VALUE], factor);
  s[LOG_SLOPE] = tt_hlo_add(b, s[LOG_SLOPE], added);
  tt_value *beside = tt_hlo_add(b, tt_hlo_abs(b, s[LOG_SLOPE]), tt_hlo_abs(b, of_c));
  tt_value *slope_change = tt_hlo_divide(b, tt_hlo_abs(b, added), beside);
  slope_change = tt_select_constant(b, tt_compare_constant(b, TT_EQ, beside, 0), 0, slope_change);
  tt_value *change = tt_hlo_maximum(b, tt_hlo_abs(b, tt_add_constant(b, factor, -1)), slope_change);
  s[CHANGE] = tt_hlo_maximum(b, s[CHANGE], change);
}

// -(p + m)(p + q + m) z / ((p + 2m)(p + 2m + 1)) and its derivative.
static void take_odd(tt_builder *b, tt_value **s, tt_value *m) {
  tt_value *low = tt_hlo_add(b, s[P], tt_hlo_add(b, m, m)), *high = tt_add_constant(b, low, 1);
  tt_value *first = tt_hlo_add(b, s[P], m), *second = tt_hlo_add(b, first, s[Q]);
  tt_value *numerator = tt_hlo_multiply(b, tt_hlo_divide(b, first, low), tt_hlo_divide(b, second, high));
  numerator = tt_hlo_negate(b, tt_hlo_multiply(b, numerator, s[Z]));
  tt_value *of_p = tt_hlo_subtract(b, tt_reciprocal(b, first), tt_reciprocal(b, low));
  of_p = tt_hlo_multiply(b, s[DP], tt_hlo_subtract(b, of_p, tt_reciprocal(b, high)));
  tt_value *log_slope = tt_hlo_add(b, tt_reciprocal(b, second), of_p);
  take(b, s, numerator, tt_hlo_multiply(b, numerator, log_slope));
}

// m (q - m) z / ((p + 2m - 1)(p + 2m)) and its derivative.
static void take_even(tt_builder *b, tt_value **s, tt_value *m) {
  tt_value *high = tt_hlo_add(b, s[P], tt_hlo_add(b, m, m)), *low = tt_add_constant(b, high, -1);
  tt_value *scale = tt_hlo_divide(b, tt_hlo_multiply(b, m, s[Z]), tt_hlo_multiply(b, low, high));
  tt_value *numerator = tt_hlo_multiply(b, scale, tt_hlo_subtract(b, s[Q], m));
  tt_value *of_p = tt_hlo_multiply(b, s[DP], tt_hlo_add(b, tt_reciprocal(b, low), tt_reciprocal(b, high)));
  tt_value *slope = tt_hlo_subtract(b, tt_hlo_multiply(b, scale, s[DQ]), tt_hlo_multiply(b, numerator, of_p));
  take(b, s, numerator, slope);
}

static void advance(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)user;
  for (int i = 0; i < CARRIED; ++i) results[i] = state[i];
  results[STEP] = tt_step_next(b, state[STEP]);
  tt_value *m = tt_step_like(b, results[STEP], state[P]);
  results[CHANGE] = tt_hlo_constant_like(b, m, 0);
  take_even(b, results, m);
  take_odd(b, results, m);
}

// digamma(z + rise) - digamma(z). Above 16 from the differences of the terms of DLMF 5.11.2, since the two numbers nearly cancel
// where rise is small.
static tt_value *digamma_rise(tt_builder *b, tt_value *z, tt_value *rise) {
  static const double terms[] = {1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240, 1.0 / 132, -691.0 / 32760}; // B_2k / 2k
  tt_value *end = tt_hlo_add(b, z, rise), *u = tt_reciprocal(b, z), *v = tt_reciprocal(b, end);
  tt_value *step = tt_hlo_multiply(b, rise, tt_hlo_multiply(b, u, v)); // u - v
  tt_value *u2 = tt_square(b, u), *v2 = tt_square(b, v), *squares = tt_hlo_multiply(b, step, tt_hlo_add(b, u, v));
  tt_value *sum = tt_hlo_add(b, tt_emit_log1p(b, tt_hlo_multiply(b, rise, u)), tt_multiply_constant(b, step, 0.5));
  tt_value *difference = squares, *power = tt_hlo_constant_like(b, z, 1); // u^2k - v^2k, v^(2k - 2)
  for (int k = 0; k < 6; ++k) {
    sum = tt_hlo_add(b, sum, tt_multiply_constant(b, difference, terms[k]));
    power = tt_hlo_multiply(b, power, v2);
    difference = tt_hlo_add(b, tt_hlo_multiply(b, u2, difference), tt_hlo_multiply(b, squares, power));
  }
  tt_value *plain = tt_hlo_subtract(b, tt_emit_digamma(b, end), tt_emit_digamma(b, z));
  tt_value *large = tt_compare_constant(b, TT_GE, tt_hlo_minimum(b, z, end), 16);
  return tt_hlo_select(b, large, sum, plain);
}

// (x, a, total)
static tt_value *dirichlet_grad(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *x = p->x[0], *a = p->x[1], *total = p->x[2], *other = tt_hlo_subtract(b, total, a);
  tt_value *zero = tt_hlo_constant_like(b, x, 0), *one = tt_hlo_constant_like(b, x, 1);
  // Where the fraction of (a, b, x) converges fast; the other one does where it does not.
  tt_value *edge = tt_hlo_divide(b, tt_add_constant(b, a, 1), tt_add_constant(b, total, 2));
  tt_value *below = tt_hlo_compare(b, TT_LT, x, edge);
  tt_value *s[CARRIED] = {[STEP] = tt_hlo_constant_i64(b, TT_S32, 0),
                          [P] = tt_hlo_select(b, below, a, other),
                          [Q] = tt_hlo_select(b, below, other, a),
                          [Z] = tt_hlo_select(b, below, x, tt_hlo_subtract(b, one, x)),
                          [DP] = tt_hlo_select(b, below, one, zero),
                          [DQ] = tt_hlo_select(b, below, zero, one),
                          [C] = one,
                          [DC] = zero,
                          [D] = one,
                          [DD] = zero,
                          [VALUE] = one,
                          [LOG_SLOPE] = zero,
                          [CHANGE] = zero};
  // The first numerator only goes into D: C stays 1.
  take_odd(b, s, zero);
  s[VALUE] = s[D];
  s[LOG_SLOPE] = tt_hlo_divide(b, s[DD], s[D]);
  s[C] = s[CHANGE] = one;
  s[DC] = zero;
  tt_hlo_while(b, CARRIED, s, is_open, advance, NULL, s);
  tt_value *start = tt_hlo_select(b, below, tt_add_constant(b, a, 1), a);
  tt_value *rise = tt_hlo_select(b, below, tt_add_constant(b, other, -1), other);
  tt_value *factor = digamma_rise(b, start, rise);
  factor = tt_hlo_add(b, tt_hlo_add(b, tt_hlo_log(b, x), factor), s[LOG_SLOPE]);
  tt_value *scale = tt_hlo_divide(b, tt_hlo_multiply(b, x, s[VALUE]), s[P]);
  tt_value *result = tt_hlo_multiply(b, tt_hlo_select(b, below, tt_hlo_negate(b, scale), scale), factor);
  return tt_select_constant(b, tt_compare_constant(b, TT_EQ, x, 0), 0, result);
}
void tt_lower_dirichlet_grad(tt_lowering *l) { tt_pointwise_each(l, dirichlet_grad, 3, NULL); }
