// describe.h - a program in one line, for people: `multiply, add (f32[4,3], f32) -> f32[4,3]`.
#ifndef TT_CACHE_DESCRIBE_H_
#define TT_CACHE_DESCRIBE_H_

#include <stdint.h>

#include "base/string.h"

// Reads StableHLO text as the builder writes it; of other text it says less. Appended to `out`, at most some 300 bytes.
void tt_describe_program(const char *text, int64_t size, tt_string *out);

#endif // TT_CACHE_DESCRIBE_H_
