// elementary.c - functions of one number: rounding, signs, formulas with a logarithm; and complex parts.
#include "op/axes.h"
#include "op/pointwise.h"
#include "op/transcendental.h"

#include <math.h>

static bool is_float(const tt_value *x) { return tt_dtype_is_float(x->dtype); }

// --- bits and signs ---------------------------------------------------------------------------------------------------------

tt_value *tt_bool_like(tt_builder *b, const tt_value *x, bool value) {
  return tt_hlo_splat(b, TT_BOOL, x->rank, x->dims, value);
}

static tt_dtype signed_of_size(int bytes) {
  return bytes == 1 ? TT_S8 : bytes == 2 ? TT_S16 : bytes == 4 ? TT_S32 : TT_S64;
}

tt_value *tt_sign_bit(tt_builder *b, tt_value *x) {
  tt_value *bits = tt_hlo_bitcast_convert(b, x, signed_of_size(tt_dtype_size(x->dtype)), x->rank, x->dims);
  return tt_compare_constant(b, TT_LT, bits, 0);
}

tt_value *tt_emit_signbit(tt_builder *b, tt_value *x) {
  if (is_float(x)) return tt_sign_bit(b, x);
  return tt_dtype_is_signed(x->dtype) ? tt_compare_constant(b, TT_LT, x, 0) : tt_bool_like(b, x, false);
}

// (0 < x) - (x < 0): 0 for NaN, unlike StableHLO's sign.
tt_value *tt_emit_sign(tt_builder *b, tt_value *x) {
  if (x->dtype == TT_BOOL) return x;
  if (!is_float(x)) return tt_hlo_sign(b, x);
  tt_value *positive = tt_hlo_convert(b, tt_compare_constant(b, TT_GT, x, 0), x->dtype);
  return tt_select_constant(b, tt_compare_constant(b, TT_LT, x, 0), -1, positive);
}

// x / |x|, 0 at 0; sign for real numbers.
tt_value *tt_emit_sgn(tt_builder *b, tt_value *x) {
  return tt_dtype_is_complex(x->dtype) ? tt_hlo_sign(b, x) : tt_emit_sign(b, x);
}

tt_value *tt_emit_same(tt_builder *b, tt_value *x) {
  (void)b;
  return x;
}

tt_value *tt_emit_zero(tt_builder *b, tt_value *x) { return tt_hlo_constant_like(b, x, 0); }

// --- rounding: integers are whole already ---------------------------------------------------------------------------------------

tt_value *tt_emit_floor(tt_builder *b, tt_value *x) { return is_float(x) ? tt_hlo_floor(b, x) : x; }
tt_value *tt_emit_ceil(tt_builder *b, tt_value *x) { return is_float(x) ? tt_hlo_ceil(b, x) : x; }
tt_value *tt_emit_round(tt_builder *b, tt_value *x) { return is_float(x) ? tt_hlo_round_nearest_even(b, x) : x; }
tt_value *tt_emit_frac(tt_builder *b, tt_value *x) { return tt_hlo_subtract(b, x, tt_emit_trunc(b, x)); }

// Rounds at the decimals-th digit after the point (before it when negative).
static tt_value *round_decimals(tt_pointwise *p) {
  int64_t decimals = tt_int(p->l, 1);
  double scale = pow(10, (double)(decimals < 0 ? -decimals : decimals));
  if (decimals == 0) return tt_hlo_round_nearest_even(p->b, p->x[0]);
  if (decimals < 0)
    return tt_multiply_constant(p->b, tt_hlo_round_nearest_even(p->b, tt_divide_by(p->b, p->x[0], scale)), scale);
  return tt_divide_by(p->b, tt_hlo_round_nearest_even(p->b, tt_multiply_constant(p->b, p->x[0], scale)), scale);
}
void tt_lower_round_decimals(tt_lowering *l) { tt_pointwise_each(l, round_decimals, 1, NULL); }

// The number of argument `arg`, or a default of the result's dtype when it is None.
static tt_value *number_or(tt_pointwise *p, tt_value *like, int arg, tt_value *otherwise) {
  tt_value *number =
      tt_has(p->l, arg) ? tt_number(p->l, arg, like->dtype) : tt_hlo_convert(p->b, otherwise, like->dtype);
  return tt_hlo_broadcast_like(p->b, number, like);
}

static tt_value *finite_or(tt_pointwise *p, tt_value *x, tt_dtype dtype) {
  tt_builder *b = p->b;
  // The limits are those of the narrow float that the result has.
  int digits = dtype == TT_F64 ? 53 : dtype == TT_BF16 ? 8 : dtype == TT_F16 ? 11 : 24;
  double greatest = ldexp(2 - ldexp(1, 1 - digits), dtype == TT_F64 ? 1023 : dtype == TT_F16 ? 15 : 127);
  tt_value *nan = number_or(p, x, 1, tt_hlo_constant(b, x->dtype, 0));
  tt_value *positive = number_or(p, x, 2, tt_hlo_constant(b, x->dtype, greatest));
  tt_value *negative = number_or(p, x, 3, tt_hlo_constant(b, x->dtype, -greatest));
  tt_value *result = tt_hlo_select(b, tt_compare_constant(b, TT_EQ, x, HUGE_VAL), positive, x);
  result = tt_hlo_select(b, tt_compare_constant(b, TT_EQ, x, -HUGE_VAL), negative, result);
  return tt_hlo_select(b, tt_hlo_is_nan(b, x), nan, result);
}

static tt_value *nan_to_num(tt_pointwise *p) {
  tt_value *x = p->x[0];
  if (is_float(x)) return finite_or(p, x, p->common);
  if (!tt_dtype_is_complex(x->dtype)) return x;
  tt_dtype part = tt_dtype_real(x->dtype);
  return tt_hlo_complex(p->b, finite_or(p, tt_hlo_real(p->b, x), part), finite_or(p, tt_hlo_imag(p->b, x), part));
}
void tt_lower_nan_to_num(tt_lowering *l) { tt_pointwise_each(l, nan_to_num, 1, NULL); }

// --- quotients and logarithms -------------------------------------------------------------------------------------------------

tt_value *tt_emit_reciprocal(tt_builder *b, tt_value *x) { return tt_reciprocal(b, x); }

// log(x / (1 - x)), x clamped to [eps, 1 - eps] when an eps of 0 or more is given.
static tt_value *logit(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *x = p->x[0];
  if (tt_has(p->l, 1)) {
    tt_value *eps = tt_pointwise_number(p, 1);
    tt_value *clamped = tt_hlo_minimum(b, tt_hlo_maximum(b, x, eps), tt_constant_minus(b, 1, eps));
    x = tt_hlo_select(b, tt_compare_constant(b, TT_LT, eps, 0), x, clamped);
  }
  return tt_hlo_log(b, tt_hlo_divide(b, x, tt_constant_minus(b, 1, x)));
}
void tt_lower_logit(tt_lowering *l) { tt_pointwise_each(l, logit, 1, NULL); }

// grad / (x (1 - x)); outside of [eps, 1 - eps] it is 0, without eps NaN outside of [0, 1].
static tt_value *logit_backward(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *x = p->x[1];
  tt_value *gradient = tt_hlo_divide(b, p->x[0], tt_hlo_multiply(b, x, tt_constant_minus(b, 1, x)));
  tt_value *low = tt_hlo_constant_like(b, x, 0), *outside = tt_hlo_constant_like(b, x, NAN);
  if (tt_has(p->l, 2)) {
    low = tt_pointwise_number(p, 2);
    tt_value *unclamped = tt_compare_constant(b, TT_LT, low, 0);
    outside = tt_hlo_select(b, unclamped, outside, tt_hlo_constant_like(b, x, 0));
    low = tt_select_constant(b, unclamped, 0, low);
  }
  tt_value *inside =
      tt_hlo_and(b, tt_hlo_compare(b, TT_GE, x, low), tt_hlo_compare(b, TT_LE, x, tt_constant_minus(b, 1, low)));
  return tt_hlo_select(b, inside, gradient, outside);
}
void tt_lower_logit_backward(tt_lowering *l) { tt_pointwise_each(l, logit_backward, 2, NULL); }

// x log(y), where 0 times anything but NaN is 0.
static tt_value *times_log(tt_builder *b, tt_value *x, tt_value *y, tt_value *log) {
  tt_value *result = tt_select_constant(b, tt_compare_constant(b, TT_EQ, x, 0), 0, tt_hlo_multiply(b, x, log));
  return tt_select_constant(b, tt_hlo_is_nan(b, y), NAN, result);
}

tt_value *tt_emit_xlogy(tt_builder *b, tt_value *x, tt_value *y) { return times_log(b, x, y, tt_hlo_log(b, y)); }
tt_value *tt_emit_xlog1py(tt_builder *b, tt_value *x, tt_value *y) { return times_log(b, x, y, tt_emit_log1p(b, y)); }

// -x log(x), 0 at 0, -inf below.
tt_value *tt_emit_entr(tt_builder *b, tt_value *x) {
  tt_value *result = tt_hlo_negate(b, tt_hlo_multiply(b, x, tt_hlo_log(b, x)));
  result = tt_select_constant(b, tt_compare_constant(b, TT_EQ, x, 0), 0, result);
  return tt_select_constant(b, tt_compare_constant(b, TT_LT, x, 0), -HUGE_VAL, result);
}

// sin(pi x) / (pi x), 1 at 0.
tt_value *tt_emit_sinc(tt_builder *b, tt_value *x) {
  tt_value *scaled = tt_multiply_constant(b, x, M_PI);
  tt_value *ratio = tt_hlo_divide(b, tt_hlo_sine(b, scaled), scaled);
  return tt_select_constant(b, tt_compare_constant(b, TT_EQ, x, 0), 1, ratio);
}

// --- complex numbers ------------------------------------------------------------------------------------------------------------

// The phase: pi for negative real numbers, NaN for NaN.
tt_value *tt_emit_angle(tt_builder *b, tt_value *x) {
  if (tt_dtype_is_complex(x->dtype)) return tt_hlo_atan2(b, tt_hlo_imag(b, x), tt_hlo_real(b, x));
  tt_value *phase = tt_select_constant(b, tt_compare_constant(b, TT_LT, x, 0), M_PI, tt_hlo_constant_like(b, x, 0));
  return tt_hlo_select(b, tt_hlo_is_nan(b, x), x, phase);
}

// torch's complex_check_dtype.
static bool check_parts(tt_lowering *l) {
  tt_dtype x = tt_tensor_arg(l, 0)->dtype, y = tt_tensor_arg(l, 1)->dtype;
  bool fits = (x == TT_F16 || x == TT_F32 || x == TT_F64) && (y == TT_F16 || y == TT_F32 || y == TT_F64);
  if (!fits)
    tt_fail(l, TT_INVALID_ARGUMENT, "Expected both inputs to be Half, Float or Double tensors but got %s and %s",
            tt_dtype_text(x), tt_dtype_text(y));
  else if (x != y)
    tt_fail(l, TT_INVALID_ARGUMENT, "Expected object of scalar type %s but got scalar type %s for second argument",
            tt_dtype_text(x), tt_dtype_text(y));
  else if (x == TT_F16)
    tt_fail(l, TT_NOT_IMPLEMENTED, "the dtype ComplexHalf is not supported on TPU");
  return !tt_failed(l);
}

static void lower_complex(tt_lowering *l, bool polar) {
  if (!check_parts(l)) return;
  tt_pointwise p = tt_pointwise_begin(l, 0, 2, NULL);
  tt_value *real = p.x[0], *imag = p.x[1];
  if (polar) {
    real = tt_hlo_multiply(p.b, p.x[0], tt_hlo_cosine(p.b, p.x[1]));
    imag = tt_hlo_multiply(p.b, p.x[0], tt_hlo_sine(p.b, p.x[1]));
  }
  tt_value *result = tt_hlo_complex(p.b, real, imag);
  tt_pointwise_set_as(&p, 0, result, result->dtype);
}

void tt_lower_complex(tt_lowering *l) { lower_complex(l, false); }
void tt_lower_polar(tt_lowering *l) { lower_complex(l, true); }

// --- frexp ------------------------------------------------------------------------------------------------------------------------

// x = mantissa * 2^exponent with 0.5 <= |mantissa| < 1, read from the bits; 0, infinities and NaN are their own mantissa.
// Denormals are scaled to normal numbers first.
void tt_lower_frexp(tt_lowering *l) {
  const tt_tensor *t = tt_tensor_arg(l, 0);
  if (!tt_dtype_is_float(t->dtype)) {
    tt_fail(l, TT_INVALID_ARGUMENT, "torch.frexp() only supports floating-point dtypes");
    return;
  }
  tt_pointwise p = tt_pointwise_begin(l, 0, 1, NULL);
  tt_builder *b = p.b;
  bool wide = p.compute == TT_F64;
  tt_dtype integer = wide ? TT_S64 : TT_S32;
  int fraction_bits = wide ? 52 : 23, bias = wide ? 1022 : 126;
  tt_value *x = p.x[0];
  tt_value *denormal = tt_compare_constant(b, TT_LT, tt_hlo_abs(b, x), ldexp(1, 1 - bias));
  x = tt_hlo_select(b, denormal, tt_multiply_constant(b, x, ldexp(1, fraction_bits)), x);
  tt_value *bits = tt_hlo_bitcast_convert(b, x, integer, x->rank, x->dims);
  tt_value *mask =
      tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, integer, ((int64_t)2 * bias + 3) << fraction_bits), bits);
  tt_value *field =
      tt_hlo_shift_right_logical(b, tt_hlo_and(b, bits, mask), tt_hlo_constant_like(b, bits, fraction_bits));
  tt_value *half = tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, integer, (int64_t)bias << fraction_bits), bits);
  tt_value *mantissa_bits = tt_hlo_or(b, tt_hlo_and(b, bits, tt_hlo_not(b, mask)), half);
  tt_value *mantissa = tt_hlo_bitcast_convert(b, mantissa_bits, p.compute, x->rank, x->dims);
  tt_value *exponent = tt_add_constant(b, field, -bias);
  exponent = tt_hlo_select(b, denormal, tt_add_constant(b, exponent, -fraction_bits), exponent);
  tt_value *plain = tt_hlo_and(b, tt_hlo_is_finite(b, x), tt_compare_constant(b, TT_NE, x, 0));
  tt_pointwise_set_as(&p, 0, tt_hlo_select(b, plain, mantissa, p.x[0]), p.common);
  tt_pointwise_set_as(&p, 1, tt_hlo_select(b, plain, exponent, tt_hlo_constant_like(b, exponent, 0)), TT_S32);
}
