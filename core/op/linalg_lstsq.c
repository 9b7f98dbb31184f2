// linalg_lstsq.c - least squares: linalg_lstsq.
//
// Driver gels takes full rank for granted: QR. The others find the rank and the shortest solution from singular values, whatever
// factorization LAPACK uses for them. They agree with it but where a singular value is within rounding of the threshold.
#include <string.h>

#include "op/linalg.h"

typedef struct least_squares {
  tt_value *x;        // [batch, n, right-hand sides]
  tt_value *rank;     // S64 [batch]; NULL with gels
  tt_value *singular; // [batch, min(m, n)]; NULL with gels
} least_squares;

// a^H = Q R of a wide a, a = Q R of a tall one.
static least_squares by_qr(tt_builder *b, tt_value *a, tt_value *y) {
  int64_t m = a->dims[1], n = a->dims[2], k = m < n ? m : n;
  bool wide = m < n;
  tt_value *factors, *tau;
  tt_qr_factor(b, wide ? tt_adjoint(b, a) : a, &factors, &tau);
  tt_value *r = tt_matrix_corner(b, factors, k, k);
  if (wide) {
    tt_value *lower = tt_adjoint(b, r), *part = tt_solve_triangular(b, lower, y, false, false);
    return (least_squares){.x = tt_apply_q(b, factors, tau, tt_matrix_corner(b, part, n, y->dims[2]), false)};
  }
  tt_value *part = tt_matrix_corner(b, tt_apply_q(b, factors, tau, y, true), k, y->dims[2]);
  return (least_squares){.x = tt_solve_triangular(b, r, part, true, false)};
}

// Singular values up to `threshold` times the greatest count as zero.
static least_squares by_svd(tt_builder *b, tt_value *a, tt_value *y, double threshold) {
  bool wide = a->dims[1] < a->dims[2];
  tt_svd svd = tt_svd_of(b, wide ? tt_adjoint(b, a) : a, true, false);
  tt_value *u = wide ? svd.v : svd.u, *v = wide ? svd.u : svd.v, *s = svd.s;
  tt_value *limit = tt_multiply_constant(b, tt_max_last(b, s), threshold);
  tt_value *kept = tt_hlo_compare(b, TT_GT, s, tt_each(b, limit, s));
  tt_value *one = tt_hlo_constant_like(b, s, 1);
  tt_value *inverse = tt_zero_unless(b, kept, tt_hlo_divide(b, one, tt_hlo_select(b, kept, s, one)));
  tt_value *part = tt_product(b, tt_adjoint(b, u), y);
  part = tt_hlo_multiply(b, part, tt_down(b, tt_real_as(b, inverse, part), part));
  return (least_squares){tt_product(b, v, part), tt_sum_last(b, tt_hlo_convert(b, kept, TT_S64)), s};
}

// |a x - y|^2 for each right-hand side, [batch, right-hand sides].
static tt_value *residuals(tt_builder *b, tt_value *a, tt_value *x, tt_value *y) {
  tt_value *rest = tt_hlo_subtract(b, tt_product(b, a, x), y), *size = tt_hlo_abs(b, rest);
  return tt_hlo_reduce(b, tt_hlo_multiply(b, size, size), TT_REDUCE_ADD, 1, (int[]){1});
}

// torch's checks, in its order. `vector`: one right-hand side without a dim for it.
static bool check(tt_lowering *l, const char *driver, bool *out_vector) {
  const tt_tensor *a = tt_tensor_arg(l, 0), *y = tt_tensor_arg(l, 1);
  int difference = a->rank - y->rank;
  *out_vector = difference == 1;
  if (a->rank < 2)
    tt_fail(l, TT_INVALID_ARGUMENT, "torch.linalg.lstsq: input must have at least 2 dimensions.");
  else if (y->rank < 1)
    tt_fail(l, TT_INVALID_ARGUMENT, "torch.linalg.lstsq: other must have at least 1 dimension.");
  else if (a->dtype != y->dtype)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "torch.linalg.lstsq: Expected input and other to have the same dtype, but got input's dtype %s and other's "
            "dtype %s",
            tt_dtype_text(a->dtype), tt_dtype_text(y->dtype));
  else if (difference < 0 || difference > 1)
    tt_fail(
        l, TT_INVALID_ARGUMENT,
        "torch.linalg.lstsq: input.dim() must be greater or equal to other.dim() and (input.dim() - other.dim()) <= 1");
  else if (tt_dtype_real(a->dtype) != TT_F32 && tt_dtype_real(a->dtype) != TT_F64)
    tt_fail(l, TT_INVALID_ARGUMENT, "This function doesn't handle types other than float and double");
  else if (driver[0] && strcmp(driver, "gels") != 0 && strcmp(driver, "gelsy") != 0 && strcmp(driver, "gelsd") != 0 &&
           strcmp(driver, "gelss") != 0)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss)");
  return !tt_failed(l);
}

// The right-hand sides as [batch, m, count], broadcast to the batch dims of both (into dims).
static tt_value *right_hand_sides(tt_lowering *l, bool vector, int64_t *dims, int *out_lead) {
  const tt_tensor *a = tt_tensor_arg(l, 0);
  tt_value *y = tt_operand(l, 1);
  if (vector) y = tt_hlo_unsqueeze_dim(l->b, y, y->rank);
  int lead = *out_lead = y->rank - 2;
  int64_t batch = 1, all[TT_BATCH_MAX + 2];
  for (int i = 0; i < lead; ++i) {
    int64_t x = a->sizes[i], z = y->dims[i];
    if (x != z && x != 1 && z != 1)
      tt_fail(l, TT_INVALID_ARGUMENT,
              "The size of tensor a (%lld) must match the size of tensor b (%lld) at non-singleton dimension %d",
              (long long)x, (long long)z, i);
    batch *= all[i] = dims[i] = x == 1 ? z : x;
  }
  if (a->sizes[a->rank - 2] != y->dims[lead])
    tt_fail(l, TT_INVALID_ARGUMENT, "torch.linalg.lstsq: input.size(-2) should match other.size(-%d)", vector ? 1 : 2);
  if (tt_failed(l)) return y;
  for (int i = 0; i < 2; ++i) all[lead + i] = y->dims[lead + i];
  return tt_hlo_reshape(l->b, tt_hlo_broadcast_to(l->b, y, lead + 2, all), 3,
                        (int64_t[]){batch, all[lead], all[lead + 1]});
}

// A result of A alone, found for A broadcast to `dims`: without the repeats.
static void set_result_of_a(tt_lowering *l, int result, tt_value *value, int lead, const int64_t *dims) {
  const tt_tensor *a = tt_tensor_arg(l, 0);
  int64_t all[TT_BATCH_MAX + 2];
  memcpy(all, dims, (size_t)lead * sizeof *dims);
  for (int i = 1; i < value->rank; ++i) all[lead + i - 1] = value->dims[i];
  value = tt_hlo_reshape(l->b, value, lead + value->rank - 1, all);
  for (int i = 0; i < lead; ++i)
    if (a->sizes[i] != dims[i]) value = tt_hlo_slice_dim(l->b, value, i, 0, 1, 1);
  tt_set_result(l, result, value);
}

// linalg_lstsq(A, B, rcond?, *, driver?) -> solution, residuals, rank, singular_values. Where a result does not belong to the
// driver it has no elements. The bridge drops residuals where a matrix has not full rank.
void tt_lower_linalg_lstsq(tt_lowering *l) {
  tt_builder *b = l->b;
  const tt_tensor *t = tt_tensor_arg(l, 0);
  const char *driver = tt_text(l, 3);
  bool vector;
  if (!check(l, driver, &vector)) return;
  int64_t dims[TT_BATCH_MAX + 2], m = t->sizes[t->rank - 2], n = t->sizes[t->rank - 1];
  int lead;
  tt_value *y = right_hand_sides(l, vector, dims, &lead), *a = tt_matrices_to(l, 0, lead, dims);
  if (tt_failed(l)) return;
  tt_dtype real = tt_dtype_real(t->dtype);
  bool qr = strcmp(driver, "gels") == 0, values = strcmp(driver, "gelsd") == 0 || strcmp(driver, "gelss") == 0;
  double epsilon = tt_epsilon(t->dtype), rcond = tt_double_or(l, 2, epsilon * (double)(m > n ? m : n));
  least_squares found = qr ? by_qr(b, a, y) : by_svd(b, a, y, rcond > 0 ? rcond : epsilon);

  for (int i = 1; i < 4; ++i) tt_set_result(l, i, tt_hlo_splat(b, i == 2 ? TT_S64 : real, 1, (int64_t[]){0}, 0));
  tt_set_matrices(l, 0, vector ? tt_hlo_squeeze_dim(b, found.x, 2) : found.x, lead, dims);
  if (m > n && (qr || values)) tt_set_matrices(l, 1, residuals(b, a, found.x, y), lead, dims);
  if (!qr) set_result_of_a(l, 2, found.rank, lead, dims);
  if (values) set_result_of_a(l, 3, found.singular, lead, dims);
}
