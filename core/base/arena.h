// arena.h - memory that is freed all at once: what a lowering or a graph allocates while it is built.
//
// Owned by one thread at a time. Blocks are aligned to 16 bytes.
#ifndef TT_BASE_ARENA_H_
#define TT_BASE_ARENA_H_

#include <stddef.h>

#include "base/status.h"

typedef struct tt_arena_chunk tt_arena_chunk;

typedef struct tt_arena {
  tt_arena_chunk *chunks; // newest first
} tt_arena;

#define TT_ARENA_INIT ((tt_arena){NULL})

// Zeroed memory, or NULL when host memory is exhausted or count * size overflows.
void *tt_arena_allocate(tt_arena *arena, size_t count, size_t size);
char *tt_arena_format(tt_arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *tt_arena_copy(tt_arena *arena, const void *data, size_t size);
// Frees every block; the arena may be used again.
void tt_arena_clear(tt_arena *arena);

#endif // TT_BASE_ARENA_H_
