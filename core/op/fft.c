// fft.c - discrete Fourier transforms: the three ops that all of torch.fft is made of.
//
// torch checks dims and dtypes, pads and crops before it calls them.
#include <math.h>

#include "op/axes.h"
#include "op/fourier.h"
#include "op/pointwise.h"

enum { AT_ONCE = 3 }; // dimensions that one stablehlo.fft takes, always the last ones

// The permutation that brings dims[0..count) to the end, in this order.
static void dims_last(const tt_value *x, const int *dims, int count, int *order) {
  bool moved[TT_AXES_MAX] = {false};
  for (int i = 0; i < count; ++i) {
    order[x->rank - count + i] = dims[i];
    moved[dims[i]] = true;
  }
  for (int i = 0, next = 0; i < x->rank; ++i)
    if (!moved[i]) order[next++] = i;
}

// One stablehlo.fft over up to AT_ONCE dims; `last` is the length of the last one in the real domain.
static tt_value *transform_few(tt_builder *b, tt_value *x, const char *type, const int *dims, int count, int64_t last) {
  int order[TT_AXES_MAX], back[TT_AXES_MAX];
  int64_t lengths[AT_ONCE];
  dims_last(x, dims, count, order);
  for (int i = 0; i < x->rank; ++i) back[order[i]] = i;
  for (int i = 0; i < count; ++i) lengths[i] = i == count - 1 ? last : x->dims[dims[i]];
  x = tt_hlo_transpose(b, x, order);
  const bool known = !tt_builder_target(b)->is_tpu || tt_dtype_real(x->dtype) != TT_F64;
  x = known ? tt_hlo_fft(b, x, type, count, lengths) : tt_fourier_products(b, x, type, count, last);
  return tt_hlo_transpose(b, x, back);
}

// Complex to complex over any number of dims.
static tt_value *transform(tt_builder *b, tt_value *x, const char *type, const int *dims, int count) {
  for (int end = count; end > 0; end -= AT_ONCE) {
    int begin = end > AT_ONCE ? end - AT_ONCE : 0;
    x = transform_few(b, x, type, dims + begin, end - begin, x->dims[dims[end - 1]]);
  }
  return x;
}

static tt_value *scale(tt_builder *b, tt_value *x, double factor) {
  if (factor == 1) return x;
  if (!tt_dtype_is_complex(x->dtype)) return tt_multiply_constant(b, x, factor);
  // By parts: a product of complex numbers would make NaN of infinite ones.
  return tt_hlo_complex(b, tt_multiply_constant(b, tt_hlo_real(b, x), factor),
                        tt_multiply_constant(b, tt_hlo_imag(b, x), factor));
}

// What the three ops are given.
typedef struct transform_args {
  tt_value *x;
  const int *dims; // in the order given
  int count;
  int last;        // the last of them, which is halved where one side is real; -1 for none
  double elements; // the product of their sizes
  int64_t norm;    // torch's fft_norm_mode: none, by_root_n, by_n
} transform_args;

// False, and the call has failed, when the dims do not fit the operand.
static bool read_args(tt_lowering *l, transform_args *a) {
  *a = (transform_args){.x = tt_operand(l, 0), .last = -1, .elements = 1, .norm = tt_int(l, 2)};
  const int64_t *given = tt_ints(l, 1, &a->count);
  int *dims = tt_arena_allocate(tt_builder_arena(l->b), (size_t)a->count + 1, sizeof *dims);
  if (!dims) {
    tt_fail(l, TT_OUT_OF_MEMORY, "out of host memory while lowering %s", l->op->name);
    return false;
  }
  if (a->count > a->x->rank)
    tt_fail(l, TT_INVALID_ARGUMENT, "got %d dims to transform for a tensor of %d", a->count, a->x->rank);
  for (int i = 0; i < a->count && !tt_failed(l); ++i) {
    a->last = dims[i] = tt_wrap_dim(l, given[i], a->x->rank);
    if (!tt_failed(l)) a->elements *= (double)a->x->dims[a->last];
  }
  a->dims = dims;
  return !tt_failed(l);
}

// By what the plain sum over `count` elements is multiplied.
static double norm_factor(const transform_args *a, double count) {
  return a->norm == 0 ? 1 : a->norm == 1 ? 1 / sqrt(count) : 1 / count;
}

// How many of the dims remain when the last ones, of which one is halved, are transformed in one op.
static int remaining(const transform_args *a) { return a->count > AT_ONCE ? a->count - AT_ONCE : 0; }

// Zeros of the operand's sizes but for `size` along the last of the dims.
static tt_value *zeros(tt_lowering *l, const transform_args *a, tt_dtype dtype, int64_t size) {
  int64_t sizes[TT_AXES_MAX];
  for (int i = 0; i < a->x->rank; ++i) sizes[i] = i == a->last ? size : a->x->dims[i];
  return tt_hlo_splat(l->b, dtype, a->x->rank, sizes, 0);
}

// _fft_c2c(self, dim, normalization, forward)
void tt_lower_fft_c2c(tt_lowering *l) {
  transform_args a;
  if (!read_args(l, &a)) return;
  bool forward = tt_bool(l, 3);
  double factor = norm_factor(&a, a.elements);
  tt_value *x = a.x;
  if (tt_value_count(x) > 0) {
    x = transform(l->b, x, forward ? "FFT" : "IFFT", a.dims, a.count);
    x = scale(l->b, x, forward ? factor : factor * a.elements); // IFFT divides by the number of elements
  }
  tt_set_result(l, 0, x);
}

// _fft_r2c(self, dim, normalization, onesided)
void tt_lower_fft_r2c(tt_lowering *l) {
  tt_builder *b = l->b;
  transform_args a;
  if (!read_args(l, &a)) return;
  if (a.count == 0) {
    tt_fail(l, TT_INVALID_ARGUMENT, "_fft_r2c: no dim to transform");
    return;
  }
  bool onesided = tt_bool(l, 3);
  tt_dtype dtype = tt_dtype_complex(a.x->dtype);
  int64_t length = a.x->dims[a.last];
  tt_value *result;
  if (tt_value_count(a.x) == 0) {
    result = zeros(l, &a, dtype, onesided ? length / 2 + 1 : length);
  } else if (onesided) {
    int rest = remaining(&a);
    result = transform_few(b, a.x, "RFFT", a.dims + rest, a.count - rest, length);
    result = transform(b, result, "FFT", a.dims, rest);
  } else {
    result = transform(b, tt_hlo_convert(b, a.x, dtype), "FFT", a.dims, a.count);
  }
  tt_set_result(l, 0, scale(b, result, norm_factor(&a, a.elements)));
}

// _fft_c2r(self, dim, normalization, last_dim_size)
void tt_lower_fft_c2r(tt_lowering *l) {
  tt_builder *b = l->b;
  transform_args a;
  if (!read_args(l, &a)) return;
  int64_t length = tt_int(l, 3);
  if (a.count == 0 || length < 1 || a.x->dims[a.last] < length / 2 + 1) {
    tt_fail(l, TT_INVALID_ARGUMENT, "_fft_c2r: cannot make %lld elements of dim %d", (long long)length, a.last);
    return;
  }
  double elements = a.elements / (double)a.x->dims[a.last] * (double)length;
  tt_value *x = tt_hlo_slice_dim(b, a.x, a.last, 0, length / 2 + 1, 1), *result;
  if (tt_value_count(x) == 0) {
    result = zeros(l, &a, tt_dtype_real(x->dtype), length);
  } else {
    int rest = remaining(&a);
    result = transform(b, x, "IFFT", a.dims, rest);
    result = transform_few(b, result, "IRFFT", a.dims + rest, a.count - rest, length);
  }
  tt_set_result(l, 0, scale(b, result, norm_factor(&a, elements) * elements));
}
