// linalg.c - the vocabulary of dense linear algebra: batches of matrices, their rows and columns, loops over them.
#include "op/linalg.h"

#include <float.h>
#include <string.h>

enum { MOST_VALUES = 12 }; // that a loop carries

// --- checks ----------------------------------------------------------------------------------------------------------------

bool tt_check_matrix(tt_lowering *l, int arg, const char *op, const char *name) {
  if (tt_tensor_arg(l, arg)->rank < 2)
    tt_fail(l, TT_INVALID_ARGUMENT, "%s: The input tensor %s must have at least 2 dimensions.", op, name);
  return !tt_failed(l);
}

bool tt_check_square(tt_lowering *l, int arg, const char *op, const char *name) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  if (!tt_check_matrix(l, arg, op, name)) return false;
  int64_t rows = t->sizes[t->rank - 2], columns = t->sizes[t->rank - 1];
  if (rows != columns)
    tt_fail(l, TT_INVALID_ARGUMENT, "%s: %s must be batches of square matrices, but they are %lld by %lld matrices", op,
            name, (long long)rows, (long long)columns);
  return !tt_failed(l);
}

bool tt_check_solver(tt_lowering *l, int a, int y, bool left, const char *op) {
  if (!tt_check_square(l, a, op, "A") || !tt_check_matrix(l, y, op, "B")) return false;
  const tt_tensor *s = tt_tensor_arg(l, a), *t = tt_tensor_arg(l, y);
  const int64_t *n = s->sizes + s->rank - 2, *m = t->sizes + t->rank - 2;
  if (n[0] != m[left ? 0 : 1])
    tt_fail(l, TT_INVALID_ARGUMENT, "%s: Incompatible shapes of A and B for the equation %s (%lldx%lld and %lldx%lld)",
            op, left ? "AX = B" : "XA = B", (long long)n[0], (long long)n[1], (long long)m[0], (long long)m[1]);
  return !tt_failed(l);
}

bool tt_check_lapack_dtype(tt_lowering *l, int arg, const char *kernel) {
  tt_dtype dtype = tt_tensor_arg(l, arg)->dtype;
  if (dtype != TT_F32 && dtype != TT_F64 && dtype != TT_C64 && dtype != TT_C128)
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"%s\" not implemented for '%s'", kernel, tt_dtype_text(dtype));
  return !tt_failed(l);
}

// --- batches of matrices -------------------------------------------------------------------------------------------------------

static tt_value *few_dims(tt_builder *b, int rank) {
  return tt_builder_fail(b, tt_error(TT_MISMATCH, "a matrix or vector has too few dims (%d)", rank));
}

static tt_value *flatten(tt_builder *b, tt_value *x, int kept) {
  if (x->rank < kept) return few_dims(b, x->rank);
  int64_t dims[3] = {1};
  for (int i = 0; i < x->rank - kept; ++i) dims[0] *= x->dims[i];
  for (int i = 0; i < kept; ++i) dims[1 + i] = x->dims[x->rank - kept + i];
  return tt_hlo_reshape(b, x, 1 + kept, dims);
}

tt_value *tt_matrices(tt_lowering *l, int arg) { return flatten(l->b, tt_operand(l, arg), 2); }
tt_value *tt_vectors(tt_lowering *l, int arg) { return flatten(l->b, tt_operand(l, arg), 1); }

void tt_set_matrices(tt_lowering *l, int result, tt_value *value, int lead, const int64_t *dims) {
  int64_t all[TT_BATCH_MAX + 2];
  if (lead < 0) few_dims(l->b, lead + 2);
  if (tt_failed(l)) return;
  memcpy(all, dims, (size_t)lead * sizeof *dims);
  for (int i = 1; i < value->rank; ++i) all[lead + i - 1] = value->dims[i];
  tt_set_result(l, result, tt_hlo_reshape(l->b, value, lead + value->rank - 1, all));
}

void tt_set_matrices_like(tt_lowering *l, int result, tt_value *value, int like) {
  const tt_tensor *t = tt_tensor_arg(l, like);
  tt_set_matrices(l, result, value, t->rank - 2, t->sizes);
}

// The batch dims of two arguments of matrices, broadcast, into dims; returns how many.
static int batch_dims(tt_lowering *l, const tt_tensor *x, const tt_tensor *y, int64_t *dims) {
  int x_lead = x->rank - 2, y_lead = y->rank - 2, lead = x_lead > y_lead ? x_lead : y_lead;
  for (int i = 0; i < lead; ++i) {
    int xi = i - (lead - x_lead), yi = i - (lead - y_lead);
    int64_t x_size = xi < 0 ? 1 : x->sizes[xi], y_size = yi < 0 ? 1 : y->sizes[yi];
    if (x_size != y_size && x_size != 1 && y_size != 1)
      tt_fail(l, TT_INVALID_ARGUMENT,
              "The size of tensor a (%lld) must match the size of tensor b (%lld) at non-singleton dimension %d",
              (long long)x_size, (long long)y_size, i);
    dims[i] = x_size == 1 ? y_size : x_size;
  }
  return lead;
}

// The operand's last `kept` dims, with these batch dims in front, as [batch, ...].
static tt_value *broadcast_batch(tt_lowering *l, int arg, int kept, int lead, const int64_t *dims) {
  tt_value *x = tt_operand(l, arg);
  if (x->rank < kept) return few_dims(l->b, x->rank);
  int64_t all[TT_BATCH_MAX + 2];
  memcpy(all, dims, (size_t)lead * sizeof *dims);
  for (int i = 0; i < kept; ++i) all[lead + i] = x->dims[x->rank - kept + i];
  return flatten(l->b, tt_hlo_broadcast_to(l->b, x, lead + kept, all), kept);
}

tt_value *tt_matrices_to(tt_lowering *l, int arg, int lead, const int64_t *dims) {
  return broadcast_batch(l, arg, 2, lead, dims);
}

bool tt_system_read(tt_lowering *l, int a, int y, tt_system *s) {
  s->lead = batch_dims(l, tt_tensor_arg(l, y), tt_tensor_arg(l, a), s->dims);
  if (s->lead < 0) few_dims(l->b, s->lead + 2);
  if (tt_failed(l)) return false;
  s->a = tt_matrices_to(l, a, s->lead, s->dims);
  s->y = tt_matrices_to(l, y, s->lead, s->dims);
  return !tt_failed(l);
}

tt_value *tt_system_vectors(tt_lowering *l, int arg, const tt_system *s) {
  return broadcast_batch(l, arg, 1, s->lead, s->dims);
}

void tt_set_solution(tt_lowering *l, int result, const tt_system *s, tt_value *x) {
  tt_set_matrices(l, result, x, s->lead, s->dims);
}

void tt_set_factors(tt_lowering *l, int result, int a, tt_value *factors, tt_value *pivots, tt_value *info) {
  tt_set_matrices_like(l, result, factors, a);
  tt_set_matrices_like(l, result + 1, pivots, a);
  if (info) tt_set_matrices_like(l, result + 2, info, a);
}

tt_value *tt_transposed(tt_builder *b, tt_value *x) { return tt_hlo_transpose(b, x, (int[]){0, 2, 1}); }

tt_value *tt_conjugate(tt_builder *b, tt_value *x) { return tt_dtype_is_complex(x->dtype) ? tt_hlo_conj(b, x) : x; }

tt_value *tt_adjoint(tt_builder *b, tt_value *x) { return tt_transposed(b, tt_conjugate(b, x)); }

tt_value *tt_product(tt_builder *b, tt_value *x, tt_value *y) {
  if (tt_builder_target(b)->dot_lhs_in_order) x = tt_hlo_copy_transposed(b, x);
  const int batch[] = {0};
  const tt_dot numbers = {.batch_count = 1,
                          .lhs_batch = batch,
                          .rhs_batch = batch,
                          .contract_count = 1,
                          .lhs_contract = (int[]){2},
                          .rhs_contract = (int[]){1}};
  return tt_hlo_dot_general(b, x, y, &numbers, x->dtype, TT_PRECISION_HIGHEST);
}

tt_value *tt_triangle(tt_builder *b, tt_value *x, bool upper, int offset) {
  tt_value *row = tt_hlo_iota(b, TT_S32, 3, x->dims, 1), *column = tt_hlo_iota(b, TT_S32, 3, x->dims, 2);
  return tt_zero_unless(b, tt_hlo_compare(b, upper ? TT_GE : TT_LE, column, tt_add_constant(b, row, offset)), x);
}

tt_value *tt_identity(tt_builder *b, tt_dtype dtype, int64_t batch, int64_t rows, int64_t columns) {
  const int64_t dims[] = {batch, rows, columns};
  tt_value *row = tt_hlo_iota(b, TT_S32, 3, dims, 1), *column = tt_hlo_iota(b, TT_S32, 3, dims, 2);
  return tt_hlo_convert(b, tt_hlo_compare(b, TT_EQ, row, column), dtype);
}

tt_value *tt_hermitian(tt_builder *b, tt_value *x, bool upper) {
  tt_value *strict = tt_triangle(b, x, upper, upper ? 1 : -1);
  tt_value *diagonal = tt_real_as(b, tt_hlo_real(b, tt_diagonal(b, x)), x);
  tt_value *unit = tt_identity(b, x->dtype, x->dims[0], x->dims[1], x->dims[2]);
  tt_value *on_diagonal =
      tt_hlo_select(b, tt_compare_constant(b, TT_NE, unit, 0), tt_down(b, diagonal, x), tt_hlo_constant_like(b, x, 0));
  return tt_hlo_add(b, on_diagonal, tt_hlo_add(b, strict, tt_adjoint(b, strict)));
}

tt_value *tt_diagonal(tt_builder *b, tt_value *x) {
  int64_t rows = x->dims[1], columns = x->dims[2], n = rows < columns ? rows : columns;
  x = tt_matrix_corner(b, x, n, n);
  tt_value *row = tt_hlo_iota(b, TT_S32, 3, x->dims, 1), *column = tt_hlo_iota(b, TT_S32, 3, x->dims, 2);
  return tt_sum_last(b, tt_zero_unless(b, tt_hlo_compare(b, TT_EQ, row, column), x));
}

tt_value *tt_matrix_corner(tt_builder *b, tt_value *x, int64_t rows, int64_t columns) {
  if (x->dims[1] == rows && x->dims[2] == columns) return x;
  return tt_hlo_pad(b, x, tt_hlo_constant(b, x->dtype, 0), (int64_t[]){0, 0, 0},
                    (int64_t[]){0, rows - x->dims[1], columns - x->dims[2]}, (int64_t[]){0, 0, 0});
}

tt_value *tt_down(tt_builder *b, tt_value *x, const tt_value *like) {
  return tt_hlo_broadcast_in_dim(b, x, 3, like->dims, (int[]){0, 1});
}

tt_value *tt_across(tt_builder *b, tt_value *x, const tt_value *like) {
  return tt_hlo_broadcast_in_dim(b, x, 3, like->dims, (int[]){0, 2});
}

tt_value *tt_each(tt_builder *b, tt_value *x, const tt_value *like) {
  return x->rank == 0 ? tt_hlo_broadcast_like(b, x, like)
                      : tt_hlo_broadcast_in_dim(b, x, like->rank, like->dims, (int[]){0});
}

// --- places ----------------------------------------------------------------------------------------------------------------------

static tt_value *slice_at(tt_builder *b, tt_value *x, int dim, tt_value *index) {
  tt_value *starts[3];
  int64_t sizes[3];
  for (int i = 0; i < x->rank; ++i) {
    starts[i] = i == dim ? index : tt_hlo_constant(b, TT_S32, 0);
    sizes[i] = i == dim ? 1 : x->dims[i];
  }
  return tt_hlo_squeeze_dim(b, tt_hlo_dynamic_slice(b, x, starts, sizes), dim);
}

static tt_value *put_at(tt_builder *b, tt_value *x, int dim, tt_value *index, tt_value *part) {
  tt_value *starts[3];
  for (int i = 0; i < x->rank; ++i) starts[i] = i == dim ? index : tt_hlo_constant(b, TT_S32, 0);
  return tt_hlo_dynamic_update_slice(b, x, tt_hlo_unsqueeze_dim(b, part, dim), starts);
}

tt_value *tt_row(tt_builder *b, tt_value *x, tt_value *index) { return slice_at(b, x, 1, index); }
tt_value *tt_column(tt_builder *b, tt_value *x, tt_value *index) { return slice_at(b, x, 2, index); }
tt_value *tt_entry(tt_builder *b, tt_value *x, tt_value *index) { return slice_at(b, x, 1, index); }

tt_value *tt_with_row(tt_builder *b, tt_value *x, tt_value *index, tt_value *row) {
  return put_at(b, x, 1, index, row);
}

tt_value *tt_with_column(tt_builder *b, tt_value *x, tt_value *index, tt_value *column) {
  return put_at(b, x, 2, index, column);
}

tt_value *tt_with_entry(tt_builder *b, tt_value *x, tt_value *index, tt_value *entry) {
  return put_at(b, x, 1, index, entry);
}

tt_value *tt_rows_from(tt_builder *b, tt_value *x, tt_value *first, int64_t count) {
  tt_value *zero = tt_hlo_constant(b, TT_S32, 0);
  return tt_hlo_dynamic_slice(b, x, (tt_value *[]){zero, first, zero}, (int64_t[]){x->dims[0], count, x->dims[2]});
}

tt_value *tt_columns_from(tt_builder *b, tt_value *x, tt_value *first, int64_t count) {
  tt_value *zero = tt_hlo_constant(b, TT_S32, 0);
  return tt_hlo_dynamic_slice(b, x, (tt_value *[]){zero, zero, first}, (int64_t[]){x->dims[0], x->dims[1], count});
}

tt_value *tt_with_rows(tt_builder *b, tt_value *x, tt_value *first, tt_value *rows) {
  tt_value *zero = tt_hlo_constant(b, TT_S32, 0);
  return tt_hlo_dynamic_update_slice(b, x, rows, (tt_value *[]){zero, first, zero});
}

tt_value *tt_with_columns(tt_builder *b, tt_value *x, tt_value *first, tt_value *columns) {
  tt_value *zero = tt_hlo_constant(b, TT_S32, 0);
  return tt_hlo_dynamic_update_slice(b, x, columns, (tt_value *[]){zero, zero, first});
}

tt_value *tt_positions(tt_builder *b, const tt_value *x, int dim, tt_compare how, tt_value *index) {
  tt_value *position = tt_hlo_iota(b, TT_S32, x->rank, x->dims, dim);
  return tt_hlo_compare(b, how, position, tt_each(b, index, x));
}

tt_value *tt_pick_rows(tt_builder *b, tt_value *x, tt_value *index) {
  tt_value *picked = tt_permute_rows(b, x, tt_hlo_unsqueeze_dim(b, index, 1));
  return x->rank == 3 ? tt_hlo_squeeze_dim(b, picked, 1) : tt_hlo_reshape(b, picked, 1, picked->dims);
}

tt_value *tt_permute_rows(tt_builder *b, tt_value *x, tt_value *order) {
  if (tt_value_count(x) == 0)
    return tt_hlo_splat(b, x->dtype, x->rank, (int64_t[]){x->dims[0], order->dims[1], x->dims[x->rank - 1]}, 0);
  const int64_t dims[] = {order->dims[0], order->dims[1], 1};
  const int zero[] = {0}, one[] = {1}, two[] = {2};
  const tt_gather numbers = {.offset_count = x->rank - 2,
                             .offset_dims = two,
                             .collapsed_count = 1,
                             .collapsed_dims = one,
                             .batching_count = 1,
                             .operand_batching_dims = zero,
                             .index_batching_dims = zero,
                             .map_count = 1,
                             .start_index_map = one,
                             .index_vector_dim = 2,
                             .slice_sizes = (int64_t[]){1, 1, x->rank == 3 ? x->dims[2] : 1}};
  return tt_hlo_gather(b, x, tt_hlo_reshape(b, order, 3, dims), &numbers);
}

static void is_before(tt_builder *b, tt_value *const *xs, tt_value **results, void *user) {
  (void)user;
  results[0] = tt_hlo_compare(b, TT_LT, xs[0], xs[1]);
}

tt_value *tt_inverse_order(tt_builder *b, tt_value *order) {
  tt_value *both[] = {order, tt_hlo_iota(b, TT_S32, 2, order->dims, 1)};
  tt_hlo_sort(b, 2, both, 1, false, is_before, NULL, both);
  return both[1];
}

// --- loops -----------------------------------------------------------------------------------------------------------------------

typedef struct loop {
  int64_t count;
  int values;
  tt_turn turn;
  void *user;
} loop;

static void turns_left(tt_builder *b, tt_value *const *carried, tt_value **results, void *user) {
  const loop *one = user;
  results[0] = tt_hlo_compare(b, TT_LT, carried[0], tt_hlo_constant_i64(b, TT_S32, one->count));
}

static void one_turn(tt_builder *b, tt_value *const *carried, tt_value **results, void *user) {
  const loop *one = user;
  memcpy(results, carried, (size_t)(one->values + 1) * sizeof(tt_value *));
  one->turn(b, carried[0], results + 1, one->user);
  results[0] = tt_add_constant(b, carried[0], 1);
}

void tt_repeat(tt_builder *b, int64_t count, int value_count, tt_value **values, tt_turn turn, void *user) {
  if (count <= 0 || tt_builder_failed(b) || tt_value_count(values[0]) == 0) return;
  loop one = {count, value_count, turn, user};
  tt_value *carried[MOST_VALUES] = {tt_hlo_constant(b, TT_S32, 0)};
  memcpy(carried + 1, values, (size_t)value_count * sizeof *values);
  tt_hlo_while(b, value_count + 1, carried, turns_left, one_turn, &one, carried);
  memcpy(values, carried + 1, (size_t)value_count * sizeof *values);
}

// --- scalars and sums -------------------------------------------------------------------------------------------------------------

tt_value *tt_zero_unless(tt_builder *b, tt_value *keep, tt_value *x) {
  return tt_hlo_select(b, keep, x, tt_hlo_constant_like(b, x, 0));
}

tt_value *tt_real_as(tt_builder *b, tt_value *real, const tt_value *x) { return tt_hlo_convert(b, real, x->dtype); }

tt_value *tt_pivot_size(tt_builder *b, tt_value *x) {
  if (!tt_dtype_is_complex(x->dtype)) return tt_hlo_abs(b, x);
  return tt_hlo_add(b, tt_hlo_abs(b, tt_hlo_real(b, x)), tt_hlo_abs(b, tt_hlo_imag(b, x)));
}

tt_value *tt_sum_last(tt_builder *b, tt_value *x) {
  return tt_hlo_reduce(b, x, TT_REDUCE_ADD, 1, (int[]){x->rank - 1});
}

tt_value *tt_max_last(tt_builder *b, tt_value *x) {
  return tt_hlo_reduce(b, x, TT_REDUCE_MAX, 1, (int[]){x->rank - 1});
}

tt_value *tt_norm_last(tt_builder *b, tt_value *x) {
  tt_value *size = tt_hlo_abs(b, x), *most = tt_max_last(b, size);
  // The greatest element; 1 where that is zero, infinite or NaN.
  tt_value *usable = tt_hlo_and(b, tt_compare_constant(b, TT_GT, most, 0), tt_hlo_is_finite(b, most));
  tt_value *scale = tt_hlo_select(b, usable, most, tt_hlo_constant_like(b, most, 1));
  int map[3] = {0, 1, 2};
  tt_value *part = tt_hlo_divide(b, size, tt_hlo_broadcast_in_dim(b, scale, size->rank, size->dims, map));
  return tt_hlo_multiply(b, scale, tt_hlo_sqrt(b, tt_sum_last(b, tt_hlo_multiply(b, part, part))));
}

double tt_epsilon(tt_dtype dtype) { return tt_dtype_real(dtype) == TT_F64 ? DBL_EPSILON : FLT_EPSILON; }
