// arithmetic.c - sums, products, quotients, powers, and what is made of them.
#include "op/pointwise.h"
#include "op/transcendental.h"

#include <string.h>

// --- sums -----------------------------------------------------------------------------------------------------------------

// x times the number of argument `arg` (alpha, value), which is 1 nearly always.
static tt_value *scaled(tt_pointwise *p, tt_value *x, int arg) {
  if (arg >= p->l->arg_count || tt_number_is_one(p->l, arg)) return x;
  return tt_hlo_multiply(p->b, x, tt_pointwise_number(p, arg));
}

static tt_value *add(tt_pointwise *p) { return tt_hlo_add(p->b, p->x[0], scaled(p, p->x[1], 2)); }
static tt_value *subtract(tt_pointwise *p) { return tt_hlo_subtract(p->b, p->x[0], scaled(p, p->x[1], 2)); }

void tt_lower_add(tt_lowering *l) { tt_pointwise_each(l, add, 2, NULL); }

// max(x + alpha y, 0); NaN gives 0.
static tt_value *add_relu(tt_pointwise *p) {
  tt_value *sum = add(p), *positive = tt_compare_constant(p->b, TT_GT, sum, 0);
  return tt_hlo_select(p->b, positive, sum, tt_hlo_constant_like(p->b, sum, 0));
}
void tt_lower_add_relu(tt_lowering *l) { tt_pointwise_each(l, add_relu, 2, NULL); }

static bool is_fraction(tt_dtype dtype) { return tt_dtype_is_float(dtype) || tt_dtype_is_complex(dtype); }
static tt_dtype item_dtype(tt_lowering *l, int arg, int item) { return tt_promote_item(l, &arg, 1, item); }

// torch's sub_check and alpha_check. Structured calls come here checked already.
static void check_subtract(tt_lowering *l, int item) {
  tt_dtype x = item_dtype(l, 0, item), y = item_dtype(l, 1, item);
  if (x == TT_BOOL && y == TT_BOOL)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or "
            "`logical_xor()` operator instead.");
  if (x == TT_BOOL || y == TT_BOOL)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to "
            "invert a mask, use the `~` or `logical_not()` operator instead.");
  tt_dtype alpha = tt_number_dtype(l, 2);
  tt_dtype common = tt_promote_item(l, (int[]){0, 1}, 2, item);
  if (alpha == TT_F64 && !tt_dtype_is_float(common) && !tt_dtype_is_complex(common))
    tt_fail(l, TT_INVALID_ARGUMENT, "For integral input tensors, argument alpha must not be a floating point number.");
  if (alpha == TT_BOOL && common != TT_BOOL)
    tt_fail(l, TT_INVALID_ARGUMENT, "Boolean alpha only supported for Boolean results.");
}

static void lower_subtract(tt_lowering *l, const int *args) {
  for (int i = 0; i < tt_pointwise_items(l) && !tt_failed(l); ++i) check_subtract(l, i);
  tt_pointwise_each(l, subtract, 2, args);
}

void tt_lower_sub(tt_lowering *l) { lower_subtract(l, NULL); }
void tt_lower_rsub(tt_lowering *l) { lower_subtract(l, (int[]){1, 0}); }

static tt_value *addcmul(tt_pointwise *p) {
  return tt_hlo_add(p->b, p->x[0], tt_hlo_multiply(p->b, scaled(p, p->x[1], 3), p->x[2]));
}

static tt_value *addcdiv(tt_pointwise *p) {
  if (!is_fraction(item_dtype(p->l, 1, p->item)) && !is_fraction(item_dtype(p->l, 2, p->item)))
    tt_fail(
        p->l, TT_INVALID_ARGUMENT,
        "Integer division with addcdiv is no longer supported, and in a future  release addcdiv will perform a true "
        "division of tensor1 and tensor2. The historic addcdiv behavior can be implemented as (input + value * "
        "torch.trunc(tensor1 / tensor2)).to(input.dtype) for integer inputs and as (input + value * tensor1 / tensor2) "
        "for "
        "float inputs. The future addcdiv behavior is just the latter implementation: (input + value * tensor1 / "
        "tensor2), "
        "for all dtypes.");
  return tt_hlo_add(p->b, p->x[0], tt_hlo_divide(p->b, scaled(p, p->x[1], 3), p->x[2]));
}

void tt_lower_addcmul(tt_lowering *l) { tt_pointwise_each(l, addcmul, 3, NULL); }
void tt_lower_addcdiv(tt_lowering *l) { tt_pointwise_each(l, addcdiv, 3, NULL); }

// torch takes the end that keeps lerp(x, y, 0) == x and lerp(x, y, 1) == y exact.
static tt_value *lerp_by(tt_builder *b, tt_value *x, tt_value *y, tt_value *weight) {
  tt_value *span = tt_hlo_subtract(b, y, x);
  tt_value *small = tt_compare_constant(b, TT_LT, tt_hlo_abs(b, weight), 0.5);
  tt_value *from_x = tt_hlo_add(b, x, tt_hlo_multiply(b, weight, span));
  tt_value *from_y = tt_hlo_subtract(b, y, tt_hlo_multiply(b, span, tt_constant_minus(b, 1, weight)));
  return tt_hlo_select(b, small, from_x, from_y);
}

static tt_value *lerp_number(tt_pointwise *p) { return lerp_by(p->b, p->x[0], p->x[1], tt_pointwise_number(p, 2)); }
static tt_value *lerp_tensor(tt_pointwise *p) { return lerp_by(p->b, p->x[0], p->x[1], p->x[2]); }

void tt_lower_lerp_number(tt_lowering *l) { tt_pointwise_each(l, lerp_number, 2, NULL); }
void tt_lower_lerp_tensor(tt_lowering *l) { tt_pointwise_each(l, lerp_tensor, 3, NULL); }

// --- quotients --------------------------------------------------------------------------------------------------------------

static bool is_float(const tt_value *x) { return tt_dtype_is_float(x->dtype); }
static bool is_signed(const tt_value *x) { return tt_dtype_is_signed(x->dtype); }

static tt_value *is_negative(tt_builder *b, tt_value *x) { return tt_compare_constant(b, TT_LT, x, 0); }

// Does the remainder of truncated division have to move towards the divisor? (It is not 0 and has the other sign.)
static tt_value *remainder_is_off(tt_builder *b, tt_value *remainder, tt_value *y) {
  tt_value *other_sign = tt_hlo_compare(b, TT_NE, is_negative(b, remainder), is_negative(b, y));
  return tt_hlo_and(b, tt_compare_constant(b, TT_NE, remainder, 0), other_sign);
}

tt_value *tt_emit_remainder(tt_builder *b, tt_value *x, tt_value *y) {
  tt_value *remainder = tt_hlo_remainder(b, x, y);
  if (!is_signed(x)) return remainder;
  return tt_hlo_select(b, remainder_is_off(b, remainder, y), tt_hlo_add(b, remainder, y), remainder);
}

tt_value *tt_emit_trunc(tt_builder *b, tt_value *x) {
  if (!is_float(x)) return x;
  return tt_hlo_select(b, is_negative(b, x), tt_hlo_ceil(b, x), tt_hlo_floor(b, x));
}

// x as the narrow float that the operands are: torch's kernels round what goes into a step function, so the step must see
// the same (6.75 // -0.0483 in bfloat16 is -140, of -139.6).
static tt_value *rounded(tt_pointwise *p, tt_value *x) {
  if (p->common == TT_BF16) return tt_hlo_reduce_precision(p->b, x, 8, 7);
  if (p->common == TT_F16) return tt_hlo_reduce_precision(p->b, x, 5, 10);
  return x;
}

static tt_value *divide_trunc(tt_pointwise *p) {
  return tt_emit_trunc(p->b, rounded(p, tt_hlo_divide(p->b, p->x[0], p->x[1])));
}

static tt_value *divide_floor_integer(tt_builder *b, tt_value *x, tt_value *y) {
  tt_value *quotient = tt_hlo_divide(b, x, y);
  if (!is_signed(x)) return quotient;
  tt_value *off = remainder_is_off(b, tt_hlo_remainder(b, x, y), y);
  return tt_hlo_select(b, off, tt_add_constant(b, quotient, -1), quotient);
}

// c10::div_floor_floating, Python's algorithm: (x - x mod y) / y is a whole number but for rounding, so floor(x / y) is right
// at the edges too (1 // 0.1 is 9), and at infinities (pytorch#189243).
static tt_value *divide_floor_float(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *x = p->x[0], *y = p->x[1];
  tt_value *remainder = tt_hlo_remainder(b, x, y);
  tt_value *plain = tt_hlo_divide(b, x, y);
  tt_value *quotient = rounded(p, tt_hlo_divide(b, rounded(p, tt_hlo_subtract(b, x, remainder)), y));
  quotient = tt_hlo_select(b, remainder_is_off(b, remainder, y), tt_add_constant(b, quotient, -1), quotient);
  tt_value *floor = tt_hlo_floor(b, quotient);
  tt_value *rounds_up = tt_compare_constant(b, TT_GT, tt_hlo_subtract(b, quotient, floor), 0.5);
  tt_value *nearest = tt_hlo_select(b, rounds_up, tt_add_constant(b, floor, 1), floor);
  tt_value *signed_zero = tt_multiply_constant(b, plain, 0);
  tt_value *result = tt_hlo_select(b, tt_compare_constant(b, TT_NE, quotient, 0), nearest, signed_zero);
  return tt_hlo_select(b, tt_compare_constant(b, TT_EQ, y, 0), plain, result);
}

static tt_value *divide_floor(tt_pointwise *p) {
  return is_float(p->x[0]) ? divide_floor_float(p) : divide_floor_integer(p->b, p->x[0], p->x[1]);
}
void tt_lower_floor_divide(tt_lowering *l) { tt_pointwise_each(l, divide_floor, 2, NULL); }

static tt_value *divide_rounded(tt_pointwise *p) {
  const char *mode = tt_text(p->l, 2);
  if (strcmp(mode, "trunc") == 0) return divide_trunc(p);
  if (strcmp(mode, "floor") == 0) return divide_floor(p);
  tt_fail(p->l, TT_INVALID_ARGUMENT, "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '%s'",
          mode);
  return p->x[0];
}

// Without a mode it is div.Tensor, whose integers become floats.
void tt_lower_div_mode(tt_lowering *l) {
  if (tt_has(l, 2)) {
    tt_pointwise_each(l, divide_rounded, 2, NULL);
    return;
  }
  const tt_op *op = l->op;
  l->op = tt_op_find("div.Tensor");
  tt_lower_binary(l);
  l->op = op;
}

// --- powers -----------------------------------------------------------------------------------------------------------------

// Integer powers wrap as C's do. A negative exponent gives 0 except for the bases 1 and -1 (torch's powi).
static tt_value *power_integer(tt_builder *b, tt_value *x, tt_value *y) {
  if (!is_signed(x)) return tt_hlo_power(b, x, y);
  tt_value *zero = tt_hlo_constant_like(b, x, 0), *one = tt_hlo_constant_like(b, x, 1);
  tt_value *power = tt_hlo_power(b, x, tt_hlo_maximum(b, y, zero));
  tt_value *odd = tt_hlo_compare(b, TT_EQ, tt_hlo_and(b, y, one), one);
  tt_value *of_minus_one = tt_hlo_select(b, odd, tt_hlo_constant_like(b, x, -1), one);
  tt_value *inverse = tt_hlo_select(b, tt_hlo_compare(b, TT_EQ, x, one), one, zero);
  inverse = tt_hlo_select(b, tt_compare_constant(b, TT_EQ, x, -1), of_minus_one, inverse);
  return tt_hlo_select(b, is_negative(b, y), inverse, power);
}

tt_value *tt_emit_pow(tt_builder *b, tt_value *x, tt_value *y) {
  return tt_dtype_is_integral(x->dtype) ? power_integer(b, x, y) : tt_hlo_power(b, x, y);
}

// x^y for a y that is `exponent` everywhere; the special cases are those of torch's kernels.
static tt_value *power_of_number(tt_builder *b, tt_value *x, tt_value *y, double exponent) {
  if (exponent == 0) return tt_hlo_constant_like(b, x, 1);
  if (exponent == 1) return x;
  if (exponent == 2) return tt_square(b, x);
  if (exponent == 3) return tt_hlo_multiply(b, tt_square(b, x), x);
  if (!is_float(x)) return tt_emit_pow(b, x, y);
  if (exponent == 0.5) return tt_hlo_sqrt(b, x);
  if (exponent == -0.5) return tt_hlo_rsqrt(b, x);
  if (exponent == -1) return tt_reciprocal(b, x);
  if (exponent == -2) return tt_reciprocal(b, tt_square(b, x));
  return tt_emit_pow(b, x, y);
}

static tt_value *power_number(tt_pointwise *p) {
  tt_lowering *l = p->l;
  bool integral = tt_number_dtype(l, 1) == TT_S64 || tt_number_dtype(l, 1) == TT_BOOL;
  if (tt_number_dtype(l, 1) == TT_C128) return tt_emit_pow(p->b, p->x[0], p->x[1]);
  if (tt_dtype_is_integral(p->common)) tt_require_fits(l, 1, p->common);
  double exponent = tt_double(l, 1);
  if (tt_dtype_is_integral(p->common) && integral && exponent < 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "Integers to negative integer powers are not allowed.");
  return power_of_number(p->b, p->x[0], p->x[1], exponent);
}

void tt_lower_pow_number(tt_lowering *l) { tt_pointwise_each(l, power_number, 2, NULL); }

static tt_status check_exponent(const tt_arg *number, tt_dtype dtype) {
  (void)dtype;
  if (number->kind != TT_ARG_INT || number->u.integer >= 0) return TT_SUCCESS;
  return tt_error(TT_INVALID_ARGUMENT, "Integers to negative integer powers are not allowed.");
}

static tt_value *power_of_item(tt_pointwise *p) {
  if (tt_dtype_is_integral(p->common)) {
    tt_require_item_fits(p->l, 1, p->item, p->common);
    tt_require_item(p->l, check_exponent, 1, p->item, p->common);
  }
  return tt_emit_pow(p->b, p->x[0], p->x[1]);
}

void tt_lower_pow_item(tt_lowering *l) { tt_pointwise_each(l, power_of_item, 2, NULL); }

// --- two-operand functions ------------------------------------------------------------------------------------------------------

static tt_value *either(tt_builder *b, tt_value *(*test)(tt_builder *, tt_value *), tt_value *x, tt_value *y) {
  return tt_hlo_or(b, test(b, x), test(b, y));
}

// Scaled by the greater side, so that squares cannot overflow. An infinite side wins over a NaN, as in C.
tt_value *tt_emit_hypot(tt_builder *b, tt_value *x, tt_value *y) {
  tt_value *ax = tt_hlo_abs(b, x), *ay = tt_hlo_abs(b, y);
  tt_value *greater = tt_hlo_maximum(b, ax, ay), *smaller = tt_hlo_minimum(b, ax, ay);
  tt_value *ratio = tt_hlo_divide(b, smaller, greater);
  tt_value *scale = tt_hlo_sqrt(b, tt_add_constant(b, tt_square(b, ratio), 1));
  tt_value *result =
      tt_hlo_select(b, tt_compare_constant(b, TT_EQ, smaller, 0), greater, tt_hlo_multiply(b, greater, scale));
  return tt_select_constant(b, either(b, tt_hlo_is_inf, x, y), __builtin_inf(), result);
}

tt_value *tt_emit_copysign(tt_builder *b, tt_value *x, tt_value *y) {
  tt_value *magnitude = tt_hlo_abs(b, x);
  return tt_hlo_select(b, tt_sign_bit(b, y), tt_hlo_negate(b, magnitude), magnitude);
}

// Step function; the value at 0 is y, at NaN 0.
tt_value *tt_emit_heaviside(tt_builder *b, tt_value *x, tt_value *y) {
  tt_value *step = tt_hlo_convert(b, tt_compare_constant(b, TT_GT, x, 0), x->dtype);
  return tt_hlo_select(b, tt_compare_constant(b, TT_EQ, x, 0), y, step);
}

// The same as below, of complex numbers: the greater one has the greater real part.
static tt_value *log_add_complex(tt_builder *b, tt_value *x, tt_value *y) {
  tt_value *first = tt_hlo_compare(b, TT_GE, tt_hlo_real(b, x), tt_hlo_real(b, y));
  tt_value *greater = tt_hlo_select(b, first, x, y), *smaller = tt_hlo_select(b, first, y, x);
  tt_value *ratio = tt_hlo_exponential(b, tt_hlo_subtract(b, smaller, greater));
  return tt_hlo_add(b, greater, tt_emit_log1p(b, ratio));
}

// log(exp(x) + exp(y)) and its base-2 sibling: the greater one plus a correction in (0, log(2)]. Equal infinities have no
// difference.
static tt_value *log_add(tt_builder *b, tt_value *x, tt_value *y, double log_of_base) {
  if (tt_dtype_is_complex(x->dtype)) return log_add_complex(b, x, y);
  tt_value *greater = tt_hlo_maximum(b, x, y);
  tt_value *distance = tt_hlo_negate(b, tt_hlo_abs(b, tt_hlo_subtract(b, x, y)));
  if (log_of_base != 1) distance = tt_multiply_constant(b, distance, log_of_base);
  tt_value *correction = tt_emit_log1p(b, tt_hlo_exponential(b, distance));
  if (log_of_base != 1) correction = tt_divide_constant(b, correction, log_of_base);
  tt_value *same_infinity = tt_hlo_and(b, tt_hlo_is_inf(b, x), tt_hlo_compare(b, TT_EQ, x, y));
  return tt_hlo_select(b, same_infinity, x, tt_hlo_add(b, greater, correction));
}

tt_value *tt_emit_logaddexp(tt_builder *b, tt_value *x, tt_value *y) { return log_add(b, x, y, 1); }
tt_value *tt_emit_logaddexp2(tt_builder *b, tt_value *x, tt_value *y) {
  return log_add(b, x, y, 0.69314718055994530942);
}

// --- greatest common divisor --------------------------------------------------------------------------------------------------------

// One step of Euclid on all elements; those that are done (b = 0) stay.
static void gcd_condition(tt_builder *b, tt_value *const *pair, tt_value **results, void *user) {
  (void)user;
  int dims[64];
  for (int i = 0; i < pair[1]->rank && i < 64; ++i) dims[i] = i;
  results[0] = tt_hlo_reduce(b, tt_compare_constant(b, TT_NE, pair[1], 0), TT_REDUCE_OR, pair[1]->rank, dims);
}

static void gcd_step(tt_builder *b, tt_value *const *pair, tt_value **results, void *user) {
  (void)user;
  tt_value *done = tt_compare_constant(b, TT_EQ, pair[1], 0);
  tt_value *divisor = tt_select_constant(b, done, 1, pair[1]);
  results[0] = tt_hlo_select(b, done, pair[0], pair[1]);
  results[1] = tt_select_constant(b, done, 0, tt_hlo_remainder(b, pair[0], divisor));
}

tt_value *tt_emit_gcd(tt_builder *b, tt_value *x, tt_value *y) {
  tt_value *initial[2] = {tt_hlo_abs(b, x), tt_hlo_abs(b, y)}, *results[2];
  tt_hlo_while(b, 2, initial, gcd_condition, gcd_step, NULL, results);
  return results[0];
}

tt_value *tt_emit_lcm(tt_builder *b, tt_value *x, tt_value *y) {
  tt_value *gcd = tt_emit_gcd(b, x, y);
  tt_value *none = tt_compare_constant(b, TT_EQ, gcd, 0);
  tt_value *share = tt_hlo_divide(b, x, tt_select_constant(b, none, 1, gcd));
  // torch computes narrow integers in int, so that the sign is gone before the product wraps.
  bool narrow = tt_dtype_size(x->dtype) < 4;
  tt_value *multiple =
      narrow ? tt_hlo_multiply(b, tt_hlo_abs(b, share), tt_hlo_abs(b, y)) : tt_hlo_abs(b, tt_hlo_multiply(b, share, y));
  return tt_select_constant(b, none, 0, multiple);
}
