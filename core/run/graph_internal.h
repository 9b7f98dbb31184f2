// graph_internal.h - what the files about graphs share: graph.c records calls, fuse.c makes the program, start.c runs it,
// defer.c decides when.
#ifndef TT_RUN_GRAPH_INTERNAL_H_
#define TT_RUN_GRAPH_INTERNAL_H_

#include <pthread.h>
#include <stdatomic.h>

#include "graph/pending.h"
#include "run/graph.h"
#include "run/launch.h"
#include "run/repeat.h"

// What an input of a node is: a kind and the number in the array of that kind.
typedef enum tt_ref_kind { TT_REF_VALUE, TT_REF_OUTSIDE, TT_REF_NUMBER } tt_ref_kind;
typedef uint32_t tt_ref;
static inline tt_ref tt_ref_make(tt_ref_kind kind, int index) { return (uint32_t)kind << 30 | (uint32_t)index; }
static inline tt_ref_kind tt_ref_kind_of(tt_ref ref) { return (tt_ref_kind)(ref >> 30); }
static inline int tt_ref_index(tt_ref ref) { return (int)(ref & ((UINT32_C(1) << 30) - 1)); }

typedef struct tt_node {
  tt_plan *plan;   // one reference
  int first_ref;   // of its plan's input_count refs
  int first_value; // of its plan's output_count values
  char *site;      // the line of the call if it has checks, of tt_malloc; NULL: none or unknown
} tt_node;

// A value that the graph's calls did not make: a buffer or, until the graph that makes it ran, a pending value. One reference.
typedef struct tt_outside {
  tt_buffer *buffer;
  tt_pending *pending; // NULL once there is a buffer
  const tt_layout *layout;
  int uses; // refs to it
} tt_outside;

typedef struct tt_graph_program tt_graph_program;

struct tt_graph {
  tt_device *device;
  uint64_t number; // no other graph of the process has it
  tt_node *nodes;
  tt_ref *refs;
  tt_pending **values; // one reference each
  tt_outside *outsides;
  tt_run_number *numbers;
  int node_count, ref_count, value_count, outside_count, number_count;
  int node_capacity, ref_capacity, value_capacity, outside_capacity, number_capacity;
  int64_t op_count;          // of all fragments
  tt_graph_program *program; // once closed, for many calls: what to run; NULL: its calls one by one
  bool was_awaited;          // somebody waited for its program: if that is not there now, it failed
  tt_graph *next;            // in the line of closed graphs
};

// --- graph.c ------------------------------------------------------------------------------------------------------------
tt_status tt_graph_create(tt_device *device, tt_graph **out_graph);
// Drops its nodes and everything they hold; the arrays stay.
void tt_graph_clear(tt_graph *g);
void tt_graph_free(tt_graph *g); // NULL is fine
// Appends a call; on failure the graph and all storages are as before. The node's site is the caller's to set.
tt_status tt_graph_add(tt_graph *g, tt_plan *plan, const tt_call *call, const tt_key *key, tt_results *results);

// --- fuse.c -------------------------------------------------------------------------------------------------------------
// A graph's program and how to launch it. Its arguments are the graph's outside values, then its numbers; its results the live
// values, then the checks of the nodes in order. Reference-counted.
struct tt_graph_program {
  _Atomic int32_t references;
  tt_program *program; // NULL: nothing is alive, nothing to run
  int output_count, check_count;
  int *outputs; // numbers of the live values
  int *aliases; // per outside value the output that may take its memory, -1 for none
};
// The program of the graph as it stands, found by its key or made. The caller owns one reference.
tt_status tt_graph_program_find(const tt_graph *g, tt_graph_program **out_program);
void tt_graph_program_release(tt_graph_program *program); // NULL is fine

// --- start.c ------------------------------------------------------------------------------------------------------------
// Starts a closed graph's program, or its calls one by one, which is also what happens when the program fails: so the call at
// fault is named and those before it keep their results. Every value has a buffer or is lost then. Compiles what is not
// compiled yet.
tt_status tt_graph_start(tt_graph *g);
// What tt_graph_start needs and is not compiled yet; NULL: nothing.
tt_program *tt_graph_awaits(const tt_graph *g);

#endif // TT_RUN_GRAPH_INTERNAL_H_
