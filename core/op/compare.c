// compare.c - comparisons, logic, bit operations, extremes, and what selects or overwrites elements.
#include "op/pointwise.h"

#include <math.h>

// --- comparisons ------------------------------------------------------------------------------------------------------------

tt_value *tt_emit_eq(tt_builder *b, tt_value *x, tt_value *y) { return tt_hlo_compare(b, TT_EQ, x, y); }
tt_value *tt_emit_ne(tt_builder *b, tt_value *x, tt_value *y) { return tt_hlo_compare(b, TT_NE, x, y); }
tt_value *tt_emit_lt(tt_builder *b, tt_value *x, tt_value *y) { return tt_hlo_compare(b, TT_LT, x, y); }
tt_value *tt_emit_le(tt_builder *b, tt_value *x, tt_value *y) { return tt_hlo_compare(b, TT_LE, x, y); }
tt_value *tt_emit_gt(tt_builder *b, tt_value *x, tt_value *y) { return tt_hlo_compare(b, TT_GT, x, y); }
tt_value *tt_emit_ge(tt_builder *b, tt_value *x, tt_value *y) { return tt_hlo_compare(b, TT_GE, x, y); }

static tt_value *equals_constant(tt_builder *b, tt_value *x, double c) {
  return tt_dtype_is_float(x->dtype) ? tt_compare_constant(b, TT_EQ, x, c) : tt_bool_like(b, x, false);
}

tt_value *tt_emit_isposinf(tt_builder *b, tt_value *x) { return equals_constant(b, x, HUGE_VAL); }
tt_value *tt_emit_isneginf(tt_builder *b, tt_value *x) { return equals_constant(b, x, -HUGE_VAL); }

// --- logic: any number but 0 is true ------------------------------------------------------------------------------------------

static tt_value *truth(tt_builder *b, tt_value *x) { return tt_hlo_convert(b, x, TT_BOOL); }

tt_value *tt_emit_logical_and(tt_builder *b, tt_value *x, tt_value *y) {
  return tt_hlo_and(b, truth(b, x), truth(b, y));
}
tt_value *tt_emit_logical_or(tt_builder *b, tt_value *x, tt_value *y) { return tt_hlo_or(b, truth(b, x), truth(b, y)); }
tt_value *tt_emit_logical_xor(tt_builder *b, tt_value *x, tt_value *y) {
  return tt_hlo_xor(b, truth(b, x), truth(b, y));
}
tt_value *tt_emit_logical_not(tt_builder *b, tt_value *x) { return tt_hlo_not(b, truth(b, x)); }

// --- bits -----------------------------------------------------------------------------------------------------------------------

// Shifts by less than 0 or by the width and more shift everything out, in StableHLO as in torch.
tt_value *tt_emit_shift_right(tt_builder *b, tt_value *x, tt_value *y) {
  return tt_dtype_is_signed(x->dtype) ? tt_hlo_shift_right_arithmetic(b, x, y) : tt_hlo_shift_right_logical(b, x, y);
}

// --- extremes: NaN wins in maximum and clamp, and loses in fmax ------------------------------------------------------------------

static tt_value *other_if_nan(tt_builder *b, tt_value *x, tt_value *y, tt_value *result) {
  result = tt_hlo_select(b, tt_hlo_is_nan(b, y), x, result);
  return tt_hlo_select(b, tt_hlo_is_nan(b, x), y, result);
}

tt_value *tt_emit_fmax(tt_builder *b, tt_value *x, tt_value *y) {
  tt_value *greater = tt_hlo_maximum(b, x, y);
  return tt_dtype_is_float(x->dtype) ? other_if_nan(b, x, y, greater) : greater;
}

tt_value *tt_emit_fmin(tt_builder *b, tt_value *x, tt_value *y) {
  tt_value *smaller = tt_hlo_minimum(b, x, y);
  return tt_dtype_is_float(x->dtype) ? other_if_nan(b, x, y, smaller) : smaller;
}

static void limits_fit(tt_pointwise *p) {
  for (int i = 1; i < p->count; ++i) tt_require_item_fits(p->l, p->args[i], p->item, p->compute);
}

static tt_value *clamp_both(tt_pointwise *p) {
  limits_fit(p);
  return tt_hlo_minimum(p->b, tt_hlo_maximum(p->b, p->x[0], p->x[1]), p->x[2]);
}

static tt_value *clamp_low(tt_pointwise *p) {
  limits_fit(p);
  return tt_hlo_maximum(p->b, p->x[0], p->x[1]);
}

static tt_value *clamp_high(tt_pointwise *p) {
  limits_fit(p);
  return tt_hlo_minimum(p->b, p->x[0], p->x[1]);
}

void tt_lower_clamp_min(tt_lowering *l) { tt_pointwise_each(l, clamp_low, 2, NULL); }
void tt_lower_clamp_max(tt_lowering *l) { tt_pointwise_each(l, clamp_high, 2, NULL); }

// The limits are numbers or tensors; either may be absent.
void tt_lower_clamp(tt_lowering *l) {
  if (!tt_has(l, 1))
    tt_pointwise_each(l, clamp_high, 2, (int[]){0, 2});
  else if (!tt_has(l, 2))
    tt_lower_clamp_min(l);
  else
    tt_pointwise_each(l, clamp_both, 3, NULL);
}

// --- selection ------------------------------------------------------------------------------------------------------------------

void tt_lower_where(tt_lowering *l) {
  const tt_tensor *condition = tt_tensor_arg(l, 0);
  if (condition->dtype != TT_BOOL && condition->dtype != TT_U8) {
    tt_fail(l, TT_INVALID_ARGUMENT, "where expected condition to be a boolean tensor, but got a tensor with dtype %s",
            tt_dtype_text(condition->dtype));
    return;
  }
  tt_pointwise p = tt_pointwise_begin(l, 0, 2, (int[]){1, 2});
  tt_value *predicate = tt_pointwise_append(&p, 0, TT_BOOL);
  tt_pointwise_set(&p, 0, tt_hlo_select(p.b, predicate, p.x[0], p.x[1]));
  tt_set_order_of_iterator(l, 0, 3, (const tt_tensor *[]){condition, p.tensors[0], p.tensors[1]});
}

static bool check_masked_fill(tt_lowering *l) {
  tt_dtype mask = tt_tensor_arg(l, 1)->dtype;
  const tt_tensor *value = tt_tensor_arg(l, 2);
  if (mask != TT_BOOL)
    tt_fail(l, TT_INVALID_ARGUMENT, "masked_fill_ only supports boolean masks, but got mask with dtype %s",
            tt_dtype_type_name(mask));
  if (value && value->rank != 0)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with %d dimension(s).",
            value->rank);
  return !tt_failed(l);
}

// The result has self's dtype whatever the value's, and is row-major: torch fills a contiguous copy.
void tt_lower_masked_fill(tt_lowering *l) {
  if (!check_masked_fill(l)) return;
  tt_pointwise p = tt_pointwise_begin(l, 0, 1, NULL);
  tt_value *mask = tt_pointwise_append(&p, 1, TT_BOOL);
  tt_pointwise_set(&p, 0, tt_hlo_select(p.b, mask, tt_pointwise_number(&p, 2), p.x[0]));
  tt_set_order(l, 0, NULL);
}

// --- filling: self is not read ------------------------------------------------------------------------------------------------------

void tt_lower_fill(tt_lowering *l) {
  const tt_tensor *self = tt_tensor_arg(l, 0), *value = tt_tensor_arg(l, 1);
  if (value && value->rank != 0) {
    tt_fail(l, TT_INVALID_ARGUMENT, "fill_ only supports 0-dimension value tensor but got tensor with %d dimensions.",
            value->rank);
    return;
  }
  tt_value *x = tt_fitting_operand_as(l, 1, self->dtype);
  tt_set_result(l, 0, tt_hlo_broadcast_to(l->b, x, self->rank, self->sizes));
  tt_set_channels_last(l, 0, tt_is_channels_last(l, 0));
}

void tt_lower_zero(tt_lowering *l) {
  const tt_tensor *self = tt_tensor_arg(l, 0);
  tt_set_result(l, 0, tt_hlo_splat(l->b, self->dtype, self->rank, self->sizes, 0));
  tt_set_channels_last(l, 0, tt_is_channels_last(l, 0));
}
