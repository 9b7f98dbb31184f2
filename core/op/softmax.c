// softmax.c - softmax and log_softmax along one dimension, their masked and safe variants, and their gradients.
#include "op/axes.h"

// --- the formulas ----------------------------------------------------------------------------------------------------

// x less its greatest element along the axis. A row of -inf gives NaN, as in torch.
static tt_value *shifted(tt_builder *b, tt_value *x, tt_axes axis) {
  return tt_hlo_subtract(b, x, tt_spread(b, tt_reduce(b, x, TT_REDUCE_MAX, axis), x, axis));
}

static tt_value *softmax(tt_builder *b, tt_value *x, tt_axes axis) {
  tt_value *terms = tt_hlo_exponential(b, shifted(b, x, axis));
  return tt_hlo_divide(b, terms, tt_spread(b, tt_sum_computed(b, terms, axis), x, axis));
}

static tt_value *log_softmax(tt_builder *b, tt_value *x, tt_axes axis) {
  tt_value *exponents = shifted(b, x, axis);
  tt_value *sum = tt_hlo_log(b, tt_sum_computed(b, tt_hlo_exponential(b, exponents), axis));
  return tt_hlo_subtract(b, exponents, tt_spread(b, sum, x, axis));
}

// (g - sum(g y)) y
static tt_value *softmax_backward(tt_builder *b, tt_value *grad, tt_value *output, tt_axes axis) {
  tt_value *sum = tt_sum_computed(b, tt_hlo_multiply(b, grad, output), axis);
  return tt_hlo_multiply(b, tt_hlo_subtract(b, grad, tt_spread(b, sum, output, axis)), output);
}

// g - exp(y) sum(g)
static tt_value *log_softmax_backward(tt_builder *b, tt_value *grad, tt_value *output, tt_axes axis) {
  tt_value *sum = tt_spread(b, tt_sum(b, grad, axis), output, axis);
  return tt_hlo_subtract(b, grad, tt_hlo_multiply(b, tt_hlo_exponential(b, output), sum));
}

// x as rows along its last axis, if that is `axis`, in two dimensions: XLA CPU makes shorter and faster loops of these. On a
// TPU it would move the elements about.
static tt_value *as_rows(tt_builder *b, tt_value *x, tt_axes axis) {
  if (x->rank <= 2 || axis.dims[0] != x->rank - 1 || tt_builder_target(b)->is_tpu) return x;
  int64_t size = x->dims[x->rank - 1], rest = 1;
  for (int i = 0; i < x->rank - 1; ++i) rest *= x->dims[i];
  return tt_hlo_reshape(b, x, 2, (int64_t[]){rest, size});
}

static tt_axes axis_of_rows(const tt_value *x, const tt_value *rows, tt_axes axis) {
  return rows == x ? axis : tt_axes_range(1, 2);
}

// --- _softmax, _log_softmax ------------------------------------------------------------------------------------------

typedef tt_value *(*forward_fn)(tt_builder *b, tt_value *x, tt_axes axis);
typedef tt_value *(*backward_fn)(tt_builder *b, tt_value *grad, tt_value *output, tt_axes axis);

static bool check_float(tt_lowering *l, tt_dtype dtype) {
  if (!tt_dtype_is_float(dtype))
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"softmax\" not implemented for '%s'", tt_dtype_text(dtype));
  return !tt_failed(l);
}

// (self, dim, half_to_float): the declared output is float32 for half_to_float.
static void lower_forward(tt_lowering *l, forward_fn forward) {
  tt_value *x = tt_operand(l, 0);
  tt_dtype dtype = tt_output_dtype(l, 0, tt_bool(l, 2) ? TT_F32 : x->dtype);
  if (!check_float(l, x->dtype)) return;
  x = tt_hlo_convert(l->b, x, tt_compute_dtype(x->dtype));
  tt_axes axis = tt_axes_one(l, 1, x);
  tt_value *rows = as_rows(l->b, x, axis), *result = forward(l->b, rows, axis_of_rows(x, rows, axis));
  tt_set_result(l, 0, tt_hlo_convert(l->b, tt_hlo_reshape(l->b, result, x->rank, x->dims), dtype));
}

void tt_lower_softmax(tt_lowering *l) { lower_forward(l, softmax); }
void tt_lower_log_softmax(tt_lowering *l) { lower_forward(l, log_softmax); }

// (grad_output, output, dim, input_dtype)
static void lower_backward(tt_lowering *l, backward_fn backward) {
  tt_dtype output = tt_operand(l, 1)->dtype, wide = tt_compute_dtype(output);
  tt_value *grad = tt_operand_as(l, 0, wide), *y = tt_operand_as(l, 1, wide);
  tt_axes axis = tt_axes_one(l, 2, y);
  tt_value *rows = as_rows(l->b, y, axis);
  tt_value *result = backward(l->b, as_rows(l->b, grad, axis), rows, axis_of_rows(y, rows, axis));
  result = tt_hlo_reshape(l->b, result, y->rank, y->dims);
  tt_set_result(l, 0, tt_hlo_convert(l->b, result, tt_dtype_arg(l, 3, output)));
}

void tt_lower_softmax_backward(tt_lowering *l) { lower_backward(l, softmax_backward); }
void tt_lower_log_softmax_backward(tt_lowering *l) { lower_backward(l, log_softmax_backward); }

// --- _safe_softmax ---------------------------------------------------------------------------------------------------

// (self, dim, dtype?): rows of nothing but -inf, which are masked out whole, give zeros instead of NaN.
void tt_lower_safe_softmax(tt_lowering *l) {
  tt_value *x = tt_operand(l, 0);
  tt_dtype dtype = tt_dtype_arg(l, 2, x->dtype);
  if (!check_float(l, dtype)) return;
  x = tt_hlo_convert(l->b, tt_hlo_convert(l->b, x, dtype), tt_compute_dtype(dtype));
  tt_axes axis = tt_axes_one(l, 1, x);
  tt_value *greatest = tt_reduce(l->b, x, TT_REDUCE_MAX, axis);
  tt_value *nothing = tt_hlo_compare(l->b, TT_EQ, greatest, tt_hlo_constant_like(l->b, greatest, -__builtin_inf()));
  tt_value *result = softmax(l->b, x, axis);
  result = tt_hlo_select(l->b, tt_spread(l->b, nothing, x, axis), tt_hlo_constant_like(l->b, result, 0), result);
  tt_set_result(l, 0, tt_hlo_convert(l->b, result, dtype));
}

// --- _masked_softmax -------------------------------------------------------------------------------------------------

static bool dim_equals(const tt_value *x, int i, const tt_value *y, int j) { return x->dims[i] == y->dims[j]; }

// The mask in x's shape. A 2-d mask of a 4-d x [B, H, L, L] is [L, L] (type 0) or [B, L] (type 1).
static tt_value *spread_mask(tt_lowering *l, tt_value *mask, tt_value *x) {
  int64_t type = mask->rank == 2 && x->rank == 4 ? tt_int_or(l, 3, 2) : 2;
  const char *shape = NULL;
  if (mask->dtype != TT_BOOL) {
    tt_fail(l, TT_INVALID_ARGUMENT, "Mask should be a boolean tensor");
  } else if (type == 0) {
    if (!dim_equals(x, 2, mask, 0) || !dim_equals(x, 2, mask, 1)) shape = "be (L, L)";
  } else if (type == 1) {
    if (!dim_equals(x, 0, mask, 0) || !dim_equals(x, 2, mask, 1)) shape = "be (B, L)";
  } else if (!tt_value_same_shape(mask, x)) {
    shape = "match input shape";
  }
  if (shape) tt_fail(l, TT_INVALID_ARGUMENT, "For mask_type == %d mask shape should %s", (int)type, shape);
  if (tt_failed(l) || type == 2) return mask;
  return tt_hlo_broadcast_in_dim(l->b, mask, x->rank, x->dims, type == 0 ? (int[]){2, 3} : (int[]){0, 3});
}

// dim defaults to the last one.
static tt_axes dim_or_last(tt_lowering *l, int arg, const tt_value *x) {
  if (tt_has(l, arg)) return tt_axes_one(l, arg, x);
  return x->rank == 0 ? tt_axes_range(0, 0) : tt_axes_range(x->rank - 1, x->rank);
}

// (self, mask, dim?, mask_type?): true in the mask leaves the element out.
void tt_lower_masked_softmax(tt_lowering *l) {
  tt_value *x = tt_operand(l, 0), *mask = spread_mask(l, tt_operand(l, 1), x);
  tt_axes axis = dim_or_last(l, 2, x);
  if (!check_float(l, x->dtype)) return;
  tt_value *wide = tt_hlo_convert(l->b, x, tt_compute_dtype(x->dtype));
  wide = tt_hlo_select(l->b, mask, tt_hlo_constant_like(l->b, wide, -__builtin_inf()), wide);
  tt_set_result(l, 0, tt_hlo_convert(l->b, softmax(l->b, wide, axis), x->dtype));
}

// (grad_output, output, mask, dim?): what was left out counts for nothing and gets nothing, even where the output is NaN.
void tt_lower_masked_softmax_backward(tt_lowering *l) {
  tt_value *output = tt_operand(l, 1), *mask = tt_operand(l, 2);
  if (mask->dtype != TT_BOOL || !tt_value_same_shape(mask, output)) {
    tt_fail(l, TT_INVALID_ARGUMENT, "%s",
            mask->dtype != TT_BOOL ? "Mask should be a boolean tensor" : "Mask shape should match grad shape");
    return;
  }
  tt_value *y = tt_operand_as(l, 1, tt_compute_dtype(output->dtype));
  y = tt_hlo_select(l->b, mask, tt_hlo_constant_like(l->b, y, 0), y);
  tt_value *grad = tt_hlo_select(l->b, mask, tt_hlo_constant_like(l->b, y, 0), tt_operand_as(l, 0, y->dtype));
  tt_value *result = softmax_backward(l->b, grad, y, dim_or_last(l, 3, y));
  tt_set_result(l, 0, tt_hlo_convert(l->b, result, tt_operand(l, 0)->dtype));
}
