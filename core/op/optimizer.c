// optimizer.c - whole optimizer steps on lists of parameters, and the gradient scaler of mixed precision.
//
// One program updates all parameters. Results follow the written lists: parameters first, then gradients, then each list of
// state; what does not change is left unset. Hyperparameters are combined as float64 scalars, as torch's kernels do on the
// host: 1 - 0.999 in float32 is off in the fifth digit.
#include "op/pointwise.h"

typedef struct fused {
  tt_lowering *l;
  tt_builder *b;
  int count; // parameters
  bool maximize;
  tt_value *scale;  // the gradients' scale, F64 scalar; NULL when they are not scaled
  tt_value *skip;   // BOOL scalar: infinite gradients were found, nothing may change; NULL when not looked for
  int at;           // the parameter being updated, -1 before the first
  tt_dtype compute; // what it is computed in
} fused;

// --- hyperparameters ----------------------------------------------------------------------------------------------------------

static int64_t element_count(const tt_tensor *t) {
  int64_t count = 1;
  for (int i = 0; i < t->rank; ++i) count *= t->sizes[i];
  return count;
}

// In the words of Tensor.item().
static void check_scalar(tt_lowering *l, const tt_tensor *t) {
  if (t && element_count(t) != 1)
    tt_fail(l, TT_INVALID_ARGUMENT, "a Tensor with %lld elements cannot be converted to Scalar",
            (long long)element_count(t));
}

// A number, or a tensor of one element.
static tt_value *scalar(tt_lowering *l, int arg) {
  check_scalar(l, tt_tensor_arg(l, arg));
  return tt_hlo_reshape(l->b, tt_operand_as(l, arg, TT_F64), 0, NULL);
}

static tt_value *one_minus(tt_builder *b, tt_value *x) { return tt_constant_minus(b, 1, x); }

// The scalar as an operand of an elementwise op with `like`.
static tt_value *spread(fused *f, tt_value *scalar, tt_value *like) {
  return tt_hlo_broadcast_like(f->b, tt_hlo_convert(f->b, scalar, f->compute), like);
}

static tt_value *scaled(fused *f, tt_value *x, tt_value *scalar) {
  return tt_hlo_multiply(f->b, x, spread(f, scalar, x));
}

// x + y * scalar
static tt_value *add_scaled(fused *f, tt_value *x, tt_value *y, tt_value *scalar) {
  return tt_hlo_add(f->b, x, scaled(f, y, scalar));
}

// The steps taken by all parameters as one vector, so that what is made of them is computed once.
static tt_value *all_steps(fused *f, int arg) {
  tt_value **steps = tt_arena_allocate(tt_builder_arena(f->b), (size_t)f->count, sizeof *steps);
  if (!steps)
    return tt_builder_fail(f->b, tt_error(TT_OUT_OF_MEMORY, "out of host memory while lowering %s", f->l->op->name));
  if (tt_list_count(f->l, arg) != f->count)
    tt_fail(f->l, TT_INVALID_ARGUMENT, "Tensor lists must have the same number of tensors, got %d and %d", f->count,
            tt_list_count(f->l, arg));
  for (int i = 0; i < f->count; ++i) {
    check_scalar(f->l, tt_list_tensor(f->l, arg, i));
    steps[i] = tt_hlo_reshape(f->b, tt_list_operand_as(f->l, arg, i, TT_F32), 1, (int64_t[]){1});
  }
  return tt_hlo_convert(f->b, tt_hlo_concatenate(f->b, f->count, steps, 0), TT_F64);
}

// This parameter's entry of such a vector.
static tt_value *own(fused *f, tt_value *vector) {
  return tt_hlo_reshape(f->b, tt_hlo_slice_dim(f->b, vector, 0, f->at, f->at + 1, 1), 0, NULL);
}

// --- the frame of a step --------------------------------------------------------------------------------------------------------

// The last list may be empty: it is not looked at then.
static void check_lists(fused *f, int lists) {
  for (int list = 0; list < lists; ++list) {
    int count = tt_list_count(f->l, list);
    if (count != f->count && (count != 0 || list != lists - 1))
      tt_fail(f->l, TT_INVALID_ARGUMENT, "Tensor lists must have the same number of tensors, got %d and %d", f->count,
              count);
  }
}

// The first `lists` arguments are lists of tensors, parameters and gradients first; found_inf follows grad_scale. False when
// there is nothing to do.
static bool fused_begin(fused *f, tt_lowering *l, int lists, int maximize_arg, int grad_scale_arg) {
  *f = (fused){.l = l, .b = l->b, .count = tt_list_count(l, 0), .maximize = tt_bool(l, maximize_arg), .at = -1};
  check_lists(f, lists);
  if (tt_failed(l) || f->count == 0) return false;
  if (tt_has(l, grad_scale_arg)) f->scale = scalar(l, grad_scale_arg);
  if (tt_has(l, grad_scale_arg + 1)) f->skip = tt_compare_constant(l->b, TT_EQ, scalar(l, grad_scale_arg + 1), 1);
  return true;
}

static bool next_parameter(fused *f) {
  if (++f->at >= f->count || tt_failed(f->l)) return false;
  f->compute = tt_compute_dtype(tt_list_tensor(f->l, 0, f->at)->dtype);
  return true;
}

static tt_value *item(fused *f, int list) { return tt_list_operand_as(f->l, list, f->at, f->compute); }

// New value of this parameter's tensor in a written list; the old one stays when the step is skipped.
static void update(fused *f, int list, tt_value *value) {
  tt_value *old = tt_list_operand(f->l, list, f->at);
  value = tt_hlo_convert(f->b, value, old->dtype);
  if (f->skip) value = tt_hlo_select(f->b, tt_hlo_broadcast_to(f->b, f->skip, old->rank, old->dims), old, value);
  tt_set_result(f->l, list * f->count + f->at, value);
}

// The gradient to descend along. An unscaled gradient is written back.
static tt_value *begin_gradient(fused *f) {
  tt_value *gradient = item(f, 1);
  if (f->scale) {
    gradient = tt_hlo_divide(f->b, gradient, spread(f, f->scale, gradient));
    update(f, 1, gradient);
  }
  return f->maximize ? tt_hlo_negate(f->b, gradient) : gradient;
}

// --- SGD ------------------------------------------------------------------------------------------------------------------------

// (self, grads, momentum_buffers, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step, grad_scale,
// found_inf). Without momentum the list of buffers is empty.
void tt_lower_fused_sgd(tt_lowering *l) {
  fused f;
  if (!fused_begin(&f, l, 3, 8, 10)) return;
  tt_builder *b = l->b;
  tt_value *decay = scalar(l, 3), *momentum = scalar(l, 4), *minus_lr = tt_hlo_negate(b, scalar(l, 5));
  tt_value *undamped = one_minus(b, scalar(l, 6));
  bool nesterov = tt_bool(l, 7), first = tt_bool(l, 9), has_momentum = tt_list_count(l, 2) != 0;
  while (next_parameter(&f)) {
    tt_value *parameter = item(&f, 0), *gradient = add_scaled(&f, begin_gradient(&f), parameter, decay);
    if (has_momentum) {
      tt_value *buffer = first ? gradient : add_scaled(&f, scaled(&f, item(&f, 2), momentum), gradient, undamped);
      update(&f, 2, buffer);
      gradient = nesterov ? add_scaled(&f, gradient, buffer, momentum) : buffer;
    }
    update(&f, 0, add_scaled(&f, parameter, gradient, minus_lr));
  }
}

// --- Adam -----------------------------------------------------------------------------------------------------------------------

// (self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize,
// grad_scale, found_inf). The list of maxima is empty without amsgrad. `decoupled`: AdamW's weight decay.
static void lower_adam(tt_lowering *l, bool decoupled) {
  fused f;
  if (!fused_begin(&f, l, 5, 12, 13)) return;
  tt_builder *b = l->b;
  tt_value *lr = scalar(l, 6), *beta1 = scalar(l, 7), *beta2 = scalar(l, 8), *decay = scalar(l, 9),
           *eps = scalar(l, 10);
  bool amsgrad = tt_bool(l, 11);
  tt_value *rest1 = one_minus(b, beta1), *rest2 = one_minus(b, beta2),
           *kept = one_minus(b, tt_hlo_multiply(b, lr, decay));
  tt_value *steps = all_steps(&f, 5);
  tt_value *bias1 = one_minus(b, tt_hlo_power(b, tt_hlo_broadcast_like(b, beta1, steps), steps));
  tt_value *bias2 = one_minus(b, tt_hlo_power(b, tt_hlo_broadcast_like(b, beta2, steps), steps));
  tt_value *step_sizes = tt_hlo_divide(b, tt_hlo_broadcast_like(b, lr, steps), bias1), *roots = tt_hlo_sqrt(b, bias2);
  while (next_parameter(&f)) {
    tt_value *parameter = item(&f, 0), *gradient = begin_gradient(&f);
    if (decoupled)
      parameter = scaled(&f, parameter, kept);
    else
      gradient = add_scaled(&f, gradient, parameter, decay);
    tt_value *mean = add_scaled(&f, scaled(&f, item(&f, 2), beta1), gradient, rest1);
    tt_value *square = add_scaled(&f, scaled(&f, item(&f, 3), beta2), tt_square(b, gradient), rest2);
    update(&f, 2, mean);
    update(&f, 3, square);
    if (amsgrad) update(&f, 4, square = tt_hlo_maximum(b, item(&f, 4), square));
    tt_value *root = tt_hlo_divide(b, tt_hlo_sqrt(b, square), spread(&f, own(&f, roots), square));
    tt_value *denominator = tt_hlo_add(b, root, spread(&f, eps, square));
    tt_value *change = tt_hlo_divide(b, scaled(&f, mean, own(&f, step_sizes)), denominator);
    update(&f, 0, tt_hlo_subtract(b, parameter, change));
  }
}

void tt_lower_fused_adam(tt_lowering *l) { lower_adam(l, false); }
void tt_lower_fused_adamw(tt_lowering *l) { lower_adam(l, true); }

// --- Adagrad ----------------------------------------------------------------------------------------------------------------------

// (self, grads, state_sums, steps, lr, lr_decay, weight_decay, eps, maximize, grad_scale, found_inf)
void tt_lower_fused_adagrad(tt_lowering *l) {
  fused f;
  if (!fused_begin(&f, l, 3, 8, 9)) return;
  tt_builder *b = l->b;
  tt_value *decay = scalar(l, 6), *eps = scalar(l, 7);
  tt_value *steps = all_steps(&f, 3);
  tt_value *slowing = tt_hlo_multiply(b, tt_add_constant(b, steps, -1), tt_hlo_broadcast_like(b, scalar(l, 5), steps));
  tt_value *rates = tt_hlo_divide(b, tt_hlo_broadcast_like(b, scalar(l, 4), steps), tt_add_constant(b, slowing, 1));
  while (next_parameter(&f)) {
    tt_value *parameter = item(&f, 0), *gradient = add_scaled(&f, begin_gradient(&f), parameter, decay);
    tt_value *sum = tt_hlo_add(b, item(&f, 2), tt_square(b, gradient));
    update(&f, 2, sum);
    tt_value *denominator = tt_hlo_add(b, tt_hlo_sqrt(b, sum), spread(&f, eps, sum));
    tt_value *change = tt_hlo_divide(b, scaled(&f, gradient, own(&f, rates)), denominator);
    update(&f, 0, tt_hlo_subtract(b, parameter, change));
  }
}

// --- gradient scaler ----------------------------------------------------------------------------------------------------------------

static bool check_one_element(tt_lowering *l, int arg, const char *name, tt_dtype dtype, const char *dtype_name) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  if (element_count(t) != 1)
    tt_fail(l, TT_INVALID_ARGUMENT, "%s must be a 1-element tensor.", name);
  else if (t->dtype != dtype)
    tt_fail(l, TT_INVALID_ARGUMENT, "%s must be %s tensor.", name, dtype_name);
  return !tt_failed(l);
}

// (gradients, found_inf, inv_scale): multiplies the gradients; found_inf becomes 1 if one of them is not finite.
void tt_lower_amp_unscale(tt_lowering *l) {
  int count = tt_list_count(l, 0);
  bool fits = check_one_element(l, 2, "inv_scale", TT_F32, "a float") &&
              check_one_element(l, 1, "found_inf", TT_F32, "a float");
  if (count == 0 || !fits) return;
  tt_builder *b = l->b;
  tt_value *factor = tt_hlo_reshape(b, tt_operand(l, 2), 0, NULL);
  tt_value *finite = tt_hlo_constant(b, TT_BOOL, 1);
  int dims[64];
  for (int i = 0; i < 64; ++i) dims[i] = i;
  for (int i = 0; i < count; ++i) {
    tt_dtype dtype = tt_list_tensor(l, 0, i)->dtype;
    tt_value *x = tt_list_operand_as(l, 0, i, tt_compute_dtype(dtype));
    finite = tt_hlo_and(b, finite, tt_hlo_reduce(b, tt_hlo_is_finite(b, x), TT_REDUCE_AND, x->rank, dims));
    tt_value *unscaled = tt_hlo_multiply(b, x, tt_hlo_broadcast_like(b, tt_hlo_convert(b, factor, x->dtype), x));
    tt_set_result(l, i, tt_hlo_convert(b, unscaled, dtype));
  }
  tt_value *found = tt_operand(l, 1);
  tt_set_result(l, count,
                tt_hlo_select(b, tt_hlo_broadcast_to(b, finite, found->rank, found->dims), found,
                              tt_hlo_constant_like(b, found, 1)));
}

// (scale, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval): backs off after infinities, grows after
// `growth_interval` steps without them, unless the new scale were infinite.
void tt_lower_amp_update_scale(tt_lowering *l) {
  if (!check_one_element(l, 1, "growth_tracker", TT_S32, "an int") ||
      !check_one_element(l, 0, "current_scale", TT_F32, "a float") ||
      !check_one_element(l, 2, "found_inf", TT_F32, "a float"))
    return;
  tt_builder *b = l->b;
  tt_value *scale = tt_hlo_reshape(b, tt_operand(l, 0), 0, NULL);
  tt_value *tracker = tt_hlo_reshape(b, tt_operand(l, 1), 0, NULL);
  tt_value *found = tt_hlo_convert(b, tt_hlo_reshape(b, tt_operand(l, 2), 0, NULL), TT_BOOL);
  tt_value *wide = tt_hlo_convert(b, scale, TT_F64);
  tt_value *grown = tt_hlo_convert(b, tt_hlo_multiply(b, wide, scalar(l, 3)), TT_F32);
  tt_value *backed_off = tt_hlo_convert(b, tt_hlo_multiply(b, wide, scalar(l, 4)), TT_F32);
  tt_value *successes = tt_add_constant(b, tracker, 1);
  tt_value *due = tt_hlo_compare(b, TT_EQ, successes, tt_hlo_constant_i64(b, TT_S32, tt_int(l, 5)));
  tt_value *good = tt_hlo_select(b, tt_hlo_and(b, due, tt_hlo_is_finite(b, grown)), grown, scale);
  tt_value *new_scale = tt_hlo_select(b, found, backed_off, good);
  tt_value *new_tracker = tt_select_constant(b, tt_hlo_or(b, found, due), 0, successes);
  const tt_tensor *self = tt_tensor_arg(l, 0), *old = tt_tensor_arg(l, 1);
  tt_set_result(l, 0, tt_hlo_reshape(b, new_scale, self->rank, self->sizes));
  tt_set_result(l, 1, tt_hlo_reshape(b, new_tracker, old->rank, old->sizes));
}
