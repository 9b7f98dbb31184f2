// quantize.c - fake quantization: x rounded to what an integer of [quant_min, quant_max] with a scale and a zero point can say.
//
// Scales are float32 whatever x is, and x is multiplied by the reciprocal rounded to float32, as in torch's kernels. The mask of
// a "cachemask" op says where x was inside the range: where its gradient passes.
#include "op/axes.h"
#include "op/pointwise.h"

typedef struct quantizer {
  int64_t low, high;
  tt_value *scale, *inverse; // in the dtype and shape of x
  tt_value *zero;
} quantizer;

// The range in arguments `low_arg` and the one after it.
static quantizer range_of(tt_lowering *l, int low_arg) {
  quantizer q = {.low = tt_int(l, low_arg), .high = tt_int(l, low_arg + 1)};
  // The gap in the message is torch's.
  if (q.low > q.high)
    tt_fail(l, TT_INVALID_ARGUMENT, "`quant_min` should be less than or         equal to `quant_max`.");
  return q;
}

// scale (float32) and zero, both of x's shape.
static void set_scale(tt_builder *b, quantizer *q, const tt_value *x, tt_value *scale, tt_value *zero) {
  q->inverse = tt_hlo_convert(b, tt_reciprocal(b, scale), x->dtype);
  q->scale = tt_hlo_convert(b, scale, x->dtype);
  q->zero = tt_hlo_convert(b, zero, x->dtype);
}

// The integer, before it is clamped; NaN where x is.
static tt_value *quantize(tt_builder *b, const quantizer *q, tt_value *x) {
  return tt_hlo_add(b, tt_hlo_round_nearest_even(b, tt_hlo_multiply(b, x, q->inverse)), q->zero);
}

// Clamped (NaN to the low end) and back to a number.
static tt_value *dequantize(tt_builder *b, const quantizer *q, tt_value *integer) {
  tt_value *low = tt_hlo_constant_like(b, integer, (double)q->low);
  tt_value *clamped = tt_hlo_select(b, tt_hlo_compare(b, TT_GE, integer, low), integer, low);
  clamped = tt_hlo_minimum(b, clamped, tt_hlo_constant_like(b, integer, (double)q->high));
  return tt_hlo_multiply(b, tt_hlo_subtract(b, clamped, q->zero), q->scale);
}

static tt_value *is_inside(tt_builder *b, const quantizer *q, tt_value *integer) {
  return tt_hlo_and(b, tt_compare_constant(b, TT_GE, integer, (double)q->low),
                    tt_compare_constant(b, TT_LE, integer, (double)q->high));
}

// The first element of a tensor argument, in x's shape.
static tt_value *first_like(tt_lowering *l, int arg, tt_dtype dtype, const tt_value *x) {
  tt_value *all = tt_operand_as(l, arg, dtype);
  tt_value *flat = tt_hlo_reshape(l->b, all, 1, (int64_t[]){tt_value_count(all)});
  tt_value *first = tt_hlo_reshape(l->b, tt_hlo_slice_dim(l->b, flat, 0, 0, 1, 1), 0, NULL);
  return tt_hlo_broadcast_like(l->b, first, x);
}

static tt_value *along(tt_builder *b, tt_value *vector, const tt_value *x, int axis) {
  return tt_hlo_broadcast_in_dim(b, vector, x->rank, x->dims, &axis);
}

static void set_with_mask(tt_pointwise *p, const quantizer *q) {
  if (tt_failed(p->l)) return;
  tt_value *integer = quantize(p->b, q, p->x[0]);
  tt_pointwise_set_as(p, 0, dequantize(p->b, q, integer), p->common);
  tt_pointwise_set_as(p, 1, is_inside(p->b, q, integer), TT_BOOL);
}

// --- given scales -----------------------------------------------------------------------------------------------------------

// (self, scale, zero_point, quant_min, quant_max) -> (output, mask)
void tt_lower_fake_quantize_tensor(tt_lowering *l) {
  tt_pointwise p = tt_pointwise_begin(l, 0, 1, NULL);
  quantizer q = range_of(l, 3);
  int64_t zero = tt_int(l, 2);
  if (zero < q.low || zero > q.high)
    tt_fail(l, TT_INVALID_ARGUMENT, "`zero_point` must be between `quant_min` and `quant_max`.");
  tt_value *scale = tt_hlo_broadcast_like(p.b, tt_number(l, 1, TT_F32), p.x[0]);
  set_scale(p.b, &q, p.x[0], scale, tt_hlo_constant_like(p.b, scale, (double)zero));
  set_with_mask(&p, &q);
}

// (self, scale, zero_point, fake_quant_enabled, quant_min, quant_max) -> (output, mask); x itself where it is not enabled
void tt_lower_fake_quantize_qparams(tt_lowering *l) {
  tt_pointwise p = tt_pointwise_begin(l, 0, 1, NULL);
  quantizer q = range_of(l, 4);
  if (tt_failed(l)) return;
  tt_value *x = p.x[0], *zero = tt_hlo_convert(p.b, first_like(l, 2, TT_S32, x), TT_F32);
  set_scale(p.b, &q, x, first_like(l, 1, TT_F32, x), zero);
  tt_value *enabled = first_like(l, 3, TT_BOOL, x), *integer = quantize(p.b, &q, x);
  tt_pointwise_set_as(&p, 0, tt_hlo_select(p.b, enabled, dequantize(p.b, &q, integer), x), p.common);
  tt_value *mask = tt_hlo_or(p.b, tt_hlo_not(p.b, enabled), is_inside(p.b, &q, integer));
  tt_pointwise_set_as(&p, 1, mask, TT_BOOL);
}

// The checks of the scale and zero point that all ops per channel share; returns the axis in argument 3 of `self`.
static int channel_axis(tt_lowering *l, int self_arg, int scale_arg) {
  const tt_tensor *self = tt_tensor_arg(l, self_arg), *scale = tt_tensor_arg(l, scale_arg);
  const tt_tensor *zero = tt_tensor_arg(l, scale_arg + 1);
  int64_t axis = tt_int(l, scale_arg + 2);
  if (scale->rank != 1)
    tt_fail(l, TT_INVALID_ARGUMENT, "scale should be a 1-D tensor");
  else if (zero->rank != 1)
    tt_fail(l, TT_INVALID_ARGUMENT, "zero point should be a 1-D tensor");
  else if (scale->sizes[0] != zero->sizes[0])
    tt_fail(l, TT_INVALID_ARGUMENT, "scale and zero-point need to have the same dimensions");
  int wrapped = tt_wrap_dim(l, axis, self->rank);
  if (!tt_failed(l) && (self->rank == 0 || scale->sizes[0] != self->sizes[wrapped]))
    tt_fail(l, TT_INVALID_ARGUMENT, "dimensions of scale and zero-point are not consistent with input tensor");
  if (!tt_failed(l) && axis < 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "`axis` must be between 0 and number of dimensions of input");
  return wrapped;
}

static void check_zero_dtype(tt_lowering *l, int scale_arg) {
  tt_dtype scale = tt_tensor_arg(l, scale_arg)->dtype, zero = tt_tensor_arg(l, scale_arg + 1)->dtype;
  if (scale != TT_F32 && scale != TT_BF16)
    tt_fail(l, TT_INVALID_ARGUMENT, "Scale must be Float or BFloat16, found %s", tt_dtype_text(scale));
  else if (zero != TT_S32 && zero != TT_F32 && zero != TT_F16)
    tt_fail(l, TT_INVALID_ARGUMENT, "Zero-point must be Int32, Float or Half, found %s", tt_dtype_text(zero));
}

// (self, scale, zero_point, axis, quant_min, quant_max) -> (output, mask)
void tt_lower_fake_quantize_channel(tt_lowering *l) {
  check_zero_dtype(l, 1);
  tt_pointwise p = tt_pointwise_begin(l, 0, 1, NULL);
  int axis = channel_axis(l, 0, 1);
  quantizer q = range_of(l, 4);
  if (tt_failed(l)) return;
  tt_value *zero = tt_operand_as(l, 2, TT_F32);
  tt_check_all(l, is_inside(p.b, &q, zero), TT_INVALID_ARGUMENT,
               "`zero_point` must be between `quant_min` and `quant_max`.");
  tt_value *scale = along(p.b, tt_operand_as(l, 1, TT_F32), p.x[0], axis);
  set_scale(p.b, &q, p.x[0], scale, along(p.b, zero, p.x[0], axis));
  set_with_mask(&p, &q);
}

// --- learned scales ---------------------------------------------------------------------------------------------------------

static tt_value *clamped_zero(tt_builder *b, const quantizer *q, tt_value *zero) {
  zero = tt_hlo_maximum(b, zero, tt_hlo_constant_like(b, zero, (double)q->low));
  return tt_hlo_minimum(b, zero, tt_hlo_constant_like(b, zero, (double)q->high));
}

// The learned zero point in argument `arg`, in x's shape, as the integer it stands for. In the backward per tensor torch adds 1/2
// and truncates, so that a negative one is another integer than in the forward.
static tt_value *learned_zero(tt_lowering *l, const quantizer *q, int arg, bool backward, const tt_value *x) {
  tt_value *zero = first_like(l, arg, TT_F32, x);
  if (backward) return tt_emit_trunc(l->b, clamped_zero(l->b, q, tt_add_constant(l->b, zero, 0.5)));
  return clamped_zero(l->b, q, tt_hlo_round_nearest_even(l->b, zero));
}

// (self, scale, zero_point, quant_min, quant_max, grad_factor)
void tt_lower_learnable_tensor(tt_lowering *l) {
  tt_pointwise p = tt_pointwise_begin(l, 0, 1, NULL);
  quantizer q = range_of(l, 3);
  if (tt_failed(l)) return;
  tt_value *x = p.x[0];
  set_scale(p.b, &q, x, first_like(l, 1, TT_F32, x), learned_zero(l, &q, 2, false, x));
  tt_pointwise_set_as(&p, 0, dequantize(p.b, &q, quantize(p.b, &q, x)), p.common);
}

static void set_channel_scale(tt_lowering *l, quantizer *q, const tt_value *x, int scale_arg, int axis) {
  tt_value *zero = tt_hlo_round_nearest_even(l->b, tt_operand_as(l, scale_arg + 1, TT_F32));
  zero = along(l->b, clamped_zero(l->b, q, zero), x, axis);
  set_scale(l->b, q, x, along(l->b, tt_operand_as(l, scale_arg, TT_F32), x, axis), zero);
}

// (self, scale, zero_point, axis, quant_min, quant_max, grad_factor)
void tt_lower_learnable_channel(tt_lowering *l) {
  tt_pointwise p = tt_pointwise_begin(l, 0, 1, NULL);
  int axis = channel_axis(l, 0, 1);
  quantizer q = range_of(l, 4);
  if (tt_failed(l)) return;
  set_channel_scale(l, &q, p.x[0], 1, axis);
  tt_pointwise_set_as(&p, 0, dequantize(p.b, &q, quantize(p.b, &q, p.x[0])), p.common);
}

// torch's kernels for learned scales know float32 only.
static bool check_float(tt_lowering *l) {
  static const char *const names[] = {NULL, "X_", "scale_", "zero_point_"};
  for (int arg = 1; arg <= 3; ++arg) {
    if (!tt_failed(l) && tt_tensor_arg(l, arg)->dtype != TT_F32)
      tt_fail(l, TT_INVALID_ARGUMENT, "Expected %s.scalar_type() == ScalarType::Float to be true, but got false.",
              names[arg]);
  }
  return !tt_failed(l);
}

static quantizer backward_range(tt_lowering *l, int low_arg) {
  quantizer q = {.low = tt_int(l, low_arg), .high = tt_int(l, low_arg + 1)};
  if (q.low > 0 || q.high < 0)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "`quant_min` should be less than or         equal to `quant_max`, and the quantization range should "
            "include 0.");
  return q;
}

// Inside the range x passes its gradient on, and the scale's is that of the rounding error; outside the result is a constant times
// the scale. `axes` are those over which a scale is shared, `rank` the rank of its gradient.
static void set_gradients(tt_lowering *l, const quantizer *q, tt_value *x, int factor_arg, tt_axes axes, int rank) {
  tt_builder *b = l->b;
  tt_value *gradient = tt_operand_as(l, 0, TT_F32), *integer = quantize(b, q, x), *inside = is_inside(b, q, integer);
  tt_value *factor = tt_hlo_broadcast_like(b, tt_number(l, factor_arg, TT_F32), x);
  tt_value *zeros = tt_hlo_constant_like(b, x, 0), *scaled = tt_hlo_multiply(b, gradient, factor);
  tt_set_result(l, 0, tt_hlo_select(b, inside, gradient, zeros));
  tt_value *error = tt_hlo_multiply(b, tt_hlo_subtract(b, dequantize(b, q, integer), x), q->inverse);
  tt_value *below = tt_compare_constant(b, TT_LT, integer, (double)q->low);
  tt_value *end =
      tt_hlo_select(b, below, tt_hlo_constant_like(b, x, (double)q->low), tt_hlo_constant_like(b, x, (double)q->high));
  tt_value *of_scale = tt_hlo_select(b, inside, error, tt_hlo_subtract(b, end, q->zero));
  tt_value *of_zero = tt_hlo_select(b, inside, zeros, tt_hlo_negate(b, q->scale));
  tt_value *const terms[] = {of_scale, of_zero};
  for (int i = 0; i < 2; ++i) {
    tt_value *sum = tt_sum_computed(b, tt_hlo_multiply(b, terms[i], scaled), axes);
    tt_set_result(l, 1 + i, rank == sum->rank ? sum : tt_hlo_reshape(b, sum, 1, (int64_t[]){1}));
  }
}

// (grad, self, scale, zero_point, quant_min, quant_max, grad_factor) -> (self's, scale's, zero point's)
void tt_lower_learnable_tensor_backward(tt_lowering *l) {
  quantizer q = backward_range(l, 4);
  if (!check_float(l)) return;
  tt_value *x = tt_operand(l, 1);
  set_scale(l->b, &q, x, first_like(l, 2, TT_F32, x), learned_zero(l, &q, 3, true, x));
  set_gradients(l, &q, x, 6, tt_axes_range(0, x->rank), 1);
}

// (grad, self, scale, zero_point, axis, quant_min, quant_max, grad_factor)
void tt_lower_learnable_channel_backward(tt_lowering *l) {
  quantizer q = backward_range(l, 5);
  if (!check_float(l)) return;
  int axis = channel_axis(l, 1, 2);
  if (tt_failed(l)) return;
  tt_value *x = tt_operand(l, 1);
  set_channel_scale(l, &q, x, 2, axis);
  int dims[TT_AXES_MAX], count = 0;
  for (int i = 0; i < x->rank; ++i) {
    if (i != axis) dims[count++] = i;
  }
  set_gradients(l, &q, x, 7, (tt_axes){count, dims}, 1);
}
