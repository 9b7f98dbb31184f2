// max_pool.c - maxima over windows with their positions: max_pool2d, max_pool3d and the adaptive ones.
//
// A maximum is taken along one dimension after the other, the last one first, and carries its flat position in the picture
// along. Scanning that way keeps torch's choice: the first of equal elements in row-major order, but the last NaN.
#include "op/max_pool.h"

#include <string.h>

#include "op/index.h"

enum { MAX_TAPS = 16 }; // more than so many slices are one masked scan

tt_dtype tt_pool_position_dtype(const tt_pool *p) { return tt_index_dtype(tt_pool_product(p->spatial, p->in)); }

tt_value *tt_pool_positions(tt_lowering *l, const tt_value *x, const tt_pool *p) {
  int64_t plane = tt_pool_product(p->spatial, p->in);
  int map[TT_POOL_MAX];
  for (int i = 0; i < p->spatial; ++i) map[i] = p->lead + i;
  tt_value *flat = tt_hlo_iota(l->b, tt_pool_position_dtype(p), 1, &plane, 0);
  return tt_hlo_broadcast_in_dim(l->b, tt_hlo_reshape(l->b, flat, p->spatial, p->in), x->rank, x->dims, map);
}

static bool has_nan(const tt_value *x) { return tt_dtype_is_float(x->dtype); }

// --- along one dimension -------------------------------------------------------------------------------------------------

static tt_maxima pad_dim(tt_lowering *l, tt_maxima m, int dim, int64_t low, int64_t high) {
  int64_t lows[TT_POOL_MAX_RANK] = {0}, highs[TT_POOL_MAX_RANK] = {0}, none[TT_POOL_MAX_RANK] = {0};
  lows[dim] = low;
  highs[dim] = high;
  tt_value *least = tt_hlo_min_value(l->b, m.value->dtype), *nowhere = tt_hlo_constant_i64(l->b, m.position->dtype, -1);
  return (tt_maxima){tt_hlo_pad(l->b, m.value, least, lows, highs, none),
                     tt_hlo_pad(l->b, m.position, nowhere, lows, highs, none)};
}

tt_maxima tt_greater(tt_lowering *l, tt_maxima a, tt_maxima b, bool padded) {
  tt_value *take = tt_hlo_compare(l->b, TT_GT, b.value, a.value);
  if (has_nan(a.value)) take = tt_hlo_or(l->b, take, tt_hlo_is_nan(l->b, b.value));
  if (padded) // padding never wins, not even against -inf
    take = tt_hlo_or(l->b, take, tt_hlo_compare(l->b, TT_LT, a.position, tt_hlo_constant_like(l->b, a.position, 0)));
  return (tt_maxima){tt_hlo_select(l->b, take, b.value, a.value), tt_hlo_select(l->b, take, b.position, a.position)};
}

// One slice per window element.
static tt_maxima scan_slices(tt_lowering *l, tt_maxima m, const tt_pool *p, int i) {
  int dim = p->lead + i;
  int64_t reach = (p->out[i] - 1) * p->stride[i] + 1; // of one window element over all windows
  int64_t high = reach + (p->kernel[i] - 1) * p->dilation[i] - p->in[i] - p->padding[i];
  bool padded = p->padding[i] > 0 || high > 0;
  if (padded) m = pad_dim(l, m, dim, p->padding[i], high > 0 ? high : 0);
  tt_maxima best = {NULL, NULL};
  for (int64_t t = 0; t < p->kernel[i]; ++t) {
    int64_t start = t * p->dilation[i];
    tt_maxima next = {tt_hlo_slice_dim(l->b, m.value, dim, start, start + reach, p->stride[i]),
                      tt_hlo_slice_dim(l->b, m.position, dim, start, start + reach, p->stride[i])};
    best = t == 0 ? next : tt_greater(l, best, next, padded);
  }
  return best;
}

// [out, in]: is the element in the window? Windows go from start[o] to end[o] in steps of `dilation`.
static tt_value *window_mask(tt_lowering *l, int64_t out, int64_t in, const int64_t *start, const int64_t *end,
                             int64_t dilation) {
  tt_builder *b = l->b;
  const int64_t dims[] = {out, in};
  tt_value *at = tt_hlo_iota(b, TT_S32, 2, dims, 1);
  tt_value *from = tt_hlo_broadcast_in_dim(b, tt_hlo_constant_vector(b, TT_S32, (int)out, start), 2, dims, (int[]){0});
  tt_value *to = tt_hlo_broadcast_in_dim(b, tt_hlo_constant_vector(b, TT_S32, (int)out, end), 2, dims, (int[]){0});
  tt_value *mask = tt_hlo_and(b, tt_hlo_compare(b, TT_GE, at, from), tt_hlo_compare(b, TT_LT, at, to));
  if (dilation == 1) return mask;
  tt_value *offset = tt_hlo_remainder(b, tt_hlo_subtract(b, at, from), tt_hlo_constant_like(b, at, (double)dilation));
  return tt_hlo_and(b, mask, tt_hlo_compare(b, TT_EQ, offset, tt_hlo_constant_like(b, at, 0)));
}

// All elements of the dimension for each window, those outside masked: for long or uneven windows. Positions grow along the
// dimension, so the least is the first; NaNs are given negative ones in reverse, which makes the last NaN the least of all.
static tt_maxima scan_masked(tt_lowering *l, tt_maxima m, int dim, int64_t out, tt_value *mask) {
  tt_builder *b = l->b;
  int64_t dims[TT_POOL_MAX_RANK + 1];
  int wide_map[TT_POOL_MAX_RANK], best_map[TT_POOL_MAX_RANK], rank = m.value->rank;
  for (int i = 0; i < rank; ++i) {
    wide_map[i] = i < dim ? i : i + 1;
    best_map[i] = i <= dim ? i : i + 1;
    dims[wide_map[i]] = m.value->dims[i];
  }
  dims[dim] = out;
  const int inner = dim + 1, mask_map[] = {dim, dim + 1};
  tt_value *x = tt_hlo_broadcast_in_dim(b, m.value, rank + 1, dims, wide_map);
  tt_value *position = tt_hlo_broadcast_in_dim(b, m.position, rank + 1, dims, wide_map);
  mask = tt_hlo_broadcast_in_dim(b, mask, rank + 1, dims, mask_map);
  tt_value *least = tt_hlo_broadcast_like(b, tt_hlo_min_value(b, x->dtype), x);
  tt_value *best = tt_hlo_reduce(b, tt_hlo_select(b, mask, x, least), TT_REDUCE_MAX, 1, &inner);
  tt_value *chosen = tt_hlo_compare(b, TT_EQ, x, tt_hlo_broadcast_in_dim(b, best, rank + 1, dims, best_map));
  tt_value *nan = has_nan(x) ? tt_hlo_is_nan(b, x) : NULL;
  if (nan) {
    position = tt_hlo_select(b, nan, tt_hlo_not(b, position), position); // not p = -1 - p
    chosen = tt_hlo_or(b, chosen, nan);
  }
  chosen = tt_hlo_and(b, chosen, mask);
  tt_value *last = tt_hlo_broadcast_like(b, tt_hlo_max_value(b, position->dtype), position);
  tt_value *first = tt_hlo_reduce(b, tt_hlo_select(b, chosen, position, last), TT_REDUCE_MIN, 1, &inner);
  if (nan) {
    tt_value *negative = tt_hlo_compare(b, TT_LT, first, tt_hlo_constant_like(b, first, 0));
    first = tt_hlo_select(b, negative, tt_hlo_not(b, first), first);
  }
  return (tt_maxima){best, first};
}

static bool wants_slices(const tt_pool *p, int i) {
  return p->kernel[i] <= MAX_TAPS || (p->kernel[i] <= 4 * MAX_TAPS && 4 * p->kernel[i] < p->in[i]);
}

static tt_maxima scan_dim(tt_lowering *l, tt_maxima m, const tt_pool *p, int i) {
  if (wants_slices(p, i)) return scan_slices(l, m, p, i);
  tt_arena *arena = tt_builder_arena(l->b);
  int64_t *start = tt_arena_allocate(arena, (size_t)p->out[i] + 1, sizeof *start);
  int64_t *end = tt_arena_allocate(arena, (size_t)p->out[i] + 1, sizeof *end);
  if (!start || !end) {
    tt_fail(l, TT_OUT_OF_MEMORY, "out of host memory while lowering %s", l->op->name);
    return m;
  }
  for (int64_t o = 0; o < p->out[i]; ++o) {
    start[o] = o * p->stride[i] - p->padding[i];
    end[o] = start[o] + (p->kernel[i] - 1) * p->dilation[i] + 1;
    while (start[o] < 0) start[o] += p->dilation[i]; // so that the remainder is of a positive number
  }
  return scan_masked(l, m, p->lead + i, p->out[i], window_mask(l, p->out[i], p->in[i], start, end, p->dilation[i]));
}

void tt_set_maxima(tt_lowering *l, tt_maxima m) {
  tt_set_result(l, 0, m.value);
  tt_set_result(l, 1, tt_hlo_convert(l->b, m.position, TT_S64));
}

// --- max_pool2d, max_pool3d with indices -------------------------------------------------------------------------------------

void tt_set_empty_maxima(tt_lowering *l, const tt_value *x, const tt_pool *p) {
  int64_t dims[TT_POOL_MAX_RANK];
  for (int i = 0; i < p->lead; ++i) dims[i] = x->dims[i];
  memcpy(dims + p->lead, p->out, (size_t)p->spatial * sizeof *dims);
  tt_set_result(l, 0, tt_hlo_splat(l->b, x->dtype, x->rank, dims, 0));
  tt_set_result(l, 1, tt_hlo_splat(l->b, TT_S64, x->rank, dims, 0));
}

static void lower_max_pool(tt_lowering *l, const tt_pool *p) {
  tt_value *x = tt_operand(l, 0);
  if (tt_value_count(x) == 0 || tt_pool_product(p->spatial, p->out) == 0) {
    tt_set_empty_maxima(l, x, p);
    return;
  }
  tt_maxima m = {x, tt_pool_positions(l, x, p)};
  for (int i = p->spatial - 1; i >= 0; --i) m = scan_dim(l, m, p, i);
  tt_set_maxima(l, m);
}

void tt_lower_max_pool2d_with_indices(tt_lowering *l) {
  tt_pool p;
  tt_pool_read(l, tt_tensor_arg(l, 0), 2, 1, 4, &p);
  tt_pool_output_sizes(&p, tt_bool(l, 5));
  lower_max_pool(l, &p);
}

static void check_triple(tt_lowering *l, int arg, const char *text, bool may_be_empty) {
  int count = tt_list_count(l, arg);
  if (count != 1 && count != 3 && !(may_be_empty && count == 0))
    tt_fail(l, TT_INVALID_ARGUMENT, "max_pool3d: %s", text);
}

// The sizes of a picture with its channels, as torch's pools write them: "3x6x6x6".
static const char *volume_text(tt_lowering *l, int64_t channels, const int64_t *sizes) {
  return tt_arena_format(tt_builder_arena(l->b), "%lldx%lldx%lldx%lld", (long long)channels, (long long)sizes[0],
                         (long long)sizes[1], (long long)sizes[2]);
}

// torch has no shared check for three dimensions: this is pool3d_shape_check. Fills p.
bool tt_max_pool3d_read(tt_lowering *l, int x, int first, tt_pool *p) {
  const tt_tensor *t = tt_tensor_arg(l, x);
  check_triple(l, first, "kernel_size must either be a single int, or a tuple of three ints", false);
  check_triple(l, first + 1, "stride must either be omitted, a single int, or a tuple of three ints", true);
  check_triple(l, first + 2, "padding must either be a single int, or a tuple of three ints", false);
  check_triple(l, first + 3, "dilation must be either a single int, or a tuple of three ints", false);
  if (t->rank != 4 && t->rank != 5)
    tt_fail(l, TT_INVALID_ARGUMENT, "non-empty 4D or 5D (batch mode) tensor expected for input");
  if (tt_failed(l)) return false;
  tt_pool_read(l, t, 3, first, first + 3, p);
  for (int i = 0; i < 3 && !tt_failed(l); ++i) {
    if (p->stride[i] == 0)
      tt_fail(l, TT_INVALID_ARGUMENT, "stride should not be zero");
    else if (p->kernel[i] <= 0)
      tt_fail(l, TT_INVALID_ARGUMENT, "kernel size should be greater than zero, but got kT: %lld kH: %lld kW: %lld",
              (long long)p->kernel[0], (long long)p->kernel[1], (long long)p->kernel[2]);
    else if (p->stride[i] < 0)
      tt_fail(l, TT_INVALID_ARGUMENT, "stride should be greater than zero, but got dT: %lld dH: %lld dW: %lld",
              (long long)p->stride[0], (long long)p->stride[1], (long long)p->stride[2]);
    else if (p->dilation[i] <= 0)
      tt_fail(l, TT_INVALID_ARGUMENT,
              "dilation should be greater than zero, but got dilationT: %lld dilationH: %lld dilationW: %lld",
              (long long)p->dilation[0], (long long)p->dilation[1], (long long)p->dilation[2]);
    else if (p->padding[i] < 0)
      tt_fail(l, TT_INVALID_ARGUMENT, "pad must be non-negative, but got pad: %lld", (long long)p->padding[i]);
    else if (p->padding[i] > ((p->kernel[i] - 1) * p->dilation[i] + 1) / 2)
      tt_fail(
          l, TT_INVALID_ARGUMENT,
          "pad should be at most half of effective kernel size, but got pad=%lld, kernel_size=%lld and dilation=%lld",
          (long long)p->padding[i], (long long)p->kernel[i], (long long)p->dilation[i]);
  }
  for (int i = t->rank - 4; i < t->rank && !tt_failed(l); ++i)
    if (t->sizes[i] == 0)
      tt_fail(l, TT_INVALID_ARGUMENT,
              "max_pool3d_with_indices_out_cpu_template(): Expected input's non-batch dimensions to have positive "
              "length, but "
              "input has a shape of %s and non-batch dimension %d has length zero!",
              tt_shape_text(tt_builder_arena(l->b), t->rank, t->sizes), i - t->rank + 4);
  if (tt_failed(l)) return false;
  tt_pool_output_sizes(p, tt_bool(l, first + 4));
  for (int i = 0; i < 3 && !tt_failed(l); ++i)
    if (p->out[i] < 1)
      tt_fail(l, TT_INVALID_ARGUMENT, "Given input size: (%s). Calculated output size: (%s). Output size is too small",
              volume_text(l, t->sizes[t->rank - 4], p->in), volume_text(l, t->sizes[t->rank - 4], p->out));
  return !tt_failed(l);
}

void tt_lower_max_pool3d_with_indices(tt_lowering *l) {
  tt_pool p;
  if (!tt_max_pool3d_read(l, 0, 1, &p)) return;
  lower_max_pool(l, &p);
  for (int i = 0; i < 2; ++i) tt_set_channels_last(l, i, tt_is_channels_last(l, 0));
}

// --- adaptive ------------------------------------------------------------------------------------------------------------------

static tt_maxima scan_adaptive(tt_lowering *l, tt_maxima m, const tt_pool *p, int i) {
  tt_arena *arena = tt_builder_arena(l->b);
  int64_t *start = tt_arena_allocate(arena, (size_t)p->out[i], sizeof *start);
  int64_t *end = tt_arena_allocate(arena, (size_t)p->out[i], sizeof *end);
  if (!start || !end) {
    tt_fail(l, TT_OUT_OF_MEMORY, "out of host memory while lowering %s", l->op->name);
    return m;
  }
  for (int64_t o = 0; o < p->out[i]; ++o) {
    start[o] = o * p->in[i] / p->out[i];
    end[o] = ((o + 1) * p->in[i] + p->out[i] - 1) / p->out[i];
  }
  return scan_masked(l, m, p->lead + i, p->out[i], window_mask(l, p->out[i], p->in[i], start, end, 1));
}

static void lower_adaptive_max_pool(tt_lowering *l, int spatial) {
  tt_pool p;
  int count;
  const int64_t *out = tt_ints(l, 1, &count);
  bool even = tt_pool_adaptive(tt_tensor_arg(l, 0), spatial, out, &p);
  tt_value *x = tt_operand(l, 0);
  if (even || tt_value_count(x) == 0 || tt_pool_product(spatial, out) == 0) {
    lower_max_pool(l, &p);
    return;
  }
  tt_maxima m = {x, tt_pool_positions(l, x, &p)};
  for (int i = spatial - 1; i >= 0; --i) m = scan_adaptive(l, m, &p, i);
  tt_set_maxima(l, m);
}

void tt_lower_adaptive_max_pool2d(tt_lowering *l) { lower_adaptive_max_pool(l, 2); }
void tt_lower_adaptive_max_pool3d(tt_lowering *l) { lower_adaptive_max_pool(l, 3); }
