// scatter.c - ops that write by index: index_put, scatter and its kin, index_add, index_copy, index_fill, put, masked_scatter.
#include <string.h>

#include "op/index.h"

// --- index_put --------------------------------------------------------------------------------------------------------------

// The index list x[:, mask]: one mask and nothing else. Then the values are chosen by the mask, no position is needed, and one
// program serves every number of true elements.
static bool only_mask(const tt_lowering *l, int arg, int *out_item) {
  int found = -1;
  for (int i = 0; i < tt_list_count(l, arg); ++i) {
    const tt_tensor *t = tt_list_tensor(l, arg, i);
    if (t && (found >= 0 || !tt_is_mask(t) || t->rank == 0)) return false;
    if (t) found = i;
  }
  *out_item = found;
  return found >= 0;
}

static void fail_values(tt_lowering *l, const tt_value *values, int rank, const int64_t *sizes) {
  tt_arena *arena = tt_builder_arena(l->b);
  tt_fail(l, TT_INVALID_ARGUMENT,
          "shape mismatch: value tensor of shape %s cannot be broadcast to indexing result of shape %s",
          tt_shape_text(arena, values->rank, values->dims), tt_shape_text(arena, rank, sizes));
}

static bool broadcasts_to(const tt_value *x, int rank, const int64_t *sizes) {
  for (int i = 0; i < x->rank; ++i) {
    int at = rank - x->rank + i;
    if (at < 0 || (x->dims[i] != 1 && x->dims[i] != sizes[at])) return false;
  }
  return true;
}

// Values of one mask on x's dims [before, before + mask rank), spread over x's shape. Values that run along with the true
// elements (dim `along` of them, not of size 1) are dealt out in order.
static tt_value *spread_values(tt_lowering *l, const tt_value *x, int before, tt_value *mask, tt_value *values) {
  tt_builder *b = l->b;
  int after = x->rank - before - mask->rank, along = values->rank - after - 1;
  int64_t sizes[TT_INDEX_MAX_DIMS];
  // The shape of x[mask], with the values' own number of true elements.
  for (int i = 0; i < before; ++i) sizes[i] = x->dims[i];
  sizes[before] = along >= 0 ? values->dims[along] : 1;
  for (int i = 0; i < after; ++i) sizes[before + 1 + i] = x->dims[before + mask->rank + i];
  if (!broadcasts_to(values, before + 1 + after, sizes)) {
    fail_values(l, values, before + 1 + after, sizes);
    return values;
  }
  if (along < 0) return tt_hlo_broadcast_to(b, values, x->rank, x->dims);
  bool dealt = values->dims[along] != 1;
  if (dealt) {
    tt_value *ranks = tt_mask_ranks(b, tt_flat(b, mask));
    if (tt_value_count(mask) > 0) {
      tt_value *last = tt_hlo_slice_dim(b, ranks, 0, ranks->dims[0] - 1, ranks->dims[0], 1);
      tt_value *wanted = tt_hlo_constant_like(b, last, (double)values->dims[along] - 1);
      tt_check_all(l, tt_hlo_compare(b, TT_EQ, last, wanted), TT_INVALID_ARGUMENT,
                   "shape mismatch: value tensor cannot be broadcast to indexing result");
    }
    values = tt_take_rows(b, values, along, ranks);
  }
  // Dim `along` becomes the mask's dims.
  for (int i = 0; i < along; ++i) sizes[i] = values->dims[i];
  for (int i = 0; i < mask->rank; ++i) sizes[along + i] = dealt ? mask->dims[i] : 1;
  for (int i = 0; i < after; ++i) sizes[along + mask->rank + i] = values->dims[along + 1 + i];
  values = tt_hlo_reshape(b, values, along + mask->rank + after, sizes);
  return tt_hlo_broadcast_to(b, values, x->rank, x->dims);
}

static tt_value *put_by_mask(tt_lowering *l, tt_value *x, int item, tt_value *values, bool accumulate) {
  tt_builder *b = l->b;
  tt_value *mask = tt_hlo_convert(b, tt_list_operand(l, 1, item), TT_BOOL);
  int map[TT_INDEX_MAX_DIMS];
  for (int i = 0; i < mask->rank; ++i) {
    map[i] = item + i;
    if (map[i] < x->rank && mask->dims[i] == x->dims[map[i]]) continue;
    tt_arena *arena = tt_builder_arena(b);
    tt_fail(l, TT_INDEX,
            "The shape of the mask %s at index %d does not match the shape of the indexed tensor %s at index %d",
            tt_shape_text(arena, mask->rank, mask->dims), i, tt_shape_text(arena, x->rank, x->dims), map[i]);
    return x;
  }
  values = spread_values(l, x, item, mask, values);
  if (tt_failed(l)) return x;
  mask = tt_hlo_broadcast_in_dim(b, mask, x->rank, x->dims, map);
  return tt_hlo_select(b, mask, accumulate ? tt_accumulate(b, x, values) : values, x);
}

// The number of elements that the masks must have true, as the values tell it: -1 when they do not.
static int64_t mask_count_of_values(const tt_lowering *l, const tt_value *x, const tt_value *values) {
  int indexed = 0, last = -1, dim = 0;
  for (int i = 0; i < tt_list_count(l, 1); ++i) {
    const tt_tensor *t = tt_list_tensor(l, 1, i);
    int dims = t && tt_is_mask(t) ? t->rank : 1;
    if (t) {
      indexed += dims;
      last = dim + dims - 1;
    }
    dim += dims;
  }
  // Right for adjacent index tensors; where they are apart the values' dim is another, and the masks' own counts decide.
  int along = values->rank - (x->rank - 1 - last) - 1;
  return indexed > 0 && along >= 0 && along < values->rank && values->dims[along] != 1 ? values->dims[along] : -1;
}

static int mask_tensors(const tt_lowering *l) {
  int count = 0;
  for (int i = 0; i < tt_list_count(l, 1); ++i) {
    const tt_tensor *t = tt_list_tensor(l, 1, i);
    count += t && tt_is_mask(t);
  }
  return count;
}

static tt_value *put_by_index(tt_lowering *l, tt_value *x, tt_value *values, bool accumulate) {
  tt_index_map map;
  int64_t mask_count = mask_count_of_values(l, x, values);
  if (accumulate && mask_count < 0 && mask_tensors(l) > 1)
    tt_fail(l, TT_NOT_IMPLEMENTED, "index_put_ with several masks, accumulate=True and a value of one element");
  if (!tt_map_advanced(l, &map, x, 1, mask_count)) return x;
  if (!broadcasts_to(values, map.rank, map.sizes)) {
    fail_values(l, values, map.rank, map.sizes);
    return x;
  }
  values = tt_hlo_broadcast_to(l->b, values, map.rank, map.sizes);
  return tt_index_write(l->b, x, &map, values, accumulate ? TT_COMBINE_ADD : TT_COMBINE_REPLACE);
}

void tt_lower_index_put(tt_lowering *l) {
  const tt_tensor *given = tt_tensor_arg(l, 2);
  tt_value *x = tt_operand(l, 0);
  bool accumulate = tt_bool_or(l, 3, false);
  int item;
  bool by_mask = only_mask(l, 1, &item);
  // torch fills by a mask with a CPU number of any dtype (canDispatchToMaskedFill).
  bool any_dtype = by_mask && !accumulate && given && given->cpu_scalar;
  if (given && given->dtype != x->dtype && !any_dtype) {
    tt_fail(
        l, TT_INVALID_ARGUMENT,
        "Index put requires the source and destination dtypes match, got %s for the destination and %s for the source.",
        tt_dtype_text(x->dtype), tt_dtype_text(given->dtype));
    return;
  }
  tt_value *values = tt_operand_as(l, 2, x->dtype);
  tt_set_result(l, 0, by_mask ? put_by_mask(l, x, item, values, accumulate) : put_by_index(l, x, values, accumulate));
  tt_set_order_like(l, 0, 0);
}

// --- reductions into a target -------------------------------------------------------------------------------------------------

// How many updates reach each element of x, S32, of x's shape. Updates of rows are counted once per row.
static tt_value *count_updates(tt_builder *b, tt_value *x, const tt_index_map *map, bool rows) {
  tt_value *index = map->index;
  tt_index_map own = *map;
  tt_value *counts = tt_hlo_splat(b, TT_S32, x->rank, x->dims, 0);
  if (rows) {
    counts = tt_hlo_splat(b, TT_S32, 1, &x->dims[map->dims[0]], 0);
    tt_map_rows(&own, counts, 0, index);
  }
  counts = tt_index_write(b, counts, &own, tt_hlo_splat(b, TT_S32, index->rank, index->dims, 1), TT_COMBINE_ADD);
  return rows ? tt_hlo_broadcast_in_dim(b, counts, x->rank, x->dims, map->dims) : counts;
}

// sum / count as torch divides: integers round down.
static tt_value *mean_of(tt_builder *b, tt_value *sum, tt_value *count) {
  if (sum->dtype == TT_BOOL) return sum;
  count = tt_hlo_convert(b, count, sum->dtype);
  tt_value *quotient = tt_hlo_divide(b, sum, count);
  if (!tt_dtype_is_integral(sum->dtype) || !tt_dtype_is_signed(sum->dtype)) return quotient;
  tt_value *zero = tt_hlo_constant_like(b, sum, 0), *one = tt_hlo_constant_like(b, sum, 1);
  tt_value *below = tt_hlo_compare(b, TT_LT, tt_hlo_remainder(b, sum, count), zero);
  return tt_hlo_select(b, below, tt_hlo_subtract(b, quotient, one), quotient);
}

static tt_value *scalar_like(tt_builder *b, tt_value *scalar, const tt_value *x) {
  return tt_hlo_broadcast_like(b, tt_hlo_convert(b, scalar, x->dtype), x);
}

// What an element holds before its updates when self is not included.
static tt_value *neutral(tt_builder *b, const tt_value *x, tt_combine combine) {
  switch (combine) {
  case TT_COMBINE_MULTIPLY: return tt_hlo_constant_like(b, x, 1);
  case TT_COMBINE_MAX: return scalar_like(b, tt_hlo_min_value(b, x->dtype), x);
  case TT_COMBINE_MIN: return scalar_like(b, tt_hlo_max_value(b, x->dtype), x);
  default: return tt_hlo_constant_like(b, x, 0);
  }
}

static tt_combine combine_of(const char *reduce) {
  if (strcmp(reduce, "prod") == 0 || strcmp(reduce, "multiply") == 0) return TT_COMBINE_MULTIPLY;
  if (strcmp(reduce, "amax") == 0) return TT_COMBINE_MAX;
  if (strcmp(reduce, "amin") == 0) return TT_COMBINE_MIN;
  return TT_COMBINE_ADD; // sum, mean, add
}

// scatter_reduce and index_reduce: `rows` tells the latter.
static tt_value *reduce_into(tt_builder *b, tt_value *x, const tt_index_map *map, tt_value *updates, const char *reduce,
                             bool include_self, bool rows) {
  tt_combine combine = combine_of(reduce);
  bool mean = strcmp(reduce, "mean") == 0;
  tt_dtype dtype = x->dtype;
  tt_value *before = x, *counts = mean || !include_self ? count_updates(b, x, map, rows) : NULL;
  if (combine == TT_COMBINE_ADD || combine == TT_COMBINE_MULTIPLY) { // once for sum and division
    x = tt_hlo_convert(b, x, tt_compute_dtype(dtype));
    updates = tt_hlo_convert(b, updates, x->dtype);
  }
  if (!include_self) x = neutral(b, x, combine);
  x = tt_index_write(b, x, map, updates, combine);
  if (mean) {
    tt_value *one = tt_hlo_constant_like(b, counts, 1);
    x = mean_of(b, x, include_self ? tt_hlo_add(b, counts, one) : tt_hlo_maximum(b, counts, one));
  }
  x = tt_hlo_convert(b, x, dtype);
  if (include_self) return x;
  tt_value *reached = tt_hlo_compare(b, TT_GT, counts, tt_hlo_constant_like(b, counts, 0));
  return tt_hlo_select(b, reached, x, before);
}

// --- scatter ------------------------------------------------------------------------------------------------------------------

// A scatter of one element per index: where it writes, and what of self and src takes part.
typedef struct element_scatter {
  tt_value *x, *corner; // self, at least 1-d, and the part of it that the index spans
  int rank;             // of self as it came
  tt_index_map map;
} element_scatter;

// False when there is nothing to write: then self is the result.
static bool begin_scatter(tt_lowering *l, element_scatter *s) {
  tt_value *x = tt_operand(l, 0), *index = tt_operand(l, 2);
  int dim = tt_wrap_dim(l, tt_int(l, 1), x->rank);
  s->rank = x->rank;
  s->x = tt_at_least_1d(l->b, x);
  if (tt_value_count(index) == 0) {
    tt_set_result(l, 0, x);
    return false;
  }
  index = tt_at_least_1d(l->b, index);
  s->corner = tt_corner(l->b, s->x, index->dims, dim);
  index = tt_index_checked(l, index, s->x->dims[dim], false, TT_INVALID_ARGUMENT,
                           "index is out of bounds for the scattered dimension");
  tt_map_elements(&s->map, s->corner, dim, index);
  return true;
}

static void end_scatter(tt_lowering *l, const element_scatter *s, tt_value *corner) {
  tt_value *x = tt_put_corner(l->b, s->x, corner);
  tt_set_result(l, 0, tt_hlo_reshape(l->b, x, s->rank, x->dims));
}

// The part of argument 3 that the index spans; a number for every index.
static tt_value *scatter_source(tt_lowering *l, const element_scatter *s) {
  if (!tt_tensor_arg(l, 3))
    return tt_hlo_broadcast_to(l->b, tt_fitting_operand_as(l, 3, s->x->dtype), s->map.rank, s->map.sizes);
  return tt_corner(l->b, tt_at_least_1d(l->b, tt_operand_as(l, 3, s->x->dtype)), s->map.sizes, -1);
}

static void scatter_with(tt_lowering *l, tt_combine combine) {
  element_scatter s;
  if (begin_scatter(l, &s)) end_scatter(l, &s, tt_index_write(l->b, s.corner, &s.map, scatter_source(l, &s), combine));
}

void tt_lower_scatter(tt_lowering *l) { scatter_with(l, TT_COMBINE_REPLACE); }
void tt_lower_scatter_add(tt_lowering *l) { scatter_with(l, TT_COMBINE_ADD); }
void tt_lower_scatter_with_reduce(tt_lowering *l) { scatter_with(l, combine_of(tt_text(l, 4))); }

void tt_lower_scatter_reduce(tt_lowering *l) {
  element_scatter s;
  if (!begin_scatter(l, &s)) return;
  bool include_self = tt_bool_or(l, 5, true);
  end_scatter(l, &s, reduce_into(l->b, s.corner, &s.map, scatter_source(l, &s), tt_text(l, 4), include_self, false));
}

// --- rows along one dim ---------------------------------------------------------------------------------------------------------

typedef struct row_scatter {
  tt_value *x; // self, at least 1-d
  int rank;    // of self as it came
  tt_index_map map;
} row_scatter;

static void begin_rows(tt_lowering *l, row_scatter *s, bool wrap, tt_code code, const char *message) {
  tt_value *x = tt_operand(l, 0);
  int dim = tt_wrap_dim(l, tt_int(l, 1), x->rank);
  s->rank = x->rank;
  s->x = tt_at_least_1d(l->b, x);
  tt_value *index = tt_index_checked(l, tt_flat(l->b, tt_operand(l, 2)), s->x->dims[dim], wrap, code, message);
  tt_map_rows(&s->map, s->x, dim, index);
}

static void end_rows(tt_lowering *l, const row_scatter *s, tt_value *x) {
  tt_set_result(l, 0, tt_hlo_reshape(l->b, x, s->rank, x->dims));
}

// Argument 3 in the map's shape: a 0-d source is one row of one element, a number or 0-d value fills every row.
static tt_value *row_source(tt_lowering *l, const row_scatter *s) {
  tt_value *source = tt_fitting_operand_as(l, 3, s->x->dtype);
  return tt_hlo_broadcast_to(l->b, source, s->map.rank, s->map.sizes);
}

void tt_lower_index_add(tt_lowering *l) {
  row_scatter s;
  begin_rows(l, &s, false, TT_INDEX, "index out of range in self");
  tt_builder *b = l->b;
  tt_value *source = row_source(l, &s), *x = s.x;
  if (tt_dtype_is_narrow_float(x->dtype)) { // alpha * source is not rounded before it is added
    x = tt_hlo_convert(b, x, TT_F32);
    source = tt_hlo_convert(b, source, TT_F32);
  }
  if (!tt_number_is_one(l, 4)) {
    tt_value *alpha = tt_hlo_broadcast_like(b, tt_fitting_operand_as(l, 4, x->dtype), source);
    source = x->dtype == TT_BOOL ? tt_hlo_and(b, source, alpha) : tt_hlo_multiply(b, source, alpha);
  }
  x = tt_index_write(b, x, &s.map, source, TT_COMBINE_ADD);
  end_rows(l, &s, tt_hlo_convert(b, x, s.x->dtype));
}

void tt_lower_index_copy(tt_lowering *l) {
  row_scatter s;
  begin_rows(l, &s, false, TT_INDEX, "index_copy_(): index is out of bounds for its dimension");
  end_rows(l, &s, tt_index_write(l->b, s.x, &s.map, row_source(l, &s), TT_COMBINE_REPLACE));
}

void tt_lower_index_reduce(tt_lowering *l) {
  row_scatter s;
  begin_rows(l, &s, false, TT_INDEX, "index out of range in self");
  end_rows(l, &s, reduce_into(l->b, s.x, &s.map, row_source(l, &s), tt_text(l, 4), tt_bool_or(l, 5, true), true));
}

void tt_lower_index_fill(tt_lowering *l) {
  const tt_tensor *index = tt_tensor_arg(l, 2), *value = tt_tensor_arg(l, 3), *self = tt_tensor_arg(l, 0);
  bool complex = value ? tt_dtype_is_complex(value->dtype) : tt_number_dtype(l, 3) == TT_C128;
  if (value && value->rank != 0)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "index_fill_ only supports a 0-dimensional value tensor, but got tensor with %d dimension(s).",
            value->rank);
  if (index && index->dtype != TT_S64) tt_fail(l, TT_INDEX, "index_fill_(): Expected dtype int64 for index.");
  if (complex && self && !tt_dtype_is_complex(self->dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "index_fill_(): Converting complex Scalar to non-complex type is not supported");
  if (index && index->rank > 1) tt_fail(l, TT_INVALID_ARGUMENT, "Index has to be a vector/scalar");
  if (tt_failed(l)) return;
  row_scatter s;
  begin_rows(l, &s, true, TT_INDEX, "index is out of bounds for its dimension");
  end_rows(l, &s, tt_index_write(l->b, s.x, &s.map, row_source(l, &s), TT_COMBINE_REPLACE));
  tt_set_order_like(l, 0, 0);
}

// --- by position in the flat tensor ------------------------------------------------------------------------------------------------

void tt_lower_put(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *self = tt_operand(l, 0), *index = tt_operand(l, 1), *source = tt_operand(l, 2);
  if (index->dtype != TT_S64)
    tt_fail(l, TT_INVALID_ARGUMENT, "put_(): Expected a long tensor for index, but got %s",
            tt_dtype_text(index->dtype));
  if (self->dtype != source->dtype)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "put_(): self and source expected to have the same dtype, but got self.dtype = %s and source.dtype = %s",
            tt_dtype_text(self->dtype), tt_dtype_text(source->dtype));
  if (tt_value_count(source) != tt_value_count(index))
    tt_fail(l, TT_INDEX,
            "put_(): Expected source and index to have the same number of elements, but got source.numel() = %lld, "
            "index.numel() = %lld",
            (long long)tt_value_count(source), (long long)tt_value_count(index));
  if (tt_value_count(self) == 0 && tt_value_count(index) > 0)
    tt_fail(l, TT_INDEX, "put_(): Tried to put elements into an empty tensor");
  if (tt_failed(l)) return;
  tt_value *x = tt_flat(b, self);
  index = tt_index_checked(l, tt_flat(b, index), x->dims[0], true, TT_INDEX,
                           "out of range: tried to access an index beyond the tensor");
  tt_index_map map;
  tt_map_rows(&map, x, 0, index);
  x = tt_index_write(b, x, &map, tt_flat(b, source), tt_bool_or(l, 3, false) ? TT_COMBINE_ADD : TT_COMBINE_REPLACE);
  tt_set_result(l, 0, tt_hlo_reshape(b, x, self->rank, self->dims));
  tt_set_order_like(l, 0, 0);
}

// The source's elements are dealt out to the true elements of the mask in order: each finds its own by its rank.
void tt_lower_masked_scatter(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0), *mask = tt_operand(l, 1), *source = tt_operand(l, 2);
  if (x->dtype != source->dtype)
    tt_fail(l, TT_INVALID_ARGUMENT, "masked_scatter: expected self and source to have same dtypes but got%s and %s",
            tt_dtype_text(x->dtype), tt_dtype_text(source->dtype));
  if (mask->dtype != TT_BOOL)
    tt_fail(l, TT_INVALID_ARGUMENT, "masked_scatter_ only supports boolean masks, but got mask with dtype %s",
            tt_dtype_text(mask->dtype));
  if (tt_failed(l)) return;
  tt_hlo_broadcast_both(b, &x, &mask);
  if (tt_value_count(mask) > 0) {
    tt_value *ranks = tt_mask_ranks(b, tt_flat(b, mask));
    tt_value *last = tt_hlo_slice_dim(b, ranks, 0, ranks->dims[0] - 1, ranks->dims[0], 1);
    tt_check_all(l, tt_hlo_compare(b, TT_LT, last, tt_hlo_constant_like(b, last, (double)tt_value_count(source))),
                 TT_INVALID_ARGUMENT, "Number of elements of source < number of ones in mask");
    tt_value *dealt = tt_take_rows(b, tt_flat(b, source), 0, ranks);
    x = tt_hlo_select(b, mask, tt_hlo_reshape(b, dealt, x->rank, x->dims), x);
  }
  tt_set_result(l, 0, x);
}

// The gradient of the source: the masked elements of the gradient in order, then zeros.
void tt_lower_masked_scatter_backward(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *grad = tt_operand(l, 0), *mask = tt_operand_as(l, 1, TT_BOOL);
  int rank;
  const int64_t *sizes = tt_ints(l, 2, &rank);
  int64_t count = 1;
  for (int i = 0; i < rank; ++i) count *= sizes[i];
  tt_hlo_broadcast_both(b, &grad, &mask);
  tt_value *at = tt_mask_positions(b, tt_flat(b, mask), count, tt_value_count(mask));
  tt_value *found = tt_hlo_compare(b, TT_LT, at, tt_hlo_constant_like(b, at, (double)tt_value_count(mask)));
  tt_value *values = tt_take_rows(b, tt_flat(b, grad), 0, at);
  values = tt_hlo_select(b, found, values, tt_hlo_constant_like(b, values, 0));
  tt_set_result(l, 0, tt_hlo_reshape(b, values, rank, sizes));
}
