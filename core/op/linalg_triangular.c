// linalg_triangular.c - triangular systems: linalg_solve_triangular, triangular_solve.
//
// Up to BLOCK rows are substituted one by one. Larger systems are solved in blocks of rows: the diagonal blocks are inverted all
// at once, by the same substitution, and the rest is products of matrices (Higham, Accuracy and Stability of Numerical
// Algorithms, section 14.2: such an inverse of a triangular block is as accurate as substitution).
#include "op/linalg.h"

enum { BLOCK = 32 };

typedef struct system {
  bool upper;
  int64_t blocks, size; // rows are solved `size` at a time
} system;

// The place of the turn's rows: a lower system is solved from the top, an upper one from the bottom.
static tt_value *place(tt_builder *b, const system *s, tt_value *index) {
  if (!s->upper) return index;
  return tt_hlo_subtract(b, tt_hlo_constant_i64(b, TT_S32, s->blocks - 1), index);
}

// --- row by row -----------------------------------------------------------------------------------------------------------

enum {
  X,
  STRICT,
  INVERSE,
  Y
}; // what the loops carry; INVERSE: 1 / diagonal [batch, n], or inverted blocks; Y: blocks only

static void substitute_row(tt_builder *b, tt_value *index, tt_value **values, void *user) {
  tt_value *at = place(b, user, index), *x = values[X];
  tt_value *row = tt_hlo_unsqueeze_dim(b, tt_row(b, values[STRICT], at), 1);
  tt_value *known = tt_hlo_squeeze_dim(b, tt_product(b, row, x), 1);
  tt_value *rest = tt_hlo_subtract(b, tt_row(b, x, at), known);
  rest = tt_hlo_divide(b, rest, tt_each(b, tt_entry(b, values[INVERSE], at), rest));
  values[X] = tt_with_row(b, x, at, rest);
}

// `strict` is a without its diagonal and the other triangle.
static tt_value *substitute(tt_builder *b, tt_value *strict, tt_value *diagonal, tt_value *y, bool upper) {
  system s = {upper, strict->dims[1], 1};
  tt_value *values[] = {y, strict, diagonal};
  tt_repeat(b, s.blocks, 3, values, substitute_row, &s);
  return values[X];
}

// --- block by block -------------------------------------------------------------------------------------------------------

// The blocks on the diagonal of [batch, count * BLOCK, count * BLOCK], as [batch * count, BLOCK, BLOCK].
static tt_value *diagonal_blocks(tt_builder *b, tt_value *x, int64_t count) {
  const int64_t dims[] = {x->dims[0], count, BLOCK, count, BLOCK};
  tt_value *row = tt_hlo_iota(b, TT_S32, 5, dims, 1), *column = tt_hlo_iota(b, TT_S32, 5, dims, 3);
  x = tt_zero_unless(b, tt_hlo_compare(b, TT_EQ, row, column), tt_hlo_reshape(b, x, 5, dims));
  x = tt_hlo_reduce(b, x, TT_REDUCE_ADD, 1, (int[]){3});
  return tt_hlo_reshape(b, x, 3, (int64_t[]){x->dims[0] * count, BLOCK, BLOCK});
}

// x with zeros for the blocks on its diagonal.
static tt_value *without_diagonal_blocks(tt_builder *b, tt_value *x) {
  tt_value *block = tt_hlo_constant(b, TT_S32, BLOCK);
  tt_value *row = tt_hlo_iota(b, TT_S32, 3, x->dims, 1), *column = tt_hlo_iota(b, TT_S32, 3, x->dims, 2);
  row = tt_hlo_divide(b, row, tt_hlo_broadcast_like(b, block, row));
  column = tt_hlo_divide(b, column, tt_hlo_broadcast_like(b, block, column));
  return tt_zero_unless(b, tt_hlo_compare(b, TT_NE, row, column), x);
}

static void solve_block(tt_builder *b, tt_value *index, tt_value **values, void *user) {
  tt_value *at = place(b, user, index), *first = tt_multiply_constant(b, at, BLOCK);
  tt_value *known = tt_product(b, tt_rows_from(b, values[STRICT], first, BLOCK), values[X]);
  tt_value *rest = tt_hlo_subtract(b, tt_rows_from(b, values[Y], first, BLOCK), known);
  const int64_t *dims = values[INVERSE]->dims; // [batch, blocks, BLOCK, BLOCK]
  tt_value *zero = tt_hlo_constant(b, TT_S32, 0);
  tt_value *inverse = tt_hlo_dynamic_slice(b, values[INVERSE], (tt_value *[]){zero, at, zero, zero},
                                           (int64_t[]){dims[0], 1, BLOCK, BLOCK});
  values[X] = tt_with_rows(b, values[X], first, tt_product(b, tt_hlo_squeeze_dim(b, inverse, 1), rest));
}

static tt_value *solve_in_blocks(tt_builder *b, tt_value *strict, tt_value *diagonal, tt_value *y, bool upper) {
  int64_t n = strict->dims[1], count = (n + BLOCK - 1) / BLOCK, padded = count * BLOCK, batch = strict->dims[0];
  strict = tt_matrix_corner(b, strict, padded, padded);
  tt_value *ones = tt_hlo_pad(b, diagonal, tt_hlo_constant(b, diagonal->dtype, 1), (int64_t[]){0, 0},
                              (int64_t[]){0, padded - n}, (int64_t[]){0, 0});
  tt_value *block = diagonal_blocks(b, strict, count), *unit = tt_identity(b, y->dtype, batch * count, BLOCK, BLOCK);
  tt_value *inverse = substitute(b, block, tt_hlo_reshape(b, ones, 2, (int64_t[]){batch * count, BLOCK}), unit, upper);
  system s = {upper, count, BLOCK};
  tt_value *padded_y = tt_matrix_corner(b, y, padded, y->dims[2]);
  tt_value *values[] = {tt_hlo_constant_like(b, padded_y, 0), without_diagonal_blocks(b, strict),
                        tt_hlo_reshape(b, inverse, 4, (int64_t[]){batch, count, BLOCK, BLOCK}), padded_y};
  tt_repeat(b, count, 4, values, solve_block, &s);
  return tt_matrix_corner(b, values[X], n, y->dims[2]);
}

tt_value *tt_solve_triangular(tt_builder *b, tt_value *a, tt_value *y, bool upper, bool unit_diagonal) {
  tt_value *strict = tt_triangle(b, a, upper, upper ? 1 : -1), *diagonal = tt_diagonal(b, a);
  if (unit_diagonal) diagonal = tt_hlo_constant_like(b, diagonal, 1);
  if (tt_builder_failed(b) || tt_value_count(y) == 0) return y;
  return a->dims[1] <= BLOCK ? substitute(b, strict, diagonal, y, upper)
                             : solve_in_blocks(b, strict, diagonal, y, upper);
}

// --- ops --------------------------------------------------------------------------------------------------------------------

// linalg_solve_triangular(A, B, *, upper, left, unitriangular)
void tt_lower_linalg_solve_triangular(tt_lowering *l) {
  static const char op[] = "linalg.solve_triangular";
  const tt_tensor *a = tt_tensor_arg(l, 0), *y = tt_tensor_arg(l, 1);
  bool upper = tt_bool(l, 2), left = tt_bool(l, 3);
  if (!tt_check_solver(l, 0, 1, left, op) || !tt_check_lapack_dtype(l, 0, "triangular_solve_cpu")) return;
  if (a->dtype != y->dtype)
    tt_fail(l, TT_INVALID_ARGUMENT, "linalg.solve_triangular: A and B must have the same dtype, but got %s and %s",
            tt_dtype_text(a->dtype), tt_dtype_text(y->dtype));
  tt_system s;
  if (tt_failed(l) || !tt_system_read(l, 0, 1, &s)) return;
  if (!left) { // X A = B is A^T X^T = B^T
    s.a = tt_transposed(l->b, s.a);
    s.y = tt_transposed(l->b, s.y);
  }
  tt_value *x = tt_solve_triangular(l->b, s.a, s.y, upper == left, tt_bool(l, 4));
  tt_set_solution(l, 0, &s, left ? x : tt_transposed(l->b, x));
}

// triangular_solve(B, A, upper, transpose, unitriangular) -> X, A broadcast. torch's wrapper has checked the arguments.
void tt_lower_triangular_solve(tt_lowering *l) {
  bool upper = tt_bool(l, 2), transpose = tt_bool(l, 3);
  tt_system s;
  if (!tt_check_lapack_dtype(l, 0, "triangular_solve_cpu") || !tt_system_read(l, 1, 0, &s)) return;
  tt_value *solved = transpose ? tt_transposed(l->b, s.a) : s.a;
  tt_set_solution(l, 0, &s, tt_solve_triangular(l->b, solved, s.y, upper != transpose, tt_bool(l, 4)));
  tt_set_solution(l, 1, &s, s.a);
}
