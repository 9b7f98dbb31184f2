// axes.c - see axes.h.
#include "op/axes.h"

// --- axes ------------------------------------------------------------------------------------------------------------

tt_axes tt_axes_range(int first, int end) {
  static const int numbers[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
                                44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
  bool fits = 0 <= first && first <= end && end <= (int)(sizeof numbers / sizeof *numbers);
  return fits ? (tt_axes){end - first, numbers + first} : (tt_axes){0, numbers};
}

tt_axes tt_axes_arg(tt_lowering *l, int arg, const tt_value *x) {
  tt_axes axes;
  axes.dims = tt_dims(l, arg, x->rank, &axes.count);
  return axes;
}

tt_axes tt_axes_one(tt_lowering *l, int arg, const tt_value *x) {
  int dim = tt_wrap_dim(l, tt_int(l, arg), x->rank);
  return x->rank == 0 ? tt_axes_range(0, 0) : tt_axes_range(dim, dim + 1);
}

int64_t tt_axes_size(const tt_value *x, tt_axes axes) {
  int64_t size = 1;
  for (int i = 0; i < axes.count; ++i) size *= x->dims[axes.dims[i]]; // a part of x's element count, which fits
  return size;
}

// --- there and back --------------------------------------------------------------------------------------------------

tt_value *tt_reduce(tt_builder *b, tt_value *x, tt_reduction kind, tt_axes axes) {
  return tt_hlo_reduce(b, x, kind, axes.count, axes.dims);
}

tt_value *tt_sum(tt_builder *b, tt_value *x, tt_axes axes) { return tt_reduce(b, x, TT_REDUCE_ADD, axes); }

static uint64_t mask_of(tt_axes axes) {
  uint64_t mask = 0;
  for (int i = 0; i < axes.count; ++i) mask |= UINT64_C(1) << axes.dims[i];
  return mask;
}

tt_value *tt_keep_axes(tt_builder *b, tt_value *reduced, const tt_value *x, tt_axes axes) {
  if (tt_builder_failed(b)) return reduced;
  int64_t dims[TT_AXES_MAX];
  uint64_t mask = mask_of(axes);
  for (int i = 0; i < x->rank; ++i) dims[i] = mask >> i & 1 ? 1 : x->dims[i];
  return tt_hlo_reshape(b, reduced, x->rank, dims);
}

tt_value *tt_keep_axes_if(tt_lowering *l, int keepdim_arg, tt_value *reduced, const tt_value *x, tt_axes axes) {
  return tt_bool_or(l, keepdim_arg, false) ? tt_keep_axes(l->b, reduced, x, axes) : reduced;
}

tt_value *tt_spread(tt_builder *b, tt_value *reduced, const tt_value *x, tt_axes axes) {
  if (tt_builder_failed(b)) return reduced;
  int map[TT_AXES_MAX], rank = 0;
  uint64_t mask = mask_of(axes);
  for (int i = 0; i < x->rank; ++i) {
    if (!(mask >> i & 1)) map[rank++] = i;
  }
  return tt_hlo_broadcast_in_dim(b, reduced, x->rank, x->dims, map);
}

// --- sums as products ------------------------------------------------------------------------------------------------

// A sum of more than 32 that is not a product becomes two loops on XLA CPU (its tree_reduction_rewriter), and each takes as
// long to compile as a small program.
enum { LONGEST_LOOP = 32 };

static bool is_sum_as_dot(tt_builder *b, const tt_value *x, tt_axes axes) {
  return tt_builder_target(b)->sums_as_dots && (x->dtype == TT_F32 || x->dtype == TT_F64) &&
         tt_axes_size(x, axes) > LONGEST_LOOP;
}

// Sums over the first or the last dimensions; `weight` as in tt_weighted_sum. As a vector times a matrix, or a matrix times a
// vector: XLA would copy the transpose of a matrix that is not in this order.
static tt_value *dot_with(tt_builder *b, tt_value *x, tt_value *weight, tt_axes axes) {
  bool leading = axes.dims[0] == 0;
  int rank = x->rank - axes.count;
  const int64_t *kept = leading ? x->dims + axes.count : x->dims;
  int64_t size = tt_axes_size(x, axes), rest = 1;
  for (int i = 0; i < rank; ++i) rest *= kept[i];
  tt_value *matrix = tt_hlo_reshape(b, x, 2, leading ? (int64_t[]){size, rest} : (int64_t[]){rest, size});
  tt_value *vector = weight ? tt_hlo_reshape(b, weight, 1, &size) : tt_hlo_splat(b, x->dtype, 1, &size, 1);
  tt_dot numbers = {.contract_count = 1, .lhs_contract = leading ? (int[]){0} : (int[]){1}, .rhs_contract = (int[]){0}};
  tt_value *sum = tt_hlo_dot_general(b, leading ? vector : matrix, leading ? matrix : vector, &numbers, x->dtype,
                                     TT_PRECISION_HIGHEST);
  return tt_hlo_reshape(b, sum, rank, kept);
}

tt_value *tt_weighted_sum(tt_builder *b, tt_value *x, tt_value *weight, tt_axes axes) {
  if (is_sum_as_dot(b, x, axes)) return dot_with(b, x, weight, axes);
  if (weight) x = tt_hlo_multiply(b, x, tt_hlo_broadcast_in_dim(b, weight, x->rank, x->dims, axes.dims));
  return tt_sum(b, x, axes);
}

// A dot over scattered or over all axes would transpose or be slow: one over as few of the last ones as will do, then a plain
// sum of the little that is left.
tt_value *tt_sum_computed(tt_builder *b, tt_value *x, tt_axes axes) {
  bool leading = axes.count > 0 && axes.count < x->rank && axes.dims[axes.count - 1] == axes.count - 1;
  if (leading) return tt_weighted_sum(b, x, NULL, axes);
  tt_axes outer = axes, inner = {0, axes.dims + axes.count};
  while (outer.count > 0 && outer.dims[outer.count - 1] == x->rank - 1 - inner.count && !is_sum_as_dot(b, x, inner)) {
    --outer.count;
    inner = (tt_axes){inner.count + 1, inner.dims - 1};
  }
  if (inner.count == x->rank || !is_sum_as_dot(b, x, inner)) return tt_sum(b, x, axes);
  return tt_sum(b, dot_with(b, x, NULL, inner), outer);
}

tt_value *tt_sum_operand(tt_builder *b, tt_value *x, tt_axes axes) {
  tt_value *wide = tt_hlo_convert(b, x, tt_compute_dtype(x->dtype));
  return wide == x ? tt_sum(b, x, axes) : tt_sum_computed(b, wide, axes);
}

// --- means and moments -----------------------------------------------------------------------------------------------

tt_value *tt_divide_by(tt_builder *b, tt_value *x, double divisor) {
  tt_value *hidden = tt_hlo_optimization_barrier(b, tt_hlo_constant(b, x->dtype, divisor));
  return tt_hlo_divide(b, x, tt_hlo_broadcast_like(b, hidden, x));
}

tt_value *tt_average(tt_builder *b, tt_value *x, tt_axes axes) {
  return tt_divide_by(b, tt_sum_computed(b, x, axes), (double)tt_axes_size(x, axes));
}

tt_value *tt_squared_size(tt_builder *b, tt_value *x) {
  if (!tt_dtype_is_complex(x->dtype)) return tt_hlo_multiply(b, x, x);
  tt_value *real = tt_hlo_real(b, x), *imag = tt_hlo_imag(b, x);
  return tt_hlo_add(b, tt_hlo_multiply(b, real, real), tt_hlo_multiply(b, imag, imag));
}

tt_moments tt_moments_of(tt_builder *b, tt_value *x, tt_axes axes) {
  tt_value *mean = tt_divide_by(b, tt_sum_operand(b, x, axes), (double)tt_axes_size(x, axes));
  x = tt_hlo_convert(b, x, mean->dtype);
  tt_value *distance = tt_hlo_subtract(b, x, tt_spread(b, mean, x, axes));
  return (tt_moments){mean, tt_sum_computed(b, tt_squared_size(b, distance), axes)};
}

// --- extremes --------------------------------------------------------------------------------------------------------

tt_value *tt_is_extreme(tt_builder *b, tt_value *x, tt_value *extreme) {
  tt_value *equal = tt_hlo_compare(b, TT_EQ, x, extreme);
  return tt_dtype_is_float(x->dtype) ? tt_hlo_or(b, equal, tt_hlo_is_nan(b, x)) : equal;
}

tt_value *tt_computed_once(tt_builder *b, tt_value *x) {
  return tt_dtype_is_float(x->dtype) || tt_dtype_is_complex(x->dtype) ? tt_hlo_optimization_barrier(b, x) : x;
}

tt_dtype tt_position_dtype(int64_t size) { return size < INT32_MAX ? TT_S32 : TT_S64; }
