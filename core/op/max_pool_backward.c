// max_pool_backward.c - gradients of the maxima over windows.
//
// They go by the positions: few windows cover an element, and each gives its gradient to the element whose position it holds.
// Where many windows may cover an element it is a scatter.
#include <string.h>

#include "op/index.h"
#include "op/max_pool.h"

enum { MAX_COVERING = 16 };

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
    tt_value *here = tt_hlo_compare(b, TT_EQ, at, tt_pool_positions(l, g, p));
    tt_value *term = tt_hlo_select(b, here, g, tt_hlo_constant_like(b, g, 0));
    sum = sum ? tt_hlo_add(b, sum, term) : term;
  }
  return sum;
}

tt_value *tt_pool_scatter(tt_lowering *l, tt_value *values, tt_value *position, const tt_pool *p, tt_combine combine) {
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

void tt_lower_pool_backward(tt_lowering *l, const tt_pool *p, int indices, bool by_windows) {
  tt_value *gradient = tt_operand(l, 0), *position = tt_operand_as(l, indices, tt_pool_position_dtype(p));
  tt_dtype dtype = gradient->dtype;
  gradient = tt_hlo_convert(l->b, gradient, tt_compute_dtype(dtype));
  if (tt_failed(l)) return;
  tt_value *x = by_windows && tt_value_count(gradient) > 0 ? backward_by_windows(l, gradient, position, p)
                                                           : tt_pool_scatter(l, gradient, position, p, TT_COMBINE_ADD);
  tt_set_result(l, 0, tt_hlo_convert(l->b, x, dtype));
}

static void lower_max_pool_backward(tt_lowering *l, tt_pool *p) {
  int64_t windows = 1;
  for (int i = 0; i < p->spatial; ++i) windows *= covering(p, i);
  tt_lower_pool_backward(l, p, 7, windows <= MAX_COVERING);
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
  if (!tt_max_pool3d_read(l, 1, 2, &p)) return;
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

// (grad_output, self, indices)
static void lower_adaptive_max_pool_backward(tt_lowering *l, int spatial) {
  tt_pool p;
  const tt_tensor *g = tt_tensor_arg(l, 0), *x = tt_tensor_arg(l, 1);
  bool even = tt_pool_adaptive(x, spatial, g->sizes + g->rank - spatial, &p);
  tt_lower_pool_backward(l, &p, 2, even);
}

void tt_lower_adaptive_max_pool2d_backward(tt_lowering *l) { lower_adaptive_max_pool_backward(l, 2); }
void tt_lower_adaptive_max_pool3d_backward(tt_lowering *l) { lower_adaptive_max_pool_backward(l, 3); }
