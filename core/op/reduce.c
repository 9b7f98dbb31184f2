// reduce.c - sums, products and logic over dimensions: sum, nansum, mean, prod, any, all, count_nonzero, trace, hash_tensor.
//
// The greatest and smallest are in extreme.c, variances and norms in moment.c, running sums in scan.c.
#include "op/axes.h"

// --- sums, means, products -------------------------------------------------------------------------------------------

// The dtype argument, else that of a declared output, else x's own; bool and integers add up in 64 bits.
static tt_dtype total_dtype(tt_lowering *l, int dtype_arg, tt_dtype x) {
  tt_dtype own = tt_dtype_category(x) <= TT_CATEGORY_INTEGER ? TT_S64 : x;
  return tt_dtype_arg(l, dtype_arg, tt_output_dtype(l, 0, own));
}

// x as the totals of `dtype` are accumulated: in float32 for narrow floats. Ones and zeros are counted in 32 bits where that
// is enough.
static tt_value *as_total(tt_builder *b, tt_value *x, tt_dtype dtype, tt_axes axes) {
  if (x->dtype == TT_BOOL && dtype == TT_S64) return tt_hlo_convert(b, x, tt_position_dtype(tt_axes_size(x, axes)));
  return tt_hlo_convert(b, tt_hlo_convert(b, x, dtype), tt_compute_dtype(dtype));
}

typedef enum total { SUM, SUM_WITHOUT_NAN, MEAN, PRODUCT } total;

static tt_value *without_nan(tt_builder *b, tt_value *x) {
  if (!tt_dtype_is_float(x->dtype)) return x;
  return tt_hlo_select(b, tt_hlo_is_nan(b, x), tt_hlo_constant_like(b, x, 0), x);
}

static tt_value *total_of(tt_builder *b, total kind, tt_value *operand, tt_dtype dtype, tt_axes axes) {
  tt_value *x = as_total(b, operand, dtype, axes);
  if (kind == PRODUCT) return tt_reduce(b, x, TT_REDUCE_MULTIPLY, axes);
  if (kind == SUM_WITHOUT_NAN) x = without_nan(b, x);
  tt_value *sum = x == operand ? tt_sum(b, x, axes) : tt_sum_computed(b, x, axes);
  return kind == MEAN ? tt_divide_by(b, sum, (double)tt_axes_size(x, axes)) : sum;
}

// (self, dim, keepdim, dtype), or (self, dtype) with dim_arg -1.
static void lower_total(tt_lowering *l, total kind, int dim_arg, int dtype_arg) {
  tt_value *x = tt_operand(l, 0);
  tt_axes axes = tt_axes_arg(l, dim_arg, x);
  tt_dtype dtype = total_dtype(l, dtype_arg, x->dtype);
  if (tt_failed(l)) return;
  tt_value *result = total_of(l->b, kind, x, dtype, axes);
  result = tt_keep_axes_if(l, dim_arg < 0 ? -1 : dim_arg + 1, result, x, axes);
  tt_set_result(l, 0, tt_hlo_convert(l->b, result, dtype));
}

void tt_lower_sum(tt_lowering *l) { lower_total(l, SUM, -1, 1); }
void tt_lower_sum_dim(tt_lowering *l) { lower_total(l, SUM, 1, 3); }
void tt_lower_prod(tt_lowering *l) { lower_total(l, PRODUCT, -1, 1); }
void tt_lower_prod_dim(tt_lowering *l) { lower_total(l, PRODUCT, 1, 3); }

void tt_lower_nansum(tt_lowering *l) {
  const tt_tensor *self = tt_tensor_arg(l, 0);
  tt_dtype dtype = tt_dtype_arg(l, 3, self ? self->dtype : TT_F32);
  if (self && tt_dtype_is_complex(self->dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "nansum on TPU does not support complex inputs");
  else if (self && tt_dtype_is_float(self->dtype) && tt_dtype_is_complex(dtype))
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"nansum_cpu\" not implemented for '%s'", tt_dtype_text(dtype));
  else
    lower_total(l, SUM_WITHOUT_NAN, 1, 3);
}

static void lower_mean(tt_lowering *l, int dim_arg, int dtype_arg) {
  const tt_tensor *self = tt_tensor_arg(l, 0);
  tt_dtype dtype = tt_dtype_arg(l, dtype_arg, self ? self->dtype : TT_F32);
  if (tt_dtype_category(dtype) <= TT_CATEGORY_INTEGER)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "mean(): could not infer output dtype. %s dtype must be either a floating point or complex dtype. Got: %s",
            tt_has(l, dtype_arg) ? "Optional" : "Input", tt_dtype_text(dtype));
  else
    lower_total(l, MEAN, dim_arg, dtype_arg);
}

void tt_lower_mean(tt_lowering *l) { lower_mean(l, -1, 1); }
void tt_lower_mean_dim(tt_lowering *l) { lower_mean(l, 1, 3); }

// --- logic -----------------------------------------------------------------------------------------------------------

// torch's any and all of uint8 give uint8, for the sake of the days before bool. `any.dims(x, [])` reduces nothing, while no
// dim at all reduces everything.
static void lower_logic(tt_lowering *l, tt_reduction kind, int dim_arg) {
  tt_value *x = tt_operand(l, 0);
  bool nothing = dim_arg > 0 && l->args[dim_arg].kind == TT_ARG_LIST && tt_list_count(l, dim_arg) == 0;
  tt_axes axes = nothing ? tt_axes_range(0, 0) : tt_axes_arg(l, dim_arg, x);
  tt_value *result = tt_reduce(l->b, tt_hlo_convert(l->b, x, TT_BOOL), kind, axes);
  if (dim_arg > 0) result = tt_keep_axes_if(l, dim_arg + 1, result, x, axes);
  tt_set_result(l, 0, x->dtype == TT_U8 ? tt_hlo_convert(l->b, result, TT_U8) : result);
}

void tt_lower_any(tt_lowering *l) { lower_logic(l, TT_REDUCE_OR, -1); }
void tt_lower_any_dim(tt_lowering *l) { lower_logic(l, TT_REDUCE_OR, 1); }
void tt_lower_all(tt_lowering *l) { lower_logic(l, TT_REDUCE_AND, -1); }
void tt_lower_all_dim(tt_lowering *l) { lower_logic(l, TT_REDUCE_AND, 1); }

void tt_lower_count_nonzero(tt_lowering *l) {
  tt_value *x = tt_hlo_convert(l->b, tt_operand(l, 0), TT_BOOL);
  tt_axes axes = tt_axes_arg(l, 1, x);
  tt_set_result(l, 0, tt_hlo_convert(l->b, tt_sum(l->b, as_total(l->b, x, TT_S64, axes), axes), TT_S64));
}

// --- trace -----------------------------------------------------------------------------------------------------------

// The diagonal as a mask, which fuses into the sum.
void tt_lower_trace(tt_lowering *l) {
  tt_value *x = tt_operand(l, 0);
  if (x->rank != 2) {
    tt_fail(l, TT_INVALID_ARGUMENT, "trace: expected a matrix, but got tensor with dim %d", x->rank);
    return;
  }
  tt_dtype dtype = total_dtype(l, -1, x->dtype);
  tt_axes axes = tt_axes_range(0, 2);
  tt_value *row = tt_hlo_iota(l->b, TT_S32, 2, x->dims, 0), *column = tt_hlo_iota(l->b, TT_S32, 2, x->dims, 1);
  tt_value *terms = as_total(l->b, x, dtype, axes);
  terms = tt_hlo_select(l->b, tt_hlo_compare(l->b, TT_EQ, row, column), terms, tt_hlo_constant_like(l->b, terms, 0));
  tt_set_result(l, 0, tt_hlo_convert(l->b, tt_sum(l->b, terms, axes), dtype));
}

// --- hash ------------------------------------------------------------------------------------------------------------

static void exclusive_or(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  (void)user;
  results[0] = tt_hlo_xor(b, arguments[0], arguments[1]);
}

// (self, dim, keepdim, mode): the exclusive or of the elements' 64 bits, those of a double for floats.
void tt_lower_hash_tensor(tt_lowering *l) {
  tt_value *x = tt_operand(l, 0), *bits;
  tt_axes axes = tt_axes_arg(l, 1, x);
  if (tt_dtype_is_complex(x->dtype))
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"xor_sum_cpu\" not implemented for '%s'", tt_dtype_text(x->dtype));
  int64_t mode = tt_int_or(l, 3, 0);
  if (mode != 0) tt_fail(l, TT_INVALID_ARGUMENT, "Unknown hash_tensor mode: %lld", (long long)mode);
  if (tt_failed(l)) return;
  tt_dtype wide = tt_dtype_is_float(x->dtype) ? TT_F64 : x->dtype == TT_U64 ? TT_U64 : TT_S64;
  bits = tt_hlo_bitcast_convert(l->b, tt_hlo_convert(l->b, x, wide), TT_U64, x->rank, x->dims);
  tt_value *zero = tt_hlo_constant_i64(l->b, TT_U64, 0), *hash;
  tt_hlo_reduce_with(l->b, 1, &bits, &zero, axes.count, axes.dims, exclusive_or, NULL, &hash);
  tt_set_result(l, 0, tt_keep_axes_if(l, 2, hash, x, axes));
}
