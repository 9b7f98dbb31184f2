// bessel.c - Bessel functions of order 0 and 1, modified and spherical ones, and Airy's function.
//
// Each is a Chebyshev series (series.h) near 0 and one in 1 / x beyond, around the leading behaviour. Definitions and the
// forms for large arguments are those of the Digital Library of Mathematical Functions (dlmf.nist.gov), chapters 9 and 10;
// values at the edges (NaN at infinity for the oscillating ones, below 0 for Y and K) are torch's.
#include "op/pointwise.h"
#include "op/series.h"

#include <math.h>

// Kept at `edge` or above, so that the side of a select that is not taken stays finite.
static tt_value *at_least(tt_builder *b, tt_value *x, double edge) {
  return tt_hlo_maximum(b, x, tt_hlo_constant_like(b, x, edge));
}
static tt_value *at_most(tt_builder *b, tt_value *x, double edge) {
  return tt_hlo_minimum(b, x, tt_hlo_constant_like(b, x, edge));
}

static tt_value *odd(tt_builder *b, tt_value *x, tt_value *of_size) {
  return tt_hlo_select(b, tt_compare_constant(b, TT_LT, x, 0), tt_hlo_negate(b, of_size), of_size);
}

// --- modified, first kind: I ------------------------------------------------------------------------------------------------

// exp(-|x|) I0(x).
tt_value *tt_emit_i0e(tt_builder *b, tt_value *x) {
  tt_value *size = tt_hlo_abs(b, x), *far_size = at_least(b, size, 8);
  tt_value *near = tt_series_at(b, &tt_series_i0e_near, size);
  tt_value *far = tt_series_at(b, &tt_series_i0e_far, tt_reciprocal(b, far_size));
  far = tt_hlo_divide(b, far, tt_hlo_sqrt(b, far_size));
  return tt_hlo_select(b, tt_compare_constant(b, TT_LE, size, 8), near, far);
}

static tt_value *unscaled(tt_builder *b, tt_value *x, tt_value *scaled) {
  return tt_hlo_multiply(b, scaled, tt_hlo_exponential(b, tt_hlo_abs(b, x)));
}

tt_value *tt_emit_i0(tt_builder *b, tt_value *x) { return unscaled(b, x, tt_emit_i0e(b, x)); }
tt_value *tt_emit_i1(tt_builder *b, tt_value *x) { return unscaled(b, x, tt_hlo_bessel_i1e(b, x)); }

// --- modified, second kind: K -----------------------------------------------------------------------------------------------

// K of order 0 or 1, times exp(x) if `scaled`. Up to x = 2 what the logarithm leaves is a series in x^2.
static tt_value *modified_k(tt_builder *b, tt_value *x, int order, bool scaled) {
  tt_value *near_x = at_most(b, x, 2), *far_x = at_least(b, x, 2), *square = tt_square(b, near_x);
  tt_value *log_half = tt_hlo_log(b, tt_multiply_constant(b, near_x, 0.5));
  tt_value *near, *far;
  if (order == 0) {
    near = tt_hlo_multiply(b, log_half, tt_series_at(b, &tt_series_i0_small, square));
    near = tt_hlo_subtract(b, tt_series_at(b, &tt_series_k0_near, square), near);
    far = tt_series_at(b, &tt_series_k0_far, tt_reciprocal(b, far_x));
  } else {
    near = tt_hlo_multiply(b, log_half, tt_hlo_multiply(b, near_x, tt_series_at(b, &tt_series_i1_small, square)));
    near = tt_hlo_add(b, tt_hlo_divide(b, tt_series_at(b, &tt_series_k1_near, square), near_x), near);
    far = tt_series_at(b, &tt_series_k1_far, tt_reciprocal(b, far_x));
  }
  if (scaled)
    near = tt_hlo_multiply(b, near, tt_hlo_exponential(b, near_x));
  else
    far = tt_hlo_multiply(b, far, tt_hlo_exponential(b, tt_hlo_negate(b, far_x)));
  far = tt_hlo_divide(b, far, tt_hlo_sqrt(b, far_x));
  tt_value *result = tt_hlo_select(b, tt_compare_constant(b, TT_LE, x, 2), near, far);
  result = tt_select_constant(b, tt_compare_constant(b, TT_EQ, x, 0), HUGE_VAL, result);
  return tt_select_constant(b, tt_compare_constant(b, TT_LT, x, 0), NAN, result);
}

tt_value *tt_emit_k0(tt_builder *b, tt_value *x) { return modified_k(b, x, 0, false); }
tt_value *tt_emit_k1(tt_builder *b, tt_value *x) { return modified_k(b, x, 1, false); }
tt_value *tt_emit_k0e(tt_builder *b, tt_value *x) { return modified_k(b, x, 0, true); }
tt_value *tt_emit_k1e(tt_builder *b, tt_value *x) { return modified_k(b, x, 1, true); }

// --- J and Y --------------------------------------------------------------------------------------------------------------

// x^2 - zero^2, right to the last digit near the zero, which is taken away in two parts; the first is a number of x's dtype.
// `rest` is what a double does not hold of it. (A plain x - first - second would be summed up by the compiler.)
static tt_value *over_zero(tt_builder *b, tt_value *x, double zero, double rest) {
  double first = x->dtype == TT_F64 ? zero : (float)zero, second = zero - first + rest;
  tt_value *product = tt_hlo_multiply(b, tt_add_constant(b, x, -first), tt_add_constant(b, x, zero));
  return tt_hlo_subtract(b, product, tt_add_constant(b, tt_multiply_constant(b, x, second), second * zero));
}

// J0(x) or J1(x) for 0 <= x <= 5: a series times the distance from the first two zeros.
static tt_value *j_near(tt_builder *b, tt_value *x, int order) {
  tt_value *square = tt_square(b, x);
  if (order == 0) {
    tt_value *zeros = tt_hlo_multiply(b, over_zero(b, x, 2.404825557695773, -1.176691651530894e-16),
                                      over_zero(b, x, 5.520078110286311, 8.088597146146722e-17));
    return tt_hlo_multiply(b, zeros, tt_series_at(b, &tt_series_j0_near, square));
  }
  tt_value *zeros = tt_hlo_multiply(b, over_zero(b, x, 3.8317059702075125, -1.5269184090088067e-16),
                                    over_zero(b, x, 7.015586669815619, -9.414165653410389e-17));
  return tt_hlo_multiply(b, x, tt_hlo_multiply(b, zeros, tt_series_at(b, &tt_series_j1_near, square)));
}

// J or Y for x >= 5: Hankel's form, DLMF 10.17.3. The phase x - pi/4 or x - 3 pi/4 is never rounded: its cosine and sine are
// sums of those of x.
static tt_value *hankel(tt_builder *b, tt_value *x, int order, bool second_kind) {
  tt_value *sine = tt_hlo_sine(b, x), *cosine = tt_hlo_cosine(b, x);
  tt_value *sum = tt_hlo_add(b, sine, cosine), *difference = tt_hlo_subtract(b, sine, cosine);
  tt_value *inverse = tt_hlo_divide(b, tt_hlo_constant_like(b, x, 5), x), *t = tt_square(b, inverse);
  tt_value *p = tt_series_at(b, order == 0 ? &tt_series_hankel_p0 : &tt_series_hankel_p1, t);
  tt_value *q = tt_series_at(b, order == 0 ? &tt_series_hankel_q0 : &tt_series_hankel_q1, t);
  q = tt_hlo_multiply(b, inverse, q);
  // sqrt(2) times the cosine and the sine of the phase.
  tt_value *phase_cosine = order == 0 ? sum : difference;
  tt_value *phase_sine = order == 0 ? difference : tt_hlo_negate(b, sum);
  tt_value *wave = second_kind
                       ? tt_hlo_add(b, tt_hlo_multiply(b, p, phase_sine), tt_hlo_multiply(b, q, phase_cosine))
                       : tt_hlo_subtract(b, tt_hlo_multiply(b, p, phase_cosine), tt_hlo_multiply(b, q, phase_sine));
  return tt_hlo_divide(b, wave, tt_hlo_sqrt(b, tt_multiply_constant(b, x, M_PI)));
}

static tt_value *first_kind(tt_builder *b, tt_value *x, int order) {
  tt_value *size = tt_hlo_abs(b, x);
  tt_value *far = hankel(b, at_least(b, size, 5), order, false), *near = j_near(b, at_most(b, size, 5), order);
  return tt_hlo_select(b, tt_compare_constant(b, TT_LE, size, 5), near, far);
}

// Up to x = 5, what the logarithm (and for order 1 the pole) leaves is a series.
static tt_value *second_kind(tt_builder *b, tt_value *x, int order) {
  tt_value *far = hankel(b, at_least(b, x, 5), order, true), *near_x = at_most(b, x, 5);
  tt_value *leading = tt_hlo_multiply(b, tt_hlo_log(b, near_x), j_near(b, near_x, order));
  if (order == 1) leading = tt_hlo_subtract(b, leading, tt_reciprocal(b, near_x));
  tt_value *rest = tt_series_at(b, order == 0 ? &tt_series_y0_near : &tt_series_y1_near, tt_square(b, near_x));
  if (order == 1) rest = tt_hlo_multiply(b, rest, near_x);
  tt_value *near = tt_hlo_add(b, tt_multiply_constant(b, leading, M_2_PI), rest);
  tt_value *result = tt_hlo_select(b, tt_compare_constant(b, TT_LE, x, 5), near, far);
  result = tt_select_constant(b, tt_compare_constant(b, TT_EQ, x, 0), -HUGE_VAL, result);
  return tt_select_constant(b, tt_compare_constant(b, TT_LT, x, 0), NAN, result);
}

tt_value *tt_emit_j0(tt_builder *b, tt_value *x) { return first_kind(b, x, 0); }
tt_value *tt_emit_j1(tt_builder *b, tt_value *x) { return odd(b, x, first_kind(b, x, 1)); }
tt_value *tt_emit_y0(tt_builder *b, tt_value *x) { return second_kind(b, x, 0); }
tt_value *tt_emit_y1(tt_builder *b, tt_value *x) { return second_kind(b, x, 1); }

// sin(x) / x: below 1/2 its Taylor series, the next term of which is x^14 / 15!.
tt_value *tt_emit_spherical_j0(tt_builder *b, tt_value *x) {
  tt_value *square = tt_square(b, x), *near = tt_hlo_constant_like(b, x, 1.0 / 6227020800);
  const double terms[] = {-1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1};
  for (int i = 0; i < 6; ++i) near = tt_add_constant(b, tt_hlo_multiply(b, near, square), terms[i]);
  tt_value *result = tt_hlo_select(b, tt_compare_constant(b, TT_LT, tt_hlo_abs(b, x), 0.5), near,
                                   tt_hlo_divide(b, tt_hlo_sine(b, x), x));
  return tt_select_constant(b, tt_hlo_is_inf(b, x), 0, result);
}

// --- Airy's function --------------------------------------------------------------------------------------------------------

// 2/3 x^(3/2)
static tt_value *airy_phase(tt_builder *b, tt_value *x) {
  return tt_multiply_constant(b, tt_hlo_multiply(b, x, tt_hlo_sqrt(b, x)), 2.0 / 3);
}
static tt_value *fourth_root(tt_builder *b, tt_value *x) { return tt_hlo_sqrt(b, tt_hlo_sqrt(b, x)); }

// Ai(x): DLMF 9.7.5 above 1, 9.7.9 below -4.5.
tt_value *tt_emit_airy_ai(tt_builder *b, tt_value *x) {
  const double inverse_sqrt_pi = M_2_SQRTPI / 2;
  tt_value *right = at_least(b, x, 1), *phase = airy_phase(b, right);
  tt_value *decay = tt_hlo_multiply(b, tt_series_at(b, &tt_series_airy_decay, tt_reciprocal(b, phase)),
                                    tt_hlo_exponential(b, tt_hlo_negate(b, phase)));
  decay = tt_hlo_divide(b, tt_multiply_constant(b, decay, inverse_sqrt_pi / 2), fourth_root(b, right));

  tt_value *left = at_least(b, tt_hlo_negate(b, x), 4.5);
  phase = airy_phase(b, left);
  tt_value *inverse = tt_reciprocal(b, phase), *t = tt_square(b, inverse);
  tt_value *sine = tt_hlo_sine(b, phase), *cosine = tt_hlo_cosine(b, phase);
  // The sine and cosine of phase + pi/4, times sqrt(2).
  tt_value *shifted_sine = tt_hlo_add(b, sine, cosine), *shifted_cosine = tt_hlo_subtract(b, cosine, sine);
  tt_value *g = tt_hlo_multiply(b, inverse, tt_series_at(b, &tt_series_airy_cosine, t));
  tt_value *wave = tt_hlo_subtract(b, tt_hlo_multiply(b, tt_series_at(b, &tt_series_airy_sine, t), shifted_sine),
                                   tt_hlo_multiply(b, g, shifted_cosine));
  wave = tt_hlo_divide(b, tt_multiply_constant(b, wave, inverse_sqrt_pi * M_SQRT1_2), fourth_root(b, left));

  tt_value *middle =
      tt_series_at(b, &tt_series_airy_middle, tt_hlo_maximum(b, at_most(b, x, 1), tt_hlo_constant_like(b, x, -4.5)));
  tt_value *result = tt_hlo_select(b, tt_compare_constant(b, TT_GT, x, 1), decay, middle);
  result = tt_hlo_select(b, tt_compare_constant(b, TT_LT, x, -4.5), wave, result);
  return tt_select_constant(b, tt_hlo_is_inf(b, x), NAN, result);
}
