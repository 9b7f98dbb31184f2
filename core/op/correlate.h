// correlate.h - a sliding product of a picture and a filter, in whichever form the target computes fastest.
//
// Every convolution of torch is one of these: the forward of a plain one, the input gradient (the gradient under a reversed
// filter), a transposed one (the same), and the filter gradient.
#ifndef TT_OP_CORRELATE_H_
#define TT_OP_CORRELATE_H_

#include "op/lowering.h"

enum { TT_SPATIAL_MAX = 3 };

// Per spatial dimension. The picture is spread by `spread` (spread - 1 zeros between its elements), then padded, negative
// pads crop; the filter is spread by `dilation` and moves by `stride`.
typedef struct tt_correlation {
  int spatial;
  int64_t groups;
  int64_t stride[TT_SPATIAL_MAX], dilation[TT_SPATIAL_MAX], spread[TT_SPATIAL_MAX];
  int64_t pad_low[TT_SPATIAL_MAX], pad_high[TT_SPATIAL_MAX];
} tt_correlation;

// x [n, c, in...], filter [o, c / groups, kernel...] -> [n, o, out...], both of one dtype; products as tt_convolve's.
tt_value *tt_correlate(tt_lowering *l, tt_value *x, tt_value *filter, const tt_correlation *c, tt_dtype result);
// The derivatives of sum(tt_correlate(x, filter) * gradient), for a spread of 1; gradient [n, o, out...].
// By x, whose spatial sizes are `size`: [n, c, size...].
tt_value *tt_correlate_picture(tt_lowering *l, tt_value *gradient, tt_value *filter, const int64_t *size,
                               const tt_correlation *c, tt_dtype result);
// By the filter, whose spatial sizes are `kernel`: [o, c / groups, kernel...].
tt_value *tt_correlate_filter(tt_lowering *l, tt_value *x, tt_value *gradient, const int64_t *kernel,
                              const tt_correlation *c, tt_dtype result);

#endif // TT_OP_CORRELATE_H_
