// exported.c - see exported.h.
#include "run/exported.h"

#include <string.h>

#include "base/memory.h"
#include "run/internal.h"
#include "run/launch.h"
#include "run/manifest.h"
#include "run/program.h"
#include "run/record.h"
#include "run/trace.h"

static const char NAME[] = "exported program"; // outlives the buffers that carry it

struct tt_exported {
  tt_manifest manifest;
  tt_device *device;
  tt_program *program;
  tt_buffer **weights; // per input of the program; NULL: the user's
  int *user_inputs;    // their positions among the inputs
  int user_input_count;
};

static tt_status out_of_memory(void) {
  return tt_error(TT_OUT_OF_MEMORY, "out of host memory while running an exported program");
}

// --- loading -----------------------------------------------------------------------------------------------------------------

// The device has its own copy of the weights: the file's go.
static tt_status upload_weights(tt_exported *e) {
  tt_manifest *m = &e->manifest;
  e->weights = tt_arena_allocate(&m->arena, (size_t)m->input_count + 1, sizeof(tt_buffer *));
  e->user_inputs = tt_arena_allocate(&m->arena, (size_t)m->input_count + 1, sizeof *e->user_inputs);
  if (!e->weights || !e->user_inputs) return out_of_memory();
  for (int i = 0; i < m->input_count; ++i) {
    const tt_manifest_value *in = &m->inputs[i];
    if (!in->data)
      e->user_inputs[e->user_input_count++] = i;
    else
      TT_TRY_CONTEXT(tt_buffer_from_host(e->device, in->data, in->layout->dtype, in->layout->rank, in->layout->dims,
                                         TT_HOST_COPY, NULL, &e->weights[i]),
                     "%s", in->public.name);
  }
  tt_string_free(&m->weights);
  return TT_SUCCESS;
}

static tt_status compile(tt_exported *e) {
  const tt_manifest *m = &e->manifest;
  const tt_compile_options options = {.effort = TT_EFFORT_FULL, .exact = m->exact};
  TT_TRY(tt_program_create_from(m->name, m->code, m->code_size, &options, &e->program));
  tt_executable *executable;
  TT_TRY_CONTEXT(tt_program_executable(e->program, &executable), "%s", m->name);
  tt_string_free(&e->manifest.program);
  if (executable->output_count == m->output_count) return TT_SUCCESS;
  return tt_error(TT_VALUE, "%s: the program has %d outputs, the manifest %d", m->name, executable->output_count,
                  m->output_count);
}

tt_status tt_exported_load(const char *folder, int device_index, tt_exported **out_exported) {
  void *block;
  TT_TRY(tt_allocate(1, sizeof(tt_exported), &block));
  tt_exported *e = block;
  tt_status status = tt_device_find(device_index, &e->device);
  if (!status) status = tt_manifest_read(folder, &e->manifest);
  if (!status) status = upload_weights(e);
  if (!status) status = compile(e);
  if (status)
    tt_exported_free(e);
  else
    *out_exported = e;
  return status;
}

void tt_exported_free(tt_exported *e) {
  if (!e) return;
  for (int i = 0; e->weights && i < e->manifest.input_count; ++i) tt_buffer_release(e->weights[i]);
  tt_program_release(e->program);
  tt_manifest_free(&e->manifest);
  tt_free(e);
}

int tt_exported_input_count(const tt_exported *e) { return e->user_input_count; }
int tt_exported_output_count(const tt_exported *e) { return e->manifest.output_count - e->manifest.check_count; }

const tt_exported_value *tt_exported_input(const tt_exported *e, int index) {
  if (index < 0 || index >= e->user_input_count) return NULL;
  return &e->manifest.inputs[e->user_inputs[index]].public;
}

const tt_exported_value *tt_exported_output(const tt_exported *e, int index) {
  if (index < 0 || index >= tt_exported_output_count(e)) return NULL;
  return &e->manifest.outputs[index].public;
}

// --- running -----------------------------------------------------------------------------------------------------------------

typedef struct run {
  tt_exported *e;
  tt_buffer **inputs;        // one reference each; NULL: not there yet
  void **outputs;            // PJRT buffers
  tt_executable *executable; // borrowed from the program
} run;

static tt_status refuse(const tt_exported_value *expected, const tt_tensor *got) {
  const tt_tensor wanted = {.dtype = expected->dtype, .rank = expected->rank, .sizes = expected->dims, .defined = true};
  tt_string text = TT_STRING_INIT;
  tt_string_printf(&text, "input \"%s\": expected ", expected->name);
  tt_describe_tensor(&wanted, &text);
  tt_string_append(&text, ", but got ");
  tt_describe_tensor(got, &text);
  tt_status status = tt_error(TT_INVALID_ARGUMENT, "%s", tt_string_text(&text));
  tt_string_free(&text);
  return status;
}

static tt_status check_input(const tt_exported *e, const tt_manifest_value *expected, const tt_tensor *got) {
  const tt_layout *layout = expected->layout;
  bool fits = got->storage && got->dtype == layout->dtype && got->rank == layout->rank;
  for (int i = 0; fits && i < layout->rank; ++i) fits = got->sizes[i] == layout->dims[i];
  if (!fits) return refuse(&expected->public, got);
  if (got->device_index == e->device->index) return TT_SUCCESS;
  return tt_error(TT_INVALID_ARGUMENT, "input \"%s\": expected a tensor on tpu:%d, but got one on tpu:%d",
                  expected->public.name, e->device->index, got->device_index);
}

// A whole storage in the program's layout serves as it is.
static tt_status read_input(const tt_manifest_value *expected, const tt_tensor *tensor, tt_buffer **out_buffer) {
  bool plain = tensor->offset == 0 && !tensor->conj && !tensor->negative &&
               tt_storage_layout(tensor->storage) == expected->layout &&
               tensor->storage->byte_size == expected->layout->byte_size;
  for (int i = 0; plain && i < tensor->rank; ++i)
    plain = tensor->sizes[i] == 1 || tensor->strides[i] == expected->layout->strides[i];
  tt_storage *storage;
  if (plain)
    storage = tt_storage_retain(tensor->storage);
  else
    TT_TRY(tt_copy_densely(tensor, &storage));
  const tt_layout *layout;
  tt_status status = tt_storage_read(storage, out_buffer, &layout);
  tt_storage_release(storage);
  if (!status && layout != expected->layout) {
    tt_buffer_release(*out_buffer);
    *out_buffer = NULL;
    status = tt_internal_error("an input of an exported program in another layout");
  }
  return status;
}

static tt_status collect_inputs(run *r, const tt_tensor *inputs) {
  const tt_manifest *m = &r->e->manifest;
  int user = 0;
  for (int i = 0; i < m->input_count; ++i) {
    if (r->e->weights[i])
      r->inputs[i] = tt_buffer_retain(r->e->weights[i]);
    else
      TT_TRY(read_input(&m->inputs[i], &inputs[user++], &r->inputs[i]));
  }
  return TT_SUCCESS;
}

static tt_status wrap(run *r, int index, tt_buffer **out_buffer) {
  return tt_buffer_wrap(r->e->device, r->outputs[index], r->e->manifest.outputs[index].layout->byte_size, NAME,
                        out_buffer);
}

static tt_status place_outputs(run *r, tt_results *results) {
  const tt_manifest *m = &r->e->manifest;
  tt_status status = TT_SUCCESS;
  for (int i = 0; i < m->output_count; ++i) {
    const tt_manifest_value *out = &m->outputs[i];
    tt_buffer *buffer = NULL;
    tt_status own = wrap(r, i, &buffer);
    if (!own && out->message)
      tt_queue_add_check(r->e->device, (tt_check){buffer, NAME, out->code, out->message, NULL}, true);
    else if (!own)
      own = tt_storage_create_with(buffer, out->layout, &results->items[i].storage);
    status = tt_status_join(status, own);
  }
  return status;
}

static tt_status execute(run *r, tt_results *results) {
  tt_event done = {0};
  int64_t began = tt_trace_begin(TT_TRACE_execute);
  tt_device *device = r->e->device;
  tt_status status =
      tt_executable_execute(r->executable, device, r->inputs, r->e->manifest.input_count, NULL, r->outputs, &done);
  if (status) return tt_storage_explain_out_of_memory(device, tt_status_context(status, "%s", NAME));
  tt_counter_add(TT_COUNTER_executions, 1);
  tt_trace_execution(&done, began, device, r->e->program->note.name);
  tt_queue_add(device, done, NAME);
  return place_outputs(r, results);
}

static tt_status prepare_results(const tt_exported *e, tt_results *results) {
  int count = tt_exported_output_count(e);
  results->items = results->inline_items;
  if (count > TT_INLINE_RESULTS) results->items = tt_calloc((size_t)count, sizeof *results->items);
  if (!results->items) {
    results->items = results->inline_items;
    return out_of_memory();
  }
  results->count = count;
  for (int i = 0; i < count; ++i) {
    const tt_layout *layout = e->manifest.outputs[i].layout;
    results->items[i] = (tt_result){NULL, layout->dtype, layout->rank, layout->dims, layout->strides, e->device->index};
  }
  return TT_SUCCESS;
}

static tt_status run_prepared(run *r, const tt_tensor *inputs, tt_results *out_results) {
  const tt_manifest *m = &r->e->manifest;
  r->inputs = tt_calloc((size_t)m->input_count + 1, sizeof(tt_buffer *));
  r->outputs = tt_calloc((size_t)m->output_count + 1, sizeof(void *));
  if (!r->inputs || !r->outputs) return out_of_memory();
  TT_TRY(tt_program_executable(r->e->program, &r->executable));
  TT_TRY(collect_inputs(r, inputs));
  return execute(r, out_results);
}

tt_status tt_exported_run(tt_exported *e, const tt_tensor *inputs, int count, tt_results *out_results) {
  if (count != e->user_input_count)
    return tt_error(TT_INVALID_ARGUMENT, "%s takes %d inputs, but got %d", e->manifest.name, e->user_input_count,
                    count);
  if (tt_record_active())
    return tt_error(TT_NOT_IMPLEMENTED, "an exported program cannot be a part of a program that is being recorded");
  for (int i = 0; i < count; ++i) TT_TRY(check_input(e, &e->manifest.inputs[e->user_inputs[i]], &inputs[i]));
  TT_TRY(prepare_results(e, out_results));
  run r = {.e = e};
  tt_status status = run_prepared(&r, inputs, out_results);
  for (int i = 0; r.inputs && i < e->manifest.input_count; ++i) tt_buffer_release(r.inputs[i]);
  tt_free(r.inputs);
  tt_free(r.outputs);
  if (status) tt_launch_drop_results(out_results);
  return status;
}
