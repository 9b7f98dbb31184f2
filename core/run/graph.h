// graph.h - deferred calls: a graph of them, and the line of graphs that wait for their programs.
//
// Each device has one open graph and a line of closed ones. In EagerMode.DEFER_AND_FUSE a call becomes a node of the open graph:
// its plan, and for each input of the plan a value of an earlier node, a value from outside, or a number. Its results are
// pending values (graph/pending.h) in storages. When a value is needed, when a step of a loop ends (run/repeat.h), or when the
// graph has become long, it is closed: its calls will run as one program, the plans' fragments one behind the other, with the
// values that are still alive as results. What nobody can ask for any more is no result and takes no memory. The program is
// kept under the graph's key: which plans, how they are wired, which values are alive, which inputs the program may reuse.
// A graph seen before is looked up and launched; nothing is lowered or compiled.
//
// In Strict mode a call whose program is not compiled yet is a closed graph of its own, so that Python goes on while threads
// compile (run/program.h), and so are the calls that need its results.
//
// Closed graphs start in order, each when its program is compiled; who needs a value waits for that.
//
// Threads: any thread may call; a device's lock makes each call a step of its own. Autograd's thread continues the graph of
// the forward pass.
#ifndef TT_RUN_GRAPH_H_
#define TT_RUN_GRAPH_H_

#include <stdbool.h>

#include "base/status.h"
#include "base/string.h"
#include "pjrt/client.h"
#include "run/call.h"
#include "run/deferred.h"
#include "run/key.h"
#include "run/plan.h"

typedef struct tt_graph tt_graph;

// Defers the call, whose key `plan` was made for: in the open graph (`fuse`) or as a graph of its own. Fresh results come as
// from tt_plan_launch. Errors are those of this call; failures of earlier ones wait for whoever waits for the device.
tt_status tt_defer(tt_plan *plan, const tt_call *call, const tt_key *key, bool fuse, tt_results *out_results);
// Does the call have to wait for others: does it read a value that is still to come? Starts what can start.
bool tt_must_defer(const tt_plan *plan, const tt_call *call);

// Starts all that the device has deferred, compiling what is not compiled yet. The first failure of these calls.
tt_status tt_run_deferred(tt_device *device);
// Starts the closed graphs of all devices, compiling what is not compiled yet; open ones go on. Failures wait for whoever waits
// for the device. What counters say is then the same on every run.
void tt_start_closed_graphs(void);
// Is nothing deferred? What was is started, so that somebody who asks again and again sees an end.
bool tt_nothing_deferred(tt_device *device);

// How a graph may be shown.
typedef enum tt_graph_format {
  TT_GRAPH_TEXT,      // one line a call: "%3: Float[2, 3] = add(%1, outside 0: Float[2, 3], 2.0)"
  TT_GRAPH_STABLEHLO, // the program that would run now
  TT_GRAPH_GRAPHVIZ,  // the calls and values in the dot language
} tt_graph_format;
// Appends what is in the open graph. With a storage, text and Graphviz show only the calls that its value needs.
tt_status tt_graph_show(const tt_graph *g, tt_storage *storage, tt_graph_format format, tt_string *out);

// Forgets the programs of graphs; see tt_plans_forget.
void tt_graph_programs_forget(void);

#endif // TT_RUN_GRAPH_H_
