// index.c - gather and scatter.
#include <string.h>

#include "hlo/internal.h"

static bool contains(int count, const int *dims, int dim) {
  for (int i = 0; i < count; ++i) {
    if (dims[i] == dim) return true;
  }
  return false;
}

static bool ascending(int count, const int *dims) {
  for (int i = 1; i < count; ++i) {
    if (dims[i] <= dims[i - 1]) return false;
  }
  return true;
}

// Sizes of the indices without the index vector's dimension, which may stand one behind the last. Returns how many.
static int batch_dims(const tt_value *indices, int index_vector_dim, int64_t *dims) {
  int rank = 0;
  for (int i = 0; i < indices->rank; ++i) {
    if (i != index_vector_dim) dims[rank++] = indices->dims[i];
  }
  return rank;
}

// The part that gather and scatter check alike: the index vectors, and the pairs of batching dimensions.
static bool indices_fit(const tt_value *x, const tt_value *indices, int index_vector_dim, int map_count, const int *map,
                        int batching_count, const int *operand_batching, const int *index_batching) {
  if (!tt_dtype_is_integral(indices->dtype) || index_vector_dim < 0 || index_vector_dim > indices->rank) return false;
  int64_t vector = index_vector_dim == indices->rank ? 1 : indices->dims[index_vector_dim];
  if (vector != map_count || !tt_hlo_distinct_dims(x->rank, map_count, map)) return false;
  if (!tt_hlo_distinct_dims(x->rank, batching_count, operand_batching)) return false;
  if (!tt_hlo_distinct_dims(indices->rank, batching_count, index_batching)) return false;
  for (int i = 0; i < batching_count; ++i) {
    if (index_batching[i] == index_vector_dim || contains(map_count, map, operand_batching[i])) return false;
    if (x->dims[operand_batching[i]] != indices->dims[index_batching[i]]) return false;
  }
  return true;
}

// Spreads `window` sizes over the dimensions named by `places` and `batch` sizes over the others, in order.
static void interleave(int rank, int place_count, const int *places, const int64_t *window, const int64_t *batch,
                       int64_t *out) {
  int next_window = 0, next_batch = 0;
  for (int i = 0; i < rank; ++i)
    out[i] = contains(place_count, places, i) ? window[next_window++] : batch[next_batch++];
}

// --- gather -------------------------------------------------------------------------------------------------------------------

// The rank and dims of the result; false when the numbers do not fit.
static bool gather_shape(const tt_value *x, const tt_value *indices, const tt_gather *n, int *out_rank,
                         int64_t *out_dims) {
  if (!indices_fit(x, indices, n->index_vector_dim, n->map_count, n->start_index_map, n->batching_count,
                   n->operand_batching_dims, n->index_batching_dims))
    return false;
  if (!ascending(n->collapsed_count, n->collapsed_dims) || !ascending(n->batching_count, n->operand_batching_dims) ||
      !ascending(n->offset_count, n->offset_dims))
    return false;
  if (!tt_hlo_distinct_dims(x->rank, n->collapsed_count, n->collapsed_dims)) return false;
  int64_t window[TT_HLO_MAX_RANK], batch[TT_HLO_MAX_RANK];
  int window_rank = 0;
  for (int i = 0; i < x->rank; ++i) {
    if (n->slice_sizes[i] < 0 || n->slice_sizes[i] > x->dims[i]) return false;
    bool collapsed = contains(n->collapsed_count, n->collapsed_dims, i);
    bool batching = contains(n->batching_count, n->operand_batching_dims, i);
    if (collapsed && batching) return false;
    if (!collapsed && !batching)
      window[window_rank++] = n->slice_sizes[i];
    else if (n->slice_sizes[i] > 1)
      return false;
  }
  int batch_rank = batch_dims(indices, n->index_vector_dim, batch);
  *out_rank = window_rank + batch_rank;
  if (window_rank != n->offset_count || *out_rank > TT_HLO_MAX_RANK) return false;
  if (!tt_hlo_distinct_dims(*out_rank, n->offset_count, n->offset_dims)) return false;
  interleave(*out_rank, n->offset_count, n->offset_dims, window, batch, out_dims);
  return true;
}

tt_value *tt_hlo_gather(tt_builder *b, tt_value *x, tt_value *indices, const tt_gather *n) {
  if (!TT_HLO_READY(b, "gather", x, indices)) return &tt_hlo_poison;
  int rank;
  int64_t dims[TT_HLO_MAX_RANK];
  if (!gather_shape(x, indices, n, &rank, dims))
    return TT_HLO_REFUSE(b, "gather", "the dimension numbers do not fit", x, indices);
  tt_value *operands[] = {x, indices};
  tt_value *result = tt_emit_result(b, "\"stablehlo.gather\"", x->dtype, rank, dims);
  tt_emit_values(b, "(", 2, operands);
  tt_emit_ints(b, ") {dimension_numbers = #stablehlo.gather<offset_dims = ", n->offset_count, n->offset_dims);
  tt_emit_ints(b, ", collapsed_slice_dims = ", n->collapsed_count, n->collapsed_dims);
  tt_emit_ints(b, ", operand_batching_dims = ", n->batching_count, n->operand_batching_dims);
  tt_emit_ints(b, ", start_indices_batching_dims = ", n->batching_count, n->index_batching_dims);
  tt_emit_ints(b, ", start_index_map = ", n->map_count, n->start_index_map);
  tt_emit(b, ", index_vector_dim = ");
  tt_emit_i64(b, n->index_vector_dim);
  tt_emit_array(b, ">, slice_sizes = ", x->rank, n->slice_sizes);
  tt_emit(b, "}");
  return tt_emit_signature(b, 2, operands, result);
}

// --- scatter ------------------------------------------------------------------------------------------------------------------

static bool scatter_fits(const tt_value *x, const tt_value *indices, const tt_value *updates, const tt_scatter *n) {
  if (x->dtype != updates->dtype) return false;
  if (!indices_fit(x, indices, n->index_vector_dim, n->map_count, n->scatter_dims_to_operand_dims, n->batching_count,
                   n->input_batching_dims, n->index_batching_dims))
    return false;
  if (!ascending(n->inserted_count, n->inserted_window_dims) || !ascending(n->batching_count, n->input_batching_dims) ||
      !ascending(n->window_count, n->update_window_dims))
    return false;
  if (!tt_hlo_distinct_dims(x->rank, n->inserted_count, n->inserted_window_dims)) return false;
  if (!tt_hlo_distinct_dims(updates->rank, n->window_count, n->update_window_dims)) return false;
  // The window dimensions of the updates are the operand's others, in order, and no larger.
  int next = 0;
  for (int i = 0; i < x->rank; ++i) {
    bool inserted = contains(n->inserted_count, n->inserted_window_dims, i);
    bool batching = contains(n->batching_count, n->input_batching_dims, i);
    if (inserted && batching) return false;
    if (inserted || batching) continue;
    if (next == n->window_count || updates->dims[n->update_window_dims[next]] > x->dims[i]) return false;
    ++next;
  }
  int64_t batch[TT_HLO_MAX_RANK];
  int batch_rank = batch_dims(indices, n->index_vector_dim, batch);
  if (next != n->window_count || updates->rank != n->window_count + batch_rank) return false;
  int next_batch = 0;
  for (int i = 0; i < updates->rank; ++i) {
    if (!contains(n->window_count, n->update_window_dims, i) && updates->dims[i] != batch[next_batch++]) return false;
  }
  return true;
}

static void take_update(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  (void)b;
  (void)user;
  results[0] = arguments[1];
}

static void emit_scatter_region(tt_builder *b, tt_dtype dtype, tt_combine combine) {
  static const char *const ops[] = {[TT_COMBINE_ADD] = "stablehlo.add",
                                    [TT_COMBINE_MULTIPLY] = "stablehlo.multiply",
                                    [TT_COMBINE_MAX] = "stablehlo.maximum",
                                    [TT_COMBINE_MIN] = "stablehlo.minimum"};
  tt_value *scalar = tt_hlo_scalar_type(b, dtype);
  bool replace = combine == TT_COMBINE_REPLACE;
  tt_emit_region(b, "scatter", 2, (tt_value *[]){scalar, scalar}, 1, &scalar,
                 replace ? take_update : tt_hlo_combine_body, replace ? NULL : (void *)ops[combine]);
}

tt_value *tt_hlo_scatter(tt_builder *b, tt_value *x, tt_value *indices, tt_value *updates, const tt_scatter *n,
                         tt_combine combine) {
  if (!TT_HLO_READY(b, "scatter", x, indices, updates)) return &tt_hlo_poison;
  if ((int)combine < 0 || combine > TT_COMBINE_MIN)
    return TT_HLO_REFUSE(b, "scatter", "unknown combination", x, indices, updates);
  if (!scatter_fits(x, indices, updates, n))
    return TT_HLO_REFUSE(b, "scatter", "the dimension numbers do not fit", x, indices, updates);
  tt_value *operands[] = {x, indices, updates};
  tt_value *result = tt_emit_result(b, "\"stablehlo.scatter\"", x->dtype, x->rank, x->dims);
  tt_emit_values(b, "(", 3, operands);
  tt_emit(b, ") (");
  emit_scatter_region(b, x->dtype, combine);
  tt_emit_ints(b, ") {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = ", n->window_count,
               n->update_window_dims);
  tt_emit_ints(b, ", inserted_window_dims = ", n->inserted_count, n->inserted_window_dims);
  tt_emit_ints(b, ", input_batching_dims = ", n->batching_count, n->input_batching_dims);
  tt_emit_ints(b, ", scatter_indices_batching_dims = ", n->batching_count, n->index_batching_dims);
  tt_emit_ints(b, ", scatter_dims_to_operand_dims = ", n->map_count, n->scatter_dims_to_operand_dims);
  tt_emit(b, ", index_vector_dim = ");
  tt_emit_i64(b, n->index_vector_dim);
  tt_emit_bool(b, ">, indices_are_sorted = ", n->sorted);
  tt_emit_bool(b, ", unique_indices = ", n->unique);
  tt_emit(b, "}");
  return tt_emit_signature(b, 3, operands, result);
}
