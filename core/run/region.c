// region.c - control flow in this thread's recording: regions, and the ops that run them (call.h).
#include "graph/region.h"
#include "base/memory.h"
#include "run/launch.h"
#include "run/record.h"

static tt_status out_of_memory(void) {
  return tt_error(TT_OUT_OF_MEMORY, "out of host memory while recording a program");
}

static tt_status innermost(tt_recorder **out_recorder) {
  *out_recorder = tt_record_innermost();
  return *out_recorder ? TT_SUCCESS : tt_internal_error("control flow outside of a recording");
}

static void empty(tt_results *results) {
  results->count = 0;
  results->items = results->inline_items;
}

static tt_status give(int device_index, const tt_recorded_result *recorded, int count, tt_results *out_results) {
  tt_status status = tt_record_fresh_tensors(device_index, recorded, count, out_results);
  if (status) tt_launch_drop_results(out_results);
  return status;
}

// --- regions ------------------------------------------------------------------------------------------------------------------

static tt_status add_arguments(tt_recorder *r, int device_index, const tt_tensor *likes, int count,
                               tt_results *out_arguments) {
  tt_recorded_result *arguments = tt_arena_allocate(tt_builder_arena(r->b), (size_t)count + 1, sizeof *arguments);
  if (!arguments) return out_of_memory();
  for (int i = 0; i < count; ++i)
    TT_TRY(tt_region_argument(r, likes[i].dtype, likes[i].rank, likes[i].sizes, &arguments[i]));
  return give(device_index, arguments, count, out_arguments);
}

tt_status tt_region_begin(int device_index, const tt_tensor *likes, int count, tt_results *out_arguments) {
  tt_recorder *outer;
  empty(out_arguments);
  TT_TRY(innermost(&outer));
  tt_recorder *r = tt_calloc(1, sizeof *r);
  if (!r) return out_of_memory();
  tt_status status = tt_region_init(r, outer);
  if (status) {
    tt_recorder_free(r);
    tt_free(r);
    return status;
  }
  tt_record_enter(r);
  status = add_arguments(r, device_index, likes, count, out_arguments);
  if (status) tt_region_abort();
  return status;
}

void tt_region_abort(void) {
  tt_recorder *r = tt_record_innermost();
  if (!r || !r->outer) return;
  tt_record_enter(r->outer);
  tt_record_free(r);
  tt_free(r);
}

tt_status tt_region_end(const tt_tensor *results, int count, tt_region **out_region) {
  tt_recorder *r;
  TT_TRY(innermost(&r));
  if (!r->outer) return tt_internal_error("the end of a region that never began");
  TT_TRY(tt_region_take(r, results, count, out_region));
  tt_region_abort();
  return TT_SUCCESS;
}

// --- ops ------------------------------------------------------------------------------------------------------------------------

static tt_value **values_of(tt_recorder *r, const tt_tensor *tensors, int count) {
  tt_value **values = tt_arena_allocate(tt_builder_arena(r->b), (size_t)count + 1, sizeof(tt_value *));
  for (int i = 0; values && i < count; ++i) values[i] = tt_recorder_operand(r, &tensors[i]);
  return values;
}

static tt_status give_values(tt_recorder *r, int device_index, tt_value *const *values, int count,
                             tt_results *out_results) {
  tt_recorded_result *recorded = tt_arena_allocate(tt_builder_arena(r->b), (size_t)count + 1, sizeof *recorded);
  if (!recorded) return out_of_memory();
  for (int i = 0; i < count; ++i) TT_TRY(tt_recorder_result(r, values[i], &recorded[i]));
  return give(device_index, recorded, count, out_results);
}

tt_status tt_record_while(int device_index, const tt_region *condition, const tt_region *body, const tt_tensor *carried,
                          int count, tt_results *out_results) {
  tt_recorder *r;
  empty(out_results);
  TT_TRY(innermost(&r));
  tt_value **initial = values_of(r, carried, count), **results;
  if (!initial) return out_of_memory();
  TT_TRY(tt_region_while(r, condition, body, count, initial, &results));
  return give_values(r, device_index, results, count, out_results);
}

tt_status tt_record_case(const tt_tensor *index, tt_region *const *branches, int count, tt_results *out_results) {
  tt_recorder *r;
  empty(out_results);
  TT_TRY(innermost(&r));
  tt_value **results;
  TT_TRY(tt_region_case(r, tt_recorder_operand(r, index), count, branches, &results));
  return give_values(r, index->device_index, results, branches[0]->result_count, out_results);
}

tt_status tt_record_scan(int device_index, const tt_region *body, int64_t length, const tt_tensor *carried,
                         int carried_count, const tt_tensor *xs, int xs_count, tt_results *out_results) {
  tt_recorder *r;
  empty(out_results);
  TT_TRY(innermost(&r));
  tt_value **initial = values_of(r, carried, carried_count), **scanned = values_of(r, xs, xs_count), **results;
  if (!initial || !scanned) return out_of_memory();
  TT_TRY(tt_region_scan(r, body, length, carried_count, initial, xs_count, scanned, &results));
  return give_values(r, device_index, results, body->result_count, out_results);
}
