// view.c - see view.h.
#include "op/view.h"

#include <string.h>

#include "base/arena.h"

// --- matching ---------------------------------------------------------------------------------------------------------

typedef struct window_dim {
  int64_t size, stride;
  int index; // in the window
} window_dim;

// Active dimensions, sorted by stride from large to small. False when there are too many.
static bool collect_active(int rank, const int64_t *sizes, const int64_t *strides, window_dim *dims, int *out_count) {
  int count = 0;
  for (int i = 0; i < rank; ++i) {
    if (sizes[i] == 1 || strides[i] == 0) continue;
    if (count == TT_VIEW_MAX_DIMS) return false;
    int at = count++;
    for (; at > 0 && dims[at - 1].stride < strides[i]; --at) dims[at] = dims[at - 1];
    dims[at] = (window_dim){sizes[i], strides[i], i};
  }
  *out_count = count;
  return true;
}

typedef enum split_result { SPLIT_OK, SPLIT_MERGE_OUT, SPLIT_MERGE_IN, SPLIT_FAIL } split_result;

// Splits layout dimension j (extent, stride) by the `count` active dims that fall into it, appending to the view.
static split_result split_dimension(tt_view *v, int j, int64_t extent, int64_t stride, int64_t modulus, int64_t offset,
                                    const window_dim *dims, int count) {
  int64_t start = offset / stride;
  if (modulus) start %= modulus;
  int64_t last = start; // position of the window's last element in this dimension
  for (int k = 0; k < count; ++k) {
    if (dims[k].stride % stride) return SPLIT_MERGE_IN;
    last += (dims[k].size - 1) * (dims[k].stride / stride);
  }
  if (last >= extent) return SPLIT_MERGE_OUT;

  int64_t outer = count ? dims[0].stride / stride : 1;
  int64_t padded = (extent + outer - 1) / outer * outer;
  v->base[j] = extent;
  v->pad[j] = padded - extent;
  int64_t above = 0; // t of the part outside this one; 0 for the outermost
  for (int k = 0; k <= count; ++k) {
    int64_t t = k < count ? dims[k].stride / stride : 1;
    if (k == count && above == 1) break; // the innermost active dim has the layout's own stride
    if (above && above % t) return SPLIT_FAIL;
    if (v->rank == TT_VIEW_MAX_DIMS) return SPLIT_FAIL;
    int64_t part = above ? above / t : padded / t;
    int64_t size = k < count ? dims[k].size : 1;
    tt_digit digit = {stride, modulus, t, above ? part : 0};
    if (tt_digit_value(&digit, offset) + size > part) return count ? SPLIT_FAIL : SPLIT_MERGE_OUT;
    v->extent[v->rank] = part;
    v->size[v->rank] = size;
    v->digit[v->rank++] = digit;
    above = t;
  }
  return SPLIT_OK;
}

// One attempt with the layout dims `base` (no size-1 dims among them).
static split_result try_match(tt_view *v, int base_rank, const int64_t *base, const window_dim *dims, int count,
                              int64_t offset, int *out_at) {
  v->rank = 0;
  v->base_rank = base_rank;
  int64_t strides[TT_VIEW_MAX_DIMS];
  tt_row_major_strides(base_rank, base, strides);
  int next = 0;
  for (int j = 0; j < base_rank; ++j) {
    int first = next;
    // The last dimension takes all that is left: strides below 1 do not exist.
    while (next < count && dims[next].stride >= strides[j]) ++next;
    split_result r = split_dimension(v, j, base[j], strides[j], j ? base[j] : 0, offset, dims + first, next - first);
    if (r != SPLIT_OK) {
      *out_at = j;
      return r;
    }
  }
  return SPLIT_OK;
}

static bool is_whole(int base_rank, const int64_t *base, int rank, const int64_t *sizes, const int64_t *strides,
                     int64_t offset) {
  if (base_rank != rank || offset != 0) return false;
  int64_t stride = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (sizes[i] != base[i] || (sizes[i] != 1 && strides[i] != stride)) return false;
    stride *= sizes[i];
  }
  return true;
}

// Do two active dimensions reach the same element? A sufficient test for strided windows.
static bool overlaps(const window_dim *dims, int count) {
  for (int i = 0; i + 1 < count; ++i)
    if (dims[i + 1].stride == dims[i].stride || (dims[i + 1].size - 1) * dims[i + 1].stride >= dims[i].stride)
      return true;
  return false;
}

void tt_view_match(int base_rank, const int64_t *base, int rank, const int64_t *sizes, const int64_t *strides,
                   int64_t offset, tt_view *v) {
  v->full = false;
  v->rank = v->base_rank = v->active_count = 0;
  if (is_whole(base_rank, base, rank, sizes, strides, offset)) {
    v->kind = TT_VIEW_WHOLE;
    v->full = true;
    return;
  }
  for (int i = 0; i < rank; ++i)
    if (sizes[i] == 0) {
      v->kind = TT_VIEW_EMPTY;
      return;
    }
  v->kind = TT_VIEW_GATHER;
  window_dim dims[TT_VIEW_MAX_DIMS];
  int count = 0;
  if (!collect_active(rank, sizes, strides, dims, &count) || overlaps(dims, count)) return;

  int64_t merged[TT_VIEW_MAX_DIMS];
  int merged_rank = 0;
  for (int i = 0; i < base_rank; ++i) {
    if (base[i] == 1) continue;
    if (merged_rank == TT_VIEW_MAX_DIMS) { // too deep to keep apart: flatten the rest
      merged[merged_rank - 1] *= base[i];
      continue;
    }
    merged[merged_rank++] = base[i];
  }
  if (merged_rank == 0) merged[merged_rank++] = 1;
  for (;;) {
    int at = 0;
    split_result r = try_match(v, merged_rank, merged, dims, count, offset, &at);
    if (r == SPLIT_OK) break;
    int into = r == SPLIT_MERGE_IN ? at : at - 1; // merges dims into and into + 1
    if (r == SPLIT_FAIL && merged_rank > 1) into = at > 0 ? at - 1 : 0;
    if (merged_rank == 1 || into < 0 || into + 1 >= merged_rank) return;
    merged[into] *= merged[into + 1];
    memmove(merged + into + 1, merged + into + 2, (size_t)(merged_rank - into - 2) * sizeof *merged);
    --merged_rank;
  }
  v->kind = TT_VIEW_STRIDED;
  v->active_count = count;
  for (int i = 0; i < count; ++i) v->active[i] = dims[i].index;
  v->full = true;
  for (int i = 0; i < v->rank; ++i) v->full &= v->size[i] == v->extent[i];
  for (int i = 0; i < v->base_rank; ++i) v->full &= v->pad[i] == 0;
  for (int i = 0; i < rank; ++i) v->full &= sizes[i] == 1 || strides[i] != 0;
}

// --- reinterpretation ---------------------------------------------------------------------------------------------------

// BOOL has no bits in StableHLO, so it goes through U8; complex goes through its real dtype.
static tt_dtype bits_dtype(tt_dtype dtype) { return dtype == TT_BOOL ? TT_U8 : tt_dtype_real(dtype); }

// Dims after reading `dims` of `from` as `to`, both plain (not BOOL, not complex).
static bool plain_dims(tt_dtype from, tt_dtype to, int *rank, int64_t *dims) {
  int a = tt_dtype_size(from), c = tt_dtype_size(to);
  if (a == c) return true;
  if (a > c) {
    dims[(*rank)++] = a / c;
    return true;
  }
  int64_t k = c / a;
  if (*rank && dims[*rank - 1] == k) {
    --*rank;
    return true;
  }
  if (*rank && dims[*rank - 1] % k == 0) {
    dims[*rank - 1] /= k;
    return true;
  }
  int64_t count = 1;
  for (int i = 0; i < *rank; ++i) count *= dims[i];
  if (count % k) return false;
  dims[0] = count / k;
  *rank = 1;
  return true;
}

bool tt_reinterpret_dims(tt_dtype from, int rank, const int64_t *dims, tt_dtype to, int *out_rank, int64_t *out_dims) {
  if (rank) memcpy(out_dims, dims, (size_t)rank * sizeof *dims);
  *out_rank = rank;
  if (from == to) return true;
  if (tt_dtype_is_complex(from)) out_dims[(*out_rank)++] = 2;
  if (!plain_dims(bits_dtype(from), bits_dtype(to), out_rank, out_dims)) return false;
  if (!tt_dtype_is_complex(to)) return true;
  int last = *out_rank - 1;
  if (last >= 0 && out_dims[last] == 2) {
    *out_rank = last;
    return true;
  }
  if (last >= 0 && out_dims[last] % 2 == 0) {
    out_dims[last] /= 2;
    return true;
  }
  int64_t count = 1;
  for (int i = 0; i <= last; ++i) count *= out_dims[i];
  if (count % 2) return false;
  out_dims[0] = count / 2;
  *out_rank = 1;
  return true;
}

// Bits of x (plain) as `to` (plain), with dims as plain_dims gives them.
static tt_value *emit_plain(tt_builder *b, tt_value *x, tt_dtype to) {
  int a = tt_dtype_size(x->dtype), c = tt_dtype_size(to);
  int64_t *dims = tt_arena_allocate(tt_builder_arena(b), (size_t)x->rank + 2, sizeof *dims);
  if (!dims) return tt_builder_fail(b, tt_error(TT_OUT_OF_MEMORY, "out of host memory"));
  int rank = x->rank;
  if (rank) memcpy(dims, x->dims, (size_t)rank * sizeof *dims);
  if (a == c) return tt_hlo_bitcast_convert(b, x, to, rank, dims);
  if (!plain_dims(x->dtype, to, &rank, dims))
    return tt_builder_fail(b, tt_internal_error("reinterpreting %s as %s", tt_dtype_text(x->dtype), tt_dtype_text(to)));
  if (a > c) return tt_hlo_bitcast_convert(b, x, to, rank, dims);
  int64_t k = c / a;
  int64_t *split = tt_arena_allocate(tt_builder_arena(b), (size_t)rank + 1, sizeof *split);
  if (!split) return tt_builder_fail(b, tt_error(TT_OUT_OF_MEMORY, "out of host memory"));
  if (rank) memcpy(split, dims, (size_t)rank * sizeof *split);
  split[rank] = k;
  return tt_hlo_bitcast_convert(b, tt_hlo_reshape(b, x, rank + 1, split), to, rank, dims);
}

// [..., 2] of a real dtype -> complex without the last dim.
static tt_value *emit_join_complex(tt_builder *b, tt_value *x) {
  int last = x->rank - 1;
  tt_value *real = tt_hlo_squeeze_dim(b, tt_hlo_slice_dim(b, x, last, 0, 1, 1), last);
  tt_value *imag = tt_hlo_squeeze_dim(b, tt_hlo_slice_dim(b, x, last, 1, 2, 1), last);
  return tt_hlo_complex(b, real, imag);
}

static tt_value *emit_split_complex(tt_builder *b, tt_value *x) {
  tt_value *parts[2] = {tt_hlo_unsqueeze_dim(b, tt_hlo_real(b, x), x->rank),
                        tt_hlo_unsqueeze_dim(b, tt_hlo_imag(b, x), x->rank)};
  return tt_hlo_concatenate(b, 2, parts, x->rank);
}

tt_value *tt_emit_reinterpret(tt_builder *b, tt_value *x, tt_dtype to) {
  if (x->dtype == to || tt_builder_failed(b)) return x;
  int rank;
  int64_t *dims = tt_arena_allocate(tt_builder_arena(b), (size_t)x->rank + 2, sizeof *dims);
  if (!dims) return tt_builder_fail(b, tt_error(TT_OUT_OF_MEMORY, "out of host memory"));
  if (!tt_reinterpret_dims(x->dtype, x->rank, x->dims, to, &rank, dims))
    return tt_builder_fail(b, tt_error(TT_INVALID_ARGUMENT, "a storage of %s cannot be viewed as %s",
                                       tt_dtype_text(x->dtype), tt_dtype_text(to)));
  return tt_emit_reinterpret_back(b, x, to, rank, dims);
}

tt_value *tt_emit_reinterpret_back(tt_builder *b, tt_value *x, tt_dtype to, int rank, const int64_t *dims) {
  if (x->dtype == to) return tt_hlo_reshape(b, x, rank, dims);
  tt_dtype plain_to = bits_dtype(to);
  if (tt_dtype_is_complex(x->dtype)) x = emit_split_complex(b, x);
  if (x->dtype == TT_BOOL) x = tt_hlo_convert(b, x, TT_U8);
  if (x->dtype != plain_to) x = emit_plain(b, x, plain_to);
  if (tt_dtype_is_complex(to)) {
    int64_t *split = tt_arena_allocate(tt_builder_arena(b), (size_t)rank + 1, sizeof *split);
    if (!split) return tt_builder_fail(b, tt_error(TT_OUT_OF_MEMORY, "out of host memory"));
    if (rank) memcpy(split, dims, (size_t)rank * sizeof *split);
    split[rank] = 2;
    return emit_join_complex(b, tt_hlo_reshape(b, x, rank + 1, split));
  }
  if (to == TT_BOOL) x = tt_hlo_convert(b, x, TT_BOOL);
  return tt_hlo_reshape(b, x, rank, dims);
}

// --- reading -----------------------------------------------------------------------------------------------------------

static int64_t product(int count, const int64_t *dims) {
  int64_t p = 1;
  for (int i = 0; i < count; ++i) p *= dims[i];
  return p;
}

static bool has_padding(const tt_view *v) {
  for (int i = 0; i < v->base_rank; ++i)
    if (v->pad[i]) return true;
  return false;
}

// base -> merged -> padded -> split.
static tt_value *emit_split(tt_builder *b, tt_value *base, const tt_view *v) {
  if (has_padding(v)) {
    static const int64_t none[TT_VIEW_MAX_DIMS] = {0};
    base = tt_hlo_reshape(b, base, v->base_rank, v->base);
    base = tt_hlo_pad(b, base, tt_hlo_constant(b, base->dtype, 0), none, v->pad, none);
  }
  return tt_hlo_reshape(b, base, v->rank, v->extent);
}

// Start scalars of each split dimension: constants 0 where the window takes all of it.
static void emit_starts(tt_builder *b, const tt_view *v, tt_digit_fn digit, void *user, tt_value **starts) {
  tt_value *zero = NULL;
  for (int i = 0; i < v->rank; ++i) {
    if (v->size[i] != v->extent[i]) {
      starts[i] = digit(user, &v->digit[i]);
      continue;
    }
    if (!zero) zero = tt_hlo_constant(b, TT_S32, 0);
    starts[i] = zero;
  }
}

static bool is_sliced(const tt_view *v) {
  for (int i = 0; i < v->rank; ++i)
    if (v->size[i] != v->extent[i]) return true;
  return false;
}

// order[i] = position among the active dims, taken in window order, of the i-th sorted one.
static void active_order(const tt_view *v, int *order) {
  for (int i = 0; i < v->active_count; ++i) {
    order[i] = 0;
    for (int k = 0; k < v->active_count; ++k) order[i] += v->active[k] < v->active[i];
  }
}

static tt_value *read_strided(tt_builder *b, tt_value *base, const tt_view *v, int rank, const int64_t *sizes,
                              const int64_t *strides, tt_digit_fn digit, void *user) {
  tt_value *x = emit_split(b, base, v);
  if (is_sliced(v)) {
    tt_value *starts[TT_VIEW_MAX_DIMS];
    emit_starts(b, v, digit, user, starts);
    x = tt_hlo_dynamic_slice(b, x, starts, v->size);
  }
  // Sorted active sizes, then window order.
  int64_t sorted[TT_VIEW_MAX_DIMS];
  int order[TT_VIEW_MAX_DIMS], permutation[TT_VIEW_MAX_DIMS];
  active_order(v, order);
  for (int i = 0; i < v->active_count; ++i) {
    sorted[i] = sizes[v->active[i]];
    permutation[order[i]] = i;
  }
  x = tt_hlo_reshape(b, x, v->active_count, sorted);
  x = tt_hlo_transpose(b, x, permutation);
  bool expanded = false;
  for (int i = 0; i < rank; ++i) expanded |= sizes[i] > 1 && strides[i] == 0;
  if (!expanded) return tt_hlo_reshape(b, x, rank, sizes);
  int map[TT_VIEW_MAX_DIMS], count = 0;
  for (int i = 0; i < rank; ++i)
    if (sizes[i] > 1 && strides[i] != 0) map[count++] = i;
  return tt_hlo_broadcast_in_dim(b, x, rank, sizes, map);
}

// Flat positions of the window's elements as S64, shape `sizes`.
static tt_value *emit_positions(tt_builder *b, int rank, const int64_t *sizes, const int64_t *strides,
                                tt_digit_fn digit, void *user) {
  tt_value *sum = tt_hlo_broadcast_to(b, digit(user, NULL), rank, sizes);
  for (int i = 0; i < rank; ++i) {
    if (sizes[i] == 1 || strides[i] == 0) continue;
    tt_value *at = tt_hlo_iota(b, TT_S64, rank, sizes, i);
    sum = tt_hlo_add(b, sum, tt_hlo_multiply(b, at, tt_hlo_constant_like(b, at, (double)strides[i])));
  }
  return sum;
}

static tt_value *read_gather(tt_builder *b, tt_value *base, int rank, const int64_t *sizes, const int64_t *strides,
                             tt_digit_fn digit, void *user) {
  int64_t flat = tt_value_count(base), count = product(rank, sizes);
  tt_value *positions =
      tt_hlo_reshape(b, emit_positions(b, rank, sizes, strides, digit, user), 2, (int64_t[]){count, 1});
  const tt_gather numbers = {.collapsed_count = 1,
                             .collapsed_dims = (int[]){0},
                             .map_count = 1,
                             .start_index_map = (int[]){0},
                             .index_vector_dim = 1,
                             .slice_sizes = (int64_t[]){1}};
  tt_value *x = tt_hlo_gather(b, tt_hlo_reshape(b, base, 1, &flat), positions, &numbers);
  return tt_hlo_reshape(b, x, rank, sizes);
}

tt_value *tt_emit_view_read(tt_builder *b, tt_value *base, const tt_view *v, int rank, const int64_t *sizes,
                            const int64_t *strides, tt_digit_fn digit, void *user) {
  switch (v->kind) {
  case TT_VIEW_WHOLE: return base;
  case TT_VIEW_EMPTY: return tt_hlo_splat(b, base->dtype, rank, sizes, 0);
  case TT_VIEW_STRIDED: return read_strided(b, base, v, rank, sizes, strides, digit, user);
  case TT_VIEW_GATHER: return read_gather(b, base, rank, sizes, strides, digit, user);
  }
  return tt_builder_fail(b, tt_internal_error("view kind %d", (int)v->kind));
}

// --- writing -----------------------------------------------------------------------------------------------------------

static tt_value *write_strided(tt_builder *b, tt_value *base, tt_value *x, const tt_view *v, int base_rank,
                               const int64_t *base_dims, const int64_t *sizes, tt_digit_fn digit, void *user) {
  // Window order -> active only -> sorted -> split sizes.
  int64_t in_order[TT_VIEW_MAX_DIMS];
  int order[TT_VIEW_MAX_DIMS];
  active_order(v, order);
  for (int i = 0; i < v->active_count; ++i) in_order[order[i]] = sizes[v->active[i]];
  x = tt_hlo_reshape(b, x, v->active_count, in_order);
  x = tt_hlo_transpose(b, x, order);
  x = tt_hlo_reshape(b, x, v->rank, v->size);
  if (!v->full) {
    tt_value *starts[TT_VIEW_MAX_DIMS];
    emit_starts(b, v, digit, user, starts);
    x = tt_hlo_dynamic_update_slice(b, emit_split(b, base, v), x, starts);
  }
  if (has_padding(v)) {
    int64_t padded[TT_VIEW_MAX_DIMS], zeros[TT_VIEW_MAX_DIMS], ones[TT_VIEW_MAX_DIMS];
    for (int i = 0; i < v->base_rank; ++i) {
      padded[i] = v->base[i] + v->pad[i];
      zeros[i] = 0;
      ones[i] = 1;
    }
    x = tt_hlo_slice(b, tt_hlo_reshape(b, x, v->base_rank, padded), zeros, v->base, ones);
  }
  return tt_hlo_reshape(b, x, base_rank, base_dims);
}

static tt_value *write_scatter(tt_builder *b, tt_value *base, tt_value *x, int rank, const int64_t *sizes,
                               const int64_t *strides, tt_digit_fn digit, void *user) {
  int64_t flat = tt_value_count(base), count = product(rank, sizes);
  tt_value *positions =
      tt_hlo_reshape(b, emit_positions(b, rank, sizes, strides, digit, user), 2, (int64_t[]){count, 1});
  const tt_scatter numbers = {.inserted_count = 1,
                              .inserted_window_dims = (int[]){0},
                              .map_count = 1,
                              .scatter_dims_to_operand_dims = (int[]){0},
                              .index_vector_dim = 1};
  tt_value *updated = tt_hlo_scatter(b, tt_hlo_reshape(b, base, 1, &flat), positions, tt_hlo_reshape(b, x, 1, &count),
                                     &numbers, TT_COMBINE_REPLACE);
  return tt_hlo_reshape(b, updated, base->rank, base->dims);
}

tt_value *tt_emit_view_write(tt_builder *b, tt_value *base, tt_value *value, const tt_view *v, int base_rank,
                             const int64_t *base_dims, int rank, const int64_t *sizes, const int64_t *strides,
                             tt_digit_fn digit, void *user) {
  switch (v->kind) {
  case TT_VIEW_WHOLE: return value;
  case TT_VIEW_EMPTY: return base;
  case TT_VIEW_STRIDED: return write_strided(b, base, value, v, base_rank, base_dims, sizes, digit, user);
  case TT_VIEW_GATHER: return write_scatter(b, base, value, rank, sizes, strides, digit, user);
  }
  return tt_builder_fail(b, tt_internal_error("view kind %d", (int)v->kind));
}
