// buffer.c - arrays in device memory.
#include "pjrt/buffer.h"

#include "base/memory.h"
#include "pjrt/api.h"

#define BUFFER_MAX_RANK 64

static tt_plugin *buffer_plugin(const tt_buffer *buffer) { return buffer->device->client->plugin; }

static tt_status buffer_allocate(tt_buffer **out_buffer) {
  tt_buffer *buffer = tt_malloc(sizeof(tt_buffer));
  if (buffer == NULL) return tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted");
  *out_buffer = buffer;
  return TT_SUCCESS;
}

static void buffer_initialize(tt_buffer *buffer, tt_device *device, void *pjrt, int64_t byte_size,
                              const char *op_name) {
  atomic_init(&buffer->references, 1);
  buffer->device = device;
  buffer->pjrt = pjrt;
  buffer->byte_size = byte_size;
  buffer->op_name = op_name;
  buffer->graph = 0;
  tt_memory_add(device, byte_size);
}

static void destroy_pjrt_buffer(const tt_plugin *plugin, void *pjrt) {
  tt_pjrt_ignore(plugin, plugin->api->PJRT_Buffer_Destroy(&TT_PJRT_ARGS(PJRT_Buffer_Destroy, .buffer = pjrt)));
}

static tt_status check_shape(tt_dtype dtype, int rank, const int64_t *dims, int64_t *out_byte_size) {
  if (dtype <= TT_DTYPE_NONE || dtype >= TT_DTYPE_COUNT) {
    return tt_error(TT_INVALID_ARGUMENT, "a buffer needs a dtype, got number %d", (int)dtype);
  }
  if (rank < 0 || rank > BUFFER_MAX_RANK) {
    return tt_error(TT_INVALID_ARGUMENT, "a buffer has 0 to %d dimensions, got %d", BUFFER_MAX_RANK, rank);
  }
  // A size of 0 makes the product 0 whatever the others are; torch allows that.
  int64_t byte_size = tt_dtype_size(dtype);
  bool empty = false, overflow = false;
  for (int i = 0; i < rank; i++) {
    if (dims[i] < 0) {
      return tt_error(TT_INVALID_ARGUMENT, "size %lld of dimension %d is negative", (long long)dims[i], i);
    }
    if (dims[i] == 0) empty = true;
    if (!tt_mul_i64(byte_size, dims[i], &byte_size)) overflow = true;
  }
  if (overflow && !empty) return tt_error(TT_INVALID_ARGUMENT, "the number of bytes does not fit 64 bits");
  *out_byte_size = empty ? 0 : byte_size;
  return TT_SUCCESS;
}

static PJRT_HostBufferSemantics semantics_to_pjrt(tt_host_semantics semantics) {
  static const PJRT_HostBufferSemantics table[] = {
      [TT_HOST_COPY] = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
      [TT_HOST_UNTIL_DONE] = PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes,
      [TT_HOST_ZERO_COPY] = PJRT_HostBufferSemantics_kImmutableZeroCopy,
      [TT_HOST_ZERO_COPY_MUTABLE] = PJRT_HostBufferSemantics_kMutableZeroCopy,
  };
  return table[semantics];
}

tt_status tt_buffer_from_host(tt_device *device, const void *data, tt_dtype dtype, int rank, const int64_t *dims,
                              tt_host_semantics semantics, tt_event *out_done, tt_buffer **out_buffer) {
  static const char nothing[16] = {0}; // some plugins look at the pointer even when there are no elements
  int64_t byte_size = 0;
  TT_TRY(check_shape(dtype, rank, dims, &byte_size));
  if (out_done == NULL && semantics != TT_HOST_COPY) return tt_internal_error("host memory is lent without an event");

  // Before the plugin is called: a failure afterwards would have to wait until the plugin lets go of `data`.
  tt_buffer *buffer = NULL;
  TT_TRY(buffer_allocate(&buffer));
  tt_plugin *plugin = device->client->plugin;
  PJRT_Client_BufferFromHostBuffer_Args args = TT_PJRT_ARGS(
      PJRT_Client_BufferFromHostBuffer, .client = device->client->pjrt, .data = byte_size != 0 ? data : nothing,
      .type = (PJRT_Buffer_Type)tt_dtype_pjrt(dtype), .dims = dims, .num_dims = (size_t)rank,
      .host_buffer_semantics = semantics_to_pjrt(semantics), .device = device->pjrt);
  tt_status status = TT_PJRT(plugin, PJRT_Client_BufferFromHostBuffer, &args);
  if (status != NULL) {
    tt_free(buffer);
    return tt_device_note(device, status);
  }
  buffer_initialize(buffer, device, args.buffer, byte_size, NULL);

  tt_event done = {plugin, args.done_with_host_buffer};
  if (out_done != NULL) {
    *out_done = done;
  } else {
    tt_event_release(&done);
  }
  *out_buffer = buffer;
  return TT_SUCCESS;
}

tt_status tt_buffer_wrap(tt_device *device, void *pjrt_buffer, int64_t byte_size, const char *op_name,
                         tt_buffer **out_buffer) {
  tt_buffer *buffer = NULL;
  tt_status status = buffer_allocate(&buffer);
  if (__builtin_expect(status != NULL, 0)) {
    destroy_pjrt_buffer(device->client->plugin, pjrt_buffer);
    return status;
  }
  buffer_initialize(buffer, device, pjrt_buffer, byte_size, op_name);
  *out_buffer = buffer;
  return TT_SUCCESS;
}

tt_buffer *tt_buffer_retain(tt_buffer *buffer) {
  atomic_fetch_add_explicit(&buffer->references, 1, memory_order_relaxed);
  return buffer;
}

void tt_buffer_release(tt_buffer *buffer) {
  if (buffer == NULL) return;
  if (atomic_fetch_sub_explicit(&buffer->references, 1, memory_order_acq_rel) != 1) return;
  destroy_pjrt_buffer(buffer_plugin(buffer), buffer->pjrt);
  tt_memory_remove(buffer->device, buffer->byte_size);
  tt_free(buffer);
}

static tt_status ready_event(const tt_buffer *buffer, tt_event *out_event) {
  PJRT_Buffer_ReadyEvent_Args args = TT_PJRT_ARGS(PJRT_Buffer_ReadyEvent, .buffer = buffer->pjrt);
  TT_TRY(TT_PJRT(buffer_plugin(buffer), PJRT_Buffer_ReadyEvent, &args));
  *out_event = (tt_event){buffer_plugin(buffer), args.event};
  return TT_SUCCESS;
}

// Puts the op that made the buffer before its failure.
static tt_status name_op(const tt_buffer *buffer, tt_status status) {
  if (__builtin_expect(status == NULL, 1) || buffer->op_name == NULL) return status;
  return tt_status_context(status, "%s", buffer->op_name);
}

// And has exhausted memory counted.
static tt_status blame(const tt_buffer *buffer, tt_status status) {
  return tt_device_note(buffer->device, name_op(buffer, status));
}

bool tt_buffer_is_ready(const tt_buffer *buffer) {
  tt_event event = {NULL, NULL};
  tt_status status = ready_event(buffer, &event);
  bool ready = status != NULL || tt_event_is_ready(&event);
  tt_status_free(status);
  tt_event_release(&event);
  return ready;
}

tt_status tt_buffer_wait(const tt_buffer *buffer) {
  tt_event event = {NULL, NULL};
  tt_status status = ready_event(buffer, &event);
  if (status == NULL) status = tt_event_wait(&event);
  tt_event_release(&event);
  return blame(buffer, status);
}

// Row-major for each rank: the last `rank` of the numbers 63, 62, ... 0, from the minor dimension to the major one.
static const int64_t *row_major(size_t rank) {
#define DOWN8(n) (n) + 7, (n) + 6, (n) + 5, (n) + 4, (n) + 3, (n) + 2, (n) + 1, (n)
  static const int64_t descending[BUFFER_MAX_RANK] = {DOWN8(56), DOWN8(48), DOWN8(40), DOWN8(32),
                                                      DOWN8(24), DOWN8(16), DOWN8(8),  DOWN8(0)};
#undef DOWN8
  return descending + BUFFER_MAX_RANK - rank;
}

tt_status tt_buffer_to_host(const tt_buffer *buffer, void *data, int64_t size, tt_event *out_done) {
  tt_plugin *plugin = buffer_plugin(buffer);
  if (size < buffer->byte_size) {
    return tt_error(TT_INVALID_ARGUMENT, "a copy of %lld bytes does not fit %lld bytes of host memory",
                    (long long)buffer->byte_size, (long long)size);
  }
  if (buffer->byte_size == 0) {
    // Nothing to copy, and `data` may be NULL, which PJRT takes for a question about the size.
    *out_done = (tt_event){plugin, NULL};
    return TT_SUCCESS;
  }
  PJRT_Buffer_Dimensions_Args shape = TT_PJRT_ARGS(PJRT_Buffer_Dimensions, .buffer = buffer->pjrt);
  tt_status status = TT_PJRT(plugin, PJRT_Buffer_Dimensions, &shape);
  if (status != NULL) return blame(buffer, status);
  if (shape.num_dims > BUFFER_MAX_RANK) return tt_internal_error("a buffer of %zu dimensions", shape.num_dims);

  // Without a layout the plugin would copy in the order of the device, which on a TPU need not be row-major.
  PJRT_Buffer_MemoryLayout layout = {
      .struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE,
      .tiled = {.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE,
                .minor_to_major = row_major(shape.num_dims),
                .minor_to_major_size = shape.num_dims},
      .type = PJRT_Buffer_MemoryLayout_Type_Tiled,
  };
  PJRT_Buffer_ToHostBuffer_Args args = TT_PJRT_ARGS(PJRT_Buffer_ToHostBuffer, .src = buffer->pjrt,
                                                    .host_layout = &layout, .dst = data, .dst_size = (size_t)size);
  status = TT_PJRT(plugin, PJRT_Buffer_ToHostBuffer, &args);
  if (status != NULL) return blame(buffer, status);
  *out_done = (tt_event){plugin, args.event};
  return TT_SUCCESS;
}

tt_status tt_buffer_to_device(const tt_buffer *buffer, tt_device *device, tt_buffer **out_buffer) {
  PJRT_Buffer_CopyToDevice_Args args =
      TT_PJRT_ARGS(PJRT_Buffer_CopyToDevice, .buffer = buffer->pjrt, .dst_device = device->pjrt);
  tt_status status = TT_PJRT(buffer_plugin(buffer), PJRT_Buffer_CopyToDevice, &args);
  if (status != NULL) return tt_device_note(device, name_op(buffer, status));
  return tt_buffer_wrap(device, args.dst_buffer, buffer->byte_size, buffer->op_name, out_buffer);
}

tt_status tt_buffer_host_data(const tt_buffer *buffer, void **out_data) {
  if (!tt_client_is_host(buffer->device->client)) {
    return tt_error(TT_NOT_IMPLEMENTED, "the memory of platform %s cannot be read in place",
                    tt_client_platform(buffer->device->client));
  }
  PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args args =
      TT_PJRT_ARGS(PJRT_Buffer_OpaqueDeviceMemoryDataPointer, .buffer = buffer->pjrt);
  tt_status status = TT_PJRT(buffer_plugin(buffer), PJRT_Buffer_OpaqueDeviceMemoryDataPointer, &args);
  if (status != NULL) return blame(buffer, status);
  *out_data = args.device_memory_ptr;
  return TT_SUCCESS;
}
