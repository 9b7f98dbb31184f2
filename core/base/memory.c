// memory.c - the gate over malloc, its counters and the fault injection of the tests.
//
// One atomic add per allocation and one per free: blocks alive are the difference, and the allocation's number decides
// whether a test wants it to fail.
#include "base/memory.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

// Apart from each other, since every thread writes the first two and every allocation reads the third.
static _Alignas(64) _Atomic int64_t allocations; // attempts, failed ones included
static _Alignas(64) _Atomic int64_t frees;       // blocks given back, and attempts that failed
static _Alignas(64) _Atomic int64_t fail_first = INT64_MAX;
static _Atomic int64_t fail_last = INT64_MAX;

// Counts an attempt; true when a test wants this one to fail.
static bool gate_refuses(void) {
  int64_t number = atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed) + 1;
  if (__builtin_expect(number < atomic_load_explicit(&fail_first, memory_order_relaxed), 1)) return false;
  return number <= atomic_load_explicit(&fail_last, memory_order_relaxed);
}

static void count_free(void) { atomic_fetch_add_explicit(&frees, 1, memory_order_relaxed); }

void *tt_malloc(size_t size) {
  void *block = gate_refuses() ? NULL : malloc(size != 0 ? size : 1);
  if (block == NULL) count_free();
  return block;
}

void *tt_calloc(size_t count, size_t size) {
  // calloc checks the product itself.
  bool empty = count == 0 || size == 0;
  void *block = gate_refuses() ? NULL : calloc(empty ? 1 : count, empty ? 1 : size);
  if (block == NULL) count_free();
  return block;
}

void *tt_realloc(void *block, size_t size) {
  if (block == NULL) return tt_malloc(size);
  void *moved = gate_refuses() ? NULL : realloc(block, size != 0 ? size : 1);
  // Either the old block went or the attempt failed: the number of live blocks stays what it was.
  count_free();
  return moved;
}

void *tt_realloc_array(void *block, size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) return NULL;
  return tt_realloc(block, bytes);
}

char *tt_strdup(const char *text) { return tt_strndup(text, strlen(text)); }

char *tt_strndup(const char *text, size_t size) {
  size = strnlen(text, size);
  char *copy = tt_malloc(size + 1);
  if (copy == NULL) return NULL;
  memcpy(copy, text, size);
  copy[size] = '\0';
  return copy;
}

void tt_free(void *block) {
  if (block == NULL) return;
  count_free();
  free(block);
}

bool tt_reserve(void **array, int count, int more, int *capacity, size_t size) {
  if (count + more <= *capacity) return true;
  int wanted = *capacity ? 2 * *capacity : 16;
  while (wanted < count + more) wanted *= 2;
  void *bigger = tt_realloc_array(*array, (size_t)wanted, size);
  if (!bigger) return false;
  *array = bigger;
  *capacity = wanted;
  return true;
}

tt_status tt_allocate(size_t count, size_t size, void **out_block) {
  void *block = tt_calloc(count, size);
  if (block == NULL) {
    return tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted: could not allocate %zu x %zu bytes", count, size);
  }
  *out_block = block;
  return TT_SUCCESS;
}

bool tt_mul_i64(int64_t a, int64_t b, int64_t *out_product) {
  int64_t product;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) return false;
  *out_product = product;
  return true;
}

bool tt_add_i64(int64_t a, int64_t b, int64_t *out_sum) {
  int64_t sum;
  if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &sum)) return false;
  *out_sum = sum;
  return true;
}

void tt_memory_fail_at(int64_t n, bool sticky) {
  int64_t first = n > 0 ? atomic_load_explicit(&allocations, memory_order_relaxed) + n : INT64_MAX;
  atomic_store_explicit(&fail_last, sticky ? INT64_MAX : first, memory_order_relaxed);
  atomic_store_explicit(&fail_first, first, memory_order_relaxed);
}

int64_t tt_memory_allocation_count(void) { return atomic_load_explicit(&allocations, memory_order_relaxed); }

int64_t tt_memory_live_count(void) {
  int64_t given_back = atomic_load_explicit(&frees, memory_order_relaxed);
  return atomic_load_explicit(&allocations, memory_order_relaxed) - given_back;
}
