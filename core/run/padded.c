// padded.c - a dense copy of a tensor in a value of larger sizes: what a program for upper bounds takes.
//
// On a host platform the copy is made by the host, so that a tensor of a new size needs no program; elsewhere it is one. The
// host waits for the tensor if it is still being computed, and that wait is counted and can be forbidden like all.
#include <string.h>

#include "base/memory.h"
#include "graph/storage.h"
#include "run/call.h"
#include "run/internal.h"
#include "run/record.h"
#include "run/staging.h"
#include "run/trace.h"

static const char PADDING[] = "padding an argument of a compiled graph";

typedef struct block {
  void *memory;
  int64_t byte_size;
} block;

static void give_back(tt_status status, void *user) {
  tt_status_free(status); // the buffer carries the same
  block *b = user;
  tt_staging_give_back(b->memory, b->byte_size);
  tt_free(b);
}

// Copies dimension `dim` and those inside it; strides are in bytes.
static void copy_window(char *to, const int64_t *to_strides, const char *from, const int64_t *from_strides, int dim,
                        const tt_tensor *t, int64_t itemsize) {
  if (dim == t->rank) {
    memcpy(to, from, (size_t)itemsize);
    return;
  }
  bool is_run = dim == t->rank - 1 && from_strides[dim] == itemsize;
  if (is_run) {
    memcpy(to, from, (size_t)(t->sizes[dim] * itemsize));
    return;
  }
  for (int64_t i = 0; i < t->sizes[dim]; ++i)
    copy_window(to + i * to_strides[dim], to_strides, from + i * from_strides[dim], from_strides, dim + 1, t, itemsize);
}

// A buffer of `layout` whose first elements along each dimension are the tensor's, the others zeros.
static tt_status fill_block(const tt_tensor *tensor, const char *data, const tt_layout *layout, block *b) {
  int64_t itemsize = tt_dtype_size(tensor->dtype), to_strides[TT_MAX_RANK], from_strides[TT_MAX_RANK];
  tt_row_major_strides(layout->rank, layout->dims, to_strides);
  for (int i = 0; i < tensor->rank; ++i) {
    to_strides[i] *= itemsize;
    from_strides[i] = tensor->strides[i] * itemsize;
  }
  b->byte_size = layout->byte_size;
  b->memory = tt_staging_take(b->byte_size);
  if (!b->memory) return tt_error(TT_OUT_OF_MEMORY, "out of host memory for a padded argument");
  memset(b->memory, 0, (size_t)b->byte_size);
  copy_window(b->memory, to_strides, data + tensor->offset * itemsize, from_strides, 0, tensor, itemsize);
  return TT_SUCCESS;
}

// The block becomes the buffer and comes back when that is freed. Takes over `b`.
static tt_status wrap_block(tt_device *device, const tt_layout *layout, block *b, tt_buffer **out_buffer) {
  tt_event done = {0};
  tt_status status = tt_buffer_from_host(device, b->memory, layout->dtype, layout->rank, layout->dims,
                                         TT_HOST_ZERO_COPY, &done, out_buffer);
  tt_status unheard = status ? NULL : tt_event_on_ready(&done, give_back, b);
  if (status || unheard) {
    tt_status_free(unheard); // nobody will say when the block is free: it stays
    if (status) give_back(NULL, b);
  }
  tt_event_release(&done);
  return status;
}

static tt_status wait_for(const tt_tensor *tensor, const tt_buffer *buffer) {
  if (tt_buffer_is_ready(buffer)) return tt_buffer_wait(buffer);
  TT_TRY(tt_check_wait_for(tensor, PADDING));
  return tt_wait_for_buffer(buffer, PADDING);
}

static tt_status copy_on_host(const tt_tensor *tensor, const tt_buffer *buffer, const tt_layout *layout,
                              tt_storage **out_storage) {
  TT_TRY(wait_for(tensor, buffer));
  void *data;
  TT_TRY(tt_buffer_host_data(buffer, &data));
  block *b = tt_calloc(1, sizeof *b);
  if (!b) return tt_error(TT_OUT_OF_MEMORY, "out of host memory for a padded argument");
  tt_status status = fill_block(tensor, data, layout, b);
  if (status) {
    tt_free(b);
    return status;
  }
  tt_buffer *padded;
  TT_TRY(wrap_block(buffer->device, layout, b, &padded));
  return tt_storage_create_with(padded, layout, out_storage);
}

static tt_status copy_by_program(const tt_tensor *tensor, const tt_layout *layout, tt_storage **out_storage) {
  tt_storage *storage;
  TT_TRY(tt_storage_create(tensor->storage->device, layout->byte_size, &storage));
  int64_t strides[TT_MAX_RANK];
  tt_row_major_strides(layout->rank, layout->dims, strides);
  tt_tensor window = {.storage = storage,
                      .dtype = tensor->dtype,
                      .rank = tensor->rank,
                      .sizes = tensor->sizes,
                      .strides = strides,
                      .device_index = tensor->device_index,
                      .defined = true};
  tt_status status = tt_copy(&window, tensor); // uninitialised memory reads as zeros
  if (status)
    tt_storage_release(storage);
  else
    *out_storage = storage;
  return status;
}

tt_status tt_copy_padded(const tt_tensor *tensor, const int64_t *sizes, tt_storage **out_storage) {
  for (int i = 0; i < tensor->rank; ++i)
    if (sizes[i] < tensor->sizes[i])
      return tt_internal_error("a tensor of %lld elements padded to %lld in dimension %d", (long long)tensor->sizes[i],
                               (long long)sizes[i], i);
  const tt_layout *layout;
  TT_TRY(tt_layout_intern(tensor->dtype, tensor->rank, sizes, &layout));
  bool on_host =
      tt_client_is_host(tensor->storage->device->client) && !tensor->conj && !tensor->negative && !tt_record_active();
  tt_buffer *buffer = NULL;
  const tt_layout *own;
  if (on_host) TT_TRY(tt_storage_read(tensor->storage, &buffer, &own));
  if (!buffer) return copy_by_program(tensor, layout, out_storage); // uninitialised memory too
  tt_status status = copy_on_host(tensor, buffer, layout, out_storage);
  tt_buffer_release(buffer);
  return status;
}
