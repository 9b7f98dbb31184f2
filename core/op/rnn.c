// rnn.c - the cells of nn.LSTM and nn.GRU and their gradients. torch steps through the sequence and multiplies by the weights.
//
// Formulas: the documentation of torch.nn.LSTM and torch.nn.GRU. Gates are blocks of the last dimension.
#include "op/axes.h"
#include "op/pointwise.h"
#include "op/transcendental.h"

// Block `block` of `count` equal ones of the last dimension.
static tt_value *part(tt_builder *b, tt_value *x, int block, int count) {
  int dim = x->rank - 1;
  int64_t size = x->dims[dim] / count;
  return tt_hlo_slice_dim(b, x, dim, block * size, (block + 1) * size, 1);
}

static tt_value *join(tt_builder *b, int count, tt_value *const *parts) {
  return tt_hlo_concatenate(b, count, parts, parts[0]->rank - 1);
}

// An operand plus an optional bias (of its last dimension), in the dtype of computation.
static tt_value *with_bias(tt_lowering *l, int arg, int bias) {
  tt_value *x = tt_operand(l, arg);
  x = tt_hlo_convert(l->b, x, tt_compute_dtype(x->dtype));
  return tt_has(l, bias) ? tt_add(l, x, tt_operand_as(l, bias, x->dtype)) : x;
}

static tt_value *operand_or_zeros(tt_lowering *l, int arg, const tt_value *like) {
  return tt_has(l, arg) ? tt_operand_as(l, arg, like->dtype) : tt_hlo_constant_like(l->b, like, 0);
}

static bool check_gates(tt_lowering *l, int gates) {
  tt_value *x = tt_operand(l, 0), *y = tt_operand(l, 1), *state = tt_operand(l, 2);
  bool fits = x->rank > 0 && tt_value_same_shape(x, y) && state->rank == x->rank &&
              x->dims[x->rank - 1] == gates * state->dims[x->rank - 1];
  if (!fits && !tt_failed(l))
    tt_fail(l, TT_INVALID_ARGUMENT, "gates of shapes %s and %s do not fit a state of shape %s",
            tt_shape_text(tt_builder_arena(l->b), x->rank, x->dims),
            tt_shape_text(tt_builder_arena(l->b), y->rank, y->dims),
            tt_shape_text(tt_builder_arena(l->b), state->rank, state->dims));
  return fits && !tt_failed(l);
}

// d/dx of the logistic function and of tanh, times `grad`, from the function's value y.
static tt_value *logistic_grad(tt_builder *b, tt_value *grad, tt_value *y) {
  return tt_hlo_multiply(b, grad, tt_hlo_multiply(b, y, tt_constant_minus(b, 1, y)));
}
static tt_value *tanh_grad(tt_builder *b, tt_value *grad, tt_value *y) {
  return tt_hlo_multiply(b, grad, tt_constant_minus(b, 1, tt_square(b, y)));
}

// The gradient of a bias: the sum over all but the last dimension.
static void set_bias_grad(tt_lowering *l, int result, tt_value *grad, tt_dtype dtype, bool has_bias) {
  if (has_bias)
    tt_set_result(l, result, tt_hlo_convert(l->b, tt_sum(l->b, grad, tt_axes_range(0, grad->rank - 1)), dtype));
  else
    tt_set_result(l, result, NULL);
}

// --- LSTM ------------------------------------------------------------------------------------------------------------------

// _thnn_fused_lstm_cell(input_gates, hidden_gates, cx, input_bias?, hidden_bias?) -> hy, cy, workspace: the four gates.
void tt_lower_lstm_cell(tt_lowering *l) {
  tt_builder *b = l->b;
  if (!check_gates(l, 4)) return;
  tt_dtype dtype = tt_operand(l, 0)->dtype;
  tt_value *gates = tt_add(l, with_bias(l, 0, 3), with_bias(l, 1, 4)), *cx = tt_operand_as(l, 2, gates->dtype);
  tt_value *activated[] = {
      tt_hlo_logistic(b, part(b, gates, 0, 4)),
      tt_hlo_logistic(b, part(b, gates, 1, 4)),
      tt_emit_tanh(b, part(b, gates, 2, 4)),
      tt_hlo_logistic(b, part(b, gates, 3, 4)),
  };
  tt_value *cy = tt_add(l, tt_mul(l, activated[1], cx), tt_mul(l, activated[0], activated[2]));
  tt_set_result(l, 0, tt_hlo_convert(b, tt_mul(l, activated[3], tt_emit_tanh(b, cy)), dtype));
  tt_set_result(l, 1, tt_hlo_convert(b, cy, dtype));
  tt_set_result(l, 2, tt_hlo_convert(b, join(b, 4, activated), dtype));
}

// _thnn_fused_lstm_cell_backward_impl(grad_hy?, grad_cy?, cx, cy, workspace, has_bias) -> grad of gates, of cx, of a bias.
void tt_lower_lstm_cell_backward(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *workspace = tt_operand(l, 4);
  tt_dtype dtype = workspace->dtype, compute = tt_compute_dtype(dtype);
  workspace = tt_hlo_convert(b, workspace, compute);
  tt_value *cx = tt_operand_as(l, 2, compute), *squashed = tt_emit_tanh(b, tt_operand_as(l, 3, compute));
  tt_value *in = part(b, workspace, 0, 4), *forget = part(b, workspace, 1, 4), *cell = part(b, workspace, 2, 4),
           *out = part(b, workspace, 3, 4);
  tt_value *grad_hy = operand_or_zeros(l, 0, cx), *grad_cy = operand_or_zeros(l, 1, cx);
  grad_cy = tt_add(l, grad_cy, tanh_grad(b, tt_mul(l, grad_hy, out), squashed));
  tt_value *grads[] = {
      logistic_grad(b, tt_mul(l, grad_cy, cell), in),
      logistic_grad(b, tt_mul(l, grad_cy, cx), forget),
      tanh_grad(b, tt_mul(l, grad_cy, in), cell),
      logistic_grad(b, tt_mul(l, grad_hy, squashed), out),
  };
  tt_value *gates = join(b, 4, grads);
  tt_set_result(l, 0, tt_hlo_convert(b, gates, dtype));
  tt_set_result(l, 1, tt_hlo_convert(b, tt_mul(l, grad_cy, forget), dtype));
  set_bias_grad(l, 2, gates, dtype, tt_bool(l, 5));
}

// --- GRU -------------------------------------------------------------------------------------------------------------------

// _thnn_fused_gru_cell(input_gates, hidden_gates, hx, input_bias?, hidden_bias?) -> hy, workspace: reset and update gate, new
// value, hx, and the hidden part of the new value.
void tt_lower_gru_cell(tt_lowering *l) {
  tt_builder *b = l->b;
  if (!check_gates(l, 3)) return;
  tt_dtype dtype = tt_operand(l, 0)->dtype;
  tt_value *in = with_bias(l, 0, 3), *hidden = with_bias(l, 1, 4), *hx = tt_operand_as(l, 2, in->dtype);
  tt_value *reset = tt_hlo_logistic(b, tt_add(l, part(b, in, 0, 3), part(b, hidden, 0, 3)));
  tt_value *update = tt_hlo_logistic(b, tt_add(l, part(b, in, 1, 3), part(b, hidden, 1, 3)));
  tt_value *memory = part(b, hidden, 2, 3);
  tt_value *fresh = tt_emit_tanh(b, tt_add(l, part(b, in, 2, 3), tt_mul(l, reset, memory)));
  tt_value *hy = tt_add(l, fresh, tt_mul(l, update, tt_sub(l, hx, fresh)));
  tt_set_result(l, 0, tt_hlo_convert(b, hy, dtype));
  tt_set_result(l, 1, tt_hlo_convert(b, join(b, 5, (tt_value *[]){reset, update, fresh, hx, memory}), dtype));
}

// _thnn_fused_gru_cell_backward(grad_hy, workspace, has_bias) -> grads of input gates, hidden gates, hx and the two biases.
void tt_lower_gru_cell_backward(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *workspace = tt_operand(l, 1);
  tt_dtype dtype = workspace->dtype;
  workspace = tt_hlo_convert(b, workspace, tt_compute_dtype(dtype));
  tt_value *grad = tt_operand_as(l, 0, workspace->dtype);
  tt_value *reset = part(b, workspace, 0, 5), *update = part(b, workspace, 1, 5), *fresh = part(b, workspace, 2, 5),
           *hx = part(b, workspace, 3, 5), *memory = part(b, workspace, 4, 5);
  tt_value *grad_update = logistic_grad(b, tt_mul(l, grad, tt_sub(l, hx, fresh)), update);
  tt_value *grad_fresh = tanh_grad(b, tt_mul(l, grad, tt_constant_minus(b, 1, update)), fresh);
  tt_value *grad_reset = logistic_grad(b, tt_mul(l, grad_fresh, memory), reset);
  tt_value *in = join(b, 3, (tt_value *[]){grad_reset, grad_update, grad_fresh});
  tt_value *hidden = join(b, 3, (tt_value *[]){grad_reset, grad_update, tt_mul(l, grad_fresh, reset)});
  tt_set_result(l, 0, tt_hlo_convert(b, in, dtype));
  tt_set_result(l, 1, tt_hlo_convert(b, hidden, dtype));
  tt_set_result(l, 2, tt_hlo_convert(b, tt_mul(l, grad, update), dtype));
  set_bias_grad(l, 3, in, dtype, tt_bool(l, 2));
  set_bias_grad(l, 4, hidden, dtype, tt_bool(l, 2));
}
