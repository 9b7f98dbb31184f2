// linalg.h - what the files of dense linear algebra share.
//
// Every algorithm here works on a batch of matrices [batch, rows, columns], float32, float64, complex64 or complex128. What
// runs over rows or columns is a `while` whose body works on whole matrices under masks or on slices at a running index, so
// that a program has the same few hundred ops for every size and shapes stay static. Products are float32 throughout,
// whatever torch.set_float32_matmul_precision says, as in torch.
#ifndef TT_OP_LINALG_H_
#define TT_OP_LINALG_H_

#include "op/pointwise.h"

enum { TT_BATCH_MAX = 64 }; // batch dims: the builder refuses values of more

// --- checks: torch's texts; false when the call has failed ---------------------------------------------------------------
bool tt_check_matrix(tt_lowering *l, int arg, const char *op, const char *name);
bool tt_check_square(tt_lowering *l, int arg, const char *op, const char *name);
// A square (argument `a`) and B a matrix of the size for AX = B, or for XA = B where not `left`.
bool tt_check_solver(tt_lowering *l, int a, int y, bool left, const char *op);
// NotImplementedError unless the argument has a dtype that LAPACK knows; `kernel` is torch's name of its CPU kernel.
bool tt_check_lapack_dtype(tt_lowering *l, int arg, const char *kernel);

// --- batches of matrices -----------------------------------------------------------------------------------------------------
// The operand as [batch, rows, columns].
tt_value *tt_matrices(tt_lowering *l, int arg);
// A vector per matrix, as [batch, size].
tt_value *tt_vectors(tt_lowering *l, int arg);
// [batch, ...] as a result: its `lead` batch dims, then the rest.
void tt_set_matrices(tt_lowering *l, int result, tt_value *value, int lead, const int64_t *dims);
// The same with the batch dims of tensor argument `like`, which holds matrices.
void tt_set_matrices_like(tt_lowering *l, int result, tt_value *value, int like);
// The operand's matrices broadcast to these batch dims, as [batch, rows, columns].
tt_value *tt_matrices_to(tt_lowering *l, int arg, int lead, const int64_t *dims);
// A system of equations: matrices a [batch, m, n] and right-hand sides y [batch, rows, columns], their batch dims broadcast.
typedef struct tt_system {
  tt_value *a, *y;
  int lead; // batch dims
  int64_t dims[TT_BATCH_MAX];
} tt_system;
// Of arguments number `a` and `y`; false, and the call has failed, when their batch dims do not fit.
bool tt_system_read(tt_lowering *l, int a, int y, tt_system *s);
// A vector per matrix of the system, as [batch, size].
tt_value *tt_system_vectors(tt_lowering *l, int arg, const tt_system *s);
// [batch, rows, columns] as a result over the system's batch dims.
void tt_set_solution(tt_lowering *l, int result, const tt_system *s, tt_value *x);
// Factors, pivots and (unless NULL) info of argument `a` as results from `result` on.
void tt_set_factors(tt_lowering *l, int result, int a, tt_value *factors, tt_value *pivots, tt_value *info);

tt_value *tt_transposed(tt_builder *b, tt_value *x); // the last two dims
tt_value *tt_adjoint(tt_builder *b, tt_value *x);    // the conjugate of that
tt_value *tt_conjugate(tt_builder *b, tt_value *x);  // x itself when it is real
tt_value *tt_product(tt_builder *b, tt_value *x, tt_value *y);
// Zero outside of the lower (upper) triangle; `offset` moves the diagonal up.
tt_value *tt_triangle(tt_builder *b, tt_value *x, bool upper, int offset);
// The Hermitian matrix of which this triangle is given.
tt_value *tt_hermitian(tt_builder *b, tt_value *x, bool upper);
tt_value *tt_identity(tt_builder *b, tt_dtype dtype, int64_t batch, int64_t rows, int64_t columns);
tt_value *tt_diagonal(tt_builder *b, tt_value *x); // [batch, min(rows, columns)]
// The first rows and columns of each matrix; zeros where there are fewer.
tt_value *tt_matrix_corner(tt_builder *b, tt_value *x, int64_t rows, int64_t columns);
// A vector [batch, n] as [batch, n, 1] or [batch, 1, n], or a scalar per matrix, repeated to the shape of `like`.
tt_value *tt_down(tt_builder *b, tt_value *x, const tt_value *like);
tt_value *tt_across(tt_builder *b, tt_value *x, const tt_value *like);
tt_value *tt_each(tt_builder *b, tt_value *x, const tt_value *like);

// --- places that a loop has come to: `index` is a rank-0 S32 ----------------------------------------------------------------------
tt_value *tt_row(tt_builder *b, tt_value *x, tt_value *index);                     // [batch, columns]
tt_value *tt_column(tt_builder *b, tt_value *x, tt_value *index);                  // [batch, rows]
tt_value *tt_entry(tt_builder *b, tt_value *x, tt_value *index);                   // [batch] of [batch, n]
tt_value *tt_with_row(tt_builder *b, tt_value *x, tt_value *index, tt_value *row); // x with that row
tt_value *tt_with_column(tt_builder *b, tt_value *x, tt_value *index, tt_value *column);
tt_value *tt_with_entry(tt_builder *b, tt_value *x, tt_value *index, tt_value *entry);
// `count` rows or columns from a first one on, and x with those.
tt_value *tt_rows_from(tt_builder *b, tt_value *x, tt_value *first, int64_t count);
tt_value *tt_columns_from(tt_builder *b, tt_value *x, tt_value *first, int64_t count);
tt_value *tt_with_rows(tt_builder *b, tt_value *x, tt_value *first, tt_value *rows);
tt_value *tt_with_columns(tt_builder *b, tt_value *x, tt_value *first, tt_value *columns);
// How the positions along a dim of x compare with an index, which is one for all or one per matrix.
tt_value *tt_positions(tt_builder *b, const tt_value *x, int dim, tt_compare how, tt_value *index);
// The row of each matrix (the entry of each vector) at its own index [batch].
tt_value *tt_pick_rows(tt_builder *b, tt_value *x, tt_value *index);
// The rows of each matrix (the entries of each vector) in the order of positions [batch, n].
tt_value *tt_permute_rows(tt_builder *b, tt_value *x, tt_value *order);
// The order that undoes an order of rows, S32 [batch, n].
tt_value *tt_inverse_order(tt_builder *b, tt_value *order);

// --- loops ---------------------------------------------------------------------------------------------------------------------------
// One turn of a loop: replaces values, which keep their shapes and dtypes.
typedef void (*tt_turn)(tt_builder *b, tt_value *index, tt_value **values, void *user);
// Does it for index = 0 .. count - 1.
void tt_repeat(tt_builder *b, int64_t count, int value_count, tt_value **values, tt_turn turn, void *user);

// --- scalars and sums -----------------------------------------------------------------------------------------------------------------
tt_value *tt_zero_unless(tt_builder *b, tt_value *keep, tt_value *x);
// A real value as one of x's dtype.
tt_value *tt_real_as(tt_builder *b, tt_value *real, const tt_value *x);
// The size that LAPACK compares when it looks for a pivot: |real part| + |imaginary part|.
tt_value *tt_pivot_size(tt_builder *b, tt_value *x);
tt_value *tt_sum_last(tt_builder *b, tt_value *x);
tt_value *tt_max_last(tt_builder *b, tt_value *x);
// The 2-norm of the last dim, which neither overflows nor underflows.
tt_value *tt_norm_last(tt_builder *b, tt_value *x);
double tt_epsilon(tt_dtype dtype); // distance from 1 to the next number

// --- algorithms ------------------------------------------------------------------------------------------------------------------------
// Solves a x = y for triangular matrices a; only that triangle is read.
tt_value *tt_solve_triangular(tt_builder *b, tt_value *a, tt_value *y, bool upper,
                              bool unit_diagonal); // linalg_triangular.c

// What LAPACK's getrf gives (linalg_lu.c).
typedef struct tt_lu {
  tt_value *lu;     // L below the diagonal, whose own diagonal is 1, and U
  tt_value *pivots; // S32 [batch, min(rows, columns)], 1-based
  tt_value *order;  // S32 [batch, rows]: row i of the permuted matrix is row order[i] of x
  tt_value *info;   // S32 [batch]: 1 + the place of the first zero on U's diagonal, or 0
} tt_lu;
tt_lu tt_lu_factor(tt_builder *b, tt_value *x, bool pivot);

// What LAPACK's geqrf gives (linalg_qr.c): R and below it the reflectors' vectors, whose first elements are 1; their factors
// tau [batch, min(rows, columns)].
void tt_qr_factor(tt_builder *b, tt_value *x, tt_value **out_a, tt_value **out_tau);
// Q y, or (adjoint) Q^H y, for the Q of reflectors [batch, m, k], tau [batch, k] and y [batch, m, n].
tt_value *tt_apply_q(tt_builder *b, tt_value *reflectors, tt_value *tau, tt_value *y, bool adjoint);

// A = u diag(s) v^H of matrices with rows >= columns = n: u [batch, m, n], s [batch, n] descending, v [batch, n, n]. With
// `full`, u is square. Without vectors u and v are NULL.
typedef struct tt_svd {
  tt_value *u, *s, *v;
} tt_svd;
tt_svd tt_svd_of(tt_builder *b, tt_value *x, bool vectors, bool full); // linalg_svd.c
// Rotates the rows of x [batch, n, m] by the rotations of one-sided Jacobi until they are orthogonal; *out_v [batch, n, n]
// is the product of the rotations, so that the result is v x (linalg_jacobi.c). NULL when it is not wanted.
tt_value *tt_orthogonalize_rows(tt_builder *b, tt_value *x, tt_value **out_v);

#endif // TT_OP_LINALG_H_
