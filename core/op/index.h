// index.h - how index tensors address an operand: shared by every lowering that gathers or scatters.
//
// torch has many index ops and XLA has two, gather and scatter, which take the same description of what an index means. A
// tt_index_map is that description; tt_index_read gathers by it and tt_index_write scatters by it, so the backward of a read
// is a write by the same map.
#ifndef TT_OP_INDEX_H_
#define TT_OP_INDEX_H_

#include "op/lowering.h"

enum { TT_INDEX_MAX_DIMS = 130 }; // the ranks of two values, and one dimension more

typedef struct tt_index_map {
  tt_value *index; // [batch..., number of addressed dims], or [batch...] where that number is 1
  int batch_rank;
  int dim_count, dims[TT_INDEX_MAX_DIMS];   // operand dims that an index vector addresses, ascending
  int pair_count, pairs[TT_INDEX_MAX_DIMS]; // operand dims that step along with the same dim of the index
  int window_count,
      window[TT_INDEX_MAX_DIMS];    // dims of what is read or written that run through the rest of the operand
  int64_t slice[TT_INDEX_MAX_DIMS]; // per operand dim: 1, or the whole of it
  int rank;                         // of what is read or written
  int64_t sizes[TT_INDEX_MAX_DIMS];
} tt_index_map;

// Does torch take this index tensor as a mask?
static inline bool tt_is_mask(const tt_tensor *t) { return t->dtype == TT_BOOL || t->dtype == TT_U8; }
// May this dtype index rows (index_select, embedding)?
static inline bool tt_is_index_dtype(tt_dtype dtype) { return dtype == TT_S64 || dtype == TT_S32; }

// The same with torch's error for an argument `indices` of another dtype; `op` is the name that torch gives there.
bool tt_check_index_dtype(tt_lowering *l, int arg, const char *op);

// S32 where positions up to `size` fit, else S64: 64-bit integers are emulated on TPUs.
tt_dtype tt_index_dtype(int64_t size);
// Checks at run time that an index is within [0, size), or [-size, size) with `wrap`, which makes it non-negative. The
// result is of tt_index_dtype(size). `message` is static text.
tt_value *tt_index_checked(tt_lowering *l, tt_value *index, int64_t size, bool wrap, tt_code code, const char *message);

// Whole rows along `dim`: index of any shape, which stands in place of `dim` in what is read (torch's index_select).
void tt_map_rows(tt_index_map *map, const tt_value *x, int dim, tt_value *index);
// One element per index, which has x's sizes but for `dim` (torch's gather). See tt_corner.
void tt_map_elements(tt_index_map *map, const tt_value *x, int dim, tt_value *index);
// Points in the ascending dims `dims`: one index of a common shape each. They stand at dim `position` of what is read, in
// front of and behind the operand's other dims (torch's x[i, j]).
void tt_map_points(tt_builder *b, tt_index_map *map, const tt_value *x, int count, const int *dims,
                   tt_value *const *indices, int position);
// torch's list of index tensors and masks in argument `arg`, for x[...]. `mask_count` is the number of true elements of its
// masks, or -1 where it is not known: then the map writes whatever their number, but must not be read by.
// False when the call fails, or when no dim is indexed.
bool tt_map_advanced(tt_lowering *l, tt_index_map *map, tt_value *x, int arg, int64_t mask_count);

tt_value *tt_index_read(tt_builder *b, tt_value *x, const tt_index_map *map);
// Updates have the map's sizes and x's dtype. Sums and products of narrow floats are formed in float32; sum and product of
// BOOL are "or" and "and". Updates whose index is out of range are dropped.
tt_value *tt_index_write(tt_builder *b, tt_value *x, const tt_index_map *map, tt_value *updates, tt_combine combine);
// The same for rows along one dim, the commonest case.
tt_value *tt_take_rows(tt_builder *b, tt_value *x, int dim, tt_value *index);
// x + y as TT_COMBINE_ADD means it: "or" for BOOL.
static inline tt_value *tt_accumulate(tt_builder *b, tt_value *x, tt_value *y) {
  return x->dtype == TT_BOOL ? tt_hlo_or(b, x, y) : tt_hlo_add(b, x, y);
}

// The corner of x at the origin with these sizes (rank of x; larger ones count as x's own), except that `keep` is whole.
tt_value *tt_corner(tt_builder *b, tt_value *x, const int64_t *sizes, int keep);
// x with its corner at the origin replaced.
tt_value *tt_put_corner(tt_builder *b, tt_value *x, tt_value *corner);
// The permutation that brings `dim` to the front and the one that undoes it.
void tt_dim_first(int rank, int dim, int *order, int *back);
// A value of rank 0 as one of rank 1; others as they are.
tt_value *tt_at_least_1d(tt_builder *b, tt_value *x);
tt_value *tt_flat(tt_builder *b, tt_value *x); // rank 1

// Inclusive running sum along `dim`.
tt_value *tt_running_sum(tt_builder *b, tt_value *x, int dim);
// For each element of a rank-1 BOOL: how many true ones stand at or before it, less one.
tt_value *tt_mask_ranks(tt_builder *b, tt_value *mask);
// The positions of the first `count` true elements of a rank-1 BOOL; those that do not exist are `fill`.
tt_value *tt_mask_positions(tt_builder *b, tt_value *mask, int64_t count, int64_t fill);

#endif // TT_OP_INDEX_H_
