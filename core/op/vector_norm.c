// vector_norm.c - norms over dimensions and what is built like them: linalg_vector_norm, norm, dist, logsumexp.
#include <math.h>

#include "op/axes.h"

// --- the norm --------------------------------------------------------------------------------------------------------

tt_value *tt_norm_over(tt_builder *b, tt_value *x, double ord, tt_axes axes) {
  tt_dtype dtype = tt_dtype_real(x->dtype);
  if (ord == 0) return tt_sum(b, tt_hlo_convert(b, tt_hlo_convert(b, x, TT_BOOL), dtype), axes);
  // Of one element, torch takes the size itself: no overflow of its square.
  if (tt_axes_size(x, axes) == 1) return tt_sum(b, tt_hlo_abs(b, x), axes);
  if (ord == 2) return tt_hlo_sqrt(b, tt_sum_computed(b, tt_squared_size(b, x), axes));
  tt_value *size = tt_hlo_abs(b, x);
  if (ord == 1) return tt_sum(b, size, axes);
  if (isinf(ord)) return tt_reduce(b, size, ord > 0 ? TT_REDUCE_MAX : TT_REDUCE_MIN, axes);
  tt_value *sum = tt_sum(b, tt_hlo_power(b, size, tt_hlo_constant_like(b, size, ord)), axes);
  return tt_hlo_power(b, sum, tt_hlo_constant_like(b, sum, 1 / ord));
}

// --- checks ----------------------------------------------------------------------------------------------------------
// The structured overloads are checked by torch's own wrapper; these serve the others.

// torch prints the order as a number: "inf", "-1".
static bool check_not_empty(tt_lowering *l, const tt_value *x, double ord) {
  if (tt_value_count(x) != 0 || (ord >= 0 && !isinf(ord))) return true;
  tt_fail(l, TT_INVALID_ARGUMENT,
          "linalg.vector_norm cannot compute the %g norm on an empty tensor because the operation does not have an "
          "identity",
          ord);
  return false;
}

static bool check_inexact(tt_lowering *l, tt_dtype dtype) {
  if (tt_dtype_category(dtype) > TT_CATEGORY_INTEGER) return true;
  tt_fail(l, TT_INVALID_ARGUMENT, "norm(): input dtype should be either floating point or complex. Got %s instead.",
          tt_dtype_text(dtype));
  return false;
}

static bool check_dtype(tt_lowering *l, tt_dtype x, tt_dtype dtype) {
  bool complex = tt_dtype_is_complex(x);
  if (tt_dtype_category(x) <= TT_CATEGORY_INTEGER)
    tt_fail(l, TT_INVALID_ARGUMENT, "linalg.vector_norm: Expected a floating point or complex tensor as input. Got %s",
            tt_dtype_text(x));
  else if (complex != tt_dtype_is_complex(dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "linalg.vector_norm: dtype should be %s for %s inputs, but got %s",
            complex ? "complex" : "real", complex ? "complex" : "real", tt_dtype_text(dtype));
  else if (tt_dtype_promote(x, dtype) != dtype)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "linalg.vector_norm: the dtype of the input (%s) should be convertible without narrowing to the specified "
            "dtype (%s)",
            tt_dtype_text(x), tt_dtype_text(dtype));
  return !tt_failed(l);
}

// --- overloads -------------------------------------------------------------------------------------------------------

// ord defaults to 2; a dtype argument is the dtype that x is taken in, and its real part the result's.
static void lower_norm(tt_lowering *l, int ord_arg, int dim_arg, int keepdim_arg, int dtype_arg) {
  tt_value *x = tt_operand(l, 0);
  tt_dtype dtype = tt_dtype_arg(l, dtype_arg, x->dtype);
  tt_axes axes = tt_axes_arg(l, dim_arg, x);
  double ord = tt_double_or(l, ord_arg, 2);
  if (tt_failed(l) || !check_not_empty(l, x, ord)) return;
  tt_value *wide = tt_hlo_convert(l->b, tt_hlo_convert(l->b, x, dtype), tt_compute_dtype(dtype));
  tt_value *result = tt_keep_axes_if(l, keepdim_arg, tt_norm_over(l->b, wide, ord, axes), x, axes);
  tt_set_result(l, 0, tt_hlo_convert(l->b, result, tt_dtype_real(dtype)));
}

// linalg_vector_norm(self, ord, dim?, keepdim, dtype?)
void tt_lower_linalg_vector_norm(tt_lowering *l) { lower_norm(l, 1, 2, 3, 4); }
// norm.ScalarOpt_dim(self, p?, dim, keepdim) and norm.ScalarOpt_dim_dtype(..., dtype)
void tt_lower_norm_dim(tt_lowering *l) { lower_norm(l, 1, 2, 3, -1); }
void tt_lower_norm_dim_dtype(tt_lowering *l) { lower_norm(l, 1, 2, 3, 4); }

// norm.Scalar(self, p)
void tt_lower_norm(tt_lowering *l) {
  if (check_inexact(l, tt_operand(l, 0)->dtype)) lower_norm(l, 1, -1, -1, -1);
}

// norm.ScalarOpt_dtype(self, p?, dtype)
void tt_lower_norm_dtype(tt_lowering *l) {
  tt_dtype x = tt_operand(l, 0)->dtype;
  if (check_dtype(l, x, tt_dtype_arg(l, 2, x))) lower_norm(l, 1, -1, -1, 2);
}

// dist(self, other, p): the norm of the difference.
void tt_lower_dist(tt_lowering *l) {
  tt_dtype dtype = tt_promote(l, (int[]){0, 1}, 2), wide = tt_compute_dtype(dtype);
  double p = tt_double(l, 2);
  if (tt_failed(l) || !check_inexact(l, dtype)) return;
  tt_value *difference = tt_sub(l, tt_operand_as(l, 0, wide), tt_operand_as(l, 1, wide));
  if (tt_failed(l) || !check_not_empty(l, difference, p)) return;
  tt_value *result = tt_norm_over(l->b, difference, p, tt_axes_range(0, difference->rank));
  tt_set_result(l, 0, tt_hlo_convert(l->b, result, tt_dtype_real(dtype)));
}

// --- logsumexp -------------------------------------------------------------------------------------------------------

// logsumexp(self, dim, keepdim). Taking the greatest element out keeps exp finite; an infinite one is left in, since inf - inf
// would be NaN.
void tt_lower_logsumexp(tt_lowering *l) {
  tt_value *x = tt_operand(l, 0);
  tt_dtype dtype = tt_float_dtype(l, x->dtype);
  tt_value *wide = tt_hlo_convert(l->b, x, tt_compute_dtype(dtype));
  tt_axes axes = tt_axes_arg(l, 1, x);
  tt_value *greatest = tt_reduce(l->b, tt_hlo_real(l->b, wide), TT_REDUCE_MAX, axes);
  greatest = tt_hlo_select(l->b, tt_hlo_is_finite(l->b, greatest), greatest, tt_hlo_constant_like(l->b, greatest, 0));
  greatest = tt_hlo_convert(l->b, greatest, wide->dtype);
  tt_value *terms = tt_hlo_exponential(l->b, tt_hlo_subtract(l->b, wide, tt_spread(l->b, greatest, x, axes)));
  tt_value *result = tt_hlo_add(l->b, tt_hlo_log(l->b, tt_sum_computed(l->b, terms, axes)), greatest);
  tt_set_result(l, 0, tt_hlo_convert(l->b, tt_keep_axes_if(l, 2, result, x, axes), dtype));
}
