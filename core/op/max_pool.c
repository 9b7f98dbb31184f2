// max_pool.c - maxima over windows with their positions, fixed, adaptive and fractional, the backwards, and the unpooling.
//
// A maximum is taken along one dimension after the other, the last one first, and carries its flat position in the picture
// along. Scanning that way keeps torch's choice: the first of equal elements in row-major order, but the last NaN.
// The backward goes by the positions: few windows cover an element, and each gives its gradient to the element whose
// position it holds. Where many windows may cover an element it is a scatter.
#include <string.h>

#include "op/index.h"
#include "op/pool.h"

enum { MAX_TAPS = 16, MAX_COVERING = 16 };

typedef struct maxima {
  tt_value *value, *position; // of one shape; position -1 in padding
} maxima;

static tt_dtype position_dtype(const tt_pool *p) { return tt_index_dtype(tt_pool_product(p->spatial, p->in)); }

// Each element's flat position in its picture, for x [lead..., in...].
static tt_value *positions(tt_lowering *l, const tt_value *x, const tt_pool *p) {
  int64_t plane = tt_pool_product(p->spatial, p->in);
  int map[TT_POOL_MAX];
  for (int i = 0; i < p->spatial; ++i) map[i] = p->lead + i;
  tt_value *flat = tt_hlo_iota(l->b, position_dtype(p), 1, &plane, 0);
  return tt_hlo_broadcast_in_dim(l->b, tt_hlo_reshape(l->b, flat, p->spatial, p->in), x->rank, x->dims, map);
}

static bool has_nan(const tt_value *x) { return tt_dtype_is_float(x->dtype); }

// --- along one dimension -------------------------------------------------------------------------------------------------

static maxima pad_dim(tt_lowering *l, maxima m, int dim, int64_t low, int64_t high) {
  int64_t lows[TT_POOL_MAX_RANK] = {0}, highs[TT_POOL_MAX_RANK] = {0}, none[TT_POOL_MAX_RANK] = {0};
  lows[dim] = low;
  highs[dim] = high;
  tt_value *least = tt_hlo_min_value(l->b, m.value->dtype), *nowhere = tt_hlo_constant_i64(l->b, m.position->dtype, -1);
  return (maxima){tt_hlo_pad(l->b, m.value, least, lows, highs, none),
                  tt_hlo_pad(l->b, m.position, nowhere, lows, highs, none)};
}

// The greater of two, element by element; `b` comes later in the scan.
static maxima greater(tt_lowering *l, maxima a, maxima b, bool padded) {
  tt_value *take = tt_hlo_compare(l->b, TT_GT, b.value, a.value);
  if (has_nan(a.value)) take = tt_hlo_or(l->b, take, tt_hlo_is_nan(l->b, b.value));
  if (padded) // padding never wins, not even against -inf
    take = tt_hlo_or(l->b, take, tt_hlo_compare(l->b, TT_LT, a.position, tt_hlo_constant_like(l->b, a.position, 0)));
  return (maxima){tt_hlo_select(l->b, take, b.value, a.value), tt_hlo_select(l->b, take, b.position, a.position)};
}

// One slice per window element.
static maxima scan_slices(tt_lowering *l, maxima m, const tt_pool *p, int i) {
  int dim = p->lead + i;
  int64_t reach = (p->out[i] - 1) * p->stride[i] + 1; // of one window element over all windows
  int64_t high = reach + (p->kernel[i] - 1) * p->dilation[i] - p->in[i] - p->padding[i];
  bool padded = p->padding[i] > 0 || high > 0;
  if (padded) m = pad_dim(l, m, dim, p->padding[i], high > 0 ? high : 0);
  maxima best = {NULL, NULL};
  for (int64_t t = 0; t < p->kernel[i]; ++t) {
    int64_t start = t * p->dilation[i];
    maxima next = {tt_hlo_slice_dim(l->b, m.value, dim, start, start + reach, p->stride[i]),
                   tt_hlo_slice_dim(l->b, m.position, dim, start, start + reach, p->stride[i])};
    best = t == 0 ? next : greater(l, best, next, padded);
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
static maxima scan_masked(tt_lowering *l, maxima m, int dim, int64_t out, tt_value *mask) {
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
  return (maxima){best, first};
}

static bool wants_slices(const tt_pool *p, int i) {
  return p->kernel[i] <= MAX_TAPS || (p->kernel[i] <= 4 * MAX_TAPS && 4 * p->kernel[i] < p->in[i]);
}

static maxima scan_dim(tt_lowering *l, maxima m, const tt_pool *p, int i) {
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

static void set_maxima(tt_lowering *l, maxima m) {
  tt_set_result(l, 0, m.value);
  tt_set_result(l, 1, tt_hlo_convert(l->b, m.position, TT_S64));
}

// --- max_pool2d, max_pool3d with indices -------------------------------------------------------------------------------------

static void set_empty(tt_lowering *l, const tt_value *x, const tt_pool *p) {
  int64_t dims[TT_POOL_MAX_RANK];
  for (int i = 0; i < p->lead; ++i) dims[i] = x->dims[i];
  memcpy(dims + p->lead, p->out, (size_t)p->spatial * sizeof *dims);
  tt_set_result(l, 0, tt_hlo_splat(l->b, x->dtype, x->rank, dims, 0));
  tt_set_result(l, 1, tt_hlo_splat(l->b, TT_S64, x->rank, dims, 0));
}

static void lower_max_pool(tt_lowering *l, const tt_pool *p) {
  tt_value *x = tt_operand(l, 0);
  if (tt_value_count(x) == 0 || tt_pool_product(p->spatial, p->out) == 0) {
    set_empty(l, x, p);
    return;
  }
  maxima m = {x, positions(l, x, p)};
  for (int i = p->spatial - 1; i >= 0; --i) m = scan_dim(l, m, p, i);
  set_maxima(l, m);
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
static bool read_max_pool3d(tt_lowering *l, int x, int first, tt_pool *p) {
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
  if (!read_max_pool3d(l, 0, 1, &p)) return;
  lower_max_pool(l, &p);
  for (int i = 0; i < 2; ++i) tt_set_channels_last(l, i, tt_is_channels_last(l, 0));
}

// --- backward by positions -----------------------------------------------------------------------------------------------------

// How many windows may cover one element along dimension i.
static int64_t covering(const tt_pool *p, int i) { return (p->kernel[i] - 1) * p->dilation[i] / p->stride[i] + 1; }

// For x [lead..., out...]: at each element of the picture, what x holds for the window that is `back` windows before the last
// one to cover that element along dimension i; `fill` where there is no such window.
static tt_value *seen_from_dim(tt_lowering *l, tt_value *x, const tt_pool *p, int i, int64_t back, tt_value *fill) {
  tt_builder *b = l->b;
  int64_t low[TT_POOL_MAX_RANK] = {0}, high[TT_POOL_MAX_RANK] = {0}, none[TT_POOL_MAX_RANK] = {0},
          dims[TT_POOL_MAX_RANK + 1];
  int map[TT_POOL_MAX_RANK], dim = p->lead + i;
  int64_t last = (p->in[i] - 1 + p->padding[i]) / p->stride[i]; // the last window to cover the last element
  low[dim] = back;
  high[dim] = last + 1 - back - p->out[i];
  x = tt_hlo_pad(b, x, fill, low, high, none);
  for (int k = 0; k < x->rank; ++k) {
    map[k] = k <= dim ? k : k + 1;
    dims[map[k]] = x->dims[k];
  }
  dims[dim + 1] = p->stride[i];
  x = tt_hlo_broadcast_in_dim(b, x, x->rank + 1, dims, map);
  for (int k = dim + 1; k < x->rank - 1; ++k) dims[k] = x->dims[k + 1];
  dims[dim] = (last + 1) * p->stride[i];
  x = tt_hlo_reshape(b, x, x->rank - 1, dims);
  return tt_hlo_slice_dim(b, x, dim, p->padding[i], p->padding[i] + p->in[i], 1);
}

static tt_value *backward_by_windows(tt_lowering *l, tt_value *gradient, tt_value *position, const tt_pool *p) {
  tt_builder *b = l->b;
  int64_t counts[TT_POOL_MAX];
  for (int i = 0; i < p->spatial; ++i) counts[i] = covering(p, i);
  tt_value *sum = NULL, *zero = tt_hlo_constant(b, gradient->dtype, 0);
  tt_value *nowhere = tt_hlo_constant_i64(b, position->dtype, -1);
  for (int64_t k = 0; k < tt_pool_product(p->spatial, counts); ++k) {
    tt_value *g = gradient, *at = position;
    int64_t rest = k;
    for (int i = p->spatial - 1; i >= 0; --i) {
      g = seen_from_dim(l, g, p, i, rest % counts[i], zero);
      at = seen_from_dim(l, at, p, i, rest % counts[i], nowhere);
      rest /= counts[i];
    }
    tt_value *here = tt_hlo_compare(b, TT_EQ, at, positions(l, g, p));
    tt_value *term = tt_hlo_select(b, here, g, tt_hlo_constant_like(b, g, 0));
    sum = sum ? tt_hlo_add(b, sum, term) : term;
  }
  return sum;
}

// values [lead..., out...] put into zeros [lead..., in...] at flat positions.
static tt_value *scatter_plane(tt_lowering *l, tt_value *values, tt_value *position, const tt_pool *p,
                               tt_combine combine) {
  tt_builder *b = l->b;
  int64_t lead = tt_pool_product(p->lead, values->dims),
          places = tt_pool_product(values->rank - p->lead, values->dims + p->lead);
  int64_t plane[] = {lead, tt_pool_product(p->spatial, p->in)}, rows[] = {lead, places}, dims[TT_POOL_MAX_RANK];
  for (int i = 0; i < p->lead; ++i) dims[i] = values->dims[i];
  memcpy(dims + p->lead, p->in, (size_t)p->spatial * sizeof *dims);
  tt_value *x = tt_hlo_splat(b, values->dtype, 2, plane, 0);
  if (lead > 0 && places > 0 && plane[1] > 0) {
    tt_index_map map;
    tt_map_elements(&map, x, 1, tt_hlo_reshape(b, position, 2, rows));
    x = tt_index_write(b, x, &map, tt_hlo_reshape(b, values, 2, rows), combine);
  }
  return tt_hlo_reshape(b, x, p->lead + p->spatial, dims);
}

static void lower_backward(tt_lowering *l, const tt_pool *p, int indices, bool by_windows) {
  tt_value *gradient = tt_operand(l, 0), *position = tt_operand_as(l, indices, position_dtype(p));
  tt_dtype dtype = gradient->dtype;
  gradient = tt_hlo_convert(l->b, gradient, tt_compute_dtype(dtype));
  if (tt_failed(l)) return;
  tt_value *x = by_windows && tt_value_count(gradient) > 0 ? backward_by_windows(l, gradient, position, p)
                                                           : scatter_plane(l, gradient, position, p, TT_COMBINE_ADD);
  tt_set_result(l, 0, tt_hlo_convert(l->b, x, dtype));
}

static void lower_max_pool_backward(tt_lowering *l, tt_pool *p) {
  int64_t windows = 1;
  for (int i = 0; i < p->spatial; ++i) windows *= covering(p, i);
  lower_backward(l, p, 7, windows <= MAX_COVERING);
}

// (grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices)
void tt_lower_max_pool2d_with_indices_backward(tt_lowering *l) {
  tt_pool p;
  tt_pool_read(l, tt_tensor_arg(l, 1), 2, 2, 5, &p);
  tt_pool_output_sizes(&p, tt_bool(l, 6));
  lower_max_pool_backward(l, &p);
}

static void check_pooled(tt_lowering *l, int arg, const tt_tensor *x, const tt_pool *p) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  for (int i = 0; i < x->rank && !tt_failed(l); ++i) {
    int64_t size = i < p->lead ? x->sizes[i] : p->out[i - p->lead];
    if (t->rank != x->rank || t->sizes[i] != size)
      tt_fail(l, TT_INVALID_ARGUMENT,
              "Expected a tensor of dimension %d and tensor.size[%d] == %lld but got: dimension %d and tensor.size[%d] "
              "= %lld",
              x->rank, i, (long long)size, t->rank, i, i < t->rank ? (long long)t->sizes[i] : 0);
  }
}

void tt_lower_max_pool3d_with_indices_backward(tt_lowering *l) {
  tt_pool p;
  if (!read_max_pool3d(l, 1, 2, &p)) return;
  const tt_tensor *x = tt_tensor_arg(l, 1), *g = tt_tensor_arg(l, 0);
  check_pooled(l, 0, x, &p);
  check_pooled(l, 7, x, &p);
  if (!tt_failed(l) && g->dtype != x->dtype)
    tt_fail(l, TT_INVALID_ARGUMENT, "expected dtype %s for `gradOutput` but got dtype %s", tt_dtype_text(x->dtype),
            tt_dtype_text(g->dtype));
  if (tt_failed(l)) return;
  lower_max_pool_backward(l, &p);
  tt_set_channels_last(l, 0, tt_is_channels_last(l, 1));
}

// --- adaptive ------------------------------------------------------------------------------------------------------------------

// Window o covers floor(o * in / out) up to ceil((o + 1) * in / out). True when all are of one size and side by side.
static bool read_adaptive(const tt_tensor *x, int spatial, const int64_t *out, tt_pool *p) {
  bool even = true;
  *p = (tt_pool){.spatial = spatial, .lead = x->rank - spatial};
  for (int i = 0; i < spatial; ++i) {
    p->in[i] = x->sizes[p->lead + i];
    p->out[i] = out[i];
    p->dilation[i] = 1;
    even = even && out[i] > 0 && p->in[i] > 0 && p->in[i] % out[i] == 0;
    p->kernel[i] = p->stride[i] = even ? p->in[i] / out[i] : 1;
  }
  return even;
}

static maxima scan_adaptive(tt_lowering *l, maxima m, const tt_pool *p, int i) {
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
  bool even = read_adaptive(tt_tensor_arg(l, 0), spatial, out, &p);
  tt_value *x = tt_operand(l, 0);
  if (even || tt_value_count(x) == 0 || tt_pool_product(spatial, out) == 0) {
    lower_max_pool(l, &p);
    return;
  }
  maxima m = {x, positions(l, x, &p)};
  for (int i = spatial - 1; i >= 0; --i) m = scan_adaptive(l, m, &p, i);
  set_maxima(l, m);
}

// (grad_output, self, indices)
static void lower_adaptive_max_pool_backward(tt_lowering *l, int spatial) {
  tt_pool p;
  const tt_tensor *g = tt_tensor_arg(l, 0), *x = tt_tensor_arg(l, 1);
  bool even = read_adaptive(x, spatial, g->sizes + g->rank - spatial, &p);
  lower_backward(l, &p, 2, even);
}

void tt_lower_adaptive_max_pool2d(tt_lowering *l) { lower_adaptive_max_pool(l, 2); }
void tt_lower_adaptive_max_pool3d(tt_lowering *l) { lower_adaptive_max_pool(l, 3); }
void tt_lower_adaptive_max_pool2d_backward(tt_lowering *l) { lower_adaptive_max_pool_backward(l, 2); }
void tt_lower_adaptive_max_pool3d_backward(tt_lowering *l) { lower_adaptive_max_pool_backward(l, 3); }

// --- unpooling -------------------------------------------------------------------------------------------------------------------

static void check_unpool(tt_lowering *l, int spatial, int count) {
  const tt_tensor *x = tt_tensor_arg(l, 0), *t = tt_tensor_arg(l, 1);
  tt_arena *arena = tt_builder_arena(l->b);
  const char *names = spatial == 2 ? "two elements (height, width)" : "three elements (depth, height, width)";
  if (t->dtype != TT_S64 && spatial == 2)
    tt_fail(l, TT_INVALID_ARGUMENT, "elements in indices should be type int64 but got: %s", tt_dtype_text(t->dtype));
  else if (t->dtype != TT_S64)
    tt_fail(l, TT_INVALID_ARGUMENT, "elements in indices should be type int64");
  else if (count != spatial)
    tt_fail(l, TT_INVALID_ARGUMENT, "There should be exactly %s in output_size, but got %d elements.", names, count);
  else if (x->rank != spatial + 1 && x->rank != spatial + 2)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Input to max_unpooling%dd should be a %dd or %dd Tensor, but got a tensor with %d dimensions.", spatial,
            spatial + 1, spatial + 2, x->rank);
  for (int i = 0; i < x->rank && !tt_failed(l); ++i)
    if (t->rank != x->rank || t->sizes[i] != x->sizes[i])
      tt_fail(
          l, TT_INVALID_ARGUMENT,
          "Expected shape of indices to be same as that of the input tensor (%s) but got indices tensor with shape: %s",
          tt_shape_text(arena, x->rank, x->sizes), tt_shape_text(arena, t->rank, t->sizes));
  for (int i = 1; i < spatial + 1 && !tt_failed(l); ++i)
    if (x->sizes[x->rank - spatial - 1 + i] == 0)
      tt_fail(l, TT_INVALID_ARGUMENT,
              "max_unpooling%dd_forward_out_cpu(): Expected input to have non-zero size for non-batch dimensions, but "
              "got %s "
              "with dimension %d being empty.",
              spatial, tt_shape_text(arena, x->rank, x->sizes), x->rank - spatial - 1 + i);
}

static void lower_unpool(tt_lowering *l, int spatial) {
  int count;
  const int64_t *out = tt_ints(l, 2, &count);
  check_unpool(l, spatial, count);
  if (tt_failed(l)) return;
  const tt_tensor *x = tt_tensor_arg(l, 0);
  tt_pool p = {.spatial = spatial, .lead = x->rank - spatial};
  memcpy(p.in, out, (size_t)spatial * sizeof *out);
  tt_value *at = tt_index_checked(l, tt_operand(l, 1), tt_pool_product(spatial, out), false, TT_INVALID_ARGUMENT,
                                  "Found an invalid max index");
  tt_set_result(l, 0, scatter_plane(l, tt_operand(l, 0), at, &p, TT_COMBINE_REPLACE));
  tt_set_channels_last(l, 0, tt_is_channels_last(l, 0));
}

void tt_lower_max_unpool2d(tt_lowering *l) { lower_unpool(l, 2); }

// (self, indices, output_size, stride, padding): the last two are only checked.
void tt_lower_max_unpool3d(tt_lowering *l) {
  int strides, paddings;
  const int64_t *stride = tt_ints(l, 3, &strides);
  tt_ints(l, 4, &paddings);
  if (strides != 3 || paddings != 3)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "There should be exactly three elements (depth, height, width) in %s, but got: %d elements.",
            strides != 3 ? "stride" : "padding", strides != 3 ? strides : paddings);
  else if (stride[0] <= 0 || stride[1] <= 0 || stride[2] <= 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "strides should be greater than zero, but got stride: %s",
            tt_shape_text(tt_builder_arena(l->b), 3, stride));
  if (tt_failed(l)) return;
  lower_unpool(l, 3);
}

// --- fractional: windows of one size at places that a random sample moves about -------------------------------------------------

// Where the windows start along dimension i: [n, c, out]. samples [n, c, dims]; torch computes in their dtype.
static tt_value *fractional_starts(tt_lowering *l, const tt_pool *p, tt_value *samples, int i) {
  tt_builder *b = l->b;
  // In two dimensions the first sample is the width's, in three the depth's.
  int column = p->spatial == 2 ? 1 - i : i;
  int64_t dims[] = {samples->dims[0], samples->dims[1], p->out[i]}, last = p->in[i] - p->kernel[i];
  tt_value *sample = tt_hlo_slice_dim(b, samples, 2, column, column + 1, 1);
  sample = tt_hlo_broadcast_in_dim(b, sample, 3, dims, (int[]){0, 1, 2});
  tt_value *at = tt_hlo_iota(b, TT_S32, 3, dims, 2), *steps = tt_hlo_convert(b, at, samples->dtype);
  double alpha = p->out[i] > 1 ? (double)last / (double)(p->out[i] - 1) : 0;
  tt_value *scale = tt_hlo_constant_like(b, steps, alpha);
  tt_value *moved = tt_hlo_convert(b, tt_hlo_multiply(b, tt_hlo_add(b, steps, sample), scale), TT_S32);
  tt_value *origin = tt_hlo_convert(b, tt_hlo_multiply(b, sample, scale), TT_S32);
  tt_value *is_last = tt_hlo_compare(b, TT_EQ, at, tt_hlo_constant_like(b, at, (double)(p->out[i] - 1)));
  return tt_hlo_select(b, is_last, tt_hlo_constant_like(b, at, (double)last), tt_hlo_subtract(b, moved, origin));
}

// One gather per window element, in the order of torch's scan.
static maxima scan_fractional(tt_lowering *l, tt_value *x, const tt_pool *p, tt_value *samples) {
  tt_builder *b = l->b;
  int64_t n = samples->dims[0], c = samples->dims[1], dims[TT_POOL_MAX_RANK] = {n, c};
  memcpy(dims + 2, p->out, (size_t)p->spatial * sizeof *dims);
  tt_value *starts[TT_POOL_MAX];
  for (int i = 0; i < p->spatial; ++i)
    starts[i] =
        tt_hlo_broadcast_in_dim(b, fractional_starts(l, p, samples, i), 2 + p->spatial, dims, (int[]){0, 1, 2 + i});
  int64_t places = tt_pool_product(p->spatial, p->out);
  tt_value *plane = tt_hlo_reshape(b, x, 2, (int64_t[]){n * c, tt_pool_product(p->spatial, p->in)});
  maxima best = {NULL, NULL};
  for (int64_t t = 0; t < tt_pool_product(p->spatial, p->kernel); ++t) {
    tt_value *at = NULL;
    int64_t rest = t, offset[TT_POOL_MAX];
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): with a size of 0 there is no t
    for (int i = p->spatial - 1; i >= 0; rest /= p->kernel[i--]) offset[i] = rest % p->kernel[i];
    for (int i = 0; i < p->spatial; ++i) {
      tt_value *along = tt_hlo_add(b, starts[i], tt_hlo_constant_like(b, starts[i], (double)offset[i]));
      at = at ? tt_hlo_add(b, tt_hlo_multiply(b, at, tt_hlo_constant_like(b, at, (double)p->in[i])), along) : along;
    }
    at = tt_hlo_reshape(b, at, 2, (int64_t[]){n * c, places});
    tt_index_map map;
    tt_map_elements(&map, plane, 1, at);
    maxima next = {tt_index_read(b, plane, &map), at};
    best = t == 0 ? next : greater(l, best, next, false);
  }
  return best;
}

static void read_fractional(tt_lowering *l, const tt_tensor *x, int first, tt_pool *p) {
  int kernels, count;
  const int64_t *kernel = tt_ints(l, first, &kernels), *out = tt_ints(l, first + 1, &count);
  *p = (tt_pool){.spatial = count, .lead = x->rank - count};
  if (count < 2 || count > TT_POOL_MAX || (kernels != 1 && kernels != count) || p->lead < 1 || p->lead > 2)
    tt_fail(l, TT_MISMATCH, "%d output sizes and %d kernel sizes for a tensor of %d dims", count, kernels, x->rank);
  if (tt_failed(l)) {
    *p = (tt_pool){.spatial = 2, .lead = 1};
    return;
  }
  for (int i = 0; i < count; ++i) {
    p->in[i] = x->sizes[p->lead + i];
    p->out[i] = out[i];
    p->kernel[i] = kernel[kernels == 1 ? 0 : i];
  }
}

// The samples of x's planes: [n, c, spatial]. More are allowed than there are.
static tt_value *take_samples(tt_lowering *l, const tt_tensor *x, const tt_pool *p) {
  tt_value *samples = tt_operand_as(l, 3, tt_compute_dtype(x->dtype));
  int64_t n = p->lead > 1 ? x->sizes[0] : 1, c = x->sizes[p->lead - 1];
  if (samples->rank != 3 && !tt_failed(l))
    tt_fail(l, TT_INVALID_ARGUMENT, "Expect _random_samples to have 3 dimensions");
  if (tt_failed(l)) return samples;
  if (samples->dims[0] < n)
    tt_fail(l, TT_INVALID_ARGUMENT, "Expect _random_samples.size(0) no less then input batch size.");
  else if (samples->dims[1] != c)
    tt_fail(l, TT_INVALID_ARGUMENT, "Expect _random_samples.size(1) equals to input channel size.");
  else if (samples->dims[2] != p->spatial)
    tt_fail(l, TT_INVALID_ARGUMENT, "Expect _random_samples.size(2) equals to %d; got %lld.", p->spatial,
            (long long)samples->dims[2]);
  return tt_failed(l) ? samples : tt_hlo_slice_dim(l->b, samples, 0, 0, n, 1);
}

// (self, kernel_size, output_size, random_samples)
void tt_lower_fractional_max_pool(tt_lowering *l) {
  tt_pool p;
  const tt_tensor *t = tt_tensor_arg(l, 0);
  read_fractional(l, t, 1, &p);
  tt_value *x = tt_operand(l, 0), *samples = take_samples(l, t, &p);
  if (tt_value_count(x) == 0 || tt_pool_product(p.spatial, p.out) == 0 || tt_failed(l)) {
    set_empty(l, x, &p);
    return;
  }
  maxima m = scan_fractional(l, x, &p, samples);
  int64_t dims[TT_POOL_MAX_RANK];
  for (int i = 0; i < t->rank; ++i) dims[i] = i < p.lead ? t->sizes[i] : p.out[i - p.lead];
  set_maxima(l,
             (maxima){tt_hlo_reshape(l->b, m.value, t->rank, dims), tt_hlo_reshape(l->b, m.position, t->rank, dims)});
}

// (grad_output, self, kernel_size, output_size, indices)
void tt_lower_fractional_max_pool_backward(tt_lowering *l) {
  tt_pool p;
  read_fractional(l, tt_tensor_arg(l, 1), 2, &p);
  lower_backward(l, &p, 4, false);
}
