// transcendental.c - see transcendental.h: exponentials, logarithms and hyperbolic functions.
//
// Float32 is written in two cores. exp(x) = 2^n exp(r) and log(2^k (1 + f)) = k log(2) + log(1 + f), with |r| <= log(2) / 2 and
// 1 + f in [sqrt(1/2), sqrt(2)), where r and f are right to the last bit and a polynomial adds little to them.
#include "op/transcendental.h"

#include "op/axes.h"
#include "op/pointwise.h"
#include "op/series.h"

#include <math.h>

static bool is_float(const tt_value *x) { return tt_dtype_is_float(x->dtype); }

// a sum + c
static tt_value *multiply_add(tt_builder *b, tt_value *x, tt_value *y, tt_value *z) {
  return tt_hlo_add(b, tt_hlo_multiply(b, x, y), z);
}

// log(2) in two parts, the first of so few bits that its multiples are exact.
static const double log2_high = 0x1.63p-1, log2_low = M_LN2 - 0x1.63p-1;

// --- exponentials ---------------------------------------------------------------------------------------------------------

// 2^(n + shift) of a whole float32 n, for a sum in [-127, 128]: 0 and infinity at its ends.
static tt_value *power_of_two(tt_builder *b, tt_value *n, int shift) {
  tt_value *bits = tt_add_constant(b, tt_hlo_convert(b, n, TT_S32), 127 + shift);
  bits = tt_hlo_shift_left(b, bits, tt_hlo_constant_like(b, bits, 23));
  return tt_hlo_bitcast_convert(b, bits, TT_F32, n->rank, n->dims);
}

// x + rest = n log(2) + r; gives exp(r) - 1 and n. x is so small that 2^n is nearly a float32.
static tt_value *reduced_expm1(tt_builder *b, tt_value *x, tt_value *rest, tt_value **out_n) {
  tt_value *n = *out_n = tt_hlo_round_nearest_even(b, tt_multiply_constant(b, x, M_LOG2E));
  tt_value *r = tt_hlo_subtract(b, x, tt_multiply_constant(b, n, log2_high));
  r = tt_hlo_subtract(b, r, tt_multiply_constant(b, n, log2_low));
  if (rest) r = tt_hlo_add(b, r, rest);
  return multiply_add(b, tt_square(b, r), tt_polynomial_at(b, &tt_polynomial_exp_rest, r), r);
}

tt_value *tt_exp_of_sum(tt_builder *b, tt_value *x, tt_value *rest, tt_value *factor, int shift) {
  x = tt_hlo_clamp(b, tt_hlo_constant_like(b, x, -104), x, tt_hlo_constant_like(b, x, 90)); // 0, inf beyond
  tt_value *n, *result = reduced_expm1(b, x, rest, &n);
  result = factor ? multiply_add(b, factor, result, factor) : tt_add_constant(b, result, 1);
  tt_value *half = tt_hlo_floor(b, tt_multiply_constant(b, n, 0.5));
  result = tt_hlo_multiply(b, result, power_of_two(b, half, 0));
  return tt_hlo_multiply(b, result, power_of_two(b, tt_hlo_subtract(b, n, half), shift));
}

// (exp(x) - 1) / 2 of a float32 from -60 to 88.9: 2^(n-1) (exp(r) - 1) + (2^(n-1) - 1/2), in which nothing cancels. The half keeps
// 2^n finite.
static tt_value *half_expm1(tt_builder *b, tt_value *x) {
  tt_value *n, *rise = reduced_expm1(b, x, NULL, &n), *scale = power_of_two(b, n, -1);
  return multiply_add(b, scale, rise, tt_add_constant(b, scale, -0.5));
}

// Taylor's series in float64; complex ones go XLA's way.
tt_value *tt_emit_expm1(tt_builder *b, tt_value *x) {
  if (!is_float(x)) return tt_hlo_exponential_minus_one(b, x);
  if (x->dtype == TT_F32) {
    // -1 and infinity beyond these limits
    tt_value *inside = tt_hlo_clamp(b, tt_hlo_constant_like(b, x, -60), x, tt_hlo_constant_like(b, x, 88.9));
    tt_value *half = half_expm1(b, inside), *tiny = tt_compare_constant(b, TT_LT, tt_hlo_abs(b, x), 0x1p-25);
    return tt_hlo_select(b, tiny, x, tt_hlo_add(b, half, half));
  }
  const int terms = 16;
  tt_value *sum = tt_hlo_constant_like(b, x, 1.0 / tgamma(terms + 1));
  for (int n = terms - 1; n > 0; --n) sum = tt_add_constant(b, tt_hlo_multiply(b, sum, x), 1.0 / tgamma(n + 1));
  tt_value *far = tt_add_constant(b, tt_hlo_exponential(b, x), -1);
  return tt_hlo_select(b, tt_compare_constant(b, TT_LT, tt_hlo_abs(b, x), 0.5), tt_hlo_multiply(b, sum, x), far);
}

tt_value *tt_emit_exp2(tt_builder *b, tt_value *x) { return tt_hlo_power(b, tt_hlo_constant_like(b, x, 2), x); }

// --- hyperbolic functions -------------------------------------------------------------------------------------------------

tt_value *tt_with_sign_of(tt_builder *b, tt_value *size, tt_value *x) {
  tt_value *bits = tt_hlo_bitcast_convert(b, size, TT_S32, x->rank, x->dims);
  tt_value *sign = tt_hlo_bitcast_convert(b, x, TT_S32, x->rank, x->dims);
  sign = tt_hlo_and(b, sign, tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, TT_S32, INT32_MIN), sign));
  return tt_hlo_bitcast_convert(b, tt_hlo_or(b, bits, sign), TT_F32, x->rank, x->dims);
}

// h / (h + 1) with h = (exp(2 |x|) - 1) / 2, written as a - a^2 / (h + 1), a = min(h, 1): the digits of small ones are those of h,
// and XLA CPU takes far longer for a select between two forms with a division.
tt_value *tt_emit_tanh(tt_builder *b, tt_value *x) {
  if (x->dtype != TT_F32) return tt_hlo_tanh(b, x);
  tt_value *size = tt_hlo_abs(b, x), *twice = tt_hlo_add(b, size, size), *one = tt_hlo_constant_like(b, x, 1);
  tt_value *h = half_expm1(b, tt_select_constant(b, tt_compare_constant(b, TT_GT, twice, 40), 40, twice));
  tt_value *a = tt_hlo_select(b, tt_hlo_compare(b, TT_GT, h, one), one, h);
  tt_value *result = tt_hlo_subtract(b, a, tt_hlo_divide(b, tt_square(b, a), tt_hlo_add(b, h, one)));
  return tt_hlo_select(b, tt_compare_constant(b, TT_LT, size, 0x1p-13), x, tt_with_sign_of(b, result, x));
}

// exp(x) / 2 for x >= 1, where x - 1 is exact: no overflow before the result's, and no rounding of x - log(2).
static tt_value *half_exponential(tt_builder *b, tt_value *x) {
  tt_value *least = tt_hlo_maximum(b, x, tt_hlo_constant_like(b, x, 1));
  if (x->dtype == TT_F32) return tt_exp_of_sum(b, least, NULL, NULL, -1);
  return tt_multiply_constant(b, tt_hlo_exponential(b, tt_add_constant(b, least, -1)), M_E / 2);
}

// The sum of x^2i first! / (2i + first)! from i = 1 on, by square = x^2 <= 1.
static tt_value *hyperbolic_rest(tt_builder *b, tt_value *square, int first) {
  int terms = square->dtype == TT_F64 ? 10 : 5;
  tt_value *sum = tt_hlo_constant_like(b, square, 1 / tgamma(2 * terms + first + 1));
  for (int i = terms - 1; i > 0; --i)
    sum = tt_add_constant(b, tt_hlo_multiply(b, sum, square), 1 / tgamma(2 * i + first + 1));
  return tt_hlo_multiply(b, sum, square);
}

// CHLO's are exp(x - log(2)) and lose 24 ulp; complex ones go that way.
tt_value *tt_emit_sinh(tt_builder *b, tt_value *x) {
  if (!is_float(x)) return tt_hlo_sinh(b, x);
  tt_value *size = tt_hlo_abs(b, x), *half = half_exponential(b, size);
  tt_value *far = tt_hlo_subtract(b, half, tt_hlo_divide(b, tt_hlo_constant_like(b, x, 0.25), half));
  far = tt_hlo_select(b, tt_compare_constant(b, TT_LT, x, 0), tt_hlo_negate(b, far), far);
  tt_value *near = multiply_add(b, x, hyperbolic_rest(b, tt_square(b, x), 1), x);
  return tt_hlo_select(b, tt_compare_constant(b, TT_LT, size, 1), near, far);
}

tt_value *tt_emit_cosh(tt_builder *b, tt_value *x) {
  if (!is_float(x)) return tt_hlo_cosh(b, x);
  tt_value *size = tt_hlo_abs(b, x), *half = half_exponential(b, size);
  tt_value *far = tt_hlo_add(b, half, tt_hlo_divide(b, tt_hlo_constant_like(b, x, 0.25), half));
  tt_value *near = tt_add_constant(b, hyperbolic_rest(b, tt_square(b, x), 0), 1);
  return tt_hlo_select(b, tt_compare_constant(b, TT_LT, size, 1), near, far);
}

// --- logarithms -----------------------------------------------------------------------------------------------------------

// x = 2^exponent mantissa with a mantissa from sqrt(1/2) to sqrt(2), so that no cancellation follows. `exponent` is an integer
// of x's size. For normal positive x.
static tt_value *split_mantissa(tt_builder *b, tt_value *x, tt_value **out_exponent) {
  bool wide = x->dtype == TT_F64;
  tt_dtype integer = wide ? TT_S64 : TT_S32;
  int64_t half = wide ? 0x3FE6A09E667F3BCD : 0x3F3504F3; // sqrt(1/2)
  tt_value *bits = tt_hlo_bitcast_convert(b, x, integer, x->rank, x->dims);
  tt_value *origin = tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, integer, half), bits);
  tt_value *shift = tt_hlo_constant_like(b, bits, wide ? 52 : 23);
  *out_exponent = tt_hlo_shift_right_arithmetic(b, tt_hlo_subtract(b, bits, origin), shift);
  bits = tt_hlo_subtract(b, bits, tt_hlo_shift_left(b, *out_exponent, shift));
  return tt_hlo_bitcast_convert(b, bits, x->dtype, x->rank, x->dims);
}

// log(1 + f) - f of float32, and k times the second part of log(2).
static tt_value *log_rest(tt_builder *b, tt_value *k, tt_value *f) {
  tt_value *square = tt_square(b, f), *cube = tt_hlo_multiply(b, square, f);
  tt_value *rest = tt_hlo_multiply(b, cube, tt_polynomial_at(b, &tt_polynomial_log_rest, f));
  rest = multiply_add(b, k, tt_hlo_constant_like(b, k, log2_low), rest);
  return tt_hlo_subtract(b, rest, tt_multiply_constant(b, square, 0.5));
}

static tt_value *is_ordinary(tt_builder *b, tt_value *x) {
  tt_value *normal = tt_compare_constant(b, TT_GE, x, x->dtype == TT_F64 ? 0x1p-1022 : 0x1p-126);
  return tt_hlo_and(b, normal, tt_compare_constant(b, TT_LT, x, HUGE_VAL));
}

// The logarithm, in any base, of a float32 x, which is `result` where x is a positive normal number. Denormals count as 0, as for
// XLA's own.
static tt_value *with_edges(tt_builder *b, tt_value *x, tt_value *result) {
  tt_value *below = tt_compare_constant(b, TT_LE, x, -0x1p-126);
  tt_value *edge = tt_select_constant(b, tt_compare_constant(b, TT_LT, x, 0x1p-126), -HUGE_VAL, x); // inf, NaN
  return tt_hlo_select(b, is_ordinary(b, x), result, tt_select_constant(b, below, NAN, edge));
}

tt_value *tt_log_in_parts(tt_builder *b, tt_value *x, tt_value **out_rest) {
  if (out_rest) *out_rest = tt_hlo_constant_like(b, x, 0);
  if (x->dtype != TT_F32) return tt_hlo_log(b, x);
  tt_value *exponent, *f = tt_add_constant(b, split_mantissa(b, x, &exponent), -1);
  tt_value *k = tt_hlo_convert(b, exponent, TT_F32);
  tt_value *first = tt_multiply_constant(b, k, log2_high), *second = tt_hlo_add(b, f, log_rest(b, k, f));
  tt_value *sum = tt_hlo_add(b, first, second);
  // first is 0, or greater than second
  if (out_rest)
    *out_rest = tt_hlo_select(b, is_ordinary(b, x), tt_hlo_add(b, tt_hlo_subtract(b, first, sum), second), *out_rest);
  return with_edges(b, x, sum);
}

// 1 + x is rounded to 2^k m; what that loses goes into f, scaled by s = 2^-k: (s x - (m - s)) + (m - 1), of which only the last sum
// rounds. Taken from the bits, m hides from compilers that the first two terms could be one. From 2^60 on nothing is lost that
// shows, and s would soon be denormal.
tt_value *tt_emit_log1p(tt_builder *b, tt_value *x) {
  if (x->dtype != TT_F32) return tt_hlo_log_plus_one(b, x);
  tt_value *sum = tt_add_constant(b, x, 1), *exponent, *m = split_mantissa(b, sum, &exponent);
  tt_value *k = tt_hlo_convert(b, exponent, TT_F32), *s = power_of_two(b, tt_hlo_negate(b, k), 0);
  tt_value *lost = tt_hlo_subtract(b, tt_hlo_multiply(b, s, x), tt_hlo_subtract(b, m, s));
  lost = tt_select_constant(b, tt_compare_constant(b, TT_GE, sum, 0x1p60), 0, lost);
  tt_value *f = tt_hlo_add(b, lost, tt_add_constant(b, m, -1));
  tt_value *result = tt_hlo_add(b, tt_multiply_constant(b, k, log2_high), tt_hlo_add(b, f, log_rest(b, k, f)));
  return tt_hlo_select(b, tt_compare_constant(b, TT_LT, tt_hlo_abs(b, x), 0x1p-25), x, with_edges(b, sum, result));
}

// k + log2(1 + f), so that powers of two have whole logarithms: floor(log2(n)) must not be off by one. In float64, denormals,
// infinities and what has no logarithm go the plain way.
tt_value *tt_emit_log2(tt_builder *b, tt_value *x) {
  if (!is_float(x)) return tt_divide_constant(b, tt_hlo_log(b, x), M_LN2);
  tt_value *exponent, *mantissa = split_mantissa(b, x, &exponent), *k = tt_hlo_convert(b, exponent, x->dtype);
  if (x->dtype == TT_F32) {
    tt_value *f = tt_add_constant(b, mantissa, -1);
    tt_value *fraction = multiply_add(b, f, tt_polynomial_at(b, &tt_polynomial_log2_rest, f), f);
    return with_edges(b, x, tt_hlo_add(b, k, fraction));
  }
  tt_value *fraction = tt_multiply_constant(b, tt_hlo_log(b, mantissa), M_LOG2E);
  tt_value *plain = tt_divide_constant(b, tt_hlo_log(b, x), M_LN2);
  return tt_hlo_select(b, is_ordinary(b, x), tt_hlo_add(b, k, fraction), plain);
}

tt_value *tt_emit_log10(tt_builder *b, tt_value *x) {
  if (x->dtype != TT_F32) return tt_divide_constant(b, tt_hlo_log(b, x), M_LN10);
  const double log10_high = 0x1.34p-2, log10_low = 0.30102999566398119521 - log10_high; // log10(2) in two parts
  tt_value *exponent, *f = tt_add_constant(b, split_mantissa(b, x, &exponent), -1);
  tt_value *k = tt_hlo_convert(b, exponent, TT_F32), *low = tt_multiply_constant(b, k, log10_low);
  tt_value *rest = multiply_add(b, f, tt_polynomial_at(b, &tt_polynomial_log10_rest, f), low);
  rest = tt_hlo_add(b, tt_multiply_constant(b, f, 7.0 / 16), rest);
  return with_edges(b, x, tt_hlo_add(b, tt_multiply_constant(b, k, log10_high), rest));
}

// A polynomial up to 1/2; beyond, where 1 - |x| is exact, half the logarithm of (1 + |x|) / (1 - |x|).
tt_value *tt_emit_atanh(tt_builder *b, tt_value *x) {
  if (x->dtype != TT_F32) return tt_hlo_atanh(b, x);
  tt_value *size = tt_hlo_abs(b, x), *near_x = tt_hlo_minimum(b, size, tt_hlo_constant_like(b, x, 0.5));
  tt_value *near = tt_polynomial_at(b, &tt_polynomial_atanh_rest, tt_square(b, near_x));
  near = multiply_add(b, size, near, size);
  tt_value *ratio = tt_hlo_divide(b, tt_add_constant(b, size, 1), tt_constant_minus(b, 1, size));
  tt_value *far = tt_multiply_constant(b, tt_log_in_parts(b, ratio, NULL), 0.5);
  return tt_with_sign_of(b, tt_hlo_select(b, tt_compare_constant(b, TT_LT, size, 0.5), near, far), x);
}

// --- a formula in float64 -------------------------------------------------------------------------------------------------

enum { WIDE_WHERE, WIDE_X, WIDE_RESULT, WIDE_CARRIED };

static void wide_formula(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  tt_value *(*const *formula)(tt_builder *, tt_value *) = user;
  tt_value *wide = (*formula)(b, tt_hlo_convert(b, state[WIDE_X], TT_F64));
  results[WIDE_WHERE] = state[WIDE_WHERE];
  results[WIDE_X] = state[WIDE_X];
  results[WIDE_RESULT] = tt_hlo_select(b, state[WIDE_WHERE], tt_hlo_convert(b, wide, TT_F32), state[WIDE_RESULT]);
}

tt_value *tt_wide_where(tt_builder *b, tt_value *where, tt_value *x, tt_value *(*formula)(tt_builder *, tt_value *),
                        tt_value *otherwise) {
  tt_value *any = tt_reduce(b, where, TT_REDUCE_OR, tt_axes_range(0, where->rank));
  tt_value *state[WIDE_CARRIED] = {where, x, otherwise};
  tt_hlo_when(b, any, WIDE_CARRIED, state, wide_formula, &formula, state);
  return state[WIDE_RESULT];
}
