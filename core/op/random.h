// random.h - draws that several random lowerings share. Each call draws new bits from the generator of its argument.
#ifndef TT_OP_RANDOM_H_
#define TT_OP_RANDOM_H_

#include "op/lowering.h"

enum { TT_RANDOM_MAX_DIMS = 66 };

// F64 for F64 and 64-bit complex parts, else F32: the dtype in which a distribution over `dtype` is computed.
tt_dtype tt_random_dtype(tt_dtype dtype);
// Uniform in [0, 1): multiples of 2^-24 (F32) or 2^-53 (F64).
tt_value *tt_random_uniform(tt_lowering *l, int generator_arg, tt_dtype dtype, int rank, const int64_t *dims);
// Uniform in (0, 1], with the resolution of all 32 or 64 bits near 0: what logarithms want.
tt_value *tt_random_open_uniform(tt_lowering *l, int generator_arg, tt_dtype dtype, int rank, const int64_t *dims);
// The same of given U32 (F32) or U64 (F64) bits.
tt_value *tt_random_open_unit(tt_builder *b, tt_value *bits, tt_dtype dtype);
tt_value *tt_random_normal(tt_lowering *l, int generator_arg, tt_dtype dtype, int rank, const int64_t *dims);
// -log of an open uniform, kept above 0 so that it may divide.
tt_value *tt_random_exponential(tt_lowering *l, int generator_arg, tt_dtype dtype, int rank, const int64_t *dims);
// BOOL, true with probability `p` to within 2^-32.
tt_value *tt_random_bernoulli(tt_lowering *l, int generator_arg, double p, int rank, const int64_t *dims);

// The generator's state for `count` 32-bit draws that the lowering makes itself.
tt_value *tt_random_state(tt_lowering *l, int generator_arg, int64_t count);

// The tensor that an in-place op fills, its argument 0.
typedef struct tt_random_target {
  tt_dtype dtype; // of self
  tt_dtype real;  // in which to compute
  int rank;       // of the draws: a complex self has its two parts in one more dim
  int64_t dims[TT_RANDOM_MAX_DIMS];
} tt_random_target;

tt_random_target tt_random_target_of(tt_lowering *l);
void tt_random_fill(tt_lowering *l, const tt_random_target *self, tt_value *x); // result 0, converted

#endif // TT_OP_RANDOM_H_
