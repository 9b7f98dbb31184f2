// fake_buffer.c - PJRT's buffers in the fake plugin: transfers, and programs that run on them; see fake_internal.h.
#include <string.h>

#include "fake_internal.h"

struct PJRT_Buffer {
  fake_type type;
  memory *memory; // NULL once a program took it over
  moment *ready;
};

static PJRT_Buffer *new_buffer(fake_type type, memory *memory, moment *ready) {
  PJRT_Buffer *buffer = FAKE_NEW(PJRT_Buffer, FAKE_buffer);
  *buffer = (PJRT_Buffer){type, fake_memory_retain(memory), fake_moment_retain(ready)};
  return buffer;
}

static PJRT_Error *gone(const PJRT_Buffer *buffer) {
  if (buffer->memory != NULL) return NULL;
  atomic_fetch_add(&fake.misuses, 1);
  return fake_fail(PJRT_Error_Code_INVALID_ARGUMENT, "Buffer has been deleted or donated.");
}

PJRT_Error *fake_buffer_destroy(PJRT_Buffer_Destroy_Args *args) {
  pthread_mutex_lock(&fake_lock);
  fake_memory_release(args->buffer->memory);
  fake_moment_release(args->buffer->ready);
  fake_unlock_and_call();
  fake_drop(args->buffer, FAKE_buffer);
  return NULL;
}

PJRT_Error *fake_buffer_dimensions(PJRT_Buffer_Dimensions_Args *args) {
  args->dims = args->buffer->type.dims;
  args->num_dims = (size_t)args->buffer->type.rank;
  return NULL;
}

PJRT_Error *fake_ready_event(PJRT_Buffer_ReadyEvent_Args *args) {
  pthread_mutex_lock(&fake_lock);
  PJRT_Error *error = gone(args->buffer);
  if (error == NULL) args->event = fake_event_new(args->buffer->ready);
  pthread_mutex_unlock(&fake_lock);
  return error;
}

PJRT_Error *fake_data_pointer(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args *args) {
  pthread_mutex_lock(&fake_lock);
  PJRT_Error *error = gone(args->buffer);
  if (error == NULL) args->device_memory_ptr = args->buffer->memory->data;
  pthread_mutex_unlock(&fake_lock);
  return error;
}

static fake_element element_of(PJRT_Buffer_Type type) {
  switch (type) {
  case PJRT_Buffer_Type_PRED: return (fake_element){'p', 1};
  case PJRT_Buffer_Type_S8: return (fake_element){'i', 1};
  case PJRT_Buffer_Type_S16: return (fake_element){'i', 2};
  case PJRT_Buffer_Type_S32: return (fake_element){'i', 4};
  case PJRT_Buffer_Type_S64: return (fake_element){'i', 8};
  case PJRT_Buffer_Type_U8: return (fake_element){'u', 1};
  case PJRT_Buffer_Type_U16: return (fake_element){'u', 2};
  case PJRT_Buffer_Type_U32: return (fake_element){'u', 4};
  case PJRT_Buffer_Type_U64: return (fake_element){'u', 8};
  case PJRT_Buffer_Type_F16:
  case PJRT_Buffer_Type_BF16: return (fake_element){'h', 2};
  case PJRT_Buffer_Type_F32: return (fake_element){'f', 4};
  case PJRT_Buffer_Type_F64: return (fake_element){'f', 8};
  case PJRT_Buffer_Type_C64: return (fake_element){'c', 8};
  case PJRT_Buffer_Type_C128: return (fake_element){'c', 16};
  default: return (fake_element){'x', 1};
  }
}

// A new buffer that `w`, taken over, fills.
static PJRT_Error *start_filling(work *w, fake_type type, PJRT_Buffer **out) {
  memory *m = NULL;
  PJRT_Error *error = fake_memory_new(fake_type_bytes(&type), NULL, &m);
  if (error != NULL) {
    fake_work_free(w);
    return error;
  }
  w->outputs[w->output_count++] = m;
  *out = new_buffer(type, m, w->done);
  fake_work_submit(w);
  return NULL;
}

// The buffer is the host's memory itself, until it is freed.
static PJRT_Error *borrow(const PJRT_Client_BufferFromHostBuffer_Args *args, fake_type type, PJRT_Buffer **out,
                          PJRT_Event **out_done) {
  memory *m = NULL;
  PJRT_Error *error = fake_memory_new(fake_type_bytes(&type), (void *)args->data, &m);
  if (error != NULL) return error;
  m->read_only = args->host_buffer_semantics == PJRT_HostBufferSemantics_kImmutableZeroCopy;
  m->let_go = fake_moment_new();
  *out_done = fake_event_new(m->let_go);
  moment *ready = fake_moment_new();
  fake_moment_finish(ready, fake_late_failure(FAKE_PJRT_Client_BufferFromHostBuffer));
  *out = new_buffer(type, m, ready);
  fake_moment_release(ready);
  fake_memory_release(m);
  return NULL;
}

PJRT_Error *fake_from_host(PJRT_Client_BufferFromHostBuffer_Args *args) {
  fake_type type = {.element = element_of(args->type), .rank = (int)args->num_dims};
  if (type.rank > FAKE_MAX_RANK) return fake_fail(PJRT_Error_Code_UNIMPLEMENTED, "%d dimensions", type.rank);
  for (int i = 0; i < type.rank; i++) type.dims[i] = args->dims[i];
  PJRT_Error *error = NULL;
  PJRT_Event *done = NULL;
  pthread_mutex_lock(&fake_lock);
  if (args->host_buffer_semantics == PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes) {
    work *w = fake_work_new(0, 0, 1);
    w->from = args->data;
    w->wished = fake_late_failure(FAKE_PJRT_Client_BufferFromHostBuffer);
    moment *finished = fake_moment_retain(w->done);
    error = start_filling(w, type, &args->buffer);
    if (error == NULL && !fake.no_done_events) done = fake_event_new(finished);
    fake_moment_release(finished);
  } else if (args->host_buffer_semantics == PJRT_HostBufferSemantics_kImmutableOnlyDuringCall) {
    memory *m = NULL;
    error = fake_memory_new(fake_type_bytes(&type), NULL, &m);
    if (error == NULL) {
      memcpy(m->data, args->data, (size_t)m->bytes);
      moment *ready = fake_moment_new();
      fake_moment_finish(ready, fake_late_failure(FAKE_PJRT_Client_BufferFromHostBuffer));
      args->buffer = new_buffer(type, m, ready);
      if (!fake.no_done_events) done = fake_event_new(ready);
      fake_moment_release(ready);
      fake_memory_release(m);
    }
  } else {
    error = borrow(args, type, &args->buffer, &done);
  }
  args->done_with_host_buffer = done;
  fake_unlock_and_call();
  return error;
}

static void add_input(work *w, const PJRT_Buffer *buffer) {
  w->elements[w->input_count] = buffer->type.element;
  w->inputs[w->input_count++] = fake_memory_retain(buffer->memory);
  w->waits[w->wait_count++] = fake_moment_retain(buffer->ready);
}

PJRT_Error *fake_copy_to_device(PJRT_Buffer_CopyToDevice_Args *args) {
  pthread_mutex_lock(&fake_lock);
  PJRT_Error *error = gone(args->buffer);
  if (error == NULL) {
    work *w = fake_work_new(1, 1, 1);
    add_input(w, args->buffer);
    w->wished = fake_late_failure(FAKE_PJRT_Buffer_CopyToDevice);
    error = start_filling(w, args->buffer->type, &args->dst_buffer);
  }
  fake_unlock_and_call();
  return error;
}

PJRT_Error *fake_to_host(PJRT_Buffer_ToHostBuffer_Args *args) {
  pthread_mutex_lock(&fake_lock);
  PJRT_Error *error = gone(args->src);
  if (error == NULL && (args->dst == NULL || args->dst_size < (size_t)args->src->memory->bytes)) {
    error = fake_fail(PJRT_Error_Code_INVALID_ARGUMENT, "the host's memory is too small");
  }
  if (error == NULL) {
    work *w = fake_work_new(1, 1, 0);
    add_input(w, args->src);
    w->to = args->dst;
    w->wished = fake_late_failure(FAKE_PJRT_Buffer_ToHostBuffer);
    args->event = fake_event_new(w->done);
    fake_work_submit(w);
  }
  fake_unlock_and_call();
  return error;
}

// ---- running

static bool is_kept(const PJRT_ExecuteOptions *options, size_t argument) {
  for (size_t i = 0; i < options->num_non_donatable_input_indices; i++)
    if ((size_t)options->non_donatable_input_indices[i] == argument) return true;
  return false;
}

// The output that takes the argument's memory, -1: none.
static int alias_of(const loaded_program *p, const PJRT_LoadedExecutable_Execute_Args *args, int argument) {
  const PJRT_Buffer *buffer = args->argument_lists[0][argument];
  if (p->program == NULL || is_kept(args->options, (size_t)argument)) return -1;
  return buffer->memory->read_only ? -1 : p->program->aliases[argument];
}

// Collects operands and makes results in `w`; nothing is taken over yet.
static PJRT_Error *prepare(work *w, const loaded_program *p, const PJRT_LoadedExecutable_Execute_Args *args) {
  int arguments = (int)args->num_args;
  PJRT_Error *error = NULL;
  if (p->program != NULL && p->program->argument_count != arguments) {
    return fake_fail(PJRT_Error_Code_INVALID_ARGUMENT, "%d arguments for %d", arguments, p->program->argument_count);
  }
  for (int i = 0; i < arguments; i++) {
    error = gone(args->argument_lists[0][i]);
    if (error != NULL) return error;
    add_input(w, args->argument_lists[0][i]);
  }
  for (int i = 0; i < fake_loaded_output_count(p); i++) {
    fake_type type = fake_loaded_output_type(p, i);
    w->elements[arguments + i] = type.element;
    memory *m = NULL;
    for (int k = 0; k < arguments && m == NULL; k++) {
      if (alias_of(p, args, k) != i) continue;
      m = fake_memory_retain(w->inputs[k]);
      w->taken[k] = true;
    }
    if (m == NULL) {
      error = fake_memory_new(fake_type_bytes(&type), NULL, &m);
      if (error != NULL) return error;
    }
    w->outputs[w->output_count++] = m;
  }
  return NULL;
}

PJRT_Error *fake_execute(PJRT_LoadedExecutable_Execute_Args *args) {
  loaded_program *p = args->executable->program;
  pthread_mutex_lock(&fake_lock);
  work *w = fake_work_new((int)args->num_args, (int)args->num_args, fake_loaded_output_count(p));
  PJRT_Error *error = prepare(w, p, args);
  if (error != NULL) {
    fake_work_free(w);
  } else {
    p->references++;
    w->holder = p;
    w->program = p->program;
    w->wished = fake_late_failure(FAKE_PJRT_LoadedExecutable_Execute);
    for (size_t i = 0; i < args->num_args; i++) {
      PJRT_Buffer *argument = args->argument_lists[0][i];
      if (!w->taken[i] || argument->memory == NULL) continue;
      fake_memory_release(argument->memory);
      argument->memory = NULL;
    }
    for (int i = 0; i < w->output_count; i++)
      args->output_lists[0][i] = new_buffer(fake_loaded_output_type(p, i), w->outputs[i], w->done);
    if (args->device_complete_events != NULL) args->device_complete_events[0] = fake_event_new(w->done);
    fake_work_submit(w);
  }
  fake_unlock_and_call();
  return error;
}
