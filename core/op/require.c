// require.c - conditions on a call's numbers, looked at on the host.
//
// Most numbers of a call are inputs of its program and no part of its plan's key, so a condition on them is looked at again
// before each run; see tt_require.
#include <math.h>

#include "op/lowering.h"

tt_status tt_requirement_check(const tt_requirement *r, const tt_arg *args) {
  const tt_arg *arg = &args[r->arg];
  return r->test(r->item < 0 ? arg : &arg->u.items[r->item], r->dtype);
}

void tt_require(tt_lowering *l, tt_requirement_fn test, int arg, tt_dtype dtype) {
  tt_require_item(l, test, arg, -1, dtype);
}

void tt_require_item(tt_lowering *l, tt_requirement_fn test, int arg, int item, tt_dtype dtype) {
  if (tt_failed(l)) return;
  tt_requirement requirement = {test, arg, l->args[arg].kind == TT_ARG_LIST ? item : -1, dtype};
  tt_status status = tt_requirement_check(&requirement, l->args);
  if (status)
    tt_builder_fail(l->b, status);
  else
    l->source.require(l->source.user, &requirement);
}

double tt_real_number(const tt_arg *arg) {
  switch (arg->kind) {
  case TT_ARG_DOUBLE: return arg->u.real;
  case TT_ARG_COMPLEX: return arg->u.complex_number[0];
  default: return (double)arg->u.integer;
  }
}

// --- does a number fit a dtype? -----------------------------------------------------------------------------------------
// The rules are those of c10::overflows (c10/util/overflows.h).

// A negative integer may wrap into an unsigned dtype as far as the dtype's largest number.
static bool integer_fits(int64_t x, tt_dtype dtype) {
  int64_t low, high;
  tt_dtype_integer_limits(dtype, &low, &high);
  if (low == 0) return x <= high && (x >= 0 || x >= -high);
  return x >= low && x <= high;
}

static bool real_fits(double x, tt_dtype dtype) {
  if (tt_dtype_is_integral(dtype)) {
    int64_t low, high;
    tt_dtype_integer_limits(dtype, &low, &high);
    // The largest 64-bit integers are no doubles: these are the powers of two above them, as where C converts them.
    return x >= (double)low && x <= (dtype == TT_U64 ? ldexp(1, 64) : (double)high);
  }
  double largest = tt_dtype_largest(dtype);
  return isnan(x) || (isinf(x) && tt_dtype_has_infinity(dtype)) || (x >= -largest && x <= largest);
}

static bool number_fits(const tt_arg *arg, tt_dtype dtype) {
  if (dtype == TT_BOOL || arg->kind == TT_ARG_BOOL) return true;
  tt_dtype part = tt_dtype_real(dtype);
  if (arg->kind == TT_ARG_INT && tt_dtype_is_integral(dtype)) return integer_fits(arg->u.integer, dtype);
  if (arg->kind != TT_ARG_COMPLEX) return real_fits(tt_real_number(arg), part);
  double imag = arg->u.complex_number[1];
  return real_fits(arg->u.complex_number[0], part) && (tt_dtype_is_complex(dtype) ? real_fits(imag, part) : imag == 0);
}

static tt_status check_fits(const tt_arg *number, tt_dtype dtype) {
  if (number_fits(number, dtype)) return TT_SUCCESS;
  return tt_error(TT_INVALID_ARGUMENT, "value cannot be converted to type %s without overflow", tt_dtype_cpp(dtype));
}

void tt_require_fits(tt_lowering *l, int arg, tt_dtype dtype) { tt_require_item_fits(l, arg, -1, dtype); }

void tt_require_item_fits(tt_lowering *l, int arg, int item, tt_dtype dtype) {
  if (arg >= l->arg_count) return;
  const tt_arg *a = &l->args[arg];
  if (a->kind == TT_ARG_LIST && item >= 0 && item < a->count) a = &a->u.items[item];
  if (a->kind == TT_ARG_INT || a->kind == TT_ARG_DOUBLE || a->kind == TT_ARG_COMPLEX)
    tt_require_item(l, check_fits, arg, item, dtype);
}

tt_value *tt_fitting_operand_as(tt_lowering *l, int arg, tt_dtype dtype) {
  tt_require_fits(l, arg, dtype);
  return tt_operand_as(l, arg, dtype);
}
