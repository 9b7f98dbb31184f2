// graph.h - calls recorded to run together: what EagerMode.DEFER_AND_FUSE does.
//
// Each device has one graph. A call whose plan is known becomes a node: its plan, and for each input of the plan a buffer from
// outside, a value of an earlier node, or a number. Its results are pending values (graph/pending.h) in storages. When a value
// is needed, all nodes run as one program: the plans' fragments one behind the other, with the values that are still alive as
// results. What nobody can ask for any more is no result and takes no memory.
//
// The program of a graph is kept under the graph's key: which plans, how they are wired, which values are alive, which inputs
// the program may reuse. A graph seen before is looked up and launched; nothing is lowered or compiled.
//
// Threads: any thread may append or run; a graph's lock makes each a step of its own. Autograd's thread continues the graph of
// the forward pass.
#ifndef TT_RUN_GRAPH_H_
#define TT_RUN_GRAPH_H_

#include <stdbool.h>

#include "base/status.h"
#include "base/string.h"
#include "pjrt/client.h"
#include "run/call.h"
#include "run/key.h"
#include "run/plan.h"

// Appends the call, whose key `plan` was made for. Fresh results come as from tt_plan_launch. Runs the graph when it has become
// long, so errors of earlier calls may come out.
tt_status tt_graph_append(tt_plan *plan, const tt_call *call, const tt_key *key, tt_results *out_results);

// Runs what the device's graph holds, and empties it. When its program fails to compile or to start, the calls run one by one
// as in the other modes, so that the one at fault is named and those before it keep their results.
tt_status tt_graph_run(tt_device *device);
// The same for all devices. The first failure.
tt_status tt_graph_run_all(void);

// Is nothing deferred? What was is started, so that somebody who asks again and again sees an end.
bool tt_graph_is_empty(tt_device *device);

// How a graph may be shown.
typedef enum tt_graph_format {
  TT_GRAPH_TEXT,      // one line a call: "%3: Float[2, 3] = add(%1, buffer 0: Float[2, 3], 2.0)"
  TT_GRAPH_STABLEHLO, // the program that would run now
  TT_GRAPH_GRAPHVIZ,  // the calls and values in the dot language
} tt_graph_format;
// Appends what is pending on the device. With a storage, text and Graphviz show only the calls that its value needs, and
// nothing when it has a value.
tt_status tt_graph_show(tt_device *device, tt_storage *storage, tt_graph_format format, tt_string *out);

// Forgets the programs of graphs; see tt_plans_forget.
void tt_graph_programs_forget(void);

#endif // TT_RUN_GRAPH_H_
