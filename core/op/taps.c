// taps.c - see taps.h.
#include "op/taps.h"

#include <string.h>

#include "op/axes.h"
#include "op/index.h"

enum { MANY_TAPS = 16 }; // more would make the program long

bool tt_taps_create(tt_lowering *l, int64_t in, int64_t out, int64_t count, tt_taps *taps) {
  tt_arena *arena = tt_builder_arena(l->b);
  size_t entries = (size_t)(out * count > 0 ? out * count : 1);
  *taps = (tt_taps){.in = in, .out = out, .count = (int)count};
  taps->index = tt_arena_allocate(arena, entries, sizeof *taps->index);
  taps->weight = tt_arena_allocate(arena, entries, sizeof *taps->weight);
  if (taps->index && taps->weight) return true;
  tt_fail(l, TT_OUT_OF_MEMORY, "out of host memory while lowering %s", l->op->name);
  return false;
}

bool tt_taps_transpose(tt_lowering *l, const tt_taps *taps, tt_taps *transposed) {
  int64_t *used = tt_arena_allocate(tt_builder_arena(l->b), (size_t)taps->in + 1, sizeof *used);
  if (!used) return tt_taps_create(l, 0, INT64_MAX, 1, transposed); // fails
  int64_t entries = taps->out * taps->count, most = 1;
  for (int64_t i = 0; i < entries; ++i)
    if (taps->weight[i] != 0 && ++used[taps->index[i]] > most) most = used[taps->index[i]];
  if (!tt_taps_create(l, taps->out, taps->in, most, transposed)) return false;
  memset(used, 0, (size_t)taps->in * sizeof *used);
  for (int64_t i = 0; i < entries; ++i) {
    if (taps->weight[i] == 0) continue;
    int64_t at = taps->index[i] * most + used[taps->index[i]]++;
    transposed->index[at] = i / taps->count;
    transposed->weight[at] = taps->weight[i];
  }
  return true;
}

// --- tables as constants -----------------------------------------------------------------------------------------------------

// [out, count]. Behind a barrier, or XLA would work the whole map out at compile time, element by element.
static tt_value *index_table(tt_lowering *l, const tt_taps *taps) {
  tt_value *all = tt_hlo_constant_vector(l->b, TT_S32, (int)(taps->out * taps->count), taps->index);
  return tt_hlo_reshape(l->b, tt_hlo_optimization_barrier(l->b, all), 2, (int64_t[]){taps->out, taps->count});
}

// [out, count] in `dtype`, F32 or F64, written as the bits of its numbers.
static tt_value *weight_table(tt_lowering *l, const tt_taps *taps, tt_dtype dtype) {
  int64_t count = taps->out * taps->count;
  int64_t *bits = tt_arena_allocate(tt_builder_arena(l->b), (size_t)count + 1, sizeof *bits);
  for (int64_t i = 0; bits && i < count; ++i) {
    if (dtype == TT_F64) {
      memcpy(&bits[i], &taps->weight[i], sizeof bits[i]);
    } else {
      float weight = (float)taps->weight[i];
      int32_t word;
      memcpy(&word, &weight, sizeof word);
      bits[i] = word;
    }
  }
  if (!bits) tt_fail(l, TT_OUT_OF_MEMORY, "out of host memory while lowering %s", l->op->name);
  tt_value *all = tt_hlo_constant_vector(l->b, dtype == TT_F64 ? TT_S64 : TT_S32, bits ? (int)count : 0, bits);
  all = tt_hlo_bitcast_convert(l->b, tt_hlo_optimization_barrier(l->b, all), dtype, 1, &count);
  return tt_hlo_reshape(l->b, all, 2, (int64_t[]){taps->out, taps->count});
}

// --- forms -------------------------------------------------------------------------------------------------------------------

// A matmul by the map's matrix [in, out]: the fast form on a TPU, for finite x. Others would spread along their whole row.
static tt_value *by_matrix(tt_lowering *l, tt_value *x, int dim, const tt_taps *taps) {
  tt_builder *b = l->b;
  const int64_t dims[] = {taps->in, taps->out, taps->count};
  tt_value *index = tt_hlo_broadcast_in_dim(b, index_table(l, taps), 3, dims, (int[]){1, 2});
  tt_value *weight = tt_hlo_broadcast_in_dim(b, weight_table(l, taps, x->dtype), 3, dims, (int[]){1, 2});
  tt_value *here = tt_hlo_compare(b, TT_EQ, index, tt_hlo_iota(b, TT_S32, 3, dims, 0));
  tt_value *matrix = tt_hlo_select(b, here, weight, tt_hlo_constant_like(b, weight, 0));
  matrix = tt_hlo_reduce(b, matrix, TT_REDUCE_ADD, 1, (int[]){2});
  const tt_dot numbers = {.contract_count = 1, .lhs_contract = &dim, .rhs_contract = (int[]){0}};
  tt_value *y = tt_hlo_dot_general(b, x, matrix, &numbers, x->dtype, TT_PRECISION_HIGHEST);
  int order[8]; // the new dimension is last; back into its place
  for (int i = 0; i < x->rank; ++i) order[i] = i < dim ? i : i == dim ? x->rank - 1 : i - 1;
  return tt_hlo_transpose(b, y, order);
}

static bool has_unused(const tt_taps *taps) {
  for (int64_t i = 0; i < taps->out * taps->count; ++i)
    if (taps->weight[i] == 0) return true;
  return false;
}

// pieces * factors, broadcast from `factor_dims` on; an unused tap gives 0 even where the piece is not finite.
static tt_value *weigh(tt_lowering *l, tt_value *pieces, tt_value *factors, const int *factor_dims, bool unused) {
  tt_builder *b = l->b;
  factors = tt_hlo_broadcast_in_dim(b, factors, pieces->rank, pieces->dims, factor_dims);
  tt_value *y = tt_hlo_multiply(b, pieces, factors), *zero = tt_hlo_constant_like(b, y, 0);
  return unused ? tt_hlo_select(b, tt_hlo_compare(b, TT_EQ, factors, zero), zero, y) : y;
}

// One gather and one multiply-add per tap.
static tt_value *by_rows(tt_lowering *l, tt_value *x, int dim, const tt_taps *taps) {
  tt_builder *b = l->b;
  tt_value *index = index_table(l, taps), *weight = weight_table(l, taps, x->dtype), *sum = NULL;
  bool unused = has_unused(taps);
  for (int t = 0; t < taps->count; ++t) {
    tt_value *rows = tt_hlo_reshape(b, tt_hlo_slice_dim(b, index, 1, t, t + 1, 1), 1, &taps->out);
    tt_value *factor = tt_hlo_reshape(b, tt_hlo_slice_dim(b, weight, 1, t, t + 1, 1), 1, &taps->out);
    tt_value *term = weigh(l, tt_take_rows(b, x, dim, rows), factor, &dim, unused);
    sum = sum ? tt_hlo_add(b, sum, term) : term;
  }
  return sum;
}

// One gather of all taps side by side, and one sum.
static tt_value *by_windows(tt_lowering *l, tt_value *x, int dim, const tt_taps *taps) {
  tt_value *pieces = tt_take_rows(l->b, x, dim, index_table(l, taps)); // dim becomes [out, count]
  const int at[] = {dim, dim + 1};
  tt_value *terms = weigh(l, pieces, weight_table(l, taps, x->dtype), at, has_unused(taps));
  return tt_hlo_reduce(l->b, terms, TT_REDUCE_ADD, 1, &at[1]);
}

static tt_value *by_gathers(tt_lowering *l, tt_value *x, int dim, const tt_taps *taps) {
  return taps->count <= MANY_TAPS ? by_rows(l, x, dim, taps) : by_windows(l, x, dim, taps);
}

typedef struct gathers {
  tt_lowering *l;
  int dim;
  const tt_taps *taps;
} gathers;

// (x, y) -> (x, the map of x)
static void gather_again(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)b;
  const gathers *g = user;
  results[0] = state[0];
  results[1] = by_gathers(g->l, state[0], g->dim, g->taps);
}

tt_value *tt_taps_apply(tt_lowering *l, tt_value *x, int dim, const tt_taps *taps) {
  tt_builder *b = l->b;
  if (tt_failed(l)) return x;
  if (!tt_builder_target(b)->is_tpu) return by_gathers(l, x, dim, taps);
  tt_value *state[] = {x, by_matrix(l, x, dim, taps)};
  gathers g = {.l = l, .dim = dim, .taps = taps};
  tt_value *finite = tt_reduce(b, tt_hlo_is_finite(b, x), TT_REDUCE_AND, tt_axes_range(0, x->rank));
  tt_hlo_when(b, tt_hlo_not(b, finite), 2, state, gather_again, &g, state);
  return state[1];
}
