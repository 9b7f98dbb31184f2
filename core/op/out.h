// out.h - may an out= tensor take a result of another dtype?
//
// torch's kernels differ: those driven by TensorIterator take what the result can be cast to, others its own dtype alone. Rows
// say which by their flags (TT_OP_EXACT_OUT and its kin in op/op.h), and op/out.def holds the words of the rest.
#ifndef TT_OP_OUT_H_
#define TT_OP_OUT_H_

#include "base/status.h"
#include "op/op.h"

#ifdef __cplusplus
extern "C" {
#endif

// Success, or torch's error for result number `result`, of dtype `value`, given to a tensor of dtype `out`.
tt_status tt_op_check_out(const tt_op *op, int result, tt_dtype value, tt_dtype out);

// Success, or torch's error for a row with TT_OP_OUT_HAS_DTYPE that is about to compute an operand in the dtype of its out=.
tt_status tt_op_check_out_computed(const tt_op *op, tt_dtype operand, tt_dtype out);

#ifdef __cplusplus
}
#endif

#endif // TT_OP_OUT_H_
