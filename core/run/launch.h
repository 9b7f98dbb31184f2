// launch.h - what running a call takes besides its storages: checks of its arguments, its numbers, its result tensors.
#ifndef TT_RUN_LAUNCH_H_
#define TT_RUN_LAUNCH_H_

#include "base/status.h"
#include "pjrt/client.h"
#include "run/call.h"
#include "run/key.h"
#include "run/plan.h"
#include "run/scalar.h"

// A number that a program takes at run time.
typedef struct tt_run_number {
  tt_dtype dtype;
  bool is_random; // {seed, offset} of a generator: `state`; else `scalar`
  tt_scalar scalar;
  uint64_t state[2];
} tt_run_number;

// Tests what the plan demands of the call's arguments. Errors are the user's.
tt_status tt_launch_check(const tt_plan *plan, const tt_call *call);
// Makes room for the plan's fresh results, without storages yet. tt_results_free on failure is harmless.
tt_status tt_launch_results(const tt_plan *plan, int device_index, tt_results *out_results);
// Ends results that nobody is to have, with the storages that they have so far: the call failed.
void tt_launch_drop_results(tt_results *results);
// The value that a call gives to the plan's input, which is none of kind TT_INPUT_STORAGE. A random input moves the generator
// on, so a call asks once.
tt_status tt_launch_number(const tt_plan *plan, const tt_plan_input *input, const tt_call *call, const tt_key *key,
                           tt_run_number *out_number);
// Its buffer; the caller's reference.
tt_status tt_run_number_buffer(tt_device *device, const tt_run_number *number, tt_buffer **out_buffer);

#endif // TT_RUN_LAUNCH_H_
