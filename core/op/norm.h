// norm.h - what the normalizations share.
#ifndef TT_OP_NORM_H_
#define TT_OP_NORM_H_

#include "op/axes.h"

// The input is a real float, and weight and bias (where given) have its dtype, or are both float32 for a narrower input. Fails
// with torch's texts otherwise. weight_arg and bias_arg may be -1.
bool tt_check_norm_dtypes(tt_lowering *l, const char *name, int input_arg, int weight_arg, int bias_arg);
// Entry `index` of the bool list `output_mask`: is this gradient wanted?
bool tt_wants(tt_lowering *l, int mask_arg, int index);
// An argument's dtype, or `otherwise` when it is absent.
tt_dtype tt_arg_dtype(const tt_lowering *l, int arg, tt_dtype otherwise);
// A tensor's sizes, for messages.
const char *tt_sizes_text(tt_lowering *l, int arg);
// For `last`, moves the channels from dimension 1 to the end, which is where a channels-last tensor has them in memory: the
// transposition cancels with the one by which it was read. And back.
tt_value *tt_channels_to_end(tt_builder *b, tt_value *x, bool last);
tt_value *tt_channels_from_end(tt_builder *b, tt_value *x, bool last);
// 1 / sqrt(x + eps), eps a scalar of x's dtype.
tt_value *tt_inverse_root(tt_builder *b, tt_value *x, tt_value *eps);

#endif // TT_OP_NORM_H_
