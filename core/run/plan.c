// plan.c - making plans of recorded programs. Launching is in launch.c.
#include "run/plan.h"

#include <string.h>

#include "base/memory.h"
#include "run/internal.h"

static tt_status out_of_memory(void) { return tt_error(TT_OUT_OF_MEMORY, "out of host memory while making a plan"); }

tt_plan *tt_plan_retain(tt_plan *plan) {
  atomic_fetch_add_explicit(&plan->references, 1, memory_order_relaxed);
  return plan;
}

void tt_plan_release(tt_plan *plan) {
  if (!plan || atomic_fetch_sub_explicit(&plan->references, 1, memory_order_acq_rel) != 1) return;
  for (int i = 0; i < plan->input_count; ++i) tt_buffer_release(plan->inputs[i].constant);
  tt_program_release(plan->program);
  tt_arena_clear(&plan->arena);
  tt_free(plan);
}

static void *array(tt_plan *plan, int count, size_t size) {
  return tt_arena_allocate(&plan->arena, (size_t)(count > 0 ? count : 1), size);
}

static tt_plan *new_plan(int inputs, int outputs, int results, int checks) {
  tt_plan *plan = tt_calloc(1, sizeof *plan);
  if (!plan) return NULL;
  static _Atomic uint32_t last_serial = 0;
  atomic_init(&plan->references, 1);
  plan->serial = atomic_fetch_add_explicit(&last_serial, 1, memory_order_relaxed) + 1;
  plan->inputs = array(plan, inputs, sizeof *plan->inputs);
  plan->outputs = array(plan, outputs, sizeof *plan->outputs);
  plan->results = array(plan, results, sizeof *plan->results);
  plan->checks = array(plan, checks, sizeof *plan->checks);
  if (!plan->inputs || !plan->outputs || !plan->results || !plan->checks) {
    tt_plan_release(plan);
    return NULL;
  }
  return plan;
}

static tt_status set_result_shape(tt_plan *plan, tt_plan_result *result, tt_dtype dtype, int rank, const int64_t *sizes,
                                  const int64_t *strides) {
  result->defined = true;
  result->dtype = dtype;
  result->rank = rank;
  size_t bytes = (size_t)rank * sizeof *sizes;
  result->sizes = tt_arena_copy(&plan->arena, sizes, bytes);
  result->strides = tt_arena_copy(&plan->arena, strides, bytes);
  return rank && (!result->sizes || !result->strides) ? out_of_memory() : TT_SUCCESS;
}

// --- from a recorder -------------------------------------------------------------------------------------------------------

static bool is_output(const tt_record *record) { return record->written && !record->fresh && record->slot >= 0; }

// A program may reuse an input's memory for the storage's new value when the layouts agree. aliases[i] is the output for
// parameter i, -1 for none.
static void alias_outputs(const tt_recorder *r, tt_plan *plan, int *aliases) {
  for (int i = 0; i < r->input_count; ++i) aliases[i] = -1;
  int output = 0;
  for (int i = 0; i < r->record_count; ++i) {
    const tt_record *record = &r->records[i];
    if (!is_output(record)) continue;
    if (record->input >= 0 && r->inputs[record->input].layout == record->layout) {
      aliases[record->input] = output;
      plan->inputs[record->input].overwritten = true;
    }
    ++output;
  }
}

static tt_status fill_inputs(const tt_recorder *r, tt_plan *plan) {
  for (int i = 0; i < r->input_count; ++i) {
    const tt_input *in = &r->inputs[i];
    plan->inputs[i] = (tt_plan_input){.kind = in->kind,
                                      .dtype = in->dtype,
                                      .slot = in->slot,
                                      .number = in->number,
                                      .digit = in->digit,
                                      .layout = in->layout};
    plan->input_count = i + 1;
    if (in->kind != TT_INPUT_STORAGE || in->slot >= 0) continue;
    const tt_layout *layout;
    TT_TRY(tt_storage_read(in->storage, &plan->inputs[i].constant, &layout));
    if (!plan->inputs[i].constant) return tt_internal_error("a constant of a recorded program lost its value");
  }
  return TT_SUCCESS;
}

static tt_status fill_results(const tt_plan_request *request, tt_plan *plan) {
  for (int i = 0; i < request->result_count; ++i) {
    const tt_recorded_result *result = &request->results[i];
    if (result->value)
      TT_TRY(set_result_shape(plan, &plan->results[i], result->dtype, result->rank, result->sizes, result->strides));
  }
  plan->result_count = request->result_count;
  return TT_SUCCESS;
}

// Largest number of elements of any input or output: small programs compile fast.
static int64_t largest(const tt_recorder *r, const tt_plan *plan) {
  int64_t most = 0;
  for (int i = 0; i < r->input_count; ++i)
    if (r->inputs[i].layout && r->inputs[i].layout->count > most) most = r->inputs[i].layout->count;
  for (int i = 0; i < plan->output_count; ++i)
    if (plan->outputs[i].layout->count > most) most = plan->outputs[i].layout->count;
  return most;
}

// Outputs: written slots, fresh results, checks.
static tt_status fill_outputs(tt_recorder *r, const tt_plan_request *request, tt_plan *plan, tt_value **values,
                              int *out_count) {
  int count = 0;
  for (int i = 0; i < r->record_count; ++i) {
    const tt_record *record = &r->records[i];
    if (!is_output(record)) continue;
    values[count] = record->value;
    plan->outputs[count++] = (tt_plan_output){record->slot, -1, record->layout};
  }
  for (int i = 0; i < request->result_count; ++i) {
    if (!request->results[i].value) continue;
    values[count] = request->results[i].value;
    plan->outputs[count++] = (tt_plan_output){-1, i, request->results[i].layout};
  }
  plan->output_count = count;
  for (int i = 0; i < r->check_count; ++i) {
    values[count++] = r->checks[i].ok;
    plan->checks[i] = (tt_plan_check){r->checks[i].code, r->checks[i].message};
  }
  plan->check_count = r->check_count;
  *out_count = count;
  return TT_SUCCESS;
}

static tt_status set_requirements(tt_plan *plan, const tt_requirement *requirements, int count) {
  plan->requirement_count = count;
  plan->requirements = tt_arena_copy(&plan->arena, requirements, (size_t)count * sizeof *requirements);
  return count && !plan->requirements ? out_of_memory() : TT_SUCCESS;
}

// `values` and `aliases` are room for the results and one number per input.
static tt_status fill(tt_recorder *r, const tt_plan_request *request, tt_plan *plan, tt_value **values, int *aliases) {
  plan->op_name = request->op_name;
  plan->random_count = r->random_count;
  int count;
  TT_TRY(set_requirements(plan, r->requirements, r->requirement_count));
  TT_TRY(fill_inputs(r, plan));
  TT_TRY(fill_results(request, plan));
  TT_TRY(fill_outputs(r, request, plan, values, &count));
  alias_outputs(r, plan, aliases);
  if (!count) return TT_SUCCESS;
  const tt_compile_options options =
      tt_program_options(tt_builder_op_count(r->b), largest(r, plan), !r->single && !request->fast_math);
  TT_TRY(tt_program_create(r->b, count, values, aliases, &options, &plan->program));
  plan->program->note.name = request->op_name;
  return TT_SUCCESS;
}

tt_status tt_plan_create(tt_recorder *r, const tt_plan_request *request, tt_plan **out_plan) {
  tt_plan *plan =
      new_plan(r->input_count, r->record_count + request->result_count, request->result_count, r->check_count);
  if (!plan) return out_of_memory();
  tt_arena *arena = tt_builder_arena(r->b);
  tt_value **values =
      tt_arena_allocate(arena, (size_t)(r->record_count + request->result_count + r->check_count) + 1, sizeof *values);
  int *aliases = tt_arena_allocate(arena, (size_t)r->input_count + 1, sizeof *aliases);
  tt_status status = values && aliases ? fill(r, request, plan, values, aliases) : out_of_memory();
  if (status)
    tt_plan_release(plan);
  else
    *out_plan = plan;
  return status;
}

tt_status tt_plan_compile(const tt_plan *plan) {
  tt_executable *executable;
  return plan->program ? tt_program_executable(plan->program, &executable) : TT_SUCCESS;
}

// --- from the plan of an out= call --------------------------------------------------------------------------------------------

// Which output slot of the out= call (counted from operand_count) becomes which result or written slot.
static bool adopt_outputs(const tt_plan *plan, tt_plan *adopted, int operand_count, const int *written, int count) {
  for (int i = 0; i < plan->output_count; ++i) {
    tt_plan_output out = plan->outputs[i];
    int k = out.slot - operand_count;
    if (out.slot < 0 || k >= count) return false;
    if (k < 0) { // out= named an operand: only an in-place call writes operands
      if (!written) return false;
    } else if (written) {
      out.slot = written[k];
    } else {
      out.slot = -1;
      out.result = k;
    }
    adopted->outputs[i] = out;
  }
  adopted->output_count = plan->output_count;
  return true;
}

static bool adopt_inputs(const tt_plan *plan, tt_plan *adopted, int operand_count) {
  for (int i = 0; i < plan->input_count; ++i) {
    if (plan->inputs[i].slot >= operand_count) return false;
    adopted->inputs[i] = plan->inputs[i];
    adopted->input_count = i + 1;
    if (adopted->inputs[i].constant) tt_buffer_retain(adopted->inputs[i].constant);
  }
  return true;
}

static bool adopt_results(tt_plan *adopted, const tt_tensor *results, int count) {
  for (int i = 0; i < count; ++i) {
    tt_status status = set_result_shape(adopted, &adopted->results[i], results[i].dtype, results[i].rank,
                                        results[i].sizes, results[i].strides);
    if (status) {
      tt_status_free(status);
      return false;
    }
    bool has_output = false;
    for (int k = 0; k < adopted->output_count; ++k) has_output |= adopted->outputs[k].result == i;
    if (!has_output) return false; // nothing would give it a value
  }
  adopted->result_count = count;
  return true;
}

tt_plan *tt_plan_adopt(const tt_plan *plan, int operand_count, const int *written, const tt_tensor *results,
                       int count) {
  tt_plan *adopted = new_plan(plan->input_count, plan->output_count, count, plan->check_count);
  if (!adopted) return NULL;
  adopted->op_name = plan->op_name;
  adopted->random_count = plan->random_count;
  adopted->program = plan->program ? tt_program_retain(plan->program) : NULL;
  memcpy(adopted->checks, plan->checks, (size_t)plan->check_count * sizeof *plan->checks);
  adopted->check_count = plan->check_count;
  tt_status status = set_requirements(adopted, plan->requirements, plan->requirement_count);
  if (!status && adopt_inputs(plan, adopted, operand_count) &&
      adopt_outputs(plan, adopted, operand_count, written, count) &&
      (written || adopt_results(adopted, results, count)))
    return adopted;
  tt_status_free(status);
  tt_plan_release(adopted);
  return NULL;
}
