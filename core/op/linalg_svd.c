// linalg_svd.c - singular values and vectors, eigenvalues and eigenvectors of Hermitian matrices: _linalg_svd, _linalg_eigh.
//
// Both stand on the rotations of linalg_jacobi.c. Singular values: A = Q R first, then the rows of R are made orthogonal
// (Drmac and Veselic 2008). Eigenvalues: a Hermitian matrix that is shifted until no eigenvalue is negative has its eigenvectors
// for singular vectors; eigenvalues are v^H A v, whose error is the square of v's, so that the shift costs no accuracy.
#include <math.h>

#include "op/linalg.h"

// --- order ----------------------------------------------------------------------------------------------------------------

static void is_less(tt_builder *b, tt_value *const *xs, tt_value **results, void *user) {
  (void)user;
  results[0] = tt_hlo_compare(b, TT_LT, xs[0], xs[1]);
}

// Where the elements of a real x [batch, n] come from in ascending (descending) order; NaN is last.
static tt_value *sorted_order(tt_builder *b, tt_value *x, bool descending) {
  tt_value *keys = descending ? tt_hlo_negate(b, x) : x;
  keys = tt_hlo_select(b, tt_hlo_is_nan(b, keys), tt_hlo_constant_like(b, keys, INFINITY), keys); // a strict order
  tt_value *both[] = {keys, tt_hlo_iota(b, TT_S32, 2, x->dims, 1)};
  tt_hlo_sort(b, 2, both, 1, true, is_less, NULL, both);
  return both[1];
}

// Rows that are orthonormal but for the rounding errors of many rotations, with those of one product (a Newton step towards
// the nearest orthonormal ones).
static tt_value *polished(tt_builder *b, tt_value *v) {
  tt_value *unit = tt_identity(b, v->dtype, v->dims[0], v->dims[1], v->dims[1]);
  tt_value *rest = tt_hlo_subtract(b, unit, tt_product(b, v, tt_adjoint(b, v)));
  return tt_hlo_add(b, v, tt_multiply_constant(b, tt_product(b, rest, v), 0.5));
}

// A positive number for each matrix, which its elements are divided by before anything is squared: x, or 1 where that is 0.
static tt_value *nonzero(tt_builder *b, tt_value *x) {
  return tt_hlo_select(b, tt_compare_constant(b, TT_GT, x, 0), x, tt_hlo_constant_like(b, x, 1));
}

static tt_value *divided(tt_builder *b, tt_value *x, tt_value *divisor) {
  return tt_hlo_divide(b, x, tt_each(b, tt_real_as(b, divisor, x), x));
}

// --- singular values ------------------------------------------------------------------------------------------------------

// Orthonormal columns that span what the rows of x, orthogonal and from the longest to the shortest, span, each along its row;
// where rows are zero, others that complete them.
static tt_value *directions(tt_builder *b, tt_value *x) {
  tt_value *a, *tau;
  tt_qr_factor(b, tt_adjoint(b, x), &a, &tau);
  tt_value *q = tt_apply_q(b, a, tau, tt_identity(b, x->dtype, x->dims[0], x->dims[1], x->dims[1]), false);
  tt_value *turned = tt_compare_constant(b, TT_LT, tt_hlo_real(b, tt_diagonal(b, a)), 0);
  return tt_hlo_select(b, tt_across(b, turned, q), tt_hlo_negate(b, q), q);
}

// x [batch, n, n] as the upper left block of [batch, m, k], whose diagonal goes on with ones.
static tt_value *bordered(tt_builder *b, tt_value *x, int64_t m, int64_t k) {
  int64_t n = x->dims[1];
  if (n == m && n == k) return x;
  tt_value *wide = tt_matrix_corner(b, x, m, k);
  tt_value *row = tt_hlo_iota(b, TT_S32, 3, wide->dims, 1), *column = tt_hlo_iota(b, TT_S32, 3, wide->dims, 2);
  tt_value *one = tt_hlo_and(b, tt_hlo_compare(b, TT_EQ, row, column), tt_compare_constant(b, TT_GE, row, (double)n));
  return tt_hlo_select(b, one, tt_hlo_constant_like(b, wide, 1), wide);
}

tt_svd tt_svd_of(tt_builder *b, tt_value *x, bool vectors, bool full) {
  int64_t batch = x->dims[0], m = x->dims[1], n = x->dims[2], k = full ? m : n;
  if (tt_builder_failed(b) || tt_value_count(x) == 0)
    return (tt_svd){tt_identity(b, x->dtype, batch, m, k),
                    tt_hlo_splat(b, tt_dtype_real(x->dtype), 2, (int64_t[]){batch, n}, 0),
                    tt_identity(b, x->dtype, batch, n, n)};
  tt_value *a, *tau, *rotations = NULL, *scale = nonzero(b, tt_max_last(b, tt_max_last(b, tt_hlo_abs(b, x))));
  tt_qr_factor(b, divided(b, x, scale), &a, &tau);
  tt_value *r = tt_triangle(b, tt_matrix_corner(b, a, n, n), true, 0);
  tt_value *rows = tt_orthogonalize_rows(b, r, vectors ? &rotations : NULL);
  if (vectors) { // without the rounding errors of all rounds
    rotations = polished(b, rotations);
    rows = tt_product(b, rotations, r);
  }
  tt_value *s = tt_norm_last(b, rows), *order = sorted_order(b, s, true);
  s = tt_permute_rows(b, s, order);
  s = tt_hlo_multiply(b, s, tt_each(b, scale, s));
  if (!vectors) return (tt_svd){.s = s};
  rotations = tt_permute_rows(b, rotations, order);
  tt_value *u = tt_apply_q(b, a, tau, bordered(b, tt_adjoint(b, rotations), m, k), false);
  return (tt_svd){u, s, directions(b, tt_permute_rows(b, rows, order))};
}

// _linalg_svd(A, full_matrices, compute_uv, *, driver) -> U, S, Vh. torch's wrapper has checked the arguments.
void tt_lower_linalg_svd(tt_lowering *l) {
  tt_builder *b = l->b;
  bool full = tt_bool(l, 1), vectors = tt_bool(l, 2);
  if (tt_has(l, 3))
    tt_fail(l, TT_INVALID_ARGUMENT,
            "torch.linalg.svd: keyword argument `driver=` is only supported on CUDA inputs with cuSOLVER backend.");
  if (tt_failed(l) || !tt_check_lapack_dtype(l, 0, "linalg_svd_cpu")) return;
  tt_value *x = tt_matrices(l, 0);
  bool wide = x->dims[1] < x->dims[2]; // then x^H = v diag(s) u^H
  tt_check_all(l, tt_hlo_is_finite(b, tt_hlo_abs(b, x)), TT_LINALG,
               "linalg.svd: The algorithm failed to converge because the input matrix contained non-finite values.");
  tt_svd svd = tt_svd_of(b, wide ? tt_adjoint(b, x) : x, vectors, full);
  tt_set_matrices_like(l, 1, svd.s, 0);
  if (vectors) {
    tt_set_matrices_like(l, 0, wide ? svd.v : svd.u, 0);
    tt_set_matrices_like(l, 2, tt_adjoint(b, wide ? svd.u : svd.v), 0);
  } else {
    tt_value *none = tt_hlo_splat(b, x->dtype, 1, (int64_t[]){0}, 0);
    tt_set_result(l, 0, none);
    tt_set_result(l, 2, none);
  }
}

// --- eigenvalues ------------------------------------------------------------------------------------------------------------

static tt_value *frobenius(tt_builder *b, tt_value *x) { return tt_norm_last(b, tt_norm_last(b, x)); }

// An upper bound [batch] of the eigenvalues' sizes, at most n^(1/16) times too great: the eighth root of the norm of x^8.
static tt_value *spectral_bound(tt_builder *b, tt_value *x) {
  tt_value *scale = frobenius(b, x), *power = divided(b, x, nonzero(b, scale));
  for (int i = 0; i < 3; ++i) power = tt_product(b, power, power);
  tt_value *norm = frobenius(b, power);
  for (int i = 0; i < 3; ++i) norm = tt_hlo_sqrt(b, norm);
  return tt_hlo_multiply(b, scale, norm);
}

// _linalg_eigh(A, UPLO, compute_v) -> eigenvalues, eigenvectors. torch's wrapper has checked the arguments. NaN where A is not
// finite, as LAPACK.
void tt_lower_linalg_eigh(tt_lowering *l) {
  tt_builder *b = l->b;
  const char *triangle = tt_text(l, 1);
  bool vectors = tt_bool(l, 2);
  if (!tt_check_lapack_dtype(l, 0, "linalg_eigh_cpu")) return;
  tt_value *x = tt_hermitian(b, tt_matrices(l, 0), triangle[0] == 'U' || triangle[0] == 'u'), *v;
  tt_value *unit = tt_identity(b, x->dtype, x->dims[0], x->dims[1], x->dims[2]);
  tt_orthogonalize_rows(b, tt_hlo_add(b, divided(b, x, nonzero(b, spectral_bound(b, x))), unit), &v);
  v = polished(b, v);
  tt_value *values = tt_hlo_multiply(b, tt_product(b, v, x), tt_conjugate(b, v));
  values = tt_sum_last(b, tt_hlo_real(b, values));
  tt_value *order = sorted_order(b, values, false);
  tt_value *finite = tt_hlo_is_finite(b, frobenius(b, x));
  values = tt_permute_rows(b, values, order);
  values = tt_hlo_select(b, tt_each(b, finite, values), values, tt_hlo_constant_like(b, values, NAN));
  tt_set_matrices_like(l, 0, values, 0);
  if (!vectors) {
    tt_set_result(l, 1, tt_hlo_splat(b, x->dtype, 1, (int64_t[]){0}, 0));
    return;
  }
  v = tt_adjoint(b, tt_permute_rows(b, v, order));
  tt_set_matrices_like(l, 1, tt_hlo_select(b, tt_each(b, finite, v), v, tt_hlo_constant_like(b, v, NAN)), 0);
}
