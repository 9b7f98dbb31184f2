// fragment.h - a program kept as text without its header, to be compiled alone or as a part of a larger one.
//
// What a lowering printed once serves every mode: alone it is the program of one call, and the programs of many calls put
// one behind the other are the program of a graph. Nothing is lowered again for that.
#ifndef TT_HLO_FRAGMENT_H_
#define TT_HLO_FRAGMENT_H_

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "hlo/builder.h"

// Immutable. Everything in it lies in the arena that it was taken into.
typedef struct tt_fragment {
  const char *body; // ops, one a line; values are %0 .. %(id_count - 1)
  size_t size;
  int64_t id_count, op_count;
  int parameter_count, result_count;
  const tt_value *parameters, *results; // types and ids; a result may be a parameter
} tt_fragment;

// Ends the builder's program with these results and copies it. Errors: the builder's failure, TT_OUT_OF_MEMORY.
tt_status tt_fragment_take(tt_builder *b, int count, tt_value *const *results, tt_arena *arena,
                           tt_fragment *out_fragment);

// Appends the fragment's ops to the builder's program, its parameters standing for `operands`, whose types must be theirs.
// out_results gets result_count values.
void tt_fragment_inline(tt_builder *b, const tt_fragment *fragment, tt_value *const *operands, tt_value **out_results);

#endif // TT_HLO_FRAGMENT_H_
