// launch.c - running a plan: the hot path after the key was found.
//
// Inputs are collected, storages about to be overwritten give up their buffer where nobody else holds it (donation), the
// program starts, and its results go into the storages they belong to. Nothing waits, except in the launch-blocking mode.
#include "run/launch.h"

#include <string.h>

#include "base/bits.h"
#include "base/memory.h"
#include "graph/storage.h"
#include "run/internal.h"
#include "run/plan.h"
#include "run/random.h"
#include "run/scalar.h"
#include "run/trace.h"

enum { INLINE_INPUTS = 48, INLINE_OUTPUTS = 24 };

// --- for every mode ---------------------------------------------------------------------------------------------------------

tt_status tt_launch_check(const tt_plan *plan, const tt_call *call) {
  for (int i = 0; i < plan->requirement_count; ++i) TT_TRY(tt_requirement_check(&plan->requirements[i], call->args));
  return TT_SUCCESS;
}

tt_status tt_launch_results(const tt_plan *plan, int device_index, tt_results *results) {
  results->count = plan->result_count;
  results->items = results->inline_items;
  if (plan->result_count > TT_INLINE_RESULTS) {
    results->items = tt_calloc((size_t)plan->result_count, sizeof *results->items);
    if (!results->items) return tt_error(TT_OUT_OF_MEMORY, "out of host memory while running %s", plan->op_name);
  }
  for (int i = 0; i < plan->result_count; ++i) {
    const tt_plan_result *r = &plan->results[i];
    results->items[i] = (tt_result){NULL, r->dtype, r->rank, r->sizes, r->strides, device_index};
  }
  return TT_SUCCESS;
}

void tt_results_free(tt_results *results) {
  if (results->items != results->inline_items) tt_free(results->items);
  results->items = results->inline_items;
  results->count = 0;
}

void tt_launch_drop_results(tt_results *results) {
  for (int i = 0; i < results->count; ++i) tt_storage_release(results->items[i].storage);
  tt_results_free(results);
}

static tt_status random_state(const tt_plan *plan, const tt_call *call, uint64_t state[2]) {
  tt_generator *generator = NULL;
  for (int i = 0; i < call->arg_count; ++i)
    if (call->args[i].kind == TT_ARG_GENERATOR) generator = call->args[i].u.generator;
  if (!generator) TT_TRY(tt_generator_default(call->device_index, &generator));
  tt_generator_advance(generator, (uint64_t)plan->random_count, state);
  return TT_SUCCESS;
}

tt_status tt_launch_number(const tt_plan *plan, const tt_plan_input *in, const tt_call *call, const tt_key *key,
                           tt_run_number *out) {
  out->dtype = in->dtype;
  out->is_random = in->kind == TT_INPUT_RANDOM;
  switch (in->kind) {
  case TT_INPUT_NUMBER: out->scalar = tt_scalar_of_arg(key->numbers[in->number]); break;
  case TT_INPUT_CPU_SCALAR: out->scalar = tt_scalar_of_tensor(&call->tensors[in->slot]); break;
  case TT_INPUT_DIGIT: {
    int64_t digit = tt_digit_value(&in->digit, call->tensors[in->slot].offset);
    out->scalar = (tt_scalar){true, digit, 0, 0};
    break;
  }
  case TT_INPUT_OFFSET: out->scalar = (tt_scalar){true, call->tensors[in->slot].offset, 0, 0}; break;
  default: return random_state(plan, call, out->state);
  }
  return TT_SUCCESS;
}

tt_status tt_run_number_buffer(tt_device *device, const tt_run_number *number, tt_buffer **out_buffer) {
  if (!number->is_random) return tt_scalar_buffer(device, number->dtype, &number->scalar, out_buffer);
  int64_t two = 2;
  return tt_buffer_from_host(device, number->state, TT_U64, 1, &two, TT_HOST_COPY, NULL, out_buffer);
}

// --- one call ----------------------------------------------------------------------------------------------------------------

typedef struct launch {
  tt_plan *plan;
  const tt_call *call;
  const tt_key *key;
  tt_executable *executable;
  tt_device *device;
  tt_buffer **inputs; // NULL: not collected, or given back
  uint64_t *keep;     // bit per input: must survive
  uint64_t *taken;    // bit per input: was taken out of its storage
  void **outputs;     // PJRT buffers
  tt_buffer *inline_inputs[INLINE_INPUTS];
  uint64_t inline_bits[2];
  void *inline_outputs[INLINE_OUTPUTS];
} launch;

static tt_status prepare(launch *l) {
  int inputs = l->plan->input_count, outputs = l->plan->output_count + l->plan->check_count;
  l->inputs = l->inline_inputs;
  l->keep = &l->inline_bits[0];
  l->taken = &l->inline_bits[1];
  l->outputs = l->inline_outputs;
  l->inline_bits[0] = l->inline_bits[1] = 0;
  if (inputs > INLINE_INPUTS) {
    size_t words = (size_t)inputs / 64 + 1;
    l->inputs = tt_malloc((size_t)inputs * sizeof *l->inputs);
    l->keep = tt_calloc(2 * words, sizeof *l->keep);
    l->taken = l->keep ? l->keep + words : NULL;
  }
  if (outputs > INLINE_OUTPUTS) l->outputs = tt_calloc((size_t)outputs, sizeof *l->outputs);
  if (l->inputs) memset(l->inputs, 0, (size_t)inputs * sizeof *l->inputs);
  if (l->inputs && l->keep && l->outputs) return TT_SUCCESS;
  return tt_error(TT_OUT_OF_MEMORY, "out of host memory while running %s", l->plan->op_name);
}

static void finish(launch *l) {
  for (int i = 0; l->inputs && i < l->plan->input_count; ++i) tt_buffer_release(l->inputs[i]);
  if (l->inputs != l->inline_inputs) {
    tt_free(l->inputs);
    tt_free(l->keep);
  }
  if (l->outputs != l->inline_outputs) tt_free(l->outputs);
}

static tt_status storage_input(launch *l, int index) {
  const tt_plan_input *in = &l->plan->inputs[index];
  const tt_layout *layout;
  if (in->constant) {
    tt_set_bit(l->keep, index);
    l->inputs[index] = tt_buffer_retain(in->constant);
    return TT_SUCCESS;
  }
  tt_storage *storage = l->call->tensors[in->slot].storage;
  bool sole = false;
  if (in->overwritten)
    TT_TRY(tt_storage_take(storage, &l->inputs[index], &layout, &sole));
  else
    TT_TRY(tt_storage_read(storage, &l->inputs[index], &layout));
  if (__builtin_expect(layout == in->layout && l->inputs[index] != NULL, 1)) {
    tt_set_bit(sole ? l->taken : l->keep, index);
    return TT_SUCCESS;
  }
  if (sole) {
    tt_status_free(tt_storage_write(storage, l->inputs[index], layout));
    l->inputs[index] = NULL;
  }
  return tt_error(TT_INVALID_ARGUMENT, "%s: another thread changed an operand during the call", l->plan->op_name);
}

static tt_status collect_input(launch *l, int index) {
  const tt_plan_input *in = &l->plan->inputs[index];
  if (in->kind == TT_INPUT_STORAGE) return storage_input(l, index);
  tt_set_bit(l->keep, index);
  tt_run_number number;
  TT_TRY(tt_launch_number(l->plan, in, l->call, l->key, &number));
  TT_TRY_CONTEXT(tt_run_number_buffer(l->device, &number, &l->inputs[index]), "%s", l->plan->op_name);
  return TT_SUCCESS;
}

// What is overwritten comes last, since others wait from then on until its new value is there.
static tt_status collect_inputs(launch *l) {
  for (int i = 0; i < l->plan->input_count; ++i)
    if (!l->plan->inputs[i].overwritten) TT_TRY(collect_input(l, i));
  for (int i = 0; i < l->plan->input_count; ++i)
    if (l->plan->inputs[i].overwritten) TT_TRY(collect_input(l, i));
  return TT_SUCCESS;
}

// Gives buffers back to the storages they were taken from, after a program that did not start.
static void give_back(launch *l) {
  for (int i = 0; i < l->plan->input_count; ++i) {
    if (!tt_bit(l->taken, i)) continue;
    const tt_plan_input *in = &l->plan->inputs[i];
    tt_status_free(tt_storage_write(l->call->tensors[in->slot].storage, tt_buffer_retain(l->inputs[i]), in->layout));
  }
}

// Results that replace nothing need room.
static tt_status check_room(launch *l) {
  int64_t bytes = 0;
  for (int i = 0; i < l->plan->output_count; ++i)
    if (l->plan->outputs[i].slot < 0) bytes += l->plan->outputs[i].layout->byte_size;
  return bytes ? tt_storage_check_limit(l->device, bytes) : TT_SUCCESS;
}

static tt_status wrap(launch *l, int index, int64_t byte_size, tt_buffer **out_buffer) {
  void *pjrt = l->outputs[index];
  l->outputs[index] = NULL;
  return tt_buffer_wrap(l->device, pjrt, byte_size, l->plan->op_name, out_buffer);
}

static tt_status place_output(launch *l, int index, tt_results *results) {
  const tt_plan_output *out = &l->plan->outputs[index];
  tt_storage *written = out->slot >= 0 ? l->call->tensors[out->slot].storage : NULL;
  tt_buffer *buffer;
  tt_status status = wrap(l, index, out->layout->byte_size, &buffer);
  if (!written)
    return status ? status : tt_storage_create_with(buffer, out->layout, &results->items[out->result].storage);
  if (!status) status = tt_storage_write(written, buffer, out->layout);
  if (status) tt_storage_clear(written); // its old value is gone
  return status;
}

static tt_status place_outputs(launch *l, tt_results *results) {
  tt_status status = TT_SUCCESS;
  for (int i = 0; i < l->plan->output_count; ++i) status = tt_status_join(status, place_output(l, i, results));
  return status;
}

static tt_status place_checks(launch *l) {
  tt_status status = TT_SUCCESS;
  for (int i = 0; i < l->plan->check_count; ++i) {
    tt_buffer *flag = NULL;
    status = tt_status_join(status, wrap(l, l->plan->output_count + i, 1, &flag));
    const tt_plan_check *check = &l->plan->checks[i];
    if (flag)
      tt_queue_add_check(l->device, (tt_check){flag, l->plan->op_name, check->code, check->message, NULL}, true);
  }
  return status;
}

// Storages that are about to get their first value stop counting: their result will count itself.
static void set_counted(launch *l, bool counted) {
  for (int i = 0; i < l->plan->output_count; ++i)
    if (l->plan->outputs[i].slot >= 0)
      tt_storage_set_counted(l->call->tensors[l->plan->outputs[i].slot].storage, counted);
}

// Buffers whose memory the results have now.
static void release_taken(launch *l) {
  for (int i = 0; i < l->plan->input_count; ++i) {
    if (!tt_bit(l->taken, i)) continue;
    tt_buffer_release(l->inputs[i]);
    l->inputs[i] = NULL;
  }
}

static tt_status execute(launch *l, tt_results *results) {
  tt_event done = {0};
  int64_t began = tt_trace_begin(TT_TRACE_execute);
  tt_status status = check_room(l);
  if (!status) status = collect_inputs(l);
  if (!status) {
    set_counted(l, false);
    status =
        tt_executable_execute(l->executable, l->device, l->inputs, l->plan->input_count, l->keep, l->outputs, &done);
    status = tt_status_context(status, "%s", l->plan->op_name);
  }
  if (status) {
    give_back(l);
    set_counted(l, true);
    return tt_storage_explain_out_of_memory(l->device, status);
  }
  status = place_outputs(l, results); // at once: others may wait for what was taken
  release_taken(l);
  tt_counter_add(TT_COUNTER_executions, 1);
  tt_trace_execution(&done, began, l->device, l->plan->program->note.name);
  tt_queue_add(l->device, done, l->plan->op_name);
  return tt_status_join(status, place_checks(l));
}

tt_status tt_plan_launch(tt_plan *plan, const tt_call *call, const tt_key *key, tt_results *out_results) {
  TT_TRY(tt_launch_check(plan, call));
  launch l = {.plan = plan, .call = call, .key = key};
  l.device = tt_client_device(tt_runtime_client(), call->device_index);
  tt_status status = tt_launch_results(plan, call->device_index, out_results);
  if (status || !plan->program) return status;
  status = tt_program_executable(plan->program, &l.executable);
  if (!status) status = prepare(&l);
  if (!status) status = execute(&l, out_results);
  finish(&l);
  if (!status && tt_get_eager_mode() == TT_DEFER_NEVER_AND_LAUNCH_BLOCKING) {
    int64_t began = tt_trace_begin(TT_TRACE_wait);
    status = tt_queue_wait(l.device);
    TT_TRACE_END(wait, began, .name = "launch blocking", .detail = plan->op_name);
  }
  if (status) tt_launch_drop_results(out_results);
  return status;
}
