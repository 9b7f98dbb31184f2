// staging.h - host memory for uploads, kept warm.
//
// An XLA CPU plugin can use host memory as a buffer in place (zero copy), but never the user's: the user may change it while
// the tensor lives. So the data is copied once into a block from here, which then is the device buffer, and comes back when
// the buffer is freed. Fresh pages cost several times the copy; blocks that are used again have none.
//
// Any thread may call.
#ifndef TT_RUN_STAGING_H_
#define TT_RUN_STAGING_H_

#include <stdint.h>

enum { TT_STAGING_MIN_BYTES = 1 << 16 }; // smaller transfers are not worth it

// A block of at least `byte_size` bytes, aligned to 64 as zero copy needs; NULL when memory is exhausted.
void *tt_staging_take(int64_t byte_size);
// Gives it back: kept for the next, or freed beyond 256 MiB.
void tt_staging_give_back(void *block, int64_t byte_size);
// Frees what is kept.
void tt_staging_clear(void);

#endif // TT_RUN_STAGING_H_
