// internal.h - what the files of graph/ share.
#ifndef TT_GRAPH_INTERNAL_H_
#define TT_GRAPH_INTERNAL_H_

#include "graph/storage.h"

// What a report needs of a live storage, copied.
typedef struct tt_live_storage {
  int64_t byte_size;       // of one
  int64_t count;           // how many such
  const tt_layout *layout; // NULL: uninitialised
  const char *op_name;     // "" if unknown
  bool recorded;
} tt_live_storage;

// Copies the device's storages of more than zero bytes, `count` 1 each. *out_items is freed with tt_free; NULL when there
// are none or no memory for it.
size_t tt_storage_collect_live(tt_device *device, tt_live_storage **out_items);

#endif // TT_GRAPH_INTERNAL_H_
