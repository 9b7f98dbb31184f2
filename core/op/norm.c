// norm.c - layer_norm, group_norm and rms_norm, and their gradients. batch_norm is in batch_norm.c.
//
// All compute in float32 for narrower inputs. The statistics of layer_norm and rms_norm are returned in the dtype of
// computation, as CUDA returns them; those of group_norm in the parameters' dtype, as both CPU and CUDA return them.
#include "op/norm.h"

// --- shared ----------------------------------------------------------------------------------------------------------

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
  tt_dtype weight = tt_arg_dtype(l, weight_arg, tt_arg_dtype(l, bias_arg, input)),
           bias = tt_arg_dtype(l, bias_arg, weight);
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

tt_value *tt_channels_to_end(tt_builder *b, tt_value *x, bool last) {
  if (!last || tt_builder_failed(b)) return x;
  int order[TT_AXES_MAX] = {0};
  for (int i = 1; i < x->rank; ++i) order[i] = i < x->rank - 1 ? i + 1 : 1;
  return tt_hlo_transpose(b, x, order);
}

tt_value *tt_channels_from_end(tt_builder *b, tt_value *x, bool last) {
  if (!last || tt_builder_failed(b)) return x;
  int order[TT_AXES_MAX] = {0};
  for (int i = 1; i < x->rank; ++i) order[i] = i == 1 ? x->rank - 1 : i - 1;
  return tt_hlo_transpose(b, x, order);
}

tt_value *tt_inverse_root(tt_builder *b, tt_value *x, tt_value *eps) {
  return tt_hlo_rsqrt(b, tt_hlo_add(b, x, tt_hlo_broadcast_like(b, eps, x)));
}

// --- layer_norm ------------------------------------------------------------------------------------------------------

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
          "Expected %s to be of same shape as normalized_shape, but got %s of shape %s and normalized_shape = %s", name,
          name, tt_sizes_text(l, arg), tt_shape_text(tt_builder_arena(l->b), count, shape));
  return false;
}

// "[*, 3, 4]" without the opening bracket is what torch prints for the expected shape.
static bool check_normalized_shape(tt_lowering *l, const tt_value *x, int count, const int64_t *shape) {
  const char *text = tt_shape_text(tt_builder_arena(l->b), count, shape);
  if (count < 1) {
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got "
            "normalized_shape = %s",
            text);
    return false;
  }
  bool fits = x->rank >= count;
  for (int i = 0; fits && i < count; ++i) fits = x->dims[x->rank - count + i] == shape[i];
  if (!fits)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Given normalized_shape=%s, expected input with shape [*, %s, but got input of size%s", text, text + 1,
            tt_shape_text(tt_builder_arena(l->b), x->rank, x->dims));
  return fits;
}

// The axes of normalized_shape; false after a failure. weight_arg and bias_arg may be -1.
static bool normalized_axes(tt_lowering *l, const tt_value *x, int shape_arg, int weight_arg, int bias_arg,
                            tt_axes *out_axes) {
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

// The average over axes of x times the parameter.
static tt_value *weighted_average(tt_lowering *l, tt_value *x, int arg, tt_axes axes) {
  tt_value *weight = tt_has(l, arg) ? tt_operand_as(l, arg, x->dtype) : NULL;
  return tt_divide_by(l->b, tt_weighted_sum(l->b, x, weight, axes), (double)tt_axes_size(x, axes));
}

// native_layer_norm(input, normalized_shape, weight?, bias?, eps) -> (out, mean, rstd)
void tt_lower_native_layer_norm(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *input = tt_operand(l, 0);
  tt_axes axes;
  if (!normalized_axes(l, input, 1, 2, 3, &axes) || !tt_check_norm_dtypes(l, "layer_norm", 0, 2, 3)) return;
  tt_moments m = tt_moments_of(b, input, axes);
  tt_value *x = tt_hlo_convert(b, input, m.mean->dtype);
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
  tt_value *product = tt_hlo_multiply(b, grad, normal);
  if (tt_wants(l, 7, 0)) {
    tt_value *scaled = times_parameter(l, grad, 5);
    tt_value *mean = tt_spread(b, weighted_average(l, grad, 5, axes), x, axes);
    tt_value *slope = tt_spread(b, weighted_average(l, product, 5, axes), x, axes);
    tt_value *grad_input = tt_hlo_subtract(b, tt_hlo_subtract(b, scaled, mean), tt_hlo_multiply(b, normal, slope));
    tt_set_result(l, 0, tt_hlo_convert(b, tt_mul(l, grad_input, rstd), input->dtype));
  }
  tt_dtype weight = tt_arg_dtype(l, 5, input->dtype);
  if (tt_wants(l, 7, 1)) tt_set_result(l, 1, tt_hlo_convert(b, tt_sum_computed(b, product, rows), weight));
  if (tt_wants(l, 7, 2)) tt_set_result(l, 2, tt_hlo_convert(b, tt_sum(b, grad, rows), tt_arg_dtype(l, 6, weight)));
}

// --- rms_norm --------------------------------------------------------------------------------------------------------

// _fused_rms_norm(input, normalized_shape, weight?, eps?) -> (out, rstd); eps defaults to that of the dtype of computation.
void tt_lower_fused_rms_norm(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *input = tt_operand(l, 0);
  tt_axes axes;
  if (!normalized_axes(l, input, 1, 2, -1, &axes) || !tt_check_norm_dtypes(l, "rms_norm", 0, 2, -1)) return;
  tt_value *x = tt_hlo_convert(b, input, tt_compute_dtype(input->dtype));
  tt_value *squares = tt_sum_computed(b, tt_hlo_multiply(b, x, x), axes);
  double eps = tt_double_or(l, 3, x->dtype == TT_F64 ? __DBL_EPSILON__ : (double)__FLT_EPSILON__);
  tt_value *rstd =
      tt_inverse_root(b, tt_divide_by(b, squares, (double)tt_axes_size(x, axes)), tt_hlo_constant(b, x->dtype, eps));
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
  tt_value *normal = tt_mul(l, x, rstd), *product = tt_hlo_multiply(b, grad, normal);
  if (tt_wants(l, 5, 0)) {
    tt_value *scaled = times_parameter(l, grad, 4);
    tt_value *slope = tt_spread(b, weighted_average(l, product, 4, axes), x, axes);
    tt_value *grad_input = tt_hlo_subtract(b, scaled, tt_hlo_multiply(b, normal, slope));
    tt_set_result(l, 0, tt_hlo_convert(b, tt_mul(l, grad_input, rstd), input->dtype));
  }
  if (tt_wants(l, 5, 1) && tt_has(l, 4))
    tt_set_result(l, 1, tt_hlo_convert(b, tt_sum_computed(b, product, rows), tt_operand(l, 4)->dtype));
}

// --- group_norm ------------------------------------------------------------------------------------------------------
// Sums go over the pictures first: everything else happens on [N, C] and [N, groups].

// A batch of pictures with its channels in dimension 1, or last for a channels-last tensor.
typedef struct pictures {
  tt_axes space; // the pictures' dimensions
  int64_t batch, channels, groups;
  double group_size; // elements that share statistics
} pictures;

static pictures pictures_of(const tt_value *input, int64_t groups, bool last) {
  pictures p = {.batch = input->dims[0], .channels = input->dims[1], .groups = groups};
  p.space = last ? tt_axes_range(1, input->rank - 1) : tt_axes_range(2, input->rank);
  p.group_size = (double)(p.channels / groups) * (double)tt_axes_size(input, tt_axes_range(2, input->rank));
  return p;
}

// [N, C] to [N, groups].
static tt_value *sum_groups(tt_builder *b, tt_value *x, const pictures *p) {
  tt_value *grouped = tt_hlo_reshape(b, x, 3, (int64_t[]){p->batch, p->groups, p->channels / p->groups});
  return tt_sum(b, grouped, tt_axes_range(2, 3));
}

// [N, groups], of any rank, to [N, C].
static tt_value *spread_groups(tt_builder *b, tt_value *x, const pictures *p) {
  int64_t grouped[] = {p->batch, p->groups, p->channels / p->groups}, flat[] = {p->batch, p->channels};
  x = tt_hlo_broadcast_in_dim(b, tt_hlo_reshape(b, x, 2, grouped), 3, grouped, (int[]){0, 1});
  return tt_hlo_reshape(b, x, 2, flat);
}

// [N, C] times a parameter [C], if it is there.
static tt_value *times_channels(tt_lowering *l, tt_value *x, int arg) {
  return tt_has(l, arg) ? tt_mul(l, x, tt_operand_as(l, arg, x->dtype)) : x;
}

static bool check_group_parameter(tt_lowering *l, int arg, const char *name, const tt_value *input) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  if (!t || (t->rank == 1 && t->sizes[0] == input->dims[1])) return true;
  tt_fail(l, TT_INVALID_ARGUMENT,
          "Expected %s to be a vector of size equal to the number of channels in input, but got %s of shape %s and "
          "input of "
          "shape %s",
          name, name, tt_sizes_text(l, arg), tt_sizes_text(l, 0));
  return false;
}

static bool check_groups(tt_lowering *l, const tt_value *input, int64_t groups) {
  if (groups <= 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "Expected num groups to be greater than 0, got %lld", (long long)groups);
  else if (input->rank < 2)
    tt_fail(l, TT_INVALID_ARGUMENT, "Expected at least 2 dimensions for input tensor but received %d", input->rank);
  else if (input->dims[1] % groups != 0)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Expected number of channels in input to be divisible by num_groups, but got input of shape %s and "
            "num_groups=%lld",
            tt_sizes_text(l, 0), (long long)groups);
  return !tt_failed(l) && check_group_parameter(l, 1, "weight", input) && check_group_parameter(l, 2, "bias", input);
}

// native_group_norm(input, weight?, bias?, N, C, HxW, group, eps) -> (out, mean, rstd)
void tt_lower_native_group_norm(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *input = tt_operand(l, 0);
  int64_t groups = tt_int(l, 6);
  if (tt_failed(l) || !check_groups(l, input, groups) || !tt_check_norm_dtypes(l, "group_norm", 0, 1, 2)) return;
  bool last = tt_is_channels_last(l, 0);
  pictures p = pictures_of(input, groups, last);
  tt_value *arranged = tt_channels_to_end(b, input, last);
  tt_value *mean = tt_divide_by(b, sum_groups(b, tt_sum_operand(b, arranged, p.space), &p), p.group_size);
  tt_value *x = tt_hlo_convert(b, arranged, mean->dtype);
  tt_value *distance = tt_hlo_subtract(b, x, tt_spread(b, spread_groups(b, mean, &p), x, p.space));
  tt_value *squares = sum_groups(b, tt_sum_computed(b, tt_hlo_multiply(b, distance, distance), p.space), &p);
  tt_value *rstd = tt_inverse_root(b, tt_divide_by(b, squares, p.group_size), tt_number(l, 7, x->dtype));
  tt_value *scale = times_channels(l, spread_groups(b, rstd, &p), 1);
  tt_value *out = tt_hlo_multiply(b, distance, tt_spread(b, scale, x, p.space));
  if (tt_has(l, 2)) {
    tt_value *bias = tt_hlo_broadcast_like(b, tt_operand_as(l, 2, x->dtype), scale);
    out = tt_hlo_add(b, out, tt_spread(b, bias, x, p.space));
  }
  tt_dtype statistics = tt_arg_dtype(l, 1, tt_arg_dtype(l, 2, input->dtype));
  tt_set_result(l, 0, tt_channels_from_end(b, tt_hlo_convert(b, out, input->dtype), last));
  tt_set_channels_last(l, 0, last);
  tt_set_result(l, 1, tt_hlo_convert(b, mean, statistics));
  tt_set_result(l, 2, tt_hlo_convert(b, rstd, statistics));
}

// The average over each group of [N, C] sums, weighted by the parameter; [N, C].
static tt_value *group_average(tt_lowering *l, tt_value *sums, int arg, const pictures *p) {
  tt_value *average = tt_divide_by(l->b, sum_groups(l->b, times_channels(l, sums, arg), p), p->group_size);
  return spread_groups(l->b, average, p);
}

// native_group_norm_backward(grad_out, input, mean, rstd, weight?, N, C, HxW, group, output_mask)
void tt_lower_native_group_norm_backward(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *input = tt_operand(l, 1);
  tt_dtype wide = tt_compute_dtype(input->dtype), weight = tt_arg_dtype(l, 4, input->dtype);
  bool last = tt_is_channels_last(l, 1);
  int64_t groups = tt_int(l, 8);
  if (groups <= 0 || input->rank < 2) tt_fail(l, TT_MISMATCH, "%lld groups of %d dims", (long long)groups, input->rank);
  if (tt_failed(l)) return;
  pictures p = pictures_of(input, groups, last);
  tt_value *x = tt_channels_to_end(b, tt_hlo_convert(b, input, wide), last);
  tt_value *narrow = tt_channels_to_end(b, tt_operand(l, 0), last), *grad = tt_hlo_convert(b, narrow, wide);
  tt_value *rstd = spread_groups(b, tt_operand_as(l, 3, wide), &p);
  tt_value *normal = tt_hlo_subtract(b, x, tt_spread(b, spread_groups(b, tt_operand_as(l, 2, wide), &p), x, p.space));
  normal = tt_hlo_multiply(b, normal, tt_spread(b, rstd, x, p.space));
  tt_value *sums = tt_sum_operand(b, narrow, p.space);
  tt_value *slopes = tt_sum_computed(b, tt_hlo_multiply(b, grad, normal), p.space);
  if (tt_wants(l, 9, 0)) { // (grad * weight - average - normal * slope) * rstd
    tt_value *scale = times_channels(l, rstd, 4);
    tt_value *offset = tt_hlo_multiply(b, group_average(l, sums, 4, &p), rstd);
    tt_value *slope = tt_hlo_multiply(b, group_average(l, slopes, 4, &p), rstd);
    tt_value *result = tt_hlo_subtract(b, tt_hlo_multiply(b, grad, tt_spread(b, scale, x, p.space)),
                                       tt_hlo_multiply(b, normal, tt_spread(b, slope, x, p.space)));
    result = tt_hlo_subtract(b, result, tt_spread(b, offset, x, p.space));
    tt_set_result(l, 0, tt_channels_from_end(b, tt_hlo_convert(b, result, input->dtype), last));
    tt_set_channels_last(l, 0, last);
  }
  if (tt_wants(l, 9, 1)) tt_set_result(l, 1, tt_hlo_convert(b, tt_sum(b, slopes, tt_axes_range(0, 1)), weight));
  if (tt_wants(l, 9, 2)) tt_set_result(l, 2, tt_hlo_convert(b, tt_sum(b, sums, tt_axes_range(0, 1)), weight));
}
