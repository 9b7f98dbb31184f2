// renorm.c - ops that shrink rows to a largest norm: renorm, embedding_renorm_.
#include <math.h>

#include "op/index.h"

// The p-norm of each row, [rows, width] -> [rows]; real for complex rows.
static tt_value *row_norms(tt_builder *b, tt_value *rows, double p) {
  tt_value *x = tt_hlo_abs(b, rows);
  if (isinf(p) && rows->dims[1] > 0) return tt_hlo_reduce(b, x, p > 0 ? TT_REDUCE_MAX : TT_REDUCE_MIN, 1, (int[]){1});
  if (p == 0)
    x = tt_hlo_convert(b, tt_hlo_compare(b, TT_NE, x, tt_hlo_constant_like(b, x, 0)), x->dtype);
  else if (p == 2)
    x = tt_hlo_multiply(b, x, x);
  else if (p != 1)
    x = tt_hlo_power(b, x, tt_hlo_constant_like(b, x, p));
  tt_value *sum = tt_hlo_reduce(b, x, TT_REDUCE_ADD, 1, (int[]){1});
  if (p == 0 || p == 1) return sum;
  return p == 2 ? tt_hlo_sqrt(b, sum) : tt_hlo_power(b, sum, tt_hlo_constant_like(b, sum, 1 / p));
}

// rows [rows, width], those longer than max_norm made that long, in the dtype that they are computed in.
static tt_value *shrink(tt_builder *b, tt_value *rows, double p, double max_norm) {
  rows = tt_hlo_convert(b, rows, tt_compute_dtype(rows->dtype));
  tt_value *norms = row_norms(b, rows, p);
  tt_value *limit = tt_hlo_constant_like(b, norms, max_norm);
  tt_value *scale = tt_hlo_divide(b, limit, tt_hlo_add(b, norms, tt_hlo_constant_like(b, norms, 1e-7)));
  scale = tt_hlo_select(b, tt_hlo_compare(b, TT_GT, norms, limit), scale, tt_hlo_constant_like(b, norms, 1));
  scale = tt_hlo_convert(b, scale, rows->dtype);
  return tt_hlo_multiply(b, rows, tt_hlo_broadcast_in_dim(b, scale, 2, rows->dims, (int[]){0}));
}

void tt_lower_renorm(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0);
  int dim = tt_wrap_dim(l, tt_int(l, 2), x->rank);
  int order[TT_INDEX_MAX_DIMS], back[TT_INDEX_MAX_DIMS];
  int64_t sizes[TT_INDEX_MAX_DIMS];
  tt_dim_first(x->rank, dim, order, back);
  for (int i = 0; i < x->rank; ++i) sizes[i] = x->dims[order[i]];
  int64_t count = x->dims[dim], width = count > 0 ? tt_value_count(x) / count : 0;
  tt_value *rows = tt_hlo_reshape(b, tt_hlo_transpose(b, x, order), 2, (int64_t[]){count, width});
  rows = shrink(b, rows, tt_double(l, 1), tt_double(l, 3));
  tt_set_result(l, 0, tt_hlo_transpose(b, tt_hlo_reshape(b, tt_hlo_convert(b, rows, x->dtype), x->rank, sizes), back));
}

// The rows that are looked up. Repeated indices write the same row twice.
void tt_lower_embedding_renorm(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *weight = tt_operand(l, 0);
  if (weight->rank != 2)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Expected 2-dimensional tensor, but got %d-dimensional tensor for argument #1 'self' (while "
            "checking arguments for embedding_renorm_)",
            weight->rank);
  if (tt_failed(l) || !tt_check_index_dtype(l, 1, "embedding_renorm_")) return;
  tt_value *indices = tt_flat(b, tt_operand(l, 1));
  indices = tt_index_checked(l, indices, weight->dims[0], false, TT_INDEX, "index out of range in self");
  tt_index_map map;
  tt_map_rows(&map, weight, 0, indices);
  tt_value *rows = shrink(b, tt_index_read(b, weight, &map), tt_double(l, 3), tt_double(l, 2));
  tt_set_result(l, 0, tt_index_write(b, weight, &map, tt_hlo_convert(b, rows, weight->dtype), TT_COMBINE_REPLACE));
}
