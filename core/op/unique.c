// unique.c - distinct elements: _unique, _unique2, unique_consecutive, unique_dim, unique_dim_consecutive.
//
// How many there are is data. A program has results of fixed sizes, so these are as long as the operand; how much of each
// counts is one more result (tt_set_extents), by which the caller shortens them.
#include "op/axes.h"
#include "op/index.h"
#include "op/order.h"

// Neighbours that are equal, as runs: of a vector, or of the rows of a matrix.
typedef struct runs {
  tt_value *rank;   // [n]: the run that each belongs to
  tt_value *starts; // [n]: where each run begins; n beyond the last
  tt_value *count;  // scalar
} runs;

// `differs` [n - 1] tells whether an element differs from the one before it. n > 0.
static runs find_runs(tt_builder *b, tt_value *differs, int64_t n) {
  tt_value *first = tt_hlo_splat(b, TT_BOOL, 1, (int64_t[]){1}, 1);
  tt_value *starts = tt_hlo_concatenate(b, 2, (tt_value *[]){first, differs}, 0);
  tt_value *rank = tt_mask_ranks(b, starts);
  tt_value *last = tt_hlo_reshape(b, tt_hlo_slice_dim(b, rank, 0, n - 1, n, 1), 0, NULL);
  return (runs){rank, tt_mask_positions(b, starts, n, n), tt_hlo_add(b, last, tt_hlo_constant_like(b, last, 1))};
}

// How long each run is; 0 beyond the last.
static tt_value *run_lengths(tt_builder *b, const runs *r) {
  int64_t n = r->starts->dims[0];
  tt_value *end = tt_hlo_splat(b, r->starts->dtype, 1, (int64_t[]){1}, (double)n);
  tt_value *next = tt_hlo_concatenate(b, 2, (tt_value *[]){tt_hlo_slice_dim(b, r->starts, 0, 1, n, 1), end}, 0);
  return tt_hlo_convert(b, tt_hlo_subtract(b, next, r->starts), TT_S64);
}

// The first of each run of x [n, ...]; beyond the last anything.
static tt_value *run_values(tt_builder *b, tt_value *x, const runs *r) {
  tt_value *last = tt_hlo_constant_like(b, r->starts, (double)r->starts->dims[0] - 1);
  return tt_take_rows(b, x, 0, tt_hlo_minimum(b, r->starts, last));
}

static tt_value *nothing(tt_builder *b) { return tt_hlo_splat(b, TT_S64, 1, (int64_t[]){0}, 0); }

// The run of every element where it stood before it was sorted: `order` [n] says where each came from, NULL for there.
static tt_value *run_of_each(tt_builder *b, const runs *r, tt_value *order) {
  tt_value *rank = tt_hlo_convert(b, r->rank, TT_S64);
  if (!order) return rank;
  tt_index_map map;
  tt_map_rows(&map, rank, 0, tt_hlo_convert(b, order, tt_index_dtype(rank->dims[0])));
  return tt_index_write(b, rank, &map, rank, TT_COMBINE_REPLACE);
}

// Results 1 and 2: inverse (of these sizes) and counts, those that are wanted; and how much counts of all. Result 0 is cut along
// dim.
static void set_rest(tt_lowering *l, const runs *r, tt_value *order, int dim, int rank, const int64_t *sizes,
                     bool inverse, bool counts, bool has_counts) {
  tt_builder *b = l->b;
  tt_set_result(l, 1, inverse ? tt_hlo_reshape(b, run_of_each(b, r, order), rank, sizes) : nothing(b));
  if (has_counts) tt_set_result(l, 2, counts ? run_lengths(b, r) : nothing(b));
  tt_set_extents(l, (tt_extent[]){{dim, r->count}, {0, NULL}, {0, counts ? r->count : NULL}}, has_counts ? 3 : 2);
}

// All results for an operand without elements.
static void set_none(tt_lowering *l, tt_value *x, tt_value *inverse, bool has_counts) {
  tt_set_result(l, 0, x);
  tt_set_result(l, 1, inverse);
  if (has_counts) tt_set_result(l, 2, nothing(l->b));
  tt_set_extents(l, (tt_extent[]){{0, NULL}, {0, NULL}, {0, NULL}}, has_counts ? 3 : 2);
}

// --- of elements -----------------------------------------------------------------------------------------------------------

static tt_value *differs_from_previous(tt_builder *b, tt_value *x) {
  int64_t n = x->dims[0];
  return tt_hlo_compare(b, TT_NE, tt_hlo_slice_dim(b, x, 0, 1, n, 1), tt_hlo_slice_dim(b, x, 0, 0, n - 1, 1));
}

static bool check_real(tt_lowering *l, const tt_value *x, const char *name) {
  if (tt_dtype_is_complex(x->dtype))
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"%s\" not implemented for '%s'", name, tt_dtype_text(x->dtype));
  return !tt_failed(l);
}

static void lower_elements(tt_lowering *l, bool sorted, bool inverse, bool counts, bool has_counts) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0), *flat = tt_flat(b, x), *order = NULL;
  int64_t n = tt_value_count(x);
  if (n == 0) {
    set_none(l, flat, inverse ? tt_hlo_splat(b, TT_S64, x->rank, x->dims, 0) : nothing(b), has_counts);
    return;
  }
  if (sorted) {
    tt_ordered o = tt_order(b, flat, 0, false);
    flat = tt_ordered_values(b, &o);
    if (inverse) order = tt_ordered_positions(b, &o);
  }
  runs r = find_runs(b, differs_from_previous(b, flat), n);
  tt_set_result(l, 0, run_values(b, flat, &r));
  set_rest(l, &r, order, 0, x->rank, x->dims, inverse, counts, has_counts);
}

// _unique(self, sorted, return_inverse): sorted anyhow.
void tt_lower_unique(tt_lowering *l) {
  if (check_real(l, tt_operand(l, 0), "unique")) lower_elements(l, true, tt_bool(l, 2), false, false);
}

// _unique2(self, sorted, return_inverse, return_counts)
void tt_lower_unique2(tt_lowering *l) {
  if (check_real(l, tt_operand(l, 0), "unique")) lower_elements(l, true, tt_bool(l, 2), tt_bool(l, 3), true);
}

// --- of slices along a dim -----------------------------------------------------------------------------------------------------

// One step of the sort of rows: by column `at`, the last one first, each sort leaving equal rows in the order of the ones
// before. (at, order [n], columns [m, n]).
static void more_columns(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)user;
  results[0] = tt_hlo_compare(b, TT_GE, state[0], tt_hlo_constant_like(b, state[0], 0));
}

static void sort_by_column(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)user;
  int64_t n = state[2]->dims[1];
  tt_value *zero = tt_hlo_constant_like(b, state[0], 0);
  tt_value *column = tt_hlo_dynamic_slice(b, state[2], (tt_value *[]){state[0], zero}, (int64_t[]){1, n});
  tt_value *keys = tt_take_rows(b, tt_flat(b, column), 0, state[1]);
  tt_ordered o = tt_order(b, keys, 0, false);
  results[0] = tt_hlo_subtract(b, state[0], tt_hlo_constant_like(b, state[0], 1));
  results[1] = tt_take_rows(b, state[1], 0, tt_hlo_convert(b, tt_ordered_positions(b, &o), TT_S32));
  results[2] = state[2];
}

// Where the rows [n, m] come from in lexicographic order: S32 [n].
static tt_value *row_order(tt_builder *b, tt_value *rows) {
  int64_t n = rows->dims[0], m = rows->dims[1];
  tt_value *state[3] = {
      tt_hlo_constant_i64(b, TT_S32, m - 1),
      tt_hlo_iota(b, TT_S32, 1, &n, 0),
      tt_hlo_transpose(b, rows, (int[]){1, 0}),
  };
  tt_hlo_while(b, 3, state, more_columns, sort_by_column, NULL, state);
  return state[1];
}

static tt_value *rows_differ(tt_builder *b, tt_value *rows) {
  tt_value *differs = differs_from_previous(b, rows);
  return tt_hlo_reduce(b, differs, TT_REDUCE_OR, 1, (int[]){1});
}

// (self, dim, ..., return_inverse, return_counts): the flags are the arguments `flags` and flags + 1.
static void lower_slices(tt_lowering *l, const char *name, int dim_arg, int flags, bool sorted) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0), *order = NULL;
  int dim = tt_wrap_dim(l, tt_int(l, dim_arg), x->rank);
  if (x->rank == 0) tt_fail(l, TT_INDEX, "Dimension specified as %d but tensor has no dimensions", dim);
  if (tt_failed(l) || !check_real(l, x, name)) return;
  bool inverse = tt_bool(l, flags), counts = tt_bool(l, flags + 1);
  if (tt_value_count(x) == 0) {
    int zeros = 0;
    for (int i = 0; i < x->rank; ++i) zeros += x->dims[i] == 0;
    if (x->dims[dim] != 0)
      tt_fail(l, TT_INVALID_ARGUMENT,
              "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
    else if (zeros != 1)
      tt_fail(l, TT_INVALID_ARGUMENT, "Number of zero sized dimensions is more than one, so unique cannot be applied ");
    else
      set_none(l, x, nothing(b), true);
    return;
  }
  int to_front[TT_AXES_MAX], back[TT_AXES_MAX];
  int64_t sizes[TT_AXES_MAX];
  tt_dim_first(x->rank, dim, to_front, back);
  for (int i = 0; i < x->rank; ++i) sizes[i] = x->dims[to_front[i]];
  int64_t n = sizes[0];
  tt_value *rows = tt_hlo_reshape(b, tt_hlo_transpose(b, x, to_front), 2, (int64_t[]){n, tt_value_count(x) / n});
  if (sorted) {
    order = row_order(b, rows);
    rows = tt_take_rows(b, rows, 0, order);
  }
  runs r = find_runs(b, rows_differ(b, rows), n);
  tt_value *values = tt_hlo_reshape(b, run_values(b, rows, &r), x->rank, sizes);
  tt_set_result(l, 0, tt_hlo_transpose(b, values, back));
  int *order_of_dims = tt_arena_allocate(tt_builder_arena(b), (size_t)x->rank, sizeof *order_of_dims);
  for (int i = 0; order_of_dims && i < x->rank; ++i) order_of_dims[i] = to_front[i];
  if (order_of_dims) tt_set_order(l, 0, order_of_dims); // what is cut off lies at the end
  set_rest(l, &r, order, dim, 1, &n, inverse, counts, true);
}

// unique_dim(self, dim, sorted, return_inverse, return_counts)
void tt_lower_unique_dim(tt_lowering *l) { lower_slices(l, "unique_dim", 1, 3, true); }
// unique_dim_consecutive(self, dim, return_inverse, return_counts)
void tt_lower_unique_dim_consecutive(tt_lowering *l) { lower_slices(l, "unique_dim", 1, 2, false); }

// unique_consecutive(self, return_inverse, return_counts, dim?)
void tt_lower_unique_consecutive(tt_lowering *l) {
  if (tt_has(l, 3))
    lower_slices(l, "unique_consecutive", 3, 1, false);
  else if (check_real(l, tt_operand(l, 0), "unique_consecutive"))
    lower_elements(l, false, tt_bool(l, 1), tt_bool(l, 2), true);
}
