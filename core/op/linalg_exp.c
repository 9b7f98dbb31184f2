// linalg_exp.c - the exponential of matrices: linalg_matrix_exp.
//
// Scaling and squaring (Higham 2005, section 2): exp(A) = exp(A / 2^s)^(2^s), with s such that the scaled matrix has a 1-norm of
// at most `bound`. There the Taylor polynomial of degree 16 is exact to rounding: what it leaves out is below bound^17 / 17!,
// 2e-20 for 1/2 and 3e-15 for 1. It takes 6 products (Paterson and Stockmeyer 1973): 3 for the powers up to A^4, 3 for a
// polynomial of degree 4 in A^4.
#include "op/linalg.h"

enum { MOST_SQUARINGS = 1100 }; // more than a finite float64 matrix needs

enum { POWER, LEFT, CARRIED }; // what the squarings carry; LEFT: how many each matrix still needs, S32 [batch]

static void squarings_left(tt_builder *b, tt_value *const *carried, tt_value **results, void *user) {
  (void)user;
  results[0] = tt_compare_constant(b, TT_GT, tt_max_last(b, carried[LEFT]), 0);
}

static void square(tt_builder *b, tt_value *const *carried, tt_value **results, void *user) {
  (void)user;
  tt_value *x = carried[POWER], *wanted = tt_compare_constant(b, TT_GT, carried[LEFT], 0);
  results[POWER] = tt_hlo_select(b, tt_each(b, wanted, x), tt_product(b, x, x), x);
  results[LEFT] = tt_add_constant(b, carried[LEFT], -1);
}

// The smallest s >= 0 with norm / 2^s <= bound.
static tt_value *count_squarings(tt_builder *b, tt_value *norm, double bound) {
  tt_value *halvings = tt_hlo_divide(b, tt_hlo_log(b, tt_multiply_constant(b, norm, 1 / bound)),
                                     tt_hlo_constant_like(b, norm, 0.6931471805599453));
  tt_value *low = tt_hlo_constant_like(b, norm, 0), *high = tt_hlo_constant_like(b, norm, MOST_SQUARINGS);
  // Nothing to gain where the norm is infinite or NaN.
  halvings = tt_hlo_select(b, tt_hlo_is_finite(b, norm), tt_hlo_clamp(b, low, tt_hlo_ceil(b, halvings), high), low);
  return tt_hlo_convert(b, halvings, TT_S32);
}

// c[0] I + c[1] x + c[2] x2 + c[3] x3, where c[k] = 1 / (first + k)!.
static tt_value *coefficients_of(tt_builder *b, tt_value *const *powers, int first, int count) {
  tt_value *sum = NULL;
  double factorial = 1;
  for (int k = 2; k < first; ++k) factorial *= k;
  for (int k = 0; k < count; ++k) {
    if (first + k > 0) factorial *= first + k;
    tt_value *term = tt_multiply_constant(b, powers[k], 1 / factorial);
    sum = sum ? tt_hlo_add(b, sum, term) : term;
  }
  return sum;
}

static tt_value *taylor(tt_builder *b, tt_value *x) {
  tt_value *x2 = tt_product(b, x, x), *x3 = tt_product(b, x2, x), *x4 = tt_product(b, x2, x2);
  tt_value *unit = tt_identity(b, x->dtype, x->dims[0], x->dims[1], x->dims[2]);
  tt_value *powers[] = {unit, x, x2, x3, x4};
  tt_value *sum = coefficients_of(b, powers, 12, 5);
  for (int first = 8; first >= 0; first -= 4)
    sum = tt_hlo_add(b, tt_product(b, x4, sum), coefficients_of(b, powers, first, 4));
  return sum;
}

static tt_value *exponential(tt_builder *b, tt_value *x) {
  double bound = tt_dtype_real(x->dtype) == TT_F64 ? 0.5 : 1;
  tt_value *norm = tt_max_last(b, tt_hlo_reduce(b, tt_hlo_abs(b, x), TT_REDUCE_ADD, 1, (int[]){1}));
  tt_value *count = count_squarings(b, norm, bound);
  tt_value *factor = tt_hlo_power(b, tt_hlo_constant_like(b, norm, 0.5), tt_hlo_convert(b, count, norm->dtype));
  tt_value *scaled = tt_hlo_multiply(b, x, tt_each(b, tt_real_as(b, factor, x), x));
  tt_value *carried[CARRIED] = {taylor(b, scaled), count};
  tt_hlo_while(b, CARRIED, carried, squarings_left, square, NULL, carried);
  return carried[POWER];
}

// linalg_matrix_exp(A). float16 and bfloat16 are computed in float32.
void tt_lower_linalg_matrix_exp(tt_lowering *l) {
  tt_builder *b = l->b;
  static const char op[] = "linalg.matrix_exp";
  if (!tt_check_square(l, 0, op, "A")) return;
  tt_dtype dtype = tt_tensor_arg(l, 0)->dtype;
  if (!tt_dtype_is_float(dtype) && !tt_dtype_is_complex(dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "%s: Expected a floating point or complex tensor as input. Got %s", op,
            tt_dtype_text(dtype));
  if (tt_failed(l)) return;
  tt_value *x = tt_matrices(l, 0);
  if (tt_value_count(x) > 0)
    x = tt_hlo_convert(b, exponential(b, tt_hlo_convert(b, x, tt_compute_dtype(dtype))), dtype);
  tt_set_matrices_like(l, 0, x, 0);
}
