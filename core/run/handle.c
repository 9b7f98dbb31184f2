// handle.c - storages as the bridge sees them: by device number, opaque.
#include "graph/storage.h"
#include "run/internal.h"

tt_status tt_storage_create_on(int index, int64_t byte_size, tt_storage **out_storage) {
  tt_device *device = NULL;
  TT_TRY(tt_device_find(index, &device));
  return tt_storage_create(device, byte_size, out_storage);
}

void *tt_storage_address(const tt_storage *storage) { return storage->address; }
