// export.c - see export.h.
#include "run/export.h"

#include "base/arena.h"
#include "base/memory.h"
#include "base/string.h"
#include "run/internal.h"
#include "run/plan.h"
#include "run/record.h"

typedef struct owned_export {
  tt_export public; // first
  tt_arena arena;
  tt_string text;
} owned_export;

static tt_status out_of_memory(void) { return tt_error(TT_OUT_OF_MEMORY, "out of host memory while exporting"); }

void tt_export_free(tt_export *e) {
  if (!e) return;
  owned_export *owned = (owned_export *)e;
  tt_arena_clear(&owned->arena);
  tt_string_free(&owned->text);
  tt_free(owned);
}

static tt_status read_constant(owned_export *e, tt_buffer *buffer, tt_export_input *out) {
  void *data = tt_arena_allocate(&e->arena, (size_t)buffer->byte_size + 1, 1);
  if (!data) return out_of_memory();
  tt_event done = {0};
  TT_TRY(tt_buffer_to_host(buffer, data, buffer->byte_size, &done));
  tt_status status = tt_event_wait(&done);
  tt_event_release(&done);
  out->data = data;
  return status;
}

static tt_status describe_input(owned_export *e, const tt_plan_input *in, tt_export_input *out) {
  if (in->kind == TT_INPUT_RANDOM)
    return tt_error(TT_NOT_IMPLEMENTED, "a program that draws random numbers cannot be exported");
  if (in->kind != TT_INPUT_STORAGE) return tt_internal_error("an exported program that takes numbers of the host");
  if (in->overwritten) return tt_error(TT_NOT_IMPLEMENTED, "a program that writes its inputs cannot be exported");
  *out = (tt_export_input){.slot = in->slot,
                           .dtype = in->layout->dtype,
                           .rank = in->layout->rank,
                           .dims = in->layout->dims,
                           .byte_size = in->layout->byte_size};
  return in->constant ? read_constant(e, in->constant, out) : TT_SUCCESS;
}

static tt_status describe(owned_export *e, const tt_plan *plan) {
  int output_count = plan->output_count + plan->check_count;
  tt_export_input *inputs = tt_arena_allocate(&e->arena, (size_t)plan->input_count + 1, sizeof *inputs);
  tt_export_output *outputs = tt_arena_allocate(&e->arena, (size_t)output_count + 1, sizeof *outputs);
  if (!inputs || !outputs) return out_of_memory();
  for (int i = 0; i < plan->input_count; ++i) TT_TRY(describe_input(e, &plan->inputs[i], &inputs[i]));
  for (int i = 0; i < plan->output_count; ++i) {
    const tt_layout *layout = plan->outputs[i].layout;
    if (plan->outputs[i].slot >= 0)
      return tt_error(TT_NOT_IMPLEMENTED, "a program that writes its inputs cannot be exported");
    outputs[i] = (tt_export_output){layout->dtype, layout->rank, layout->dims, NULL, NULL};
  }
  for (int i = 0; i < plan->check_count; ++i)
    outputs[plan->output_count + i] =
        (tt_export_output){TT_BOOL, 0, NULL, plan->checks[i].message, tt_code_name(plan->checks[i].code)};
  if (plan->program) TT_TRY(tt_program_text(plan->program, &e->text));
  e->public = (tt_export){tt_string_text(&e->text), e->text.size, plan->input_count, output_count, inputs, outputs};
  return TT_SUCCESS;
}

tt_status tt_record_export(const tt_call *call, const tt_tensor *results, int count, tt_export **out_export) {
  tt_plan *plan;
  TT_TRY(tt_record_take(call, results, count, &plan));
  void *block = NULL;
  tt_status status = tt_allocate(1, sizeof(owned_export), &block);
  if (!status) status = describe(block, plan);
  tt_plan_release(plan);
  if (status)
    tt_export_free(block);
  else
    *out_export = block;
  return status;
}
