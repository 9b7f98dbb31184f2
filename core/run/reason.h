// reason.h - why a program is new: what its call has that no earlier one of the same op at the same line had.
//
// All of it happens where a plan or a graph's program is missing, which takes milliseconds anyhow. The last few signatures of each
// (line, layer, overload) are kept; "layer" is the nn.Module whose forward calls the op, if torch's own code does, so that
// the layers of one model, called by one line, are not each other's recompilations.
//
// Threads: any. A program is noted by the thread that makes it and compiled by any.
#ifndef TT_RUN_REASON_H_
#define TT_RUN_REASON_H_

#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "run/call.h"
#include "run/plan.h"

// Notes in the plan's program, which nobody else knows yet, that it is `call`'s, and remembers the call's signature; nothing for a
// plan without a program. Takes Python's lock. Fails if the warning fails that is due when a call site needs its 8th program.
// In EagerMode.DEFER_AND_FUSE calls have no programs of their own: nothing is noted.
tt_status tt_reason_note(const tt_call *call, tt_plan *plan);

// A graph as it is compared with those before.
typedef struct tt_graph_signature {
  int call_count, result_count;
  const tt_plan *const *plans; // of the calls
  uint64_t wiring, results;    // hashes: which values go where; which are alive and whose memory they may take
} tt_graph_signature;
// Notes in the program why this graph's is new, with the line if tt_trace_hold noted it, and remembers the graph. Without
// memory there is no reason.
void tt_reason_note_graph(const tt_graph_signature *graph, tt_program *program);

// What tt_trace_let_go has put off: the count of a graph's program, and its warning.
tt_status tt_reason_after(tt_status status);

void tt_reason_watch_compiler(void); // once
void tt_reasons_forget(void);        // as tt_plans_forget does

#endif // TT_RUN_REASON_H_
