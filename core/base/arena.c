// arena.c - chunks of zeroed memory that are handed out from front to back.
#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

#define ARENA_ALIGNMENT ((size_t)16)
#define ARENA_FIRST_CHUNK ((size_t)4 << 10)
#define ARENA_LARGEST_CHUNK ((size_t)256 << 10)

struct tt_arena_chunk {
  tt_arena_chunk *next;  // older
  size_t used, capacity; // bytes of data
  _Alignas(16) unsigned char data[];
};

_Static_assert(sizeof(tt_arena_chunk) % ARENA_ALIGNMENT == 0, "malloc aligns the chunk, the header keeps that");

// Chunks double, so that an arena of n bytes makes about log n calls to the allocator.
static size_t next_capacity(const tt_arena *arena) {
  if (arena->chunks == NULL) return ARENA_FIRST_CHUNK;
  size_t doubled = arena->chunks->capacity * 2;
  return doubled < ARENA_LARGEST_CHUNK ? doubled : ARENA_LARGEST_CHUNK;
}

static tt_arena_chunk *chunk_create(size_t capacity) {
  tt_arena_chunk *chunk = tt_calloc(1, sizeof(tt_arena_chunk) + capacity);
  if (chunk != NULL) chunk->capacity = capacity;
  return chunk;
}

// The chunk that has room for `size` bytes, made if there is none; NULL when memory is exhausted.
static tt_arena_chunk *chunk_with_room(tt_arena *arena, size_t size) {
  tt_arena_chunk *newest = arena->chunks;
  if (newest != NULL && newest->capacity - newest->used >= size) return newest;

  size_t capacity = next_capacity(arena);
  if (newest != NULL && size > capacity / 4) {
    // A big block gets a chunk of its own behind the newest, whose remaining room stays in use.
    tt_arena_chunk *own = chunk_create(size);
    if (own == NULL) return NULL;
    own->next = newest->next;
    newest->next = own;
    return own;
  }
  tt_arena_chunk *chunk = chunk_create(size > capacity ? size : capacity);
  if (chunk == NULL) return NULL;
  chunk->next = newest;
  arena->chunks = chunk;
  return chunk;
}

void *tt_arena_allocate(tt_arena *arena, size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) return NULL;
  if (bytes > SIZE_MAX / 2) return NULL; // rounding up and adding the header cannot overflow below
  bytes = bytes != 0 ? (bytes + ARENA_ALIGNMENT - 1) & ~(ARENA_ALIGNMENT - 1) : ARENA_ALIGNMENT;

  tt_arena_chunk *chunk = chunk_with_room(arena, bytes);
  if (chunk == NULL) return NULL;
  void *block = chunk->data + chunk->used;
  chunk->used += bytes;
  return block;
}

char *tt_arena_format(tt_arena *arena, const char *format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  int size = vsnprintf(NULL, 0, format, again);
  va_end(again);
  char *text = size >= 0 ? tt_arena_allocate(arena, (size_t)size + 1, 1) : NULL;
  if (text != NULL) vsnprintf(text, (size_t)size + 1, format, args);
  va_end(args);
  return text;
}

void *tt_arena_copy(tt_arena *arena, const void *data, size_t size) {
  void *copy = tt_arena_allocate(arena, size, 1);
  if (copy != NULL && size != 0) memcpy(copy, data, size);
  return copy;
}

void tt_arena_clear(tt_arena *arena) {
  tt_arena_chunk *chunk = arena->chunks;
  while (chunk != NULL) {
    tt_arena_chunk *next = chunk->next;
    tt_free(chunk);
    chunk = next;
  }
  arena->chunks = NULL;
}
