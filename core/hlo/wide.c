// wide.c - division of 64-bit integers for a TPU.
//
// A TPU has no 64-bit integers. Its compiler makes them of 32-bit ones, and for a division by anything but a constant it takes
// a minute (60 s for Long[2, 3] by libtpu 0.0.52, where an addition takes 0.06 s). Here the quotient is found by float32
// divisions: each finds its leading 17 bits or more, and what is left is divided again.
#include "hlo/internal.h"

// A float32 quotient of rounded operands, made a little too small, is never above the true one and below it by less than
// SLACK of it: 64 units in the last place are far more than rounding and a TPU's division take. With each of ROUNDS the rest
// falls to 2^-17 of itself and one divisor, from 2^64 divisors at most to less than two.
#define SLACK 0x1p-18
enum { ROUNDS = 4 };

typedef struct divided {
  tt_value *quotient, *rest;
} divided;

// Of U64; the divisor is not 0.
static divided divide(tt_builder *b, tt_value *x, tt_value *y) {
  tt_value *divisor = tt_hlo_convert(b, y, TT_F32), *quotient = NULL;
  tt_value *factor = tt_hlo_constant_like(b, divisor, 1 - SLACK);
  for (int i = 0; i < ROUNDS; ++i) {
    tt_value *part = tt_hlo_divide(b, tt_hlo_convert(b, x, TT_F32), divisor);
    part = tt_hlo_convert(b, tt_hlo_multiply(b, part, factor), TT_U64);
    x = tt_hlo_subtract(b, x, tt_hlo_multiply(b, part, y));
    quotient = quotient ? tt_hlo_add(b, quotient, part) : part;
  }
  tt_value *once_more = tt_hlo_compare(b, TT_GE, x, y), *zero = tt_hlo_constant_like(b, x, 0);
  quotient = tt_hlo_add(b, quotient, tt_hlo_convert(b, once_more, TT_U64));
  return (divided){quotient, tt_hlo_subtract(b, x, tt_hlo_select(b, once_more, y, zero))};
}

static tt_value *is_negative(tt_builder *b, tt_value *x) {
  return tt_hlo_compare(b, TT_LT, x, tt_hlo_constant_like(b, x, 0));
}

static tt_value *negate_where(tt_builder *b, tt_value *condition, tt_value *x) {
  return tt_hlo_select(b, condition, tt_hlo_negate(b, x), x);
}

static tt_value *as(tt_builder *b, tt_value *x, tt_dtype dtype) {
  return tt_hlo_bitcast_convert(b, x, dtype, x->rank, x->dims);
}

tt_value *tt_hlo_divide_wide(tt_builder *b, tt_value *x, tt_value *y, bool remainder) {
  const tt_dtype dtype = x->dtype;
  tt_value *by_zero = tt_hlo_compare(b, TT_EQ, y, tt_hlo_constant_like(b, y, 0));
  tt_value *dividend = x, *divisor = tt_hlo_select(b, by_zero, tt_hlo_constant_like(b, y, 1), y);
  tt_value *x_negative = NULL, *y_negative = NULL;
  if (dtype == TT_S64) { // the most negative one is its own magnitude as a U64
    x_negative = is_negative(b, x);
    y_negative = is_negative(b, y);
    dividend = as(b, negate_where(b, x_negative, dividend), TT_U64);
    divisor = as(b, negate_where(b, y_negative, divisor), TT_U64);
  }
  divided d = divide(b, dividend, divisor);
  tt_value *result = as(b, remainder ? d.rest : d.quotient, dtype);
  if (dtype == TT_S64) result = negate_where(b, remainder ? x_negative : tt_hlo_xor(b, x_negative, y_negative), result);
  // As XLA has it: x / 0 is -1 and leaves x.
  return tt_hlo_select(b, by_zero, remainder ? x : tt_hlo_not(b, tt_hlo_constant_like(b, x, 0)), result);
}
