// view.h - the one place that reads views and the one place that writes them.
//
// A storage's value is an N-d row-major array (its layout). A torch tensor is any (sizes, strides, offset) window on it. This
// file matches the window against the layout and emits the window's read as pad, reshape, dynamic_slice, transpose and
// broadcast, and its write as the same backwards around dynamic_update_slice. Windows that no such chain describes
// (overlapping ones like unfold, odd strides) become one gather or scatter of computed positions.
//
// How it matches. Window dimensions of size 1 or stride 0 are set aside; the others are sorted by stride. Each is assigned to
// the layout dimension in whose stride range it falls; a stride that is a multiple t of the layout dimension's splits that
// dimension into [extent / t, t], after padding where t does not divide it (x[::3] of 10). Where a window dimension runs over
// the end of its layout dimension (x.view(-1), x.flatten()[3:20]), the layout dimension is merged with the one outside it and
// matching starts again, at worst down to one flat dimension.
//
// Offsets are not part of the match's identity: they enter the program at run time as digits, one per sliced dimension, so
// that slices at new offsets need no new program.
#ifndef TT_OP_VIEW_H_
#define TT_OP_VIEW_H_

#include <stdbool.h>
#include <stdint.h>

#include "hlo/builder.h"

enum { TT_VIEW_MAX_DIMS = 24 };

// digit = ((offset / divisor) % modulus) / inner_divisor % inner_modulus; a modulus of 0 means none.
typedef struct tt_digit {
  int64_t divisor, modulus, inner_divisor, inner_modulus;
} tt_digit;

typedef enum tt_view_kind {
  TT_VIEW_WHOLE,   // the window is the value itself, in order
  TT_VIEW_EMPTY,   // no elements
  TT_VIEW_STRIDED, // pad, reshape, slice, transpose, broadcast
  TT_VIEW_GATHER,  // computed positions
} tt_view_kind;

typedef struct tt_view {
  tt_view_kind kind;
  bool full; // WHOLE, or STRIDED covering every element once: a write needs no read of the old value
  // The layout after reinterpretation to the window's dtype and after merging.
  int base_rank;
  int64_t base[TT_VIEW_MAX_DIMS], pad[TT_VIEW_MAX_DIMS]; // extents; elements added at the high end
  // base split by the window's strides, and the window on it.
  int rank;
  int64_t extent[TT_VIEW_MAX_DIMS], size[TT_VIEW_MAX_DIMS];
  tt_digit digit[TT_VIEW_MAX_DIMS];
  // Active (size > 1, stride != 0) window dimensions, sorted by stride: active[i] is the window's dimension number.
  int active_count;
  int active[TT_VIEW_MAX_DIMS];
} tt_view;

// The strides of a row-major array without gaps; a size of 0 counts as 1.
static inline void tt_row_major_strides(int rank, const int64_t *sizes, int64_t *strides) {
  int64_t stride = 1;
  for (int i = rank - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= sizes[i] > 0 ? sizes[i] : 1;
  }
}

// Matches a window of `rank` dimensions on a row-major array of `base_rank` dims, both in elements of one dtype.
void tt_view_match(int base_rank, const int64_t *base, int rank, const int64_t *sizes, const int64_t *strides,
                   int64_t offset, tt_view *out_view);
// The value of a digit for an offset.
static inline int64_t tt_digit_value(const tt_digit *d, int64_t offset) {
  int64_t v = offset / d->divisor;
  if (d->modulus) v %= d->modulus;
  v /= d->inner_divisor;
  if (d->inner_modulus) v %= d->inner_modulus;
  return v;
}

// Dims of a value of dtype `from` and dims `dims` after its bits are read as `to` (view(dtype), view_as_real). `out_dims` has
// room for rank + 1. False when the bytes cannot be divided into elements of `to`.
bool tt_reinterpret_dims(tt_dtype from, int rank, const int64_t *dims, tt_dtype to, int *out_rank, int64_t *out_dims);
// Emits that reinterpretation; the result has tt_reinterpret_dims' dims.
tt_value *tt_emit_reinterpret(tt_builder *b, tt_value *x, tt_dtype to);
// The same backwards: x, a reinterpreted value, as a value of dtype `to` with dims `dims`.
tt_value *tt_emit_reinterpret_back(tt_builder *b, tt_value *x, tt_dtype to, int rank, const int64_t *dims);

// Gives the run-time value of a digit as a rank-0 S32, or (digit == NULL) the whole offset as a rank-0 S64.
typedef tt_value *(*tt_digit_fn)(void *user, const tt_digit *digit);

// Reads the window: `base` is the (reinterpreted) value, the result has the window's sizes.
tt_value *tt_emit_view_read(tt_builder *b, tt_value *base, const tt_view *view, int rank, const int64_t *sizes,
                            const int64_t *strides, tt_digit_fn digit, void *user);
// Writes `value` (the window's sizes and dtype) through the window; `base` may be NULL when view->full. The result has
// base's dims: base_rank_in, base_dims.
tt_value *tt_emit_view_write(tt_builder *b, tt_value *base, tt_value *value, const tt_view *view, int base_rank,
                             const int64_t *base_dims, int rank, const int64_t *sizes, const int64_t *strides,
                             tt_digit_fn digit, void *user);

#endif // TT_OP_VIEW_H_
