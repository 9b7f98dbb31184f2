// max_pool.h - what the poolings by maxima, their gradients and the unpoolings share.
#ifndef TT_OP_MAX_POOL_H_
#define TT_OP_MAX_POOL_H_

#include "op/pool.h"

typedef struct tt_maxima {
  tt_value *value, *position; // of one shape; position -1 in padding
} tt_maxima;

tt_dtype tt_pool_position_dtype(const tt_pool *p);
// Each element's flat position in its picture, for x [lead..., in...].
tt_value *tt_pool_positions(tt_lowering *l, const tt_value *x, const tt_pool *p);
// The greater of two, element by element; `b` comes later in the scan. `padded`: positions of -1 never win.
tt_maxima tt_greater(tt_lowering *l, tt_maxima a, tt_maxima b, bool padded);
// Results 0 and 1: the values and the positions as S64; without elements or with zeros, for x [lead..., in...].
void tt_set_maxima(tt_lowering *l, tt_maxima m);
void tt_set_empty_maxima(tt_lowering *l, const tt_value *x, const tt_pool *p);

// Fills p from tensor argument `x` and the arguments from `first` (kernel_size) on, with torch's checks; false when they fail.
bool tt_max_pool3d_read(tt_lowering *l, int x, int first, tt_pool *p);

// values [lead..., out...] put into zeros [lead..., in...] at flat positions (max_pool_backward.c).
tt_value *tt_pool_scatter(tt_lowering *l, tt_value *values, tt_value *position, const tt_pool *p, tt_combine combine);
// Result 0: the gradient, argument 0, brought to the positions in argument `indices`. `by_windows`: p's windows are regular and
// few of them cover an element.
void tt_lower_pool_backward(tt_lowering *l, const tt_pool *p, int indices, bool by_windows);

#endif // TT_OP_MAX_POOL_H_
