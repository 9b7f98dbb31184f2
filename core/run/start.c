// start.c - starting a closed graph: all its calls as one program, or one by one.
#include <string.h>

#include "base/bits.h"
#include "base/memory.h"
#include "graph/storage.h"
#include "run/graph_internal.h"
#include "run/internal.h"
#include "run/trace.h"

static tt_status out_of_memory(void) {
  return tt_error(TT_OUT_OF_MEMORY, "out of host memory while running deferred calls");
}

// --- one execution -------------------------------------------------------------------------------------------------------------

// Its arguments and results, on the heap. Every argument has a reference.
typedef struct execution {
  tt_buffer **inputs;
  int input_count;
  uint64_t *keep;
  void **outputs;
} execution;

static tt_status prepare(execution *e, int inputs, int outputs) {
  *e = (execution){0};
  e->inputs = tt_calloc((size_t)inputs + 1, sizeof *e->inputs);
  e->keep = tt_calloc((size_t)inputs / 64 + 1, sizeof *e->keep);
  e->outputs = tt_calloc((size_t)outputs + 1, sizeof *e->outputs);
  return e->inputs && e->keep && e->outputs ? TT_SUCCESS : out_of_memory();
}

static void finish(execution *e) {
  for (int i = 0; i < e->input_count; ++i) tt_buffer_release(e->inputs[i]);
  tt_free(e->inputs);
  tt_free(e->keep);
  tt_free(e->outputs);
}

// Takes over the reference.
static void add_input(execution *e, tt_buffer *buffer, bool may_go) {
  if (!may_go || !tt_buffer_is_unique(buffer)) tt_set_bit(e->keep, e->input_count);
  e->inputs[e->input_count++] = buffer;
}

static tt_status add_number(execution *e, const tt_graph *g, int number) {
  tt_buffer *buffer;
  TT_TRY(tt_run_number_buffer(g->device, &g->numbers[number], &buffer));
  add_input(e, buffer, false);
  return TT_SUCCESS;
}

static tt_status start(execution *e, tt_graph *g, tt_program *program, const char *op_name) {
  tt_executable *executable;
  TT_TRY(tt_program_executable(program, &executable));
  tt_event done = {0};
  int64_t began = tt_trace_begin(TT_TRACE_execute);
  tt_status status =
      tt_executable_execute(executable, g->device, e->inputs, e->input_count, e->keep, e->outputs, &done);
  if (status) return tt_storage_explain_out_of_memory(g->device, status);
  tt_counter_add(TT_COUNTER_executions, 1);
  tt_trace_execution(&done, began, g->device, program->note.name);
  tt_queue_add(g->device, done, op_name);
  for (int i = 0; i < e->input_count; ++i) { // the results have their memory now
    if (tt_bit(e->keep, i)) continue;
    tt_buffer_release(e->inputs[i]);
    e->inputs[i] = NULL;
  }
  return TT_SUCCESS;
}

// Gives the value its buffer.
static tt_status place_value(tt_graph *g, tt_pending *value, void *pjrt) {
  tt_buffer *buffer;
  TT_TRY(tt_buffer_wrap(g->device, pjrt, value->layout->byte_size, value->op_name, &buffer));
  buffer->graph = value->reader; // the graph that reads it already finds it again
  buffer->graph_index = value->reader_index;
  atomic_store_explicit(&value->buffer, buffer, memory_order_release);
  return TT_SUCCESS;
}

static tt_status place_check(tt_graph *g, const tt_node *node, int number, void *pjrt) {
  const char *op_name = node->plan->op_name;
  const tt_plan_check *check = &node->plan->checks[number];
  tt_buffer *flag;
  TT_TRY(tt_buffer_wrap(g->device, pjrt, 1, op_name, &flag));
  char *site = node->site ? tt_strdup(node->site) : NULL;
  tt_queue_add_check(g->device, (tt_check){flag, op_name, check->code, check->message, site}, false);
  return TT_SUCCESS;
}

// --- values from outside -------------------------------------------------------------------------------------------------------

// What other graphs were to give has a buffer by now, or is lost. A value that nobody else holds gives its buffer up, so that
// the program may reuse the memory.
static bool settle_outsides(tt_graph *g) {
  bool all = true;
  for (int i = 0; i < g->outside_count; ++i) {
    tt_outside *o = &g->outsides[i];
    if (o->pending) {
      o->buffer = tt_pending_take(o->pending);
      o->pending = NULL;
    }
    all &= o->buffer != NULL;
  }
  return all;
}

// --- all at once ---------------------------------------------------------------------------------------------------------------

static tt_status check_room(tt_graph *g, const tt_graph_program *p) {
  int64_t bytes = 0;
  for (int i = 0; i < p->output_count; ++i) bytes += g->values[p->outputs[i]]->layout->byte_size;
  for (int i = 0; i < g->outside_count; ++i)
    if (p->aliases[i] >= 0) bytes -= g->outsides[i].layout->byte_size;
  return bytes > 0 ? tt_storage_check_limit(g->device, bytes) : TT_SUCCESS;
}

// An outside value that may go is handed to the execution; it comes back if that does not start.
static tt_status collect(tt_graph *g, const tt_graph_program *p, execution *e) {
  for (int i = 0; i < g->outside_count; ++i) {
    tt_outside *o = &g->outsides[i];
    if (p->aliases[i] < 0) tt_buffer_retain(o->buffer);
    add_input(e, o->buffer, p->aliases[i] >= 0);
    if (p->aliases[i] >= 0) o->buffer = NULL;
  }
  for (int i = 0; i < g->number_count; ++i) TT_TRY(add_number(e, g, i));
  return TT_SUCCESS;
}

static void give_back(tt_graph *g, execution *e) {
  for (int i = 0; i < g->outside_count && i < e->input_count; ++i)
    if (!g->outsides[i].buffer) g->outsides[i].buffer = tt_buffer_retain(e->inputs[i]);
}

static tt_status place_outputs(tt_graph *g, const tt_graph_program *p, const execution *e) {
  tt_status status = TT_SUCCESS;
  for (int i = 0; i < p->output_count; ++i)
    status = tt_status_join(status, place_value(g, g->values[p->outputs[i]], e->outputs[i]));
  int at = p->output_count;
  for (int n = 0; n < g->node_count; ++n)
    for (int k = 0; k < g->nodes[n].plan->check_count; ++k)
      status = tt_status_join(status, place_check(g, &g->nodes[n], k, e->outputs[at++]));
  return status;
}

static tt_status start_fused(tt_graph *g) {
  const tt_graph_program *p = g->program;
  if (!p->program) return TT_SUCCESS;
  execution e;
  tt_status status = prepare(&e, g->outside_count + g->number_count, p->output_count + p->check_count);
  if (!status) status = check_room(g, p);
  if (!status) {
    status = collect(g, p, &e);
    if (!status) status = start(&e, g, p->program, g->nodes[g->node_count - 1].plan->op_name);
    if (status) give_back(g, &e);
  }
  if (!status) status = place_outputs(g, p, &e);
  finish(&e);
  return status;
}

// --- one by one ------------------------------------------------------------------------------------------------------------------

static tt_buffer *buffer_of(const tt_graph *g, tt_ref ref) {
  int i = tt_ref_index(ref);
  return tt_ref_kind_of(ref) == TT_REF_OUTSIDE ? g->outsides[i].buffer
                                               : atomic_load_explicit(&g->values[i]->buffer, memory_order_relaxed);
}

static bool needs_lost(const tt_graph *g, const tt_node *node) {
  for (int i = 0; i < node->plan->input_count; ++i) {
    tt_ref ref = g->refs[node->first_ref + i];
    if (tt_ref_kind_of(ref) != TT_REF_NUMBER && !buffer_of(g, ref)) return true;
  }
  return false;
}

// A graph of one call is done with its outside values.
static tt_status collect_node(tt_graph *g, const tt_node *node, execution *e) {
  for (int i = 0; i < node->plan->input_count; ++i) {
    tt_ref ref = g->refs[node->first_ref + i];
    if (tt_ref_kind_of(ref) == TT_REF_NUMBER) {
      TT_TRY(add_number(e, g, tt_ref_index(ref)));
      continue;
    }
    tt_buffer *buffer = buffer_of(g, ref);
    bool may_go = node->plan->inputs[i].overwritten && g->node_count == 1 && g->outsides[tt_ref_index(ref)].uses == 1;
    if (!may_go) tt_buffer_retain(buffer);
    add_input(e, buffer, may_go);
    if (may_go) g->outsides[tt_ref_index(ref)].buffer = NULL;
  }
  return TT_SUCCESS;
}

static tt_status start_node(tt_graph *g, const tt_node *node) {
  const tt_plan *plan = node->plan;
  int64_t bytes = 0;
  for (int i = 0; i < plan->output_count; ++i)
    if (plan->outputs[i].slot < 0) bytes += plan->outputs[i].layout->byte_size;
  execution e;
  tt_status status = prepare(&e, plan->input_count, plan->output_count + plan->check_count);
  if (!status && bytes) status = tt_storage_check_limit(g->device, bytes);
  if (!status) status = collect_node(g, node, &e);
  if (!status) status = start(&e, g, plan->program, plan->op_name);
  for (int i = 0; !status && i < plan->output_count; ++i)
    status = place_value(g, g->values[node->first_value + i], e.outputs[i]);
  for (int i = 0; !status && i < plan->check_count; ++i)
    status = place_check(g, node, i, e.outputs[plan->output_count + i]);
  finish(&e);
  return status ? tt_status_context(status, "%s", plan->op_name) : TT_SUCCESS;
}

static void lose(tt_graph *g, const tt_node *node) {
  for (int i = 0; i < node->plan->output_count; ++i)
    atomic_store_explicit(&g->values[node->first_value + i]->lost, true, memory_order_release);
}

// What depends on a failed call is lost; the rest runs. The first failure.
static tt_status start_one_by_one(tt_graph *g) {
  tt_status status = TT_SUCCESS;
  for (int i = 0; i < g->node_count; ++i) {
    tt_node *node = &g->nodes[i];
    bool lost = needs_lost(g, node);
    tt_status own = lost ? TT_SUCCESS : start_node(g, node);
    if (lost || own) lose(g, node);
    status = tt_status_join(status, own);
  }
  return status;
}

tt_status tt_graph_start(tt_graph *g) {
  bool all = settle_outsides(g);
  if (g->program && all) {
    tt_status status = start_fused(g);
    if (!status) return TT_SUCCESS;
    tt_status_free(status); // comes again from the call at fault
  }
  return start_one_by_one(g);
}

tt_program *tt_graph_awaits(const tt_graph *g) {
  if (g->program) {
    tt_program *program = g->program->program;
    return program && !tt_program_is_compiled(program) ? program : NULL;
  }
  for (int i = 0; i < g->node_count; ++i) {
    tt_program *program = g->nodes[i].plan->program;
    if (!tt_program_is_compiled(program)) return program;
  }
  return NULL;
}
