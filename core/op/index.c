// index.c - ops that read by index: x[i, j], index_select, gather, take, nonzero_static, repeat_interleave.
#include "op/index.h"

// --- advanced indexing ------------------------------------------------------------------------------------------------------

static const char out_of_bounds[] = "index is out of bounds for its dimension";

// The index tensors of one call, one per indexed dimension: masks count for as many as they have dims.
typedef struct index_list {
  int count, dims[TT_INDEX_MAX_DIMS];
  tt_value *indices[TT_INDEX_MAX_DIMS];
  int next; // the operand's next dim
} index_list;

static bool mask_fits(tt_lowering *l, const tt_value *x, const tt_tensor *mask, int at) {
  for (int i = 0; i < mask->rank; ++i) {
    if (at + i < x->rank && mask->sizes[i] == x->dims[at + i]) continue;
    tt_arena *arena = tt_builder_arena(l->b);
    tt_fail(l, TT_INDEX,
            "The shape of the mask %s at index %d does not match the shape of the indexed tensor %s at index %d",
            tt_shape_text(arena, mask->rank, mask->sizes), i, tt_shape_text(arena, x->rank, x->dims), at + i);
    return false;
  }
  return true;
}

// How many positions a mask is expanded to: as many as it is known to have true elements; else as many as the other index
// tensors have in their last dim, if that is not 1; else as many as the smallest mask has elements.
static int64_t positions_per_mask(tt_lowering *l, int arg, int64_t mask_count) {
  if (mask_count >= 0) return mask_count;
  int64_t last = 1, fewest = INT64_MAX;
  for (int i = 0; i < tt_list_count(l, arg); ++i) {
    const tt_tensor *t = tt_list_tensor(l, arg, i);
    if (!t) continue;
    int64_t count = 1;
    for (int d = 0; d < t->rank; ++d) count *= t->sizes[d];
    if (tt_is_mask(t))
      fewest = count < fewest ? count : fewest;
    else if (t->rank > 0 && t->sizes[t->rank - 1] != 1)
      last = t->sizes[t->rank - 1];
  }
  return last != 1 ? last : fewest;
}

static int index_tensor_count(const tt_lowering *l, int arg) {
  int count = 0;
  for (int i = 0; i < tt_list_count(l, arg); ++i) count += tt_list_has(l, arg, i);
  return count;
}

// A mask's index tensors, one per dim of it. Positions beyond the last true element are out of range, and so never written;
// but one true element beside other index tensors (`shared`) is repeated, since torch broadcasts it against them.
static void add_mask(tt_lowering *l, index_list *list, tt_value *mask, int64_t count, bool shared) {
  tt_builder *b = l->b;
  tt_value *flat = tt_flat(b, tt_hlo_convert(b, mask, TT_BOOL));
  tt_value *at = tt_mask_positions(b, flat, count, tt_value_count(flat));
  if (shared && count > 1) {
    tt_value *second = tt_hlo_slice_dim(b, at, 0, 1, 2, 1);
    tt_value *single = tt_hlo_compare(b, TT_GE, second, tt_hlo_constant_like(b, second, (double)tt_value_count(flat)));
    tt_value *first = tt_hlo_slice_dim(b, at, 0, 0, 1, 1);
    at = tt_hlo_select(b, tt_hlo_broadcast_like(b, single, at), tt_hlo_broadcast_like(b, first, at), at);
  }
  for (int i = mask->rank - 1; i >= 0; --i) {
    tt_value *size = tt_hlo_constant_like(b, at, (double)(mask->dims[i] > 0 ? mask->dims[i] : 1));
    list->dims[list->count + i] = list->next + i;
    list->indices[list->count + i] = i > 0 ? tt_hlo_remainder(b, at, size) : at;
    at = tt_hlo_divide(b, at, size);
  }
  list->count += mask->rank;
  list->next += mask->rank;
}

static void add_index(tt_lowering *l, index_list *list, const tt_value *x, tt_value *index) {
  int64_t size = list->next < x->rank ? x->dims[list->next] : 0;
  list->indices[list->count] = tt_index_checked(l, index, size, true, TT_INDEX, out_of_bounds);
  list->dims[list->count++] = list->next++;
}

static bool read_index_list(tt_lowering *l, index_list *list, const tt_value *x, int arg, int64_t mask_count) {
  int64_t positions = positions_per_mask(l, arg, mask_count);
  bool shared = index_tensor_count(l, arg) > 1;
  list->count = list->next = 0;
  for (int i = 0; i < tt_list_count(l, arg) && !tt_failed(l); ++i) {
    const tt_tensor *t = tt_list_tensor(l, arg, i);
    if (!t) {
      ++list->next;
    } else if (tt_is_mask(t)) {
      if (mask_fits(l, x, t, list->next)) add_mask(l, list, tt_list_operand(l, arg, i), positions, shared);
    } else if (t->dtype != TT_S64 && t->dtype != TT_S32) {
      tt_fail(l, TT_INDEX, "tensors used as indices must be long, int, byte or bool tensors");
    } else {
      add_index(l, list, x, tt_list_operand(l, arg, i));
    }
    if (list->next > x->rank)
      tt_fail(l, TT_INDEX, "too many indices for tensor of dimension %d (got %d)", x->rank, list->next);
  }
  return !tt_failed(l);
}

static void fail_broadcast(tt_lowering *l, const index_list *list) {
  tt_string shapes = TT_STRING_INIT;
  for (int i = 0; i < list->count; ++i) {
    const tt_value *index = list->indices[i];
    if (i > 0) tt_string_append(&shapes, ", ");
    tt_string_append(&shapes, tt_shape_text(tt_builder_arena(l->b), index->rank, index->dims));
  }
  tt_fail(l, TT_INDEX, "shape mismatch: indexing tensors could not be broadcast together with shapes %s",
          tt_string_text(&shapes));
  tt_string_free(&shapes);
}

// Brings all index tensors to one shape, each in the widest of their dtypes.
static bool broadcast_indices(tt_lowering *l, index_list *list) {
  int rank = 0;
  int64_t dims[TT_INDEX_MAX_DIMS];
  tt_dtype dtype = TT_S32;
  for (int i = 0; i < list->count; ++i) {
    if (list->indices[i]->rank > rank) rank = list->indices[i]->rank;
    if (list->indices[i]->dtype == TT_S64) dtype = TT_S64;
  }
  for (int d = 0; d < rank; ++d) {
    dims[d] = 1;
    for (int i = 0; i < list->count; ++i) {
      int own = d - (rank - list->indices[i]->rank);
      if (own < 0 || list->indices[i]->dims[own] == 1) continue;
      if (dims[d] != 1 && dims[d] != list->indices[i]->dims[own]) {
        fail_broadcast(l, list);
        return false;
      }
      dims[d] = list->indices[i]->dims[own];
    }
  }
  for (int i = 0; i < list->count; ++i)
    list->indices[i] = tt_hlo_convert(l->b, tt_hlo_broadcast_to(l->b, list->indices[i], rank, dims), dtype);
  return !tt_failed(l);
}

bool tt_map_advanced(tt_lowering *l, tt_index_map *map, tt_value *x, int arg, int64_t mask_count) {
  index_list list;
  if (!read_index_list(l, &list, x, arg, mask_count) || list.count == 0 || !broadcast_indices(l, &list)) return false;
  bool adjacent = list.dims[list.count - 1] - list.dims[0] == list.count - 1;
  for (int i = 0; i < list.count; ++i) {
    if (x->dims[list.dims[i]] > 0 || tt_value_count(list.indices[i]) == 0) continue;
    tt_fail(l, TT_INDEX, "index is out of bounds for dimension with size 0");
    return false;
  }
  // Index tensors apart from each other put their dims in front, as in numpy.
  tt_map_points(l->b, map, x, list.count, list.dims, list.indices, adjacent ? list.dims[0] : 0);
  return !tt_failed(l);
}

// Masks do not come here: the result's shape is their count, so the bridge has made index tensors of them.
void tt_lower_index(tt_lowering *l) {
  tt_value *x = tt_operand(l, 0);
  tt_index_map map;
  for (int i = 0; i < tt_list_count(l, 1); ++i) {
    const tt_tensor *t = tt_list_tensor(l, 1, i);
    if (t && tt_is_mask(t)) tt_fail(l, TT_NOT_IMPLEMENTED, "a mask as an index gives a result of unknown shape");
  }
  if (tt_map_advanced(l, &map, x, 1, -1)) x = tt_index_read(l->b, x, &map);
  tt_set_result(l, 0, x);
}

// --- along one dim ------------------------------------------------------------------------------------------------------------

void tt_lower_index_select(tt_lowering *l) {
  tt_value *x = tt_operand(l, 0), *index = tt_operand(l, 2);
  int dim = tt_wrap_dim(l, tt_int(l, 1), x->rank);
  bool scalar = x->rank == 0;
  int64_t count = tt_value_count(index);
  if (index->rank > 1) tt_fail(l, TT_INDEX, "index_select(): Index is supposed to be a vector");
  if (!tt_is_index_dtype(index->dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "index_select(): Expected dtype int32 or int64 for index");
  if (scalar && count != 1)
    tt_fail(l, TT_INVALID_ARGUMENT, "index_select(): Index to scalar can have only 1 value, got %lld value(s)",
            (long long)count);
  if (tt_failed(l)) return;
  x = tt_at_least_1d(l->b, x);
  if (x->dims[dim] == 0 && count > 0) {
    tt_fail(l, TT_INVALID_ARGUMENT, "index_select(): self indexing axis dim should be positive");
    return;
  }
  index = tt_index_checked(l, tt_flat(l->b, index), x->dims[dim], false, TT_INDEX, "index out of range in self");
  tt_value *rows = tt_take_rows(l->b, x, dim, index);
  tt_set_result(l, 0, scalar ? tt_hlo_reshape(l->b, rows, 0, NULL) : rows);
}

void tt_lower_gather(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0), *index = tt_operand(l, 2);
  int dim = tt_wrap_dim(l, tt_int(l, 1), x->rank);
  if (tt_value_count(index) == 0) { // of any rank, as torch allows it
    tt_set_result(l, 0, tt_hlo_splat(b, x->dtype, index->rank, index->dims, 0));
    return;
  }
  tt_value *at = tt_at_least_1d(b, index);
  x = tt_corner(b, tt_at_least_1d(b, x), at->dims, dim);
  at = tt_index_checked(l, at, x->dims[dim], false, TT_INVALID_ARGUMENT,
                        "index is out of bounds for the gathered dimension");
  tt_index_map map;
  tt_map_elements(&map, x, dim, at);
  tt_set_result(l, 0, tt_hlo_reshape(b, tt_index_read(b, x, &map), index->rank, index->dims));
}

void tt_lower_take(tt_lowering *l) {
  tt_value *x = tt_flat(l->b, tt_operand(l, 0)), *index = tt_operand(l, 1);
  if (index->dtype != TT_S64)
    tt_fail(l, TT_INVALID_ARGUMENT, "take(): Expected a long tensor for index, but got %s",
            tt_dtype_text(index->dtype));
  if (tt_value_count(x) == 0 && tt_value_count(index) > 0)
    tt_fail(l, TT_INDEX, "take(): tried to take from an empty tensor");
  if (tt_failed(l)) return;
  index = tt_index_checked(l, index, x->dims[0], true, TT_INDEX,
                           "out of range: tried to access an index beyond the tensor");
  tt_set_result(l, 0, tt_take_rows(l->b, x, 0, index));
}

// --- positions ------------------------------------------------------------------------------------------------------------------

// The coordinates of the first `size` elements that are not zero, then `fill_value`.
void tt_lower_nonzero_static(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0);
  int64_t size = tt_int(l, 1), fill = tt_int_or(l, 2, -1), count = tt_value_count(x);
  if (size < 0) tt_fail(l, TT_INVALID_ARGUMENT, "nonzero_static: 'size' must be an non-negative integer");
  if (tt_failed(l)) return;
  tt_value *at = tt_mask_positions(b, tt_flat(b, tt_hlo_convert(b, x, TT_BOOL)), size, count);
  tt_value *missing = tt_hlo_compare(b, TT_GE, at, tt_hlo_constant_like(b, at, (double)count));
  tt_value *filled = tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, TT_S64, fill), at);
  tt_value *columns[TT_INDEX_MAX_DIMS];
  for (int i = x->rank - 1; i >= 0; --i) {
    tt_value *extent = tt_hlo_constant_like(b, at, (double)(x->dims[i] > 0 ? x->dims[i] : 1));
    tt_value *coordinate = tt_hlo_convert(b, tt_hlo_remainder(b, at, extent), TT_S64);
    columns[i] = tt_hlo_unsqueeze_dim(b, tt_hlo_select(b, missing, filled, coordinate), 1);
    at = tt_hlo_divide(b, at, extent);
  }
  tt_value *none = tt_hlo_splat(b, TT_S64, 2, (int64_t[]){size, 0}, 0);
  tt_set_result(l, 0, x->rank > 0 ? tt_hlo_concatenate(b, x->rank, columns, 1) : none);
}

// Each position i repeats[i] times. Position j of the result belongs to as many i as have their repeats end at or before j:
// ones are put where the repeats end, and summed up.
void tt_lower_repeat_interleave(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *repeats = tt_operand(l, 0);
  if (repeats->rank != 1)
    tt_fail(l, TT_INVALID_ARGUMENT, "repeat_interleave only accept 1D vector as repeat");
  else if (!tt_is_index_dtype(repeats->dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "repeats has to be Long or Int tensor");
  if (tt_failed(l)) return;
  int64_t size = tt_int(l, 1);
  tt_value *zero = tt_hlo_constant_like(b, repeats, 0);
  tt_check_all(l, tt_hlo_compare(b, TT_GE, repeats, zero), TT_INVALID_ARGUMENT, "repeats can not be negative");
  tt_value *ends = tt_running_sum(b, tt_hlo_convert(b, repeats, TT_S64), 0);
  if (repeats->dims[0] > 0) {
    tt_value *total = tt_hlo_slice_dim(b, ends, 0, repeats->dims[0] - 1, repeats->dims[0], 1);
    tt_check_all(l, tt_hlo_compare(b, TT_EQ, total, tt_hlo_constant_like(b, total, (double)size)), TT_INVALID_ARGUMENT,
                 "allocated size does not match required size");
  }
  tt_dtype dtype = tt_index_dtype(repeats->dims[0]);
  tt_value *steps = tt_hlo_splat(b, dtype, 1, &size, 0);
  tt_index_map map;
  tt_map_rows(&map, steps, 0, tt_hlo_convert(b, ends, tt_index_dtype(size)));
  steps = tt_index_write(b, steps, &map, tt_hlo_splat(b, dtype, 1, repeats->dims, 1), TT_COMBINE_ADD);
  tt_set_result(l, 0, tt_hlo_convert(b, tt_running_sum(b, steps, 0), repeats->dtype));
}
