// linalg_qr.c - Householder QR: linalg_qr, geqrf, linalg_householder_product, ormqr.
//
// A reflector is I - tau v v^H with v = 1 at its diagonal element and 0 above; Q is the product of all, in order (LAPACK's
// geqrf, which also fixes the signs). A panel of columns is reduced one by one; the rest of the matrix meets the panel's
// reflectors at once, as products of matrices.
//
// Reflectors together are I - V T V^H (Schreiber and Van Loan 1989) with T = (I + D U)^-1 D, where D holds the taus and U is
// what V^H V has above its diagonal (Joffrain, Low, Quintana-Orti, van de Geijn and Van Zee 2006, without their division
// by tau, which may be 0).
#include "op/linalg.h"

enum { PANEL = 32 };

// --- application ----------------------------------------------------------------------------------------------------------

// The vectors of reflectors [batch, m, k] whose first diagonal element is in row `first`: 1 there, 0 above.
static tt_value *vectors(tt_builder *b, tt_value *x, tt_value *first) {
  tt_value *row = tt_hlo_iota(b, TT_S32, 3, x->dims, 1), *column = tt_hlo_iota(b, TT_S32, 3, x->dims, 2);
  tt_value *diagonal = tt_hlo_add(b, column, tt_hlo_broadcast_like(b, first, column));
  tt_value *below = tt_zero_unless(b, tt_hlo_compare(b, TT_GT, row, diagonal), x);
  return tt_hlo_select(b, tt_hlo_compare(b, TT_EQ, row, diagonal), tt_hlo_constant_like(b, x, 1), below);
}

// y after all reflectors, or (adjoint) after their adjoints in reverse order: those of Q^H.
static tt_value *apply(tt_builder *b, tt_value *v, tt_value *tau, tt_value *y, bool adjoint) {
  tt_value *inner = tt_product(b, tt_adjoint(b, v), v);
  tt_value *system = tt_hlo_multiply(b, tt_down(b, tau, inner), tt_triangle(b, inner, true, 1)); // D U
  tt_value *part = tt_product(b, tt_adjoint(b, v), y);
  if (adjoint) {
    part = tt_solve_triangular(b, tt_adjoint(b, system), part, false, true);
    part = tt_hlo_multiply(b, tt_down(b, tt_conjugate(b, tau), part), part);
  } else {
    part = tt_hlo_multiply(b, tt_down(b, tau, part), part);
    part = tt_solve_triangular(b, system, part, true, true);
  }
  return tt_hlo_subtract(b, y, tt_product(b, v, part));
}

tt_value *tt_apply_q(tt_builder *b, tt_value *reflectors, tt_value *tau, tt_value *y, bool adjoint) {
  int64_t m = reflectors->dims[1], k = tau->dims[1];
  if (tt_builder_failed(b) || k == 0 || tt_value_count(y) == 0) return y;
  tt_value *v = vectors(b, tt_matrix_corner(b, reflectors, m, k), tt_hlo_constant(b, TT_S32, 0));
  return apply(b, v, tau, y, adjoint);
}

// --- the factors ------------------------------------------------------------------------------------------------------------

enum { COLUMNS, TAU, FIRST, PANEL_VALUES }; // carried through a panel; FIRST: the row of its first diagonal element
enum { MATRIX, ALL_TAU, MATRIX_VALUES };    // carried from panel to panel

// Reduces a column (LAPACK's larfg): beta replaces its diagonal element, v's other elements those below.
static void one_column(tt_builder *b, tt_value *index, tt_value **values, void *user) {
  (void)user;
  tt_value *panel = values[COLUMNS], *at = tt_hlo_add(b, values[FIRST], index), *column = tt_column(b, panel, index);
  tt_value *is_at = tt_positions(b, column, 1, TT_EQ, at), *is_below = tt_positions(b, column, 1, TT_GT, at);
  tt_value *alpha = tt_sum_last(b, tt_zero_unless(b, is_at, column)), *real = tt_hlo_real(b, alpha);
  tt_value *length = tt_norm_last(b, tt_zero_unless(b, tt_hlo_or(b, is_at, is_below), column));
  tt_value *rest = tt_hlo_reduce(b, tt_zero_unless(b, is_below, tt_hlo_abs(b, column)), TT_REDUCE_MAX, 1, (int[]){1});
  // Nothing to do where the column is zero below its diagonal and real on it.
  tt_value *skip = tt_compare_constant(b, TT_EQ, rest, 0);
  if (tt_dtype_is_complex(alpha->dtype))
    skip = tt_hlo_and(b, skip, tt_compare_constant(b, TT_EQ, tt_hlo_imag(b, alpha), 0));
  tt_value *beta = tt_hlo_select(b, tt_compare_constant(b, TT_GE, real, 0), tt_hlo_negate(b, length), length);
  beta = tt_real_as(b, beta, alpha);
  tt_value *one = tt_hlo_constant_like(b, alpha, 1);
  tt_value *tau = tt_hlo_divide(b, tt_hlo_subtract(b, beta, alpha), tt_hlo_select(b, skip, one, beta));
  tau = tt_hlo_select(b, skip, tt_hlo_constant_like(b, tau, 0), tau);
  tt_value *scale = tt_hlo_select(b, skip, one, tt_hlo_subtract(b, alpha, beta));
  tt_value *below = tt_zero_unless(b, is_below, tt_hlo_divide(b, column, tt_each(b, scale, column)));
  tt_value *v = tt_hlo_select(b, is_at, tt_hlo_constant_like(b, below, 1), below);
  // H^H = I - conj(tau) v v^H from the left, on the panel's columns behind this one.
  tt_value *row = tt_product(b, tt_hlo_unsqueeze_dim(b, tt_conjugate(b, v), 1), panel);
  row = tt_hlo_squeeze_dim(b, row, 1);
  row = tt_hlo_multiply(b, row, tt_each(b, tt_conjugate(b, tau), row));
  row = tt_zero_unless(b, tt_positions(b, row, 1, TT_GT, index), row);
  panel = tt_hlo_subtract(b, panel, tt_hlo_multiply(b, tt_down(b, v, panel), tt_across(b, row, panel)));
  tt_value *diagonal = tt_hlo_select(b, skip, alpha, beta);
  column = tt_hlo_select(b, is_at, tt_each(b, diagonal, column), tt_hlo_select(b, is_below, below, column));
  values[COLUMNS] = tt_with_column(b, panel, index, column);
  values[TAU] = tt_with_entry(b, values[TAU], index, tau);
}

static void reduce(tt_builder *b, int64_t count, tt_value **values) {
  const tt_value *panel = values[COLUMNS];
  values[TAU] = tt_hlo_splat(b, panel->dtype, 2, (int64_t[]){panel->dims[0], count}, 0);
  tt_repeat(b, count, PANEL_VALUES, values, one_column, NULL);
}

static void one_panel(tt_builder *b, tt_value *index, tt_value **values, void *user) {
  (void)user;
  tt_value *x = values[MATRIX], *first = tt_multiply_constant(b, index, PANEL), *zero = tt_hlo_constant(b, TT_S32, 0);
  tt_value *panel[PANEL_VALUES] = {[COLUMNS] = tt_columns_from(b, x, first, PANEL), [FIRST] = first};
  reduce(b, PANEL, panel);
  // The panel's Q^H acts on the columns behind it.
  tt_value *changed = apply(b, vectors(b, panel[COLUMNS], first), panel[TAU], x, true);
  x = tt_hlo_select(b, tt_positions(b, x, 2, TT_GE, tt_add_constant(b, first, PANEL)), changed, x);
  values[MATRIX] = tt_with_columns(b, x, first, panel[COLUMNS]);
  values[ALL_TAU] = tt_hlo_dynamic_update_slice(b, values[ALL_TAU], panel[TAU], (tt_value *[]){zero, first});
}

void tt_qr_factor(tt_builder *b, tt_value *x, tt_value **out_a, tt_value **out_tau) {
  int64_t batch = x->dims[0], m = x->dims[1], n = x->dims[2], k = m < n ? m : n;
  if (k <= PANEL) {
    tt_value *values[PANEL_VALUES] = {[COLUMNS] = x, [FIRST] = tt_hlo_constant(b, TT_S32, 0)};
    reduce(b, k, values);
    *out_a = values[COLUMNS];
    *out_tau = values[TAU];
    return;
  }
  // Columns of zeros and those behind the last row have nothing to reduce: tau is 0 there.
  int64_t panels = (k + PANEL - 1) / PANEL, padded = panels * PANEL;
  x = tt_matrix_corner(b, x, m > padded ? m : padded, n > padded ? n : padded);
  tt_value *values[MATRIX_VALUES] = {x, tt_hlo_splat(b, x->dtype, 2, (int64_t[]){batch, padded}, 0)};
  tt_repeat(b, panels, MATRIX_VALUES, values, one_panel, NULL);
  *out_a = tt_matrix_corner(b, values[MATRIX], m, n);
  *out_tau = tt_hlo_slice_dim(b, values[ALL_TAU], 1, 0, k, 1);
}

// --- ops --------------------------------------------------------------------------------------------------------------------

// The first `columns` columns of Q.
static tt_value *columns_of_q(tt_builder *b, tt_value *a, tt_value *tau, int64_t columns) {
  tt_value *unit = tt_identity(b, a->dtype, a->dims[0], a->dims[1], columns);
  return tt_apply_q(b, a, tau, unit, false);
}

// linalg_qr(A, mode) -> Q, R. torch's wrapper has checked the arguments.
void tt_lower_linalg_qr(tt_lowering *l) {
  tt_builder *b = l->b;
  const char *mode = tt_text(l, 1);
  bool complete = mode[0] == 'c', only_r = mode[0] == 'r' && mode[1] == 0;
  if (!tt_check_lapack_dtype(l, 0, "geqrf_cpu")) return;
  tt_value *x = tt_matrices(l, 0), *a, *tau;
  int64_t m = x->dims[1], n = x->dims[2], k = complete || m < n ? m : n;
  tt_qr_factor(b, x, &a, &tau);
  tt_value *none = tt_hlo_splat(b, x->dtype, 1, (int64_t[]){0}, 0);
  if (only_r)
    tt_set_result(l, 0, none);
  else
    tt_set_matrices_like(l, 0, columns_of_q(b, a, tau, k), 0);
  tt_set_matrices_like(l, 1, tt_triangle(b, tt_matrix_corner(b, a, k, n), true, 0), 0);
}

// geqrf(A) -> a, tau
void tt_lower_geqrf(tt_lowering *l) {
  if (tt_tensor_arg(l, 0)->rank < 2)
    tt_fail(l, TT_INVALID_ARGUMENT, "torch.geqrf: input must have at least 2 dimensions.");
  if (tt_failed(l) || !tt_check_lapack_dtype(l, 0, "geqrf_cpu")) return;
  tt_value *a, *tau;
  tt_qr_factor(l->b, tt_matrices(l, 0), &a, &tau);
  tt_set_matrices_like(l, 0, a, 0);
  tt_set_column_major(l, 0);
  tt_set_matrices_like(l, 1, tau, 0);
}

static bool same_batch(const tt_tensor *x, int x_kept, const tt_tensor *y, int y_kept) {
  for (int i = 0; i < x->rank - x_kept; ++i)
    if (x->sizes[i] != y->sizes[i]) return false;
  return x->rank - x_kept == y->rank - y_kept;
}

static const char *batch_text(tt_lowering *l, const tt_tensor *t, int kept) {
  return tt_shape_text(tt_builder_arena(l->b), t->rank - kept, t->sizes);
}

// What both ops with reflectors as arguments ask of tau (argument 1).
static void check_tau(tt_lowering *l, const char *op) {
  const tt_tensor *x = tt_tensor_arg(l, 0), *tau = tt_tensor_arg(l, 1);
  if (x->rank - tau->rank != 1)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "%s: Expected tau to have one dimension less than input, but got tau.ndim equal to %d and input.ndim is "
            "equal to %d",
            op, tau->rank, x->rank);
  else if (!same_batch(x, 2, tau, 1))
    tt_fail(l, TT_INVALID_ARGUMENT, "%s: Expected batch dimensions of tau to be equal to input.shape[:-2], but got %s",
            op, batch_text(l, tau, 1));
}

// linalg_householder_product(input, tau)
void tt_lower_householder_product(tt_lowering *l) {
  static const char op[] = "torch.linalg.householder_product";
  const tt_tensor *x = tt_tensor_arg(l, 0), *tau = tt_tensor_arg(l, 1);
  const int64_t *size = x->sizes + x->rank - 2;
  int64_t count = tau->rank > 0 ? tau->sizes[tau->rank - 1] : 1;
  if (x->rank < 2)
    tt_fail(l, TT_INVALID_ARGUMENT, "%s: input must have at least 2 dimensions.", op);
  else if (size[0] < size[1])
    tt_fail(l, TT_INVALID_ARGUMENT, "%s: input.shape[-2] must be greater than or equal to input.shape[-1]", op);
  else if (size[1] < count)
    tt_fail(l, TT_INVALID_ARGUMENT, "%s: input.shape[-1] must be greater than or equal to tau.shape[-1]", op);
  else
    check_tau(l, op);
  if (!tt_failed(l) && tau->dtype != x->dtype)
    tt_fail(l, TT_INVALID_ARGUMENT, "%s: tau dtype %s does not match input dtype %s", op, tt_dtype_text(tau->dtype),
            tt_dtype_text(x->dtype));
  if (tt_failed(l) || !tt_check_lapack_dtype(l, 0, "orgqr_cpu")) return;
  tt_set_matrices_like(l, 0, columns_of_q(l->b, tt_matrices(l, 0), tt_vectors(l, 1), size[1]), 0);
  tt_set_column_major(l, 0);
}

static void check_ormqr(tt_lowering *l, bool left) {
  const tt_tensor *x = tt_tensor_arg(l, 0), *tau = tt_tensor_arg(l, 1), *y = tt_tensor_arg(l, 2);
  int side = left ? -2 : -1;
  if (x->rank < 2 || y->rank < 2) {
    tt_fail(l, TT_INVALID_ARGUMENT, "torch.ormqr: %s must have at least 2 dimensions.",
            x->rank < 2 ? "input" : "other");
    return;
  }
  int64_t rows = x->sizes[x->rank - 2], columns = x->sizes[x->rank - 1], size = y->sizes[y->rank + side];
  int64_t count = tau->rank > 0 ? tau->sizes[tau->rank - 1] : 1;
  if (size != rows)
    tt_fail(l, TT_INVALID_ARGUMENT, "torch.ormqr: other.shape[%d] must be equal to input.shape[-2]", side);
  else if (count != (size < columns ? size : columns))
    tt_fail(l, TT_INVALID_ARGUMENT, "torch.ormqr: tau.shape[-1] must be equal to min(other.shape[%d], input.shape[-1])",
            side);
  else if (x->rank - tau->rank == 1 && x->rank != y->rank)
    tt_fail(
        l, TT_INVALID_ARGUMENT,
        "torch.ormqr: Expected other to have the same number of dimensions as input, but got other.ndim equal to %d "
        "and input.ndim is equal to %d",
        y->rank, x->rank);
  else
    check_tau(l, "torch.ormqr");
  if (tt_failed(l)) return;
  const tt_tensor *odd = tau->dtype != x->dtype ? tau : y;
  if (!same_batch(x, 2, y, 2))
    tt_fail(l, TT_INVALID_ARGUMENT,
            "torch.ormqr: Expected batch dimensions of other to be equal to input.shape[:-2], but got %s",
            batch_text(l, y, 2));
  else if (odd->dtype != x->dtype)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "torch.ormqr: Expected input and %s to have the same dtype, but input has dtype%s and %s has dtype %s",
            odd == tau ? "tau" : "other", tt_dtype_text(x->dtype), odd == tau ? "tau" : "other",
            tt_dtype_text(odd->dtype));
}

// ormqr(input, tau, other, left, transpose): Q other, Q^H other, other Q or other Q^H.
void tt_lower_ormqr(tt_lowering *l) {
  tt_builder *b = l->b;
  bool left = tt_bool(l, 3), adjoint = tt_bool(l, 4);
  check_ormqr(l, left);
  if (tt_failed(l) || !tt_check_lapack_dtype(l, 0, "ormqr_cpu")) return;
  tt_value *a = tt_matrices(l, 0), *tau = tt_vectors(l, 1), *y = tt_matrices(l, 2);
  y = left ? tt_apply_q(b, a, tau, y, adjoint) : tt_adjoint(b, tt_apply_q(b, a, tau, tt_adjoint(b, y), !adjoint));
  tt_set_matrices_like(l, 0, y, 2);
}
