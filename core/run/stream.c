// stream.c - stream ids. They order nothing, since a device has one queue; torch only wants to tell them apart.
#include <stdatomic.h>

#include "graph/address.h"
#include "run/runtime.h"

static _Atomic int64_t last_id;
static _Thread_local int64_t current[TT_MAX_DEVICES]; // 0: the default stream

static bool known(int index) { return index >= 0 && index < TT_MAX_DEVICES; }

int64_t tt_stream_new(int index) {
  (void)index;
  return atomic_fetch_add_explicit(&last_id, 1, memory_order_relaxed) + 1;
}

int64_t tt_stream_current(int index) { return known(index) ? current[index] : 0; }

int64_t tt_stream_exchange(int index, int64_t id) {
  if (!known(index)) return 0;
  int64_t old = current[index];
  current[index] = id;
  return old;
}
