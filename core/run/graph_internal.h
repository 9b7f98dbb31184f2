// graph_internal.h - what graph.c (recording, running) and fuse.c (the program of a graph) share.
#ifndef TT_RUN_GRAPH_INTERNAL_H_
#define TT_RUN_GRAPH_INTERNAL_H_

#include <pthread.h>

#include "graph/pending.h"
#include "run/graph.h"
#include "run/launch.h"
#include "run/repeat.h"

// What an input of a node is: a kind and the number in the array of that kind.
typedef enum tt_ref_kind { TT_REF_VALUE, TT_REF_BUFFER, TT_REF_NUMBER } tt_ref_kind;
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

typedef struct tt_graph_buffer {
  tt_buffer *buffer; // one reference
  const tt_layout *layout;
} tt_graph_buffer;

typedef struct tt_graph {
  pthread_mutex_t lock;
  tt_device *device;
  uint64_t number; // changes whenever the graph is emptied; never 0
  tt_node *nodes;
  tt_ref *refs;
  tt_pending **values; // one reference each; NULL for an output that is not given to anybody
  tt_graph_buffer *buffers;
  tt_run_number *numbers;
  int node_count, ref_count, value_count, buffer_count, number_count;
  int node_capacity, ref_capacity, value_capacity, buffer_capacity, number_capacity;
  int64_t op_count; // of all fragments
  tt_repeat repeat;
  int next_search; // number of nodes at which to look for a repetition
  bool is_due;     // a boundary lies behind the newest node: run before the next
} tt_graph;

// A graph's program and how to launch it. Its arguments are the graph's buffers, then its numbers; its results the live
// values, then the checks of the nodes in order. Reference-counted.
typedef struct tt_graph_program {
  _Atomic int32_t references;
  tt_program *program; // NULL: nothing is alive, nothing to run
  int output_count, check_count;
  int *outputs; // numbers of the live values
  int *aliases; // per buffer the output that may take its memory, -1 for none
} tt_graph_program;

// The device's graph.
tt_graph *tt_graph_of(tt_device *device);
// The program of the graph as it stands, found by its key or made. The caller holds the graph's lock, and owns one reference.
tt_status tt_graph_program_find(const tt_graph *g, tt_graph_program **out_program);
void tt_graph_program_release(tt_graph_program *program); // NULL is fine

#endif // TT_RUN_GRAPH_INTERNAL_H_
