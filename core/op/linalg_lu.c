// linalg_lu.c - LU with partial pivoting and what torch makes of it: linalg_lu_factor_ex, linalg_lu, lu_unpack, linalg_lu_solve,
// _linalg_solve_ex, linalg_inv_ex, _linalg_det, _linalg_slogdet.
//
// Right-looking, in panels of columns: a panel is eliminated column by column, then its row exchanges, the rows of U beside it
// and one product of matrices bring the rest up to date (LAPACK's getrf).
#include "op/linalg.h"

enum { PANEL = 32 };

// --- the factors ------------------------------------------------------------------------------------------------------------

// What the columns of a panel carry: its columns [batch, rows, PANEL], where its rows came from, its pivots, info, the row of
// its first diagonal element.
enum { COLUMNS, ORDER, PIVOTS, INFO, FIRST, PANEL_VALUES };
enum { MATRIX, ALL_ORDER, ALL_PIVOTS, ALL_INFO, MATRIX_VALUES }; // what the panels carry

typedef struct factorization {
  bool pivot;
  int64_t columns; // of the unpadded matrix that are eliminated
} factorization;

// The first row at or below `at` whose element in `column` is greatest; `at` itself where none is (NaN).
static tt_value *find_pivot(tt_builder *b, tt_value *column, tt_value *at) {
  tt_value *size = tt_pivot_size(b, column), *below = tt_positions(b, column, 1, TT_GE, at);
  size = tt_hlo_select(b, below, size, tt_hlo_constant_like(b, size, -1));
  tt_value *greatest = tt_hlo_compare(b, TT_EQ, size, tt_each(b, tt_max_last(b, size), size));
  tt_value *row = tt_hlo_iota(b, TT_S32, 2, column->dims, 1),
           *none = tt_hlo_constant_like(b, row, (double)row->dims[1]);
  tt_value *found = tt_hlo_reduce(b, tt_hlo_select(b, greatest, row, none), TT_REDUCE_MIN, 1, (int[]){1});
  return tt_hlo_select(b, tt_compare_constant(b, TT_LT, found, (double)row->dims[1]), found,
                       tt_hlo_broadcast_like(b, at, found));
}

// Element i of `x` [batch, rows(, columns)] where the row is `at`, and the other way round.
static tt_value *exchange(tt_builder *b, tt_value *x, tt_value *at, tt_value *pivot) {
  tt_value *upper = tt_row(b, x, at), *lower = tt_pick_rows(b, x, pivot);
  tt_value *is_at = tt_positions(b, x, 1, TT_EQ, at), *is_pivot = tt_positions(b, x, 1, TT_EQ, pivot);
  if (x->rank == 3)
    return tt_hlo_select(b, is_at, tt_across(b, lower, x), tt_hlo_select(b, is_pivot, tt_across(b, upper, x), x));
  return tt_hlo_select(b, is_at, tt_each(b, lower, x), tt_hlo_select(b, is_pivot, tt_each(b, upper, x), x));
}

static void one_column(tt_builder *b, tt_value *index, tt_value **values, void *user) {
  const factorization *f = user;
  tt_value *panel = values[COLUMNS], *at = tt_hlo_add(b, values[FIRST], index), *info = values[INFO];
  tt_value *pivot = tt_hlo_broadcast_in_dim(b, at, 1, panel->dims, NULL);
  if (f->pivot) {
    pivot = find_pivot(b, tt_column(b, panel, index), at);
    panel = exchange(b, panel, at, pivot);
    values[ORDER] = exchange(b, values[ORDER], at, pivot);
  }
  tt_value *column = tt_column(b, panel, index), *row = tt_row(b, panel, at), *corner = tt_entry(b, row, index);
  tt_value *is_zero = tt_compare_constant(b, TT_EQ, corner, 0), *zero = tt_hlo_constant_like(b, corner, 0);
  tt_value *divisor = tt_hlo_select(b, is_zero, tt_hlo_constant_like(b, corner, 1), corner);
  tt_value *below = tt_positions(b, column, 1, TT_GT, at);
  tt_value *factor = tt_zero_unless(b, below, tt_hlo_divide(b, column, tt_each(b, divisor, column)));
  column = tt_hlo_select(b, below, factor, column);
  row = tt_zero_unless(b, tt_positions(b, row, 1, TT_GT, index), row);
  // Columns at and before this one are left alone, for there the row is zero.
  panel = tt_hlo_subtract(b, panel, tt_hlo_multiply(b, tt_down(b, factor, panel), tt_across(b, row, panel)));
  values[COLUMNS] = tt_with_column(b, panel, index, column);
  values[PIVOTS] = tt_with_entry(b, values[PIVOTS], index, tt_add_constant(b, pivot, 1));
  tt_value *first_zero = tt_hlo_and(b, tt_compare_constant(b, TT_EQ, info, 0), tt_hlo_compare(b, TT_EQ, corner, zero));
  tt_value *inside = tt_compare_constant(b, TT_LT, at, (double)f->columns); // not in the padding
  first_zero = tt_hlo_and(b, first_zero, tt_hlo_broadcast_like(b, inside, first_zero));
  values[INFO] = tt_hlo_select(b, first_zero, tt_hlo_broadcast_like(b, tt_add_constant(b, at, 1), info), info);
}

// Eliminates `count` columns of values[COLUMNS].
static void eliminate(tt_builder *b, int64_t count, tt_value **values, factorization *f) {
  const tt_value *panel = values[COLUMNS];
  values[ORDER] = tt_hlo_iota(b, TT_S32, 2, panel->dims, 1);
  values[PIVOTS] = tt_hlo_splat(b, TT_S32, 2, (int64_t[]){panel->dims[0], count}, 0);
  tt_repeat(b, count, PANEL_VALUES, values, one_column, f);
}

static void one_panel(tt_builder *b, tt_value *index, tt_value **values, void *user) {
  tt_value *first = tt_multiply_constant(b, index, PANEL), *behind = tt_add_constant(b, first, PANEL),
           *x = values[MATRIX];
  tt_value *panel[PANEL_VALUES] = {
      [COLUMNS] = tt_columns_from(b, x, first, PANEL), [INFO] = values[ALL_INFO], [FIRST] = first};
  eliminate(b, PANEL, panel, user);
  x = tt_with_columns(b, tt_permute_rows(b, x, panel[ORDER]), first, panel[COLUMNS]);
  // Rows of U to the right of the panel, and what lies below them.
  tt_value *corner = tt_rows_from(b, panel[COLUMNS], first, PANEL), *rows = tt_rows_from(b, x, first, PANEL);
  tt_value *right = tt_positions(b, rows, 2, TT_GE, behind);
  tt_value *u = tt_zero_unless(b, right, tt_solve_triangular(b, corner, rows, false, true));
  tt_value *below = tt_zero_unless(b, tt_positions(b, panel[COLUMNS], 1, TT_GE, behind), panel[COLUMNS]);
  x = tt_with_rows(b, x, first, tt_hlo_select(b, right, u, rows));
  values[MATRIX] = tt_hlo_subtract(b, x, tt_product(b, below, u));
  values[ALL_ORDER] = tt_permute_rows(b, values[ALL_ORDER], panel[ORDER]);
  tt_value *zero = tt_hlo_constant(b, TT_S32, 0);
  values[ALL_PIVOTS] = tt_hlo_dynamic_update_slice(b, values[ALL_PIVOTS], panel[PIVOTS], (tt_value *[]){zero, first});
  values[ALL_INFO] = panel[INFO];
}

// The first columns of [batch, n].
static tt_value *first_of(tt_builder *b, tt_value *x, int64_t count) { return tt_hlo_slice_dim(b, x, 1, 0, count, 1); }

tt_lu tt_lu_factor(tt_builder *b, tt_value *x, bool pivot) {
  int64_t batch = x->dims[0], m = x->dims[1], n = x->dims[2], k = m < n ? m : n;
  tt_value *info = tt_hlo_splat(b, TT_S32, 1, &batch, 0);
  factorization f = {pivot, k};
  if (k <= PANEL) {
    tt_value *values[PANEL_VALUES] = {[COLUMNS] = x, [INFO] = info, [FIRST] = tt_hlo_constant(b, TT_S32, 0)};
    eliminate(b, k, values, &f);
    return (tt_lu){values[COLUMNS], values[PIVOTS], values[ORDER], values[INFO]};
  }
  // Zeros below and to the right: their rows are never greater than others, and their columns have nothing to eliminate.
  int64_t panels = (k + PANEL - 1) / PANEL, padded = panels * PANEL;
  x = tt_matrix_corner(b, x, m > padded ? m : padded, n > padded ? n : padded);
  tt_value *values[MATRIX_VALUES] = {x, tt_hlo_iota(b, TT_S32, 2, x->dims, 1),
                                     tt_hlo_splat(b, TT_S32, 2, (int64_t[]){batch, padded}, 0), info};
  tt_repeat(b, panels, MATRIX_VALUES, values, one_panel, &f);
  return (tt_lu){tt_matrix_corner(b, values[MATRIX], m, n), first_of(b, values[ALL_PIVOTS], k),
                 first_of(b, values[ALL_ORDER], m), values[ALL_INFO]};
}

// --- permutations -------------------------------------------------------------------------------------------------------------

static void one_exchange(tt_builder *b, tt_value *index, tt_value **values, void *user) {
  (void)user;
  values[0] = exchange(b, values[0], index, tt_add_constant(b, tt_entry(b, values[1], index), -1));
}

// The order that exchanges by LAPACK's pivots bring `rows` rows into.
static tt_value *order_of_pivots(tt_builder *b, tt_value *pivots, int64_t rows) {
  const int64_t dims[] = {pivots->dims[0], rows};
  tt_value *values[] = {tt_hlo_iota(b, TT_S32, 2, dims, 1), pivots};
  tt_repeat(b, pivots->dims[1], 2, values, one_exchange, NULL);
  return values[0];
}

// P of x = P L U: its column i is the unit vector of row order[i].
static tt_value *permutation(tt_builder *b, tt_value *order, tt_dtype dtype) {
  const int64_t dims[] = {order->dims[0], order->dims[1], order->dims[1]};
  tt_value *row = tt_hlo_iota(b, TT_S32, 3, dims, 1);
  return tt_hlo_convert(b, tt_hlo_compare(b, TT_EQ, row, tt_across(b, order, row)), dtype);
}

// --- solutions ----------------------------------------------------------------------------------------------------------------

// Solves A x = y, or A^H x = y, for the A whose factors and order of rows are given.
static tt_value *solve(tt_builder *b, tt_value *lu, tt_value *order, tt_value *y, bool adjoint) {
  if (tt_builder_failed(b) || tt_value_count(y) == 0) return y;
  if (!adjoint) {
    y = tt_solve_triangular(b, lu, tt_permute_rows(b, y, order), false, true);
    return tt_solve_triangular(b, lu, y, true, false);
  }
  lu = tt_adjoint(b, lu);
  y = tt_solve_triangular(b, lu, y, false, false);
  return tt_permute_rows(b, tt_solve_triangular(b, lu, y, true, true), tt_inverse_order(b, order));
}

// Solves x A = y where not `left`, which is A^H x^H = y^H.
static tt_value *solve_side(tt_builder *b, tt_value *lu, tt_value *order, tt_value *y, bool left, bool adjoint) {
  return left ? solve(b, lu, order, y, adjoint) : tt_adjoint(b, solve(b, lu, order, tt_adjoint(b, y), !adjoint));
}

// --- ops: torch's wrappers check their arguments ----------------------------------------------------------------------------------

// linalg_lu_factor_ex(A, *, pivot, check_errors) -> LU, pivots, info
void tt_lower_linalg_lu_factor_ex(tt_lowering *l) {
  if (!tt_check_lapack_dtype(l, 0, "lu_cpu")) return;
  tt_lu lu = tt_lu_factor(l->b, tt_matrices(l, 0), tt_bool(l, 1));
  tt_set_factors(l, 0, 0, lu.lu, lu.pivots, lu.info);
}

// P, L, U of packed factors; P where there is an order, L and U where there are factors. The others have no elements.
static void set_unpacked(tt_lowering *l, int a, tt_value *lu, tt_value *order) {
  tt_builder *b = l->b;
  tt_dtype dtype = tt_tensor_arg(l, a)->dtype;
  tt_value *none = tt_hlo_splat(b, dtype, 1, (int64_t[]){0}, 0);
  for (int i = 0; i < 3; ++i) tt_set_result(l, i, none);
  if (order) tt_set_matrices_like(l, 0, permutation(b, order, dtype), a);
  if (!lu) return;
  int64_t m = lu->dims[1], n = lu->dims[2], k = m < n ? m : n;
  tt_value *lower = tt_triangle(b, tt_matrix_corner(b, lu, m, k), false, -1);
  lower = tt_hlo_add(b, lower, tt_identity(b, dtype, lu->dims[0], m, k));
  tt_set_matrices_like(l, 1, lower, a);
  tt_set_matrices_like(l, 2, tt_triangle(b, tt_matrix_corner(b, lu, k, n), true, 0), a);
}

// linalg_lu(A, *, pivot) -> P, L, U
void tt_lower_linalg_lu(tt_lowering *l) {
  bool pivot = tt_bool(l, 1);
  if (!tt_check_lapack_dtype(l, 0, "lu_cpu")) return;
  tt_lu lu = tt_lu_factor(l->b, tt_matrices(l, 0), pivot);
  set_unpacked(l, 0, lu.lu, pivot ? lu.order : NULL);
}

// One vector for each matrix; torch's own kernel reads past the end of shorter ones.
static bool check_pivots(tt_lowering *l, const tt_tensor *lu, const tt_tensor *pivots) {
  const int64_t *size = lu->sizes + lu->rank - 2;
  bool fits =
      pivots->rank == lu->rank - 1 && pivots->sizes[pivots->rank - 1] == (size[0] < size[1] ? size[0] : size[1]);
  for (int i = 0; fits && i < lu->rank - 2; ++i) fits = pivots->sizes[i] == lu->sizes[i];
  if (!fits)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "lu_unpack: Expected LU_pivots of shape [*, min(m, n)] for LU_data of shape %s, but got %s",
            tt_shape_text(tt_builder_arena(l->b), lu->rank, lu->sizes),
            tt_shape_text(tt_builder_arena(l->b), pivots->rank, pivots->sizes));
  return fits;
}

// lu_unpack(LU_data, LU_pivots, unpack_data, unpack_pivots) -> P, L, U
void tt_lower_lu_unpack(tt_lowering *l) {
  const tt_tensor *t = tt_tensor_arg(l, 0);
  tt_value *order = NULL;
  if (tt_bool(l, 3) && !check_pivots(l, t, tt_tensor_arg(l, 1))) return;
  if (tt_bool(l, 3)) order = order_of_pivots(l->b, tt_vectors(l, 1), t->sizes[t->rank - 2]);
  set_unpacked(l, 0, tt_bool(l, 2) ? tt_matrices(l, 0) : NULL, order);
}

// linalg_lu_solve(LU, pivots, B, *, left, adjoint)
void tt_lower_linalg_lu_solve(tt_lowering *l) {
  tt_system s;
  if (!tt_check_lapack_dtype(l, 0, "linalg.lu_solve_cpu") || !tt_system_read(l, 0, 2, &s)) return;
  tt_value *order = order_of_pivots(l->b, tt_system_vectors(l, 1, &s), s.a->dims[1]);
  tt_set_solution(l, 0, &s, solve_side(l->b, s.a, order, s.y, tt_bool(l, 3), tt_bool(l, 4)));
}

// torch's rule for one right-hand side per matrix without a dim for it (linalg_solve_is_vector_rhs).
static bool is_vector(const tt_tensor *a, const tt_tensor *y) {
  if (y->rank == 1) return true;
  if (y->rank != a->rank - 1) return false;
  for (int i = 0; i < y->rank; ++i)
    if (a->sizes[i] != y->sizes[i]) return false;
  return true;
}

// A value of each of `a`'s matrices, for each matrix of a batch that they are broadcast to.
static tt_value *spread(tt_builder *b, tt_value *x, const tt_tensor *a, int lead, const int64_t *dims) {
  int64_t from[TT_BATCH_MAX + 2], to[TT_BATCH_MAX + 2], batch = 1;
  int own = a->rank - 2, kept = x->rank - 1;
  for (int i = 0; i < own; ++i) from[i] = a->sizes[i];
  for (int i = 0; i < lead; ++i) batch *= to[i] = dims[i];
  if (batch == x->dims[0]) return x;
  for (int i = 0; i < kept; ++i) from[own + i] = to[lead + i] = x->dims[1 + i];
  x = tt_hlo_broadcast_to(b, tt_hlo_reshape(b, x, own + kept, from), lead + kept, to);
  int64_t flat[] = {batch, to[lead], to[lead + 1]};
  return tt_hlo_reshape(b, x, 1 + kept, flat);
}

// _linalg_solve_ex(A, B, *, left, check_errors) -> result, LU, pivots, info. A is factored once, also where B has more batch
// dims. torch's wrapper declares the result, whose sizes are those of B broadcast.
void tt_lower_linalg_solve_ex(tt_lowering *l) {
  tt_builder *b = l->b;
  const tt_tensor *a = tt_tensor_arg(l, 0);
  bool vector = is_vector(a, tt_tensor_arg(l, 1));
  int rank;
  const int64_t *sizes;
  if (!tt_check_lapack_dtype(l, 0, "lu_cpu") || !tt_output_shape(l, 0, &rank, &sizes)) return;
  tt_lu lu = tt_lu_factor(b, tt_matrices(l, 0), true);
  tt_set_factors(l, 1, 0, lu.lu, lu.pivots, lu.info);

  int lead = vector ? rank - 1 : rank - 2;
  int64_t flat[] = {1, sizes[lead], vector ? 1 : sizes[rank - 1]};
  for (int i = 0; i < lead; ++i) flat[0] *= sizes[i];
  tt_value *y = tt_hlo_reshape(b, tt_hlo_broadcast_to(b, tt_operand(l, 1), rank, sizes), 3, flat);
  tt_value *packed = spread(b, lu.lu, a, lead, sizes), *order = spread(b, lu.order, a, lead, sizes);
  tt_value *x = solve_side(b, packed, order, y, vector || tt_bool(l, 2), false);
  tt_set_result(l, 0, tt_hlo_reshape(b, x, rank, sizes));
}

// linalg_inv_ex(A, *, check_errors) -> inverse, info
void tt_lower_linalg_inv_ex(tt_lowering *l) {
  tt_builder *b = l->b;
  if (!tt_check_lapack_dtype(l, 0, "lu_cpu")) return;
  tt_value *a = tt_matrices(l, 0);
  tt_lu lu = tt_lu_factor(b, a, true);
  tt_value *unit = tt_identity(b, a->dtype, a->dims[0], a->dims[1], a->dims[2]);
  tt_set_matrices_like(l, 0, solve(b, lu.lu, lu.order, unit, false), 0);
  tt_set_matrices_like(l, 1, lu.info, 0);
}

// -1 for an odd number of exchanges, else 1.
static tt_value *parity(tt_builder *b, tt_value *pivots, tt_dtype dtype) {
  tt_value *place = tt_add_constant(b, tt_hlo_iota(b, TT_S32, 2, pivots->dims, 1), 1);
  tt_value *count = tt_sum_last(b, tt_hlo_convert(b, tt_hlo_compare(b, TT_NE, pivots, place), TT_S32));
  tt_value *odd = tt_hlo_and(b, count, tt_hlo_constant_like(b, count, 1));
  return tt_hlo_convert(b, tt_add_constant(b, tt_multiply_constant(b, odd, -2), 1), dtype);
}

// The factors that torch's determinants give back: of A^T where A is real and contiguous, for LAPACK reads columns first. The
// backward formulas ask for the same.
static tt_lu factor_for_determinant(tt_lowering *l) {
  const tt_tensor *t = tt_tensor_arg(l, 0);
  bool contiguous = !tt_dtype_is_complex(t->dtype);
  int64_t stride = 1;
  for (int i = t->rank - 1; i >= 0; stride *= t->sizes[i--]) contiguous &= t->sizes[i] == 1 || t->strides[i] == stride;
  tt_value *a = tt_matrices(l, 0);
  return tt_lu_factor(l->b, contiguous ? tt_transposed(l->b, a) : a, true);
}

// _linalg_det(A) -> result, LU, pivots
void tt_lower_linalg_det(tt_lowering *l) {
  tt_builder *b = l->b;
  if (!tt_check_lapack_dtype(l, 0, "lu_cpu")) return;
  tt_lu lu = factor_for_determinant(l);
  tt_value *product = tt_hlo_reduce(b, tt_diagonal(b, lu.lu), TT_REDUCE_MULTIPLY, 1, (int[]){1});
  tt_set_matrices_like(l, 0, tt_hlo_multiply(b, product, parity(b, lu.pivots, product->dtype)), 0);
  tt_set_factors(l, 1, 0, lu.lu, lu.pivots, NULL);
}

// _linalg_slogdet(A) -> sign, logabsdet, LU, pivots
void tt_lower_linalg_slogdet(tt_lowering *l) {
  tt_builder *b = l->b;
  if (!tt_check_lapack_dtype(l, 0, "lu_cpu")) return;
  tt_lu lu = factor_for_determinant(l);
  tt_value *diagonal = tt_diagonal(b, lu.lu), *size = tt_hlo_abs(b, diagonal);
  tt_value *sign = tt_hlo_reduce(b, tt_hlo_sign(b, diagonal), TT_REDUCE_MULTIPLY, 1, (int[]){1});
  tt_set_matrices_like(l, 0, tt_hlo_multiply(b, sign, parity(b, lu.pivots, sign->dtype)), 0);
  tt_set_matrices_like(l, 1, tt_sum_last(b, tt_hlo_log(b, size)), 0);
  tt_set_factors(l, 2, 0, lu.lu, lu.pivots, NULL);
}
