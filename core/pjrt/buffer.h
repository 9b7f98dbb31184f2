// buffer.h - an immutable array in device memory.
//
// Reference-counted: tt_buffer_retain and tt_buffer_release from any thread. A buffer may still be computing; reads wait.
// Programs may only take it over (donation) through tt_executable_execute, after which it must not be used again.
#ifndef TT_PJRT_BUFFER_H_
#define TT_PJRT_BUFFER_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "pjrt/client.h"
#include "pjrt/event.h"

typedef struct tt_buffer {
  _Atomic int32_t references;
  tt_device *device;
  void *pjrt;          // PJRT_Buffer *
  int64_t byte_size;   // logical size, what memory statistics count
  const char *op_name; // static text: the op whose program made it, for errors that surface later; may be NULL
  // Where the graph that holds it keeps it: valid while `graph` is that graph's number. Under the graph's lock.
  uint64_t graph;
  int32_t graph_index;
} tt_buffer;

typedef enum tt_host_semantics {
  TT_HOST_COPY,       // the host memory is free again when the call returns
  TT_HOST_UNTIL_DONE, // the host memory must stay until `out_done` is ready
  TT_HOST_ZERO_COPY,  // the buffer aliases the host memory (64-byte aligned, host platforms); it must stay and stay
                      // unchanged until `out_done`, which then comes only when the buffer is freed
  TT_HOST_ZERO_COPY_MUTABLE, // the same, and a program that takes the buffer over may write into it
} tt_host_semantics;

// Makes a buffer on `device` from dense row-major host data. *out_done may be NULL with TT_HOST_COPY.
// Errors: TT_INVALID_ARGUMENT for an unknown dtype or a negative size (the plugin would crash), TT_OUT_OF_MEMORY,
// TT_PLUGIN.
tt_status tt_buffer_from_host(tt_device *device, const void *data, tt_dtype dtype, int rank, const int64_t *dims,
                              tt_host_semantics semantics, tt_event *out_done, tt_buffer **out_buffer);
// Wraps a PJRT buffer that the core now owns. On failure the PJRT buffer is destroyed.
tt_status tt_buffer_wrap(tt_device *device, void *pjrt_buffer, int64_t byte_size, const char *op_name,
                         tt_buffer **out_buffer);

tt_buffer *tt_buffer_retain(tt_buffer *buffer);
void tt_buffer_release(tt_buffer *buffer); // NULL is fine
static inline bool tt_buffer_is_unique(const tt_buffer *buffer) {
  return atomic_load_explicit(&buffer->references, memory_order_acquire) == 1;
}

bool tt_buffer_is_ready(const tt_buffer *buffer);
// Blocks until computed. The failure of the program that made it names buffer->op_name.
tt_status tt_buffer_wait(const tt_buffer *buffer);
// Starts a dense row-major copy into `data` of `size` bytes (at least the buffer's); *out_done is ready when it is there.
tt_status tt_buffer_to_host(const tt_buffer *buffer, void *data, int64_t size, tt_event *out_done);
// Copies to a device of the same client; the buffer's own device gives a second copy there.
tt_status tt_buffer_to_device(const tt_buffer *buffer, tt_device *device, tt_buffer **out_buffer);
// The address of the data on host platforms (tt_client_is_host). Wait first: the memory may still be written.
tt_status tt_buffer_host_data(const tt_buffer *buffer, void **out_data);

#endif // TT_PJRT_BUFFER_H_
