// precision.c - the arithmetic of every matrix product and convolution, in one place.
//
// float32 is computed as a TPU does: `medium` rounds the operands to bfloat16 and accumulates in float32, `high` adds the two
// cross products with the operands' low parts, `highest` is float32. A TPU is told by the precision attribute; XLA CPU ignores
// it, so there the rounding is written out. All other dtypes have one meaning: narrow floats multiply exactly and accumulate
// in float32, integers wrap in 32 or 64 bits, float64 and complex are computed as they are.
#include "op/lowering.h"

// A product of two operands of one dtype; `numbers` is a tt_dot or a tt_convolution.
typedef tt_value *(*product_fn)(tt_lowering *l, tt_value *x, tt_value *y, const void *numbers, tt_dtype result,
                                tt_precision precision);

static tt_value *dot(tt_lowering *l, tt_value *x, tt_value *y, const void *numbers, tt_dtype result,
                     tt_precision precision) {
  if (tt_builder_target(l->b)->dot_lhs_in_order) x = tt_hlo_copy_transposed(l->b, x);
  tt_value *product = tt_hlo_dot_general(l->b, x, y, numbers, result, precision);
  if (x->dtype != TT_BF16 || tt_builder_target(l->b)->is_tpu || !product->product) return product;
  // XLA exchanges the operands of a dot that is transposed afterwards, and has no such dot for bfloat16.
  return tt_hlo_optimization_barrier(l->b, product);
}

static tt_value *convolution(tt_lowering *l, tt_value *x, tt_value *y, const void *numbers, tt_dtype result,
                             tt_precision precision) {
  return tt_hlo_convolution(l->b, x, y, numbers, result, precision);
}

// --- dtypes ----------------------------------------------------------------------------------------------------------------

// The dtype in which an operand enters a product. Where the processor has no products of bf16, XLA CPU multiplies by way of f32,
// more slowly than f32 itself; where it has, twice as fast. Products are exact either way. f16 always goes by way of f32, and so
// do convolutions.
static tt_dtype operand_dtype(const tt_target *target, tt_dtype dtype, bool is_dot) {
  switch (dtype) {
  case TT_BF16: return target->is_tpu || (target->bf16_dot && is_dot) ? TT_BF16 : TT_F32;
  case TT_F16: return TT_F32;
  case TT_S8: return is_dot ? TT_S8 : TT_S32; // 8-bit dots are native
  case TT_BOOL:
  case TT_U8:
  case TT_S16:
  case TT_U16:
  case TT_U32: return TT_S32; // wraps to the same bits
  case TT_U64: return TT_S64;
  default: return !tt_dtype_is_narrow_float(dtype) ? dtype : target->is_tpu ? TT_BF16 : TT_F32; // f8
  }
}

static tt_dtype accumulator_dtype(tt_dtype operand) {
  return operand == TT_BF16 ? TT_F32 : operand == TT_S8 ? TT_S32 : operand;
}

// --- passes ------------------------------------------------------------------------------------------------------------------

// The part of x that one bfloat16 holds. Never folded away, unlike a conversion there and back.
static tt_value *high_part(tt_lowering *l, tt_value *x) { return tt_hlo_reduce_precision(l->b, x, 8, 7); }

// The high part in front of the transpose that made x: other products may read it untransposed, and as bfloat16 it is half as long.
static tt_value *rounded(tt_lowering *l, tt_value *x, bool bf16_dot) {
  tt_value *high = high_part(l, x->untransposed ? x->untransposed : x);
  if (bf16_dot) high = tt_hlo_convert(l->b, high, TT_BF16);
  return x->untransposed ? tt_hlo_transpose(l->b, high, x->permutation) : high;
}

tt_value *tt_round_operand(tt_lowering *l, tt_value *x) {
  bool one_pass = l->precision == TT_PRECISION_MEDIUM && !tt_builder_target(l->b)->is_tpu;
  return x->dtype == TT_F32 && one_pass ? high_part(l, x) : x;
}

// What bfloat16 rounding left out of x, itself rounded. Nothing where x is not finite: inf - inf would be NaN.
static tt_value *low_part(tt_lowering *l, tt_value *x, tt_value *high) {
  tt_value *rest = tt_hlo_select(l->b, tt_hlo_is_finite(l->b, high), tt_hlo_subtract(l->b, x, high),
                                 tt_hlo_constant_like(l->b, x, 0));
  return high_part(l, rest);
}

// float32 by the precision in force, where precision attributes do nothing.
static tt_value *in_passes(tt_lowering *l, tt_value *x, tt_value *y, product_fn product, const void *numbers,
                           bool bf16_dot) {
  if (l->precision == TT_PRECISION_HIGHEST) return product(l, x, y, numbers, TT_F32, l->precision);
  if (l->precision == TT_PRECISION_MEDIUM)
    return product(l, rounded(l, x, bf16_dot), rounded(l, y, bf16_dot), numbers, TT_F32, l->precision);
  tt_value *high_x = high_part(l, x), *high_y = high_part(l, y);
  // high * high + high * low + low * high. The sum of both parts is exact in float32, so two products serve for three.
  tt_value *low_x = low_part(l, x, high_x), *low_y = low_part(l, y, high_y);
  tt_value *sum = product(l, high_x, tt_hlo_add(l->b, high_y, low_y), numbers, TT_F32, l->precision);
  tt_value *rest = product(l, low_x, high_y, numbers, TT_F32, l->precision);
  // A product with inf is inf, whatever the sign of the low parts.
  return tt_hlo_select(l->b, tt_hlo_is_finite(l->b, sum), tt_hlo_add(l->b, sum, rest), sum);
}

// --- 64-bit integers on a TPU --------------------------------------------------------------------------------------------------
//
// A TPU has no 64-bit integers: its compiler makes pairs of 32-bit ones of them, but not inside products ("X{64|128} element
// types ... rewriting is not implemented", libtpu 0.0.52). So operands are cut into limbs of a few bits, whose products are
// summed exactly in 32 bits, and the sums are put together in 64, where they wrap as torch's do.

// How many products are added up for one element of the result, at most.
static int64_t count_terms(const tt_value *x, const tt_value *filter, bool is_dot, const void *numbers) {
  int64_t terms = 1;
  if (is_dot) {
    const tt_dot *n = numbers;
    for (int i = 0; i < n->contract_count; ++i) terms *= x->dims[n->lhs_contract[i]];
    return terms;
  }
  const tt_convolution *n = numbers; // in the usual layout the filter's first dim does not take part
  for (int i = n->dimension_numbers ? 0 : 1; i < filter->rank; ++i) terms *= filter->dims[i];
  return terms;
}

// The widest limbs of which `terms` products fit into an S32.
static int limb_bits(int64_t terms) {
  int bits = 15;
  while (bits > 1 && terms > INT32_MAX / (((1 << bits) - 1) * ((1 << bits) - 1))) --bits;
  return bits;
}

static tt_value *limb(tt_lowering *l, tt_value *x, int number, int bits) {
  tt_builder *b = l->b;
  tt_value *shift = tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, TT_S64, (int64_t)number * bits), x);
  tt_value *mask = tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, TT_S64, ((int64_t)1 << bits) - 1), x);
  return tt_hlo_convert(b, tt_hlo_and(b, tt_hlo_shift_right_logical(b, x, shift), mask), TT_S32);
}

static tt_value *in_limbs(tt_lowering *l, tt_value *x, tt_value *y, product_fn product, const void *numbers) {
  enum { MOST_LIMBS = 64 };
  tt_builder *b = l->b;
  const int bits = limb_bits(count_terms(x, y, product == dot, numbers)), count = (63 + bits) / bits;
  tt_value *xs[MOST_LIMBS], *ys[MOST_LIMBS], *sum = NULL;
  for (int i = 0; i < count; ++i) {
    xs[i] = limb(l, x, i, bits);
    ys[i] = limb(l, y, i, bits);
  }
  for (int place = 0; place < count; ++place) { // higher places lie beyond the 64 bits
    for (int i = 0; i <= place; ++i) {
      tt_value *term = product(l, xs[i], ys[place - i], numbers, TT_S32, TT_PRECISION_HIGHEST);
      term = tt_hlo_convert(b, term, TT_S64);
      tt_value *shift = tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, TT_S64, (int64_t)place * bits), term);
      term = tt_hlo_shift_left(b, term, shift);
      sum = sum ? tt_hlo_add(b, sum, term) : term;
    }
  }
  return sum;
}

// --- all of them -----------------------------------------------------------------------------------------------------------------

static tt_value *multiply(tt_lowering *l, tt_value *x, tt_value *y, product_fn product, const void *numbers,
                          tt_dtype result) {
  const tt_target *target = tt_builder_target(l->b);
  bool is_dot = product == dot, narrow = tt_dtype_is_narrow_float(x->dtype) && tt_dtype_is_narrow_float(y->dtype);
  tt_dtype dtype = tt_dtype_promote(operand_dtype(target, x->dtype, is_dot), operand_dtype(target, y->dtype, is_dot));
  x = tt_hlo_convert(l->b, x, dtype);
  y = tt_hlo_convert(l->b, y, dtype);
  tt_value *sum;
  if (dtype == TT_F32 && !narrow && !target->is_tpu) {
    sum = in_passes(l, x, y, product, numbers, is_dot && target->bf16_dot);
  } else if (dtype == TT_S64 && target->is_tpu) {
    sum = in_limbs(l, x, y, product, numbers);
  } else {
    // float16 has more mantissa bits than one bfloat16 pass carries, and fewer than three.
    tt_precision precision = narrow && dtype == TT_F32 ? TT_PRECISION_HIGH : l->precision;
    sum = product(l, x, y, numbers, accumulator_dtype(dtype), precision);
  }
  return tt_hlo_convert(l->b, sum, result);
}

tt_value *tt_dot_product(tt_lowering *l, tt_value *x, tt_value *y, const tt_dot *numbers, tt_dtype result) {
  return multiply(l, x, y, dot, numbers, result);
}

tt_value *tt_convolve(tt_lowering *l, tt_value *x, tt_value *filter, const tt_convolution *numbers, tt_dtype result) {
  return multiply(l, x, filter, convolution, numbers, result);
}

// --- shapes of products --------------------------------------------------------------------------------------------------------

tt_value *tt_matmul_2d(tt_lowering *l, tt_value *x, tt_value *y, tt_dtype result) {
  return tt_dot_product(l, x, y, &(tt_dot){.contract_count = 1, .lhs_contract = (int[]){1}, .rhs_contract = (int[]){0}},
                        result);
}

tt_value *tt_matmul_3d(tt_lowering *l, tt_value *x, tt_value *y, tt_dtype result) {
  const int batch[] = {0};
  return tt_dot_product(l, x, y,
                        &(tt_dot){.batch_count = 1,
                                  .lhs_batch = batch,
                                  .rhs_batch = batch,
                                  .contract_count = 1,
                                  .lhs_contract = (int[]){2},
                                  .rhs_contract = (int[]){1}},
                        result);
}
