// index_map.c - how index tensors address an operand; see index.h.
#include "op/index.h"

#include <string.h>

// --- index values ---------------------------------------------------------------------------------------------------------

tt_dtype tt_index_dtype(int64_t size) { return size < INT32_MAX ? TT_S32 : TT_S64; }

tt_value *tt_index_checked(tt_lowering *l, tt_value *index, int64_t size, bool wrap, tt_code code,
                           const char *message) {
  tt_builder *b = l->b;
  if (tt_value_count(index) > 0) {
    // Compared in its own dtype: 2^32 + 1 must not become 1 first. A size that the dtype cannot hold excludes nothing.
    bool narrow = tt_dtype_bits(index->dtype) < 64 && size >= INT32_MAX;
    tt_value *high = narrow ? tt_hlo_max_value(b, index->dtype) : tt_hlo_constant_i64(b, index->dtype, size);
    tt_value *low = tt_hlo_constant_like(b, index, wrap && !narrow ? -(double)size : 0);
    high = tt_hlo_broadcast_like(b, high, index);
    tt_value *ok = tt_hlo_and(b, tt_hlo_compare(b, TT_GE, index, low), tt_hlo_compare(b, TT_LT, index, high));
    tt_check_all(l, ok, code, message);
    if (wrap) {
      tt_value *negative = tt_hlo_compare(b, TT_LT, index, tt_hlo_constant_like(b, index, 0));
      index = tt_hlo_select(b, negative, tt_hlo_add(b, index, high), index);
    }
  }
  return tt_hlo_convert(b, index, tt_index_dtype(size));
}

bool tt_check_index_dtype(tt_lowering *l, int arg, const char *op) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  if (t && tt_is_index_dtype(t->dtype)) return true;
  tt_fail(l, TT_INVALID_ARGUMENT,
          "Expected tensor for argument #%d 'indices' to have one of the following scalar types: Long, Int; but got "
          "torch.%sTensor instead (while checking arguments for %s)",
          arg, t ? tt_dtype_text(t->dtype) : "Undefined", op);
  return false;
}

tt_value *tt_at_least_1d(tt_builder *b, tt_value *x) { return x->rank > 0 ? x : tt_hlo_unsqueeze_dim(b, x, 0); }

void tt_dim_first(int rank, int dim, int *order, int *back) {
  for (int i = 0; i < rank; ++i) {
    order[i] = i == 0 ? dim : i <= dim ? i - 1 : i;
    back[order[i]] = i;
  }
}

tt_value *tt_flat(tt_builder *b, tt_value *x) {
  int64_t count = tt_value_count(x);
  return tt_hlo_reshape(b, x, 1, &count);
}

// --- maps -----------------------------------------------------------------------------------------------------------------

// The shape of what is read: the batch dims at `position`, around them those operand dims that are neither addressed nor
// paired.
static void complete(tt_index_map *map, const tt_value *x, int position) {
  bool taken[TT_INDEX_MAX_DIMS] = {false};
  for (int i = 0; i < x->rank; ++i) map->slice[i] = x->dims[i];
  for (int i = 0; i < map->dim_count; ++i) taken[map->dims[i]] = true;
  for (int i = 0; i < map->pair_count; ++i) taken[map->pairs[i]] = true;
  map->rank = x->rank - map->dim_count - map->pair_count + map->batch_rank;
  map->window_count = 0;
  int next = 0;
  for (int i = 0; i < map->rank; ++i) {
    if (i >= position && i < position + map->batch_rank) {
      map->sizes[i] = map->index->dims[i - position];
      continue;
    }
    while (next < x->rank && taken[next]) ++next;
    map->window[map->window_count++] = i;
    map->sizes[i] = x->dims[next++];
  }
  for (int i = 0; i < x->rank; ++i)
    if (taken[i]) map->slice[i] = 1;
}

void tt_map_rows(tt_index_map *map, const tt_value *x, int dim, tt_value *index) {
  *map = (tt_index_map){.index = index, .batch_rank = index->rank, .dim_count = 1, .dims = {dim}};
  complete(map, x, dim);
}

void tt_map_elements(tt_index_map *map, const tt_value *x, int dim, tt_value *index) {
  *map = (tt_index_map){.index = index, .batch_rank = index->rank, .dim_count = 1, .dims = {dim}};
  for (int i = 0; i < x->rank; ++i)
    if (i != dim) map->pairs[map->pair_count++] = i;
  complete(map, x, 0);
}

void tt_map_points(tt_builder *b, tt_index_map *map, const tt_value *x, int count, const int *dims,
                   tt_value *const *indices, int position) {
  int batch_rank = indices[0]->rank;
  tt_value *vectors[TT_INDEX_MAX_DIMS] = {indices[0]};
  for (int i = 0; count > 1 && i < count; ++i) vectors[i] = tt_hlo_unsqueeze_dim(b, indices[i], batch_rank);
  tt_value *index = count > 1 ? tt_hlo_concatenate(b, count, vectors, batch_rank) : indices[0];
  *map = (tt_index_map){.index = index, .batch_rank = batch_rank, .dim_count = count};
  memcpy(map->dims, dims, (size_t)count * sizeof *dims);
  complete(map, x, position);
}

tt_value *tt_index_read(tt_builder *b, tt_value *x, const tt_index_map *map) {
  int64_t count = 1;
  for (int i = 0; i < map->rank; ++i) count *= map->sizes[i];
  // XLA has no slice of size 1 of nothing; that such an index is out of range has been said by its check.
  if (count == 0 || tt_value_count(x) == 0) return tt_hlo_splat(b, x->dtype, map->rank, map->sizes, 0);
  // Batch dims as one, unless they are paired: XLA CPU takes half as long to compile it, being one loop less.
  int batch_rank = map->batch_rank, window[TT_INDEX_MAX_DIMS];
  tt_value *index = map->index;
  if (batch_rank > 1 && map->pair_count == 0) {
    int64_t batch = 1;
    for (int i = 0; i < batch_rank; ++i) batch *= index->dims[i];
    index = tt_hlo_reshape(b, index, index->rank - batch_rank + 1, (int64_t[]){batch, map->dim_count});
    batch_rank = 1;
  }
  for (int i = 0; i < map->window_count; ++i) {
    bool before_batch = map->window[i] == i;
    window[i] = before_batch ? i : i + batch_rank;
  }
  tt_gather numbers = {
      .offset_count = map->window_count,
      .offset_dims = window,
      .collapsed_count = map->dim_count,
      .collapsed_dims = map->dims,
      .batching_count = map->pair_count,
      .operand_batching_dims = map->pairs,
      .index_batching_dims = map->pairs,
      .map_count = map->dim_count,
      .start_index_map = map->dims,
      .index_vector_dim = batch_rank,
      .slice_sizes = map->slice,
  };
  return tt_hlo_reshape(b, tt_hlo_gather(b, x, index, &numbers), map->rank, map->sizes);
}

// The same elements by one index into flat x each. What is out of range becomes the index behind the last element.
static tt_value *flat_index(tt_builder *b, const tt_value *x, const tt_index_map *map) {
  tt_value *index = map->index, *flat = NULL;
  tt_dtype dtype = tt_index_dtype(tt_value_count(x));
  index = tt_hlo_convert(b, index, dtype);
  int64_t stride = 1;
  for (int i = x->rank - 1; i >= 0; --i) {
    tt_value *at = i == map->dims[0] ? index : tt_hlo_iota(b, dtype, index->rank, index->dims, i);
    tt_value *step = tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, dtype, stride), at);
    at = tt_hlo_multiply(b, at, step);
    flat = flat ? tt_hlo_add(b, flat, at) : at;
    stride *= x->dims[i];
  }
  tt_value *size = tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, dtype, x->dims[map->dims[0]]), index);
  tt_value *inside = tt_hlo_and(b, tt_hlo_compare(b, TT_GE, index, tt_hlo_constant_like(b, index, 0)),
                                tt_hlo_compare(b, TT_LT, index, size));
  tt_value *behind = tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, dtype, stride), flat);
  return tt_flat(b, tt_hlo_select(b, inside, flat, behind));
}

enum { FLAT_SCATTER_ELEMENTS = 1 << 18 };

static bool wants_flat(tt_builder *b, const tt_value *x, const tt_index_map *map, const tt_value *updates) {
  return tt_builder_target(b)->scatter_flat && x->rank > 1 && map->dim_count == 1 && map->pair_count == x->rank - 1 &&
         tt_value_count(updates) >= FLAT_SCATTER_ELEMENTS;
}

static tt_combine combine_of_bool(tt_combine combine) {
  if (combine == TT_COMBINE_ADD) return TT_COMBINE_MAX;
  return combine == TT_COMBINE_MULTIPLY ? TT_COMBINE_MIN : combine;
}

tt_value *tt_index_write(tt_builder *b, tt_value *x, const tt_index_map *map, tt_value *updates, tt_combine combine) {
  if (tt_value_count(updates) == 0 || tt_value_count(x) == 0) return x;
  if (wants_flat(b, x, map, updates)) {
    tt_index_map flat;
    tt_map_rows(&flat, tt_flat(b, x), 0, flat_index(b, x, map));
    tt_value *written = tt_index_write(b, tt_flat(b, x), &flat, tt_flat(b, updates), combine);
    return tt_hlo_reshape(b, written, x->rank, x->dims);
  }
  tt_dtype dtype = x->dtype;
  bool widen = (combine == TT_COMBINE_ADD || combine == TT_COMBINE_MULTIPLY) && tt_dtype_is_narrow_float(dtype);
  if (dtype == TT_BOOL) combine = combine_of_bool(combine);
  tt_scatter numbers = {
      .window_count = map->window_count,
      .update_window_dims = map->window,
      .inserted_count = map->dim_count,
      .inserted_window_dims = map->dims,
      .batching_count = map->pair_count,
      .input_batching_dims = map->pairs,
      .index_batching_dims = map->pairs,
      .map_count = map->dim_count,
      .scatter_dims_to_operand_dims = map->dims,
      .index_vector_dim = map->batch_rank,
  };
  if (!widen) return tt_hlo_scatter(b, x, map->index, updates, &numbers, combine);
  x = tt_hlo_scatter(b, tt_hlo_convert(b, x, TT_F32), map->index, tt_hlo_convert(b, updates, TT_F32), &numbers,
                     combine);
  return tt_hlo_convert(b, x, dtype);
}

// One row is a slice, of which compilers know more than of a gather.
static tt_value *take_row(tt_builder *b, tt_value *x, int dim, tt_value *index) {
  tt_value *starts[TT_INDEX_MAX_DIMS], *zero = tt_hlo_constant(b, index->dtype, 0);
  int64_t size[TT_INDEX_MAX_DIMS], dims[2 * TT_INDEX_MAX_DIMS];
  int rank = 0;
  for (int i = 0; i < x->rank; ++i) {
    starts[i] = i == dim ? tt_hlo_reshape(b, index, 0, NULL) : zero;
    size[i] = i == dim ? 1 : x->dims[i];
    if (i != dim) dims[rank++] = x->dims[i];
    for (int k = 0; i == dim && k < index->rank; ++k) dims[rank++] = 1;
  }
  return tt_hlo_reshape(b, tt_hlo_dynamic_slice(b, x, starts, size), rank, dims);
}

tt_value *tt_take_rows(tt_builder *b, tt_value *x, int dim, tt_value *index) {
  bool fits = x->rank <= TT_INDEX_MAX_DIMS && index->rank <= TT_INDEX_MAX_DIMS && dim < x->rank;
  if (fits && tt_value_count(index) == 1 && x->dims[dim] > 0) return take_row(b, x, dim, index);
  tt_index_map map;
  tt_map_rows(&map, x, dim, index);
  return tt_index_read(b, x, &map);
}

// --- corners --------------------------------------------------------------------------------------------------------------

tt_value *tt_corner(tt_builder *b, tt_value *x, const int64_t *sizes, int keep) {
  for (int i = 0; i < x->rank; ++i)
    if (i != keep && sizes[i] < x->dims[i]) x = tt_hlo_slice_dim(b, x, i, 0, sizes[i], 1);
  return x;
}

tt_value *tt_put_corner(tt_builder *b, tt_value *x, tt_value *corner) {
  if (tt_value_same_shape(x, corner)) return corner;
  tt_value *starts[TT_INDEX_MAX_DIMS];
  tt_value *zero = tt_hlo_constant(b, TT_S32, 0);
  for (int i = 0; i < x->rank; ++i) starts[i] = zero;
  return tt_hlo_dynamic_update_slice(b, x, corner, starts);
}

// --- masks ----------------------------------------------------------------------------------------------------------------

tt_value *tt_running_sum(tt_builder *b, tt_value *x, int dim) {
  if (tt_value_count(x) == 0) return x;
  int64_t size[TT_INDEX_MAX_DIMS], low[TT_INDEX_MAX_DIMS];
  for (int i = 0; i < x->rank; ++i) {
    size[i] = i == dim ? x->dims[i] : 1;
    low[i] = size[i] - 1;
  }
  return tt_hlo_reduce_window(b, x, TT_REDUCE_ADD, &(tt_window){.size = size, .pad_low = low});
}

tt_value *tt_mask_ranks(tt_builder *b, tt_value *mask) {
  tt_value *ones = tt_hlo_convert(b, mask, tt_index_dtype(tt_value_count(mask)));
  tt_value *counts = tt_running_sum(b, ones, 0);
  return tt_hlo_subtract(b, counts, tt_hlo_constant_like(b, counts, 1));
}

tt_value *tt_mask_positions(tt_builder *b, tt_value *mask, int64_t count, int64_t fill) {
  tt_value *ranks = tt_mask_ranks(b, mask);
  tt_value *positions = tt_hlo_splat(b, ranks->dtype, 1, &count, (double)fill);
  if (tt_value_count(mask) == 0 || count == 0) return positions;
  // Elements that are not true go nowhere: XLA drops what is out of range.
  tt_value *nowhere = tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, ranks->dtype, count), ranks);
  tt_index_map map;
  tt_map_rows(&map, positions, 0, tt_hlo_select(b, mask, ranks, nowhere));
  return tt_index_write(b, positions, &map, tt_hlo_iota(b, ranks->dtype, 1, mask->dims, 0), TT_COMBINE_REPLACE);
}
