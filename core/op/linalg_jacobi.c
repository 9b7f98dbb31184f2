// linalg_jacobi.c - one-sided Jacobi rotations: the sweep behind singular values and eigenvalues of Hermitian matrices.
//
// Two rows x and y become orthogonal by a rotation whose angle follows from |x|^2, |y|^2 and <x, y> (Hestenes 1958; the smaller
// of the two angles, Rutishauser 1966). n / 2 disjoint pairs are rotated at once; between rounds the rows move on like the
// players of a round-robin tournament, so that n - 1 rounds, a sweep, bring every pair together once (Brent and Luk 1985). The
// two rows of a pair stand at the same place of two halves, and moving on is a concatenation.
//
// Converges quadratically, in 6 to 10 sweeps, and finds small singular values with small relative error (Demmel and Veselic
// 1992). A round costs 3 passes over the matrix, and there are no products of matrices that would be rounded.
#include <math.h>

#include "op/linalg.h"

enum { MOST_SWEEPS = 30 };

// Carried by the rounds. Rows [batch, half, width] hold the matrix in their first `size` columns and the rotations behind.
// Squares [batch, half] are the rows' squared lengths. COSINE is the greatest |cos| of the sweep so far.
enum { FIRST_ROWS, SECOND_ROWS, FIRST_SQUARES, SECOND_SQUARES, COSINE, ROUND_VALUES };
// Carried by the sweeps: rows, the greatest |cos| of the last sweep, how many there were.
enum { SWEEP_FIRST, SWEEP_SECOND, SWEEP_COSINE, SWEEP_COUNT, SWEEP_VALUES };

typedef struct jacobi {
  int64_t rounds, size;
  double tolerance;
} jacobi;

// The part of the rows that is the matrix.
static tt_value *matrix_part(tt_builder *b, const jacobi *j, tt_value *rows) {
  return tt_hlo_slice_dim(b, rows, 2, 0, j->size, 1);
}

static tt_value *inner_product(tt_builder *b, tt_value *x, tt_value *y) {
  return tt_sum_last(b, tt_hlo_multiply(b, x, tt_conjugate(b, y)));
}

static tt_value *squared_length(tt_builder *b, tt_value *x) {
  tt_value *sum = tt_square(b, tt_hlo_real(b, x));
  if (tt_dtype_is_complex(x->dtype)) sum = tt_hlo_add(b, sum, tt_square(b, tt_hlo_imag(b, x)));
  return tt_sum_last(b, sum);
}

// The rows (dim 1) after moving on: the first of the first half stays, the others go round.
static void move_on(tt_builder *b, tt_value **first, tt_value **second) {
  tt_value *x = *first, *y = *second;
  int64_t half = x->dims[1];
  if (half < 2) return;
  tt_value *up[] = {tt_hlo_slice_dim(b, x, 1, 0, 1, 1), tt_hlo_slice_dim(b, y, 1, 0, 1, 1),
                    tt_hlo_slice_dim(b, x, 1, 1, half - 1, 1)};
  tt_value *down[] = {tt_hlo_slice_dim(b, y, 1, 1, half, 1), tt_hlo_slice_dim(b, x, 1, half - 1, half, 1)};
  *first = tt_hlo_concatenate(b, half > 2 ? 3 : 2, up, 1);
  *second = tt_hlo_concatenate(b, 2, down, 1);
}

// Rotates pairs and moves on.
static void one_round(tt_builder *b, tt_value *index, tt_value **values, void *user) {
  (void)index;
  const jacobi *j = user;
  tt_value *x = values[FIRST_ROWS], *y = values[SECOND_ROWS], *xx = values[FIRST_SQUARES], *yy = values[SECOND_SQUARES];
  tt_value *inner = inner_product(b, matrix_part(b, j, x), matrix_part(b, j, y)), *size = tt_hlo_abs(b, inner);
  tt_value *zero = tt_hlo_constant_like(b, size, 0), *one = tt_hlo_constant_like(b, size, 1);
  tt_value *lengths = tt_hlo_multiply(b, tt_hlo_sqrt(b, xx), tt_hlo_sqrt(b, yy));
  tt_value *turns = tt_hlo_and(b, tt_compare_constant(b, TT_GT, size, 0), tt_compare_constant(b, TT_GT, lengths, 0));
  tt_value *cosine = tt_hlo_divide(b, size, tt_hlo_select(b, turns, lengths, one));
  cosine = tt_hlo_select(b, turns, cosine, zero);
  // t = tan of the angle: t^2 + 2 zeta t = 1.
  tt_value *safe = tt_hlo_select(b, turns, size, one);
  tt_value *zeta = tt_hlo_divide(b, tt_hlo_subtract(b, yy, xx), tt_multiply_constant(b, safe, 2));
  tt_value *root = tt_hlo_sqrt(b, tt_add_constant(b, tt_square(b, zeta), 1));
  tt_value *tangent = tt_hlo_divide(b, one, tt_hlo_add(b, tt_hlo_abs(b, zeta), root));
  tangent = tt_hlo_select(b, tt_compare_constant(b, TT_LT, zeta, 0), tt_hlo_negate(b, tangent), tangent);
  tangent = tt_hlo_select(b, turns, tangent, zero);
  tt_value *c = tt_hlo_divide(b, one, tt_hlo_sqrt(b, tt_add_constant(b, tt_square(b, tangent), 1)));
  tt_value *s = tt_hlo_multiply(b, c, tangent), *change = tt_hlo_multiply(b, tangent, size);
  values[FIRST_SQUARES] = tt_hlo_subtract(b, xx, change);
  values[SECOND_SQUARES] = tt_hlo_add(b, yy, change);
  values[COSINE] = tt_hlo_maximum(b, values[COSINE], tt_max_last(b, tt_max_last(b, cosine)));
  // y takes the sign or phase that makes the inner product positive.
  tt_value *phase = tt_hlo_divide(b, inner, tt_real_as(b, safe, inner));
  phase = tt_hlo_select(b, turns, phase, tt_hlo_constant_like(b, phase, 1));
  y = tt_hlo_multiply(b, y, tt_down(b, phase, y));
  // x - s (y + h x) and y + s (x - h y) with h = s / (1 + c), the tangent of half the angle: c x - s y and s x + c y, but small
  // angles do not round c, whose errors would add up over the rounds (Rutishauser).
  tt_value *h = tt_hlo_divide(b, s, tt_add_constant(b, c, 1));
  tt_value *sine = tt_down(b, tt_real_as(b, s, x), x), *half = tt_down(b, tt_real_as(b, h, x), x);
  tt_value *to_x = tt_hlo_add(b, y, tt_hlo_multiply(b, half, x)),
           *to_y = tt_hlo_subtract(b, x, tt_hlo_multiply(b, half, y));
  values[FIRST_ROWS] = tt_hlo_optimization_barrier(b, tt_hlo_subtract(b, x, tt_hlo_multiply(b, sine, to_x)));
  values[SECOND_ROWS] = tt_hlo_optimization_barrier(b, tt_hlo_add(b, y, tt_hlo_multiply(b, sine, to_y)));
  move_on(b, &values[FIRST_ROWS], &values[SECOND_ROWS]);
  move_on(b, &values[FIRST_SQUARES], &values[SECOND_SQUARES]);
}

static void one_sweep(tt_builder *b, tt_value *const *carried, tt_value **results, void *user) {
  const jacobi *j = user;
  tt_value *x = carried[SWEEP_FIRST], *y = carried[SWEEP_SECOND];
  tt_value *rounds[ROUND_VALUES] = {x, y, squared_length(b, matrix_part(b, j, x)),
                                    squared_length(b, matrix_part(b, j, y)),
                                    tt_hlo_constant_like(b, carried[SWEEP_COSINE], 0)};
  tt_repeat(b, j->rounds, ROUND_VALUES, rounds, one_round, user);
  results[SWEEP_FIRST] = rounds[FIRST_ROWS];
  results[SWEEP_SECOND] = rounds[SECOND_ROWS];
  results[SWEEP_COSINE] = rounds[COSINE];
  results[SWEEP_COUNT] = tt_add_constant(b, carried[SWEEP_COUNT], 1);
}

static void sweeps_left(tt_builder *b, tt_value *const *carried, tt_value **results, void *user) {
  const jacobi *j = user;
  tt_value *open = tt_compare_constant(b, TT_GT, carried[SWEEP_COSINE], j->tolerance); // NaN ends it too
  results[0] = tt_hlo_and(b, open, tt_compare_constant(b, TT_LT, carried[SWEEP_COUNT], MOST_SWEEPS));
}

tt_value *tt_orthogonalize_rows(tt_builder *b, tt_value *x, tt_value **out_v) {
  int64_t batch = x->dims[0], n = x->dims[1], size = x->dims[2], half = (n + 1) / 2;
  tt_value *rows = x, *unit = tt_identity(b, x->dtype, batch, n, n);
  if (out_v) rows = tt_hlo_concatenate(b, 2, (tt_value *[]){x, unit}, 2);
  if (n > 1 && tt_value_count(x) > 0 && !tt_builder_failed(b)) {
    int64_t width = rows->dims[2];
    rows = tt_matrix_corner(b, rows, 2 * half, width); // a row of zeros makes the number even
    jacobi j = {2 * half - 1, size, sqrt((double)size) * tt_epsilon(x->dtype)};
    tt_dtype real = tt_dtype_real(x->dtype);
    tt_value *values[SWEEP_VALUES] = {tt_hlo_slice_dim(b, rows, 1, 0, half, 1),
                                      tt_hlo_slice_dim(b, rows, 1, half, 2 * half, 1), tt_hlo_constant(b, real, 1),
                                      tt_hlo_constant(b, TT_S32, 0)};
    tt_hlo_while(b, SWEEP_VALUES, values, sweeps_left, one_sweep, &j, values);
    rows = tt_matrix_corner(b, tt_hlo_concatenate(b, 2, values, 1), n, width);
  }
  if (out_v) *out_v = tt_hlo_slice_dim(b, rows, 2, size, size + n, 1);
  return out_v ? tt_hlo_slice_dim(b, rows, 2, 0, size, 1) : rows;
}
