// pool.c - large blocks of host memory that come back with their pages.
//
// Address space is reserved once, far more than there is memory, and made accessible step by step from both ends: small blocks
// from the bottom, large ones, in huge pages, from the top. A block stays one of its size for ever; only its pages come and go.
// So addresses are never joined or split, and the size of a block is one byte in a table of its own.
#include "base/pool.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
  MIN_SHIFT = 15,        // TT_POOL_MIN is 8 << (MIN_SHIFT - 3)
  OCTAVES = 22,          // up to 128 GiB
  CLASSES = 8 * OCTAVES, // and one byte names each
  PAGE = TT_POOL_ALIGNMENT,
  HUGE_PAGE = 1 << 21,
  HUGE_BLOCK = 8 << 20, // from here on rounding up to huge pages wastes little
  STEP = 32 << 20,      // of making address space accessible
};
_Static_assert(CLASSES < 255, "a class is a byte, 0 is none");
_Static_assert(TT_POOL_MIN == 1 << MIN_SHIFT, "the smallest class is the smallest block");

// Reserved: this many times the machine's memory, for sizes that were in use at different times.
static const size_t RESERVED_TIMES = 16;
// Freed blocks may hold this part of the machine's memory.
static const size_t KEPT_PART = 4;

// In the first bytes of a block that is free.
typedef struct free_block {
  struct free_block *next;
  bool has_pages;
} free_block;

static struct {
  pthread_mutex_t lock;
  char *base, *end;   // the reservation; NULL before the start
  char *bottom, *top; // not handed out yet is what lies between
  char *low, *high;   // not accessible yet is what lies between
  uint8_t *class_of;  // by page: class + 1 of the block that begins there
  size_t kept_limit;
  uint64_t clock; // calls so far
  free_block *free[CLASSES];
  uint64_t used[CLASSES]; // when the class was last in use
  size_t kept[CLASSES];   // bytes of its freed blocks that have pages
  tt_pool_use use;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t class_size(int class) { return (size_t)(8 + class % 8) << (class / 8 + MIN_SHIFT - 3); }

// The smallest class that holds `size`, or CLASSES.
static int class_for(size_t size) {
  if (size <= TT_POOL_MIN) return 0;
  int octave = 63 - __builtin_clzll((unsigned long long)(size - 1)) - MIN_SHIFT;
  if (octave >= OCTAVES) return CLASSES;
  size_t eighth = (size_t)1 << (octave + MIN_SHIFT - 3);
  return 8 * octave + (int)((size - 1) / eighth) - 7;
}

static size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

static void before_fork(void) { pthread_mutex_lock(&pool.lock); }
static void after_fork(void) { pthread_mutex_unlock(&pool.lock); }

bool tt_pool_start(void) {
  if (pool.base) return true;
  size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
  size_t size = round_up(RESERVED_TIMES * memory, STEP), pages = size / PAGE;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char *base = mmap(NULL, size, PROT_NONE, flags, -1, 0);
  if (base == MAP_FAILED) return false; // there is a limit on address space
  void *classes = mmap(NULL, pages, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (classes == MAP_FAILED || pthread_atfork(before_fork, after_fork, after_fork) != 0) {
    munmap(base, size);
    if (classes != MAP_FAILED) munmap(classes, pages);
    return false;
  }
  pool.class_of = classes;
  pool.kept_limit = memory / KEPT_PART;
  pool.base = pool.bottom = pool.low = base;
  pool.end = pool.top = pool.high = base + size;
  return true;
}

// --- free blocks ----------------------------------------------------------------------------------------------------------

// Takes the pages of a class's free blocks, except the one that holds the link.
static void trim_class(int class) {
  if (pool.kept[class] == 0) return;
  size_t size = class_size(class);
  for (free_block *block = pool.free[class]; block; block = block->next) {
    if (!block->has_pages) continue;
    block->has_pages = false;
    madvise((char *)block + PAGE, size - PAGE, MADV_DONTNEED);
  }
  pool.use.kept -= (int64_t)pool.kept[class];
  pool.kept[class] = 0;
}

static void trim(void) {
  for (int class = 0; class < CLASSES; ++class) trim_class(class);
}

// Classes that nobody used for longest go first; that of the call goes last.
static void trim_to_limit(void) {
  while ((size_t)pool.use.kept > pool.kept_limit) {
    int oldest = -1;
    for (int class = 0; class < CLASSES; ++class)
      if (pool.kept[class] > 0 && (oldest < 0 || pool.used[class] < pool.used[oldest])) oldest = class;
    trim_class(oldest);
  }
}

static void *pop(int class) {
  free_block *block = pool.free[class];
  if (!block) return NULL;
  pool.free[class] = block->next;
  if (block->has_pages) {
    pool.kept[class] -= class_size(class);
    pool.use.kept -= (int64_t)class_size(class);
  }
  return block;
}

// --- new blocks -----------------------------------------------------------------------------------------------------------

static bool make_accessible(char *begin, size_t size) { return mprotect(begin, size, PROT_READ | PROT_WRITE) == 0; }

static char *from_bottom(size_t size) {
  if ((size_t)(pool.top - pool.bottom) < size) return NULL;
  if (pool.bottom + size > pool.low) {
    size_t more = round_up((size_t)(pool.bottom + size - pool.low), STEP);
    if ((size_t)(pool.high - pool.low) < more || !make_accessible(pool.low, more)) return NULL;
    pool.low += more;
  }
  char *block = pool.bottom;
  pool.bottom += size;
  return block;
}

static char *from_top(size_t size) {
  uintptr_t unaligned = (uintptr_t)pool.top - size;
  if ((size_t)(pool.top - pool.bottom) < size + HUGE_PAGE) return NULL;
  char *block = pool.top - size - unaligned % HUGE_PAGE;
  if (block < pool.high) {
    size_t more = round_up((size_t)(pool.high - block), STEP);
    if ((size_t)(pool.high - pool.low) < more || !make_accessible(pool.high - more, more)) return NULL;
    pool.high -= more;
    madvise(pool.high, more, MADV_HUGEPAGE);
  }
  pool.top = block;
  return block;
}

static void *carve(int class) {
  size_t size = class_size(class);
  char *block = size >= HUGE_BLOCK ? from_top(size) : from_bottom(size);
  if (block) pool.class_of[(block - pool.base) / PAGE] = (uint8_t)(class + 1);
  return block;
}

// --- the pool ---------------------------------------------------------------------------------------------------------------

static void *take(int class) {
  pool.used[class] = ++pool.clock;
  void *block = pop(class);
  if (!block) block = carve(class);
  if (!block) {
    trim();
    block = carve(class);
  }
  if (block) pool.use.taken += (int64_t)class_size(class);
  return block;
}

void *tt_pool_take(size_t size) {
  int class = class_for(size);
  if (!pool.base || size < TT_POOL_MIN || class >= CLASSES) return NULL;
  pthread_mutex_lock(&pool.lock);
  void *block = take(class);
  pthread_mutex_unlock(&pool.lock);
  return block;
}

bool tt_pool_owns(const void *block) {
  return (uintptr_t)block - (uintptr_t)pool.base < (uintptr_t)pool.end - (uintptr_t)pool.base;
}

static int class_of(const void *block) { return pool.class_of[((const char *)block - pool.base) / PAGE] - 1; }

size_t tt_pool_size(const void *block) { return class_size(class_of(block)); }

void tt_pool_give(void *memory) {
  pthread_mutex_lock(&pool.lock);
  free_block *block = memory;
  int class = class_of(block);
  size_t size = class_size(class);
  *block = (free_block){pool.free[class], true};
  pool.free[class] = block;
  pool.used[class] = ++pool.clock;
  pool.kept[class] += size;
  pool.use.kept += (int64_t)size;
  pool.use.taken -= (int64_t)size;
  trim_to_limit();
  pthread_mutex_unlock(&pool.lock);
}

void tt_pool_trim(void) {
  pthread_mutex_lock(&pool.lock);
  trim();
  pthread_mutex_unlock(&pool.lock);
}

tt_pool_use tt_pool_get_use(void) {
  pthread_mutex_lock(&pool.lock);
  tt_pool_use use = pool.use;
  pthread_mutex_unlock(&pool.lock);
  return use;
}
