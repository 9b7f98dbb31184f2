// activation.c - activation functions and their backwards.
//
// Backward formulas get the gradient first, x[0], and the activation's input (or output, where torch keeps that) second.
#include "op/pointwise.h"
#include "op/transcendental.h"

#include <math.h>
#include <string.h>

static tt_value *zero_like(tt_builder *b, tt_value *x) { return tt_hlo_constant_like(b, x, 0); }

// predicate ? 0 : x
static tt_value *zero_where(tt_builder *b, tt_value *predicate, tt_value *x) {
  return tt_select_constant(b, predicate, 0, x);
}

// --- relu and its relatives ---------------------------------------------------------------------------------------------------

static tt_value *relu(tt_pointwise *p) {
  if (p->common == TT_BOOL) tt_fail(p->l, TT_INVALID_ARGUMENT, "Boolean inputs not supported for relu");
  return tt_hlo_maximum(p->b, p->x[0], zero_like(p->b, p->x[0])); // NaN stays NaN
}
void tt_lower_relu(tt_lowering *l) { tt_pointwise_each(l, relu, 1, NULL); }

static tt_value *threshold(tt_pointwise *p) {
  for (int arg = 1; arg <= 2; ++arg) tt_require_fits(p->l, arg, p->common);
  tt_value *below = tt_hlo_compare(p->b, TT_LE, p->x[0], tt_pointwise_number(p, 1));
  return tt_hlo_select(p->b, below, tt_pointwise_number(p, 2), p->x[0]);
}
void tt_lower_threshold(tt_lowering *l) { tt_pointwise_each(l, threshold, 1, NULL); }

// Where the input is NaN the gradient passes.
static tt_value *threshold_backward(tt_pointwise *p) {
  return zero_where(p->b, tt_hlo_compare(p->b, TT_LE, p->x[1], tt_pointwise_number(p, 2)), p->x[0]);
}
void tt_lower_threshold_backward(tt_lowering *l) { tt_pointwise_each(l, threshold_backward, 2, NULL); }

static tt_value *leaky_relu(tt_pointwise *p) {
  tt_value *x = p->x[0];
  return tt_hlo_select(p->b, tt_compare_constant(p->b, TT_GT, x, 0), x,
                       tt_hlo_multiply(p->b, x, tt_pointwise_number(p, 1)));
}
void tt_lower_leaky_relu(tt_lowering *l) { tt_pointwise_each(l, leaky_relu, 1, NULL); }

static tt_value *leaky_relu_backward(tt_pointwise *p) {
  tt_value *sloped = tt_hlo_multiply(p->b, p->x[0], tt_pointwise_number(p, 2));
  return tt_hlo_select(p->b, tt_compare_constant(p->b, TT_GT, p->x[1], 0), p->x[0], sloped);
}
void tt_lower_leaky_relu_backward(tt_lowering *l) { tt_pointwise_each(l, leaky_relu_backward, 2, NULL); }

// x, weight; torch brings the weight to x's rank beforehand.
static bool check_prelu(tt_lowering *l, int self, int weight) {
  tt_dtype x = tt_tensor_arg(l, self)->dtype, w = tt_tensor_arg(l, weight)->dtype;
  if (x != w) tt_fail(l, TT_INVALID_ARGUMENT, "Found dtype %s but expected %s", tt_dtype_text(w), tt_dtype_text(x));
  return x == w;
}

tt_value *tt_emit_prelu(tt_builder *b, tt_value *x, tt_value *weight) {
  return tt_hlo_select(b, tt_compare_constant(b, TT_GT, x, 0), x, tt_hlo_multiply(b, weight, x));
}

static tt_value *prelu(tt_pointwise *p) { return tt_emit_prelu(p->b, p->x[0], p->x[1]); }

void tt_lower_prelu(tt_lowering *l) {
  if (check_prelu(l, 0, 1)) tt_pointwise_each(l, prelu, 2, NULL);
}

// (gradient, x, weight) -> gradients of x and, not yet summed to the weight's shape, of the weight.
void tt_lower_prelu_backward(tt_lowering *l) {
  if (!check_prelu(l, 1, 2)) return;
  tt_pointwise p = tt_pointwise_begin(l, 0, 3, NULL);
  tt_value *positive = tt_compare_constant(p.b, TT_GT, p.x[1], 0);
  tt_value *of_x = tt_hlo_select(p.b, positive, p.x[0], tt_hlo_multiply(p.b, p.x[2], p.x[0]));
  tt_pointwise_set(&p, 0, of_x);
  tt_pointwise_set(&p, 1, zero_where(p.b, positive, tt_hlo_multiply(p.b, p.x[1], p.x[0])));
}

// --- elu: scale * (x > 0 ? x : alpha * expm1(input_scale * x)) --------------------------------------------------------------------

static tt_value *elu(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *x = p->x[0], *scale = tt_pointwise_number(p, 2);
  tt_value *negative_scale = tt_hlo_multiply(b, tt_pointwise_number(p, 1), scale);
  tt_value *negative = tt_emit_expm1(b, tt_hlo_multiply(b, x, tt_pointwise_number(p, 3)));
  return tt_hlo_select(b, tt_compare_constant(b, TT_LE, x, 0), tt_hlo_multiply(b, negative, negative_scale),
                       tt_hlo_multiply(b, x, scale));
}
void tt_lower_elu(tt_lowering *l) { tt_pointwise_each(l, elu, 1, NULL); }

// (gradient, alpha, scale, input_scale, is_result, x or elu(x))
static tt_value *elu_backward(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *x = p->x[1], *scale = tt_pointwise_number(p, 2), *input_scale = tt_pointwise_number(p, 3);
  tt_value *negative_scale = tt_hlo_multiply(b, tt_pointwise_number(p, 1), scale);
  tt_value *slope = tt_bool(p->l, 4)
                        ? tt_hlo_add(b, x, negative_scale)
                        : tt_hlo_multiply(b, negative_scale, tt_hlo_exponential(b, tt_hlo_multiply(b, x, input_scale)));
  slope = tt_hlo_select(b, tt_compare_constant(b, TT_LE, x, 0), tt_hlo_multiply(b, slope, input_scale), scale);
  return tt_hlo_multiply(b, p->x[0], slope);
}
void tt_lower_elu_backward(tt_lowering *l) { tt_pointwise_each(l, elu_backward, 2, (int[]){0, 5}); }

// --- gelu -----------------------------------------------------------------------------------------------------------------------

// The tanh form's argument is sqrt(2 / pi) * (x + cubic * x^3).
static const double gelu_cubic = 0.044715, gelu_slope = M_2_SQRTPI * M_SQRT1_2;

static bool gelu_is_tanh(tt_pointwise *p, int arg) {
  const char *approximate = tt_text(p->l, arg);
  if (strcmp(approximate, "tanh") == 0) return true;
  if (strcmp(approximate, "none") != 0)
    tt_fail(p->l, TT_INVALID_ARGUMENT, "approximate argument must be either none or tanh.");
  return false;
}

static tt_value *gelu_tanh(tt_builder *b, tt_value *x) {
  tt_value *cubic = tt_multiply_constant(b, tt_hlo_multiply(b, tt_square(b, x), x), gelu_cubic);
  return tt_emit_tanh(b, tt_multiply_constant(b, tt_hlo_add(b, x, cubic), gelu_slope));
}

// The normal distribution function, (1 + erf(x / sqrt(2))) / 2.
static tt_value *normal_cdf(tt_builder *b, tt_value *x) {
  return tt_multiply_constant(b, tt_add_constant(b, tt_emit_erf(b, tt_multiply_constant(b, x, M_SQRT1_2)), 1), 0.5);
}

static tt_value *gelu(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *x = p->x[0];
  if (!gelu_is_tanh(p, 1)) return tt_hlo_multiply(b, x, normal_cdf(b, x));
  return tt_hlo_multiply(b, tt_multiply_constant(b, x, 0.5), tt_add_constant(b, gelu_tanh(b, x), 1));
}
void tt_lower_gelu(tt_lowering *l) { tt_pointwise_each(l, gelu, 1, NULL); }

static tt_value *gelu_derivative_tanh(tt_builder *b, tt_value *x) {
  tt_value *t = gelu_tanh(b, x);
  tt_value *left = tt_multiply_constant(b, tt_add_constant(b, t, 1), 0.5);
  tt_value *inner =
      tt_add_constant(b, tt_multiply_constant(b, tt_square(b, x), 3 * gelu_cubic * gelu_slope), gelu_slope);
  tt_value *right = tt_hlo_multiply(
      b, tt_hlo_multiply(b, tt_multiply_constant(b, x, 0.5), tt_constant_minus(b, 1, tt_square(b, t))), inner);
  return tt_hlo_add(b, left, right);
}

static tt_value *gelu_derivative(tt_builder *b, tt_value *x) {
  tt_value *density = tt_hlo_exponential(b, tt_multiply_constant(b, tt_square(b, x), -0.5));
  density = tt_multiply_constant(b, density, M_2_SQRTPI * M_SQRT1_2 * 0.5);
  return tt_hlo_add(b, normal_cdf(b, x), tt_hlo_multiply(b, x, density));
}

static tt_value *gelu_backward(tt_pointwise *p) {
  tt_value *x = p->x[1];
  return tt_hlo_multiply(p->b, p->x[0], gelu_is_tanh(p, 2) ? gelu_derivative_tanh(p->b, x) : gelu_derivative(p->b, x));
}
void tt_lower_gelu_backward(tt_lowering *l) { tt_pointwise_each(l, gelu_backward, 2, NULL); }

// --- sigmoid, tanh and what is made of them -----------------------------------------------------------------------------------

// gradient * conj(y (1 - y)) with y = sigmoid(x)
tt_value *tt_emit_sigmoid_backward(tt_builder *b, tt_value *gradient, tt_value *y) {
  return tt_hlo_multiply(b, gradient, tt_hlo_conj(b, tt_hlo_multiply(b, y, tt_constant_minus(b, 1, y))));
}

// gradient * conj(1 - y^2) with y = tanh(x)
tt_value *tt_emit_tanh_backward(tt_builder *b, tt_value *gradient, tt_value *y) {
  return tt_hlo_multiply(b, gradient, tt_hlo_conj(b, tt_constant_minus(b, 1, tt_square(b, y))));
}

// Divided, not multiplied by the logistic: x / (1 + exp(-x)) is what torch computes, also for complex numbers.
tt_value *tt_emit_silu(tt_builder *b, tt_value *x) {
  return tt_hlo_divide(b, x, tt_add_constant(b, tt_hlo_exponential(b, tt_hlo_negate(b, x)), 1));
}

tt_value *tt_emit_silu_backward(tt_builder *b, tt_value *gradient, tt_value *x) {
  tt_value *s = tt_hlo_logistic(b, x);
  tt_value *slope = tt_add_constant(b, tt_hlo_multiply(b, x, tt_constant_minus(b, 1, s)), 1);
  return tt_hlo_multiply(b, gradient, tt_hlo_conj(b, tt_hlo_multiply(b, s, slope)));
}

// tanh(log(1 + exp(x))), which is n / (n + 2) with n = e (e + 2), e = exp(x); 1 from 20 on.
static tt_value *tanh_softplus(tt_builder *b, tt_value *x) {
  tt_value *e = tt_hlo_exponential(b, tt_hlo_minimum(b, x, tt_hlo_constant_like(b, x, 20)));
  tt_value *n = tt_hlo_multiply(b, e, tt_add_constant(b, e, 2));
  return tt_hlo_divide(b, n, tt_add_constant(b, n, 2));
}

tt_value *tt_emit_mish(tt_builder *b, tt_value *x) { return tt_hlo_multiply(b, x, tanh_softplus(b, x)); }

tt_value *tt_emit_mish_backward(tt_builder *b, tt_value *gradient, tt_value *x) {
  tt_value *t = tanh_softplus(b, x);
  tt_value *bend =
      tt_hlo_multiply(b, tt_hlo_multiply(b, x, tt_hlo_logistic(b, x)), tt_constant_minus(b, 1, tt_square(b, t)));
  return tt_hlo_multiply(b, gradient, tt_hlo_add(b, t, bend));
}

// log(1 + exp(-|x|)): what softplus and log-sigmoid add to their linear part.
static tt_value *softplus_bend(tt_builder *b, tt_value *x) {
  return tt_emit_log1p(b, tt_hlo_exponential(b, tt_hlo_negate(b, tt_hlo_abs(b, x))));
}

// The second result is what torch's CPU kernel keeps for the backward, exp(-|x|); ours needs x only.
void tt_lower_log_sigmoid(tt_lowering *l) {
  tt_pointwise p = tt_pointwise_begin(l, 0, 1, NULL);
  tt_value *x = p.x[0];
  tt_pointwise_set(&p, 0, tt_hlo_subtract(p.b, tt_hlo_minimum(p.b, x, zero_like(p.b, x)), softplus_bend(p.b, x)));
  tt_pointwise_set(&p, 1, tt_hlo_exponential(p.b, tt_hlo_negate(p.b, tt_hlo_abs(p.b, x))));
}

tt_value *tt_emit_log_sigmoid_backward(tt_builder *b, tt_value *gradient, tt_value *x) {
  return tt_hlo_multiply(b, gradient, tt_hlo_logistic(b, tt_hlo_negate(b, x)));
}

// log(1 + exp(beta x)) / beta, linear from beta x > threshold on.
static tt_value *softplus(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *x = p->x[0], *beta = tt_pointwise_number(p, 1), *scaled = tt_hlo_multiply(b, x, beta);
  tt_value *linear = tt_hlo_compare(b, TT_GT, scaled, tt_pointwise_number(p, 2));
  tt_value *bent = tt_hlo_divide(b, tt_emit_log1p(b, tt_hlo_exponential(b, scaled)), beta);
  return tt_hlo_select(b, linear, x, bent);
}
void tt_lower_softplus(tt_lowering *l) { tt_pointwise_each(l, softplus, 1, NULL); }

static tt_value *softplus_backward(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *scaled = tt_hlo_multiply(b, p->x[1], tt_pointwise_number(p, 2));
  tt_value *linear = tt_hlo_compare(b, TT_GT, scaled, tt_pointwise_number(p, 3));
  return tt_hlo_select(b, linear, p->x[0], tt_hlo_multiply(b, p->x[0], tt_hlo_logistic(b, scaled)));
}
void tt_lower_softplus_backward(tt_lowering *l) { tt_pointwise_each(l, softplus_backward, 2, NULL); }

// --- hard activations: piecewise linear ------------------------------------------------------------------------------------------

// x + 3 cut to [0, 6]; NaN stays NaN.
static tt_value *relu6_of_shifted(tt_builder *b, tt_value *x) {
  tt_value *shifted = tt_hlo_maximum(b, tt_add_constant(b, x, 3), zero_like(b, x));
  return tt_hlo_minimum(b, shifted, tt_hlo_constant_like(b, x, 6));
}

tt_value *tt_emit_hardsigmoid(tt_builder *b, tt_value *x) { return tt_divide_constant(b, relu6_of_shifted(b, x), 6); }

tt_value *tt_emit_hardsigmoid_backward(tt_builder *b, tt_value *gradient, tt_value *x) {
  tt_value *inside = tt_hlo_and(b, tt_compare_constant(b, TT_GT, x, -3), tt_compare_constant(b, TT_LT, x, 3));
  return tt_hlo_select(b, inside, tt_divide_constant(b, gradient, 6), zero_like(b, x));
}

tt_value *tt_emit_hardswish(tt_builder *b, tt_value *x) {
  return tt_divide_constant(b, tt_hlo_multiply(b, x, relu6_of_shifted(b, x)), 6);
}

tt_value *tt_emit_hardswish_backward(tt_builder *b, tt_value *gradient, tt_value *x) {
  tt_value *slope = tt_add_constant(b, tt_divide_constant(b, x, 3), 0.5);
  tt_value *upper =
      tt_hlo_select(b, tt_compare_constant(b, TT_LT, x, 3), tt_hlo_multiply(b, gradient, slope), gradient);
  return zero_where(b, tt_compare_constant(b, TT_LE, x, -3), upper);
}

// torch's own order of checks. Limits of an integer tensor are cut to integers.
static bool check_hardtanh(tt_lowering *l) {
  const tt_tensor *self = tt_tensor_arg(l, 0);
  bool is_unsigned = tt_dtype_is_integral(self->dtype) && !tt_dtype_is_signed(self->dtype);
  if (self->dtype == TT_BOOL)
    tt_fail(l, TT_INVALID_ARGUMENT, "Bool inputs not supported for hardtanh");
  else if (is_unsigned && (tt_double(l, 1) < 0 || tt_double(l, 2) < 0))
    tt_fail(l, TT_INVALID_ARGUMENT, "cannot do hardtanh on an unsigned type with negative limits");
  return !tt_failed(l);
}

static tt_value *hardtanh(tt_pointwise *p) {
  tt_value *low = tt_pointwise_number(p, 1), *high = tt_pointwise_number(p, 2);
  return tt_hlo_minimum(p->b, tt_hlo_maximum(p->b, p->x[0], low), high);
}

void tt_lower_hardtanh(tt_lowering *l) {
  if (check_hardtanh(l)) tt_pointwise_each(l, hardtanh, 1, NULL);
}

static tt_value *hardtanh_backward(tt_pointwise *p) {
  tt_value *low = tt_hlo_compare(p->b, TT_LE, p->x[1], tt_pointwise_number(p, 2));
  tt_value *high = tt_hlo_compare(p->b, TT_GE, p->x[1], tt_pointwise_number(p, 3));
  return zero_where(p->b, tt_hlo_or(p->b, low, high), p->x[0]);
}
void tt_lower_hardtanh_backward(tt_lowering *l) { tt_pointwise_each(l, hardtanh_backward, 2, NULL); }

// -lambda <= x <= lambda, for x = operand `of` and lambda = argument `arg`.
static tt_value *is_shrunk(tt_pointwise *p, int of, int arg) {
  tt_value *lambda = tt_pointwise_number(p, arg), *x = p->x[of];
  return tt_hlo_and(p->b, tt_hlo_compare(p->b, TT_GE, x, tt_hlo_negate(p->b, lambda)),
                    tt_hlo_compare(p->b, TT_LE, x, lambda));
}

static tt_value *hardshrink(tt_pointwise *p) { return zero_where(p->b, is_shrunk(p, 0, 1), p->x[0]); }
static tt_value *shrink_backward(tt_pointwise *p) { return zero_where(p->b, is_shrunk(p, 1, 2), p->x[0]); }

void tt_lower_hardshrink(tt_lowering *l) { tt_pointwise_each(l, hardshrink, 1, NULL); }
void tt_lower_shrink_backward(tt_lowering *l) { tt_pointwise_each(l, shrink_backward, 2, NULL); }

static tt_value *softshrink(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *x = p->x[0], *lambda = tt_pointwise_number(p, 1);
  tt_value *above = tt_hlo_compare(b, TT_GT, x, lambda), *below = tt_hlo_compare(b, TT_LT, x, tt_hlo_negate(b, lambda));
  tt_value *middle = tt_multiply_constant(b, x, 0); // NaN stays NaN
  return tt_hlo_select(b, above, tt_hlo_subtract(b, x, lambda),
                       tt_hlo_select(b, below, tt_hlo_add(b, x, lambda), middle));
}
void tt_lower_softshrink(tt_lowering *l) { tt_pointwise_each(l, softshrink, 1, NULL); }

// --- glu: one half times the sigmoid of the other ----------------------------------------------------------------------------------

static bool check_halves(tt_lowering *l, const tt_tensor *self, int dim) {
  if (self->rank == 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "glu does not support 0-dimensional tensors");
  else if (!tt_failed(l) && self->sizes[dim] % 2 != 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "Halving dimension must be even, but dimension %d is size %lld", dim,
            (long long)self->sizes[dim]);
  return !tt_failed(l);
}

static tt_value *half(tt_builder *b, tt_value *x, int dim, int which) {
  int64_t size = x->dims[dim] / 2;
  return tt_hlo_slice_dim(b, x, dim, which * size, (which + 1) * size, 1);
}

void tt_lower_glu(tt_lowering *l) {
  const tt_tensor *self = tt_tensor_arg(l, 0);
  int dim = tt_wrap_dim(l, tt_int(l, 1), self->rank);
  if (!check_halves(l, self, dim)) return;
  tt_pointwise p = tt_pointwise_begin(l, 0, 1, NULL);
  tt_value *gate = tt_hlo_logistic(p.b, half(p.b, p.x[0], dim, 1));
  tt_pointwise_set(&p, 0, tt_hlo_multiply(p.b, half(p.b, p.x[0], dim, 0), gate));
}

void tt_lower_glu_backward(tt_lowering *l) {
  const tt_tensor *self = tt_tensor_arg(l, 1);
  int dim = tt_wrap_dim(l, tt_int(l, 2), self->rank);
  if (!check_halves(l, self, dim)) return;
  tt_pointwise p = tt_pointwise_begin(l, 0, 1, (int[]){1});
  tt_value *gradient = tt_operand_as(l, 0, p.compute);
  tt_value *gate = tt_hlo_logistic(p.b, half(p.b, p.x[0], dim, 1));
  tt_value *first = tt_hlo_multiply(p.b, gradient, gate);
  tt_value *second = tt_hlo_multiply(p.b, first, tt_constant_minus(p.b, 1, gate));
  second = tt_hlo_multiply(p.b, second, half(p.b, p.x[0], dim, 0));
  tt_pointwise_set(&p, 0, tt_hlo_concatenate(p.b, 2, (tt_value *[]){first, second}, dim));
}

// What the derivatives of glu along (dx) share: the gate, its slope and the halves of x and dx.
typedef struct glu_parts {
  tt_value *gate, *slope, *first, *first_change, *second_change;
} glu_parts;

static glu_parts glu_parts_of(tt_pointwise *p, int change_arg, int dim) {
  tt_value *x = p->x[0], *change = tt_operand_as(p->l, change_arg, p->compute);
  tt_value *gate = tt_hlo_logistic(p->b, half(p->b, x, dim, 1));
  return (glu_parts){.gate = gate,
                     .slope = tt_hlo_multiply(p->b, gate, tt_constant_minus(p->b, 1, gate)),
                     .first = half(p->b, x, dim, 0),
                     .first_change = half(p->b, change, dim, 0),
                     .second_change = half(p->b, change, dim, 1)};
}

// (glu, x, dx, dim): how the result changes with x.
void tt_lower_glu_jvp(tt_lowering *l) {
  const tt_tensor *self = tt_tensor_arg(l, 1);
  int dim = tt_wrap_dim(l, tt_int(l, 3), self->rank);
  if (!check_halves(l, self, dim)) return;
  tt_pointwise p = tt_pointwise_begin(l, 0, 1, (int[]){1});
  glu_parts g = glu_parts_of(&p, 2, dim);
  tt_value *by_gate = tt_hlo_multiply(p.b, tt_hlo_multiply(p.b, g.first, g.slope), g.second_change);
  tt_pointwise_set(&p, 0, tt_hlo_add(p.b, tt_hlo_multiply(p.b, g.gate, g.first_change), by_gate));
}

// (grad_x, grad_glu, x, dgrad_glu, dx, dim): how glu_backward's result changes with grad_glu and x.
void tt_lower_glu_backward_jvp(tt_lowering *l) {
  const tt_tensor *self = tt_tensor_arg(l, 2);
  int dim = tt_wrap_dim(l, tt_int(l, 5), self->rank);
  if (!check_halves(l, self, dim)) return;
  tt_pointwise p = tt_pointwise_begin(l, 0, 1, (int[]){2});
  tt_builder *b = p.b;
  glu_parts g = glu_parts_of(&p, 4, dim);
  tt_value *gradient = tt_operand_as(l, 1, p.compute), *gradient_change = tt_operand_as(l, 3, p.compute);
  tt_value *gate_change = tt_hlo_multiply(b, g.slope, g.second_change);
  tt_value *slope_change = tt_hlo_multiply(b, gate_change, tt_constant_minus(b, 1, tt_hlo_add(b, g.gate, g.gate)));
  tt_value *first =
      tt_hlo_add(b, tt_hlo_multiply(b, gradient_change, g.gate), tt_hlo_multiply(b, gradient, gate_change));
  // gradient * slope * first half, by the product rule
  tt_value *inner =
      tt_hlo_add(b, tt_hlo_multiply(b, slope_change, g.first), tt_hlo_multiply(b, g.slope, g.first_change));
  tt_value *second = tt_hlo_multiply(b, gradient_change, tt_hlo_multiply(b, g.slope, g.first));
  second = tt_hlo_add(b, second, tt_hlo_multiply(b, gradient, inner));
  tt_pointwise_set(&p, 0, tt_hlo_concatenate(b, 2, (tt_value *[]){first, second}, dim));
}
