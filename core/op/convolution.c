// convolution.c - torch's convolution and its backward: 1 to 3 dimensions, groups, dilation, transposed.
//
// Both are made of correlations (correlate.h). With y = convolution(x, w) and dy its gradient,
//   forward is one;
//   widen is its derivative by the picture. A transposed convolution is this same thing, so its own input gradient is `forward`;
//   the filter gradient is its derivative by the filter; for a transposed convolution x and dy change places.
#include "op/correlate.h"

#include <string.h>

#include "base/string.h"

typedef struct conv {
  const tt_tensor *x, *w;
  int spatial;
  int64_t groups;
  bool transposed;
  int64_t stride[TT_SPATIAL_MAX], padding[TT_SPATIAL_MAX], dilation[TT_SPATIAL_MAX], output_padding[TT_SPATIAL_MAX];
} conv;

// --- arguments and their checks ------------------------------------------------------------------------------------------

static const char *sizes_text(tt_lowering *l, const tt_tensor *t) {
  return tt_shape_text(tt_builder_arena(l->b), t->rank, t->sizes);
}

// A list of one value stands for all dimensions.
static void read_param(tt_lowering *l, int arg, const char *name, int spatial, int64_t *out) {
  int count;
  const int64_t *values = tt_ints(l, arg, &count);
  if (count != 1 && count != spatial) {
    tt_fail(
        l, TT_INVALID_ARGUMENT,
        "expected %s to be a single integer value or a list of %d values to match the convolution dimensions, but got "
        "%s=%s",
        name, spatial, name, tt_shape_text(tt_builder_arena(l->b), count, values));
    return;
  }
  for (int i = 0; i < spatial; ++i) out[i] = values[count == 1 ? 0 : i];
}

static bool any_below(const int64_t *values, int count, int64_t least) {
  for (int i = 0; i < count; ++i)
    if (values[i] < least) return true;
  return false;
}

// Reads args `first` (stride) to `first` + 5 (groups).
static bool read_conv(tt_lowering *l, int x, int w, int first, conv *c) {
  *c = (conv){.x = tt_tensor_arg(l, x), .w = tt_tensor_arg(l, w)};
  c->spatial = c->w->rank - 2;
  if (c->spatial < 1) {
    tt_fail(l, TT_INVALID_ARGUMENT, "weight should have at least three dimensions");
    return false;
  }
  if (c->spatial > TT_SPATIAL_MAX) {
    tt_fail(l, TT_NOT_IMPLEMENTED, "only 1d, 2d and 3d convolutions are supported, but got a weight of size %s",
            sizes_text(l, c->w));
    return false;
  }
  c->transposed = tt_bool(l, first + 3);
  c->groups = tt_int(l, first + 5);
  read_param(l, first, "stride", c->spatial, c->stride);
  read_param(l, first + 1, "padding", c->spatial, c->padding);
  read_param(l, first + 2, "dilation", c->spatial, c->dilation);
  read_param(l, first + 4, "output_padding", c->spatial, c->output_padding);
  if (tt_failed(l)) return false;
  const char *fault = NULL;
  if (any_below(c->padding, c->spatial, 0))
    fault = "negative padding is not supported";
  else if (any_below(c->output_padding, c->spatial, 0))
    fault = "negative output_padding is not supported";
  else if (any_below(c->stride, c->spatial, 1))
    fault = "non-positive stride is not supported";
  else if (any_below(c->dilation, c->spatial, 1))
    fault = "non-positive dilation is not supported";
  else if (c->groups <= 0)
    fault = "non-positive groups is not supported";
  if (fault) tt_fail(l, TT_INVALID_ARGUMENT, "%s", fault);
  return !fault;
}

// Sizes of the result's spatial dimensions.
static void output_sizes(const conv *c, int64_t *out) {
  for (int i = 0; i < c->spatial; ++i) {
    int64_t in = c->x->sizes[2 + i], reach = c->dilation[i] * (c->w->sizes[2 + i] - 1);
    out[i] = c->transposed ? (in - 1) * c->stride[i] - 2 * c->padding[i] + reach + c->output_padding[i] + 1
                           : (in + 2 * c->padding[i] - reach - 1) / c->stride[i] + 1;
  }
}

// "5 x 5"
static const char *product_text(tt_lowering *l, int count, const int64_t *sizes) {
  const char *text = "";
  for (int i = 0; i < count; ++i)
    text = tt_arena_format(tt_builder_arena(l->b), "%s%s%lld", text, i ? " x " : "", (long long)sizes[i]);
  return text;
}

// "stride_height: 1 stride_width: 1"
static const char *named_text(tt_lowering *l, const char *name, int count, const int64_t *sizes) {
  static const char *const dims[] = {"depth", "height", "width"};
  const char *text = "";
  for (int i = 0; i < count; ++i)
    text = tt_arena_format(tt_builder_arena(l->b), "%s %s_%s: %lld", text, name, dims[TT_SPATIAL_MAX - count + i],
                           (long long)sizes[i]);
  return text;
}

static void check_picture(tt_lowering *l, const conv *c) {
  const tt_tensor *x = c->x, *w = c->w;
  int64_t room[TT_SPATIAL_MAX], reach[TT_SPATIAL_MAX];
  bool fits = true;
  if (x->sizes[1] != w->sizes[1] * c->groups)
    tt_fail(
        l, TT_INVALID_ARGUMENT,
        "Given groups=%lld, weight of size %s, expected input%s to have %lld channels, but got %lld channels instead",
        (long long)c->groups, sizes_text(l, w), sizes_text(l, x), (long long)(w->sizes[1] * c->groups),
        (long long)x->sizes[1]);
  for (int i = 0; i < c->spatial; ++i) {
    room[i] = x->sizes[2 + i] + 2 * c->padding[i];
    reach[i] = c->dilation[i] * (w->sizes[2 + i] - 1) + 1;
    fits = fits && room[i] >= reach[i];
  }
  if (!fits)
    tt_fail(
        l, TT_INVALID_ARGUMENT,
        "Calculated padded input size per channel: (%s). Kernel size: (%s). Kernel size can't be greater than actual "
        "input size",
        product_text(l, c->spatial, room), product_text(l, c->spatial, reach));
}

static void check_transposed(tt_lowering *l, const conv *c) {
  const tt_tensor *x = c->x, *w = c->w;
  if (x->sizes[1] != w->sizes[0])
    tt_fail(
        l, TT_INVALID_ARGUMENT,
        "Given transposed=1, weight of size %s, expected input%s to have %lld channels, but got %lld channels instead",
        sizes_text(l, w), sizes_text(l, x), (long long)w->sizes[0], (long long)x->sizes[1]);
  int64_t out[TT_SPATIAL_MAX];
  output_sizes(c, out);
  for (int i = 0; i < c->spatial && !tt_failed(l); ++i) {
    if (c->output_padding[i] >= c->stride[i] && c->output_padding[i] >= c->dilation[i])
      tt_fail(l, TT_INVALID_ARGUMENT, "output padding must be smaller than either stride or dilation, but got%s%s%s",
              named_text(l, "output_padding", c->spatial, c->output_padding),
              named_text(l, "stride", c->spatial, c->stride), named_text(l, "dilation", c->spatial, c->dilation));
    else if (out[i] < 1 && x->sizes[2 + i] > 0)
      tt_fail(l, TT_INVALID_ARGUMENT,
              "Given input size per channel: (%s). Calculated output size per channel: (%s). Output size is too small",
              product_text(l, c->spatial, x->sizes + 2), product_text(l, c->spatial, out));
  }
}

static void check_bias(tt_lowering *l, const conv *c, const tt_tensor *bias) {
  int64_t channels = c->transposed ? c->w->sizes[1] * c->groups : c->w->sizes[0];
  const char *w = sizes_text(l, c->w);
  if (bias->rank != 1 || bias->sizes[0] != channels)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Given %s%s, expected bias to be 1-dimensional with %lld elements, but got bias of size %s instead",
            c->transposed ? "transposed=1, weight of size " : "weight of size ", w, (long long)channels,
            sizes_text(l, bias));
  else if (bias->dtype != c->x->dtype)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Input type (torch.tpu.%sTensor) and bias type (torch.tpu.%sTensor) should be the same",
            tt_dtype_text(c->x->dtype), tt_dtype_text(bias->dtype));
}

static bool check_conv(tt_lowering *l, const conv *c, const tt_tensor *bias) {
  const tt_tensor *x = c->x, *w = c->w;
  long long groups = c->groups;
  if (x->rank != w->rank)
    tt_fail(
        l, TT_INVALID_ARGUMENT,
        "Expected %d-dimensional input for %d-dimensional weight %s, but got %d-dimensional input of size %s instead",
        w->rank, w->rank, sizes_text(l, w), x->rank, sizes_text(l, x));
  else if (w->sizes[0] < groups)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Given groups=%lld, expected weight to be at least %lld at dimension 0, but got weight of size %s instead",
            groups, groups, sizes_text(l, w));
  else if (w->sizes[0] % groups != 0) // the double brackets are torch's
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Given groups=%lld, expected weight to be divisible by %lld at dimension 0, but got weight of size [%s] "
            "instead",
            groups, groups, sizes_text(l, w));
  else if (x->dtype != w->dtype)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Input type (torch.tpu.%sTensor) and weight type (torch.tpu.%sTensor) should be the same",
            tt_dtype_text(x->dtype), tt_dtype_text(w->dtype));
  if (tt_failed(l)) return false;
  if (c->transposed)
    check_transposed(l, c);
  else
    check_picture(l, c);
  if (bias) check_bias(l, c, bias);
  bool empty = false;
  for (int i = 0; i < c->spatial; ++i) empty = empty || x->sizes[2 + i] == 0;
  if (empty && x->sizes[0] != 0 && x->sizes[1] != 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "Only zero batch or zero channel inputs are supported, but got input shape: %s",
            sizes_text(l, x));
  return !tt_failed(l);
}

// torch's result is channels_last when the picture or the filter is.
static bool is_channels_last(const tt_lowering *l, int x, int w) {
  return tt_is_channels_last(l, x) || tt_is_channels_last(l, w);
}

// --- the two directions ----------------------------------------------------------------------------------------------------

static tt_correlation plain_correlation(const conv *c) {
  tt_correlation r = {.spatial = c->spatial, .groups = c->groups};
  for (int i = 0; i < c->spatial; ++i) {
    r.stride[i] = c->stride[i];
    r.dilation[i] = c->dilation[i];
    r.spread[i] = 1;
    r.pad_low[i] = r.pad_high[i] = c->padding[i];
  }
  return r;
}

// To exactly `out` places: fewer than fit where a transposed convolution's output padding reaches its stride.
static tt_value *forward(tt_lowering *l, const conv *c, tt_value *x, tt_value *w, const int64_t *out, tt_dtype result) {
  tt_correlation r = plain_correlation(c);
  for (int i = 0; i < c->spatial; ++i) {
    int64_t needed = (out[i] - 1) * c->stride[i] + c->dilation[i] * (w->dims[2 + i] - 1) + 1;
    int64_t high = needed - x->dims[2 + i] - c->padding[i];
    if (high + c->stride[i] <= r.pad_high[i]) r.pad_high[i] = high;
  }
  return tt_correlate(l, x, w, &r, result);
}

// From a gradient [n, o, out...] to the [n, c, size...] that a plain convolution by `w` would have made it from.
static tt_value *widen(tt_lowering *l, const conv *c, tt_value *gradient, tt_value *w, const int64_t *size,
                       tt_dtype result) {
  const tt_correlation r = plain_correlation(c);
  return tt_correlate_picture(l, gradient, w, size, &r, result);
}

// --- ops -------------------------------------------------------------------------------------------------------------------

// Of no channels torch makes no channels, whatever the weight and bias say.
static void lower_without_channels(tt_lowering *l, const conv *c, const int64_t *out) {
  int64_t dims[TT_SPATIAL_MAX + 2] = {c->x->sizes[0], 0};
  memcpy(dims + 2, out, (size_t)c->spatial * sizeof *out);
  tt_set_result(l, 0, tt_hlo_splat(l->b, c->x->dtype, c->spatial + 2, dims, 0));
}

// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
void tt_lower_convolution(tt_lowering *l) {
  conv c;
  if (!read_conv(l, 0, 1, 3, &c) || !check_conv(l, &c, tt_tensor_arg(l, 2))) return;
  int64_t out[TT_SPATIAL_MAX];
  output_sizes(&c, out);
  tt_set_channels_last(l, 0, is_channels_last(l, 0, 1));
  if (c.x->sizes[1] == 0) {
    lower_without_channels(l, &c, out);
    return;
  }
  tt_dtype compute = tt_compute_dtype(c.x->dtype);
  tt_value *x = tt_operand(l, 0), *w = tt_operand(l, 1);
  tt_value *y = c.transposed ? widen(l, &c, x, w, out, compute) : forward(l, &c, x, w, out, compute);
  if (tt_has(l, 2)) {
    tt_value *bias = tt_operand_as(l, 2, compute);
    y = tt_hlo_add(l->b, y, tt_hlo_broadcast_in_dim(l->b, bias, y->rank, y->dims, (int[]){1}));
  }
  tt_set_result(l, 0, tt_hlo_convert(l->b, y, c.x->dtype));
}

static void lower_empty_backward(tt_lowering *l, const conv *c, const int64_t *mask) {
  int64_t channels = c->transposed ? c->w->sizes[1] * c->groups : c->w->sizes[0];
  if (mask[0]) tt_set_result(l, 0, tt_hlo_splat(l->b, c->x->dtype, c->x->rank, c->x->sizes, 0));
  if (mask[1]) tt_set_result(l, 1, tt_hlo_splat(l->b, c->x->dtype, c->w->rank, c->w->sizes, 0));
  if (mask[2]) tt_set_result(l, 2, tt_hlo_splat(l->b, c->x->dtype, 1, &channels, 0));
}

// (grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask);
// the overrideable one has no bias_sizes.
void tt_lower_convolution_backward(tt_lowering *l) {
  int first = strcmp(l->op->name, "convolution_backward") == 0 ? 4 : 3, mask_count;
  conv c;
  if (!read_conv(l, 1, 2, first, &c) || !check_conv(l, &c, NULL)) return;
  const int64_t *mask = tt_ints(l, first + 6, &mask_count);
  const int64_t *kernel = c.w->sizes + 2;
  tt_dtype dtype = c.x->dtype, compute = tt_compute_dtype(dtype);
  tt_value *gradient = tt_operand(l, 0);
  if (tt_failed(l)) return;
  if (tt_value_count(gradient) == 0) {
    lower_empty_backward(l, &c, mask);
    return;
  }
  for (int i = 0; i < 2; ++i) tt_set_channels_last(l, i, mask[i] && is_channels_last(l, 1, 2));
  if (mask[0]) {
    tt_value *w = tt_operand(l, 2);
    tt_set_result(l, 0,
                  c.transposed ? forward(l, &c, gradient, w, c.x->sizes + 2, dtype)
                               : widen(l, &c, gradient, w, c.x->sizes + 2, dtype));
  }
  if (mask[1]) {
    const tt_correlation r = plain_correlation(&c);
    tt_value *x = tt_operand(l, 1);
    tt_set_result(l, 1,
                  c.transposed ? tt_correlate_filter(l, gradient, x, kernel, &r, dtype)
                               : tt_correlate_filter(l, x, gradient, kernel, &r, dtype));
  }
  if (mask[2]) {
    tt_value *sum = tt_hlo_reduce(l->b, tt_hlo_convert(l->b, gradient, compute), TT_REDUCE_ADD, gradient->rank - 1,
                                  (int[]){0, 2, 3, 4});
    tt_set_result(l, 2, tt_hlo_convert(l->b, sum, dtype));
  }
}
