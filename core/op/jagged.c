// jagged.c - between rows that lie one behind the other and a batch padded to one length, for torch's jagged nested tensors.
//
// offsets[i] says where the rows of batch entry i begin, offsets[i + 1] where they end.
#include "op/index.h"
#include "op/order.h"

// The one list of offsets of argument 1; NULL when the call fails.
static tt_value *read_offsets(tt_lowering *l, const tt_value *x, int rank) {
  if (tt_list_count(l, 1) != 1)
    tt_fail(l, TT_INVALID_ARGUMENT, "%s: only a single jagged dim is supported", l->op->name);
  else if (x->rank != rank)
    tt_fail(l, TT_INVALID_ARGUMENT, "%s: expected a tensor of %d dims, but got %d", l->op->name, rank, x->rank);
  if (tt_failed(l)) return NULL;
  tt_value *offsets = tt_list_operand(l, 1, 0);
  if (offsets->rank != 1 || offsets->dims[0] < 1 || !tt_is_index_dtype(offsets->dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "%s: expected a vector of offsets", l->op->name);
  return tt_failed(l) ? NULL : offsets;
}

static tt_value *less_than(tt_builder *b, tt_value *x, tt_value *y) { return tt_hlo_compare(b, TT_LT, x, y); }

// `inside` [rows] ? x [rows, columns] : fill
static tt_value *keep_rows(tt_builder *b, tt_value *inside, tt_value *x, tt_value *fill) {
  inside = tt_hlo_broadcast_in_dim(b, inside, 2, x->dims, (int[]){0});
  return tt_hlo_select(b, inside, x, tt_hlo_broadcast_like(b, fill, x));
}

// _jagged_to_padded_dense_forward(values [rows, columns], offsets, max_lengths, padding_value) -> [batch, length, columns]
void tt_lower_jagged_to_padded(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0), *offsets = read_offsets(l, x, 2);
  int count;
  const int64_t *lengths = tt_ints(l, 2, &count);
  if (offsets && (count != 1 || lengths[0] < 0))
    tt_fail(l, TT_INVALID_ARGUMENT, "%s: expected one maximal length", l->op->name);
  if (!offsets || tt_failed(l)) return;
  int64_t batch = offsets->dims[0] - 1, grid[] = {batch, lengths[0]}, flat = batch * lengths[0];
  int64_t dims[] = {batch, lengths[0], x->dims[1]};
  tt_value *padding = tt_number(l, 3, x->dtype);
  if (flat == 0 || x->dims[0] == 0) {
    tt_set_result(l, 0, tt_hlo_broadcast_to(b, padding, 3, dims));
    return;
  }
  tt_dtype dtype = tt_index_dtype(x->dims[0] + lengths[0]);
  offsets = tt_hlo_convert(b, offsets, dtype);
  tt_value *start = tt_hlo_broadcast_in_dim(b, tt_hlo_slice_dim(b, offsets, 0, 0, batch, 1), 2, grid, (int[]){0});
  tt_value *end = tt_hlo_broadcast_in_dim(b, tt_hlo_slice_dim(b, offsets, 0, 1, batch + 1, 1), 2, grid, (int[]){0});
  tt_value *row = tt_hlo_add(b, start, tt_hlo_iota(b, dtype, 2, grid, 1));
  tt_value *inside = tt_flat(b, less_than(b, row, end)); // a row past the end is read as the last one
  tt_value *padded = keep_rows(b, inside, tt_take_rows(b, x, 0, tt_flat(b, row)), padding);
  tt_set_result(l, 0, tt_hlo_reshape(b, padded, 3, dims));
}

// _padded_dense_to_jagged_forward(dense [batch, length, columns], offsets, total_L) -> [total_L, columns]. The bridge gives
// total_L, the last of the offsets. What lies beyond the length is zero.
void tt_lower_padded_to_jagged(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0), *offsets = read_offsets(l, x, 3);
  int64_t rows = tt_int(l, 2);
  if (offsets && (offsets->dims[0] != x->dims[0] + 1 || rows < 0))
    tt_fail(l, TT_INVALID_ARGUMENT, "%s: expected %lld offsets, but got %lld", l->op->name, (long long)x->dims[0] + 1,
            (long long)offsets->dims[0]);
  if (!offsets || tt_failed(l)) return;
  int64_t flat[] = {x->dims[0] * x->dims[1], x->dims[2]}, dims[] = {rows, x->dims[2]};
  if (rows == 0 || flat[0] == 0) {
    tt_set_result(l, 0, tt_hlo_splat(b, x->dtype, 2, dims, 0));
    return;
  }
  tt_dtype dtype = tt_index_dtype(flat[0] > rows ? flat[0] : rows);
  offsets = tt_hlo_convert(b, offsets, dtype);
  tt_value *row = tt_hlo_iota(b, dtype, 1, &rows, 0), *one = tt_hlo_constant_like(b, row, 1);
  tt_value *entry = tt_search_rows(b, offsets, row, 1, offsets->dims[0], true);
  entry = tt_hlo_subtract(b, tt_hlo_convert(b, entry, dtype), one);
  tt_value *place = tt_hlo_subtract(b, row, tt_take_rows(b, offsets, 0, entry));
  tt_value *length = tt_hlo_constant_like(b, row, (double)x->dims[1]), *inside = less_than(b, place, length);
  tt_value *at = tt_hlo_add(b, tt_hlo_multiply(b, entry, length), place);
  tt_value *read = tt_take_rows(b, tt_hlo_reshape(b, x, 2, flat), 0, at);
  tt_set_result(l, 0, keep_rows(b, inside, read, tt_hlo_constant(b, x->dtype, 0)));
}
