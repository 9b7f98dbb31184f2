// staging.c - see staging.h. Blocks are powers of two in size; free ones of a size form a list through their first bytes.
#include "run/staging.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

enum { CLASSES = 48 };
static const int64_t KEEP_BYTES = INT64_C(256) << 20;

typedef struct free_block {
  struct free_block *next;
} free_block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards what follows
static free_block *blocks[CLASSES];
static int64_t kept_bytes;

// The power of two that holds byte_size, as its exponent.
static int size_class(int64_t byte_size) { return byte_size <= 1 ? 0 : 64 - __builtin_clzll((uint64_t)byte_size - 1); }

void *tt_staging_take(int64_t byte_size) {
  int c = size_class(byte_size);
  if (c >= CLASSES) return NULL;
  pthread_mutex_lock(&lock);
  free_block *block = blocks[c];
  if (block) {
    blocks[c] = block->next;
    kept_bytes -= INT64_C(1) << c;
  }
  pthread_mutex_unlock(&lock);
  if (block) return block;
  // Straight from the system: these blocks become device memory, which the core's allocation gate does not count.
  void *fresh = NULL;
  return posix_memalign(&fresh, 4096, (size_t)1 << c) == 0 ? fresh : NULL;
}

void tt_staging_give_back(void *data, int64_t byte_size) {
  int c = size_class(byte_size);
  free_block *block = data;
  pthread_mutex_lock(&lock);
  bool keep = kept_bytes + (INT64_C(1) << c) <= KEEP_BYTES;
  if (keep) {
    block->next = blocks[c];
    blocks[c] = block;
    kept_bytes += INT64_C(1) << c;
  }
  pthread_mutex_unlock(&lock);
  if (!keep) free(data);
}

void tt_staging_clear(void) {
  free_block *list = NULL;
  pthread_mutex_lock(&lock);
  for (int c = 0; c < CLASSES; ++c) {
    while (blocks[c]) {
      free_block *block = blocks[c];
      blocks[c] = block->next;
      block->next = list;
      list = block;
    }
  }
  kept_bytes = 0;
  pthread_mutex_unlock(&lock);
  while (list) {
    free_block *next = list->next;
    free(list);
    list = next;
  }
}
