// test_base_pool.c - core/base/pool: blocks come back with their pages.
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/pool.h"
#include "runner.h"

enum { MEGABYTE = 1 << 20 };

// Pages of the block that are in memory.
static int64_t resident_pages(void *block, size_t size) {
  unsigned char pages[64 * MEGABYTE / TT_POOL_ALIGNMENT];
  int64_t count = 0;
  CHECK(size / TT_POOL_ALIGNMENT <= sizeof pages && mincore(block, size, pages) == 0);
  for (size_t i = 0; i < size / TT_POOL_ALIGNMENT; ++i) count += pages[i] & 1;
  return count;
}

static tt_pool_use start(void) {
  CHECK(tt_pool_start());
  CHECK(tt_pool_start()); // again is harmless
  tt_pool_trim();
  return tt_pool_get_use();
}

TEST(pool_leaves_small_blocks_to_malloc) {
  start();
  CHECK(tt_pool_take(0) == NULL);
  CHECK(tt_pool_take(TT_POOL_MIN - 1) == NULL);
  CHECK(tt_pool_take(SIZE_MAX) == NULL);
  int on_stack = 0;
  CHECK(!tt_pool_owns(NULL));
  CHECK(!tt_pool_owns(&on_stack));
}

TEST(pool_blocks_hold_what_was_asked_and_waste_an_eighth) {
  start();
  for (size_t base = TT_POOL_MIN; base <= 16 * MEGABYTE; base += base / 16 / 8 * 8) {
    for (size_t size = base; size <= base + 1; ++size) {
      char *block = tt_pool_take(size);
      CHECK(block != NULL && tt_pool_owns(block) && tt_pool_owns(block + size - 1));
      CHECK((uintptr_t)block % TT_POOL_ALIGNMENT == 0);
      CHECK(tt_pool_size(block) >= size && tt_pool_size(block) <= size + size / 8 + 1);
      block[0] = block[size - 1] = 1;
      tt_pool_give(block);
    }
  }
}

TEST(pool_gives_the_last_freed_block_again) {
  start();
  void *first = tt_pool_take(MEGABYTE), *second = tt_pool_take(MEGABYTE);
  CHECK(first != second);
  tt_pool_give(first);
  tt_pool_give(second);
  CHECK(tt_pool_take(MEGABYTE - 100) == second);
  CHECK(tt_pool_take(MEGABYTE) == first);
  tt_pool_give(first);
  tt_pool_give(second);
}

TEST(pool_blocks_do_not_overlap) {
  start();
  enum { COUNT = 200 };
  static const size_t sizes[] = {TT_POOL_MIN, 100000, MEGABYTE, 9 * MEGABYTE, 3 * MEGABYTE + 1};
  unsigned char *blocks[COUNT];
  for (int i = 0; i < COUNT; ++i) {
    size_t size = sizes[i % 5];
    blocks[i] = tt_pool_take(size);
    CHECK(blocks[i] != NULL);
    blocks[i][0] = blocks[i][size / 2] = blocks[i][size - 1] = (unsigned char)i;
  }
  for (int i = 0; i < COUNT; ++i) {
    size_t size = sizes[i % 5];
    CHECK_INT(blocks[i][0], i);
    CHECK_INT(blocks[i][size / 2], i);
    CHECK_INT(blocks[i][size - 1], i);
    tt_pool_give(blocks[i]);
  }
}

TEST(pool_counts_and_trims) {
  tt_pool_use before = start();
  CHECK_INT(before.kept, 0);
  enum { SIZE = 16 * MEGABYTE };
  void *block = tt_pool_take(SIZE);
  memset(block, 1, SIZE);
  CHECK_INT(tt_pool_get_use().taken, before.taken + SIZE);
  tt_pool_give(block);
  CHECK_INT(tt_pool_get_use().taken, before.taken);
  CHECK_INT(tt_pool_get_use().kept, SIZE);
  CHECK_INT(resident_pages(block, SIZE), SIZE / TT_POOL_ALIGNMENT);
  tt_pool_trim();
  CHECK_INT(tt_pool_get_use().kept, 0);
  CHECK(resident_pages(block, SIZE) <= 1);
  CHECK(tt_pool_take(SIZE) == block); // and it can be used again
  memset(block, 2, SIZE);
  tt_pool_give(block);
  tt_pool_trim();
}

static void *take_and_give(void *seed) {
  unsigned state = (unsigned)(uintptr_t)seed;
  for (int i = 0; i < 2000; ++i) {
    state = state * 1664525 + 1013904223;
    size_t size = TT_POOL_MIN + (state >> 12);
    unsigned char *block = tt_pool_take(size);
    if (block == NULL) return NULL;
    unsigned char mark = (unsigned char)(uintptr_t)seed;
    block[0] = block[size - 1] = mark;
    if (i % 16 == 0) tt_pool_trim(); // of what is free only
    bool kept = block[0] == mark && block[size - 1] == mark;
    tt_pool_give(block);
    if (!kept) return NULL;
  }
  return seed;
}

TEST(pool_serves_threads) {
  tt_pool_use before = start();
  pthread_t threads[4];
  for (uintptr_t i = 0; i < 4; ++i) CHECK(pthread_create(&threads[i], NULL, take_and_give, (void *)(i + 1)) == 0);
  for (uintptr_t i = 0; i < 4; ++i) {
    void *result = NULL;
    pthread_join(threads[i], &result);
    CHECK(result == (void *)(i + 1));
  }
  CHECK_INT(tt_pool_get_use().taken, before.taken);
  tt_pool_trim();
}

TEST(pool_works_in_a_forked_child) {
  start();
  unsigned char *block = tt_pool_take(MEGABYTE);
  block[0] = 7;
  pid_t child = fork();
  if (child == 0) {
    unsigned char *other = tt_pool_take(MEGABYTE);
    bool good = other != NULL && other != block && block[0] == 7;
    tt_pool_give(other);
    tt_pool_give(block);
    _exit(good ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK_INT(status, 0);
  CHECK_INT(block[0], 7);
  tt_pool_give(block);
}
