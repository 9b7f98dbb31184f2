// search.c - searching in sorted sequences: searchsorted, bucketize, isin.
#include "op/index.h"
#include "op/order.h"

// Up to this many boundaries, each value is compared with all of them: one fused pass, where a binary search needs a gather for
// each step.
enum { FEW = 64 };

// --- binary search ---------------------------------------------------------------------------------------------------

// What the loop carries.
enum { STEP, LOW, HIGH, BOUNDARIES, VALUES, CARRIED };

typedef struct search {
  bool right;
  int steps; // ceil(log2(n + 1))
} search;

static tt_value *gather_flat(tt_builder *b, tt_value *x, tt_value *position) {
  tt_gather numbers = {.collapsed_count = 1,
                       .collapsed_dims = (int[]){0},
                       .map_count = 1,
                       .start_index_map = (int[]){0},
                       .index_vector_dim = 1,
                       .slice_sizes = (int64_t[]){1}};
  return tt_hlo_gather(b, x, tt_hlo_reshape(b, position, 2, (int64_t[]){tt_value_count(position), 1}), &numbers);
}

static void not_done(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  const search *s = user;
  results[0] = tt_hlo_compare(b, TT_LT, arguments[STEP], tt_hlo_constant_i64(b, TT_S32, s->steps));
}

// Whether the place for `value` is behind `boundary`. NaN values go to the end, behind everything; a NaN boundary, which stands
// at the end itself, has no number behind it.
static tt_value *is_behind(tt_builder *b, tt_value *boundary, tt_value *value, bool right) {
  tt_value *behind = tt_hlo_compare(b, right ? TT_LE : TT_LT, boundary, value);
  return tt_dtype_is_float(value->dtype) ? tt_hlo_or(b, behind, tt_hlo_is_nan(b, value)) : behind;
}

static void halve(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  const search *s = user;
  tt_value *low = arguments[LOW], *high = arguments[HIGH], *one = tt_hlo_constant_like(b, low, 1);
  tt_value *middle = tt_hlo_add(b, low, tt_hlo_shift_right_logical(b, tt_hlo_subtract(b, high, low), one));
  tt_value *behind = is_behind(b, gather_flat(b, arguments[BOUNDARIES], middle), arguments[VALUES], s->right);
  tt_value *open = tt_hlo_compare(b, TT_LT, low, high);
  results[STEP] = tt_hlo_add(b, arguments[STEP], tt_hlo_constant_i64(b, TT_S32, 1));
  results[LOW] = tt_hlo_select(b, tt_hlo_and(b, open, behind), tt_hlo_add(b, middle, one), low);
  results[HIGH] = tt_hlo_select(b, tt_hlo_and(b, open, tt_hlo_not(b, behind)), middle, high);
  results[BOUNDARIES] = arguments[BOUNDARIES];
  results[VALUES] = arguments[VALUES];
}

// The number of each row of [rows, columns], flattened, times `factor`.
static tt_value *row_offsets(tt_builder *b, int64_t rows, int64_t columns, int64_t factor) {
  int64_t dims[] = {rows, columns}, flat = rows * columns;
  tt_dtype dtype = tt_position_dtype(rows * factor + 1);
  tt_value *row = tt_hlo_reshape(b, tt_hlo_iota(b, dtype, 2, dims, 0), 1, &flat);
  return tt_hlo_multiply(b, row, tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, dtype, factor), row));
}

// Places of the flattened `values` [rows, columns] in the flattened `boundaries` [rows, n].
static tt_value *search_binary(tt_builder *b, tt_value *boundaries, tt_value *values, int64_t rows, int64_t n,
                               bool right) {
  search s = {.right = right};
  while (n >> s.steps != 0) ++s.steps;
  tt_value *first = row_offsets(b, rows, tt_value_count(values) / rows, n);
  tt_value *last = tt_hlo_add(b, first, tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, first->dtype, n), first));
  tt_value *carried[CARRIED] = {tt_hlo_constant_i64(b, TT_S32, 0), first, last, boundaries, values};
  tt_hlo_while(b, CARRIED, carried, not_done, halve, &s, carried);
  return tt_hlo_subtract(b, carried[LOW], first);
}

// Counts the boundaries that each value is behind.
static tt_value *search_all(tt_builder *b, tt_value *boundaries, tt_value *values, int64_t rows, int64_t n,
                            bool right) {
  int64_t cube[] = {rows, tt_value_count(values) / rows, n};
  tt_value *boundary =
      tt_hlo_broadcast_in_dim(b, tt_hlo_reshape(b, boundaries, 2, (int64_t[]){rows, n}), 3, cube, (int[]){0, 2});
  tt_value *value = tt_hlo_broadcast_in_dim(b, tt_hlo_reshape(b, values, 2, cube), 3, cube, (int[]){0, 1});
  tt_value *behind = tt_hlo_convert(b, is_behind(b, boundary, value, right), TT_S32);
  return tt_hlo_reshape(b, tt_sum(b, behind, tt_axes_range(2, 3)), 1, (int64_t[]){tt_value_count(values)});
}

tt_value *tt_search_rows(tt_builder *b, tt_value *boundaries, tt_value *values, int64_t rows, int64_t n, bool right) {
  if (tt_builder_failed(b)) return values;
  if (n == 0 || tt_value_count(values) == 0) return tt_hlo_splat(b, TT_S32, 1, values->dims, 0);
  return n <= FEW ? search_all(b, boundaries, values, rows, n, right)
                  : search_binary(b, boundaries, values, rows, n, right);
}

// --- searchsorted, bucketize -----------------------------------------------------------------------------------------

static bool same_rows(const tt_value *x, const tt_value *y) {
  if (x->rank != y->rank) return false;
  for (int i = 0; i + 1 < x->rank; ++i) {
    if (x->dims[i] != y->dims[i]) return false;
  }
  return true;
}

static const char *dims_text(tt_lowering *l, const tt_value *x) {
  return tt_shape_text(tt_builder_arena(l->b), x->rank, x->dims);
}

static bool check_shapes(tt_lowering *l, const tt_value *boundaries, const tt_value *values) {
  if (boundaries->rank == 0)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "torch.searchsorted(): boundaries tensor should have positive dimension, but got 0 dimension");
  else if (values->rank == 0 && boundaries->rank != 1)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "torch.searchsorted(): input value can be a scalar only when boundaries tensor dimension is 1, but we got "
            "boundaries "
            "tensor dim(%d) and input value's dim(0) numel(1)",
            boundaries->rank);
  else if (boundaries->rank != 1 && !same_rows(boundaries, values))
    tt_fail(l, TT_INVALID_ARGUMENT,
            "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries "
            "tensor and "
            "input value tensor must match, but we got boundaries tensor %s and input value tensor %s",
            dims_text(l, boundaries), dims_text(l, values));
  return !tt_failed(l);
}

// The boundaries flattened, in the order that the sorter (argument 5) gives.
static tt_value *apply_sorter(tt_lowering *l, tt_value *boundaries) {
  tt_value *flat = tt_flat(l->b, boundaries);
  if (!tt_has(l, 5) || tt_failed(l)) return flat;
  tt_value *sorter = tt_operand(l, 5);
  if (!tt_value_same_shape(sorter, boundaries))
    tt_fail(l, TT_INVALID_ARGUMENT,
            "torch.searchsorted(): boundary and sorter must have the same size, but got boundary tensor %sand got "
            "sorter tensor %s",
            dims_text(l, boundaries), dims_text(l, sorter));
  else if (sorter->dtype != TT_S64)
    tt_fail(l, TT_INVALID_ARGUMENT, "torch.searchsorted(): sorter must be a tensor of long dtype but got dtype %s",
            tt_dtype_text(sorter->dtype));
  int64_t n = boundaries->dims[boundaries->rank - 1];
  if (tt_failed(l) || tt_value_count(flat) == 0) return flat;
  sorter = tt_flat(l->b, sorter);
  tt_value *inside = tt_hlo_and(l->b, tt_hlo_compare(l->b, TT_GE, sorter, tt_hlo_constant_like(l->b, sorter, 0)),
                                tt_hlo_compare(l->b, TT_LT, sorter, tt_hlo_constant_like(l->b, sorter, (double)n)));
  tt_check_all(l, inside, TT_INVALID_ARGUMENT, "torch.searchsorted(): sorter index out of range");
  tt_value *offset = row_offsets(l->b, tt_value_count(flat) / n, n, n);
  return gather_flat(l->b, flat, tt_hlo_add(l->b, tt_hlo_convert(l->b, sorter, offset->dtype), offset));
}

// The side argument (4) against `right` (3).
static bool is_right(tt_lowering *l) {
  const char *side = tt_text(l, 4);
  bool right = tt_bool(l, 3), to_left = side[0] == 'l', to_right = side[0] == 'r';
  if (side[0] && !to_left && !to_right)
    tt_fail(l, TT_INVALID_ARGUMENT, "torch.searchsorted(): side can only be 'left' or 'right' but got %s", side);
  if (to_left && right)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "torch.searchsorted(): side and right can't be set to opposites, got side of left while right was True");
  return right || to_right;
}

static void lower_search(tt_lowering *l, int boundaries_arg, int values_arg, bool right, bool sortable) {
  tt_builder *b = l->b;
  tt_dtype dtype = tt_promote(l, (int[]){boundaries_arg, values_arg}, 2);
  if (dtype == TT_BOOL || tt_dtype_is_complex(dtype))
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"searchsorted\" not implemented for '%s'", tt_dtype_text(dtype));
  if (tt_failed(l)) return;
  dtype = tt_compute_dtype(dtype);
  tt_value *boundaries = tt_operand_as(l, boundaries_arg, dtype), *values = tt_operand_as(l, values_arg, dtype);
  if (tt_failed(l) || !check_shapes(l, boundaries, values)) return;
  int64_t n = boundaries->dims[boundaries->rank - 1];
  int64_t rows = boundaries->rank == 1 || n == 0 ? 1 : tt_value_count(boundaries) / n;
  tt_value *sorted = sortable ? apply_sorter(l, boundaries) : tt_flat(b, boundaries);
  tt_value *place = tt_search_rows(b, sorted, tt_flat(b, values), rows, n, right);
  place = tt_hlo_convert(b, place, tt_bool(l, 2) ? TT_S32 : TT_S64);
  tt_set_result(l, 0, tt_hlo_reshape(b, place, values->rank, values->dims));
}

// searchsorted(sorted_sequence, self, *, out_int32, right, side?, sorter?)
void tt_lower_searchsorted(tt_lowering *l) { lower_search(l, 0, 1, is_right(l), true); }

// bucketize(self, boundaries, *, out_int32, right)
void tt_lower_bucketize(tt_lowering *l) {
  const tt_tensor *boundaries = tt_tensor_arg(l, 1);
  if (boundaries && boundaries->rank != 1)
    tt_fail(l, TT_INVALID_ARGUMENT, "boundaries tensor must be 1 dimension, but got dim(%d)", boundaries->rank);
  else
    lower_search(l, 1, 0, tt_bool(l, 3), false);
}

// --- isin ------------------------------------------------------------------------------------------------------------

// Whether each of the flattened elements is among the flattened tests.
static tt_value *is_member(tt_builder *b, tt_value *elements, tt_value *tests) {
  int64_t n = tt_value_count(tests);
  if (n == 0 || tt_builder_failed(b)) return tt_hlo_splat(b, TT_BOOL, 1, elements->dims, 0);
  if (n <= FEW) {
    int64_t dims[] = {tt_value_count(elements), n};
    tt_value *element = tt_hlo_broadcast_in_dim(b, elements, 2, dims, (int[]){0});
    tt_value *test = tt_hlo_broadcast_in_dim(b, tests, 2, dims, (int[]){1});
    return tt_reduce(b, tt_hlo_compare(b, TT_EQ, element, test), TT_REDUCE_OR, tt_axes_range(1, 2));
  }
  tt_ordered order = tt_order(b, tests, 0, false);
  tt_value *sorted = tt_ordered_values(b, &order);
  tt_value *place =
      tt_search_rows(b, sorted, elements, 1, n, false); // at the end, the gather is clamped to the last test
  return tt_hlo_compare(b, TT_EQ, gather_flat(b, sorted, place), elements);
}

// isin(elements, test_elements, *, assume_unique, invert), either of which may be a number
void tt_lower_isin(tt_lowering *l) {
  tt_dtype dtype = tt_promote(l, (int[]){0, 1}, 2);
  if (tt_failed(l)) return;
  dtype = tt_compute_dtype(dtype);
  tt_value *elements = tt_operand_as(l, 0, dtype);
  tt_value *found = is_member(l->b, tt_flat(l->b, elements), tt_flat(l->b, tt_operand_as(l, 1, dtype)));
  if (tt_bool(l, 3)) found = tt_hlo_not(l->b, found);
  tt_set_result(l, 0, tt_hlo_reshape(l->b, found, elements->rank, elements->dims));
}

// --- indices of sparse layouts ---------------------------------------------------------------------------------------

static tt_dtype sparse_index_dtype(tt_lowering *l, int arg) { return tt_bool(l, arg) ? TT_S32 : TT_S64; }

// _convert_indices_from_coo_to_csr(self, size, out_int32): how many of the sorted row numbers are below 0, 1, ... size.
void tt_lower_coo_to_csr(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *rows = tt_operand(l, 0);
  int64_t count = tt_int(l, 1) + 1;
  if (tt_failed(l)) return;
  tt_value *ends =
      tt_search_rows(b, tt_flat(b, rows), tt_hlo_iota(b, rows->dtype, 1, &count, 0), 1, tt_value_count(rows), false);
  tt_set_result(l, 0, tt_hlo_convert(b, ends, sparse_index_dtype(l, 2)));
}

// _convert_indices_from_csr_to_coo(crow [..., rows + 1], col [..., nnz], out_int32, transpose): the numbers of batches, then of
// rows and columns (swapped with `transpose`), one vector each.
void tt_lower_csr_to_coo(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *ends = tt_operand(l, 0), *columns = tt_operand(l, 1);
  tt_dtype dtype = sparse_index_dtype(l, 2);
  int rank = columns->rank;
  if (rank < 1 || ends->rank != rank || ends->dims[rank - 1] < 1)
    tt_fail(l, TT_MISMATCH, "crow_indices needs the dims of col_indices and one element or more in the last");
  if (tt_failed(l)) return;
  int64_t rows = ends->dims[rank - 1] - 1, total = tt_value_count(columns);
  int64_t batches = tt_value_count(ends) / (rows + 1);
  tt_value *vectors[TT_AXES_MAX + 1];
  for (int i = 0; i + 1 < rank; ++i) vectors[i] = tt_flat(b, tt_hlo_iota(b, dtype, rank, columns->dims, i));
  tt_value *entry = tt_flat(b, tt_hlo_iota(b, ends->dtype, rank, columns->dims, rank - 1));
  ends = tt_flat(b, tt_hlo_slice_dim(b, ends, rank - 1, 1, rows + 1, 1));
  bool transpose = tt_bool(l, 3);
  vectors[rank - 1 + transpose] = tt_hlo_convert(b, tt_search_rows(b, ends, entry, batches, rows, true), dtype);
  vectors[rank - transpose] = tt_hlo_convert(b, tt_flat(b, columns), dtype);
  for (int i = 0; i <= rank; ++i) vectors[i] = tt_hlo_reshape(b, vectors[i], 2, (int64_t[]){1, total});
  tt_set_result(l, 0, tt_hlo_concatenate(b, rank + 1, vectors, 0));
}
