// address.c - the reserved range, its slabs and the free blocks of each device.
//
// Owns the reservation, which stays until the process ends. `lock` guards everything but `range_base` and `slab_owner`,
// which are written under it and read without it.
#include "graph/address.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

#include "base/memory.h"

#define MIN_BLOCK_LOG2 6
#define LARGEST_RANGE ((uint64_t)1 << 44) // 16 TiB
#define SMALLEST_RANGE ((uint64_t)1 << 30)
// Where no range can be reserved: bit 52 is outside what 48-bit systems map and, without a wish for high addresses, outside
// what those with 57 bits do.
#define MADE_UP_BASE ((uint64_t)1 << 52)

enum { SLAB_COUNT = 16384, CLASS_COUNT = 44 - MIN_BLOCK_LOG2 + 1 };

_Static_assert(sizeof(void *) == 8, "the address range needs 64-bit addresses");

// The free blocks of one size. There is always room for every block of this size that exists, so giving back cannot fail.
typedef struct block_stack {
  uint64_t *blocks;
  size_t count, capacity;
  size_t existing; // free or taken
} block_stack;

typedef struct device_range {
  block_stack classes[CLASS_COUNT];
  uint64_t cursor, end; // what is left of the newest slabs
} device_range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static device_range *device_ranges[TT_MAX_DEVICES];
static uint64_t range_size, slab_size;
static int next_slab;
static _Atomic uint64_t range_base;             // 0: not reserved yet
static _Atomic uint16_t slab_owner[SLAB_COUNT]; // device index + 1; 0: nobody's

static void range_reserve(void) {
  for (uint64_t size = LARGEST_RANGE; size >= SMALLEST_RANGE; size /= 2) {
    void *base = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) continue;
    range_size = size;
    slab_size = size / SLAB_COUNT;
    atomic_store_explicit(&range_base, (uint64_t)(uintptr_t)base, memory_order_release);
    return;
  }
  range_size = LARGEST_RANGE;
  slab_size = LARGEST_RANGE / SLAB_COUNT;
  atomic_store_explicit(&range_base, MADE_UP_BASE, memory_order_release);
}

static int class_of(int64_t byte_size) {
  uint64_t size = (uint64_t)byte_size;
  if (size <= (uint64_t)1 << MIN_BLOCK_LOG2) return 0;
  return 64 - __builtin_clzll(size - 1) - MIN_BLOCK_LOG2;
}

static uint64_t class_size(int class_index) { return (uint64_t)1 << (class_index + MIN_BLOCK_LOG2); }

// Room for `more` further blocks.
static bool stack_reserve(block_stack *stack, size_t more) {
  size_t needed = stack->existing + more;
  if (needed <= stack->capacity) return true;
  size_t capacity = stack->capacity < 8 ? 8 : stack->capacity * 2;
  while (capacity < needed) capacity *= 2;
  uint64_t *blocks = tt_realloc_array(stack->blocks, capacity, sizeof(*blocks));
  if (blocks == NULL) return false;
  stack->blocks = blocks;
  stack->capacity = capacity;
  return true;
}

// Gives the device slabs for a block of `size` bytes, joined to what it has left where they follow each other. What is left
// in front of slabs elsewhere is lost: less than one slab.
static bool claim_slabs(device_range *range, int device_index, uint64_t size) {
  uint64_t start = atomic_load_explicit(&range_base, memory_order_relaxed) + (uint64_t)next_slab * slab_size;
  uint64_t left = range->end == start ? range->end - range->cursor : 0;
  uint64_t slabs = (size - left + slab_size - 1) / slab_size;
  if (slabs > (uint64_t)(SLAB_COUNT - next_slab)) return false;
  for (uint64_t i = 0; i < slabs; i++) {
    atomic_store_explicit(&slab_owner[next_slab++], (uint16_t)(device_index + 1), memory_order_relaxed);
  }
  range->cursor = start - left;
  range->end = start + slabs * slab_size;
  return true;
}

// Halves a free block of a larger class until it fits; for when the range has been dealt out. 0 when there is none.
static uint64_t split_larger(device_range *range, int class_index) {
  int larger = class_index + 1;
  while (larger < CLASS_COUNT && range->classes[larger].count == 0) larger++;
  if (larger >= CLASS_COUNT) return 0;
  for (int i = class_index; i < larger; i++) {
    if (!stack_reserve(&range->classes[i], 2)) return 0;
  }
  block_stack *from = &range->classes[larger];
  uint64_t block = from->blocks[--from->count];
  from->existing--;
  for (int i = larger - 1; i >= class_index; i--) {
    block_stack *to = &range->classes[i];
    to->blocks[to->count++] = block + class_size(i);
    to->existing++;
  }
  range->classes[class_index].existing++;
  return block;
}

static tt_status take_locked(int device_index, int64_t byte_size, uint64_t *out_block) {
  if (atomic_load_explicit(&range_base, memory_order_relaxed) == 0) range_reserve();
  device_range *range = device_ranges[device_index];
  if (range == NULL) {
    range = tt_calloc(1, sizeof(*range));
    if (range == NULL) return tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted");
    device_ranges[device_index] = range;
  }
  int class_index = class_of(byte_size);
  if (class_index >= CLASS_COUNT || class_size(class_index) > range_size) {
    return tt_error(TT_OUT_OF_MEMORY, "a storage of %lld bytes is larger than the address range of %llu bytes",
                    (long long)byte_size, (unsigned long long)range_size);
  }
  block_stack *stack = &range->classes[class_index];
  if (stack->count > 0) {
    *out_block = stack->blocks[--stack->count];
    return TT_SUCCESS;
  }
  if (!stack_reserve(stack, 1)) return tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted");
  uint64_t size = class_size(class_index);
  if (range->end - range->cursor >= size || claim_slabs(range, device_index, size)) {
    *out_block = range->cursor;
    range->cursor += size;
    stack->existing++;
    return TT_SUCCESS;
  }
  *out_block = split_larger(range, class_index);
  if (*out_block != 0) return TT_SUCCESS;
  return tt_error(TT_OUT_OF_MEMORY, "no block of %lld bytes is left in the address range of %llu bytes",
                  (long long)byte_size, (unsigned long long)range_size);
}

tt_status tt_address_take(int device_index, int64_t byte_size, void **out_address) {
  if (device_index < 0 || device_index >= TT_MAX_DEVICES || byte_size <= 0) {
    return tt_internal_error("an address for %lld bytes on device %d", (long long)byte_size, device_index);
  }
  uint64_t block = 0;
  pthread_mutex_lock(&lock);
  tt_status status = take_locked(device_index, byte_size, &block);
  pthread_mutex_unlock(&lock);
  if (status == NULL) *out_address = (void *)(uintptr_t)block;
  return status;
}

void tt_address_give_back(int device_index, void *address, int64_t byte_size) {
  pthread_mutex_lock(&lock);
  block_stack *stack = &device_ranges[device_index]->classes[class_of(byte_size)];
  stack->blocks[stack->count++] = (uint64_t)(uintptr_t)address;
  pthread_mutex_unlock(&lock);
}

bool tt_address_same_block(int64_t byte_size, int64_t other_byte_size) {
  if (byte_size <= 0 || other_byte_size <= 0) return byte_size == other_byte_size;
  return class_of(byte_size) == class_of(other_byte_size);
}

bool tt_address_device(const void *address, int *out_device_index) {
  uint64_t base = atomic_load_explicit(&range_base, memory_order_acquire), at = (uint64_t)(uintptr_t)address;
  if (base == 0 || at < base || at - base >= range_size) return false;
  uint16_t owner = atomic_load_explicit(&slab_owner[(at - base) / slab_size], memory_order_relaxed);
  if (owner == 0) return false;
  *out_device_index = owner - 1;
  return true;
}
