// norm.c - layer_norm, group_norm and rms_norm, and their gradients. batch_norm is in batch_norm.c.
//
// All compute in float32 for narrower inputs. The statistics of layer_norm and rms_norm are returned in the dtype of computation,
// as CUDA returns them; those of group_norm in the parameters' dtype, as both CPU and CUDA return them.
#include "op/norm.h"

// --- shared -----------------------------------------------------------------------------------------------------------------------

tt_dtype tt_arg_dtype(const tt_lowering *l, int arg, tt_dtype otherwise) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  return t ? t->dtype : otherwise;
}

bool tt_check_norm_dtypes(tt_lowering *l, const char *name, int input_arg, int weight_arg, int bias_arg) {
  tt_dtype input = tt_arg_dtype(l, input_arg, TT_F32);
  if (!tt_dtype_is_float(input)) {
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"%s\" not implemented for '%s'", name, tt_dtype_text(input));
    return false;
  }
  tt_dtype weight = tt_arg_dtype(l, weight_arg, tt_arg_dtype(l, bias_arg, input)), bias = tt_arg_dtype(l, bias_arg, weight);
  bool mixed = tt_dtype_is_narrow_float(input) && weight == TT_F32;
  if (weight == bias && (weight == input || mixed)) return true;
  tt_fail(l, TT_INVALID_ARGUMENT, "mixed dtype: expect parameter to have scalar type of Float");
  return false;
}

bool tt_wants(tt_lowering *l, int mask_arg, int index) {
  int count;
  const int64_t *mask = tt_ints(l, mask_arg, &count);
  return index < count && mask[index] != 0;
}

const char *tt_sizes_text(tt_lowering *l, int arg) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  return t ? tt_shape_text(tt_builder_arena(l->b), t->rank, t->sizes) : "[0]";
}

tt_value *tt_inverse_root(tt_builder *b, tt_value *x, tt_value *eps) {
  return tt_hlo_rsqrt(b, tt_hlo_add(b, x, tt_hlo_broadcast_like(b, eps, x)));
}

// --- layer_norm -------------------------------------------------------------------------------------------------------------------

static bool same_sizes(const tt_tensor *t, int count, const int64_t *sizes) {
  if (t->rank != count) return false;
  for (int i = 0; i < count; ++i) {
    if (t->sizes[i] != sizes[i]) return false;
  }
  return true;
}

static bool check_parameter_shape(tt_lowering *l, int arg, const char *name, int count, const int64_t *shape) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  if (!t || same_sizes(t, count, shape)) return true;
  tt_fail(l, TT_INVALID_ARGUMENT,
          "Expected %s to be of same shape as normalized_shape, but got %s of shape %s and normalized_shape = %s", name, name,
          tt_sizes_text(l, arg), tt_shape_text(tt_builder_arena(l->b), count, shape));
  return false;
}

// "[*, 3, 4]" without the opening bracket is what torch prints for the expected shape.
static bool check_normalized_shape(tt_lowering *l, const tt_value *x, int count, const int64_t *shape) {
  const char *text = tt_shape_text(tt_builder_arena(l->b), count, shape);
  if (count < 1) {
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got "
            "normalized_shape = %s", text);
    return false;
  }
  bool fits = x->rank >= count;
  for (int i = 0; fits && i < count; ++i) fits = x->dims[x->rank - count + i] == shape[i];
  if (!fits)
    tt_fail(l, TT_INVALID_ARGUMENT, "Given normalized_shape=%s, expected input with shape [*, %s, but got input of size%s", text,
            text + 1, tt_shape_text(tt_builder_arena(l->b), x->rank, x->dims));
  return fits;
}

// The axes of normalized_shape; false after a failure. weight_arg and bias_arg may be -1.
static bool normalized_axes(tt_lowering *l, const tt_value *x, int shape_arg, int weight_arg, int bias_arg, tt_axes *out_axes) {
  int count;
  const int64_t *shape = tt_ints(l, shape_arg, &count);
  if (tt_failed(l)) return false;
  *out_axes = tt_axes_range(x->rank >= count ? x->rank - count : 0, x->rank);
  return check_parameter_shape(l, weight_arg, "weight", count, shape) &&
         check_parameter_shape(l, bias_arg, "bias", count, shape) && check_normalized_shape(l, x, count, shape);
}

// x times the parameter, which has the sizes of x's last dimensions; x itself when it is absent.
static tt_value *times_parameter(tt_lowering *l, tt_value *x, int arg) {
  return tt_has(l, arg) ? tt_mul(l, x, tt_operand_as(l, arg, x->dtype)) : x;
}

// native_layer_norm(input, normalized_shape, weight?, bias?, eps) -> (out, mean, rstd)
void tt_lower_native_layer_norm(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *input = tt_operand(l, 0);
  tt_axes axes;
  if (!normalized_axes(l, input, 1, 2, 3, &axes) || !tt_check_norm_dtypes(l, "layer_norm", 0, 2, 3)) return;
  tt_value *x = tt_hlo_convert(b, input, tt_compute_dtype(input->dtype));
  tt_moments m = tt_moments_of(b, x, axes);
  tt_value *variance = tt_divide_by(b, m.squares, (double)tt_axes_size(x, axes));
  tt_value *rstd = tt_inverse_root(b, variance, tt_number(l, 4, x->dtype));
  tt_value *out = tt_hlo_multiply(b, tt_hlo_subtract(b, x, tt_spread(b, m.mean, x, axes)), tt_spread(b, rstd, x, axes));
  out = times_parameter(l, out, 2);
  if (tt_has(l, 3)) out = tt_add(l, out, tt_operand_as(l, 3, x->dtype));
  tt_set_result(l, 0, tt_hlo_convert(b, out, input->dtype));
  tt_set_result(l, 1, tt_keep_axes(b, m.mean, x, axes));
  tt_set_result(l, 2, tt_keep_axes(b, rstd, x, axes));
}

// native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight?, bias?, output_mask)
void tt_lower_native_layer_norm_backward(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *input = tt_operand(l, 1);
  tt_axes axes;
  if (!normalized_axes(l, input, 2, 5, 6, &axes)) return;
  tt_dtype wide = tt_compute_dtype(input->dtype);
  tt_axes rows = tt_axes_range(0, input->rank - axes.count);
  tt_value *x = tt_hlo_convert(b, input, wide), *grad = tt_operand_as(l, 0, wide), *rstd = tt_operand_as(l, 4, wide);
  tt_value *normal = tt_mul(l, tt_sub(l, x, tt_operand_as(l, 3, wide)), rstd);
  if (tt_wants(l, 7, 0)) {
    tt_value *scaled = times_parameter(l, grad, 5);
    tt_value *mean = tt_spread(b, tt_average(b, scaled, axes), x, axes);
    tt_value *slope = tt_spread(b, tt_average(b, tt_hlo_multiply(b, scaled, normal), axes), x, axes);
    tt_value *grad_input = tt_hlo_subtract(b, tt_hlo_subtract(b, scaled, mean), tt_hlo_multiply(b, normal, slope));
    tt_set_result(l, 0, tt_hlo_convert(b, tt_mul(l, grad_input, rstd), input->dtype));
  }
  tt_dtype weight = tt_arg_dtype(l, 5, input->dtype);
  if (tt_wants(l, 7, 1))
    tt_set_result(l, 1, tt_hlo_convert(b, tt_sum(b, tt_hlo_multiply(b, grad, normal), rows), weight));
  if (tt_wants(l, 7, 2)) tt_set_result(l, 2, tt_hlo_convert(b, tt_sum(b, grad, rows), tt_arg_dtype(l, 6, weight)));
}

// --- rms_norm ---------------------------------------------------------------------------------------------------------------------

// _fused_rms_norm(input, normalized_shape, weight?, eps?) -> (out, rstd); eps defaults to that of the dtype of computation.
void tt_lower_fused_rms_norm(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *input = tt_operand(l, 0);
  tt_axes axes;
  if (!normalized_axes(l, input, 1, 2, -1, &axes) || !tt_check_norm_dtypes(l, "rms_norm", 0, 2, -1)) return;
  tt_value *x = tt_hlo_convert(b, input, tt_compute_dtype(input->dtype));
  double eps = tt_double_or(l, 3, x->dtype == TT_F64 ? __DBL_EPSILON__ : (double)__FLT_EPSILON__);
  tt_value *rstd = tt_inverse_root(b, tt_average(b, tt_hlo_multiply(b, x, x), axes), tt_hlo_constant(b, x->dtype, eps));
  tt_value *out = times_parameter(l, tt_hlo_multiply(b, x, tt_spread(b, rstd, x, axes)), 2);
  tt_set_result(l, 0, tt_hlo_convert(b, out, input->dtype));
  tt_set_result(l, 1, tt_keep_axes(b, rstd, x, axes));
}

// _fused_rms_norm_backward(grad_out, input, normalized_shape, rstd, weight?, output_mask)
void tt_lower_fused_rms_norm_backward(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *input = tt_operand(l, 1);
  tt_axes axes;
  if (!normalized_axes(l, input, 2, 4, -1, &axes)) return;
  tt_dtype wide = tt_compute_dtype(input->dtype);
  tt_axes rows = tt_axes_range(0, input->rank - axes.count);
  tt_value *x = tt_hlo_convert(b, input, wide), *grad = tt_operand_as(l, 0, wide), *rstd = tt_operand_as(l, 3, wide);
  tt_value *normal = tt_mul(l, x, rstd);
  if (tt_wants(l, 5, 0)) {
    tt_value *scaled = times_parameter(l, grad, 4);
    tt_value *slope = tt_spread(b, tt_average(b, tt_hlo_multiply(b, scaled, normal), axes), x, axes);
    tt_value *grad_input = tt_hlo_subtract(b, scaled, tt_hlo_multiply(b, normal, slope));
    tt_set_result(l, 0, tt_hlo_convert(b, tt_mul(l, grad_input, rstd), input->dtype));
  }
  if (tt_wants(l, 5, 1) && tt_has(l, 4))
    tt_set_result(l, 1, tt_hlo_convert(b, tt_sum(b, tt_hlo_multiply(b, grad, normal), rows), tt_operand(l, 4)->dtype));
}

// --- group_norm -------------------------------------------------------------------------------------------------------------------

// x as [N, groups, C / groups, spatial...]. Only the channels are split: merging the spatial dimensions would copy a
// channels-last x.
static tt_value *in_groups(tt_builder *b, tt_value *x, int64_t groups) {
  int64_t dims[TT_AXES_MAX + 1];
  if (tt_builder_failed(b)) return x;
  dims[0] = x->dims[0];
  dims[1] = groups;
  dims[2] = x->dims[1] / groups;
  for (int i = 2; i < x->rank; ++i) dims[i + 1] = x->dims[i];
  return tt_hlo_reshape(b, x, x->rank + 1, dims);
}

// A parameter [C] in the shape of the grouped x.
static tt_value *spread_channels(tt_lowering *l, int arg, const tt_value *grouped) {
  tt_value *parameter = tt_hlo_reshape(l->b, tt_operand_as(l, arg, grouped->dtype), 2, grouped->dims + 1);
  return tt_hlo_broadcast_in_dim(l->b, parameter, grouped->rank, grouped->dims, (int[]){1, 2});
}

static bool check_group_parameter(tt_lowering *l, int arg, const char *name, const tt_value *input) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  if (!t || (t->rank == 1 && t->sizes[0] == input->dims[1])) return true;
  tt_fail(l, TT_INVALID_ARGUMENT,
          "Expected %s to be a vector of size equal to the number of channels in input, but got %s of shape %s and input of "
          "shape %s", name, name, tt_sizes_text(l, arg), tt_sizes_text(l, 0));
  return false;
}

static bool check_groups(tt_lowering *l, const tt_value *input, int64_t groups) {
  if (groups <= 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "Expected num groups to be greater than 0, got %lld", (long long)groups);
  else if (input->rank < 2)
    tt_fail(l, TT_INVALID_ARGUMENT, "Expected at least 2 dimensions for input tensor but received %d", input->rank);
  else if (input->dims[1] % groups != 0)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Expected number of channels in input to be divisible by num_groups, but got input of shape %s and num_groups=%lld",
            tt_sizes_text(l, 0), (long long)groups);
  return !tt_failed(l) && check_group_parameter(l, 1, "weight", input) && check_group_parameter(l, 2, "bias", input);
}

// native_group_norm(input, weight?, bias?, N, C, HxW, group, eps) -> (out, mean, rstd)
void tt_lower_native_group_norm(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *input = tt_operand(l, 0);
  int64_t groups = tt_int(l, 6);
  if (tt_failed(l) || !check_groups(l, input, groups) || !tt_check_norm_dtypes(l, "group_norm", 0, 1, 2)) return;
  tt_value *x = in_groups(b, tt_hlo_convert(b, input, tt_compute_dtype(input->dtype)), groups);
  tt_axes axes = tt_axes_range(2, x->rank);
  tt_moments m = tt_moments_of(b, x, axes);
  tt_value *variance = tt_divide_by(b, m.squares, (double)tt_axes_size(x, axes));
  tt_value *rstd = tt_inverse_root(b, variance, tt_number(l, 7, x->dtype));
  tt_value *out = tt_hlo_multiply(b, tt_hlo_subtract(b, x, tt_spread(b, m.mean, x, axes)), tt_spread(b, rstd, x, axes));
  if (tt_has(l, 1)) out = tt_hlo_multiply(b, out, spread_channels(l, 1, x));
  if (tt_has(l, 2)) out = tt_hlo_add(b, out, spread_channels(l, 2, x));
  tt_dtype statistics = tt_arg_dtype(l, 1, tt_arg_dtype(l, 2, input->dtype));
  tt_set_result(l, 0, tt_hlo_convert(b, tt_hlo_reshape(b, out, input->rank, input->dims), input->dtype));
  tt_set_channels_last(l, 0, tt_is_channels_last(l, 0));
  tt_set_result(l, 1, tt_hlo_convert(b, m.mean, statistics));
  tt_set_result(l, 2, tt_hlo_convert(b, rstd, statistics));
}

// Result `result` is the sum of the grouped x for each channel: over the pictures first, then over the batch.
static void set_channel_sum(tt_lowering *l, int result, tt_value *x, tt_dtype dtype) {
  tt_value *sum = tt_sum(l->b, tt_sum(l->b, x, tt_axes_range(3, x->rank)), tt_axes_range(0, 1));
  tt_set_result(l, result, tt_hlo_convert(l->b, tt_hlo_reshape(l->b, sum, 1, (int64_t[]){tt_value_count(sum)}), dtype));
}

// native_group_norm_backward(grad_out, input, mean, rstd, weight?, N, C, HxW, group, output_mask)
void tt_lower_native_group_norm_backward(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *input = tt_operand(l, 1);
  tt_dtype wide = tt_compute_dtype(input->dtype);
  int64_t groups = tt_int(l, 8);
  tt_value *x = in_groups(b, tt_hlo_convert(b, input, wide), groups), *grad = in_groups(b, tt_operand_as(l, 0, wide), groups);
  tt_axes axes = tt_axes_range(2, x->rank);
  tt_value *mean = tt_hlo_reshape(b, tt_operand_as(l, 2, wide), 2, x->dims);
  tt_value *rstd = tt_spread(b, tt_hlo_reshape(b, tt_operand_as(l, 3, wide), 2, x->dims), x, axes);
  tt_value *normal = tt_hlo_multiply(b, tt_hlo_subtract(b, x, tt_spread(b, mean, x, axes)), rstd);
  if (tt_wants(l, 9, 0)) {
    tt_value *scaled = tt_has(l, 4) ? tt_hlo_multiply(b, grad, spread_channels(l, 4, x)) : grad;
    tt_value *offset = tt_spread(b, tt_average(b, scaled, axes), x, axes);
    tt_value *slope = tt_spread(b, tt_average(b, tt_hlo_multiply(b, scaled, normal), axes), x, axes);
    tt_value *grad_input = tt_hlo_subtract(b, tt_hlo_subtract(b, scaled, offset), tt_hlo_multiply(b, normal, slope));
    grad_input = tt_hlo_reshape(b, tt_hlo_multiply(b, grad_input, rstd), input->rank, input->dims);
    tt_set_result(l, 0, tt_hlo_convert(b, grad_input, input->dtype));
    tt_set_channels_last(l, 0, tt_is_channels_last(l, 1));
  }
  tt_dtype weight = tt_arg_dtype(l, 4, input->dtype);
  if (tt_wants(l, 9, 1)) set_channel_sum(l, 1, tt_hlo_multiply(b, grad, normal), weight);
  if (tt_wants(l, 9, 2)) set_channel_sum(l, 2, grad, weight);
}
