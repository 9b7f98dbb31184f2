// fractional_pool.c - fractional_max_pool2d, fractional_max_pool3d and their gradients: windows of one size at places that a
// random sample moves about.
#include <string.h>

#include "op/index.h"
#include "op/max_pool.h"

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
static tt_maxima scan_fractional(tt_lowering *l, tt_value *x, const tt_pool *p, tt_value *samples) {
  tt_builder *b = l->b;
  int64_t n = samples->dims[0], c = samples->dims[1], dims[TT_POOL_MAX_RANK] = {n, c};
  memcpy(dims + 2, p->out, (size_t)p->spatial * sizeof *dims);
  tt_value *starts[TT_POOL_MAX];
  for (int i = 0; i < p->spatial; ++i)
    starts[i] =
        tt_hlo_broadcast_in_dim(b, fractional_starts(l, p, samples, i), 2 + p->spatial, dims, (int[]){0, 1, 2 + i});
  int64_t places = tt_pool_product(p->spatial, p->out);
  tt_value *plane = tt_hlo_reshape(b, x, 2, (int64_t[]){n * c, tt_pool_product(p->spatial, p->in)});
  tt_maxima best = {NULL, NULL};
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
    tt_maxima next = {tt_index_read(b, plane, &map), at};
    best = t == 0 ? next : tt_greater(l, best, next, false);
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
    tt_set_empty_maxima(l, x, &p);
    return;
  }
  tt_maxima m = scan_fractional(l, x, &p, samples);
  int64_t dims[TT_POOL_MAX_RANK];
  for (int i = 0; i < t->rank; ++i) dims[i] = i < p.lead ? t->sizes[i] : p.out[i - p.lead];
  tt_set_maxima(
      l, (tt_maxima){tt_hlo_reshape(l->b, m.value, t->rank, dims), tt_hlo_reshape(l->b, m.position, t->rank, dims)});
}

// (grad_output, self, kernel_size, output_size, indices)
void tt_lower_fractional_max_pool_backward(tt_lowering *l) {
  tt_pool p;
  read_fractional(l, tt_tensor_arg(l, 1), 2, &p);
  tt_lower_pool_backward(l, &p, 4, false);
}
