// loss.c - losses that compare a prediction with a target element by element, and their backwards.
//
// A loss is a formula per element and a reduction (0 none, 1 mean, 2 sum). Backward formulas get the gradient first, then
// prediction and target; the mean's 1 / count is a factor on the gradient.
#include "op/axes.h"
#include "op/pointwise.h"
#include "op/transcendental.h"

enum { REDUCE_NONE, REDUCE_MEAN, REDUCE_SUM };

static tt_value *reduced(tt_pointwise *p, tt_value *loss, int64_t reduction) {
  tt_axes all = tt_axes_range(0, loss->rank);
  if (reduction == REDUCE_MEAN) return tt_average(p->b, loss, all);
  return reduction == REDUCE_SUM ? tt_sum_computed(p->b, loss, all) : loss;
}

static void lower_loss(tt_lowering *l, tt_pointwise_fn formula, int reduction_arg) {
  tt_pointwise p = tt_pointwise_begin(l, 0, 2, NULL);
  tt_pointwise_set(&p, 0, reduced(&p, formula(&p), tt_int(l, reduction_arg)));
}

// The formula gives d loss / d prediction times the gradient; the mean is over the prediction's elements, as in torch.
static void lower_loss_backward(tt_lowering *l, tt_pointwise_fn formula, int reduction_arg) {
  tt_pointwise p = tt_pointwise_begin(l, 0, 3, NULL);
  if (tt_int(l, reduction_arg) == REDUCE_MEAN && !tt_failed(l))
    p.x[0] = tt_divide_constant(p.b, p.x[0], (double)tt_value_count(tt_operand(l, 1)));
  tt_pointwise_set(&p, 0, formula(&p));
}

// Prediction minus target, from operand `from` on.
static tt_value *difference(tt_pointwise *p, int from) { return tt_hlo_subtract(p->b, p->x[from], p->x[from + 1]); }

static tt_value *signed_like(tt_builder *b, tt_value *gradient, tt_value *difference) {
  return tt_hlo_multiply(b, gradient, tt_hlo_sign(b, difference));
}

// --- squares and their robust relatives ------------------------------------------------------------------------------------------

static tt_value *mse(tt_pointwise *p) { return tt_square(p->b, difference(p, 0)); }
static tt_value *mse_backward(tt_pointwise *p) {
  return tt_hlo_multiply(p->b, tt_multiply_constant(p->b, difference(p, 1), 2), p->x[0]);
}
void tt_lower_mse_loss(tt_lowering *l) { lower_loss(l, mse, 2); }
void tt_lower_mse_loss_backward(tt_lowering *l) { lower_loss_backward(l, mse_backward, 3); }

// Square within delta of the target, linear outside.
static tt_value *huber(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *distance = tt_hlo_abs(b, difference(p, 0)), *delta = tt_pointwise_number(p, 3);
  tt_value *near = tt_multiply_constant(b, tt_square(b, distance), 0.5);
  tt_value *far = tt_hlo_multiply(b, delta, tt_hlo_subtract(b, distance, tt_multiply_constant(b, delta, 0.5)));
  return tt_hlo_select(b, tt_hlo_compare(b, TT_LE, distance, delta), near, far);
}

static tt_value *huber_backward(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *x = difference(p, 1), *delta = tt_pointwise_number(p, 4);
  tt_value *slope = tt_hlo_clamp(b, tt_hlo_negate(b, delta), x, delta);
  return tt_hlo_multiply(b, p->x[0], slope);
}

void tt_lower_huber_loss(tt_lowering *l) {
  if (tt_double(l, 3) <= 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "huber_loss does not support non-positive values for delta.");
  else
    lower_loss(l, huber, 2);
}
void tt_lower_huber_loss_backward(tt_lowering *l) { lower_loss_backward(l, huber_backward, 3); }

// Huber's loss divided by beta; beta 0 is the absolute difference.
static tt_value *smooth_l1(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *distance = tt_hlo_abs(b, difference(p, 0)), *beta = tt_pointwise_number(p, 3);
  tt_value *near = tt_hlo_divide(b, tt_multiply_constant(b, tt_square(b, distance), 0.5), beta);
  tt_value *far = tt_hlo_subtract(b, distance, tt_multiply_constant(b, beta, 0.5));
  return tt_hlo_select(b, tt_hlo_compare(b, TT_LT, distance, beta), near, far);
}

static tt_value *smooth_l1_backward(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *x = difference(p, 1), *beta = tt_pointwise_number(p, 4);
  tt_value *near = tt_hlo_divide(b, tt_hlo_multiply(b, x, p->x[0]), beta);
  return tt_hlo_select(b, tt_hlo_compare(b, TT_LT, tt_hlo_abs(b, x), beta), near, signed_like(b, p->x[0], x));
}
void tt_lower_smooth_l1_loss(tt_lowering *l) { lower_loss(l, smooth_l1, 2); }
void tt_lower_smooth_l1_loss_backward(tt_lowering *l) { lower_loss_backward(l, smooth_l1_backward, 3); }

// log(1 + exp(-target * x)) for targets of 1 and -1.
static tt_value *soft_margin_exponential(tt_pointwise *p, int from) {
  return tt_hlo_exponential(p->b, tt_hlo_multiply(p->b, tt_hlo_negate(p->b, p->x[from]), p->x[from + 1]));
}

static tt_value *soft_margin(tt_pointwise *p) { return tt_emit_log1p(p->b, soft_margin_exponential(p, 0)); }

static tt_value *soft_margin_backward(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *z = soft_margin_exponential(p, 1);
  tt_value *share = tt_hlo_divide(b, z, tt_add_constant(b, z, 1));
  return tt_hlo_multiply(b, tt_hlo_multiply(b, tt_hlo_negate(b, p->x[2]), share), p->x[0]);
}
void tt_lower_soft_margin_loss(tt_lowering *l) { lower_loss(l, soft_margin, 2); }
void tt_lower_soft_margin_loss_backward(tt_lowering *l) { lower_loss_backward(l, soft_margin_backward, 3); }

// --- cross entropy of probabilities and logits -------------------------------------------------------------------------------------

static void check_unit_interval(tt_lowering *l, tt_value *x, const char *message) {
  tt_builder *b = l->b;
  tt_value *ok = tt_hlo_and(b, tt_compare_constant(b, TT_GE, x, 0), tt_compare_constant(b, TT_LE, x, 1));
  tt_check_all(l, ok, TT_INVALID_ARGUMENT, message);
}

static bool check_same_dtype(tt_lowering *l, int x, int y) {
  tt_dtype expected = tt_tensor_arg(l, x)->dtype, found = tt_tensor_arg(l, y)->dtype;
  if (expected == found) return true;
  tt_fail(l, TT_INVALID_ARGUMENT, "Found dtype %s but expected %s", tt_dtype_text(found), tt_dtype_text(expected));
  return false;
}

// value times the tensor of argument `arg`, if there is one; the operands are broadcast to its shape too.
static tt_value *weighted(tt_pointwise *p, tt_value *value, int arg) {
  if (!tt_has(p->l, arg)) return value;
  tt_value *weight = tt_pointwise_append(p, arg, p->compute);
  tt_hlo_broadcast_both(p->b, &value, &weight);
  return tt_hlo_multiply(p->b, value, weight);
}

// Logarithms are cut at -100, so that a wrong certainty costs 100 and not infinity.
static tt_value *bce(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *x = p->x[0], *target = p->x[1], *floor = tt_hlo_constant_like(b, x, -100);
  tt_value *of_one = tt_hlo_maximum(b, tt_hlo_log(b, x), floor);
  tt_value *of_zero = tt_hlo_maximum(b, tt_emit_log1p(b, tt_hlo_negate(b, x)), floor);
  tt_value *loss = tt_hlo_multiply(b, tt_add_constant(b, target, -1), of_zero);
  return tt_hlo_subtract(b, loss, tt_hlo_multiply(b, target, of_one));
}

void tt_lower_binary_cross_entropy(tt_lowering *l) {
  if (!check_same_dtype(l, 0, 1)) return;
  tt_pointwise p = tt_pointwise_begin(l, 0, 2, NULL);
  check_unit_interval(l, tt_operand(l, 0), "all elements of input should be between 0 and 1");
  check_unit_interval(l, tt_operand(l, 1), "all elements of target should be between 0 and 1");
  tt_pointwise_set(&p, 0, reduced(&p, weighted(&p, bce(&p), 2), tt_int(l, 3)));
}

static tt_value *bce_backward(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *x = p->x[1];
  tt_value *spread = tt_hlo_multiply(b, tt_constant_minus(b, 1, x), x);
  spread = tt_hlo_maximum(b, spread, tt_hlo_constant_like(b, x, 1e-12)); // torch's EPSILON
  return weighted(p, tt_hlo_divide(b, tt_hlo_multiply(b, p->x[0], difference(p, 1)), spread), 3);
}
void tt_lower_binary_cross_entropy_backward(tt_lowering *l) { lower_loss_backward(l, bce_backward, 4); }

// (1 - target) x - w log(sigmoid(x)), where w = (pos_weight - 1) target + 1 weighs the positive answers.
static tt_value *bce_with_logits(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *positive = tt_has(p->l, 3) ? tt_pointwise_append(p, 3, p->compute) : NULL;
  tt_value *x = p->x[0], *target = p->x[1];
  tt_value *bend = tt_emit_log1p(b, tt_hlo_exponential(b, tt_hlo_negate(b, tt_hlo_abs(b, x))));
  tt_value *log_sigmoid = tt_hlo_subtract(b, tt_hlo_minimum(b, x, tt_hlo_constant_like(b, x, 0)), bend);
  if (positive) {
    tt_value *weight = tt_add_constant(b, tt_hlo_multiply(b, tt_add_constant(b, positive, -1), target), 1);
    log_sigmoid = tt_hlo_multiply(b, log_sigmoid, weight);
  }
  return tt_hlo_subtract(b, tt_hlo_multiply(b, tt_constant_minus(b, 1, target), x), log_sigmoid);
}

void tt_lower_binary_cross_entropy_with_logits(tt_lowering *l) {
  tt_pointwise p = tt_pointwise_begin(l, 0, 2, NULL);
  tt_value *loss = bce_with_logits(&p);
  tt_pointwise_set(&p, 0, reduced(&p, weighted(&p, loss, 2), tt_int(l, 4)));
}
