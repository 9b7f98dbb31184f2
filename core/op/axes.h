// axes.h - the dimensions that a reduction runs over, and the way from the reduced shape back.
//
// Shared by the families that reduce: reduce, extreme, moment, scan, softmax, norm, sort.
#ifndef TT_OP_AXES_H_
#define TT_OP_AXES_H_

#include "op/lowering.h"

enum { TT_AXES_MAX = 64 }; // the builder refuses values of more dimensions

// Dimensions of some operand, ascending, none twice.
typedef struct tt_axes {
  int count;
  const int *dims;
} tt_axes;

// The axes that an int, int[] or int[]? argument names, wrapped and checked; all of x's when it is absent or empty, or `arg`
// is -1.
tt_axes tt_axes_arg(tt_lowering *l, int arg, const tt_value *x);
// The one axis that an int argument names; none of a 0-d x.
tt_axes tt_axes_one(tt_lowering *l, int arg, const tt_value *x);
// Dimensions first, first + 1, ... up to but without `end`.
tt_axes tt_axes_range(int first, int end);

int64_t tt_axes_size(const tt_value *x, tt_axes axes); // how many elements of x go into one
tt_value *tt_reduce(tt_builder *b, tt_value *x, tt_reduction kind, tt_axes axes);
tt_value *tt_sum(tt_builder *b, tt_value *x, tt_axes axes);
// The sum of a value that the program computes, for many elements: XLA's older CPU plugins add the results of a fused loop one
// by one, 4 times slower than they are written to memory and multiplied with ones by a library.
tt_value *tt_sum_computed(tt_builder *b, tt_value *x, tt_axes axes);
// The same, divided by the number of elements: NaN when there are none.
tt_value *tt_average(tt_builder *b, tt_value *x, tt_axes axes);
// The sum of x, an operand of the program, accumulated in tt_compute_dtype of its dtype, which the result has.
tt_value *tt_sum_operand(tt_builder *b, tt_value *x, tt_axes axes);
// The sum of x times `weight`, which has x's sizes along axes (its last or its first dimensions); NULL for ones.
tt_value *tt_weighted_sum(tt_builder *b, tt_value *x, tt_value *weight, tt_axes axes);
// x / divisor, rounded once: XLA would multiply by the reciprocal of a constant, and the mean of 49 ones would be 0.99999994.
tt_value *tt_divide_by(tt_builder *b, tt_value *x, double divisor);
// `reduced` went from x's shape over axes: puts them back with size 1.
tt_value *tt_keep_axes(tt_builder *b, tt_value *reduced, const tt_value *x, tt_axes axes);
// Puts them back with x's sizes: each value goes to all that it was made of.
tt_value *tt_spread(tt_builder *b, tt_value *reduced, const tt_value *x, tt_axes axes);
// tt_keep_axes if the bool argument keepdim_arg is given and true.
tt_value *tt_keep_axes_if(tt_lowering *l, int keepdim_arg, tt_value *reduced, const tt_value *x, tt_axes axes);

// |x|^2, real.
tt_value *tt_squared_size(tt_builder *b, tt_value *x);
// The mean of x over axes and the sum of squared distances from it (real), in the dtype of computation. Two passes, the mean
// first and then what differs from it: one pass over x and x^2 loses everything where the mean is large against the spread.
typedef struct tt_moments {
  tt_value *mean, *squares;
} tt_moments;
tt_moments tt_moments_of(tt_builder *b, tt_value *x, tt_axes axes);

// The norm of order `ord` over axes (vector_norm.c). x is float or complex, in a dtype of computation; the result is real.
tt_value *tt_norm_over(tt_builder *b, tt_value *x, double ord, tt_axes axes);

// True where x has its reduced value, an extreme over axes (or a running one of x's shape): equal to it, or NaN, which wins.
tt_value *tt_is_extreme(tt_builder *b, tt_value *x, tt_value *extreme);
// x, computed once. For a comparison with something that was reduced from x: a compiler that computes x twice, in different
// surroundings, may round it differently, and then no element equals its own maximum.
tt_value *tt_computed_once(tt_builder *b, tt_value *x);
// The position along the axis (one at most) of the first element that equals `extreme`, reduced from x. S32 where it fits.
tt_value *tt_first_position(tt_builder *b, tt_value *x, tt_value *extreme, tt_axes axis); // extreme.c
// The running reduction of x along dim, in x's shape and dtype; ADD, MULTIPLY, MAX or MIN.
tt_value *tt_scan(tt_builder *b, tt_value *x, tt_reduction kind, int dim); // scan.c
// The dtype for positions below `size` inside programs: S32 where it is enough (TPUs emulate S64).
tt_dtype tt_position_dtype(int64_t size);

#endif // TT_OP_AXES_H_
