// storage.h - the value behind a torch Storage.
//
// A storage holds one immutable value at a time: nothing yet (uninitialised), a device buffer, a pending value (which becomes a
// buffer when somebody asks for it), or a node of the program that this thread is recording. Reading a view leaves it alone. Writing through a view makes a new value and swaps it in, so
// every alias sees the write and every earlier reader keeps what it read.
//
// A value keeps the N-d shape and dtype of the program result that made it (its layout), not flat bytes: on a TPU's tiled
// memory flattening is a copy. A tensor's sizes, strides and offset are matched against the layout when it is read.
//
// A storage also owns a range of addresses that nothing may dereference (a reservation without access rights), so that
// torch's pointer arithmetic, overlap tests and identity tests behave as for real memory.
//
// Threads: reference counts are atomic. The value belongs to whoever holds `lock`; never call into pjrt under it except to
// count references.
#ifndef TT_GRAPH_STORAGE_H_
#define TT_GRAPH_STORAGE_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "base/string.h"
#include "graph/address.h"
#include "graph/pending.h"
#include "hlo/builder.h"
#include "op/arg.h"
#include "pjrt/buffer.h"

// Element type and dims of a value, row-major. Interned: equal layouts are the same pointer, and live for ever.
struct tt_layout {
  tt_dtype dtype;
  int rank;
  int64_t count;     // elements
  int64_t byte_size; // count * size of dtype
  const int64_t *dims, *strides;
};

// *out_layout is valid until the process ends. TT_INVALID_ARGUMENT when the element count overflows.
tt_status tt_layout_intern(tt_dtype dtype, int rank, const int64_t *dims, const tt_layout **out_layout);

typedef struct tt_recorder tt_recorder; // graph/recorder.h

struct tt_storage {
  _Atomic int32_t references;
  atomic_flag lock;
  tt_device *device;
  uint64_t number; // in the order of creation, from 1
  int64_t byte_size;
  void *address;           // of the reserved range; NULL for zero bytes
  bool counted;            // byte_size is in the device's memory statistics (no buffer yet)
  tt_buffer *buffer;       // NULL: uninitialised, pending or recorded
  tt_pending *pending;     // instead of a buffer
  const tt_layout *layout; // of buffer, pending value or node, or of the buffer that was taken; NULL when uninitialised
  tt_recorder *recorder;   // the recorder that `node` belongs to
  tt_value *node;
  tt_storage *previous, *next; // in the device's list of live storages; the list's lock in storage.c guards them
};

// The spin lock: for a few instructions at a time, never around a call that may block. Calls of other tt_storage functions
// on the same storage take it themselves.
void tt_storage_lock_contended(tt_storage *storage);
static inline void tt_storage_lock(tt_storage *storage) {
  if (__builtin_expect(atomic_flag_test_and_set_explicit(&storage->lock, memory_order_acquire), 0)) {
    tt_storage_lock_contended(storage);
  }
}
static inline void tt_storage_unlock(tt_storage *storage) {
  atomic_flag_clear_explicit(&storage->lock, memory_order_release);
}

// Creates a storage of `byte_size` bytes on `device`, uninitialised until its first write; it reads as zeros.
// The caller owns the one reference in *out_storage; release it with tt_storage_release.
// Errors: TT_INVALID_ARGUMENT if byte_size is negative, TT_OUT_OF_MEMORY when the device cannot hold it.
// Its bytes count in the device's memory statistics until it gets a buffer, which then counts itself.
tt_status tt_storage_create(tt_device *device, int64_t byte_size, tt_storage **out_storage);
// Creates a storage that already has a value, of layout's byte size: what a program's fresh result needs, since it never
// counts twice. Takes over the caller's reference to `buffer`, on failure too.
tt_status tt_storage_create_with(tt_buffer *buffer, const tt_layout *layout, tt_storage **out_storage);
// The same for a value that is still to come; it does not count in the memory statistics until it is there.
tt_status tt_storage_create_pending(tt_pending *pending, tt_storage **out_storage);
tt_storage *tt_storage_retain(tt_storage *storage);
void tt_storage_release(tt_storage *storage); // NULL is fine

// Replaces the value by a buffer; takes over the caller's reference (on failure too), the old value is released.
// `layout` must have the storage's byte size and the buffer its device: TT_INTERNAL otherwise, since lowering decides sizes.
tt_status tt_storage_write(tt_storage *storage, tt_buffer *buffer, const tt_layout *layout);
// The same for a value that is still to come.
tt_status tt_storage_write_pending(tt_storage *storage, tt_pending *pending);
// Back to uninitialised, as tt_storage_create left it.
void tt_storage_clear(tt_storage *storage);
// Whether the bytes of a storage without a buffer count in the memory statistics. A caller about to run a program that
// writes an uninitialised storage switches it off before, so that result and storage do not count twice in the peak, and
// on again if the program could not be started. Does nothing while there is a buffer.
void tt_storage_set_counted(tt_storage *storage, bool counted);
// Replaces the value by a node of the graph being recorded; `node` has layout's dtype and dims.
tt_status tt_storage_write_node(tt_storage *storage, tt_recorder *recorder, tt_value *node, const tt_layout *layout);
// The current value: *out_buffer is retained, or NULL when uninitialised (then *out_layout is NULL too). A pending value is
// resolved: its graph runs, whose failure may come out here. A recorded storage fails with TT_INVALID_ARGUMENT: its data does
// not exist yet.
tt_status tt_storage_read(tt_storage *storage, tt_buffer **out_buffer, const tt_layout **out_layout);
// The current value without resolving it: a buffer, a pending value that has none yet, or neither. Both are retained.
tt_status tt_storage_peek(tt_storage *storage, tt_buffer **out_buffer, tt_pending **out_pending,
                          const tt_layout **out_layout);
// Is its value still to come?
bool tt_storage_is_pending(tt_storage *storage);
// Gives `to` the value of `from`, which both then share, whatever it is. *out_shared is false when there is none.
tt_status tt_storage_share(tt_storage *to, tt_storage *from, bool *out_shared);
// The layout of the current value, whatever it is, also of one that is taken; NULL when uninitialised.
static inline const tt_layout *tt_storage_layout(tt_storage *storage) {
  tt_storage_lock(storage);
  const tt_layout *layout = storage->layout;
  tt_storage_unlock(storage);
  return layout;
}
// Takes the buffer out if nothing else holds it, so that a program may reuse its memory (XLA calls this donation); otherwise
// retains it. *out_sole tells which. A storage whose buffer was taken keeps `layout` and does not count: the buffer does. The
// caller soon writes the program's result, or the buffer itself if the program could not be started, or clears the storage;
// until then whoever else reads or takes the value waits. So a call that names one storage twice must take it once, reads what
// it only reads before it takes anything, and between does nothing that waits for another thread. Uninitialised and recorded
// storages answer as to tt_storage_read.
tt_status tt_storage_take(tt_storage *storage, tt_buffer **out_buffer, const tt_layout **out_layout, bool *out_sole);
// New byte size: the storage becomes uninitialised, and moves to a new address unless the old block serves. The common prefix
// of the old contents is kept by the caller, who reads it before and writes it after (tt_resize_storage does it with a
// program). A size that does not change leaves all as it is. On failure too. Errors as tt_storage_create.
tt_status tt_storage_set_size(tt_storage *storage, int64_t byte_size);

// The number of the storage created last.
uint64_t tt_storage_newest(void);
// Bytes of all live storages of a device, whether there is memory behind them yet or not.
int64_t tt_storage_live_bytes(const tt_device *device);
// Would `byte_size` bytes more fit the device's memory? TT_OUT_OF_MEMORY in torch's words, with the largest live tensors,
// otherwise; the statistics count it when the user is told. For results of programs, before they run.
tt_status tt_storage_check_limit(tt_device *device, int64_t byte_size);
// Appends the largest live tensors to a failure for lack of memory (a plugin's own), which the statistics then count when the
// user is told; other statuses pass unchanged.
tt_status tt_storage_explain_out_of_memory(tt_device *device, tt_status status);
// The `count` largest live storages of a device, as text lines for out-of-memory errors, appended to `out`. Equal ones share
// a line, and the largest sum is first: "  256.00 MiB  Float [8192, 8192]  made by mm".
void tt_storage_report(tt_device *device, int count, tt_string *out);
// Appends a number of bytes as torch writes it: "512 bytes", "1.50 KiB", "23.50 GiB".
void tt_byte_size_append(tt_string *out, int64_t byte_size);
// Is `address` inside the reserved range? Then which device.
bool tt_storage_owns_address(const void *address, int *out_device_index);
// The live storage whose range holds `address`, and where in it; NULL if there is none. Borrowed: whoever has the address
// keeps the storage alive. Searches all storages of the device.
tt_storage *tt_storage_at(const void *address, int64_t *out_byte_offset);

#endif // TT_GRAPH_STORAGE_H_
