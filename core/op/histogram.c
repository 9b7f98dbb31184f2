// histogram.c - how many elements, or points, fall into each bin: histc, histogram, histogramdd.
//
// A bin has its left edge, the last one both. What lies outside all of them, NaN included, is not counted.
#include <math.h>

#include "base/memory.h"
#include "op/axes.h"
#include "op/index.h"
#include "op/order.h"

tt_value *tt_spaced(tt_lowering *l, tt_value *start, tt_value *end, int64_t steps); // op/create.c

// Scalars in the dtype of computation.
typedef struct range {
  tt_value *low, *high;
} range;

// The range of a vector, widened by `margin` on both sides if it is a single number.
static range range_of_data(tt_lowering *l, tt_value *x, double margin, const char *not_finite) {
  tt_builder *b = l->b;
  range r = {tt_reduce(b, x, TT_REDUCE_MIN, tt_axes_range(0, 1)), tt_reduce(b, x, TT_REDUCE_MAX, tt_axes_range(0, 1))};
  tt_check_all(l, tt_hlo_and(b, tt_hlo_is_finite(b, r.low), tt_hlo_is_finite(b, r.high)), TT_INVALID_ARGUMENT,
               not_finite);
  tt_value *single = tt_hlo_convert(b, tt_hlo_compare(b, TT_EQ, r.low, r.high), x->dtype);
  single = tt_hlo_multiply(b, single, tt_hlo_constant_like(b, single, margin));
  return (range){tt_hlo_subtract(b, r.low, single), tt_hlo_add(b, r.high, single)};
}

static tt_value *is_inside(tt_builder *b, tt_value *x, range r) {
  return tt_hlo_and(b, tt_hlo_compare(b, TT_GE, x, tt_hlo_broadcast_like(b, r.low, x)),
                    tt_hlo_compare(b, TT_LE, x, tt_hlo_broadcast_like(b, r.high, x)));
}

// What is added up at each position of [0, bins): weights, or ones where there are none; other positions are dropped.
static tt_value *count_positions(tt_builder *b, tt_value *position, tt_value *weight, int64_t bins) {
  int64_t column[] = {tt_value_count(position), 1};
  tt_scatter numbers = {.inserted_count = 1,
                        .inserted_window_dims = (int[]){0},
                        .map_count = 1,
                        .scatter_dims_to_operand_dims = (int[]){0},
                        .index_vector_dim = 1};
  if (!weight) weight = tt_hlo_splat(b, TT_S32, 1, column, 1);
  return tt_hlo_scatter(b, tt_hlo_splat(b, weight->dtype, 1, &bins, 0), tt_hlo_reshape(b, position, 2, column), weight,
                        &numbers, TT_COMBINE_ADD);
}

// --- histc ---------------------------------------------------------------------------------------------------------------

static bool check_histc(tt_lowering *l, tt_dtype dtype, int64_t bins, double low, double high) {
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

// histc(self, bins, min, max); min == max stands for the range of the data.
void tt_lower_histc(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0);
  tt_dtype dtype = x->dtype;
  int64_t bins = tt_int(l, 1);
  double low = tt_double(l, 2), high = tt_double(l, 3);
  if (tt_failed(l) || !check_histc(l, dtype, bins, low, high)) return;
  if (tt_value_count(x) == 0) {
    tt_set_result(l, 0, tt_hlo_splat(b, dtype, 1, &bins, 0));
    return;
  }
  x = tt_flat(b, tt_hlo_convert(b, x, tt_compute_dtype(dtype)));
  range r = {tt_hlo_constant(b, x->dtype, low), tt_hlo_constant(b, x->dtype, high)};
  if (low == high) r = range_of_data(l, x, 1, "torch.histc: range of [min, max] is not finite");
  // Hidden, so that the division below is not turned into a multiplication that puts edges into the wrong bin.
  tt_value *width = tt_hlo_optimization_barrier(b, tt_hlo_subtract(b, r.high, r.low));
  tt_value *place = tt_div(l, tt_hlo_multiply(b, tt_sub(l, x, r.low), tt_hlo_constant_like(b, x, (double)bins)), width);
  tt_value *position = tt_hlo_convert(b, place, TT_S32), *none = tt_hlo_constant_like(b, position, (double)bins);
  position = tt_hlo_minimum(b, position, tt_hlo_constant_like(b, position, (double)(bins - 1)));
  position = tt_hlo_select(b, is_inside(b, x, r), position, none);
  tt_set_result(l, 0, tt_hlo_convert(b, count_positions(b, position, NULL, bins), dtype));
}

// --- histogram, histogramdd ----------------------------------------------------------------------------------------------

// Points in N dimensions, which one histogram counts. torch's histogram is that of points in one dimension.
typedef struct points {
  tt_lowering *l;
  tt_builder *b;
  const tt_tensor *tensor; // self
  bool one;                // histogram: each element is a point
  int dims;                // N
  int64_t count;
  tt_value *x;      // [count, N]
  tt_value **edges; // N vectors
} points;

static bool is_prefix(const tt_tensor *part, const tt_tensor *whole, int rank) {
  if (part->rank != rank) return false;
  for (int i = 0; i < rank; ++i)
    if (part->sizes[i] != whole->sizes[i]) return false;
  return true;
}

// self is argument 0. False when the call fails.
static bool begin_points(points *p, tt_lowering *l, bool one, int weight_arg) {
  const tt_tensor *t = tt_tensor_arg(l, 0), *weight = tt_tensor_arg(l, weight_arg);
  *p = (points){.l = l, .b = l->b, .tensor = t, .one = one, .dims = 1, .x = tt_operand(l, 0)};
  if (!one && t->rank < 2) {
    tt_fail(l, TT_INVALID_ARGUMENT, "torch.histogramdd: input tensor should have at least 2 dimensions");
    return false;
  }
  if (!one) p->dims = (int)t->sizes[t->rank - 1];
  p->count = 1;
  for (int i = 0; i < t->rank - !one; ++i) p->count *= t->sizes[i];
  tt_arena *arena = tt_builder_arena(l->b);
  p->edges = tt_arena_allocate(arena, (size_t)p->dims + 1, sizeof *p->edges);
  if (!p->edges) tt_fail(l, TT_OUT_OF_MEMORY, "out of host memory while lowering %s", l->op->name);
  if (weight && weight->dtype != t->dtype)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor should have the same "
            "dtype, but "
            "got input(%s), and weight(%s)",
            tt_dtype_cpp(t->dtype), tt_dtype_cpp(weight->dtype));
  if (weight && !is_prefix(weight, t, t->rank - !one))
    tt_fail(l, TT_INVALID_ARGUMENT,
            "torch.histogramdd: if weight tensor is provided it should have the same shape as the input tensor "
            "excluding its "
            "innermost dimension, but got input with shape %s and weight with shape %s",
            one ? tt_shape_text(arena, 2, (int64_t[]){p->count, 1}) : tt_shape_text(arena, t->rank, t->sizes),
            one ? tt_shape_text(arena, 1, (int64_t[]){tt_value_count(tt_operand(l, weight_arg))})
                : tt_shape_text(arena, weight->rank, weight->sizes));
  if (tt_failed(l)) return false;
  p->x = tt_hlo_reshape(l->b, p->x, 2, (int64_t[]){p->count, p->dims});
  return true;
}

// The points' coordinates in one dimension.
static tt_value *coordinates(const points *p, int dim) {
  return tt_flat(p->b, tt_hlo_slice_dim(p->b, p->x, 1, dim, dim + 1, 1));
}

static void check_number_of_bins(points *p, int dim, int64_t bins) {
  if (bins <= 0)
    tt_fail(p->l, TT_INVALID_ARGUMENT, "torch.histogram(): bins must be > 0, but got %lld for dimension %d",
            (long long)bins, dim);
}

static bool check_dtype(points *p) {
  tt_dtype dtype = p->tensor->dtype;
  if (dtype != TT_F32 && dtype != TT_F64)
    tt_fail(p->l, TT_NOT_IMPLEMENTED, "\"histogramdd\" not implemented for '%s'", tt_dtype_text(dtype));
  return !tt_failed(p->l);
}

static range given_range(points *p, int dim, double low, double high) {
  if (!isfinite(low) || !isfinite(high))
    tt_fail(p->l, TT_INVALID_ARGUMENT, "torch.histogramdd: dimension %d's range [%g, %g] is not finite", dim, low,
            high);
  else if (low > high)
    tt_fail(p->l, TT_INVALID_ARGUMENT,
            "torch.histogramdd: min should not exceed max, but got min %g max %g for dimension %d", low, high, dim);
  double margin = low == high ? 0.5 : 0;
  return (range){tt_hlo_constant(p->b, p->x->dtype, low - margin), tt_hlo_constant(p->b, p->x->dtype, high + margin)};
}

// Equal bins: argument 1 says how many, `range_arg` where they begin and end; without it they span the data, or [0, 1] if there
// is none. False when the call fails.
static bool make_edges(points *p, int range_arg) {
  tt_lowering *l = p->l;
  int count, ends;
  const int64_t *bins = tt_ints(l, 1, &count);
  const double *given = tt_doubles(l, range_arg, &ends);
  if (count != p->dims)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "histogramdd: The size of bins must be equal to the innermost dimension of the input.");
  for (int i = 0; i < p->dims && !tt_failed(l); ++i) check_number_of_bins(p, i, bins[i]);
  if (tt_has(l, range_arg) && ends != 2 * p->dims)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "torch.histogramdd: for a %d-dimensional histogram range should have %d elements, but got %d", p->dims,
            2 * p->dims, ends);
  if (tt_failed(l) || !check_dtype(p)) return false;
  for (int i = 0; i < p->dims; ++i) {
    range r = given ? given_range(p, i, given[2 * i], given[2 * i + 1])
              : p->count == 0
                  ? given_range(p, i, 0, 1)
                  : range_of_data(l, coordinates(p, i), 0.5, "torch.histogramdd: the input's range is not finite");
    p->edges[i] = tt_spaced(l, r.low, r.high, bins[i] + 1);
  }
  return !tt_failed(l);
}

static void check_edges(points *p, int dim, const tt_tensor *edges) {
  if (edges->dtype != p->tensor->dtype)
    tt_fail(
        p->l, TT_INVALID_ARGUMENT,
        "torch.histogramdd: input tensor and bins tensors should have the same dtype, but got input with dtype %s and "
        "bins for dimension %d with dtype %s",
        tt_dtype_cpp(p->tensor->dtype), dim, tt_dtype_cpp(edges->dtype));
  else if (edges->rank != 1)
    tt_fail(p->l, TT_INVALID_ARGUMENT,
            "torch.histogramdd: bins tensor should have one dimension, but got %d dimensions in the bins tensor for "
            "dimension %d",
            edges->rank, dim);
  else if (edges->sizes[0] == 0)
    tt_fail(p->l, TT_INVALID_ARGUMENT,
            "torch.histogramdd: bins tensor should have at least 1 element, but got 0 elements in the bins tensor for "
            "dimension %d",
            dim);
  else
    check_number_of_bins(p, dim, edges->sizes[0] - 1);
}

// The bin of each point as its row-major position; `total` for none.
static tt_value *find_bins(points *p, int64_t total) {
  tt_builder *b = p->b;
  tt_dtype dtype = tt_index_dtype(total + 1);
  tt_value *position = tt_hlo_splat(b, dtype, 1, &p->count, 0), *inside = tt_hlo_splat(b, TT_BOOL, 1, &p->count, 1);
  for (int i = 0; i < p->dims; ++i) {
    tt_value *x = coordinates(p, i), *edges = p->edges[i];
    int64_t bins = edges->dims[0] - 1;
    tt_value *bin = tt_hlo_convert(b, tt_search_rows(b, edges, x, 1, bins + 1, true), dtype);
    bin = tt_hlo_subtract(b, bin, tt_hlo_constant_like(b, bin, 1));
    bin = tt_hlo_minimum(b, bin, tt_hlo_constant_like(b, bin, (double)(bins - 1)));
    position = tt_hlo_add(b, tt_hlo_multiply(b, position, tt_hlo_constant_like(b, bin, (double)bins)), bin);
    range r = {tt_hlo_reshape(b, tt_hlo_slice_dim(b, edges, 0, 0, 1, 1), 0, NULL),
               tt_hlo_reshape(b, tt_hlo_slice_dim(b, edges, 0, bins, bins + 1, 1), 0, NULL)};
    inside = tt_hlo_and(b, inside, is_inside(b, x, r));
  }
  return tt_hlo_select(b, inside, position, tt_hlo_constant_like(b, position, (double)total));
}

// Divided by what all bins hold and by the volume of each.
static tt_value *density(points *p, tt_value *counts) {
  tt_builder *b = p->b;
  counts = tt_div(p->l, counts, tt_sum(b, counts, tt_axes_range(0, p->dims)));
  for (int i = 0; i < p->dims; ++i) {
    // Hidden: a division by constants would become a multiplication.
    tt_value *edges = tt_hlo_optimization_barrier(b, p->edges[i]);
    int64_t bins = edges->dims[0] - 1;
    tt_value *width =
        tt_hlo_subtract(b, tt_hlo_slice_dim(b, edges, 0, 1, bins + 1, 1), tt_hlo_slice_dim(b, edges, 0, 0, bins, 1));
    counts = tt_hlo_divide(b, counts, tt_hlo_broadcast_in_dim(b, width, counts->rank, counts->dims, &i));
  }
  return counts;
}

// Sets result 0. The bool after the weight asks for a density.
static void set_histogram(points *p, int weight_arg) {
  tt_builder *b = p->b;
  tt_lowering *l = p->l;
  int64_t sizes[TT_AXES_MAX], total = 1;
  if (p->dims > TT_AXES_MAX)
    tt_fail(l, TT_INVALID_ARGUMENT, "torch.histogramdd: a histogram of %d dimensions is not supported on TPU", p->dims);
  for (int i = 0; i < p->dims && !tt_failed(l); ++i)
    if (!tt_mul_i64(total, sizes[i] = p->edges[i]->dims[0] - 1, &total))
      tt_fail(l, TT_INVALID_ARGUMENT, "torch.histogramdd: a histogram has too many bins");
  if (tt_failed(l)) return;
  tt_value *weight = tt_has(l, weight_arg) ? tt_flat(b, tt_operand(l, weight_arg)) : NULL;
  tt_value *counts = p->dims == 0 ? tt_hlo_splat(b, p->x->dtype, 1, &total, 0)
                                  : count_positions(b, find_bins(p, total), weight, total);
  counts = tt_hlo_reshape(b, tt_hlo_convert(b, counts, p->x->dtype), p->dims, sizes);
  tt_set_result(l, 0, tt_bool(l, weight_arg + 1) ? density(p, counts) : counts);
}

// histogram.bin_ct(self, bins, *, range, weight, density) -> hist, bin_edges
void tt_lower_histogram(tt_lowering *l) {
  points p;
  if (!begin_points(&p, l, true, 3) || !make_edges(&p, 2)) return;
  set_histogram(&p, 3);
  tt_set_result(l, 1, p.edges[0]);
}

// histogram.bins_tensor(self, bins, *, weight, density) -> hist, bin_edges
void tt_lower_histogram_in_bins(tt_lowering *l) {
  points p;
  if (!begin_points(&p, l, true, 2)) return;
  check_edges(&p, 0, tt_tensor_arg(l, 1));
  if (tt_failed(l) || !check_dtype(&p)) return;
  p.edges[0] = tt_operand(l, 1);
  set_histogram(&p, 2);
  tt_set_result(l, 1, p.edges[0]);
}

// _histogramdd_bin_edges(self, bins, *, range, weight, density) -> edges of each dim
void tt_lower_histogramdd_bin_edges(tt_lowering *l) {
  points p;
  if (!begin_points(&p, l, false, 3) || !make_edges(&p, 2)) return;
  for (int i = 0; i < p.dims; ++i) tt_set_result(l, i, p.edges[i]);
}

// _histogramdd_from_bin_cts(self, bins, *, range, weight, density)
void tt_lower_histogramdd(tt_lowering *l) {
  points p;
  if (begin_points(&p, l, false, 3) && make_edges(&p, 2)) set_histogram(&p, 3);
}

// _histogramdd_from_bin_tensors(self, bins, *, weight, density)
void tt_lower_histogramdd_in_bins(tt_lowering *l) {
  points p;
  if (!begin_points(&p, l, false, 2)) return;
  if (tt_list_count(l, 1) != p.dims)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "torch.histogramdd: expected %d sequences of bin edges for a %d-dimensional histogram but got %d", p.dims,
            p.dims, tt_list_count(l, 1));
  for (int i = 0; i < p.dims && !tt_failed(l); ++i) check_edges(&p, i, tt_list_tensor(l, 1, i));
  if (tt_failed(l) || !check_dtype(&p)) return;
  for (int i = 0; i < p.dims; ++i) p.edges[i] = tt_list_operand(l, 1, i);
  set_histogram(&p, 2);
}
