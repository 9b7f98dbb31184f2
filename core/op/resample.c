// resample.c - interpolation to another size: nearest, linear, cubic, with and without antialiasing, and the backwards.
//
// All of torch's kinds are separable: along each dimension a result is a weighted sum of a few elements (taps.h), whose
// positions and weights are known from the sizes and scales alone and are computed here in float, as torch computes them. The
// backward is the transposed map.
#include <math.h>
#include <string.h>

#include "op/index.h"
#include "op/taps.h"

typedef struct kind {
  bool has_align; // takes align_corners; bytes are rounded
  // Positions and weights of one dimension.
  bool (*map)(tt_lowering *l, const struct kind *kind, int64_t in, int64_t out, bool align, double scale, bool wide,
              tt_taps *taps);
  double support;             // of antialiasing: reach of the filter to each side
  double (*filter)(double x); // of antialiasing: its weight at distance x >= 0
} kind;

// --- positions -----------------------------------------------------------------------------------------------------------

// A float where torch has a float: positions on the border between two elements depend on it.
static double rounded(double x, bool wide) { return wide ? x : (double)(float)x; }

// Elements of the input per element of the result. `scale` is what the user gave, 0 if nothing.
static double step(int64_t in, int64_t out, bool align, double scale, bool wide) {
  if (align) return out > 1 ? rounded((double)(in - 1) / (double)(out - 1), wide) : 0;
  return rounded(scale > 0 ? 1 / scale : (double)in / (double)out, wide);
}

static double position(double step, int64_t i, bool align, bool wide) {
  if (align) return rounded(step * (double)i, wide);
  return rounded(rounded(step * ((double)i + 0.5), wide) - 0.5, wide);
}

static int64_t within(int64_t i, int64_t size) { return i < 0 ? 0 : i >= size ? size - 1 : i; }

static bool identity(tt_lowering *l, int64_t size, tt_taps *taps) {
  if (!tt_taps_create(l, size, size, 1, taps)) return false;
  for (int64_t i = 0; i < size; ++i) {
    taps->index[i] = i;
    taps->weight[i] = 1;
  }
  return true;
}

// The scale as given, whatever the sizes. torch's CPU kernels copy or double where the sizes say so, but only in some shapes
// (two dimensions, at most 128 rows and columns together) and in the backward; CUDA never does.
static bool map_nearest_at(tt_lowering *l, int64_t in, int64_t out, float offset, double scale, tt_taps *taps) {
  if (!tt_taps_create(l, in, out, 1, taps)) return false;
  float ratio = (float)step(in, out, false, scale, false);
  for (int64_t i = 0; i < out; ++i) {
    taps->index[i] = within((int64_t)floorf(((float)i + offset) * ratio), in);
    taps->weight[i] = 1;
  }
  return true;
}

static bool map_nearest(tt_lowering *l, const kind *kind, int64_t in, int64_t out, bool align, double scale, bool wide,
                        tt_taps *taps) {
  (void)kind, (void)align, (void)wide;
  return map_nearest_at(l, in, out, 0, scale, taps);
}

static bool map_exact(tt_lowering *l, const kind *kind, int64_t in, int64_t out, bool align, double scale, bool wide,
                      tt_taps *taps) {
  (void)kind, (void)align, (void)wide;
  return map_nearest_at(l, in, out, 0.5F, scale, taps);
}

static bool map_linear(tt_lowering *l, const kind *kind, int64_t in, int64_t out, bool align, double scale, bool wide,
                       tt_taps *taps) {
  (void)kind;
  if (in == out) return identity(l, in, taps); // whatever scale was given: torch does
  if (!tt_taps_create(l, in, out, 2, taps)) return false;
  double ratio = step(in, out, align, scale, wide);
  for (int64_t i = 0; i < out; ++i) {
    double x = fmax(position(ratio, i, align, wide), 0);
    int64_t low = within((int64_t)x, in);
    double fraction = fmin(fmax(x - (double)low, 0), 1);
    taps->index[2 * i] = low;
    taps->index[2 * i + 1] = within(low + 1, in);
    taps->weight[2 * i] = rounded(1 - fraction, wide);
    taps->weight[2 * i + 1] = fraction;
  }
  return true;
}

// The cubic convolution filter with parameter a, at distance x >= 0.
static double cubic(double x, double a) {
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

static bool map_cubic(tt_lowering *l, const kind *kind, int64_t in, int64_t out, bool align, double scale, bool wide,
                      tt_taps *taps) {
  (void)kind;
  if (!tt_taps_create(l, in, out, 4, taps)) return false;
  double ratio = step(in, out, align, scale, wide);
  for (int64_t i = 0; i < out; ++i) {
    double x = position(ratio, i, align, wide);
    int64_t low = (int64_t)fmin(floor(x), (double)(in - 1));
    double fraction = fmin(fmax(x - (double)low, 0), 1);
    for (int t = 0; t < 4; ++t) {
      taps->index[4 * i + t] = within(low - 1 + t, in);
      taps->weight[4 * i + t] = cubic(fabs(fraction + 1 - t), -0.75);
    }
  }
  return true;
}

// --- antialiasing: the filter is widened by the scale, cut off at the border, and its weights are made to add up to 1 ------

static double filter_linear(double x) { return x < 1 ? 1 - x : 0; }
static double filter_cubic(double x) { return cubic(x, -0.5); }

static double sinc(double x) { return x == 0 ? 1 : sin(x) / x; }

static double filter_lanczos(double x) {
  const double pi = 3.14159265358979323846;
  return x < 3 ? sinc(pi * x) * sinc(pi * x / 3) : 0;
}

static bool map_antialias(tt_lowering *l, const kind *kind, int64_t in, int64_t out, bool align, double scale,
                          bool wide, tt_taps *taps) {
  double ratio = step(in, out, align, scale, wide), spread = ratio >= 1 ? ratio : 1;
  double support = kind->support * spread;
  int64_t most = (int64_t)ceil(support) * 2 + 1;
  if (most > in) most = in;
  if (!tt_taps_create(l, in, out, most, taps)) return false;
  for (int64_t i = 0; i < out; ++i) {
    double center = ratio * ((double)i + 0.5), total = 0;
    int64_t first = (int64_t)fmax(center - support + 0.5, 0), last = (int64_t)(center + support + 0.5);
    int64_t count = (last < in ? last : in) - first;
    if (count > most) count = most;
    int64_t *index = taps->index + i * most;
    double *weight = taps->weight + i * most;
    for (int64_t t = 0; t < count; ++t) {
      index[t] = first + t;
      weight[t] = kind->filter(fabs(((double)(first + t) - center + 0.5) / spread));
      total += weight[t];
    }
    for (int64_t t = 0; t < count && total != 0; ++t) weight[t] /= total;
  }
  return true;
}

// Bytes: torch keeps the weights as 16-bit integers, with as many binary places as fit. Products with bytes are then exact in
// float32, and so is the result.
static void round_weights(tt_taps *taps) {
  double most = 0;
  int64_t count = taps->out * taps->count;
  for (int64_t i = 0; i < count; ++i) most = fmax(most, taps->weight[i]);
  int places = 0;
  while (places < 21 && 0.5 + most * ldexp(1, places + 1) < 32768) ++places;
  for (int64_t i = 0; i < count; ++i) taps->weight[i] = ldexp(round(ldexp(taps->weight[i], places)), -places);
}

// --- ops ---------------------------------------------------------------------------------------------------------------------

static bool is_identity(const tt_taps *taps) {
  if (taps->in != taps->out || taps->count != 1) return false;
  for (int64_t i = 0; i < taps->out; ++i)
    if (taps->index[i] != i) return false;
  return true;
}

// The number of times that each element is repeated, if all of them are repeated equally often; else 0.
static int64_t repeats(const tt_taps *taps) {
  int64_t times = taps->in > 0 ? taps->out / taps->in : 0;
  if (taps->count != 1 || times * taps->in != taps->out) return 0;
  for (int64_t i = 0; i < taps->out; ++i)
    if (taps->index[i] != i / times) return 0;
  return times;
}

// Splits `dim` of x into [dim, times] by broadcasting, or sums [dim / times, times].
static tt_value *repeat(tt_lowering *l, tt_value *x, int dim, int64_t times, bool backward) {
  int64_t dims[8], flat[8];
  int map[8];
  for (int i = 0; i < x->rank; ++i) {
    map[i] = i <= dim ? i : i + 1;
    dims[map[i]] = flat[i] = x->dims[i];
  }
  dims[dim + 1] = times;
  if (backward) {
    dims[dim] = x->dims[dim] / times;
    return tt_hlo_reduce(l->b, tt_hlo_reshape(l->b, x, x->rank + 1, dims), TT_REDUCE_ADD, 1, (int[]){dim + 1});
  }
  flat[dim] *= times;
  return tt_hlo_reshape(l->b, tt_hlo_broadcast_in_dim(l->b, x, x->rank + 1, dims, map), x->rank, flat);
}

static bool is_copy(const tt_taps *taps) {
  if (taps->count != 1) return false;
  for (int64_t i = 0; i < taps->out; ++i)
    if (taps->weight[i] != 1) return false;
  return true;
}

static tt_value *resample_dim(tt_lowering *l, tt_value *x, int dim, const tt_taps *taps, bool backward) {
  if (is_identity(taps)) return x;
  int64_t times = repeats(taps);
  if (times > 0) return repeat(l, x, dim, times, backward);
  tt_taps transposed;
  if (backward) return tt_taps_transpose(l, taps, &transposed) ? tt_taps_apply(l, x, dim, &transposed) : x;
  if (!is_copy(taps)) return tt_taps_apply(l, x, dim, taps);
  return tt_take_rows(l->b, x, dim, tt_hlo_constant_vector(l->b, TT_S32, (int)taps->out, taps->index));
}

// Bytes are rounded after each dimension, the last one first, as torch (and Pillow) do.
static tt_value *round_byte(tt_lowering *l, tt_value *x) {
  x = tt_hlo_floor(l->b, tt_add(l, x, tt_hlo_constant(l->b, x->dtype, 0.5)));
  return tt_hlo_clamp(l->b, tt_hlo_constant_like(l->b, x, 0), x, tt_hlo_constant_like(l->b, x, 255));
}

// forward:  (self, output_size, [align_corners], scales...)
// backward: (grad_output, output_size, input_size, [align_corners], scales...)
static void lower_resample(tt_lowering *l, const kind *kind, bool backward) {
  int spatial, rank;
  const int64_t *out = tt_ints(l, 1, &spatial);
  const int64_t *in = backward ? tt_ints(l, 2, &rank) : tt_tensor_arg(l, 0)->sizes;
  int next = backward ? 3 : 2;
  bool align = kind->has_align && tt_bool(l, next);
  if (kind->has_align) ++next;
  tt_value *x = tt_operand(l, 0);
  tt_dtype dtype = x->dtype;
  if (kind->has_align || backward) x = tt_hlo_convert(l->b, x, dtype == TT_U8 ? TT_F32 : tt_compute_dtype(dtype));
  bool bytes = dtype == TT_U8 && kind->has_align;
  for (int i = spatial - 1; i >= 0 && !tt_failed(l); --i) {
    tt_taps taps;
    double scale = tt_double_or(l, next + i, 0);
    if (bytes && in[2 + i] == out[i]) continue;
    if (!kind->map(l, kind, in[2 + i], out[i], align, scale, bytes || dtype == TT_F64, &taps)) return;
    if (bytes) round_weights(&taps);
    x = resample_dim(l, x, 2 + i, &taps, backward);
    if (bytes) x = round_byte(l, x);
  }
  tt_set_result(l, 0, tt_hlo_convert(l->b, x, dtype));
}

static const kind nearest = {.map = map_nearest};
static const kind exact = {.map = map_exact};
static const kind linear = {.has_align = true, .map = map_linear};
static const kind cubic_kind = {.has_align = true, .map = map_cubic};
static const kind linear_aa = {.has_align = true, .map = map_antialias, .support = 1, .filter = filter_linear};
static const kind cubic_aa = {.has_align = true, .map = map_antialias, .support = 2, .filter = filter_cubic};
static const kind lanczos_aa = {.has_align = true, .map = map_antialias, .support = 3, .filter = filter_lanczos};

void tt_lower_upsample_nearest(tt_lowering *l) { lower_resample(l, &nearest, false); }
void tt_lower_upsample_nearest_backward(tt_lowering *l) { lower_resample(l, &nearest, true); }
void tt_lower_upsample_exact(tt_lowering *l) { lower_resample(l, &exact, false); }
void tt_lower_upsample_exact_backward(tt_lowering *l) { lower_resample(l, &exact, true); }
void tt_lower_upsample_linear(tt_lowering *l) { lower_resample(l, &linear, false); }
void tt_lower_upsample_linear_backward(tt_lowering *l) { lower_resample(l, &linear, true); }
void tt_lower_upsample_cubic(tt_lowering *l) { lower_resample(l, &cubic_kind, false); }
void tt_lower_upsample_cubic_backward(tt_lowering *l) { lower_resample(l, &cubic_kind, true); }
void tt_lower_upsample_linear_aa(tt_lowering *l) { lower_resample(l, &linear_aa, false); }
void tt_lower_upsample_linear_aa_backward(tt_lowering *l) { lower_resample(l, &linear_aa, true); }
void tt_lower_upsample_cubic_aa(tt_lowering *l) { lower_resample(l, &cubic_aa, false); }
void tt_lower_upsample_cubic_aa_backward(tt_lowering *l) { lower_resample(l, &cubic_aa, true); }
void tt_lower_upsample_lanczos_aa(tt_lowering *l) { lower_resample(l, &lanczos_aa, false); }
void tt_lower_upsample_lanczos_aa_backward(tt_lowering *l) { lower_resample(l, &lanczos_aa, true); }
