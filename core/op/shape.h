// shape.h - what the files that rearrange tensors share.
#ifndef TT_OP_SHAPE_H_
#define TT_OP_SHAPE_H_

#include <stdlib.h>

#include "op/index.h"

// The elements (r, c) of a rows x columns matrix on and below the diagonal c = r + offset (`upper`: on and above it), row by
// row, as two index vectors; there must be some. torch's tril_indices and triu_indices.
void tt_triangle_positions(tt_builder *b, int64_t rows, int64_t columns, int64_t offset, bool upper, tt_value **out_row,
                           tt_value **out_column);
// How many elements are on and below the diagonal.
int64_t tt_triangle_count(int64_t rows, int64_t columns, int64_t offset);

// Pads one dim of x with `fill` (a scalar of x's dtype): `low` and `high` elements at its ends (negative ones crop), and
// `interior` between neighbours.
tt_value *tt_pad_dim(tt_builder *b, tt_value *x, tt_value *fill, int dim, int64_t low, int64_t high, int64_t interior);
// The same with zeros.
tt_value *tt_pad_dim_zero(tt_builder *b, tt_value *x, int dim, int64_t low, int64_t high, int64_t interior);

#endif // TT_OP_SHAPE_H_
