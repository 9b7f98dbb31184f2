// memory.h - the one gate through which the core allocates host memory.
//
// Every block comes from here so that tests can fail the n-th allocation (tt_memory_fail_at) and so that sizes are
// multiplied with an overflow check. Any thread may call.
#ifndef TT_BASE_MEMORY_H_
#define TT_BASE_MEMORY_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// All return NULL when memory is exhausted or the size overflows. Free with tt_free. A zero size gives a valid block.
void *tt_malloc(size_t size);
void *tt_calloc(size_t count, size_t size);
void *tt_realloc(void *block, size_t size);
void *tt_realloc_array(void *block, size_t count, size_t size);
char *tt_strdup(const char *text);
char *tt_strndup(const char *text, size_t size);
void tt_free(void *block); // NULL is fine

// Makes room for `more` items of `size` bytes behind the `count` of a growing array, doubling it. False when memory is
// exhausted: then the array is as it was.
bool tt_reserve(void **array, int count, int more, int *capacity, size_t size);

// tt_calloc with a status: *out_block is zeroed memory, set only on success.
tt_status tt_allocate(size_t count, size_t size, void **out_block);

// a * b and a + b for sizes in elements or bytes; false when the result does not fit an int64_t or an operand is negative.
bool tt_mul_i64(int64_t a, int64_t b, int64_t *out_product);
bool tt_add_i64(int64_t a, int64_t b, int64_t *out_sum);

// Tests only: the n-th allocation from now (1 = the next) fails, and all after it if `sticky`. 0 switches it off.
void tt_memory_fail_at(int64_t n, bool sticky);
// Allocations since the start of the process; blocks that are live now.
int64_t tt_memory_allocation_count(void);
int64_t tt_memory_live_count(void);

#ifdef __cplusplus
}
#endif
#endif // TT_BASE_MEMORY_H_
