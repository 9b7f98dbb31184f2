// weight_norm.c - the gradient of torch's fused weight_norm: w = v * g / |v|, |v| over all dims but the first or the last one.
//
// The forward is torch's decomposition. Computes in float32 for narrower inputs.
#include "op/axes.h"

// _weight_norm_interface_backward(grad_w, saved_v, saved_g, saved_norms, dim) -> grad_v, grad_g
void tt_lower_weight_norm_backward(tt_lowering *l) {
  tt_builder *b = l->b;
  const tt_tensor *given_v = tt_tensor_arg(l, 1), *given_g = tt_tensor_arg(l, 2);
  tt_dtype compute = tt_compute_dtype(given_v->dtype);
  int64_t dim = tt_int(l, 4);
  if (!tt_dtype_is_float(given_v->dtype))
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"weight_norm_backward_kernel\" not implemented for '%s'",
            tt_dtype_text(given_v->dtype));
  else if (dim != 0 && dim != given_v->rank - 1)
    tt_fail(l, TT_INVALID_ARGUMENT, "fused kernels can only be applied for first or last dim");
  if (tt_failed(l)) return;
  tt_value *grad = tt_operand_as(l, 0, compute), *v = tt_operand_as(l, 1, compute);
  tt_value *g = tt_operand_as(l, 2, compute), *norms = tt_operand_as(l, 3, compute);
  const tt_axes axes = dim == 0 ? tt_axes_range(1, v->rank) : tt_axes_range(0, v->rank - 1);
  tt_value *dots = tt_keep_axes(b, tt_sum_computed(b, tt_hlo_multiply(b, grad, v), axes), v, axes);
  tt_value *grad_g = tt_hlo_divide(b, dots, norms), *scale = tt_hlo_divide(b, g, norms);
  // What points along v changes its length alone, which w does not see.
  tt_value *along = tt_mul(l, v, tt_hlo_divide(b, grad_g, norms));
  tt_set_result(l, 0, tt_hlo_convert(b, tt_mul(l, tt_hlo_subtract(b, grad, along), scale), given_v->dtype));
  tt_set_result(l, 1, tt_hlo_convert(b, grad_g, given_g->dtype));
}
