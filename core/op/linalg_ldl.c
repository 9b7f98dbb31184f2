// linalg_ldl.c - symmetric indefinite systems: linalg_ldl_factor_ex, linalg_ldl_solve.
//
// A = P L D L^T P^T, or with L^H for Hermitian matrices, D of blocks of 1 and 2, pivots chosen as Bunch and Kaufman (1977) do
// and packed as LAPACK's sytrf packs them for the lower triangle: a positive pivot p of column j is the row that was exchanged
// with j, a pair of equal negative ones is a block of 2 whose second row was exchanged with -p; L's earlier columns are
// not exchanged.
//
// The matrices of a batch step through their columns together; the second column of a block of 2 has nothing to do.
#include "op/linalg.h"

static const double ALPHA = 0.6403882032022076; // (1 + sqrt(17)) / 8: bounds the growth of both kinds of blocks alike

enum { MATRIX, PIVOTS, INFO, SECOND, FACTOR_VALUES }; // SECOND [batch]: the column is the second of a block of 2

static tt_value *conjugate_if(tt_builder *b, bool hermitian, tt_value *x) { return hermitian ? tt_conjugate(b, x) : x; }

// True for the places that lie within `rows` and `columns` (BOOL [batch, n] each).
static tt_value *block(tt_builder *b, tt_value *rows, tt_value *columns, const tt_value *x) {
  return tt_hlo_and(b, tt_down(b, rows, x), tt_across(b, columns, x));
}

// x with rows p and q of each matrix exchanged in the columns that `kept` (BOOL [batch, n]) names.
static tt_value *exchange_rows(tt_builder *b, tt_value *x, tt_value *p, tt_value *q, tt_value *kept) {
  tt_value *changed = tt_hlo_select(b, tt_positions(b, x, 1, TT_EQ, q), tt_across(b, tt_pick_rows(b, x, p), x), x);
  changed = tt_hlo_select(b, tt_positions(b, x, 1, TT_EQ, p), tt_across(b, tt_pick_rows(b, x, q), x), changed);
  return tt_hlo_select(b, tt_across(b, kept, x), changed, x);
}

// 1 / x, or 1 where x is not to be used.
static tt_value *reciprocal_if(tt_builder *b, tt_value *used, tt_value *x) {
  tt_value *one = tt_hlo_constant_like(b, x, 1);
  return tt_hlo_divide(b, one, tt_hlo_select(b, used, x, one));
}

typedef struct choice {
  tt_value *zero, *two; // BOOL [batch]: nothing to divide by; a block of 2
  tt_value *pivot;      // S32 [batch]: the row to exchange with
} choice;

// Bunch and Kaufman's choice for column `at`.
static choice choose(tt_builder *b, tt_value *x, tt_value *at, tt_value *active) {
  tt_value *column = tt_pivot_size(b, tt_column(b, x, at)), *own = tt_entry(b, column, at);
  tt_value *below = tt_zero_unless(b, tt_positions(b, column, 1, TT_GT, at), column), *most = tt_max_last(b, below);
  tt_value *row = tt_hlo_iota(b, TT_S32, 2, column->dims, 1),
           *last = tt_hlo_constant_like(b, row, (double)(row->dims[1] - 1));
  tt_value *is_most =
      tt_hlo_and(b, tt_hlo_compare(b, TT_EQ, below, tt_each(b, most, below)), tt_positions(b, column, 1, TT_GT, at));
  tt_value *place = tt_hlo_reduce(b, tt_hlo_select(b, is_most, row, last), TT_REDUCE_MIN, 1, (int[]){1});
  tt_value *other = tt_pivot_size(b, tt_pick_rows(b, x, place));
  tt_value *counted = tt_hlo_and(b, tt_positions(b, other, 1, TT_GE, at), tt_positions(b, other, 1, TT_NE, place));
  tt_value *row_most = tt_max_last(b, tt_zero_unless(b, counted, other));
  tt_value *diagonal = tt_max_last(b, tt_zero_unless(b, tt_positions(b, other, 1, TT_EQ, place), other));

  tt_value *zero = tt_hlo_or(b, tt_compare_constant(b, TT_EQ, tt_hlo_maximum(b, own, most), 0), tt_hlo_is_nan(b, own));
  tt_value *bound = tt_multiply_constant(b, most, ALPHA);
  tt_value *stay = tt_hlo_compare(b, TT_GE, own, bound);
  tt_value *ratio = tt_hlo_multiply(b, most, reciprocal_if(b, tt_compare_constant(b, TT_GT, row_most, 0), row_most));
  stay = tt_hlo_or(b, stay, tt_hlo_compare(b, TT_GE, own, tt_hlo_multiply(b, bound, ratio)));
  stay = tt_hlo_or(b, tt_hlo_or(b, stay, zero), tt_hlo_not(b, active));
  tt_value *exchanged = tt_hlo_compare(b, TT_GE, diagonal, tt_multiply_constant(b, row_most, ALPHA));
  return (choice){.zero = zero,
                  .two = tt_hlo_not(b, tt_hlo_or(b, stay, exchanged)),
                  .pivot = tt_hlo_select(b, stay, tt_hlo_broadcast_like(b, at, place), place)};
}

// Subtracts what the block at `at` eliminates; its columns become those of L.
static tt_value *eliminate(tt_builder *b, tt_value *x, tt_value *at, tt_value *active, const choice *c,
                           bool hermitian) {
  tt_value *next = tt_add_constant(b, at, 1), *ones = tt_column(b, x, at), *twos = tt_column(b, x, next);
  tt_value *a = tt_entry(b, ones, at), *off = tt_entry(b, ones, next), *d = tt_entry(b, twos, next);
  tt_value *single = tt_hlo_and(b, active, tt_hlo_not(b, tt_hlo_or(b, c->zero, c->two)));
  tt_value *last =
      tt_hlo_select(b, c->two, tt_hlo_broadcast_like(b, next, c->pivot), tt_hlo_broadcast_like(b, at, c->pivot));
  tt_value *below = tt_positions(b, ones, 1, TT_GT, last);
  tt_value *first = tt_zero_unless(b, below, ones),
           *second = tt_zero_unless(b, tt_hlo_and(b, below, tt_each(b, c->two, below)), twos);
  // The inverse of [[a, off'], [off, d]], scaled by |off| so that nothing overflows (LAPACK's sytf2 and hetf2).
  tt_value *scale = reciprocal_if(b, c->two, tt_real_as(b, tt_hlo_abs(b, off), off));
  tt_value *u = tt_hlo_multiply(b, off, scale), *u_other = conjugate_if(b, hermitian, u);
  tt_value *sa = tt_hlo_multiply(b, a, scale), *sd = tt_hlo_multiply(b, d, scale);
  tt_value *determinant = tt_hlo_subtract(b, tt_hlo_multiply(b, sa, sd), tt_hlo_multiply(b, u, u_other));
  tt_value *factor = tt_hlo_multiply(b, scale, reciprocal_if(b, c->two, determinant));
  tt_value *w1 = tt_hlo_subtract(b, tt_hlo_multiply(b, first, tt_each(b, sd, first)),
                                 tt_hlo_multiply(b, second, tt_each(b, u, first)));
  tt_value *w2 = tt_hlo_subtract(b, tt_hlo_multiply(b, second, tt_each(b, sa, first)),
                                 tt_hlo_multiply(b, first, tt_each(b, u_other, first)));
  tt_value *alone = tt_hlo_multiply(b, first, tt_each(b, reciprocal_if(b, single, a), first));
  tt_value *by = tt_each(b, factor, first), *is_two = tt_each(b, c->two, first), *is_single = tt_each(b, single, first);
  w1 = tt_hlo_select(b, is_two, tt_hlo_multiply(b, w1, by), tt_zero_unless(b, is_single, alone));
  w2 = tt_zero_unless(b, is_two, tt_hlo_multiply(b, w2, by));

  tt_value *change = tt_hlo_multiply(b, tt_down(b, w1, x), tt_across(b, conjugate_if(b, hermitian, first), x));
  change =
      tt_hlo_add(b, change, tt_hlo_multiply(b, tt_down(b, w2, x), tt_across(b, conjugate_if(b, hermitian, second), x)));
  tt_value *changed = block(b, below, below, x);
  x = tt_hlo_select(b, changed, tt_hlo_subtract(b, x, change), x);
  if (hermitian) { // the diagonal stays real, or its rounding errors would grow
    tt_value *row = tt_hlo_iota(b, TT_S32, 3, x->dims, 1), *column = tt_hlo_iota(b, TT_S32, 3, x->dims, 2);
    x = tt_hlo_select(b, tt_hlo_compare(b, TT_EQ, row, column), tt_real_as(b, tt_hlo_real(b, x), x), x);
  }
  tt_value *used = tt_hlo_and(b, below, tt_hlo_or(b, is_two, is_single));
  x = tt_with_column(b, x, at, tt_hlo_select(b, used, w1, ones));
  twos = tt_column(b, x, next); // at the last column this is `at` again, and no block of 2 begins there
  return tt_with_column(b, x, next, tt_hlo_select(b, tt_hlo_and(b, below, is_two), w2, twos));
}

static void one_column(tt_builder *b, tt_value *at, tt_value **values, void *user) {
  bool hermitian = *(const bool *)user;
  tt_value *x = values[MATRIX], *active = tt_hlo_not(b, values[SECOND]), *info = values[INFO];
  choice c = choose(b, x, at, active);
  // Rows and columns from this one on change places.
  tt_value *place = tt_hlo_broadcast_like(b, at, c.pivot);
  tt_value *moved = tt_hlo_select(b, c.two, tt_add_constant(b, place, 1), place);
  tt_value *from = tt_hlo_select(b, active, c.pivot, moved), *any = tt_column(b, x, at);
  tt_value *trailing = tt_positions(b, any, 1, TT_GE, at);
  x = exchange_rows(b, x, moved, from, trailing);
  x = tt_transposed(b, exchange_rows(b, tt_transposed(b, x), moved, from, trailing));
  values[MATRIX] = eliminate(b, x, at, active, &c, hermitian);

  tt_value *pivot = tt_add_constant(b, c.pivot, 1), *pivots = values[PIVOTS], *next = tt_add_constant(b, at, 1);
  pivot = tt_hlo_select(b, c.two, tt_hlo_negate(b, pivot), pivot);
  pivot = tt_hlo_select(b, active, pivot, tt_entry(b, pivots, at));
  pivots = tt_with_entry(b, pivots, at, pivot);
  values[PIVOTS] = tt_with_entry(b, pivots, next, tt_hlo_select(b, c.two, pivot, tt_entry(b, pivots, next)));
  tt_value *failed = tt_hlo_and(b, tt_hlo_and(b, active, c.zero), tt_compare_constant(b, TT_EQ, info, 0));
  values[INFO] = tt_hlo_select(b, failed, tt_add_constant(b, place, 1), info);
  values[SECOND] = c.two;
}

// linalg_ldl_factor_ex(A, *, hermitian, check_errors) -> LD, pivots, info. torch's wrapper has checked the arguments. The lower
// triangle is read; the upper one is zero in LD.
void tt_lower_linalg_ldl_factor_ex(tt_lowering *l) {
  tt_builder *b = l->b;
  if (!tt_check_lapack_dtype(l, 0, "ldl_factor_kernel_cpu")) return;
  tt_value *x = tt_matrices(l, 0);
  bool hermitian = tt_bool(l, 1) && tt_dtype_is_complex(x->dtype);
  tt_value *strict = tt_triangle(b, x, false, -1), *lower = tt_triangle(b, x, false, 0);
  x = hermitian ? tt_hermitian(b, x, false) : tt_hlo_add(b, lower, tt_transposed(b, strict));
  tt_value *values[FACTOR_VALUES] = {x, tt_hlo_splat(b, TT_S32, 2, x->dims, 0), tt_hlo_splat(b, TT_S32, 1, x->dims, 0),
                                     tt_hlo_splat(b, TT_BOOL, 1, x->dims, 0)};
  tt_repeat(b, x->dims[1], FACTOR_VALUES, values, one_column, &hermitian);
  tt_set_factors(l, 0, 0, tt_triangle(b, values[MATRIX], false, 0), values[PIVOTS], values[INFO]);
}

// --- solutions --------------------------------------------------------------------------------------------------------------

enum { UNPACKED, ORDER, FIRSTS, AFTER_FIRST, GIVEN, UNPACK_VALUES }; // FIRSTS [batch, n]: a block of 2 begins here

// Exchanges the rows of L's earlier columns that LAPACK leaves where they were.
static void unpack_column(tt_builder *b, tt_value *at, tt_value **values, void *user) {
  (void)user;
  tt_value *pivot = tt_entry(b, values[GIVEN], at), *after = values[AFTER_FIRST], *x = values[UNPACKED];
  tt_value *first = tt_hlo_and(b, tt_compare_constant(b, TT_LT, pivot, 0), tt_hlo_not(b, after));
  tt_value *place = tt_hlo_broadcast_like(b, at, pivot),
           *moved = tt_hlo_select(b, first, tt_add_constant(b, place, 1), place);
  tt_value *from = tt_hlo_select(b, after, moved, tt_add_constant(b, tt_hlo_abs(b, pivot), -1));
  tt_value *earlier = tt_positions(b, tt_column(b, x, at), 1, TT_LT, at);
  values[UNPACKED] = exchange_rows(b, x, moved, from, earlier);
  tt_value *order = tt_hlo_unsqueeze_dim(b, values[ORDER], 2),
           *all = tt_hlo_splat(b, TT_BOOL, 2, (int64_t[]){order->dims[0], 1}, 1);
  values[ORDER] = tt_hlo_squeeze_dim(b, exchange_rows(b, order, moved, from, all), 2);
  values[FIRSTS] = tt_with_entry(b, values[FIRSTS], at, first);
  values[AFTER_FIRST] = first;
}

// Element i + 1 (by 1) or i - 1 (by -1) of a dim, zero or false at the end.
static tt_value *neighbour(tt_builder *b, tt_value *x, int dim, int by) {
  int64_t low[3] = {0}, high[3] = {0}, none[3] = {0};
  low[dim] = -by;
  high[dim] = by;
  return tt_hlo_pad(b, x, tt_hlo_constant(b, x->dtype, 0), low, high, none);
}

// Solves D z = y, D's diagonal and first subdiagonal being those of x.
static tt_value *solve_blocks(tt_builder *b, tt_value *x, tt_value *firsts, tt_value *y, bool hermitian) {
  tt_value *seconds = neighbour(b, firsts, 1, -1), *d = tt_diagonal(b, x), *one = tt_hlo_constant_like(b, d, 1);
  tt_value *off = tt_zero_unless(b, firsts, tt_diagonal(b, neighbour(b, x, 1, 1))); // x[i + 1, i]
  tt_value *paired = tt_hlo_or(b, firsts, seconds);
  // Seen from each row of a block: the other row's diagonal element, and the elements off the diagonal.
  tt_value *other = tt_hlo_select(b, firsts, neighbour(b, d, 1, 1), neighbour(b, d, 1, -1));
  tt_value *own = tt_hlo_select(b, firsts, conjugate_if(b, hermitian, off), neighbour(b, off, 1, -1));
  tt_value *across = conjugate_if(b, hermitian, own);
  tt_value *scale = reciprocal_if(b, paired, tt_real_as(b, tt_hlo_abs(b, own), own));
  tt_value *u = tt_hlo_multiply(b, own, scale), *s_other = tt_hlo_multiply(b, other, scale);
  tt_value *determinant = tt_hlo_subtract(b, tt_hlo_multiply(b, tt_hlo_multiply(b, d, scale), s_other),
                                          tt_hlo_multiply(b, u, tt_hlo_multiply(b, across, scale)));
  tt_value *factor = tt_hlo_multiply(b, scale, reciprocal_if(b, paired, determinant));
  tt_value *near = tt_hlo_select(b, paired, tt_hlo_multiply(b, s_other, factor), tt_hlo_divide(b, one, d));
  tt_value *far = tt_zero_unless(b, paired, tt_hlo_negate(b, tt_hlo_multiply(b, u, factor)));
  tt_value *is_first = tt_down(b, firsts, y);
  tt_value *partner = tt_hlo_select(b, is_first, neighbour(b, y, 1, 1), neighbour(b, y, 1, -1));
  return tt_hlo_add(b, tt_hlo_multiply(b, tt_down(b, near, y), y), tt_hlo_multiply(b, tt_down(b, far, y), partner));
}

// linalg_ldl_solve(LD, pivots, B, *, hermitian). torch's wrapper has checked the arguments.
void tt_lower_linalg_ldl_solve(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_system s;
  if (!tt_check_lapack_dtype(l, 0, "ldl_solve_kernel_cpu") || !tt_system_read(l, 0, 2, &s)) return;
  tt_value *x = s.a, *y = s.y, *pivots = tt_hlo_convert(b, tt_system_vectors(l, 1, &s), TT_S32);
  bool hermitian = tt_bool(l, 3) && tt_dtype_is_complex(x->dtype);
  if (tt_value_count(y) > 0) {
    tt_value *values[UNPACK_VALUES] = {x, tt_hlo_iota(b, TT_S32, 2, x->dims, 1),
                                       tt_hlo_splat(b, TT_BOOL, 2, x->dims, 0), tt_hlo_splat(b, TT_BOOL, 1, x->dims, 0),
                                       pivots};
    tt_repeat(b, x->dims[1], UNPACK_VALUES, values, unpack_column, NULL);
    x = values[UNPACKED];
    // L has no element where D has one.
    tt_value *row = tt_hlo_iota(b, TT_S32, 3, x->dims, 1), *column = tt_hlo_iota(b, TT_S32, 3, x->dims, 2);
    tt_value *in_block =
        tt_hlo_and(b, tt_hlo_compare(b, TT_EQ, row, tt_add_constant(b, column, 1)), tt_across(b, values[FIRSTS], x));
    tt_value *lower = tt_zero_unless(b, tt_hlo_not(b, in_block), x),
             *other = hermitian ? tt_adjoint(b, lower) : tt_transposed(b, lower);
    y = tt_solve_triangular(b, lower, tt_permute_rows(b, y, values[ORDER]), false, true);
    y = tt_solve_triangular(b, other, solve_blocks(b, x, values[FIRSTS], y, hermitian), true, true);
    y = tt_permute_rows(b, y, tt_inverse_order(b, values[ORDER]));
  }
  tt_set_solution(l, 0, &s, y);
}
