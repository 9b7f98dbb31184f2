// pool.h - large blocks of host memory that come back with their pages.
//
// malloc maps large blocks and unmaps them when they are freed, so that each new block pays a page fault for every 4 KiB: filling
// 64 MiB of fresh memory takes several times as long as filling it again. The pool keeps freed blocks and hands out the last
// one freed, whose pages are there and may still be in a cache.
//
// One pool for the process, of address space alone until a block is filled. Blocks have one of eight sizes per power of two, so at
// most an eighth of a block is left over, and what is left over is never touched. Any thread may call; a fork keeps it usable.
#ifndef TT_BASE_POOL_H_
#define TT_BASE_POOL_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  TT_POOL_MIN = 1 << 15,       // bytes of the smallest block: below, malloc does as well
  TT_POOL_ALIGNMENT = 1 << 12, // of every block
};

// Reserves the address space. Call before threads that use the pool run; again does nothing. False if there is a limit on it:
// then, as before the start, no block is ever taken or owned.
bool tt_pool_start(void);
// A block of at least `size` bytes with any content. NULL: `size` is below TT_POOL_MIN, or no memory (then malloc may still
// have some: freed blocks were given back to the system first).
void *tt_pool_take(size_t size);
bool tt_pool_owns(const void *block);
// Of a block that the pool owns: its bytes, and its return.
size_t tt_pool_size(const void *block);
void tt_pool_give(void *block);
// Pages of all blocks not in use go back to the system.
void tt_pool_trim(void);

typedef struct tt_pool_use {
  int64_t taken, kept; // bytes of blocks in use, and of freed ones whose pages are kept
} tt_pool_use;
tt_pool_use tt_pool_get_use(void);

#endif // TT_BASE_POOL_H_
