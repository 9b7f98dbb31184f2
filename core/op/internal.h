// internal.h - what the files behind lowering.h share: lowering.c, operand.c, promote.c, result.c. Lowerings do not include it.
#ifndef TT_OP_INTERNAL_H_
#define TT_OP_INTERNAL_H_

#include "op/lowering.h"

// Argument `arg`; one of kind NONE if there is none, which tt_lowering_arg calls an internal fault.
const tt_arg *tt_lowering_peek(const tt_lowering *l, int arg);
const tt_arg *tt_lowering_arg(tt_lowering *l, int arg);
// Fails: the argument is no `wanted`. None, and a list that is too short or holds None, are the caller's; else it is a fault here.
void tt_lowering_wrong_kind(tt_lowering *l, int arg, const char *wanted);
// `count` items of `size` bytes in the builder's arena; NULL, and the call has failed, when there is no memory.
void *tt_lowering_array(tt_lowering *l, int count, size_t size);

tt_dtype tt_arg_number_dtype(const tt_arg *arg); // as torch promotes it; TT_DTYPE_NONE if it is no number

#endif // TT_OP_INTERNAL_H_
