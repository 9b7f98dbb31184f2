// storage.c - storages: their value, their life, and the list of those alive.
//
// Owns the lists of live storages, one per device, guarded by `live_lock`. Order of locks: live_lock, then a storage's.
// Reference counts, values and lists may be used by any thread.
#include "graph/storage.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "graph/internal.h"

static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER;
static tt_storage *live[TT_MAX_DEVICES]; // first of each device
static int64_t live_count[TT_MAX_DEVICES];
static _Atomic uint64_t newest;                    // number of the storage created last
static _Atomic int64_t live_bytes[TT_MAX_DEVICES]; // written under the lock or with a storage's size

static inline void pause_briefly(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

void tt_storage_lock_contended(tt_storage *storage) {
  // Holders need a few instructions; one that takes longer has lost its core.
  for (int spins = 0; atomic_flag_test_and_set_explicit(&storage->lock, memory_order_acquire); spins++) {
    if (spins < 64) {
      pause_briefly();
    } else {
      sched_yield();
    }
  }
}

// ---- creation and release --------------------------------------------------------------------------------------------

static void live_insert(tt_storage *storage) {
  int index = storage->device->index;
  pthread_mutex_lock(&live_lock);
  storage->next = live[index];
  if (storage->next != NULL) storage->next->previous = storage;
  live[index] = storage;
  live_count[index]++;
  live_bytes[index] += storage->byte_size;
  pthread_mutex_unlock(&live_lock);
}

static void live_remove(tt_storage *storage) {
  int index = storage->device->index;
  pthread_mutex_lock(&live_lock);
  if (storage->previous != NULL) {
    storage->previous->next = storage->next;
  } else {
    live[index] = storage->next;
  }
  if (storage->next != NULL) storage->next->previous = storage->previous;
  live_count[index]--;
  live_bytes[index] -= storage->byte_size;
  pthread_mutex_unlock(&live_lock);
}

uint64_t tt_storage_newest(void) { return atomic_load_explicit(&newest, memory_order_relaxed); }

int64_t tt_storage_live_bytes(const tt_device *device) {
  return atomic_load_explicit(&live_bytes[device->index], memory_order_relaxed);
}

tt_storage *tt_storage_at(const void *address, int64_t *out_byte_offset) {
  int index = 0;
  if (!tt_address_device(address, &index)) return NULL;
  pthread_mutex_lock(&live_lock);
  tt_storage *storage = live[index];
  for (; storage != NULL; storage = storage->next) {
    int64_t offset = (const char *)address - (const char *)storage->address;
    if (storage->address == NULL || offset < 0 || offset >= storage->byte_size) continue;
    *out_byte_offset = offset;
    break;
  }
  pthread_mutex_unlock(&live_lock);
  return storage;
}

// A storage with an address and without a value, not yet in the list.
static tt_status storage_allocate(tt_device *device, int64_t byte_size, tt_storage **out_storage) {
  void *block = NULL;
  TT_TRY(tt_allocate(1, sizeof(tt_storage), &block));
  tt_storage *storage = block;
  atomic_init(&storage->references, 1);
  atomic_flag_clear(&storage->lock);
  storage->device = device;
  storage->number = atomic_fetch_add_explicit(&newest, 1, memory_order_relaxed) + 1;
  storage->byte_size = byte_size;
  if (byte_size > 0) {
    tt_status status = tt_address_take(device->index, byte_size, &storage->address);
    if (status != NULL) {
      tt_free(storage);
      return status;
    }
  }
  *out_storage = storage;
  return TT_SUCCESS;
}

tt_status tt_storage_create(tt_device *device, int64_t byte_size, tt_storage **out_storage) {
  if (byte_size < 0) {
    return tt_error(TT_INVALID_ARGUMENT, "a storage of %lld bytes: the size is negative", (long long)byte_size);
  }
  TT_TRY(tt_storage_check_limit(device, byte_size));
  tt_storage *storage = NULL;
  TT_TRY(storage_allocate(device, byte_size, &storage));
  storage->counted = byte_size > 0;
  if (storage->counted) tt_memory_add(device, byte_size);
  live_insert(storage);
  *out_storage = storage;
  return TT_SUCCESS;
}

tt_status tt_storage_create_with(tt_buffer *buffer, const tt_layout *layout, tt_storage **out_storage) {
  tt_storage *storage = NULL;
  tt_status status = storage_allocate(buffer->device, layout->byte_size, &storage);
  if (status != NULL) {
    tt_buffer_release(buffer);
    return status;
  }
  storage->buffer = buffer;
  storage->layout = layout;
  live_insert(storage);
  *out_storage = storage;
  return TT_SUCCESS;
}

tt_status tt_storage_create_pending(tt_pending *pending, tt_storage **out_storage) {
  tt_storage *storage = NULL;
  tt_status status = storage_allocate(pending->device, pending->layout->byte_size, &storage);
  if (status != NULL) {
    tt_pending_release(pending);
    return status;
  }
  storage->pending = pending;
  storage->layout = pending->layout;
  live_insert(storage);
  *out_storage = storage;
  return TT_SUCCESS;
}

tt_storage *tt_storage_retain(tt_storage *storage) {
  atomic_fetch_add_explicit(&storage->references, 1, memory_order_relaxed);
  return storage;
}

void tt_storage_release(tt_storage *storage) {
  if (storage == NULL) return;
  if (atomic_fetch_sub_explicit(&storage->references, 1, memory_order_acq_rel) != 1) return;
  live_remove(storage); // first: a report may be looking at it
  if (storage->address != NULL) tt_address_give_back(storage->device->index, storage->address, storage->byte_size);
  if (storage->counted) tt_memory_remove(storage->device, storage->byte_size);
  tt_buffer_release(storage->buffer);
  tt_pending_release(storage->pending);
  tt_free(storage);
}

// ---- the value -------------------------------------------------------------------------------------------------------

// Whether a storage counts after its value changed.
typedef enum counting { COUNTS_NOT, COUNTS, COUNTS_AS_BEFORE } counting;

// A value of one of three kinds, or none.
typedef struct value {
  tt_buffer *buffer;
  tt_pending *pending;
  tt_recorder *recorder;
  tt_value *node;
  const tt_layout *layout;
} value;

// Sets the value, whatever it was, taking over its references. The device's statistics and the old value are seen to outside
// the lock.
static void set_value(tt_storage *storage, const value *value, counting counting) {
  tt_storage_lock(storage);
  tt_buffer *old = storage->buffer;
  tt_pending *old_pending = storage->pending;
  bool was_counted = storage->counted;
  int64_t byte_size = storage->byte_size;
  bool counted = counting == COUNTS_AS_BEFORE ? was_counted : counting == COUNTS && byte_size > 0;
  storage->buffer = value->buffer;
  storage->pending = value->pending;
  storage->layout = value->layout;
  storage->recorder = value->recorder;
  storage->node = value->node;
  storage->counted = counted;
  tt_storage_unlock(storage);

  tt_buffer_release(old);
  tt_pending_release(old_pending);
  if (was_counted && !counted) tt_memory_remove(storage->device, byte_size);
  if (counted && !was_counted) tt_memory_add(storage->device, byte_size);
}

static tt_status check_layout(const tt_storage *storage, const tt_layout *layout) {
  if (__builtin_expect(layout->byte_size == storage->byte_size, 1)) return TT_SUCCESS;
  return tt_internal_error("a value of %lld bytes for a storage of %lld", (long long)layout->byte_size,
                           (long long)storage->byte_size);
}

tt_status tt_storage_write(tt_storage *storage, tt_buffer *buffer, const tt_layout *layout) {
  tt_status status = check_layout(storage, layout);
  if (status == NULL && buffer->device != storage->device) {
    status = tt_internal_error("a value on device %d for a storage on device %d", buffer->device->index,
                               storage->device->index);
  }
  if (__builtin_expect(status != NULL, 0)) {
    tt_buffer_release(buffer);
    return status;
  }
  set_value(storage, &(value){.buffer = buffer, .layout = layout}, COUNTS_NOT);
  return TT_SUCCESS;
}

tt_status tt_storage_write_pending(tt_storage *storage, tt_pending *pending) {
  tt_status status = check_layout(storage, pending->layout);
  if (status == NULL && pending->device != storage->device)
    status = tt_internal_error("a pending value of another device than its storage's");
  if (__builtin_expect(status != NULL, 0)) {
    tt_pending_release(pending);
    return status;
  }
  set_value(storage, &(value){.pending = pending, .layout = pending->layout}, COUNTS_NOT);
  return TT_SUCCESS;
}

tt_status tt_storage_write_node(tt_storage *storage, tt_recorder *recorder, tt_value *node, const tt_layout *layout) {
  TT_TRY(check_layout(storage, layout));
  // Its memory is still to come: an uninitialised storage goes on counting.
  set_value(storage, &(value){.recorder = recorder, .node = node, .layout = layout}, COUNTS_AS_BEFORE);
  return TT_SUCCESS;
}

void tt_storage_clear(tt_storage *storage) { set_value(storage, &(value){0}, COUNTS); }

void tt_storage_set_counted(tt_storage *storage, bool counted) {
  tt_storage_lock(storage);
  int64_t byte_size = storage->byte_size;
  bool change = storage->buffer == NULL && storage->pending == NULL && byte_size > 0 && storage->counted != counted;
  if (change) storage->counted = counted;
  tt_storage_unlock(storage);
  if (!change) return;
  if (counted) {
    tt_memory_add(storage->device, byte_size);
  } else {
    tt_memory_remove(storage->device, byte_size);
  }
}

static tt_status recorded_error(void) {
  return tt_error(TT_INVALID_ARGUMENT, "the data of a tensor that is being recorded into a program does not exist yet");
}

// Puts the buffer of a pending value, if there is one by now, into the storage. The lock is held; the pending value that is
// no longer needed comes out, to be released without the lock.
static tt_pending *settle(tt_storage *storage) {
  tt_pending *pending = storage->pending;
  tt_buffer *buffer = atomic_load_explicit(&pending->buffer, memory_order_acquire);
  if (buffer == NULL) return NULL;
  storage->buffer = tt_buffer_retain(buffer);
  storage->pending = NULL;
  return pending;
}

// Has a call taken the buffer, and not written its result yet? Called with the lock held.
static bool is_taken(const tt_storage *storage) {
  return storage->layout != NULL && storage->buffer == NULL && storage->pending == NULL && storage->node == NULL;
}

// Locks a storage whose value is not taken. A program starts in between, which takes microseconds; one that runs while it is
// being started, as small ones of XLA CPU do, takes longer. Should the result never come, that is a failure.
static tt_status lock_present(tt_storage *storage) {
  enum { YIELDS = 100, PAUSES = 1000000, PAUSE_NS = 20000 };
  tt_storage_lock(storage);
  for (int i = 0; __builtin_expect(is_taken(storage), 0); i++) {
    tt_storage_unlock(storage);
    if (i == PAUSES) return tt_internal_error("the value of a storage was taken and not given back");
    if (i < YIELDS) {
      sched_yield();
    } else {
      nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    tt_storage_lock(storage);
  }
  return TT_SUCCESS;
}

tt_status tt_storage_peek(tt_storage *storage, tt_buffer **out_buffer, tt_pending **out_pending,
                          const tt_layout **out_layout) {
  tt_pending *settled = NULL;
  TT_TRY(lock_present(storage));
  if (storage->pending != NULL) settled = settle(storage);
  bool recorded = storage->node != NULL;
  tt_buffer *buffer = storage->buffer;
  tt_pending *pending = storage->pending;
  if (buffer != NULL) tt_buffer_retain(buffer);
  if (pending != NULL) tt_pending_retain(pending);
  *out_layout = buffer != NULL || pending != NULL ? storage->layout : NULL;
  tt_storage_unlock(storage);
  tt_pending_release(settled);
  if (__builtin_expect(recorded, 0)) return recorded_error();
  *out_buffer = buffer;
  *out_pending = pending;
  return TT_SUCCESS;
}

bool tt_storage_is_pending(tt_storage *storage) {
  tt_storage_lock(storage);
  tt_pending *settled = storage->pending != NULL ? settle(storage) : NULL;
  bool pending = storage->pending != NULL;
  tt_storage_unlock(storage);
  tt_pending_release(settled);
  return pending;
}

// Runs graphs until the storage has no pending value. Another thread may give it one again meanwhile.
static tt_status resolve(tt_storage *storage) {
  for (;;) {
    tt_buffer *buffer = NULL;
    tt_pending *pending = NULL;
    const tt_layout *layout;
    TT_TRY(tt_storage_peek(storage, &buffer, &pending, &layout));
    tt_buffer_release(buffer);
    if (pending == NULL) return TT_SUCCESS;
    tt_status status = tt_pending_resolve(pending);
    tt_pending_release(pending);
    if (status != NULL) return status;
  }
}

// Locks a storage without a pending value, nor a value that is taken.
static tt_status lock_resolved(tt_storage *storage) {
  TT_TRY(lock_present(storage));
  while (__builtin_expect(storage->pending != NULL, 0)) {
    tt_storage_unlock(storage);
    TT_TRY(resolve(storage));
    TT_TRY(lock_present(storage));
  }
  return TT_SUCCESS;
}

tt_status tt_storage_read(tt_storage *storage, tt_buffer **out_buffer, const tt_layout **out_layout) {
  TT_TRY(lock_resolved(storage));
  bool recorded = storage->node != NULL;
  tt_buffer *buffer = storage->buffer;
  const tt_layout *layout = buffer != NULL ? storage->layout : NULL;
  if (buffer != NULL) tt_buffer_retain(buffer);
  tt_storage_unlock(storage);
  if (__builtin_expect(recorded, 0)) return recorded_error();
  *out_buffer = buffer;
  *out_layout = layout;
  return TT_SUCCESS;
}

tt_status tt_storage_share(tt_storage *to, tt_storage *from, bool *out_shared) {
  tt_buffer *buffer = NULL;
  tt_pending *pending = NULL;
  const tt_layout *layout;
  TT_TRY(tt_storage_peek(from, &buffer, &pending, &layout));
  *out_shared = buffer != NULL || pending != NULL;
  if (pending != NULL) return tt_storage_write_pending(to, pending);
  return buffer != NULL ? tt_storage_write(to, buffer, layout) : TT_SUCCESS;
}

tt_status tt_storage_take(tt_storage *storage, tt_buffer **out_buffer, const tt_layout **out_layout, bool *out_sole) {
  TT_TRY(lock_resolved(storage));
  bool recorded = storage->node != NULL;
  tt_buffer *buffer = storage->buffer;
  const tt_layout *layout = buffer != NULL ? storage->layout : NULL;
  // With one reference, ours, nobody else can make another: that takes this lock.
  bool sole = buffer != NULL && tt_buffer_is_unique(buffer);
  if (sole) {
    storage->buffer = NULL;
  } else if (buffer != NULL) {
    tt_buffer_retain(buffer);
  }
  tt_storage_unlock(storage);
  if (__builtin_expect(recorded, 0)) return recorded_error();
  *out_buffer = buffer;
  *out_layout = layout;
  *out_sole = sole;
  return TT_SUCCESS;
}

// Swaps in the new size and address; the old address comes out.
static void *swap_block(tt_storage *storage, int64_t byte_size, void *address) {
  tt_storage_lock(storage);
  void *old = storage->address;
  live_bytes[storage->device->index] += byte_size - storage->byte_size;
  storage->byte_size = byte_size;
  storage->address = address;
  tt_storage_unlock(storage);
  return old;
}

tt_status tt_storage_set_size(tt_storage *storage, int64_t byte_size) {
  int index = storage->device->index;
  int64_t old_size = storage->byte_size;
  if (byte_size < 0) {
    return tt_error(TT_INVALID_ARGUMENT, "a storage of %lld bytes: the size is negative", (long long)byte_size);
  }
  if (byte_size == old_size) return TT_SUCCESS;
  if (byte_size > old_size) TT_TRY(tt_storage_check_limit(storage->device, byte_size - old_size));

  void *address = storage->address;
  bool moves = !tt_address_same_block(byte_size, old_size);
  if (moves) {
    address = NULL;
    if (byte_size > 0) TT_TRY(tt_address_take(index, byte_size, &address));
  }
  set_value(storage, &(value){0}, COUNTS_NOT); // uncounts by the old size
  void *old = swap_block(storage, byte_size, address);
  if (moves && old != NULL) tt_address_give_back(index, old, old_size);
  tt_storage_set_counted(storage, true);
  return TT_SUCCESS;
}

bool tt_storage_owns_address(const void *address, int *out_device_index) {
  return tt_address_device(address, out_device_index);
}

// ---- for reports -----------------------------------------------------------------------------------------------------

static tt_live_storage copy_live(tt_storage *storage) {
  tt_storage_lock(storage);
  const tt_buffer *buffer = storage->buffer;
  tt_live_storage copy = {
      .byte_size = storage->byte_size,
      .count = 1,
      .layout = storage->layout,
      .op_name = buffer != NULL && buffer->op_name != NULL ? buffer->op_name : "",
      .recorded = storage->node != NULL || storage->pending != NULL,
  };
  tt_storage_unlock(storage);
  return copy;
}

size_t tt_storage_collect_live(tt_device *device, tt_live_storage **out_items) {
  pthread_mutex_lock(&live_lock);
  size_t count = 0;
  tt_live_storage *items = tt_malloc((size_t)live_count[device->index] * sizeof(*items));
  for (tt_storage *storage = live[device->index]; storage != NULL && items != NULL; storage = storage->next) {
    if (storage->device == device && storage->byte_size > 0) items[count++] = copy_live(storage);
  }
  pthread_mutex_unlock(&live_lock);
  *out_items = items;
  return count;
}
