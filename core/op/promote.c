// promote.c - the dtypes of a call: torch.result_type of its arguments, and the dtype to compute in. See lowering.h.
#include "op/internal.h"
#include "op/lowering.h"

// torch's ResultTypeState (ATen/native/TypeProperties.cpp): tensors with dimensions outrank 0-d ones, which outrank numbers.
typedef struct promotion {
  tt_dtype dim, zero, wrapped;
} promotion;

static tt_dtype promote_known(tt_dtype a, tt_dtype b) {
  if (a == TT_DTYPE_NONE) return b;
  return b == TT_DTYPE_NONE ? a : tt_dtype_promote(a, b);
}

static void promote_tensor(const tt_lowering *l, promotion *p, const tt_tensor *t) {
  tt_dtype dtype = t->dtype;
  if (t->wrapped_number) {
    if (tt_dtype_is_complex(dtype)) dtype = tt_dtype_complex(l->default_dtype);
    if (tt_dtype_is_float(dtype)) dtype = l->default_dtype;
    p->wrapped = promote_known(p->wrapped, dtype);
  } else if (t->rank > 0) {
    p->dim = promote_known(p->dim, dtype);
  } else {
    p->zero = promote_known(p->zero, dtype);
  }
}

static void promote_number(const tt_lowering *l, promotion *p, tt_dtype dtype) {
  if (dtype == TT_C128) dtype = tt_dtype_complex(l->default_dtype);
  if (dtype == TT_F64) dtype = l->default_dtype;
  p->wrapped = promote_known(p->wrapped, dtype);
}

static tt_dtype combine(tt_dtype higher, tt_dtype lower) {
  if (higher == TT_DTYPE_NONE) return lower;
  if (tt_dtype_is_complex(higher)) return higher;
  if (tt_dtype_is_float(higher)) {
    if (lower != TT_DTYPE_NONE && tt_dtype_is_complex(lower)) return tt_dtype_complex(higher);
    return higher;
  }
  if (lower == TT_DTYPE_NONE) return higher;
  if (higher == TT_BOOL || tt_dtype_is_float(lower) || tt_dtype_is_complex(lower)) return promote_known(higher, lower);
  return higher;
}

static tt_dtype promotion_result(tt_lowering *l, const promotion *p) {
  tt_dtype result = combine(p->dim, combine(p->zero, p->wrapped));
  if (result == TT_DTYPE_NONE) tt_builder_fail(l->b, tt_internal_error("%s: no dtype to promote to", l->op->name));
  return result;
}

tt_dtype tt_promote_item(tt_lowering *l, const int *args, int count, int item) {
  promotion p = {TT_DTYPE_NONE, TT_DTYPE_NONE, TT_DTYPE_NONE};
  for (int i = 0; i < count; ++i) {
    const tt_arg *a = tt_lowering_peek(l, args[i]);
    if (a->kind == TT_ARG_LIST && item >= a->count) continue;
    if (a->kind == TT_ARG_LIST) a = &a->u.items[item];
    if (a->kind == TT_ARG_TENSOR) {
      if (l->tensors[a->u.slot].defined) promote_tensor(l, &p, &l->tensors[a->u.slot]);
    } else if (a->kind != TT_ARG_NONE) {
      promote_number(l, &p, tt_arg_number_dtype(a));
    }
  }
  return promotion_result(l, &p);
}

tt_dtype tt_promote(tt_lowering *l, const int *args, int count) { return tt_promote_item(l, args, count, 0); }

tt_dtype tt_promote_list(tt_lowering *l, int arg) {
  promotion p = {TT_DTYPE_NONE, TT_DTYPE_NONE, TT_DTYPE_NONE};
  for (int i = 0; i < tt_list_count(l, arg); ++i) {
    const tt_tensor *t = tt_list_tensor(l, arg, i);
    if (t) promote_tensor(l, &p, t);
  }
  return promotion_result(l, &p);
}

tt_dtype tt_compute_dtype(tt_dtype dtype) { return tt_dtype_is_narrow_float(dtype) ? TT_F32 : dtype; }

tt_dtype tt_float_dtype(const tt_lowering *l, tt_dtype dtype) {
  return dtype == TT_BOOL || tt_dtype_is_integral(dtype) ? l->default_dtype : dtype;
}
