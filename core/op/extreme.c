// extreme.c - the greatest and smallest elements and where they are: amax, amin, max, min, aminmax, argmax, argmin.
//
// A NaN wins over every number, and among equal elements the first one gives the index, as in torch. Both come out of two plain
// reductions: the extreme, then the smallest position that holds it. XLA turns each into a vectorised loop, while one reduction
// of (value, index) pairs is 3 to 10 times slower on XLA's CPU.
#include "op/axes.h"

tt_value *tt_first_position(tt_builder *b, tt_value *x, tt_value *extreme, tt_axes axis) {
  if (axis.count == 0) return tt_hlo_splat(b, TT_S32, x->rank, x->dims, 0);
  tt_dtype dtype = tt_position_dtype(tt_axes_size(x, axis));
  tt_value *position = tt_hlo_iota(b, dtype, x->rank, x->dims, axis.dims[0]);
  tt_value *none = tt_hlo_broadcast_like(b, tt_hlo_max_value(b, dtype), position);
  tt_value *found = tt_hlo_select(b, tt_is_extreme(b, x, tt_spread(b, extreme, x, axis)), position, none);
  return tt_reduce(b, found, TT_REDUCE_MIN, axis);
}

// --- values ----------------------------------------------------------------------------------------------------------

// Result `result` is the extreme over axes; keepdim_arg as in tt_keep_axes_if.
static void set_extreme(tt_lowering *l, int result, tt_reduction kind, tt_axes axes, int keepdim_arg) {
  tt_value *x = tt_operand(l, 0);
  tt_set_result(l, result, tt_keep_axes_if(l, keepdim_arg, tt_reduce(l->b, x, kind, axes), x, axes));
}

// (self, dim, keepdim)
void tt_lower_amax(tt_lowering *l) { set_extreme(l, 0, TT_REDUCE_MAX, tt_axes_arg(l, 1, tt_operand(l, 0)), 2); }
void tt_lower_amin(tt_lowering *l) { set_extreme(l, 0, TT_REDUCE_MIN, tt_axes_arg(l, 1, tt_operand(l, 0)), 2); }

// max(self): no number is the greatest of none.
static void lower_extreme_of_all(tt_lowering *l, tt_reduction kind, const char *name) {
  if (tt_value_count(tt_operand(l, 0)) == 0)
    tt_fail(
        l, TT_INVALID_ARGUMENT,
        "%s(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' "
        "argument.",
        name);
  else
    set_extreme(l, 0, kind, tt_axes_arg(l, -1, tt_operand(l, 0)), -1);
}

void tt_lower_max(tt_lowering *l) { lower_extreme_of_all(l, TT_REDUCE_MAX, "max"); }
void tt_lower_min(tt_lowering *l) { lower_extreme_of_all(l, TT_REDUCE_MIN, "min"); }

// --- both extremes ---------------------------------------------------------------------------------------------------

static void set_both(tt_lowering *l, tt_axes axes, int keepdim_arg) {
  set_extreme(l, 0, TT_REDUCE_MIN, axes, keepdim_arg);
  set_extreme(l, 1, TT_REDUCE_MAX, axes, keepdim_arg);
}

// (self, dim?, keepdim) -> (min, max)
void tt_lower_aminmax(tt_lowering *l) { set_both(l, tt_axes_arg(l, 1, tt_operand(l, 0)), 2); }

// torch's old _aminmax checks for itself.
void tt_lower_aminmax_of_all(tt_lowering *l) {
  if (tt_value_count(tt_operand(l, 0)) == 0)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "aminmax(): cannot compute aminmax over an empty dimension as the operation has no identity.");
  else
    set_both(l, tt_axes_arg(l, -1, tt_operand(l, 0)), -1);
}

void tt_lower_aminmax_dim(tt_lowering *l) {
  tt_value *x = tt_operand(l, 0);
  tt_axes axes = tt_axes_one(l, 1, x);
  if (tt_failed(l)) return;
  if (tt_axes_size(x, axes) == 0)
    tt_fail(l, TT_INDEX, "aminmax: Expected reduction dim %d to have non-zero size.", axes.dims[0]);
  else
    set_both(l, axes, 2);
}

// --- indices ---------------------------------------------------------------------------------------------------------

// (self, dim, keepdim) -> (values, indices)
static void lower_extreme_with_index(tt_lowering *l, tt_reduction kind) {
  tt_value *x = tt_computed_once(l->b, tt_operand(l, 0));
  tt_axes axes = tt_axes_one(l, 1, x);
  tt_value *extreme = tt_reduce(l->b, x, kind, axes);
  tt_value *position = tt_hlo_convert(l->b, tt_first_position(l->b, x, extreme, axes), TT_S64);
  tt_set_result(l, 0, tt_keep_axes_if(l, 2, extreme, x, axes));
  tt_set_result(l, 1, tt_keep_axes_if(l, 2, position, x, axes));
}

void tt_lower_max_dim(tt_lowering *l) { lower_extreme_with_index(l, TT_REDUCE_MAX); }
void tt_lower_min_dim(tt_lowering *l) { lower_extreme_with_index(l, TT_REDUCE_MIN); }

// (self, dim?, keepdim); without dim the position counts through the flattened tensor.
static void lower_arg_extreme(tt_lowering *l, tt_reduction kind) {
  tt_value *whole = tt_computed_once(l->b, tt_operand(l, 0)), *x = whole;
  tt_axes axes = tt_axes_range(0, 1);
  if (tt_has(l, 1))
    axes = tt_axes_one(l, 1, x);
  else
    x = tt_hlo_reshape(l->b, x, 1, (int64_t[]){tt_value_count(x)});
  tt_value *position = tt_first_position(l->b, x, tt_reduce(l->b, x, kind, axes), axes);
  position = tt_hlo_convert(l->b, position, TT_S64);
  tt_set_result(l, 0, tt_keep_axes_if(l, 2, position, whole, tt_has(l, 1) ? axes : tt_axes_range(0, whole->rank)));
}

void tt_lower_argmax(tt_lowering *l) { lower_arg_extreme(l, TT_REDUCE_MAX); }
void tt_lower_argmin(tt_lowering *l) { lower_arg_extreme(l, TT_REDUCE_MIN); }
