// record.h - this thread's recording: what run/ does between tt_record_begin and tt_record_end (call.h).
#ifndef TT_RUN_RECORD_H_
#define TT_RUN_RECORD_H_

#include <stdbool.h>

#include "base/status.h"
#include "base/string.h"
#include "graph/recorder.h"
#include "run/call.h"
#include "run/key.h"
#include "run/plan.h"

// Lowers `call` into this thread's recording instead of running it.
tt_status tt_record_call(const tt_call *call, tt_results *out_results, bool *out_miss);
// What the recorder needs to lower `call`. (call.c)
tt_recorded_call tt_call_recorded(const tt_call *call);
// Enters a plan under a key; the map takes over the reference. (call.c)
tt_status tt_plan_enter(const tt_key *key, tt_plan *plan);
// "aten::add.out(Float [2, 3], Float [3])" appended to `out`. (call.c)
void tt_call_describe(const tt_call *call, tt_string *out);

#endif // TT_RUN_RECORD_H_
