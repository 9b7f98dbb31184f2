// pool.h - the windows of a pooling op, shared by maxima and averages.
#ifndef TT_OP_POOL_H_
#define TT_OP_POOL_H_

#include "op/lowering.h"

enum { TT_POOL_MAX = 3, TT_POOL_MAX_RANK = TT_POOL_MAX + 2 };

// Windows over the last `spatial` dims of an operand: window o of dim i covers start + t * dilation for t < kernel, where start
// is o * stride - padding, as far as that lies within the picture.
typedef struct tt_pool {
  int spatial;
  int lead; // dims in front of the spatial ones
  int64_t kernel[TT_POOL_MAX], stride[TT_POOL_MAX], padding[TT_POOL_MAX], dilation[TT_POOL_MAX];
  int64_t in[TT_POOL_MAX], out[TT_POOL_MAX];
} tt_pool;

int64_t tt_pool_product(int count, const int64_t *sizes);
// Reads kernel_size, stride, padding and (dilation_arg >= 0) dilation from args `first` on; `x` gives the input sizes.
void tt_pool_read(tt_lowering *l, const tt_tensor *x, int spatial, int first, int dilation_arg, tt_pool *p);
// Fills p->out as torch's pooling_output_shape does.
void tt_pool_output_sizes(tt_pool *p, bool ceil_mode);
// The windows of an adaptive pooling of x to sizes `out`: window o covers floor(o * in / out) up to ceil((o + 1) * in / out).
// Fills all of p and returns true when they are of one size and side by side, as an ordinary pool's; else p has no windows.
bool tt_pool_adaptive(const tt_tensor *x, int spatial, const int64_t *out, tt_pool *p);
// Do the windows cover the picture side by side, without padding, gaps or overlap?
bool tt_pool_is_tiling(const tt_pool *p);
// x [lead..., out * kernel...] seen as [lead..., out, kernel, out, kernel, ...]; window_dims gets the kernels' places.
tt_value *tt_pool_tiles(tt_lowering *l, tt_value *x, const tt_pool *p, int *window_dims);
// Each element of x [lead..., out...] repeated over its window: [lead..., out * kernel...].
tt_value *tt_pool_untile(tt_lowering *l, tt_value *x, const tt_pool *p);

#endif // TT_OP_POOL_H_
