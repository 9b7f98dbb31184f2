// order.h - tensors in sorted order: the keys that sort them, shared by sort.c and search.c.
//
// torch's order: NaN is greater than every number, -0.0 equals 0.0, and equal elements keep their order (in both directions).
// Elements become integer keys for which that is the order of plain integers. Keys of up to 32 bits share one S64 with the
// element's position, so that one array is sorted by plain `<`: XLA's CPU plugin does that with std::sort, 5 to 14 times faster
// than a comparison function over pairs, and no pair is equal to another, so that the sort need not be stable.
#ifndef TT_OP_ORDER_H_
#define TT_OP_ORDER_H_

#include "op/axes.h"

// The elements of a tensor along a dimension, sorted or picked from a sorted one.
typedef struct tt_ordered {
  tt_value *keys;     // packed: S64 of key and position; else the S64 keys alone
  tt_value *position; // NULL when packed
  tt_dtype dtype;     // of the elements
  bool descending;
} tt_ordered;

// x sorted along dim. x is real and has that dimension.
tt_ordered tt_order(tt_builder *b, tt_value *x, int dim, bool descending);
// Elements [start, limit) along dim.
tt_ordered tt_ordered_slice(tt_builder *b, const tt_ordered *o, int dim, int64_t start, int64_t limit);
// The element at each place (an integer value in the shape without dim) along dim, which is dropped.
tt_ordered tt_ordered_pick(tt_builder *b, const tt_ordered *o, int dim, tt_value *place);
// Element i as the comparable part of its key, S64: equal for equal elements.
tt_value *tt_ordered_keys(tt_builder *b, const tt_ordered *o);
tt_value *tt_ordered_values(tt_builder *b, const tt_ordered *o);    // in the elements' dtype
tt_value *tt_ordered_positions(tt_builder *b, const tt_ordered *o); // where they came from along dim, S64

// Places (S32, or S64 if need be) of values in the `rows` sorted rows of n boundaries each, both flattened and of one dtype. The
// place is the number of boundaries before it: those < value, or those <= value for `right` (search.c).
tt_value *tt_search_rows(tt_builder *b, tt_value *boundaries, tt_value *values, int64_t rows, int64_t n, bool right);

#endif // TT_OP_ORDER_H_
