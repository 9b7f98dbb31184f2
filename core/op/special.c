// special.c - the error functions and what follows from them: the normal distribution.
//
// Bessel functions are in bessel.c, orthogonal polynomials in orthogonal.c, log gamma and the incomplete gamma functions in gamma.c,
// log gamma's derivatives in polygamma.c.
#include "op/pointwise.h"
#include "op/series.h"
#include "op/transcendental.h"

#include <math.h>

// --- the normal distribution ------------------------------------------------------------------------------------------------

// factor exp(scale x^2 + extra), scale a power of two, or minus one; a small float32 extra or NULL. The square is split into that of
// x's leading bits, which is exact, and a small rest; x^2 rounded would lose a digit where it is 100.
static tt_value *exp_of_square(tt_builder *b, tt_value *factor, tt_value *x, double scale, tt_value *extra) {
  bool wide = x->dtype == TT_F64;
  // Beyond 40 the result is 0 or infinite in both dtypes (for scales of 1/2 or more).
  tt_value *limit = tt_hlo_constant_like(b, x, 40);
  x = tt_hlo_minimum(b, tt_hlo_abs(b, x), limit);
  tt_value *leading = tt_hlo_reduce_precision(b, x, wide ? 11 : 8, wide ? 25 : 11);
  tt_value *square = tt_multiply_constant(b, tt_square(b, leading), scale);
  tt_value *rest = tt_hlo_multiply(b, tt_hlo_subtract(b, x, leading), tt_hlo_add(b, x, leading));
  rest = tt_multiply_constant(b, rest, scale);
  if (extra) rest = tt_hlo_add(b, rest, extra);
  if (!wide) return tt_exp_of_sum(b, square, rest, factor, 0);
  tt_value *power = tt_hlo_multiply(b, tt_hlo_exponential(b, square), tt_add_constant(b, tt_emit_expm1(b, rest), 1));
  return tt_hlo_multiply(b, factor, power);
}

// exp(x^2) erfc(x) for x >= 0: a series of (1 + 2x) erfcx(x) in (x - 3.75) / (x + 3.75). Float32 takes it from 1.25 on only, below
// which the rounding of that quotient shows. Where out_error is given, a float32 result is to be multiplied by 1 - *out_error,
// for which it has no digits left.
static tt_value *erfcx_right(tt_builder *b, tt_value *x, tt_value **out_error) {
  tt_value *u = tt_hlo_divide(b, tt_add_constant(b, x, -3.75), tt_add_constant(b, x, 3.75));
  u = tt_select_constant(b, tt_hlo_is_inf(b, x), 1, u);
  tt_value *twice = tt_multiply_constant(b, x, 2), *divisor = tt_add_constant(b, twice, 1);
  if (x->dtype == TT_F64) return tt_hlo_divide(b, tt_series_at(b, &tt_series_erfcx_scaled, u), divisor);
  tt_value *near_x = tt_hlo_minimum(b, x, tt_hlo_constant_like(b, x, 1.25));
  tt_value *near = tt_polynomial_at(b, &tt_polynomial_erfcx_near, near_x);
  tt_value *far = tt_hlo_divide(b, tt_polynomial_at(b, &tt_polynomial_erfcx_far, u), divisor);
  tt_value *is_near = tt_compare_constant(b, TT_LE, x, 1.25);
  if (out_error) { // what 1 + 2x lost, over 1 + 2x, in which the numerator, 1.13 to 1.29, is left out
    tt_value *lost = tt_constant_minus(b, 1, tt_hlo_subtract(b, divisor, twice));
    *out_error = tt_hlo_multiply(b, tt_multiply_constant(b, far, 0.83), lost);
    *out_error = tt_select_constant(b, is_near, 0, *out_error);
  }
  return tt_hlo_select(b, is_near, near, far);
}

tt_value *tt_emit_erfcx(tt_builder *b, tt_value *x) {
  tt_value *right = erfcx_right(b, tt_hlo_abs(b, x), NULL);
  tt_value *left = tt_hlo_subtract(b, exp_of_square(b, tt_hlo_constant_like(b, x, 2), x, 1, NULL), right);
  return tt_hlo_select(b, tt_compare_constant(b, TT_LT, x, 0), left, right);
}

// In float32 a polynomial up to 1, and 1 less the fourth power of one beyond; CHLO is 5 ulp off.
tt_value *tt_emit_erf(tt_builder *b, tt_value *x) {
  if (x->dtype != TT_F32) return tt_hlo_erf(b, x);
  tt_value *size = tt_hlo_abs(b, x), *near = tt_polynomial_at(b, &tt_polynomial_erf_near, tt_square(b, x));
  near = tt_hlo_add(b, tt_hlo_multiply(b, size, near), size);
  tt_value *far_x = tt_hlo_minimum(b, size, tt_hlo_constant_like(b, x, 4));
  tt_value *far = tt_square(b, tt_square(b, tt_polynomial_at(b, &tt_polynomial_erf_far, far_x)));
  far = tt_constant_minus(b, 1, far);
  return tt_with_sign_of(b, tt_hlo_select(b, tt_compare_constant(b, TT_LT, size, 1), near, far), x);
}

// Not for x > 1, where 1 - erf(x) has no digits left.
static tt_value *erfc_near(tt_builder *b, tt_value *x) {
  return x->dtype == TT_F32 ? tt_constant_minus(b, 1, tt_emit_erf(b, x)) : tt_hlo_erfc(b, x);
}

// From erfcx beyond 1/2, where CHLO's is up to 60 ulp off.
tt_value *tt_emit_erfc(tt_builder *b, tt_value *x) {
  tt_value *error = NULL, *right = tt_hlo_maximum(b, x, tt_hlo_constant_like(b, x, 0.5));
  right = tt_hlo_minimum(b, right, tt_hlo_constant_like(b, x, 40)); // so 0
  tt_value *scaled = erfcx_right(b, right, &error);
  if (error) error = tt_hlo_negate(b, error);
  tt_value *far = exp_of_square(b, scaled, right, -1, error);
  tt_value *near = erfc_near(b, tt_hlo_minimum(b, x, tt_hlo_constant_like(b, x, 0.5)));
  return tt_hlo_select(b, tt_compare_constant(b, TT_GT, x, 0.5), far, near);
}

// A polynomial up to 1/2 (float64: CHLO's); CHLO's is up to 36 ulp off near 1, and beyond 1/2 a Newton step follows: 1 - |x| is exact.
tt_value *tt_emit_erfinv(tt_builder *b, tt_value *x) {
  tt_value *start = tt_hlo_erf_inv(b, x), *size = tt_hlo_abs(b, start), *near = start;
  if (x->dtype == TT_F32) {
    near = tt_hlo_multiply(b, x, tt_polynomial_at(b, &tt_polynomial_erfinv_near, tt_square(b, x)));
    near = tt_hlo_select(b, tt_compare_constant(b, TT_EQ, x, 0), x, tt_hlo_add(b, near, x)); // -0
  }
  tt_value *distance = tt_hlo_subtract(b, tt_emit_erfc(b, size), tt_constant_minus(b, 1, tt_hlo_abs(b, x)));
  tt_value *step = exp_of_square(b, distance, size, 1, NULL); // over erf's slope
  tt_value *improved = tt_hlo_add(b, size, tt_divide_constant(b, step, M_2_SQRTPI));
  improved = tt_hlo_select(b, tt_compare_constant(b, TT_LT, x, 0), tt_hlo_negate(b, improved), improved);
  improved = tt_hlo_select(b, tt_hlo_is_finite(b, start), improved, start);
  return tt_hlo_select(b, tt_compare_constant(b, TT_GT, tt_hlo_abs(b, x), 0.5), improved, near);
}

// log of the distribution function: of erfcx where that is tiny, log(1 - tail) where it is nearly 1.
tt_value *tt_emit_log_ndtr(tt_builder *b, tt_value *x) {
  tt_value *t = tt_multiply_constant(b, x, M_SQRT1_2);
  tt_value *scaled = tt_multiply_constant(b, erfcx_right(b, tt_hlo_abs(b, t), NULL), 0.5);
  tt_value *left = tt_hlo_subtract(b, tt_hlo_log(b, scaled), tt_multiply_constant(b, tt_square(b, x), 0.5));
  tt_value *tail = exp_of_square(b, scaled, x, -0.5, NULL);
  tail = tt_hlo_select(b, tt_compare_constant(b, TT_GT, x, 1), tail, tt_multiply_constant(b, erfc_near(b, t), 0.5));
  tt_value *rest = tt_emit_log1p(b, tt_hlo_negate(b, tail));
  return tt_hlo_select(b, tt_compare_constant(b, TT_LT, x, -1), left, rest);
}

// For p <= exp(-2): -(z - log(z) / z - series(1 / z) / z) with z = sqrt(-2 log(p)), and in float64 a Newton step.
static tt_value *ndtri_of_tail(tt_builder *b, tt_value *p) {
  tt_value *z = tt_hlo_sqrt(b, tt_multiply_constant(b, tt_hlo_log(b, p), -2));
  tt_value *inverse = tt_reciprocal(b, z);
  tt_value *correction = tt_hlo_add(b, tt_hlo_log(b, z), tt_series_at(b, &tt_series_ndtri_tail, inverse));
  tt_value *x = tt_hlo_subtract(b, tt_hlo_multiply(b, correction, inverse), z);
  if (p->dtype != TT_F64) return x;
  tt_value *reached = tt_multiply_constant(b, tt_emit_erfc(b, tt_multiply_constant(b, x, -M_SQRT1_2)), 0.5);
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
      tt_multiply_constant(b, tt_emit_erfinv(b, tt_add_constant(b, tt_multiply_constant(b, side, 2), -1)), M_SQRT2);
  // Kept inside (0, edge], so that the side not taken stays finite.
  tt_value *in_tail = tt_compare_constant(b, TT_LT, side, edge);
  tt_value *tail = ndtri_of_tail(b, tt_select_constant(b, tt_hlo_not(b, in_tail), edge, side));
  tt_value *x = tt_hlo_select(b, in_tail, tail, middle);
  x = tt_select_constant(b, tt_compare_constant(b, TT_EQ, side, 0), -HUGE_VAL, x);
  x = tt_hlo_select(b, upper, tt_hlo_negate(b, x), x);
  tt_value *valid = tt_hlo_and(b, tt_compare_constant(b, TT_GE, p, 0), tt_compare_constant(b, TT_LE, p, 1));
  return tt_hlo_select(b, valid, x, tt_hlo_constant_like(b, x, NAN));
}
