// key.h - the identity of a call's program.
//
// A key is a run of 64-bit words: overload, precision, default dtype, compiled-in arguments, and for each slot the layout of
// its storage's value, its dtype, which slots share a storage, and (unless the tensor is the whole value) its sizes, strides
// and the shape of its view match. Offsets and run-time numbers are not in it.
#ifndef TT_RUN_KEY_H_
#define TT_RUN_KEY_H_

#include <stdint.h>

#include "base/status.h"
#include "op/arg.h"
#include "run/call.h"

enum { TT_KEY_INLINE_WORDS = 320, TT_KEY_INLINE_SLOTS = 32, TT_KEY_INLINE_NUMBERS = 32 };

typedef struct tt_key {
  uint64_t *words;
  int count, capacity;
  // By-products that a launch needs too.
  int *group;             // per slot: the first slot with the same storage
  const tt_arg **numbers; // run-time numbers in argument order
  int number_count, number_capacity;
  uint64_t inline_words[TT_KEY_INLINE_WORDS];
  int inline_group[TT_KEY_INLINE_SLOTS];
  const tt_arg *inline_numbers[TT_KEY_INLINE_NUMBERS];
} tt_key;

// Fills `key` for the call. Release with tt_key_free also after a failure.
tt_status tt_key_build(const tt_call *call, tt_key *key);
void tt_key_free(tt_key *key);

#endif // TT_RUN_KEY_H_
