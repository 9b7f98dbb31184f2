// pending.h - a value that a deferred call will give when its graph runs.
//
// Storages hold a pending value in place of a buffer; several may share one, as they may share a buffer. The graph that will
// compute it (run/graph.h) holds one reference until it ran, later graphs that read it one each: a value with its own graph's
// reference alone is dead, nobody can ask for it any more.
//
// Threads: the counts are atomic; `buffer` is set once, by the thread that starts the graph.
#ifndef TT_GRAPH_PENDING_H_
#define TT_GRAPH_PENDING_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "pjrt/buffer.h"

typedef struct tt_layout tt_layout; // graph/storage.h

typedef struct tt_pending {
  _Atomic int32_t references;
  _Atomic bool lost; // its call failed: there will be no buffer
  tt_device *device;
  const tt_layout *layout;
  const char *op_name;         // static: of the call
  _Atomic(tt_buffer *) buffer; // NULL until the graph started; one reference
  // Under the device's lock (run/defer.c): the number of its graph and its place among the graph's values; of the last
  // graph that read it from outside, and its place there.
  uint64_t graph, reader;
  int32_t number, reader_index;
} tt_pending;

// One reference, the caller's. NULL when memory is exhausted.
tt_pending *tt_pending_create(tt_device *device, const tt_layout *layout, const char *op_name, uint64_t graph,
                              int32_t number);
tt_pending *tt_pending_retain(tt_pending *pending);
void tt_pending_release(tt_pending *pending); // NULL is fine
// Is somebody besides the graph interested?
static inline bool tt_pending_is_live(const tt_pending *pending) {
  return atomic_load_explicit(&pending->references, memory_order_acquire) > 1;
}
// Its buffer, retained; NULL if there is none, yet or ever. Takes over the caller's reference to the value, so that the
// buffer's is the only one if the value was the caller's alone.
tt_buffer *tt_pending_take(tt_pending *pending);

// Makes the buffer exist: runs what is deferred unless that happened before. Errors: those of the calls in it; for a lost value
// what failed on the device and nobody has heard of yet, or else that it is lost.
tt_status tt_pending_resolve(tt_pending *pending);
// What runs all that a device has deferred, and what gives its pending failure, which is then no longer pending; set once,
// before the first pending value.
void tt_pending_set_runner(tt_status (*run)(tt_device *device), tt_status (*take_failure)(tt_device *device));

#endif // TT_GRAPH_PENDING_H_
