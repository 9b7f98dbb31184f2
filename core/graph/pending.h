// pending.h - a value that a deferred call will give when its graph runs.
//
// Storages hold a pending value in place of a buffer; several may share one, as they may share a buffer. The graph that will
// compute it (run/graph.h) holds one reference until it ran, so a value with that reference alone is dead: nobody can ask for
// it any more.
//
// Threads: the counts are atomic; `buffer` is set once, by the thread that runs the graph.
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
  int32_t number; // among its graph's values; of the graph alone
  tt_device *device;
  const tt_layout *layout;
  const char *op_name;         // static: of the call
  _Atomic(tt_buffer *) buffer; // NULL until the graph ran; one reference
  _Atomic bool lost;           // the graph failed: there will be no buffer
} tt_pending;

// One reference, the caller's. NULL when memory is exhausted.
tt_pending *tt_pending_create(tt_device *device, const tt_layout *layout, const char *op_name, int32_t number);
tt_pending *tt_pending_retain(tt_pending *pending);
void tt_pending_release(tt_pending *pending); // NULL is fine
// Is somebody besides the graph interested?
static inline bool tt_pending_is_live(const tt_pending *pending) {
  return atomic_load_explicit(&pending->references, memory_order_acquire) > 1;
}

// Makes the buffer exist: runs the graph unless it ran before. Errors: those of the calls in it; a lost value's.
tt_status tt_pending_resolve(tt_pending *pending);
// What runs a device's graph; set once, before the first pending value.
void tt_pending_set_runner(tt_status (*run)(tt_device *device));

#endif // TT_GRAPH_PENDING_H_
