// bits.h - sets of small numbers as bits of 64-bit words.
#ifndef TT_BASE_BITS_H_
#define TT_BASE_BITS_H_

#include <stdbool.h>
#include <stdint.h>

static inline bool tt_bit(const uint64_t *bits, int i) { return bits[i >> 6] >> (i & 63) & 1; }
static inline void tt_set_bit(uint64_t *bits, int i) { bits[i >> 6] |= UINT64_C(1) << (i & 63); }

#endif // TT_BASE_BITS_H_
