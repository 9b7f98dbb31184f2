// pool.c - the windows of pooling ops, see pool.h.
#include "op/pool.h"

#include <string.h>

int64_t tt_pool_product(int count, const int64_t *sizes) {
  int64_t result = 1;
  for (int i = 0; i < count; ++i) result *= sizes[i];
  return result;
}

// A list of one value stands for all dimensions; an empty stride is the kernel's size.
static void read_sizes(tt_lowering *l, int arg, int spatial, const int64_t *otherwise, int64_t *out) {
  int count;
  const int64_t *values = tt_ints(l, arg, &count);
  for (int i = 0; i < spatial; ++i) out[i] = count == 0 ? otherwise[i] : values[count == 1 ? 0 : i];
}

void tt_pool_read(tt_lowering *l, const tt_tensor *x, int spatial, int first, int dilation_arg, tt_pool *p) {
  static const int64_t none[TT_POOL_MAX] = {0}, ones[TT_POOL_MAX] = {1, 1, 1};
  *p = (tt_pool){.spatial = spatial, .lead = x->rank - spatial};
  read_sizes(l, first, spatial, ones, p->kernel);
  read_sizes(l, first + 1, spatial, p->kernel, p->stride);
  read_sizes(l, first + 2, spatial, none, p->padding);
  if (dilation_arg >= 0)
    read_sizes(l, dilation_arg, spatial, ones, p->dilation);
  else
    memcpy(p->dilation, ones, sizeof p->dilation);
  memcpy(p->in, x->sizes + p->lead, (size_t)spatial * sizeof *p->in);
}

void tt_pool_output_sizes(tt_pool *p, bool ceil_mode) {
  for (int i = 0; i < p->spatial; ++i) {
    int64_t room = p->in[i] + 2 * p->padding[i] - p->dilation[i] * (p->kernel[i] - 1) - 1;
    if (ceil_mode) room += p->stride[i] - 1;
    p->out[i] = room < 0 ? 0 : room / p->stride[i] + 1;
    // The last window must start in the picture or its left padding.
    if (ceil_mode && (p->out[i] - 1) * p->stride[i] >= p->in[i] + p->padding[i]) --p->out[i];
  }
}

bool tt_pool_adaptive(const tt_tensor *x, int spatial, const int64_t *out, tt_pool *p) {
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

bool tt_pool_is_tiling(const tt_pool *p) {
  for (int i = 0; i < p->spatial; ++i)
    if (p->padding[i] != 0 || p->stride[i] != p->kernel[i] || p->in[i] != p->out[i] * p->kernel[i] ||
        (p->dilation[i] != 1 && p->kernel[i] != 1))
      return false;
  return true;
}

tt_value *tt_pool_tiles(tt_lowering *l, tt_value *x, const tt_pool *p, int *window_dims) {
  int64_t dims[TT_POOL_MAX_RANK + TT_POOL_MAX];
  for (int i = 0; i < p->lead; ++i) dims[i] = x->dims[i];
  for (int i = 0; i < p->spatial; ++i) {
    dims[p->lead + 2 * i] = p->out[i];
    dims[p->lead + 2 * i + 1] = p->kernel[i];
    window_dims[i] = p->lead + 2 * i + 1;
  }
  return tt_hlo_reshape(l->b, x, p->lead + 2 * p->spatial, dims);
}

tt_value *tt_pool_untile(tt_lowering *l, tt_value *x, const tt_pool *p) {
  int64_t dims[TT_POOL_MAX_RANK + TT_POOL_MAX], flat[TT_POOL_MAX_RANK];
  int map[TT_POOL_MAX_RANK];
  for (int i = 0; i < p->lead; ++i) {
    dims[i] = flat[i] = x->dims[i];
    map[i] = i;
  }
  for (int i = 0; i < p->spatial; ++i) {
    map[p->lead + i] = p->lead + 2 * i;
    dims[p->lead + 2 * i] = p->out[i];
    dims[p->lead + 2 * i + 1] = p->kernel[i];
    flat[p->lead + i] = p->out[i] * p->kernel[i];
  }
  tt_value *wide = tt_hlo_broadcast_in_dim(l->b, x, p->lead + 2 * p->spatial, dims, map);
  return tt_hlo_reshape(l->b, wide, p->lead + p->spatial, flat);
}
