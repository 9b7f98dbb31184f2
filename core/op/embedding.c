// embedding.c - embedding, embedding_bag and their gradients: rows of a table, read by index and added up by index.
#include "op/index.h"

// --- embedding --------------------------------------------------------------------------------------------------------------

void tt_lower_embedding(tt_lowering *l) {
  tt_value *weight = tt_operand(l, 0), *indices = tt_operand(l, 1);
  if (weight->rank != 2) tt_fail(l, TT_INVALID_ARGUMENT, "'weight' must be 2-D");
  if (tt_failed(l) || !tt_check_index_dtype(l, 1, "embedding")) return;
  indices = tt_index_checked(l, indices, weight->dims[0], false, TT_INDEX, "index out of range in self");
  tt_set_result(l, 0, tt_take_rows(l->b, weight, 0, indices));
}

// Where a row's index is `padding`, it becomes `count`: out of range, so that its update is dropped.
static tt_value *drop_padding(tt_builder *b, tt_value *indices, int64_t padding, int64_t count) {
  if (padding < 0) return indices;
  tt_value *pads = tt_hlo_compare(b, TT_EQ, indices, tt_hlo_constant_like(b, indices, (double)padding));
  return tt_hlo_select(b, pads, tt_hlo_constant_like(b, indices, (double)count), indices);
}

// rows / how often each row's index occurs in `indices`.
static tt_value *divide_by_frequency(tt_builder *b, tt_value *rows, tt_value *indices, int64_t count) {
  tt_value *counts = tt_hlo_splat(b, TT_S32, 1, &count, 0);
  tt_index_map map;
  tt_map_rows(&map, counts, 0, indices);
  counts = tt_index_write(b, counts, &map, tt_hlo_splat(b, TT_S32, 1, indices->dims, 1), TT_COMBINE_ADD);
  tt_value *own = tt_hlo_convert(b, tt_index_read(b, counts, &map), rows->dtype);
  return tt_hlo_divide(b, rows, tt_hlo_broadcast_in_dim(b, own, 2, rows->dims, (int[]){0}));
}

// Adds rows into a table of zeros.
static tt_value *table_of_rows(tt_builder *b, tt_value *rows, tt_value *indices, int64_t count) {
  tt_value *table = tt_hlo_splat(b, rows->dtype, 2, (int64_t[]){count, rows->dims[1]}, 0);
  tt_index_map map;
  tt_map_rows(&map, table, 0, indices);
  return tt_index_write(b, table, &map, rows, TT_COMBINE_ADD);
}

void tt_lower_embedding_dense_backward(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *grad = tt_operand(l, 0), *given = tt_operand(l, 1);
  if (!tt_check_index_dtype(l, 1, "embedding_backward")) return;
  int64_t num_weights = tt_int(l, 2), padding = tt_int_or(l, 3, -1), count = tt_value_count(given);
  int64_t width = grad->rank > 0 ? grad->dims[grad->rank - 1] : 1;
  if (tt_value_count(grad) != count * width) {
    tt_fail(l, TT_INVALID_ARGUMENT, "shape '[%lld, %lld]' is invalid for input of size %lld", (long long)count,
            (long long)width, (long long)tt_value_count(grad));
    return;
  }
  tt_value *rows =
      tt_hlo_convert(b, tt_hlo_reshape(b, grad, 2, (int64_t[]){count, width}), tt_compute_dtype(grad->dtype));
  tt_value *indices = tt_hlo_convert(b, tt_flat(b, given), tt_index_dtype(num_weights));
  if (tt_bool_or(l, 4, false) && count > 0) rows = divide_by_frequency(b, rows, indices, num_weights);
  tt_value *table = table_of_rows(b, rows, drop_padding(b, indices, padding, num_weights), num_weights);
  tt_set_result(l, 0, tt_hlo_convert(b, table, grad->dtype));
}

// --- embedding_bag ------------------------------------------------------------------------------------------------------------

typedef enum bag_mode { BAG_SUM, BAG_MEAN, BAG_MAX } bag_mode;

typedef struct bags {
  tt_value *indices; // [n], checked
  tt_value *owner;   // [n]: the bag of each index
  tt_value *target;  // [n]: the same, out of range for padding
  tt_value *sizes;   // [bags] without padding
  int64_t count;     // number of bags
} bags;

static void check_bag_arguments(tt_lowering *l) {
  const tt_tensor *weight = tt_tensor_arg(l, 0), *indices = tt_tensor_arg(l, 1), *offsets = tt_tensor_arg(l, 2);
  const tt_tensor *weights = tt_tensor_arg(l, 6);
  if (!weight || !indices || !offsets || !tt_check_index_dtype(l, 1, "embedding_bag")) return;
  if (!tt_is_index_dtype(offsets->dtype))
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Expected tensor for argument #1 'offsets' to have one of the following scalar types: Long, "
            "Int; but got torch.%sTensor instead (while checking arguments for embedding_bag)",
            tt_dtype_text(offsets->dtype));
  if (weight->rank != 2) tt_fail(l, TT_INVALID_ARGUMENT, "'weight' must be 2-D");
  if (offsets->rank != 1)
    tt_fail(l, TT_INVALID_ARGUMENT, "offsets has to be a 1D Tensor, but got Tensor of dimension %d", offsets->rank);
  else if (tt_bool_or(l, 7, false) && offsets->sizes[0] < 1)
    tt_fail(l, TT_INVALID_ARGUMENT, "include_last_offset: number of offset should be at least 1");
  if (!weights) return;
  if (tt_int(l, 4) != BAG_SUM)
    tt_fail(l, TT_INVALID_ARGUMENT, "embedding_bag: per_sample_weights only supported with mode='sum'");
  if (weights->dtype != weight->dtype)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Expected tensor for argument #1 'weight' to have the same type as tensor for argument #1 "
            "'per_sample_weights'; but type torch.%sTensor does not equal torch.%sTensor (while checking "
            "arguments for embedding_bag)",
            tt_dtype_text(weight->dtype), tt_dtype_text(weights->dtype));
  if (weights->rank != 1 || indices->rank != 1 || weights->sizes[0] != indices->sizes[0])
    tt_fail(l, TT_INVALID_ARGUMENT, "expected per_sample_weights to have the shape of indices");
}

// The bag of each of `n` indices: as many bags begin at or before it, less one.
static tt_value *bag_of_each(tt_lowering *l, tt_value *offsets, int64_t n) {
  tt_builder *b = l->b;
  if (offsets->dims[0] > 0) {
    tt_value *first = tt_hlo_slice_dim(b, offsets, 0, 0, 1, 1);
    tt_check_all(l, tt_hlo_compare(b, TT_EQ, first, tt_hlo_constant_like(b, first, 0)), TT_INVALID_ARGUMENT,
                 "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0");
    tt_check_all(l, tt_hlo_compare(b, TT_LE, offsets, tt_hlo_constant_like(b, offsets, (double)n)), TT_INVALID_ARGUMENT,
                 "offsets[-1] can not be greater than input's length");
  }
  tt_value *starts = tt_hlo_splat(b, TT_S32, 1, &n, 0);
  tt_index_map map;
  tt_map_rows(&map, starts, 0, tt_hlo_convert(b, offsets, tt_index_dtype(n)));
  starts = tt_index_write(b, starts, &map, tt_hlo_splat(b, TT_S32, 1, offsets->dims, 1), TT_COMBINE_ADD);
  tt_value *begun = tt_running_sum(b, starts, 0);
  return tt_hlo_subtract(b, begun, tt_hlo_constant_like(b, begun, 1));
}

static void read_bags(tt_lowering *l, bags *g, const tt_value *weight, int64_t padding) {
  tt_builder *b = l->b;
  tt_value *offsets = tt_operand(l, 2), *indices = tt_flat(b, tt_operand(l, 1));
  int64_t n = indices->dims[0];
  g->count = offsets->dims[0] - tt_bool_or(l, 7, false);
  offsets = tt_hlo_slice_dim(b, offsets, 0, 0, g->count, 1);
  g->indices = tt_index_checked(l, indices, weight->dims[0], false, TT_INVALID_ARGUMENT,
                                "an index of input is not in the valid range");
  g->owner = g->target = bag_of_each(l, offsets, n);
  if (padding >= 0) {
    tt_value *pads = tt_hlo_compare(b, TT_EQ, g->indices, tt_hlo_constant_like(b, g->indices, (double)padding));
    g->target = tt_hlo_select(b, pads, tt_hlo_constant_like(b, g->owner, (double)g->count), g->owner);
  }
  tt_value *sizes = tt_hlo_splat(b, TT_S32, 1, &g->count, 0);
  tt_index_map map;
  tt_map_rows(&map, sizes, 0, g->target);
  g->sizes = tt_index_write(b, sizes, &map, tt_hlo_splat(b, TT_S32, 1, &n, 1), TT_COMBINE_ADD);
}

// [n] as [n, width].
static tt_value *along_rows(tt_builder *b, tt_value *x, const tt_value *like) {
  return tt_hlo_broadcast_in_dim(b, x, 2, like->dims, (int[]){0});
}

static tt_value *sizes_like(tt_builder *b, tt_value *sizes, const tt_value *like) {
  tt_value *at_least_one = tt_hlo_maximum(b, sizes, tt_hlo_constant_like(b, sizes, 1));
  return along_rows(b, tt_hlo_convert(b, at_least_one, like->dtype), like);
}

// The greatest of each bag and column, and the index of the row that it came from: 0 for an empty bag.
static tt_value *greatest(tt_builder *b, const bags *g, tt_value *rows, tt_value **out_indices) {
  tt_value *lowest = tt_hlo_min_value(b, rows->dtype);
  tt_value *best = tt_hlo_broadcast_to(b, lowest, 2, (int64_t[]){g->count, rows->dims[1]});
  tt_index_map map;
  tt_map_rows(&map, best, 0, g->target);
  best = tt_index_write(b, best, &map, rows, TT_COMBINE_MAX);
  // The first row that holds the greatest value, by the smallest position.
  tt_value *here = tt_hlo_iota(b, TT_S32, 2, rows->dims, 0);
  tt_value *nowhere = tt_hlo_constant_like(b, here, (double)rows->dims[0]);
  tt_value *holds = tt_hlo_compare(b, TT_EQ, rows, tt_take_rows(b, best, 0, g->owner));
  tt_value *first = tt_hlo_splat(b, TT_S32, 2, best->dims, (double)rows->dims[0]);
  first = tt_index_write(b, first, &map, tt_hlo_select(b, holds, here, nowhere), TT_COMBINE_MIN);
  tt_value *indices = tt_take_rows(b, g->indices, 0, first);
  tt_value *empty = along_rows(b, tt_hlo_compare(b, TT_EQ, g->sizes, tt_hlo_constant_like(b, g->sizes, 0)), best);
  *out_indices = tt_hlo_select(b, empty, tt_hlo_constant_like(b, indices, 0), indices);
  return tt_hlo_select(b, empty, tt_hlo_constant_like(b, best, 0), best);
}

// Results: output [bags, width], the bag of each index, the bags' sizes, the indices of the greatest (mode max only).
void tt_lower_embedding_bag(tt_lowering *l) {
  tt_builder *b = l->b;
  check_bag_arguments(l);
  if (tt_failed(l)) return;
  tt_value *weight = tt_operand(l, 0);
  bag_mode mode = (bag_mode)tt_int(l, 4);
  tt_dtype index_dtype = tt_dtype_promote(tt_tensor_arg(l, 1)->dtype, tt_tensor_arg(l, 2)->dtype);
  bags g;
  read_bags(l, &g, weight, tt_int_or(l, 8, -1));
  tt_value *rows = tt_hlo_convert(b, tt_take_rows(b, weight, 0, g.indices), tt_compute_dtype(weight->dtype));
  if (tt_has(l, 6)) rows = tt_hlo_multiply(b, rows, along_rows(b, tt_operand_as(l, 6, rows->dtype), rows));
  tt_value *output, *indices = g.sizes;
  if (mode == BAG_MAX)
    output = greatest(b, &g, rows, &indices);
  else
    output = table_of_rows(b, rows, g.target, g.count);
  if (mode == BAG_MEAN) output = tt_hlo_divide(b, output, sizes_like(b, g.sizes, output));
  tt_set_result(l, 0, tt_hlo_convert(b, output, weight->dtype));
  tt_set_result(l, 1, tt_hlo_convert(b, g.owner, index_dtype));
  tt_set_result(l, 2, tt_hlo_convert(b, g.sizes, index_dtype));
  tt_set_result(l, 3, tt_hlo_convert(b, indices, index_dtype));
}

static bool check_bag_gradient(tt_lowering *l, int offset2bag) {
  const tt_tensor *grad = tt_tensor_arg(l, 0), *owner = tt_tensor_arg(l, offset2bag);
  if (!tt_dtype_is_float(grad->dtype))
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Expected tensor for argument #1 'grad_' to have one of the following scalar types: Half, BFloat16, Float, "
            "Double; "
            "but got torch.%sTensor instead (while checking arguments for embedding_bag)",
            tt_dtype_text(grad->dtype));
  else if (tt_check_index_dtype(l, 1, "embedding_bag") && !tt_is_index_dtype(owner->dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "expected scalar type Long but found %s", tt_dtype_text(owner->dtype));
  return !tt_failed(l);
}

// Argument numbers of the two schemas of the gradient; the rest stand at the same distance from `offset2bag`.
static void bag_backward(tt_lowering *l, int offset2bag, int per_sample_weights, int padding_arg) {
  tt_builder *b = l->b;
  if (!check_bag_gradient(l, offset2bag)) return;
  tt_value *grad = tt_operand(l, 0), *owner = tt_operand_as(l, offset2bag, TT_S32),
           *sizes = tt_operand_as(l, offset2bag + 1, TT_S32);
  int64_t num_weights = tt_int(l, offset2bag + 3), padding = tt_int_or(l, padding_arg, -1);
  bag_mode mode = (bag_mode)tt_int(l, offset2bag + 5);
  tt_dtype dtype = tt_compute_dtype(grad->dtype), at_dtype = tt_index_dtype(num_weights);
  tt_value *table, *wide = tt_hlo_convert(b, grad, dtype);
  if (mode == BAG_MAX) {
    tt_value *rows = tt_operand_as(l, offset2bag + 2, at_dtype);
    tt_value *empty = along_rows(b, tt_hlo_compare(b, TT_EQ, sizes, tt_hlo_constant_like(b, sizes, 0)), rows);
    rows = tt_hlo_select(b, empty, tt_hlo_constant_like(b, rows, (double)num_weights), rows);
    table = tt_hlo_splat(b, dtype, 2, (int64_t[]){num_weights, grad->dims[1]}, 0);
    tt_index_map map;
    tt_map_elements(&map, table, 0, rows);
    table = tt_index_write(b, table, &map, wide, TT_COMBINE_ADD);
  } else {
    if (mode == BAG_MEAN) wide = tt_hlo_divide(b, wide, sizes_like(b, sizes, wide));
    tt_value *rows = tt_take_rows(b, wide, 0, owner),
             *indices = tt_hlo_convert(b, tt_flat(b, tt_operand(l, 1)), at_dtype);
    if (tt_has(l, per_sample_weights))
      rows = tt_hlo_multiply(b, rows, along_rows(b, tt_operand_as(l, per_sample_weights, dtype), rows));
    if (tt_bool_or(l, offset2bag + 4, false) && indices->dims[0] > 0)
      rows = divide_by_frequency(b, rows, indices, num_weights);
    table = table_of_rows(b, rows, drop_padding(b, indices, padding, num_weights), num_weights);
  }
  tt_set_result(l, 0, tt_hlo_convert(b, table, grad->dtype));
}

void tt_lower_embedding_bag_backward(tt_lowering *l) {
  if (tt_bool_or(l, 9, false))
    tt_fail(l, TT_NOT_IMPLEMENTED, "sparse gradients are not supported on TPU");
  else
    bag_backward(l, 3, 10, 11);
}

void tt_lower_embedding_bag_dense_backward(tt_lowering *l) { bag_backward(l, 2, 8, 9); }

// The gradient of a sample's weight: its row times the gradient of its bag.
void tt_lower_embedding_bag_per_sample_weights_backward(tt_lowering *l) {
  tt_builder *b = l->b;
  if (!tt_check_index_dtype(l, 2, "embedding_bag")) return;
  tt_value *grad = tt_operand(l, 0), *weight = tt_operand(l, 1);
  tt_value *indices = tt_hlo_convert(b, tt_operand(l, 2), tt_index_dtype(weight->dims[0]));
  int64_t padding = tt_int_or(l, 6, -1);
  tt_dtype dtype = tt_compute_dtype(grad->dtype);
  tt_value *of_bag = tt_hlo_convert(b, tt_take_rows(b, grad, 0, tt_operand_as(l, 4, TT_S32)), dtype);
  tt_value *rows = tt_hlo_convert(b, tt_take_rows(b, weight, 0, indices), dtype);
  tt_value *dots = tt_hlo_reduce(b, tt_hlo_multiply(b, of_bag, rows), TT_REDUCE_ADD, 1, (int[]){1});
  if (padding >= 0) {
    tt_value *pads = tt_hlo_compare(b, TT_EQ, indices, tt_hlo_constant_like(b, indices, (double)padding));
    dots = tt_hlo_select(b, pads, tt_hlo_constant_like(b, dots, 0), dots);
  }
  tt_set_result(l, 0, tt_hlo_convert(b, dots, grad->dtype));
}
