// pending.c - see pending.h.
#include "graph/pending.h"

#include "base/memory.h"

static _Atomic(tt_status (*)(tt_device *)) runner, failure_teller;

void tt_pending_set_runner(tt_status (*run)(tt_device *device), tt_status (*take_failure)(tt_device *device)) {
  atomic_store(&runner, run);
  atomic_store(&failure_teller, take_failure);
}

tt_pending *tt_pending_create(tt_device *device, const tt_layout *layout, const char *op_name, uint64_t graph,
                              int32_t number) {
  tt_pending *pending = tt_malloc(sizeof *pending);
  if (pending == NULL) return NULL;
  atomic_init(&pending->references, 1);
  atomic_init(&pending->buffer, NULL);
  atomic_init(&pending->lost, false);
  pending->graph = graph;
  pending->number = number;
  pending->reader = 0;
  pending->device = device;
  pending->layout = layout;
  pending->op_name = op_name;
  return pending;
}

tt_pending *tt_pending_retain(tt_pending *pending) {
  atomic_fetch_add_explicit(&pending->references, 1, memory_order_relaxed);
  return pending;
}

void tt_pending_release(tt_pending *pending) {
  if (pending == NULL) return;
  if (atomic_fetch_sub_explicit(&pending->references, 1, memory_order_acq_rel) != 1) return;
  tt_buffer_release(atomic_load_explicit(&pending->buffer, memory_order_relaxed));
  tt_free(pending);
}

tt_buffer *tt_pending_take(tt_pending *pending) {
  tt_buffer *buffer = atomic_load_explicit(&pending->buffer, memory_order_acquire);
  if (buffer != NULL) tt_buffer_retain(buffer);
  tt_pending_release(pending);
  return buffer;
}

// Its call may have been started, and failed, when nobody could be told.
static tt_status lost(const tt_pending *pending) {
  TT_TRY(atomic_load(&failure_teller)(pending->device));
  return tt_error(TT_INVALID_ARGUMENT, "the value that %s was to give is lost: a deferred call before it failed",
                  pending->op_name);
}

tt_status tt_pending_resolve(tt_pending *pending) {
  if (atomic_load_explicit(&pending->buffer, memory_order_acquire) != NULL) return TT_SUCCESS;
  if (!atomic_load_explicit(&pending->lost, memory_order_acquire)) TT_TRY(atomic_load(&runner)(pending->device));
  if (atomic_load_explicit(&pending->buffer, memory_order_acquire) != NULL) return TT_SUCCESS;
  if (atomic_load_explicit(&pending->lost, memory_order_acquire)) return lost(pending);
  return tt_internal_error("a graph ran without giving the value of %s", pending->op_name);
}
