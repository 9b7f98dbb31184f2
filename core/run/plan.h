// plan.h - a program with the recipe for its inputs and outputs, ready to launch.
//
// A plan belongs to a key, not to tensors: its inputs name slots, numbers and digits of whatever call has that key. Plans are
// reference-counted; any thread may launch one.
#ifndef TT_RUN_PLAN_H_
#define TT_RUN_PLAN_H_

#include <stdatomic.h>
#include <stdint.h>

#include "graph/recorder.h"
#include "run/call.h"
#include "run/key.h"
#include "run/program.h"

typedef struct tt_plan_input {
  tt_input_kind kind;
  bool overwritten; // its storage gets a new value of the same layout: the program may reuse the memory
  tt_dtype dtype;
  int slot, number;
  tt_digit digit;
  const tt_layout *layout; // TT_INPUT_STORAGE
  tt_buffer *constant;     // TT_INPUT_STORAGE of no slot: retained
} tt_plan_input;

// Where a program result goes.
typedef struct tt_plan_output {
  int slot; // >= 0: the storage of this slot; -1: fresh result `result`
  int result;
  const tt_layout *layout;
} tt_plan_output;

// A fresh result tensor. Its storage's value is one of the outputs, or nothing (undefined).
typedef struct tt_plan_result {
  bool defined;
  tt_dtype dtype;
  int rank;
  const int64_t *sizes, *strides;
} tt_plan_result;

typedef struct tt_plan_check {
  tt_code code;
  const char *message;
} tt_plan_check;

typedef struct tt_plan {
  _Atomic int32_t references;
  uint32_t serial;     // no other plan of the process has it
  tt_program *program; // NULL when there is nothing to run
  const char *op_name; // static
  int64_t random_count;
  int input_count, output_count, result_count, check_count, requirement_count;
  tt_plan_input *inputs;
  tt_plan_output *outputs; // the program's results in order; the checks follow them
  tt_plan_result *results;
  tt_plan_check *checks;
  tt_requirement *requirements; // of the call's arguments
  tt_arena arena;               // owns the arrays
} tt_plan;

// What the recorder's program gives out, in this order.
typedef struct tt_plan_request {
  const char *op_name;
  const tt_recorded_result *results; // fresh ones
  int result_count;
  bool fast_math; // see tt_overload
} tt_plan_request;

// Finishes the recorder's program: outputs are the written records that have a slot, then the request's results, then the
// checks. Nothing is compiled yet.
tt_status tt_plan_create(tt_recorder *recorder, const tt_plan_request *request, tt_plan **out_plan);
// The plan of an out= call, used for a call with the same operands whose outputs are slots `written` (in place) or, when
// `written` is NULL, fresh tensors like `results`. `operand_count` slots are shared. NULL when it does not carry over.
tt_plan *tt_plan_adopt(const tt_plan *plan, int operand_count, const int *written, const tt_tensor *results, int count);
// Compiles the plan's program now, so that a refusal of the compiler comes with the call that is being made.
tt_status tt_plan_compile(const tt_plan *plan);
tt_plan *tt_plan_retain(tt_plan *plan);
void tt_plan_release(tt_plan *plan); // NULL is fine

// Runs it for `call` (whose key made it) and puts fresh results into *out_results.
tt_status tt_plan_launch(tt_plan *plan, const tt_call *call, const tt_key *key, tt_results *out_results);

#endif // TT_RUN_PLAN_H_
