// taps.h - a linear map along one dimension in which each result is a weighted sum of a few elements: interpolation, averages
// over uneven windows, and their transposes, which are the backwards.
#ifndef TT_OP_TAPS_H_
#define TT_OP_TAPS_H_

#include "op/lowering.h"

// y[i] = sum over t < count of weight[i * count + t] * x[index[i * count + t]]; a tap that is not needed has weight 0.
// The arrays live in the builder's arena.
typedef struct tt_taps {
  int64_t in, out; // sizes of x and y
  int count;
  int64_t *index;
  double *weight;
} tt_taps;

// `count` taps of weight 0 for each of `out` results. False when host memory is exhausted (the builder fails).
bool tt_taps_create(tt_lowering *l, int64_t in, int64_t out, int64_t count, tt_taps *taps);
// The map by the transposed matrix: from `out` elements to `in`.
bool tt_taps_transpose(tt_lowering *l, const tt_taps *taps, tt_taps *transposed);
// Applies the map along `dim`. x is of a float dtype to compute in; float32 is exact float32 whatever the precision in force.
tt_value *tt_taps_apply(tt_lowering *l, tt_value *x, int dim, const tt_taps *taps);

#endif // TT_OP_TAPS_H_
