// correlate.c - see correlate.h.
//
// A TPU wants the plain convolution. XLA CPU has a fast path for plain forward convolutions of many channels over large
// pictures; for the rest there are two other forms (facts/pjrt.md section 4 has the times that they save):
//   patches: the pieces of the picture under each filter element side by side, and one matmul
//   shifts:  one multiply-add per filter element, where each channel has its own filter
// Where the filter's places do not overlap (a vision transformer's first layer) patches are only a reshape.
#include "op/correlate.h"

#include <string.h>

enum { MAX_RANK = TT_SPATIAL_MAX + 2, MAX_TAPS = 32, FEW_TAPS = 9, FEW_POSITIONS = 9 };

static int64_t product(int count, const int64_t *sizes) {
  int64_t result = 1;
  for (int i = 0; i < count; ++i) result *= sizes[i];
  return result;
}

// Sizes of the result's spatial dimensions; all zero where the filter finds no place.
static void output_sizes(const tt_correlation *c, const int64_t *in, const int64_t *kernel, int64_t *out) {
  for (int i = 0; i < c->spatial; ++i) {
    int64_t size = in[i] > 0 ? (in[i] - 1) * c->spread[i] + 1 : 0;
    int64_t room = size + c->pad_low[i] + c->pad_high[i] - c->dilation[i] * (kernel[i] - 1) - 1;
    out[i] = room < 0 ? 0 : room / c->stride[i] + 1;
  }
}

// Spreading and padding as an op of its own.
static tt_value *pad_picture(tt_lowering *l, tt_value *x, const tt_correlation *c) {
  int64_t low[MAX_RANK] = {0}, high[MAX_RANK] = {0}, interior[MAX_RANK] = {0};
  bool any = false;
  for (int i = 0; i < c->spatial; ++i) {
    low[2 + i] = c->pad_low[i];
    high[2 + i] = c->pad_high[i];
    interior[2 + i] = c->spread[i] - 1;
    any = any || low[2 + i] || high[2 + i] || interior[2 + i];
  }
  return any ? tt_hlo_pad(l->b, x, tt_hlo_constant(l->b, x->dtype, 0), low, high, interior) : x;
}

static tt_correlation padded(const tt_correlation *c) {
  tt_correlation plain = *c;
  for (int i = 0; i < c->spatial; ++i) {
    plain.pad_low[i] = plain.pad_high[i] = 0;
    plain.spread[i] = 1;
  }
  return plain;
}

// --- taps --------------------------------------------------------------------------------------------------------------

// The piece of the padded picture [n, c, ...] that meets filter element `tap` (row-major): [n, c, out...].
static tt_value *slice_tap(tt_lowering *l, tt_value *x, const tt_correlation *c, const int64_t *kernel,
                           const int64_t *out, int64_t tap) {
  int64_t start[MAX_RANK] = {0}, limit[MAX_RANK], stride[MAX_RANK];
  for (int i = 0; i < x->rank; ++i) {
    limit[i] = x->dims[i];
    stride[i] = 1;
  }
  for (int i = c->spatial - 1; i >= 0; --i) {
    start[2 + i] = tap % kernel[i] * c->dilation[i];
    stride[2 + i] = c->stride[i];
    limit[2 + i] = start[2 + i] + (out[i] - 1) * c->stride[i] + 1;
    tap /= kernel[i];
  }
  return tt_hlo_slice(l->b, x, start, limit, stride);
}

// Do the filter's places cover each element at most once, side by side?
static bool is_tiling(const tt_correlation *c, const int64_t *kernel) {
  for (int i = 0; i < c->spatial; ++i)
    if ((kernel[i] > 1 && c->dilation[i] != 1) || c->stride[i] < kernel[i]) return false;
  return true;
}

// The dims of [n, c, out, stride, out, stride, ...] in which a tiling's picture can be seen.
enum { TILED_RANK = 2 + 2 * TT_SPATIAL_MAX };

// [n, c, in...] -> [n, c, kernel..., out...] for a tiling.
static tt_value *tiles(tt_lowering *l, tt_value *x, const tt_correlation *c, const int64_t *kernel,
                       const int64_t *out) {
  tt_correlation whole = *c; // pads or crops the picture to out * stride
  int64_t dims[TILED_RANK] = {x->dims[0], x->dims[1]}, limit[TILED_RANK] = {x->dims[0], x->dims[1]};
  int64_t zero[TILED_RANK] = {0}, one[TILED_RANK];
  int order[TILED_RANK] = {0, 1};
  for (int i = 0; i < c->spatial; ++i) {
    int64_t size = (x->dims[2 + i] - 1) * c->spread[i] + 1;
    whole.pad_high[i] = out[i] * c->stride[i] - size - c->pad_low[i];
    dims[2 + 2 * i] = limit[2 + 2 * i] = out[i];
    dims[3 + 2 * i] = c->stride[i];
    limit[3 + 2 * i] = kernel[i];
    order[2 + i] = 3 + 2 * i;
    order[2 + c->spatial + i] = 2 + 2 * i;
  }
  for (int i = 0; i < TILED_RANK; ++i) one[i] = 1;
  x = tt_hlo_reshape(l->b, pad_picture(l, x, &whole), 2 + 2 * c->spatial, dims);
  return tt_hlo_transpose(l->b, tt_hlo_slice(l->b, x, zero, limit, one), order);
}

// [n, groups, c / groups * taps, positions]
static tt_value *patches(tt_lowering *l, tt_value *x, const tt_correlation *c, const int64_t *kernel,
                         const int64_t *out) {
  int64_t taps = product(c->spatial, kernel), positions = product(c->spatial, out);
  int64_t dims[] = {x->dims[0], x->dims[1], 1, positions};
  int64_t result[] = {dims[0], c->groups, dims[1] / c->groups * taps, positions};
  if (is_tiling(c, kernel)) return tt_hlo_reshape(l->b, tiles(l, x, c, kernel, out), 4, result);
  x = pad_picture(l, x, c);
  tt_value *pieces[MAX_TAPS];
  for (int64_t tap = 0; tap < taps; ++tap)
    pieces[tap] = tt_hlo_reshape(l->b, slice_tap(l, x, c, kernel, out, tap), 4, dims);
  return tt_hlo_reshape(l->b, tt_hlo_concatenate(l->b, (int)taps, pieces, 2), 4, result);
}

// Images stay in front where what a product has per image, `rows` times its inner size, is no more than the pieces themselves:
// for one product over all images XLA CPU copies the pieces (a 1x1 convolution takes 4 times as long).
static bool goes_by_image(const tt_value *pieces, int64_t rows) { return rows <= pieces->dims[3]; }

// matrix [groups, rows, inner] times pieces [n, groups, inner, positions] -> [n, groups, rows, positions]
static tt_value *multiply_pieces(tt_lowering *l, tt_value *matrix, tt_value *pieces, tt_dtype result) {
  tt_dot numbers = {.batch_count = 1,
                    .lhs_batch = (int[]){0},
                    .rhs_batch = (int[]){1},
                    .contract_count = 1,
                    .lhs_contract = (int[]){2},
                    .rhs_contract = (int[]){2}};
  if (!goes_by_image(pieces, matrix->dims[1])) {
    tt_value *y = tt_dot_product(l, matrix, pieces, &numbers, result); // [groups, rows, n, positions]
    return tt_hlo_transpose(l->b, y, (int[]){2, 0, 1, 3});
  }
  int64_t dims[] = {pieces->dims[0], matrix->dims[0], matrix->dims[1], matrix->dims[2]};
  matrix = tt_hlo_broadcast_in_dim(l->b, matrix, 4, dims, (int[]){1, 2, 3});
  numbers.batch_count = 2;
  numbers.lhs_batch = numbers.rhs_batch = (int[]){0, 1};
  numbers.lhs_contract = (int[]){3};
  return tt_dot_product(l, matrix, pieces, &numbers, result);
}

// The sum over images and positions of rows [n, groups, o, positions] times pieces [n, groups, inner, positions]:
// [groups, o, inner]
static tt_value *contract_pieces(tt_lowering *l, tt_value *rows, tt_value *pieces, tt_dtype result) {
  tt_dot numbers = {.batch_count = 1,
                    .lhs_batch = (int[]){1},
                    .rhs_batch = (int[]){1},
                    .contract_count = 2,
                    .lhs_contract = (int[]){0, 3},
                    .rhs_contract = (int[]){0, 3}};
  if (!goes_by_image(pieces, rows->dims[2])) return tt_dot_product(l, rows, pieces, &numbers, result);
  numbers.batch_count = 2;
  numbers.lhs_batch = numbers.rhs_batch = (int[]){0, 1};
  numbers.contract_count = 1;
  numbers.lhs_contract = numbers.rhs_contract = (int[]){3};
  tt_value *each = tt_dot_product(l, rows, pieces, &numbers, tt_compute_dtype(result));
  return tt_hlo_convert(l->b, tt_hlo_reduce(l->b, each, TT_REDUCE_ADD, 1, (int[]){0}), result);
}

// --- forward -------------------------------------------------------------------------------------------------------------

static tt_value *by_patches(tt_lowering *l, tt_value *x, tt_value *filter, const tt_correlation *c, const int64_t *out,
                            tt_dtype result) {
  int64_t inner = product(filter->rank - 1, filter->dims + 1), o = filter->dims[0] / c->groups;
  tt_value *matrix = tt_hlo_reshape(l->b, filter, 3, (int64_t[]){c->groups, o, inner});
  tt_value *y = multiply_pieces(l, matrix, patches(l, x, c, filter->dims + 2, out), result);
  int64_t dims[MAX_RANK] = {x->dims[0], filter->dims[0]};
  memcpy(dims + 2, out, (size_t)c->spatial * sizeof *out);
  return tt_hlo_reshape(l->b, y, x->rank, dims);
}

// Each channel by its own filters: [n, c, 1, out...] * [c, filters per channel, 1...], added up over the filter's elements.
static tt_value *by_shifts(tt_lowering *l, tt_value *x, tt_value *filter, const tt_correlation *c, const int64_t *out,
                           tt_dtype result) {
  tt_dtype compute = tt_compute_dtype(x->dtype);
  const int64_t *kernel = filter->dims + 2;
  int64_t taps = product(c->spatial, kernel), each = filter->dims[0] / c->groups;
  int64_t dims[MAX_RANK + 1] = {x->dims[0], c->groups, each};
  memcpy(dims + 3, out, (size_t)c->spatial * sizeof *out);
  tt_value *columns = tt_hlo_reshape(l->b, tt_round_operand(l, tt_hlo_convert(l->b, filter, compute)), 3,
                                     (int64_t[]){c->groups, each, taps});
  x = pad_picture(l, tt_round_operand(l, tt_hlo_convert(l->b, x, compute)), c);
  tt_value *sum = NULL;
  for (int64_t tap = 0; tap < taps; ++tap) {
    tt_value *piece = slice_tap(l, x, c, kernel, out, tap);
    piece = tt_hlo_broadcast_in_dim(l->b, piece, x->rank + 1, dims, (int[]){0, 1, 3, 4, 5});
    tt_value *factor = tt_hlo_reshape(l->b, tt_hlo_slice_dim(l->b, columns, 2, tap, tap + 1, 1), 2, dims + 1);
    factor = tt_hlo_broadcast_in_dim(l->b, factor, x->rank + 1, dims, (int[]){1, 2});
    tt_value *term = tt_hlo_multiply(l->b, piece, factor);
    sum = sum ? tt_hlo_add(l->b, sum, term) : term;
  }
  dims[2] = dims[1] * each;
  dims[1] = dims[0];
  return tt_hlo_convert(l->b, tt_hlo_reshape(l->b, sum, x->rank, dims + 1), result);
}

static tt_value *by_convolution(tt_lowering *l, tt_value *x, tt_value *filter, const tt_correlation *c,
                                tt_dtype result) {
  tt_correlation plain = *c;
  if (tt_builder_target(l->b)->conv_needs_forward) {
    bool fits = true; // into the attributes that keep XLA CPU on its fast path
    for (int i = 0; i < c->spatial; ++i) fits = fits && c->spread[i] == 1 && c->pad_low[i] >= 0 && c->pad_high[i] >= 0;
    if (!fits) {
      x = pad_picture(l, x, c);
      plain = padded(c);
    }
  }
  const tt_convolution numbers = {.spatial = c->spatial,
                                  .stride = plain.stride,
                                  .pad_low = plain.pad_low,
                                  .pad_high = plain.pad_high,
                                  .lhs_dilation = plain.spread,
                                  .rhs_dilation = plain.dilation,
                                  .feature_groups = c->groups,
                                  .batch_groups = 1};
  return tt_convolve(l, x, filter, &numbers, result);
}

// Few places for the filter: the convolution kernel's own blocking costs more than the product. Places side by side: the
// patches cost nothing.
static bool wants_patches(const tt_lowering *l, const tt_correlation *c, const int64_t *kernel, int64_t positions) {
  if (!tt_builder_target(l->b)->conv_needs_forward) return false;
  return is_tiling(c, kernel) || (positions <= FEW_POSITIONS && product(c->spatial, kernel) <= MAX_TAPS);
}

tt_value *tt_correlate(tt_lowering *l, tt_value *x, tt_value *filter, const tt_correlation *c, tt_dtype result) {
  int64_t out[TT_SPATIAL_MAX];
  output_sizes(c, x->dims + 2, filter->dims + 2, out);
  int64_t taps = product(c->spatial, filter->dims + 2), positions = product(c->spatial, out);
  if (tt_value_count(x) == 0 || tt_value_count(filter) == 0 || positions == 0) {
    int64_t dims[MAX_RANK] = {x->dims[0], filter->dims[0]};
    memcpy(dims + 2, out, (size_t)c->spatial * sizeof *out);
    return tt_hlo_splat(l->b, result, x->rank, dims, 0);
  }
  bool depthwise = c->groups > 1 && filter->dims[1] == 1;
  if (depthwise && taps <= 2 * MAX_TAPS && tt_builder_target(l->b)->conv_needs_forward)
    return by_shifts(l, x, filter, c, out, result);
  if (wants_patches(l, c, filter->dims + 2, positions)) return by_patches(l, x, filter, c, out, result);
  return by_convolution(l, x, filter, c, result);
}

// --- picture gradient ------------------------------------------------------------------------------------------------------

// [o, c / groups, kernel...] -> [c, o / groups, kernel...], reversed.
static tt_value *exchange_channels(tt_lowering *l, const tt_correlation *c, tt_value *filter) {
  int64_t o = filter->dims[0] / c->groups, each = filter->dims[1];
  int64_t dims[MAX_RANK + 1] = {c->groups, o, each};
  memcpy(dims + 3, filter->dims + 2, (size_t)c->spatial * sizeof *dims);
  filter = tt_hlo_reverse(l->b, filter, c->spatial, (int[]){2, 3, 4});
  filter = tt_hlo_transpose(l->b, tt_hlo_reshape(l->b, filter, c->spatial + 3, dims), (int[]){0, 2, 1, 3, 4, 5});
  dims[1] = c->groups * each;
  dims[2] = o;
  return tt_hlo_reshape(l->b, filter, c->spatial + 2, dims + 1);
}

// A tiling's gradient: one matmul, whose results are laid side by side.
static tt_value *picture_by_tiles(tt_lowering *l, tt_value *gradient, tt_value *filter, const int64_t *size,
                                  const tt_correlation *c, tt_dtype result) {
  const int64_t *kernel = filter->dims + 2, *out = gradient->dims + 2;
  int64_t n = gradient->dims[0], o = filter->dims[0] / c->groups, inner = product(filter->rank - 1, filter->dims + 1);
  tt_value *matrix = tt_hlo_reshape(l->b, filter, 3, (int64_t[]){c->groups, o, inner});
  tt_value *rows = tt_hlo_reshape(l->b, gradient, 4, (int64_t[]){n, c->groups, o, product(c->spatial, out)});
  matrix = tt_hlo_transpose(l->b, matrix, (int[]){0, 2, 1});
  tt_value *x = multiply_pieces(l, matrix, rows, result); // [n, groups, c / groups * taps, positions]
  int64_t dims[TILED_RANK] = {n, c->groups * filter->dims[1]}, high[TILED_RANK] = {0}, zero[TILED_RANK] = {0};
  int order[TILED_RANK] = {0, 1};
  tt_correlation whole = *c;
  for (int i = 0; i < c->spatial; ++i) {
    dims[2 + i] = kernel[i];
    dims[2 + c->spatial + i] = out[i];
    order[2 + 2 * i] = 2 + c->spatial + i;
    order[3 + 2 * i] = 2 + i;
    high[3 + 2 * i] = c->stride[i] - kernel[i];
    whole.pad_low[i] = -c->pad_low[i];
    whole.pad_high[i] = size[i] + c->pad_low[i] - out[i] * c->stride[i];
  }
  int rank = 2 + 2 * c->spatial;
  x = tt_hlo_transpose(l->b, tt_hlo_reshape(l->b, x, rank, dims), order);
  x = tt_hlo_pad(l->b, x, tt_hlo_constant(l->b, result, 0), zero, high, zero);
  for (int i = 0; i < c->spatial; ++i) dims[2 + i] = out[i] * c->stride[i];
  return pad_picture(l, tt_hlo_reshape(l->b, x, 2 + c->spatial, dims), &whole);
}

// The reversed filter, its input and output channels exchanged, over the spread gradient. Reversal and spreading are ops of
// their own, not the convolution's attributes, which cost XLA CPU its fast path (41 ms instead of 2 for one ResNet layer).
tt_value *tt_correlate_picture(tt_lowering *l, tt_value *gradient, tt_value *filter, const int64_t *size,
                               const tt_correlation *c, tt_dtype result) {
  if (tt_value_count(gradient) != 0 && wants_patches(l, c, filter->dims + 2, INT64_MAX))
    return picture_by_tiles(l, gradient, filter, size, c, result);
  tt_correlation r = {.spatial = c->spatial, .groups = c->groups};
  for (int i = 0; i < c->spatial; ++i) {
    int64_t reach = c->dilation[i] * (filter->dims[2 + i] - 1);
    r.stride[i] = 1;
    r.dilation[i] = c->dilation[i];
    r.spread[i] = c->stride[i];
    r.pad_low[i] = reach - c->pad_low[i];
    r.pad_high[i] = size[i] - 1 - (gradient->dims[2 + i] - 1) * c->stride[i] + c->pad_low[i];
  }
  return tt_correlate(l, gradient, exchange_channels(l, c, filter), &r, result);
}

// --- filter gradient -------------------------------------------------------------------------------------------------------

static tt_value *filter_by_patches(tt_lowering *l, tt_value *x, tt_value *gradient, const int64_t *kernel,
                                   const int64_t *out, const tt_correlation *c, tt_dtype result) {
  int64_t o = gradient->dims[1] / c->groups;
  tt_value *rows = tt_hlo_reshape(l->b, gradient, 4, (int64_t[]){x->dims[0], c->groups, o, product(c->spatial, out)});
  tt_value *y = contract_pieces(l, rows, patches(l, x, c, kernel, out), result); // [groups, o, c / groups * taps]
  int64_t dims[MAX_RANK] = {gradient->dims[1], x->dims[1] / c->groups};
  memcpy(dims + 2, kernel, (size_t)c->spatial * sizeof *kernel);
  return tt_hlo_reshape(l->b, y, x->rank, dims);
}

// One multiply and one sum per filter element, for filters of one channel each. Rows are added up first and their columns
// last, since XLA CPU vectorises only a sum that leaves the last dimension.
static tt_value *filter_by_shifts(tt_lowering *l, tt_value *x, tt_value *gradient, const int64_t *kernel,
                                  const tt_correlation *c, tt_dtype result) {
  tt_dtype compute = tt_compute_dtype(x->dtype);
  const int64_t *out = gradient->dims + 2;
  int64_t taps = product(c->spatial, kernel), o = gradient->dims[1], columns = out[c->spatial - 1];
  int64_t dims[MAX_RANK + 1] = {x->dims[0], c->groups, o / c->groups};
  memcpy(dims + 3, out, (size_t)c->spatial * sizeof *out);
  gradient = tt_hlo_reshape(l->b, tt_round_operand(l, tt_hlo_convert(l->b, gradient, compute)), x->rank + 1, dims);
  x = pad_picture(l, tt_round_operand(l, tt_hlo_convert(l->b, x, compute)), c);
  tt_value *sums[FEW_TAPS];
  for (int64_t tap = 0; tap < taps; ++tap) {
    tt_value *piece = slice_tap(l, x, c, kernel, out, tap);
    piece = tt_hlo_broadcast_in_dim(l->b, piece, x->rank + 1, dims, (int[]){0, 1, 3, 4, 5});
    tt_value *rows =
        tt_hlo_reduce(l->b, tt_hlo_multiply(l->b, piece, gradient), TT_REDUCE_ADD, c->spatial, (int[]){0, 3, 4});
    sums[tap] = tt_hlo_reshape(l->b, rows, 3, (int64_t[]){o, 1, columns});
  }
  tt_value *y = tt_hlo_reduce(l->b, tt_hlo_concatenate(l->b, (int)taps, sums, 1), TT_REDUCE_ADD, 1, (int[]){2});
  dims[0] = o;
  dims[1] = 1;
  memcpy(dims + 2, kernel, (size_t)c->spatial * sizeof *kernel);
  return tt_hlo_convert(l->b, tt_hlo_reshape(l->b, y, x->rank, dims), result);
}

// A convolution in which images are the contracted features, channels the images, and the gradient is the filter: strides and
// dilations change places. Groups become feature groups by moving them in front of the images; XLA's batch groups would say
// the same without the transpose, but take seconds on XLA CPU.
static tt_value *filter_by_convolution(tt_lowering *l, tt_value *x, tt_value *gradient, const int64_t *kernel,
                                       const tt_correlation *c, tt_dtype result) {
  static const char *const layouts[] = {
      "[b, f, 0] x [i, o, 0] -> [f, b, 0]",
      "[b, f, 0, 1] x [i, o, 0, 1] -> [f, b, 0, 1]",
      "[b, f, 0, 1, 2] x [i, o, 0, 1, 2] -> [f, b, 0, 1, 2]",
  };
  int64_t n = x->dims[0], each = x->dims[1] / c->groups;
  int64_t dims[MAX_RANK + 1] = {n, c->groups, each}, high[TT_SPATIAL_MAX];
  memcpy(dims + 3, x->dims + 2, (size_t)c->spatial * sizeof *dims);
  for (int i = 0; i < c->spatial; ++i) // so that exactly kernel[i] places are left
    high[i] = (kernel[i] - 1) * c->dilation[i] + (gradient->dims[2 + i] - 1) * c->stride[i] + 1 - x->dims[2 + i] -
              c->pad_low[i];
  x = tt_hlo_transpose(l->b, tt_hlo_reshape(l->b, x, x->rank + 1, dims), (int[]){2, 1, 0, 3, 4, 5});
  dims[1] = each;
  dims[2] = c->groups * n;
  x = tt_hlo_reshape(l->b, x, gradient->rank, dims + 1);
  const tt_convolution numbers = {.spatial = c->spatial,
                                  .stride = c->dilation,
                                  .pad_low = c->pad_low,
                                  .pad_high = high,
                                  .rhs_dilation = c->stride,
                                  .feature_groups = c->groups,
                                  .batch_groups = 1,
                                  .dimension_numbers = layouts[c->spatial - 1]};
  return tt_convolve(l, x, gradient, &numbers, result);
}

tt_value *tt_correlate_filter(tt_lowering *l, tt_value *x, tt_value *gradient, const int64_t *kernel,
                              const tt_correlation *c, tt_dtype result) {
  int64_t taps = product(c->spatial, kernel), positions = product(c->spatial, gradient->dims + 2);
  if (tt_value_count(x) == 0 || tt_value_count(gradient) == 0 || taps == 0) {
    int64_t dims[MAX_RANK] = {gradient->dims[1], x->dims[1] / c->groups};
    memcpy(dims + 2, kernel, (size_t)c->spatial * sizeof *kernel);
    return tt_hlo_splat(l->b, result, x->rank, dims, 0);
  }
  if (wants_patches(l, c, kernel, positions))
    return filter_by_patches(l, x, gradient, kernel, gradient->dims + 2, c, result);
  bool depthwise = c->groups > 1 && x->dims[1] == c->groups;
  if (depthwise && taps <= FEW_TAPS && tt_builder_target(l->b)->conv_needs_forward)
    return filter_by_shifts(l, x, gradient, kernel, c, result);
  return filter_by_convolution(l, x, gradient, kernel, c, result);
}
