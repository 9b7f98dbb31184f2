// copy.c - copies between host and device, between tensors, and single elements.
//
// Anything that is not a plain transfer of a whole value is one program: the view of the source is read and the view of the
// destination written by the same shared code as for every other op.
#include <string.h>

#include "base/memory.h"
#include "graph/storage.h"
#include "op/lowering.h"
#include "run/call.h"
#include "run/internal.h"
#include "run/record.h"
#include "run/staging.h"
#include "run/trace.h"

// --- the programs -----------------------------------------------------------------------------------------------------------

// self.copy_(source): converted, broadcast.
static void lower_copy(tt_lowering *l) {
  const tt_tensor *self = tt_tensor_arg(l, 0);
  tt_value *x = tt_operand(l, 1);
  tt_set_result(l, 0, tt_hlo_convert(l->b, tt_hlo_broadcast_to(l->b, x, self->rank, self->sizes), self->dtype));
}

// A dense row-major copy.
static void lower_contiguous(tt_lowering *l) { tt_set_result(l, 0, tt_operand(l, 0)); }

static const tt_op copy_op = {"copy_", lower_copy, {NULL}, TT_OP_NO_WIDEN, -1, NULL};
static const tt_op contiguous_op = {"contiguous", lower_contiguous, {NULL}, TT_OP_NO_WIDEN, -1, NULL};

// Their overloads have fixed ids below those of tt_overload_create's.
enum { COPY_ID = INT32_MAX, CONTIGUOUS_ID = INT32_MAX - 1 };
static const tt_overload copy_overload = {
    .op = &copy_op, .name = "aten::copy_", .id = COPY_ID, .variant = TT_IN_PLACE, .arg_count = 2, .result_count = 1};
static const tt_overload contiguous_overload = {
    .op = &contiguous_op, .name = "aten::contiguous", .id = CONTIGUOUS_ID, .arg_count = 1, .result_count = 1};

static tt_status run_copy(const tt_tensor *dst, const tt_tensor *src) {
  const tt_tensor tensors[2] = {*dst, *src};
  const tt_arg args[2] = {{.kind = TT_ARG_TENSOR, .u.slot = 0}, {.kind = TT_ARG_TENSOR, .u.slot = 1}};
  const int written[1] = {0};
  tt_call call = {&copy_overload, args, 2, tensors, 2, written, 1, dst->device_index, TT_F32, TT_PRECISION_HIGHEST};
  tt_results results;
  bool miss;
  return tt_call_run(&call, &results, &miss);
}

tt_status tt_copy_densely(const tt_tensor *tensor, tt_storage **out_storage) {
  const tt_arg args[1] = {{.kind = TT_ARG_TENSOR, .u.slot = 0}};
  tt_call call = {&contiguous_overload, args, 1, tensor, 1, NULL, 0, tensor->device_index, TT_F32,
                  TT_PRECISION_HIGHEST};
  tt_results results;
  bool miss;
  TT_TRY(tt_call_run(&call, &results, &miss));
  *out_storage = results.items[0].storage;
  tt_results_free(&results);
  return TT_SUCCESS;
}

// Names of transfers.
static const char TO_DEVICE[] = "to the device", FROM_DEVICE[] = "from the device", BETWEEN[] = "between devices";

// --- shapes -------------------------------------------------------------------------------------------------------------------

static int64_t element_count(const tt_tensor *t) {
  int64_t count = 1;
  for (int i = 0; i < t->rank; ++i) count *= t->sizes[i];
  return count;
}

// Row-major without gaps, at any offset.
static bool is_dense(const tt_tensor *t) {
  int64_t stride = 1;
  for (int i = t->rank - 1; i >= 0; --i) {
    if (t->sizes[i] != 1 && t->strides[i] != stride) return false;
    stride *= t->sizes[i];
  }
  return true;
}

static bool covers_densely(const tt_tensor *t) {
  return t->offset == 0 && is_dense(t) && element_count(t) * tt_dtype_size(t->dtype) == t->storage->byte_size;
}

// --- host memory that a transfer uses ---------------------------------------------------------------------------------------------

typedef struct host_release {
  void (*done)(void *user);
  void *user;
} host_release;

static void on_transfer_done(tt_status status, void *user) {
  host_release *release = user;
  tt_status_free(status); // the buffer or the queue carries the same failure
  release->done(release->user);
  tt_free(release);
}

// Calls release->done when `event` is ready.
static void release_when(const tt_event *event, host_release *release) {
  tt_status status = tt_event_on_ready(event, on_transfer_done, release);
  if (status == TT_SUCCESS) return;
  tt_status_free(status); // no callback will come: wait here
  tt_status_free(tt_event_wait(event));
  on_transfer_done(TT_SUCCESS, release);
}

// --- from the host --------------------------------------------------------------------------------------------------------------

typedef struct staged_block {
  void *block;
  int64_t byte_size;
} staged_block;

static void give_back_block(void *user) {
  staged_block *staged = user;
  tt_staging_give_back(staged->block, staged->byte_size);
  tt_free(staged);
}

// Copies the data into a warm block that becomes the buffer. *out_buffer stays NULL if there is no block to be had.
static tt_status upload_staged(tt_device *device, const void *data, const tt_layout *layout, tt_buffer **out_buffer) {
  staged_block *staged = tt_malloc(sizeof *staged);
  host_release *release = tt_malloc(sizeof *release);
  void *block = staged && release ? tt_staging_take(layout->byte_size) : NULL;
  if (!block) {
    tt_free(staged);
    tt_free(release);
    return TT_SUCCESS;
  }
  *staged = (staged_block){block, layout->byte_size};
  *release = (host_release){give_back_block, staged};
  memcpy(block, data, (size_t)layout->byte_size);
  tt_event event = {0};
  tt_status status = tt_buffer_from_host(device, block, layout->dtype, layout->rank, layout->dims, TT_HOST_ZERO_COPY,
                                         &event, out_buffer);
  if (status)
    on_transfer_done(TT_SUCCESS, release);
  else
    release_when(&event, release);
  tt_event_release(&event);
  return status;
}

// The plugin copies, and tells when it is done with the host's memory.
static tt_status upload_asynchronously(tt_device *device, const void *data, const tt_layout *layout,
                                       void (*done)(void *user), void *user, tt_buffer **out_buffer) {
  host_release *release = tt_malloc(sizeof *release);
  tt_event event = {0};
  tt_status status = release ? tt_buffer_from_host(device, data, layout->dtype, layout->rank, layout->dims,
                                                   TT_HOST_UNTIL_DONE, &event, out_buffer)
                             : tt_error(TT_OUT_OF_MEMORY, "out of host memory for a transfer");
  if (status) {
    tt_free(release);
    done(user);
    return status;
  }
  *release = (host_release){done, user};
  release_when(&event, release);
  tt_event_release(&event);
  return TT_SUCCESS;
}

static tt_status start_upload(tt_device *device, const void *data, const tt_layout *layout, void (*done)(void *user),
                              void *user, tt_buffer **out_buffer) {
  *out_buffer = NULL;
  tt_status status = TT_SUCCESS;
  if (tt_client_is_host(device->client) && layout->byte_size >= TT_STAGING_MIN_BYTES)
    status = upload_staged(device, data, layout, out_buffer);
  if (status || *out_buffer) {
    if (done) done(user);
    return status;
  }
  if (done) return upload_asynchronously(device, data, layout, done, user, out_buffer);
  return tt_buffer_from_host(device, data, layout->dtype, layout->rank, layout->dims, TT_HOST_COPY, NULL, out_buffer);
}

// Starts the transfer; `done` is called exactly once unless it is NULL.
static tt_status upload(tt_device *device, const void *data, const tt_layout *layout, void (*done)(void *user),
                        void *user, tt_buffer **out_buffer) {
  int64_t began = tt_trace_begin(TT_TRACE_transfer);
  tt_counter_add(TT_COUNTER_bytes_to_device, layout->byte_size);
  tt_status status = start_upload(device, data, layout, done, user, out_buffer);
  TT_TRACE_END(transfer, began, .name = TO_DEVICE, .bytes = layout->byte_size, .device_index = device->index);
  return status;
}

// A temporary storage with the host's data, dense, with the tensor's sizes.
static tt_status upload_temporary(const tt_tensor *tensor, const void *data, tt_dtype dtype, void (*done)(void *user),
                                  void *user, tt_storage **out_storage) {
  const tt_layout *layout;
  tt_status status = tt_layout_intern(dtype, tensor->rank, tensor->sizes, &layout);
  if (status) {
    if (done) done(user);
    return status;
  }
  tt_buffer *buffer;
  TT_TRY(upload(tensor->storage->device, data, layout, done, user, &buffer));
  return tt_storage_create_with(buffer, layout, out_storage);
}

tt_status tt_copy_from_host(const tt_tensor *tensor, const void *data, tt_dtype host_dtype,
                            void (*host_done)(void *user), void *user) {
  if (element_count(tensor) == 0) {
    if (host_done) host_done(user);
    return TT_SUCCESS;
  }
  tt_storage *temporary;
  TT_TRY(upload_temporary(tensor, data, host_dtype, host_done, user, &temporary));
  int64_t strides[TT_MAX_RANK];
  tt_row_major_strides(tensor->rank, tensor->sizes, strides);
  tt_tensor source = {.storage = temporary,
                      .dtype = host_dtype,
                      .rank = tensor->rank,
                      .sizes = tensor->sizes,
                      .strides = strides,
                      .device_index = tensor->device_index,
                      .defined = true};
  tt_status status = tt_copy(tensor, &source);
  tt_storage_release(temporary);
  return status;
}

// --- to the host ----------------------------------------------------------------------------------------------------------------

static tt_status no_host_read_while_recording(void) {
  return tt_error(TT_INVALID_ARGUMENT, "the data of a tensor that is being recorded into a program does not exist yet");
}

tt_status tt_wait_for_buffer(const tt_buffer *buffer, const char *what) {
  int64_t began = tt_trace_begin(TT_TRACE_wait);
  if (!tt_buffer_is_ready(buffer)) tt_counter_add(TT_COUNTER_host_waits, 1);
  tt_status status = tt_buffer_wait(buffer);
  TT_TRACE_END(wait, began, .name = what, .device_index = buffer->device->index);
  return tt_status_join(tt_queue_take_failure(buffer->device), status);
}

// Copies `size` bytes at `offset` of a ready buffer in host memory.
static tt_status copy_host_range(const tt_buffer *buffer, int64_t offset, void *data, int64_t size) {
  int64_t began = tt_trace_begin(TT_TRACE_transfer);
  void *memory;
  TT_TRY(tt_buffer_host_data(buffer, &memory));
  memcpy(data, (const char *)memory + offset, (size_t)size);
  TT_TRACE_END(transfer, began, .name = FROM_DEVICE, .bytes = size, .device_index = buffer->device->index);
  return TT_SUCCESS;
}

// A whole value or, on a host platform, any range of it. `what` names the wait.
static tt_status download(const tt_buffer *buffer, const tt_layout *layout, int64_t offset, void *data, int64_t size,
                          const char *what) {
  if (tt_client_is_host(buffer->device->client)) {
    TT_TRY(tt_wait_for_buffer(buffer, what));
    return copy_host_range(buffer, offset, data, size);
  }
  if (offset != 0 || size != layout->byte_size) return tt_internal_error("a partial download from a device's memory");
  int64_t began = tt_trace_begin(TT_TRACE_wait);
  if (began)
    TT_TRY(tt_buffer_wait(buffer)); // tells the program's time from the transfer's, at the cost of a round trip
  TT_TRACE_END(wait, began, .name = what, .device_index = buffer->device->index);
  began = tt_trace_begin(TT_TRACE_transfer);
  tt_event done = {0};
  TT_TRY(tt_buffer_to_host(buffer, data, size, &done));
  tt_counter_add(TT_COUNTER_host_waits, 1);
  tt_status status = tt_event_wait(&done);
  tt_event_release(&done);
  TT_TRACE_END(transfer, began, .name = FROM_DEVICE, .bytes = size, .device_index = buffer->device->index);
  return tt_status_join(tt_queue_take_failure(buffer->device), tt_device_note(buffer->device, status));
}

// A whole value. `release` is taken over: done and freed once the host memory is no longer written.
static tt_status download_asynchronously(const tt_buffer *buffer, void *data, host_release *release) {
  int64_t began = tt_trace_begin(TT_TRACE_transfer);
  tt_event done = {0};
  tt_status status = tt_buffer_to_host(buffer, data, buffer->byte_size, &done);
  if (status) {
    on_transfer_done(TT_SUCCESS, release);
    return status;
  }
  release_when(&done, release);
  tt_queue_add(buffer->device, done, "copy to the host");
  TT_TRACE_END(transfer, began, .name = FROM_DEVICE, .bytes = buffer->byte_size, .device_index = buffer->device->index);
  return TT_SUCCESS;
}

// Can these bytes be taken from the storage's memory without a program?
static bool is_plain_range(const tt_tensor *t, bool blocking) {
  if (t->conj || t->negative) return false;
  if (covers_densely(t)) return true;
  return blocking && is_dense(t) && tt_client_is_host(t->storage->device->client);
}

// A storage in which the tensor's elements lie densely at *out_offset, in bytes; the caller's reference.
static tt_status find_dense(const tt_tensor *tensor, bool blocking, tt_storage **out_storage, int64_t *out_offset) {
  if (tt_record_active()) return no_host_read_while_recording();
  bool plain = is_plain_range(tensor, blocking);
  *out_offset = plain ? tensor->offset * tt_dtype_size(tensor->dtype) : 0;
  if (!plain) return tt_copy_densely(tensor, out_storage);
  *out_storage = tt_storage_retain(tensor->storage);
  return TT_SUCCESS;
}

// `release` NULL: blocking, a wait of the name `what`. Else it is taken over.
static tt_status copy_to_host(const tt_tensor *tensor, void *data, int64_t size, const char *what,
                              host_release *release) {
  tt_storage *storage = NULL;
  tt_buffer *buffer = NULL;
  const tt_layout *layout;
  int64_t offset = 0;
  tt_status status = find_dense(tensor, release == NULL, &storage, &offset);
  if (!status) status = tt_storage_read(storage, &buffer, &layout);
  if (!status && !buffer) memset(data, 0, (size_t)size); // uninitialised memory reads as zeros
  if (buffer) tt_counter_add(TT_COUNTER_bytes_from_device, size);
  if (buffer && release)
    status = download_asynchronously(buffer, data, release);
  else if (buffer)
    status = download(buffer, layout, offset, data, size, what);
  else if (release)
    on_transfer_done(TT_SUCCESS, release);
  tt_buffer_release(buffer);
  tt_storage_release(storage);
  return status;
}

tt_status tt_check_wait_for(const tt_tensor *tensor, const char *what) {
  if (!tt_trace_forbids(TT_TRACE_wait)) return TT_SUCCESS;
  tt_string text = TT_STRING_INIT;
  tt_describe_tensor(tensor, &text);
  tt_status status = tt_trace_check_wait(what, tt_string_text(&text));
  tt_string_free(&text);
  return status;
}

static tt_status read_now(const tt_tensor *tensor, void *data, int64_t size, const char *what) {
  TT_TRY(tt_check_wait_for(tensor, what));
  return copy_to_host(tensor, data, size, what, NULL);
}

tt_status tt_copy_to_host(const tt_tensor *tensor, void *data, void (*host_done)(void *user), void *user) {
  int64_t size = element_count(tensor) * tt_dtype_size(tensor->dtype);
  host_release *release = host_done && size > 0 ? tt_malloc(sizeof *release) : NULL;
  if (release) {
    *release = (host_release){host_done, user};
    return copy_to_host(tensor, data, size, NULL, release);
  }
  // Nothing to copy, or no memory to leave it to itself.
  tt_status status = size > 0 ? read_now(tensor, data, size, "copy to the host") : TT_SUCCESS;
  if (host_done) host_done(user);
  return status;
}

tt_status tt_item(const tt_tensor *tensor, void *out_element) {
  return read_now(tensor, out_element, tt_dtype_size(tensor->dtype), "item");
}

// --- between tensors --------------------------------------------------------------------------------------------------------------

static bool same_window(const tt_tensor *a, const tt_tensor *b) {
  if (a->rank != b->rank || a->dtype != b->dtype || a->conj != b->conj || a->negative != b->negative) return false;
  for (int i = 0; i < a->rank; ++i)
    if (a->sizes[i] != b->sizes[i] || (a->sizes[i] != 1 && a->strides[i] != b->strides[i])) return false;
  return true;
}

// Both are all of their storages in the same way: the value can be shared, copied on the next write.
static tt_status share(const tt_tensor *dst, const tt_tensor *src, bool *out_shared) {
  *out_shared = false;
  if (tt_record_active() || !same_window(dst, src) || !tt_tensor_covers(dst, dst->storage->byte_size) ||
      !tt_tensor_covers(src, src->storage->byte_size))
    return TT_SUCCESS;
  return tt_storage_share(dst->storage, src->storage, out_shared);
}

// Moves the elements to dst's device first, densely.
static tt_status copy_across(const tt_tensor *dst, const tt_tensor *src) {
  tt_storage *dense = NULL, *moved = NULL;
  TT_TRY(tt_copy_densely(src, &dense));
  tt_buffer *buffer = NULL, *copy = NULL;
  const tt_layout *layout;
  tt_status status = tt_storage_read(dense, &buffer, &layout);
  int64_t began = tt_trace_begin(TT_TRACE_transfer);
  if (!status) status = tt_buffer_to_device(buffer, dst->storage->device, &copy);
  TT_TRACE_END(transfer, began, .name = BETWEEN, .bytes = buffer ? buffer->byte_size : 0,
               .device_index = src->device_index);
  if (!status) status = tt_storage_create_with(copy, layout, &moved);
  if (!status) {
    int64_t strides[TT_MAX_RANK];
    tt_row_major_strides(src->rank, src->sizes, strides);
    tt_tensor source = *src;
    source.storage = moved;
    source.strides = strides;
    source.offset = 0;
    source.device_index = dst->device_index;
    status = tt_copy(dst, &source);
  }
  tt_buffer_release(buffer);
  tt_storage_release(dense);
  tt_storage_release(moved);
  return status;
}

tt_status tt_copy(const tt_tensor *dst, const tt_tensor *src) {
  if (element_count(dst) == 0) return TT_SUCCESS;
  if (dst->storage->device != src->storage->device) return copy_across(dst, src);
  bool shared;
  TT_TRY(share(dst, src, &shared));
  return shared ? TT_SUCCESS : run_copy(dst, src);
}

// --- sizes ------------------------------------------------------------------------------------------------------------------------

tt_status tt_resize_storage(tt_storage *storage, int64_t byte_size) {
  tt_buffer *old = NULL;
  const tt_layout *layout = NULL;
  if (tt_record_active()) return tt_record_resize(storage, byte_size);
  TT_TRY(tt_storage_read(storage, &old, &layout));
  tt_status status = tt_storage_set_size(storage, byte_size);
  if (status || !old || byte_size == 0 || layout->byte_size == byte_size) {
    if (!status && old && layout->byte_size == byte_size) return tt_storage_write(storage, old, layout);
    tt_buffer_release(old);
    return status;
  }
  // The common prefix, as elements of the old value where the new size divides into them, else as bytes.
  tt_dtype dtype = byte_size % tt_dtype_size(layout->dtype) ? TT_U8 : layout->dtype;
  int64_t common = byte_size < layout->byte_size ? byte_size : layout->byte_size;
  int64_t count = common / tt_dtype_size(dtype), one = 1;
  tt_storage *before;
  TT_TRY(tt_storage_create_with(old, layout, &before));
  tt_tensor src = {.storage = before,
                   .dtype = dtype,
                   .rank = 1,
                   .sizes = &count,
                   .strides = &one,
                   .device_index = storage->device->index,
                   .defined = true};
  tt_tensor dst = src;
  dst.storage = storage;
  status = run_copy(&dst, &src);
  tt_storage_release(before);
  return status;
}
