// sort.c - sort, topk, kthvalue, median, nanmedian and mode. Searching in sorted sequences is in search.c.
#include "op/order.h"

static bool check_real(tt_lowering *l, const char *name, tt_dtype dtype) {
  if (!tt_dtype_is_complex(dtype)) return true;
  tt_fail(l, TT_INVALID_ARGUMENT, "%s does not support complex dtypes on TPU", name);
  return false;
}

// The elements as results 0 and 1, with their positions.
static void set_ordered(tt_lowering *l, const tt_ordered *o) {
  tt_set_result(l, 0, tt_ordered_values(l->b, o));
  tt_set_result(l, 1, tt_ordered_positions(l->b, o));
  for (int i = 0; i < 2; ++i) tt_set_order_like(l, i, 0);
}

// Results of a 0-d operand: itself, from position 0.
static void set_itself(tt_lowering *l, tt_value *x) {
  tt_set_result(l, 0, x);
  tt_set_result(l, 1, tt_hlo_splat(l->b, TT_S64, x->rank, x->dims, 0));
}

// --- sort ------------------------------------------------------------------------------------------------------------

static void lower_sort(tt_lowering *l, int dim_arg) {
  tt_value *x = tt_operand(l, 0);
  int dim = tt_wrap_dim(l, tt_int(l, dim_arg), x->rank);
  bool descending = tt_bool(l, dim_arg + 1);
  if (tt_failed(l) || !check_real(l, "Sort", x->dtype)) return;
  if (x->rank == 0 || tt_value_count(x) == 0) {
    set_itself(l, x);
    return;
  }
  tt_ordered sorted = tt_order(l->b, x, dim, descending);
  set_ordered(l, &sorted);
}

void tt_lower_sort(tt_lowering *l) { lower_sort(l, 1); }        // (self, dim, descending)
void tt_lower_sort_stable(tt_lowering *l) { lower_sort(l, 2); } // (self, stable?, dim, descending); it is always stable

// --- topk ------------------------------------------------------------------------------------------------------------

// Moves dim to the end, or (with the same arguments) back.
static tt_value *swap_with_last(tt_builder *b, tt_value *x, int dim) {
  int order[TT_AXES_MAX];
  for (int i = 0; i < x->rank; ++i) order[i] = i;
  order[dim] = x->rank - 1;
  order[x->rank - 1] = dim;
  return tt_hlo_transpose(b, x, order);
}

// XLA has a fast top_k of float32 alone, a partial sort. It orders NaN by sign: the greatest here, and the smallest of the
// negated elements.
static void float_top_k(tt_lowering *l, tt_value *x, int64_t k, int dim, bool largest) {
  tt_builder *b = l->b;
  tt_value *wide = tt_hlo_convert(b, x, TT_F32), *values, *positions;
  tt_value *nan = tt_hlo_constant_like(b, wide, __builtin_nan(""));
  tt_value *is_nan = tt_hlo_is_nan(b, wide);
  if (!largest) {
    wide = tt_hlo_negate(b, wide);
    nan = tt_hlo_negate(b, nan);
  }
  tt_hlo_top_k(b, swap_with_last(b, tt_hlo_select(b, is_nan, nan, wide), dim), k, &values, &positions);
  if (tt_failed(l)) return;
  if (!largest) values = tt_hlo_negate(b, values);
  tt_set_result(l, 0, swap_with_last(b, tt_hlo_convert(b, values, x->dtype), dim));
  tt_set_result(l, 1, swap_with_last(b, tt_hlo_convert(b, positions, TT_S64), dim));
}

// topk(self, k, dim, largest, sorted)
void tt_lower_topk(tt_lowering *l) {
  tt_value *x = tt_operand(l, 0);
  int64_t k = tt_int(l, 1);
  int dim = tt_wrap_dim(l, tt_int(l, 2), x->rank);
  bool largest = tt_bool(l, 3);
  if (tt_failed(l) || !check_real(l, "topk", x->dtype)) return;
  if (x->rank == 0 || k == 0 || tt_value_count(x) == 0) {
    set_itself(l, x->rank == 0 ? x : tt_hlo_slice_dim(l->b, x, dim, 0, k, 1));
  } else if (tt_dtype_is_float(x->dtype) && x->dtype != TT_F64) {
    float_top_k(l, x, k, dim, largest);
  } else {
    tt_ordered sorted = tt_order(l->b, x, dim, largest);
    tt_ordered top = tt_ordered_slice(l->b, &sorted, dim, 0, k);
    set_ordered(l, &top);
  }
}

// --- kthvalue, median ------------------------------------------------------------------------------------------------

// x along an axis of which one element is chosen.
typedef struct row {
  tt_value *x; // at least 1-d
  int dim;
  int64_t size;
} row;

// Reads the operand and its dim argument; false after a failure.
static bool open_row(tt_lowering *l, const char *name, int dim_arg, row *out) {
  tt_value *x = tt_operand(l, 0);
  int dim = tt_wrap_dim(l, tt_int(l, dim_arg), x->rank);
  if (tt_failed(l) || !check_real(l, name, x->dtype)) return false;
  if (x->rank == 0) x = tt_hlo_reshape(l->b, x, 1, (int64_t[]){1});
  *out = (row){x, dim, x->dims[dim]};
  if (out->size == 0) tt_fail(l, TT_INDEX, "%s(): Expected reduction dim %d to have non-zero size.", name, dim);
  return !tt_failed(l);
}

// One element of each row, without dim.
static void set_chosen(tt_lowering *l, const row *r, const tt_ordered *chosen, int keepdim_arg) {
  tt_axes axis = tt_axes_range(r->dim, r->dim + 1);
  bool keep = tt_bool(l, keepdim_arg) && tt_operand(l, 0)->rank > 0;
  tt_value *value = tt_ordered_values(l->b, chosen), *position = tt_ordered_positions(l->b, chosen);
  tt_set_result(l, 0, keep ? tt_keep_axes(l->b, value, r->x, axis) : value);
  tt_set_result(l, 1, keep ? tt_keep_axes(l->b, position, r->x, axis) : position);
}

// The sorted row's element at a place known now.
static tt_ordered element_at(tt_builder *b, const row *r, int64_t place) {
  tt_ordered sorted = tt_order(b, r->x, r->dim, false);
  sorted = tt_ordered_slice(b, &sorted, r->dim, place, place + 1);
  sorted.keys = tt_hlo_squeeze_dim(b, sorted.keys, r->dim);
  if (sorted.position) sorted.position = tt_hlo_squeeze_dim(b, sorted.position, r->dim);
  return sorted;
}

// kthvalue(self, k, dim, keepdim)
void tt_lower_kthvalue(tt_lowering *l) {
  row r;
  if (!open_row(l, "kthvalue", 2, &r)) return;
  int64_t k = tt_int(l, 1);
  if (k < 1 || k > r.size) {
    tt_fail(l, TT_INVALID_ARGUMENT, "kthvalue(): selected number k out of range for dimension %d", r.dim);
    return;
  }
  tt_ordered chosen = element_at(l->b, &r, k - 1);
  set_chosen(l, &r, &chosen, 3);
}

// The lower one of two middle elements. NaNs stand at the end: median takes the first of them if there is one, nanmedian
// looks for the middle of the others.
static tt_ordered median_of(tt_builder *b, const row *r, bool ignore_nan) {
  if (!tt_dtype_is_float(r->x->dtype)) return element_at(b, r, (r->size - 1) / 2);
  tt_axes axis = tt_axes_range(r->dim, r->dim + 1);
  tt_value *numbers = tt_hlo_convert(b, tt_hlo_not(b, tt_hlo_is_nan(b, r->x)), tt_position_dtype(r->size)), *place;
  tt_value *count = tt_sum(b, numbers, axis);
  if (ignore_nan) {
    tt_value *one = tt_hlo_constant_like(b, count, 1);
    place = tt_hlo_shift_right_logical(b, tt_hlo_subtract(b, tt_hlo_maximum(b, count, one), one), one);
  } else {
    tt_value *whole = tt_hlo_compare(b, TT_EQ, count, tt_hlo_constant_like(b, count, (double)r->size));
    place = tt_hlo_select(b, whole, tt_hlo_constant_like(b, count, (double)((r->size - 1) / 2)), count);
  }
  tt_ordered sorted = tt_order(b, r->x, r->dim, false);
  return tt_ordered_pick(b, &sorted, r->dim, place);
}

static void lower_median(tt_lowering *l, bool ignore_nan) {
  tt_value *x = tt_operand(l, 0);
  if (tt_failed(l) || !check_real(l, "median", x->dtype)) return;
  row r = {tt_hlo_reshape(l->b, x, 1, (int64_t[]){tt_value_count(x)}), 0, tt_value_count(x)};
  if (r.size == 0) { // NaN, which converts to the smallest integer
    tt_value *nan = tt_hlo_constant(l->b, x->dtype, __builtin_nan(""));
    tt_set_result(l, 0, tt_dtype_is_float(x->dtype) ? nan : tt_hlo_min_value(l->b, x->dtype));
    return;
  }
  tt_ordered chosen = median_of(l->b, &r, ignore_nan);
  tt_set_result(l, 0, tt_ordered_values(l->b, &chosen));
}

void tt_lower_median(tt_lowering *l) { lower_median(l, false); }
void tt_lower_nanmedian(tt_lowering *l) { lower_median(l, true); }

// (self, dim, keepdim) -> (values, indices)
static void lower_median_dim(tt_lowering *l, bool ignore_nan) {
  row r;
  if (!open_row(l, "median", 1, &r)) return;
  tt_ordered chosen = median_of(l->b, &r, ignore_nan);
  set_chosen(l, &r, &chosen, 2);
}

void tt_lower_median_dim(tt_lowering *l) { lower_median_dim(l, false); }
void tt_lower_nanmedian_dim(tt_lowering *l) { lower_median_dim(l, true); }

// --- mode ------------------------------------------------------------------------------------------------------------

// True where a run of equal elements starts in sorted rows; each NaN is a run of its own.
static tt_value *run_starts(tt_builder *b, const row *r, const tt_ordered *sorted) {
  tt_value *keys = tt_ordered_keys(b, sorted);
  tt_value *later = tt_hlo_slice_dim(b, keys, r->dim, 1, r->size, 1);
  tt_value *earlier = tt_hlo_slice_dim(b, keys, r->dim, 0, r->size - 1, 1);
  int64_t low[TT_AXES_MAX] = {0}, none[TT_AXES_MAX] = {0};
  low[r->dim] = 1;
  tt_value *starts = tt_hlo_compare(b, TT_NE, later, earlier);
  starts = tt_hlo_pad(b, starts, tt_hlo_constant(b, TT_BOOL, 1), low, none, none);
  if (!tt_dtype_is_float(r->x->dtype)) return starts;
  return tt_hlo_or(b, starts, tt_hlo_is_nan(b, tt_ordered_values(b, sorted)));
}

// mode(self, dim, keepdim): the end of the first longest run of the sorted row.
void tt_lower_mode(tt_lowering *l) {
  tt_builder *b = l->b;
  row r;
  if (!open_row(l, "mode", 1, &r)) return;
  tt_ordered sorted = tt_order(b, r.x, r.dim, false);
  tt_value *place = tt_hlo_iota(b, tt_position_dtype(r.size), r.x->rank, r.x->dims, r.dim);
  tt_value *start = tt_hlo_select(b, run_starts(b, &r, &sorted), place, tt_hlo_constant_like(b, place, 0));
  tt_value *length = tt_hlo_subtract(b, place, tt_scan(b, start, TT_REDUCE_MAX, r.dim));
  tt_axes axis = tt_axes_range(r.dim, r.dim + 1);
  tt_value *longest = tt_first_position(b, length, tt_reduce(b, length, TT_REDUCE_MAX, axis), axis);
  tt_ordered chosen = tt_ordered_pick(b, &sorted, r.dim, longest);
  set_chosen(l, &r, &chosen, 2);
}
