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
// The recorder that this thread records into, of the program or of a region; NULL if none.
tt_recorder *tt_record_innermost(void);
void tt_record_enter(tt_recorder *recorder); // makes it the innermost
// tt_recorder_free; its fresh storages lose their values.
void tt_record_free(tt_recorder *recorder);
// Fresh tensors with values of the innermost recorder. The storages are the caller's, on failure too.
tt_status tt_record_fresh_tensor(int device_index, const tt_recorded_result *result, tt_result *out);
tt_status tt_record_fresh_tensors(int device_index, const tt_recorded_result *recorded, int count, tt_results *results);
// Changes the size of a storage that has no value yet.
tt_status tt_record_resize(tt_storage *storage, int64_t byte_size);
// As tt_record_end, but the plan is entered nowhere: the caller's reference.
tt_status tt_record_take(const tt_call *call, const tt_tensor *results, int count, tt_plan **out_plan);
// What the recorder needs to lower `call`. (call.c)
tt_recorded_call tt_call_recorded(const tt_call *call);
// Enters a plan under a key; the map takes over the reference. (call.c)
tt_status tt_plan_enter(const tt_key *key, tt_plan *plan);
// Lowers one call by itself into `recorder`, which is freed by tt_recorder_free whatever comes of it. *out_results are the
// fresh results, in the recorder's arena. (call.c)
tt_status tt_call_lower(const tt_call *call, const tt_target *target, tt_recorder *recorder,
                        tt_plan_request *out_request);
// Refuses a host wait for `tensor` where waits are forbidden; `what` names the wait. (copy.c)
tt_status tt_check_wait_for(const tt_tensor *tensor, const char *what);
// Whoever wants to know of each single call that was lowered, for a plan of its own or into a recording; NULL for nobody. Told
// afterwards, on the thread of the call, while its storages are as they were before. (call.c)
typedef void (*tt_lowering_observer)(const tt_call *call);
void tt_set_lowering_observer(tt_lowering_observer observer);
void tt_tell_lowering_observer(const tt_call *call);
// "Float [2, 3]" appended to `out`. (call.c)
void tt_describe_tensor(const tt_tensor *tensor, tt_string *out);
// "aten::add.out(Float [2, 3], Float [3])" appended to `out`. (call.c)
void tt_call_describe(const tt_call *call, tt_string *out);
void tt_call_describe_operands(const tt_call *call, tt_string *out); // what is between the parentheses

#endif // TT_RUN_RECORD_H_
