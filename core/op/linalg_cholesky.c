// linalg_cholesky.c - factors of positive definite matrices: linalg_cholesky_ex, cholesky_inverse, _cholesky_solve_helper.
//
// Columns are made from left to right, in panels: what the columns before a panel contribute to it is one product of matrices.
// StableHLO's cholesky gives NaN for a matrix that is not positive definite; LAPACK says where it stopped.
#include "op/linalg.h"

enum { PANEL = 32 };

// --- the factor -----------------------------------------------------------------------------------------------------------

enum { MATRIX, INFO, FIRST }; // carried through a panel: its columns [batch, n, PANEL], info, its first column
enum { FACTOR, FACTOR_INFO }; // carried from panel to panel

// `index` counts within the panel. Column j of the factor is (a_j - what the columns before it make of it) / its own root.
static void one_column(tt_builder *b, tt_value *index, tt_value **values, void *user) {
  (void)user;
  tt_value *panel = values[MATRIX], *at = tt_hlo_add(b, values[FIRST], index), *info = values[INFO];
  tt_value *column = tt_column(b, panel, index), *row = tt_row(b, panel, at);
  row = tt_zero_unless(b, tt_positions(b, row, 1, TT_LT, index), tt_conjugate(b, row));
  tt_value *known = tt_product(b, panel, tt_hlo_unsqueeze_dim(b, row, 2));
  tt_value *rest = tt_hlo_subtract(b, column, tt_hlo_squeeze_dim(b, known, 2));
  tt_value *pivot = tt_hlo_real(b, tt_entry(b, rest, at)), *good = tt_compare_constant(b, TT_GT, pivot, 0);
  tt_value *root = tt_hlo_sqrt(b, pivot);
  tt_value *below = tt_hlo_divide(b, rest, tt_each(b, tt_real_as(b, root, rest), rest));
  below = tt_zero_unless(b, tt_positions(b, rest, 1, TT_GT, at), below);
  rest = tt_hlo_select(b, tt_positions(b, rest, 1, TT_EQ, at), tt_each(b, tt_real_as(b, root, rest), rest), below);
  tt_value *running = tt_compare_constant(b, TT_EQ, info, 0);
  tt_value *order = tt_hlo_broadcast_like(b, tt_add_constant(b, at, 1), info);
  info = tt_hlo_select(b, tt_hlo_and(b, running, tt_hlo_not(b, good)), order, info);
  rest = tt_hlo_select(b, tt_each(b, tt_hlo_and(b, running, good), rest), rest, column);
  values[MATRIX] = tt_with_column(b, panel, index, rest);
  values[INFO] = info;
}

static void one_panel(tt_builder *b, tt_value *index, tt_value **values, void *user) {
  (void)user;
  tt_value *factor = values[FACTOR], *first = tt_multiply_constant(b, index, PANEL);
  tt_value *done = tt_zero_unless(b, tt_positions(b, factor, 2, TT_LT, first), factor);
  tt_value *rows = tt_rows_from(b, done, first, PANEL);
  tt_value *panel = tt_columns_from(b, factor, first, PANEL);
  tt_value *rest = tt_hlo_subtract(b, panel, tt_product(b, done, tt_adjoint(b, rows)));
  rest = tt_hlo_select(b, tt_each(b, tt_compare_constant(b, TT_EQ, values[FACTOR_INFO], 0), panel), rest, panel);
  // Above the diagonal there are zeros.
  tt_value *row = tt_hlo_iota(b, TT_S32, 3, rest->dims, 1), *column = tt_hlo_iota(b, TT_S32, 3, rest->dims, 2);
  column = tt_hlo_add(b, column, tt_hlo_broadcast_like(b, first, column));
  rest = tt_zero_unless(b, tt_hlo_compare(b, TT_GE, row, column), rest);
  tt_value *inner[] = {rest, values[FACTOR_INFO], first};
  tt_repeat(b, PANEL, 3, inner, one_column, NULL);
  values[FACTOR] = tt_with_columns(b, factor, first, inner[MATRIX]);
  values[FACTOR_INFO] = inner[INFO];
}

// The lower factor of Hermitian matrices, of which the lower triangle is read; info as LAPACK's potrf.
static tt_value *factor_of(tt_builder *b, tt_value *a, tt_value **out_info) {
  int64_t n = a->dims[1], panels = (n + PANEL - 1) / PANEL, padded = n <= PANEL ? n : panels * PANEL;
  tt_value *info = tt_hlo_splat(b, TT_S32, 1, a->dims, 0);
  a = tt_triangle(b, a, false, 0);
  if (n <= PANEL) {
    tt_value *values[] = {a, info, tt_hlo_constant(b, TT_S32, 0)};
    tt_repeat(b, n, 3, values, one_column, NULL);
    *out_info = values[INFO];
    return values[MATRIX];
  }
  // Padded with the identity, whose factor is itself.
  tt_value *wide = tt_matrix_corner(b, a, padded, padded);
  tt_value *row = tt_hlo_iota(b, TT_S32, 3, wide->dims, 1), *column = tt_hlo_iota(b, TT_S32, 3, wide->dims, 2);
  tt_value *one = tt_hlo_and(b, tt_hlo_compare(b, TT_EQ, row, column), tt_compare_constant(b, TT_GE, row, (double)n));
  wide = tt_hlo_select(b, one, tt_hlo_constant_like(b, wide, 1), wide);
  tt_value *values[] = {wide, info};
  tt_repeat(b, panels, 2, values, one_panel, NULL);
  *out_info = values[FACTOR_INFO];
  return tt_matrix_corner(b, values[FACTOR], n, n);
}

// linalg_cholesky_ex(A, *, upper, check_errors) -> L, info. torch's wrapper has checked the arguments; the bridge looks at info
// for check_errors.
void tt_lower_linalg_cholesky_ex(tt_lowering *l) {
  tt_builder *b = l->b;
  bool upper = tt_bool(l, 1);
  if (!tt_check_lapack_dtype(l, 0, "cholesky_cpu")) return;
  tt_value *a = tt_matrices(l, 0), *info;
  tt_value *factor = factor_of(b, upper ? tt_adjoint(b, a) : a, &info);
  tt_set_matrices_like(l, 0, upper ? tt_adjoint(b, factor) : factor, 0);
  tt_set_matrices_like(l, 1, info, 0);
}

// --- solutions --------------------------------------------------------------------------------------------------------------

// Solves A x = y, where A is L L^H or, for `upper`, U^H U.
static tt_value *solve(tt_builder *b, tt_value *factor, tt_value *y, bool upper) {
  tt_value *adjoint = tt_adjoint(b, factor), *lower = upper ? adjoint : factor, *other = upper ? factor : adjoint;
  return tt_solve_triangular(b, other, tt_solve_triangular(b, lower, y, false, false), true, false);
}

// cholesky_inverse(factor, upper)
void tt_lower_cholesky_inverse(tt_lowering *l) {
  tt_builder *b = l->b;
  if (!tt_check_square(l, 0, "cholesky_inverse", "A") || !tt_check_lapack_dtype(l, 0, "cholesky_inverse_out_cpu"))
    return;
  tt_value *factor = tt_matrices(l, 0);
  tt_value *unit = tt_identity(b, factor->dtype, factor->dims[0], factor->dims[1], factor->dims[2]);
  tt_set_matrices_like(l, 0, solve(b, factor, unit, tt_bool(l, 1)), 0);
  tt_set_column_major(l, 0);
}

// _cholesky_solve_helper(B, factor, upper): torch's cholesky_solve has checked and broadcast them.
void tt_lower_cholesky_solve(tt_lowering *l) {
  if (!tt_check_lapack_dtype(l, 0, "cholesky_solve_cpu")) return;
  tt_set_matrices_like(l, 0, solve(l->b, tt_matrices(l, 1), tt_matrices(l, 0), tt_bool(l, 2)), 0);
  tt_set_column_major(l, 0);
}
