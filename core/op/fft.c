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

// By what the plain sum over `count` elements is multiplied: torch's fft_norm_mode (none, by_root_n, by_n).
static double norm_factor(tt_lowering *l, int arg, double count) {
  int64_t mode = tt_int(l, arg);
  return mode == 0 ? 1 : mode == 1 ? 1 / sqrt(count) : 1 / count;
}

// The dims argument in the order given; *out_elements is the product of their sizes.
static const int *transform_dims(tt_lowering *l, const tt_value *x, int *out_count, double *out_elements) {
  static const int none;
  const int64_t *given = tt_ints(l, 1, out_count);
  int *dims = *out_count > 0 ? tt_arena_allocate(tt_builder_arena(l->b), (size_t)*out_count, sizeof *dims) : NULL;
  if (*out_count > x->rank || (*out_count > 0 && !dims)) {
    tt_fail(l, TT_INVALID_ARGUMENT, "got %d dims to transform for a tensor of %d", *out_count, x->rank);
    *out_count = 0;
  }
  *out_elements = 1;
  for (int i = 0; i < *out_count; ++i) {
    dims[i] = tt_wrap_dim(l, given[i], x->rank);
    if (tt_failed(l)) break;
    *out_elements *= (double)x->dims[dims[i]];
  }
  if (tt_failed(l)) *out_count = 0;
  return dims ? dims : &none;
}

// _fft_c2c(self, dim, normalization, forward)
void tt_lower_fft_c2c(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0);
  int count;
  double elements;
  const int *dims = transform_dims(l, x, &count, &elements);
  bool forward = tt_bool(l, 3);
  double factor = norm_factor(l, 2, elements);
  if (tt_value_count(x) > 0) {
    x = transform(b, x, forward ? "FFT" : "IFFT", dims, count);
    x = scale(b, x, forward ? factor : factor * elements); // IFFT divides by the number of elements
  }
  tt_set_result(l, 0, x);
}

// _fft_r2c(self, dim, normalization, onesided)
void tt_lower_fft_r2c(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0);
  int count;
  double elements;
  const int *dims = transform_dims(l, x, &count, &elements);
  bool onesided = tt_bool(l, 3);
  if (count == 0) {
    tt_fail(l, TT_INVALID_ARGUMENT, "_fft_r2c: no dim to transform");
    return;
  }
  int64_t length = x->dims[dims[count - 1]];
  tt_value *result;
  if (tt_value_count(x) == 0) {
    int64_t sizes[TT_AXES_MAX];
    for (int i = 0; i < x->rank; ++i) sizes[i] = x->dims[i];
    if (onesided) sizes[dims[count - 1]] = length / 2 + 1;
    result = tt_hlo_splat(b, tt_dtype_complex(x->dtype), x->rank, sizes, 0);
  } else if (onesided) {
    int begin = count > AT_ONCE ? count - AT_ONCE : 0;
    result = transform_few(b, x, "RFFT", dims + begin, count - begin, length);
    result = transform(b, result, "FFT", dims, begin);
  } else {
    result = transform(b, tt_hlo_convert(b, x, tt_dtype_complex(x->dtype)), "FFT", dims, count);
  }
  tt_set_result(l, 0, scale(b, result, norm_factor(l, 2, elements)));
}

// _fft_c2r(self, dim, normalization, last_dim_size)
void tt_lower_fft_c2r(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0);
  int count;
  double elements;
  const int *dims = transform_dims(l, x, &count, &elements);
  int64_t length = tt_int(l, 3);
  if (count == 0 || length < 1 || x->dims[dims[count - 1]] < length / 2 + 1) {
    if (!tt_failed(l))
      tt_fail(l, TT_INVALID_ARGUMENT, "_fft_c2r: cannot make %lld elements of dim %d", (long long)length,
              count > 0 ? dims[count - 1] : -1);
    return;
  }
  int last = dims[count - 1];
  elements = elements / (double)x->dims[last] * (double)length;
  x = tt_hlo_slice_dim(b, x, last, 0, length / 2 + 1, 1);
  tt_value *result;
  if (tt_value_count(x) == 0) {
    int64_t sizes[TT_AXES_MAX];
    for (int i = 0; i < x->rank; ++i) sizes[i] = i == last ? length : x->dims[i];
    result = tt_hlo_splat(b, tt_dtype_real(x->dtype), x->rank, sizes, 0);
  } else {
    int begin = count > AT_ONCE ? count - AT_ONCE : 0;
    result = transform(b, x, "IFFT", dims, begin);
    result = transform_few(b, result, "IRFFT", dims + begin, count - begin, length);
  }
  tt_set_result(l, 0, scale(b, result, norm_factor(l, 2, elements) * elements));
}
