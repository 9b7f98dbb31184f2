// shape.c - ops that move elements without computing: reshape, transpose, broadcast, slice, pad, concatenate.
//
// What would do nothing returns its operand, so lowerings may call these without looking first.
#include <string.h>

#include "hlo/internal.h"

// --- reshape, transpose, reverse --------------------------------------------------------------------------------------------

static bool same_count(const tt_value *x, int rank, const int64_t *dims) {
  int64_t count = 1;
  for (int i = 0; i < rank; ++i) {
    if (dims[i] < 0 || __builtin_mul_overflow(count, dims[i], &count)) return false;
  }
  return count == tt_value_count(x);
}

static tt_value *emit_reshape(tt_builder *b, tt_value *x, int rank, const int64_t *dims) {
  tt_value *result = tt_emit_result(b, "stablehlo.reshape", x->dtype, rank, dims);
  tt_emit_values(b, " ", 1, &x);
  return tt_emit_signature(b, 1, &x, result);
}

tt_value *tt_hlo_reshape(tt_builder *b, tt_value *x, int rank, const int64_t *dims) {
  if (!TT_HLO_READY(b, "reshape", x)) return &tt_hlo_poison;
  if (!same_count(x, rank, dims))
    return TT_HLO_REFUSE(b, "reshape",
                         TT_HLO_TEXT(b, "another number of elements in %s", tt_shape_text(&b->arena, rank, dims)), x);
  if (rank == x->rank && tt_hlo_same_dims(rank, dims, x->dims)) return x;
  return emit_reshape(b, x, rank, dims);
}

tt_value *tt_hlo_transpose(tt_builder *b, tt_value *x, const int *permutation) {
  if (!TT_HLO_READY(b, "transpose", x)) return &tt_hlo_poison;
  if (!tt_hlo_distinct_dims(x->rank, x->rank, permutation))
    return TT_HLO_REFUSE(b, "transpose", "not a permutation", x);
  int64_t dims[TT_HLO_MAX_RANK];
  bool identity = true;
  for (int i = 0; i < x->rank; ++i) {
    dims[i] = x->dims[permutation[i]];
    identity &= permutation[i] == i;
  }
  if (identity) return x;
  tt_value *result = tt_emit_result(b, "stablehlo.transpose", x->dtype, x->rank, dims);
  if (result != &tt_hlo_poison) {
    result->transposed = true;
    result->permutation = tt_arena_copy(&b->arena, permutation, (size_t)x->rank * sizeof *permutation);
    result->untransposed = result->permutation != NULL ? x : NULL;
  }
  tt_emit_values(b, " ", 1, &x);
  tt_emit_ints(b, ", dims = ", x->rank, permutation);
  return tt_emit_signature(b, 1, &x, result);
}

// XLA would fold a transpose into the dot that reads it, through elementwise ops as well, and behind a mere barrier make it a
// change of layout that computes the operand once more. So the operand ends at a barrier, where others share it, and a flat
// value, which has one layout, at a second.
tt_value *tt_hlo_copy_transposed(tt_builder *b, tt_value *x) {
  if (!TT_HLO_READY(b, "transpose", x)) return &tt_hlo_poison;
  if (!x->transposed) return x;
  int rank = x->rank;
  const int64_t *dims = x->dims, count = tt_value_count(x);
  if (x->untransposed != NULL) x = tt_hlo_transpose(b, tt_hlo_optimization_barrier(b, x->untransposed), x->permutation);
  return tt_hlo_reshape(b, tt_hlo_optimization_barrier(b, tt_hlo_reshape(b, x, 1, &count)), rank, dims);
}

tt_value *tt_hlo_reverse(tt_builder *b, tt_value *x, int count, const int *dimensions) {
  if (!TT_HLO_READY(b, "reverse", x)) return &tt_hlo_poison;
  if (!tt_hlo_distinct_dims(x->rank, count, dimensions))
    return TT_HLO_REFUSE(b, "reverse", "a dimension is out of range or repeated", x);
  bool moves = false;
  for (int i = 0; i < count; ++i) moves |= x->dims[dimensions[i]] > 1;
  if (!moves) return x;
  tt_value *result = tt_emit_result(b, "stablehlo.reverse", x->dtype, x->rank, x->dims);
  tt_emit_values(b, " ", 1, &x);
  tt_emit_ints(b, ", dims = ", count, dimensions);
  tt_emit(b, " : ");
  tt_emit_type(&b->body, result);
  tt_emit(b, "\n");
  return result;
}

tt_value *tt_hlo_squeeze_dim(tt_builder *b, tt_value *x, int dim) {
  if (!TT_HLO_READY(b, "squeeze", x)) return &tt_hlo_poison;
  if (dim < 0 || dim >= x->rank || x->dims[dim] != 1)
    return TT_HLO_REFUSE(b, "squeeze", TT_HLO_TEXT(b, "dimension %d is not of size 1", dim), x);
  int64_t dims[TT_HLO_MAX_RANK];
  for (int i = 0; i < x->rank - 1; ++i) dims[i] = x->dims[i < dim ? i : i + 1];
  return emit_reshape(b, x, x->rank - 1, dims);
}

tt_value *tt_hlo_unsqueeze_dim(tt_builder *b, tt_value *x, int dim) {
  if (!TT_HLO_READY(b, "unsqueeze", x)) return &tt_hlo_poison;
  if (dim < 0 || dim > x->rank)
    return TT_HLO_REFUSE(b, "unsqueeze", TT_HLO_TEXT(b, "dimension %d is out of range", dim), x);
  int64_t dims[TT_HLO_MAX_RANK + 1];
  for (int i = 0; i <= x->rank; ++i) dims[i] = i == dim ? 1 : x->dims[i < dim ? i : i - 1];
  return emit_reshape(b, x, x->rank + 1, dims);
}

// --- bit casts ----------------------------------------------------------------------------------------------------------------

// One stablehlo.bitcast_convert; neither side is Bool or complex. The dims follow from the sizes.
static tt_value *emit_bitcast(tt_builder *b, tt_value *x, tt_dtype dtype) {
  if (b->failed || x->dtype == dtype) return x;
  int from = tt_dtype_size(x->dtype), to = tt_dtype_size(dtype);
  int64_t dims[TT_HLO_MAX_RANK + 1];
  int rank = x->rank;
  if (rank > 0) memcpy(dims, x->dims, (size_t)rank * sizeof *dims);
  if (from > to) dims[rank++] = from / to;
  if (from < to && (rank == 0 || dims[--rank] != to / from))
    return TT_HLO_REFUSE(b, "bitcast_convert",
                         TT_HLO_TEXT(b, "the last dimension does not make one %s", tt_dtype_text(dtype)), x);
  tt_value *result = tt_emit_result(b, "stablehlo.bitcast_convert", dtype, rank, dims);
  tt_emit_values(b, " ", 1, &x);
  return tt_emit_signature(b, 1, &x, result);
}

// StableHLO casts no complex numbers: they go as pairs of their parts in a last dimension of 2. A Bool is a byte of 0 or 1.
static tt_value *parts_of(tt_builder *b, tt_value *x) {
  if (x->dtype == TT_BOOL) return tt_hlo_convert(b, x, TT_U8);
  if (!tt_dtype_is_complex(x->dtype)) return x;
  tt_value *real = tt_hlo_unsqueeze_dim(b, tt_hlo_real(b, x), x->rank);
  tt_value *imag = tt_hlo_unsqueeze_dim(b, tt_hlo_imag(b, x), x->rank);
  return tt_hlo_concatenate(b, 2, (tt_value *[]){real, imag}, x->rank);
}

static tt_value *whole_of(tt_builder *b, tt_value *x, tt_dtype dtype) {
  if (b->failed) return x;
  if (dtype == TT_BOOL) return tt_hlo_convert(b, x, TT_BOOL);
  if (!tt_dtype_is_complex(dtype)) return x;
  int last = x->rank - 1;
  tt_value *real = tt_hlo_squeeze_dim(b, tt_hlo_slice_dim(b, x, last, 0, 1, 1), last);
  tt_value *imag = tt_hlo_squeeze_dim(b, tt_hlo_slice_dim(b, x, last, 1, 2, 1), last);
  return tt_hlo_complex(b, real, imag);
}

static tt_dtype part_dtype(tt_dtype dtype) { return dtype == TT_BOOL ? TT_U8 : tt_dtype_real(dtype); }

// Do the result's dims follow from x's, with the last dimension added or dropped as the sizes tell?
static bool bitcast_fits(const tt_value *x, tt_dtype dtype, int rank, const int64_t *dims) {
  int from = tt_dtype_size(x->dtype), to = tt_dtype_size(dtype);
  int common = rank < x->rank ? rank : x->rank;
  if (common > 0 && !tt_hlo_same_dims(common, x->dims, dims)) return false;
  if (from == to) return rank == x->rank;
  if (from > to) return rank == x->rank + 1 && dims[x->rank] == from / to;
  return rank == x->rank - 1 && x->dims[rank] == to / from;
}

tt_value *tt_hlo_bitcast_convert(tt_builder *b, tt_value *x, tt_dtype dtype, int rank, const int64_t *dims) {
  if (!TT_HLO_READY(b, "bitcast_convert", x)) return &tt_hlo_poison;
  if (dtype <= TT_DTYPE_NONE || dtype >= TT_DTYPE_COUNT || !bitcast_fits(x, dtype, rank, dims))
    return TT_HLO_REFUSE(
        b, "bitcast_convert",
        TT_HLO_TEXT(b, "does not become %s%s", tt_dtype_text(dtype), tt_shape_text(&b->arena, rank, dims)), x);
  if (x->dtype == dtype) return x;
  x = parts_of(b, x);
  // Parts of the target, in the shape that one cast gives: [dims, 2] for a complex target, else dims.
  tt_dtype part = part_dtype(dtype);
  int64_t shape[TT_HLO_MAX_RANK + 2];
  if (b->failed || rank > TT_HLO_MAX_RANK) return &tt_hlo_poison;
  if (rank > 0) memcpy(shape, dims, (size_t)rank * sizeof *shape);
  int shape_rank = rank;
  if (tt_dtype_is_complex(dtype)) shape[shape_rank++] = 2;
  // A cast to a wider part takes its bytes from one more dimension, a cast to a narrower one adds it.
  int ratio = tt_dtype_size(part) / tt_dtype_size(x->dtype);
  if (ratio > 1) {
    shape[shape_rank] = ratio;
    x = tt_hlo_reshape(b, x, shape_rank + 1, shape);
  }
  return whole_of(b, tt_hlo_reshape(b, emit_bitcast(b, x, part), shape_rank, shape), dtype);
}

// --- broadcasting -------------------------------------------------------------------------------------------------------------

tt_value *tt_hlo_broadcast_in_dim(tt_builder *b, tt_value *x, int rank, const int64_t *dims, const int *map) {
  if (!TT_HLO_READY(b, "broadcast_in_dim", x)) return &tt_hlo_poison;
  bool fits = rank <= TT_HLO_MAX_RANK && tt_hlo_distinct_dims(rank, x->rank, map);
  bool identity = fits && rank == x->rank;
  for (int i = 0; fits && i < x->rank; ++i) {
    fits = x->dims[i] == 1 || x->dims[i] == dims[map[i]];
    identity &= map[i] == i && x->dims[i] == dims[i];
  }
  if (!fits)
    return TT_HLO_REFUSE(b, "broadcast_in_dim",
                         TT_HLO_TEXT(b, "does not broadcast to %s", tt_shape_text(&b->arena, rank, dims)), x);
  if (identity) return x;
  tt_value *result = tt_emit_result(b, "stablehlo.broadcast_in_dim", x->dtype, rank, dims);
  tt_emit_values(b, " ", 1, &x);
  tt_emit_ints(b, ", dims = ", x->rank, map);
  return tt_emit_signature(b, 1, &x, result);
}

static tt_value *fail_expand(tt_builder *b, const tt_value *x, int rank, const int64_t *dims, int at) {
  if (at < 0)
    return tt_builder_fail(
        b, tt_error(TT_INVALID_ARGUMENT,
                    "The number of sizes provided (%d) must be greater or equal to the number of dimensions "
                    "in the tensor (%d)",
                    rank, x->rank));
  return tt_builder_fail(b, tt_error(TT_INVALID_ARGUMENT,
                                     "The expanded size of the tensor (%lld) must match the existing size (%lld) at "
                                     "non-singleton dimension %d.  Target sizes: %s.  Tensor sizes: %s",
                                     (long long)dims[at], (long long)x->dims[at - (rank - x->rank)], at,
                                     tt_shape_text(&b->arena, rank, dims), tt_shape_text(&b->arena, x->rank, x->dims)));
}

tt_value *tt_hlo_broadcast_to(tt_builder *b, tt_value *x, int rank, const int64_t *dims) {
  if (!TT_HLO_READY(b, "broadcast_to", x)) return &tt_hlo_poison;
  int lead = rank - x->rank;
  if (lead < 0) return fail_expand(b, x, rank, dims, -1);
  int map[TT_HLO_MAX_RANK];
  for (int i = 0; i < x->rank; ++i) {
    if (x->dims[i] != 1 && x->dims[i] != dims[lead + i]) return fail_expand(b, x, rank, dims, lead + i);
    map[i] = lead + i;
  }
  return tt_hlo_broadcast_in_dim(b, x, rank, dims, map);
}

tt_value *tt_hlo_broadcast_like(tt_builder *b, tt_value *x, const tt_value *like) {
  if (b->failed) return &tt_hlo_poison;
  if (like == NULL) return tt_builder_fail(b, tt_internal_error("broadcast_like: the pattern is absent"));
  return tt_hlo_broadcast_to(b, x, like->rank, like->dims);
}

void tt_hlo_broadcast_both(tt_builder *b, tt_value **x, tt_value **y) {
  const tt_value *a = *x, *c = *y;
  if (!TT_HLO_READY(b, "broadcast_both", *x, *y)) {
    *x = *y = &tt_hlo_poison;
    return;
  }
  int rank = a->rank > c->rank ? a->rank : c->rank;
  int64_t dims[TT_HLO_MAX_RANK];
  for (int i = 0; i < rank; ++i) {
    int ai = i - (rank - a->rank), ci = i - (rank - c->rank);
    int64_t n = ai < 0 ? 1 : a->dims[ai], m = ci < 0 ? 1 : c->dims[ci];
    if (n != m && n != 1 && m != 1) {
      *x = *y = tt_builder_fail(b, tt_error(TT_INVALID_ARGUMENT,
                                            "The size of tensor a (%lld) must match the size of tensor b (%lld) at "
                                            "non-singleton dimension %d",
                                            (long long)n, (long long)m, i));
      return;
    }
    dims[i] = n == 1 ? m : n;
  }
  *x = tt_hlo_broadcast_to(b, *x, rank, dims);
  *y = tt_hlo_broadcast_to(b, *y, rank, dims);
}

// --- slices -------------------------------------------------------------------------------------------------------------------

static void emit_slice_ranges(tt_builder *b, int rank, const int64_t *starts, const int64_t *limits,
                              const int64_t *strides) {
  tt_emit(b, " [");
  for (int i = 0; i < rank; ++i) {
    if (i > 0) tt_emit(b, ", ");
    tt_emit_i64(b, starts[i]);
    tt_emit(b, ":");
    tt_emit_i64(b, limits[i]);
    if (strides[i] == 1) continue;
    tt_emit(b, ":");
    tt_emit_i64(b, strides[i]);
  }
  tt_emit(b, "]");
}

tt_value *tt_hlo_slice(tt_builder *b, tt_value *x, const int64_t *starts, const int64_t *limits,
                       const int64_t *strides) {
  if (!TT_HLO_READY(b, "slice", x)) return &tt_hlo_poison;
  int64_t dims[TT_HLO_MAX_RANK];
  bool whole = true;
  for (int i = 0; i < x->rank; ++i) {
    if (starts[i] < 0 || limits[i] < starts[i] || limits[i] > x->dims[i] || strides[i] < 1)
      return TT_HLO_REFUSE(b, "slice",
                           TT_HLO_TEXT(b, "[%lld:%lld:%lld] is out of range in dimension %d", (long long)starts[i],
                                       (long long)limits[i], (long long)strides[i], i),
                           x);
    int64_t extent = limits[i] - starts[i];
    dims[i] = extent == 0 ? 0 : (extent - 1) / strides[i] + 1;
    whole &= dims[i] == x->dims[i];
  }
  if (whole) return x;
  tt_value *result = tt_emit_result(b, "stablehlo.slice", x->dtype, x->rank, dims);
  tt_emit_values(b, " ", 1, &x);
  emit_slice_ranges(b, x->rank, starts, limits, strides);
  return tt_emit_signature(b, 1, &x, result);
}

tt_value *tt_hlo_slice_dim(tt_builder *b, tt_value *x, int dim, int64_t start, int64_t limit, int64_t stride) {
  if (!TT_HLO_READY(b, "slice", x)) return &tt_hlo_poison;
  if (dim < 0 || dim >= x->rank)
    return TT_HLO_REFUSE(b, "slice", TT_HLO_TEXT(b, "dimension %d is out of range", dim), x);
  int64_t starts[TT_HLO_MAX_RANK], limits[TT_HLO_MAX_RANK], strides[TT_HLO_MAX_RANK];
  for (int i = 0; i < x->rank; ++i) {
    starts[i] = i == dim ? start : 0;
    limits[i] = i == dim ? limit : x->dims[i];
    strides[i] = i == dim ? stride : 1;
  }
  return tt_hlo_slice(b, x, starts, limits, strides);
}

// Operands of the dynamic slices: x (and the update), then one scalar per dimension. NULL on failure.
static tt_value **with_starts(tt_builder *b, const char *op, int count, tt_value *const *xs, tt_value *const *starts) {
  int rank = xs[0]->rank;
  if (!TT_HLO_READY_N(b, op, rank, starts)) return NULL;
  for (int i = 0; i < rank; ++i) {
    if (starts[i]->rank == 0 && tt_dtype_is_integral(starts[i]->dtype) && starts[i]->dtype == starts[0]->dtype)
      continue;
    TT_HLO_REFUSE(b, op, TT_HLO_TEXT(b, "start %d is not a scalar of the common integer dtype", i), xs[0], starts[i]);
    return NULL;
  }
  tt_value **operands = tt_hlo_allocate(b, (size_t)(count + rank), sizeof *operands);
  if (operands == NULL) return NULL;
  for (int i = 0; i < count + rank; ++i) operands[i] = i < count ? xs[i] : starts[i - count];
  return operands;
}

tt_value *tt_hlo_dynamic_slice(tt_builder *b, tt_value *x, tt_value *const *starts, const int64_t *sizes) {
  if (!TT_HLO_READY(b, "dynamic_slice", x)) return &tt_hlo_poison;
  for (int i = 0; i < x->rank; ++i) {
    if (sizes[i] < 0 || sizes[i] > x->dims[i])
      return TT_HLO_REFUSE(b, "dynamic_slice",
                           TT_HLO_TEXT(b, "size %lld is out of range in dimension %d", (long long)sizes[i], i), x);
  }
  tt_value **operands = with_starts(b, "dynamic_slice", 1, &x, starts);
  if (operands == NULL) return &tt_hlo_poison;
  tt_value *result = tt_emit_result(b, "stablehlo.dynamic_slice", x->dtype, x->rank, sizes);
  tt_emit_values(b, " ", 1 + x->rank, operands);
  tt_emit_i64s(b, ", sizes = ", x->rank, sizes);
  return tt_emit_signature(b, 1 + x->rank, operands, result);
}

tt_value *tt_hlo_dynamic_update_slice(tt_builder *b, tt_value *x, tt_value *update, tt_value *const *starts) {
  if (!TT_HLO_READY(b, "dynamic_update_slice", x, update)) return &tt_hlo_poison;
  bool fits = x->dtype == update->dtype && x->rank == update->rank;
  for (int i = 0; fits && i < x->rank; ++i) fits = update->dims[i] <= x->dims[i];
  if (!fits) return TT_HLO_REFUSE(b, "dynamic_update_slice", "the update does not fit", x, update);
  tt_value **operands = with_starts(b, "dynamic_update_slice", 2, (tt_value *[]){x, update}, starts);
  if (operands == NULL) return &tt_hlo_poison;
  tt_value *result = tt_emit_result(b, "stablehlo.dynamic_update_slice", x->dtype, x->rank, x->dims);
  tt_emit_values(b, " ", 2 + x->rank, operands);
  return tt_emit_signature(b, 2 + x->rank, operands, result);
}

// --- pad and concatenate --------------------------------------------------------------------------------------------------------

tt_value *tt_hlo_pad(tt_builder *b, tt_value *x, tt_value *fill, const int64_t *low, const int64_t *high,
                     const int64_t *interior) {
  if (!TT_HLO_READY(b, "pad", x, fill)) return &tt_hlo_poison;
  if (fill->rank != 0 || fill->dtype != x->dtype)
    return TT_HLO_REFUSE(b, "pad", "wants a scalar fill of the same dtype", x, fill);
  // XLA for CPUs compiles negative padding only where its algebraic simplifier runs, so what is cropped is sliced off.
  int64_t dims[TT_HLO_MAX_RANK], lows[TT_HLO_MAX_RANK], highs[TT_HLO_MAX_RANK], starts[TT_HLO_MAX_RANK];
  int64_t limits[TT_HLO_MAX_RANK], strides[TT_HLO_MAX_RANK];
  bool nothing = true;
  for (int i = 0; i < x->rank; ++i) {
    int64_t n = x->dims[i], between = 0;
    lows[i] = low[i] > 0 ? low[i] : 0, highs[i] = high[i] > 0 ? high[i] : 0;
    bool fits = interior[i] >= 0 && !__builtin_mul_overflow(n > 0 ? n - 1 : 0, interior[i], &between) &&
                !__builtin_add_overflow(n, between, &n) && !__builtin_add_overflow(n, lows[i], &n) &&
                !__builtin_add_overflow(n, highs[i], &dims[i]) &&
                !__builtin_add_overflow(dims[i], high[i] - highs[i], &limits[i]) &&
                !__builtin_add_overflow(limits[i], low[i] - lows[i], &n) && n >= 0;
    if (!fits)
      return TT_HLO_REFUSE(b, "pad",
                           TT_HLO_TEXT(b, "low %lld, high %lld, interior %lld is out of range in dimension %d",
                                       (long long)low[i], (long long)high[i], (long long)interior[i], i),
                           x, fill);
    starts[i] = lows[i] - low[i], strides[i] = 1;
    nothing &= dims[i] == x->dims[i];
  }
  if (!nothing) {
    tt_value *operands[] = {x, fill};
    tt_value *result = tt_emit_result(b, "stablehlo.pad", x->dtype, x->rank, dims);
    tt_emit_values(b, " ", 2, operands);
    tt_emit_i64s(b, ", low = ", x->rank, lows);
    tt_emit_i64s(b, ", high = ", x->rank, highs);
    tt_emit_i64s(b, ", interior = ", x->rank, interior);
    x = tt_emit_signature(b, 2, operands, result);
  }
  return tt_hlo_slice(b, x, starts, limits, strides);
}

static bool concatenates(const tt_value *x, const tt_value *y, int dim) {
  if (x->dtype != y->dtype || x->rank != y->rank) return false;
  for (int i = 0; i < x->rank; ++i) {
    if (i != dim && x->dims[i] != y->dims[i]) return false;
  }
  return true;
}

tt_value *tt_hlo_concatenate(tt_builder *b, int count, tt_value *const *xs, int dim) {
  if (!TT_HLO_READY_N(b, "concatenate", count, xs)) return &tt_hlo_poison;
  if (count < 1) return tt_builder_fail(b, tt_error(TT_MISMATCH, "concatenate: no operands"));
  if (dim < 0 || dim >= xs[0]->rank)
    return TT_HLO_REFUSE_N(b, "concatenate", TT_HLO_TEXT(b, "dimension %d is out of range", dim), count, xs);
  int64_t dims[TT_HLO_MAX_RANK];
  memcpy(dims, xs[0]->dims, (size_t)xs[0]->rank * sizeof *dims);
  for (int i = 1; i < count; ++i) {
    if (!concatenates(xs[0], xs[i], dim) || __builtin_add_overflow(dims[dim], xs[i]->dims[dim], &dims[dim]))
      return TT_HLO_REFUSE_N(b, "concatenate", TT_HLO_TEXT(b, "operand %d does not fit along dimension %d", i, dim),
                             count, xs);
  }
  if (count == 1) return xs[0];
  tt_value *result = tt_emit_result(b, "stablehlo.concatenate", xs[0]->dtype, xs[0]->rank, dims);
  tt_emit_values(b, " ", count, xs);
  tt_emit(b, ", dim = ");
  tt_emit_i64(b, dim);
  return tt_emit_signature(b, count, xs, result);
}
