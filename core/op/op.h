// op.h - the table of lowered operators.
//
// One row per ATen operator, in op/*.def by family, gathered by op/table.def. A row names the *functional* overload as torch
// does without "aten::" ("add.Tensor"), or the in-place one where no functional overload exists ("uniform_"). The bridge
// finds the in-place and out= siblings in torch's schemas by itself: one lowering serves all of them, since results are
// values and shared code writes them through whatever view they belong to.
#ifndef TT_OP_OP_H_
#define TT_OP_OP_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hlo/builder.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tt_lowering tt_lowering;
typedef struct tt_op tt_op;

// A lowering reads its operands and arguments from `l` and sets its results there; failures stick to the builder.
typedef void (*tt_lower_fn)(tt_lowering *l);
// The formula of a one-line op.
typedef tt_value *(*tt_unary_fn)(tt_builder *b, tt_value *x);
typedef tt_value *(*tt_binary_fn)(tt_builder *b, tt_value *x, tt_value *y);

enum {
  // Scalar and float arguments are compiled in (the lowering branches on them) instead of travelling at run time.
  TT_OP_STATIC_NUMBERS = 1 << 0,
  // Integers and bool compute in the default float dtype (exp, div); the result is that float.
  TT_OP_INT_TO_FLOAT = 1 << 1,
  // The result is BOOL whatever the operands (comparisons, isnan).
  TT_OP_TO_BOOL = 1 << 2,
  // abs, angle, real of a complex operand give a real result.
  TT_OP_COMPLEX_TO_REAL = 1 << 3,
  // The result depends on random numbers; never shared between calls.
  TT_OP_RANDOM = 1 << 4,
  // Narrow floats are computed as they are, not through float32 (bit operations, selections: cheaper, same value).
  TT_OP_NO_WIDEN = 1 << 5,
  // The lowering needs the values of small integer operands on the host: never recorded.
  TT_OP_HOST = 1 << 6,
  // A Scalar argument that equals 1 is compiled in, any other travels at run time. For alpha and value, which are 1 nearly
  // always: no input and no multiplication then. Whoever fills tt_arg clears `number` of such an argument.
  TT_OP_ONE_IS_STATIC = 1 << 7,
  // Operands that promote to such a dtype are refused: NotImplementedError, as torch's kernels say it.
  TT_OP_NO_BOOL = 1 << 8,
  TT_OP_NO_INT = 1 << 9,
  TT_OP_NO_FLOAT = 1 << 10,
  TT_OP_NO_COMPLEX = 1 << 11,
  // The sizes of the results are data: see tt_set_extents.
  TT_OP_COUNTED = 1 << 12,
  // A user's out= must have the result's dtype. So it is for torch's structured kernels that no TensorIterator drives; those
  // of the others may have any dtype that the result can be cast to.
  TT_OP_EXACT_OUT = 1 << 13,
  // torch's structured kernel declares a result of another size than it has: it is not asked.
  TT_OP_UNSTRUCTURED = 1 << 14,
  // So too, in the words of a TensorIterator that does not cast, and of kernels that take typed pointers. See op/out.h.
  TT_OP_SAME_OUT = 1 << 15,
  TT_OP_TYPED_OUT = 1 << 16,
  // Without a dtype, the user's out= says in which the op computes.
  TT_OP_OUT_HAS_DTYPE = 1 << 17,
};

struct tt_op {
  const char *name; // "add.Tensor"
  tt_lower_fn lower;
  union {
    tt_unary_fn unary;
    tt_binary_fn binary;
  } emit; // for tt_lower_unary and tt_lower_binary
  uint32_t flags;
  int index;        // position in the table
  const char *file; // the .def file that holds the row, which names its family: "core/op/pointwise.def"
};

int tt_op_count(void);
const tt_op *tt_op_at(int index);
const tt_op *tt_op_find(const char *name); // NULL when there is no row; takes a few hundred nanoseconds

// The drivers of one-line ops: type promotion, broadcasting and widening around emit.
void tt_lower_unary(tt_lowering *l);
void tt_lower_binary(tt_lowering *l);

#ifdef __cplusplus
}
#endif

#endif // TT_OP_OP_H_
