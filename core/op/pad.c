// pad.c - padding: constant_pad_nd, reflection_pad and replication_pad of one to three dims, and their gradients.
//
// A padded dim is put together from slices of the input (reversed, or one slice repeated), and its gradient from slices of the
// gradient, so neither needs a gather or a scatter. Negative padding crops what positive padding has made.
#include "op/shape.h"

tt_value *tt_pad_dim(tt_builder *b, tt_value *x, tt_value *fill, int dim, int64_t low, int64_t high, int64_t interior) {
  int64_t lows[TT_INDEX_MAX_DIMS] = {0}, highs[TT_INDEX_MAX_DIMS] = {0}, interiors[TT_INDEX_MAX_DIMS] = {0};
  lows[dim] = low;
  highs[dim] = high;
  interiors[dim] = interior;
  return tt_hlo_pad(b, x, fill, lows, highs, interiors);
}

tt_value *tt_pad_dim_zero(tt_builder *b, tt_value *x, int dim, int64_t low, int64_t high, int64_t interior) {
  return tt_pad_dim(b, x, tt_hlo_constant(b, x->dtype, 0), dim, low, high, interior);
}

static int64_t positive(int64_t x) { return x > 0 ? x : 0; }
static int64_t negative(int64_t x) { return x < 0 ? x : 0; }

// --- constant -----------------------------------------------------------------------------------------------------------------

void tt_lower_constant_pad_nd(tt_lowering *l) {
  tt_value *x = tt_operand(l, 0);
  int count;
  const int64_t *pad = tt_ints(l, 1, &count);
  int64_t low[TT_INDEX_MAX_DIMS] = {0}, high[TT_INDEX_MAX_DIMS] = {0}, none[TT_INDEX_MAX_DIMS] = {0};
  if (count % 2 != 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "Length of pad must be even but instead it equals %d", count);
  else if (count / 2 > x->rank)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Length of pad should be no more than twice the number of dimensions of the input. Pad length "
            "is %d while the input has %d dimensions.",
            count, x->rank);
  for (int i = 0; i < count / 2 && !tt_failed(l); ++i) { // from the last dim on
    int dim = x->rank - 1 - i;
    low[dim] = pad[2 * i];
    high[dim] = pad[2 * i + 1];
    if (x->dims[dim] + negative(low[dim]) + negative(high[dim]) < 0)
      tt_fail(l, TT_INVALID_ARGUMENT, "narrow(): length must be non-negative.");
  }
  if (tt_failed(l)) return;
  tt_set_result(l, 0, tt_hlo_pad(l->b, x, tt_fitting_operand_as(l, 2, x->dtype), low, high, none));
  tt_set_channels_last(l, 0, tt_is_channels_last(l, 0));
}

// --- reflection and replication -----------------------------------------------------------------------------------------------------

typedef struct padding {
  bool reflect;
  int dims;           // how many of the last dims are padded
  const int64_t *pad; // low, high of the last dim, then of the one before it ...
} padding;

static tt_value *slice(tt_builder *b, tt_value *x, int dim, int64_t start, int64_t limit) {
  return tt_hlo_slice_dim(b, x, dim, start, limit, 1);
}

static tt_value *repeat_dim(tt_builder *b, tt_value *x, int dim, int64_t count) { // x has size 1 there
  int64_t dims[TT_INDEX_MAX_DIMS];
  for (int i = 0; i < x->rank; ++i) dims[i] = i == dim ? count : x->dims[i];
  return tt_hlo_broadcast_to(b, x, x->rank, dims);
}

static tt_value *pad_one(tt_builder *b, tt_value *x, bool reflect, int dim, int64_t low, int64_t high) {
  int64_t n = x->dims[dim];
  tt_value *parts[3];
  int count = 0;
  if (low > 0)
    parts[count++] = reflect ? tt_hlo_reverse(b, slice(b, x, dim, 1, low + 1), 1, &dim)
                             : repeat_dim(b, slice(b, x, dim, 0, 1), dim, low);
  parts[count++] = x;
  if (high > 0)
    parts[count++] = reflect ? tt_hlo_reverse(b, slice(b, x, dim, n - 1 - high, n - 1), 1, &dim)
                             : repeat_dim(b, slice(b, x, dim, n - 1, n), dim, high);
  if (count > 1) x = tt_hlo_concatenate(b, count, parts, dim);
  return slice(b, x, dim, -negative(low), x->dims[dim] + negative(high));
}

// The gradient of pad_one: each part of grad goes back to where it was taken from. `n` is the size of the input's dim.
static tt_value *unpad_one(tt_builder *b, tt_value *grad, bool reflect, int dim, int64_t n, int64_t low, int64_t high) {
  grad = tt_pad_dim_zero(b, grad, dim, -negative(low), -negative(high), 0);
  int64_t size = grad->dims[dim];
  low = positive(low);
  high = positive(high);
  tt_value *sum = slice(b, grad, dim, low, low + n);
  for (int end = 0; end < 2; ++end) {
    int64_t width = end == 0 ? low : high;
    if (width == 0) continue;
    tt_value *part = end == 0 ? slice(b, grad, dim, 0, low) : slice(b, grad, dim, size - high, size);
    int64_t inset = reflect ? 1 : 0; // the outermost element itself is not reflected
    if (reflect) {
      part = tt_hlo_reverse(b, part, 1, &dim);
    } else {
      part = tt_hlo_unsqueeze_dim(b, tt_hlo_reduce(b, part, TT_REDUCE_ADD, 1, &dim), dim);
      width = 1;
    }
    int64_t rest = n - width - inset;
    sum = tt_hlo_add(b, sum, tt_pad_dim_zero(b, part, dim, end == 0 ? inset : rest, end == 0 ? rest : inset, 0));
  }
  return sum;
}

// torch's structured wrappers check for most of these ops; reflection_pad2d has none.
static bool check_pad(tt_lowering *l, const padding *p, const tt_value *x, int count) {
  tt_arena *arena = tt_builder_arena(l->b);
  if (count != 2 * p->dims)
    tt_fail(l, TT_INVALID_ARGUMENT, "padding size is expected to be %d, but got: %d", 2 * p->dims, count);
  bool valid = x->rank == p->dims + 1 || x->rank == p->dims + 2;
  for (int i = x->rank == p->dims + 2; valid && i < x->rank; ++i) valid = x->dims[i] != 0;
  if (!valid)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Expected %dD or %dD (batch mode) tensor with possibly 0 batch size and other non-zero "
            "dimensions for input, but got: %s",
            p->dims + 1, p->dims + 2, tt_shape_text(arena, x->rank, x->dims));
  for (int i = 0; i < p->dims && !tt_failed(l); ++i) {
    int dim = x->rank - 1 - i;
    int64_t low = p->pad[2 * i], high = p->pad[2 * i + 1], size = x->dims[dim] + low + high;
    if (p->reflect && (low >= x->dims[dim] || high >= x->dims[dim]))
      tt_fail(l, TT_INVALID_ARGUMENT,
              "Argument #%d: Padding size should be less than the corresponding input dimension, but got: "
              "padding (%lld, %lld) at dimension %d of input %s",
              4 + 2 * i, (long long)low, (long long)high, dim, tt_shape_text(arena, x->rank, x->dims));
    else if (size < 0)
      tt_fail(l, TT_INVALID_ARGUMENT,
              "input of shape %s is too small for the padding: dimension %d would have size %lld",
              tt_shape_text(arena, x->rank, x->dims), dim, (long long)size);
  }
  return !tt_failed(l);
}

static void lower_pad(tt_lowering *l, bool reflect, int dims) {
  tt_value *x = tt_operand(l, 0);
  int count;
  padding p = {reflect, dims, tt_ints(l, 1, &count)};
  if (!check_pad(l, &p, x, count)) return;
  for (int i = 0; i < dims; ++i) x = pad_one(l->b, x, reflect, x->rank - 1 - i, p.pad[2 * i], p.pad[2 * i + 1]);
  tt_set_result(l, 0, x);
  tt_set_channels_last(l, 0, tt_is_channels_last(l, 0));
}

static bool check_grad(tt_lowering *l, const padding *p, const tt_value *grad, const tt_tensor *input) {
  static const char *const names[] = {"width", "height", "depth"};
  if (grad->rank != input->rank) {
    tt_fail(l, TT_INVALID_ARGUMENT, "gradOutput has %d dimensions, but the input has %d", grad->rank, input->rank);
    return false;
  }
  for (int i = 0; i < p->dims && !tt_failed(l); ++i) {
    int dim = input->rank - 1 - i;
    int64_t wanted = input->sizes[dim] + p->pad[2 * i] + p->pad[2 * i + 1];
    if (grad->dims[dim] != wanted)
      tt_fail(l, TT_INVALID_ARGUMENT, "gradOutput %s unexpected. Expected: %lld, Got: %lld", names[i],
              (long long)wanted, (long long)grad->dims[dim]);
  }
  return !tt_failed(l);
}

static void lower_pad_backward(tt_lowering *l, bool reflect, int dims) {
  tt_value *grad = tt_operand(l, 0);
  const tt_tensor *input = tt_tensor_arg(l, 1);
  int count;
  padding p = {reflect, dims, tt_ints(l, 2, &count)};
  if (count != 2 * dims) tt_fail(l, TT_INVALID_ARGUMENT, "padding size is expected to be %d", 2 * dims);
  if (!input || tt_failed(l) || !check_grad(l, &p, grad, input)) return;
  tt_value *sum = tt_hlo_convert(l->b, grad, tt_compute_dtype(grad->dtype));
  for (int i = 0; i < dims; ++i) {
    int dim = grad->rank - 1 - i;
    sum = unpad_one(l->b, sum, reflect, dim, input->sizes[dim], p.pad[2 * i], p.pad[2 * i + 1]);
  }
  tt_set_result(l, 0, tt_hlo_convert(l->b, sum, grad->dtype));
  tt_set_channels_last(l, 0, tt_is_channels_last(l, 1));
}

void tt_lower_reflection_pad1d(tt_lowering *l) { lower_pad(l, true, 1); }
void tt_lower_reflection_pad2d(tt_lowering *l) { lower_pad(l, true, 2); }
void tt_lower_reflection_pad3d(tt_lowering *l) { lower_pad(l, true, 3); }
void tt_lower_replication_pad1d(tt_lowering *l) { lower_pad(l, false, 1); }
void tt_lower_replication_pad2d(tt_lowering *l) { lower_pad(l, false, 2); }
void tt_lower_replication_pad3d(tt_lowering *l) { lower_pad(l, false, 3); }
void tt_lower_reflection_pad1d_backward(tt_lowering *l) { lower_pad_backward(l, true, 1); }
void tt_lower_reflection_pad2d_backward(tt_lowering *l) { lower_pad_backward(l, true, 2); }
void tt_lower_reflection_pad3d_backward(tt_lowering *l) { lower_pad_backward(l, true, 3); }
void tt_lower_replication_pad1d_backward(tt_lowering *l) { lower_pad_backward(l, false, 1); }
void tt_lower_replication_pad2d_backward(tt_lowering *l) { lower_pad_backward(l, false, 2); }
void tt_lower_replication_pad3d_backward(tt_lowering *l) { lower_pad_backward(l, false, 3); }
