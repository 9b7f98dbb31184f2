// histogram.c - histc: how many elements fall into each of equal bins.
#include <math.h>

#include "op/axes.h"

// Scalars in the dtype of computation.
typedef struct range {
  tt_value *low, *high;
} range;

static bool check_arguments(tt_lowering *l, tt_dtype dtype, int64_t bins, double low, double high) {
  if (!tt_dtype_is_float(dtype))
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"histc\" not implemented for '%s'", tt_dtype_text(dtype));
  else if (bins <= 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "torch.histc(): bins must be > 0, but got %lld", (long long)bins);
  else if (!isfinite(low) || !isfinite(high))
    tt_fail(l, TT_INVALID_ARGUMENT, "torch.histc: range of [%g, %g] is not finite", low, high);
  else if (low > high)
    tt_fail(l, TT_INVALID_ARGUMENT, "torch.histc: max must be larger than min");
  return !tt_failed(l);
}

// The range of the data, widened by one on both sides if it is a single number.
static range range_of_data(tt_lowering *l, tt_value *x) {
  tt_builder *b = l->b;
  range r = {tt_reduce(b, x, TT_REDUCE_MIN, tt_axes_range(0, 1)), tt_reduce(b, x, TT_REDUCE_MAX, tt_axes_range(0, 1))};
  tt_check_all(l, tt_hlo_and(b, tt_hlo_is_finite(b, r.low), tt_hlo_is_finite(b, r.high)), TT_INVALID_ARGUMENT,
               "torch.histc: range of [min, max] is not finite");
  tt_value *single = tt_hlo_convert(b, tt_hlo_compare(b, TT_EQ, r.low, r.high), x->dtype);
  return (range){tt_hlo_subtract(b, r.low, single), tt_hlo_add(b, r.high, single)};
}

// Adds 1 at each position of [0, bins); others are dropped.
static tt_value *count_positions(tt_builder *b, tt_value *position, int64_t bins) {
  int64_t column[] = {tt_value_count(position), 1};
  tt_scatter numbers = {.inserted_count = 1,
                        .inserted_window_dims = (int[]){0},
                        .map_count = 1,
                        .scatter_dims_to_operand_dims = (int[]){0},
                        .index_vector_dim = 1};
  return tt_hlo_scatter(b, tt_hlo_splat(b, TT_S32, 1, &bins, 0), tt_hlo_reshape(b, position, 2, column),
                        tt_hlo_splat(b, TT_S32, 1, column, 1), &numbers, TT_COMBINE_ADD);
}

// histc(self, bins, min, max); min == max stands for the range of the data. The last bin includes its upper end.
void tt_lower_histc(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0);
  tt_dtype dtype = x->dtype;
  int64_t bins = tt_int(l, 1);
  double low = tt_double(l, 2), high = tt_double(l, 3);
  if (tt_failed(l) || !check_arguments(l, dtype, bins, low, high)) return;
  if (tt_value_count(x) == 0) {
    tt_set_result(l, 0, tt_hlo_splat(b, dtype, 1, &bins, 0));
    return;
  }
  x = tt_hlo_reshape(b, tt_hlo_convert(b, x, tt_compute_dtype(dtype)), 1, (int64_t[]){tt_value_count(x)});
  range r = {tt_hlo_constant(b, x->dtype, low), tt_hlo_constant(b, x->dtype, high)};
  if (low == high) r = range_of_data(l, x);
  // Hidden, so that the division below is not turned into a multiplication that puts edges into the wrong bin.
  tt_value *width = tt_hlo_optimization_barrier(b, tt_hlo_subtract(b, r.high, r.low));
  tt_value *place = tt_div(l, tt_hlo_multiply(b, tt_sub(l, x, r.low), tt_hlo_constant_like(b, x, (double)bins)), width);
  tt_value *position = tt_hlo_convert(b, place, TT_S32), *none = tt_hlo_constant_like(b, position, (double)bins);
  position = tt_hlo_minimum(b, position, tt_hlo_constant_like(b, position, (double)(bins - 1)));
  tt_value *inside = tt_hlo_and(b, tt_hlo_compare(b, TT_GE, x, tt_hlo_broadcast_like(b, r.low, x)),
                                tt_hlo_compare(b, TT_LE, x, tt_hlo_broadcast_like(b, r.high, x)));
  position = tt_hlo_select(b, inside, position, none);
  tt_set_result(l, 0, tt_hlo_convert(b, count_positions(b, position, bins), dtype));
}
