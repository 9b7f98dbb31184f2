// result.c - what a lowering gives: results, the order of their dims in memory, how much of them counts. See lowering.h.
#include <string.h>

#include "op/internal.h"
#include "op/lowering.h"

tt_dtype tt_output_dtype(const tt_lowering *l, int result, tt_dtype otherwise) {
  return result < l->output_count ? l->tensors[l->outputs[result]].dtype : otherwise;
}

bool tt_output_shape(const tt_lowering *l, int result, int *out_rank, const int64_t **out_sizes) {
  if (result >= l->output_count) return false;
  *out_rank = l->tensors[l->outputs[result]].rank;
  *out_sizes = l->tensors[l->outputs[result]].sizes;
  return true;
}

// Entry `index` of a growing array in the arena.
static tt_lowered *entry(tt_lowering *l, tt_lowered **items, int *count, int *capacity, int index) {
  if (index >= *capacity) {
    int grown = index < 8 ? 8 : 2 * index;
    tt_lowered *bigger = tt_lowering_array(l, grown, sizeof *bigger);
    if (!bigger) return NULL;
    if (*count) memcpy(bigger, *items, (size_t)*count * sizeof *bigger);
    *items = bigger;
    *capacity = grown;
  }
  if (index >= *count) *count = index + 1;
  return &(*items)[index];
}

void tt_set_result(tt_lowering *l, int result, tt_value *value) {
  tt_lowered *r = entry(l, &l->results, &l->result_count, &l->result_capacity, result);
  if (r) r->value = value;
}

void tt_set_channels_last(tt_lowering *l, int result, bool channels_last) {
  tt_lowered *r = entry(l, &l->results, &l->result_count, &l->result_capacity, result);
  if (r) r->channels_last = channels_last;
}

void tt_set_order(tt_lowering *l, int result, const int *order) {
  tt_lowered *r = entry(l, &l->results, &l->result_count, &l->result_capacity, result);
  if (r) r->order = order;
}

void tt_set_extents(tt_lowering *l, const tt_extent *extents, int count) {
  tt_builder *b = l->b;
  tt_value *rows[8];
  if (count > 8) tt_builder_fail(b, tt_internal_error("%s: %d results with extents", l->op->name, count));
  if (tt_failed(l)) return;
  for (int i = 0; i < count; ++i) {
    tt_value *size = extents[i].size ? tt_hlo_convert(b, extents[i].size, TT_S64) : tt_hlo_constant_i64(b, TT_S64, -1);
    tt_value *pair[] = {tt_hlo_constant_vector(b, TT_S64, 1, (int64_t[]){extents[i].dim}),
                        tt_hlo_reshape(b, size, 1, (int64_t[]){1})};
    rows[i] = tt_hlo_unsqueeze_dim(b, tt_hlo_concatenate(b, 2, pair, 0), 0);
  }
  tt_set_result(l, count, tt_hlo_concatenate(b, count, rows, 0));
}

int *tt_order_of(tt_lowering *l, int arg) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  int *order = t ? tt_lowering_array(l, t->rank, sizeof *order) : NULL;
  if (!order) return NULL;
  for (int i = 0; i < t->rank; ++i) { // insertion by descending stride; equal ones stay as they are
    int at = i;
    for (; at > 0 && t->strides[order[at - 1]] < t->strides[i]; --at) order[at] = order[at - 1];
    order[at] = i;
  }
  return order;
}

void tt_set_order_like(tt_lowering *l, int result, int arg) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  tt_lowered *r = entry(l, &l->results, &l->result_count, &l->result_capacity, result);
  if (t && r && r->value && r->value->rank == t->rank) r->order = tt_order_of(l, arg);
}

void tt_set_column_major(tt_lowering *l, int result) {
  tt_lowered *r = entry(l, &l->results, &l->result_count, &l->result_capacity, result);
  if (!r || !r->value || r->value->rank < 2) return;
  int rank = r->value->rank, *order = tt_lowering_array(l, rank, sizeof *order);
  for (int i = 0; order && i < rank; ++i) order[i] = i < rank - 2 ? i : 2 * rank - 3 - i;
  r->order = order;
}

// The stride of a result's dimension in an operand that is broadcast to it.
static int64_t broadcast_stride(const tt_tensor *t, const tt_value *result, int dim) {
  int own = dim - (result->rank - t->rank);
  return own < 0 || (t->sizes[own] == 1 && result->dims[dim] != 1) ? 0 : t->strides[own];
}

// Positive: dimension `a` belongs outside of `b`, by the first operand in which both move; negative: inside.
static int compare_dimensions(const tt_value *result, int count, const tt_tensor *const *operands, int a, int b) {
  for (int i = 0; i < count; ++i) {
    if (!operands[i]) continue;
    int64_t first = broadcast_stride(operands[i], result, a), second = broadcast_stride(operands[i], result, b);
    if (first == 0 || second == 0) continue;
    if (first != second) return first > second ? 1 : -1;
    if (result->dims[a] > result->dims[b]) return 1;
  }
  return 0;
}

// Are all of the result's shape and without gaps, in row-major order?
static bool are_row_major(const tt_value *result, int count, const tt_tensor *const *operands) {
  for (int i = 0; i < count; ++i) {
    const tt_tensor *t = operands[i];
    if (!t) continue;
    if (t->rank != result->rank) return false;
    int64_t stride = 1;
    for (int d = t->rank - 1; d >= 0; --d) {
      if (t->sizes[d] != result->dims[d] || (t->sizes[d] != 1 && t->strides[d] != stride)) return false;
      stride *= t->sizes[d];
    }
  }
  return true;
}

void tt_set_order_of_iterator(tt_lowering *l, int result, int count, const tt_tensor *const *operands) {
  tt_lowered *r = entry(l, &l->results, &l->result_count, &l->result_capacity, result);
  if (!r || !r->value || l->output_count > 0) return;
  r->order = NULL;
  int rank = r->value->rank;
  int *order = are_row_major(r->value, count, operands) ? NULL : tt_lowering_array(l, rank, sizeof *order);
  if (!order) return;
  // From the innermost dimension on, each goes inwards past those that belong outside of it.
  for (int placed = 0; placed < rank; ++placed) {
    int at = rank - 1 - placed;
    order[at] = at;
    for (int inner = at + 1; inner < rank; ++inner) {
      int outside = compare_dimensions(r->value, count, operands, order[inner], order[at]);
      if (outside < 0) break;
      if (outside == 0) continue;
      int moved = order[at];
      order[at] = order[inner];
      order[inner] = moved;
      at = inner;
    }
  }
  r->order = order;
}

void tt_write_operand(tt_lowering *l, int arg, tt_value *value) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  if (!t || t->cpu_scalar) {
    tt_lowering_wrong_kind(l, arg, "device tensor to write");
    return;
  }
  tt_lowered *w = entry(l, &l->writes, &l->write_count, &l->write_capacity, l->write_count);
  if (!w) return;
  w->value = value;
  w->slot = (int)(t - l->tensors);
}

bool tt_is_channels_last(const tt_lowering *l, int arg) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  if (!t || (t->rank != 4 && t->rank != 5)) return false;
  // c10::is_channels_last_strides: strides ordered N, spatial..., C from large to small, with C innermost and not the
  // contiguous order.
  int64_t minimum = 0;
  if (t->strides[1] == 0) return false;
  int order[5] = {1};
  for (int i = 1; i < t->rank - 1; ++i) order[i] = t->rank - i; // W, H, (D)
  order[t->rank - 1] = 0;
  for (int i = 0; i < t->rank; ++i) {
    int d = order[i];
    if (t->sizes[d] == 0 || t->strides[d] < minimum) return false;
    if (d == 0 && minimum == t->strides[1]) return false;
    minimum = t->strides[d];
    if (t->sizes[d] > 1) minimum *= t->sizes[d];
  }
  return true;
}
