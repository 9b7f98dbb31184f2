// record.c - recording several calls of this thread into one program.
//
// Used for ops without a lowering: torch's decomposition runs once, its calls land in the recorder, and the program is kept
// under the outer call's key. Storages do not change meanwhile, so giving up costs nothing.
#include "run/record.h"

#include "base/memory.h"
#include "graph/recorder.h"
#include "run/internal.h"
#include "run/launch.h"
#include "run/reason.h"

static _Thread_local struct {
  tt_recorder program;
  tt_recorder *recorder; // the innermost: of the program or of a region of it
  int depth;             // 0 = not recording
} recording;

bool tt_record_active(void) { return recording.depth > 0; }

tt_recorder *tt_record_innermost(void) { return recording.depth > 0 ? recording.recorder : NULL; }

void tt_record_enter(tt_recorder *region) { recording.recorder = region; }

tt_status tt_record_begin(const tt_call *call) {
  if (recording.depth > 0) {
    ++recording.depth;
    return TT_SUCCESS;
  }
  TT_TRY(tt_runtime_start());
  tt_status status =
      tt_recorder_init(&recording.program, tt_runtime_target(), false, call->tensors, call->tensor_count);
  if (status) {
    tt_recorder_free(&recording.program);
  } else {
    recording.recorder = &recording.program;
    recording.depth = 1;
  }
  return status;
}

// Fresh storages hold nodes of the program that was never run for them: they become uninitialised.
void tt_record_free(tt_recorder *r) {
  for (int i = 0; i < r->record_count; ++i)
    if (r->records[i].fresh) tt_storage_clear(r->records[i].storage);
  tt_recorder_free(r);
}

static void close_recording(void) {
  while (recording.recorder != &recording.program) tt_region_abort();
  tt_record_free(&recording.program);
  recording.depth = 0;
}

void tt_record_abort(void) {
  if (recording.depth > 1)
    --recording.depth;
  else if (recording.depth == 1)
    close_recording();
}

tt_status tt_record_fresh_tensor(int device_index, const tt_recorded_result *result, tt_result *out) {
  *out = (tt_result){NULL, result->dtype, result->rank, result->sizes, result->strides, device_index};
  if (!result->value) return TT_SUCCESS;
  tt_device *device = tt_client_device(tt_runtime_client(), device_index);
  TT_TRY(tt_storage_create(device, result->layout->byte_size, &out->storage));
  tt_status status = tt_storage_write_node(out->storage, recording.recorder, result->value, result->layout);
  if (!status) status = tt_recorder_add_fresh(recording.recorder, out->storage, result);
  if (status) {
    tt_storage_release(out->storage);
    out->storage = NULL;
  }
  return status;
}

tt_status tt_record_fresh_tensors(int device_index, const tt_recorded_result *recorded, int count,
                                  tt_results *results) {
  if (count > TT_INLINE_RESULTS) {
    tt_result *items = tt_calloc((size_t)count, sizeof *items);
    if (!items) return tt_error(TT_OUT_OF_MEMORY, "out of host memory while recording a program");
    results->items = items;
  }
  for (int i = 0; i < count; ++i) {
    TT_TRY(tt_record_fresh_tensor(device_index, &recorded[i], &results->items[i]));
    results->count = i + 1;
  }
  return TT_SUCCESS;
}

tt_status tt_record_overwrite(const tt_tensor *tensor) {
  return tensor->storage ? tt_recorder_overwrite(&recording.program, tensor->storage) : TT_SUCCESS;
}

tt_status tt_record_scalar(const tt_call *call, int slot, tt_result *out_result) {
  tt_recorded_result scalar;
  TT_TRY(tt_recorder_scalar(&recording.program, slot, &scalar));
  return tt_record_fresh_tensor(call->device_index, &scalar, out_result);
}

tt_status tt_record_call(const tt_call *call, tt_results *out_results, bool *out_miss) {
  const tt_overload *overload = call->overload;
  if (!overload->op || overload->structured) {
    *out_miss = true;
    return TT_SUCCESS;
  }
  if (overload->op->flags & TT_OP_HOST)
    return tt_error(TT_NOT_IMPLEMENTED, "%s needs values on the host and cannot be recorded", overload->name);
  tt_recorded_call recorded = tt_call_recorded(call);
  tt_recorded_result *results = NULL;
  int count = 0;
  TT_TRY(tt_recorder_lower(recording.recorder, &recorded, &results, &count));
  tt_tell_lowering_observer(call);
  tt_status status = tt_record_fresh_tensors(call->device_index, results, count, out_results);
  if (status) tt_launch_drop_results(out_results);
  return status;
}

tt_status tt_record_resize(tt_storage *storage, int64_t byte_size) {
  tt_value *value = NULL;
  const tt_layout *layout = NULL;
  TT_TRY(tt_recorder_value(recording.recorder, storage, &value, &layout));
  if (!value) return tt_storage_set_size(storage, byte_size);
  return tt_error(TT_NOT_IMPLEMENTED, "a tensor with a value cannot be resized while a program is recorded");
}

static tt_status enter(const tt_call *call, tt_plan *plan) {
  tt_key key;
  tt_status status = tt_key_build(call, &key);
  if (!status) status = tt_plan_enter(&key, plan);
  tt_key_free(&key);
  return status;
}

static tt_status make_plan(const tt_call *call, const tt_tensor *results, int count, tt_plan **out_plan) {
  tt_recorder *r = &recording.program;
  tt_recorded_result *recorded = tt_arena_allocate(tt_builder_arena(r->b), (size_t)count + 1, sizeof *recorded);
  if (!recorded) return tt_error(TT_OUT_OF_MEMORY, "out of host memory while recording a program");
  for (int i = 0; i < count; ++i)
    if (results[i].defined) TT_TRY(tt_recorder_read(r, &results[i], &recorded[i]));
  tt_plan_request request = {call->overload->name, recorded, count, call->overload->fast_math};
  return tt_plan_create(r, &request, out_plan);
}

static tt_status make_and_enter(const tt_call *call, const tt_tensor *results, int count) {
  tt_plan *plan;
  TT_TRY(make_plan(call, results, count, &plan));
  tt_status status = tt_reason_note(call, plan);
  if (!status && tt_get_eager_mode() == TT_DEFER_NEVER_AND_LAUNCH_BLOCKING) status = tt_plan_compile(plan);
  if (!status) status = enter(call, plan);
  if (status) tt_plan_release(plan);
  return status;
}

tt_status tt_record_end(const tt_call *call, const tt_tensor *results, int count) {
  if (recording.depth == 0) return tt_internal_error("the end of a recording that never began");
  if (recording.depth > 1) { // part of an outer program: its calls are there already
    --recording.depth;
    return TT_SUCCESS;
  }
  tt_status status = make_and_enter(call, results, count);
  close_recording();
  if (!status) return TT_SUCCESS;
  tt_string text = TT_STRING_INIT;
  tt_call_describe(call, &text);
  status = tt_status_context(status, "%s", tt_string_text(&text));
  tt_string_free(&text);
  return status;
}

tt_status tt_record_take(const tt_call *call, const tt_tensor *results, int count, tt_plan **out_plan) {
  if (recording.depth != 1) return tt_internal_error("a recording that is not the outermost one gives no plan");
  tt_status status = make_plan(call, results, count, out_plan);
  close_recording();
  return status;
}
