// moment.c - variances: var, std, var_mean, std_mean.
#include "op/axes.h"

// Without enough elements the divisor is 0: NaN for one element and correction 1, as in torch.
static tt_value *variance(tt_builder *b, tt_value *squares, double size, double correction) {
  return tt_divide_by(b, squares, size > correction ? size - correction : 0);
}

// (self, dim?, correction?, keepdim) -> variance or its root, and the mean if wanted
static void lower_variance(tt_lowering *l, bool root, bool with_mean, const char *what) {
  tt_value *x = tt_operand(l, 0);
  if (tt_dtype_category(x->dtype) <= TT_CATEGORY_INTEGER) {
    tt_fail(l, TT_INVALID_ARGUMENT, "%s only support floating point and complex dtypes", what);
    return;
  }
  tt_axes axes = tt_axes_arg(l, 1, x);
  if (tt_failed(l)) return;
  tt_moments m = tt_moments_of(l->b, x, axes);
  tt_value *result = variance(l->b, m.squares, (double)tt_axes_size(x, axes), tt_double_or(l, 2, 1));
  if (root) result = tt_hlo_sqrt(l->b, result);
  tt_set_result(l, 0, tt_hlo_convert(l->b, tt_keep_axes_if(l, 3, result, x, axes), tt_dtype_real(x->dtype)));
  if (with_mean) tt_set_result(l, 1, tt_hlo_convert(l->b, tt_keep_axes_if(l, 3, m.mean, x, axes), x->dtype));
}

void tt_lower_var(tt_lowering *l) { lower_variance(l, false, false, "std and var"); }
void tt_lower_std(tt_lowering *l) { lower_variance(l, true, false, "std and var"); }
void tt_lower_var_mean(tt_lowering *l) { lower_variance(l, false, true, "var_mean"); }
void tt_lower_std_mean(tt_lowering *l) { lower_variance(l, true, true, "std_mean"); }
