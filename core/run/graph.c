// graph.c - recording calls into a graph; see graph.h.
#include "run/graph_internal.h"

#include <string.h>

#include "base/memory.h"
#include "graph/storage.h"
#include "run/internal.h"

static tt_status out_of_memory(void) { return tt_error(TT_OUT_OF_MEMORY, "out of host memory while deferring a call"); }

// --- life ---------------------------------------------------------------------------------------------------------------------

static uint64_t next_number(void) {
  static _Atomic uint64_t last = 0;
  return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}

tt_status tt_graph_create(tt_device *device, tt_graph **out_graph) {
  void *block;
  TT_TRY(tt_allocate(1, sizeof(tt_graph), &block));
  tt_graph *g = block;
  g->device = device;
  g->number = next_number();
  *out_graph = g;
  return TT_SUCCESS;
}

static void release_outsides(tt_graph *g, int from) {
  for (int i = from; i < g->outside_count; ++i) {
    tt_buffer_release(g->outsides[i].buffer);
    tt_pending_release(g->outsides[i].pending);
  }
  g->outside_count = from;
}

void tt_graph_clear(tt_graph *g) {
  for (int i = 0; i < g->node_count; ++i) {
    tt_plan_release(g->nodes[i].plan);
    tt_free(g->nodes[i].site);
  }
  for (int i = 0; i < g->value_count; ++i) tt_pending_release(g->values[i]);
  release_outsides(g, 0);
  tt_graph_program_release(g->program);
  g->program = NULL;
  g->was_awaited = false;
  g->node_count = g->ref_count = g->value_count = g->number_count = 0;
  g->op_count = 0;
  g->number = next_number();
}

void tt_graph_free(tt_graph *g) {
  if (!g) return;
  tt_graph_clear(g);
  tt_free(g->nodes);
  tt_free(g->refs);
  tt_free(g->values);
  tt_free(g->outsides);
  tt_free(g->numbers);
  tt_free(g);
}

// --- a call's inputs -----------------------------------------------------------------------------------------------------------

#define RESERVE(g, array, counter, more)                                                                               \
  tt_reserve((void **)&(g)->array, (g)->counter##_count, more, &(g)->counter##_capacity, sizeof *(g)->array)

static bool reserve_for(tt_graph *g, const tt_plan *plan) {
  return RESERVE(g, nodes, node, 1) && RESERVE(g, refs, ref, plan->input_count) &&
         RESERVE(g, values, value, plan->output_count) && RESERVE(g, outsides, outside, plan->input_count) &&
         RESERVE(g, numbers, number, plan->input_count);
}

// Both take over the reference. A value that the graph reads already has its place: its last reader knows.
static tt_ref use_outside(tt_graph *g, int index) {
  ++g->outsides[index].uses;
  return tt_ref_make(TT_REF_OUTSIDE, index);
}

// The value may have been pending when the graph read it before.
static bool holds(const tt_outside *o, const tt_buffer *buffer, const tt_layout *layout) {
  const tt_buffer *held = o->pending ? atomic_load_explicit(&o->pending->buffer, memory_order_relaxed) : o->buffer;
  return held == buffer && o->layout == layout;
}

static tt_ref add_buffer(tt_graph *g, tt_buffer *buffer, const tt_layout *layout) {
  int index = buffer->graph_index;
  if (buffer->graph == g->number && index < g->outside_count && holds(&g->outsides[index], buffer, layout)) {
    tt_buffer_release(buffer);
    return use_outside(g, index);
  }
  buffer->graph = g->number;
  buffer->graph_index = g->outside_count;
  g->outsides[g->outside_count] = (tt_outside){buffer, NULL, layout, 0};
  return use_outside(g, g->outside_count++);
}

static tt_ref add_pending(tt_graph *g, tt_pending *pending) {
  int index = pending->reader_index;
  if (pending->reader == g->number && index < g->outside_count && g->outsides[index].pending == pending) {
    tt_pending_release(pending);
    return use_outside(g, index);
  }
  pending->reader = g->number;
  pending->reader_index = g->outside_count;
  g->outsides[g->outside_count] = (tt_outside){NULL, pending, pending->layout, 0};
  return use_outside(g, g->outside_count++);
}

static tt_status bind_storage(tt_graph *g, const tt_plan *plan, const tt_plan_input *in, const tt_call *call,
                              tt_ref *out_ref) {
  if (in->constant) {
    *out_ref = add_buffer(g, tt_buffer_retain(in->constant), in->layout);
    return TT_SUCCESS;
  }
  tt_buffer *buffer = NULL;
  tt_pending *pending = NULL;
  const tt_layout *layout;
  TT_TRY(tt_storage_peek(call->tensors[in->slot].storage, &buffer, &pending, &layout));
  tt_status status = TT_SUCCESS;
  if (layout != in->layout || (!buffer && !pending))
    status = tt_error(TT_INVALID_ARGUMENT, "%s: another thread changed an operand during the call", plan->op_name);
  else if (pending && atomic_load_explicit(&pending->lost, memory_order_acquire))
    status = tt_pending_resolve(pending); // says so
  if (status) {
    tt_buffer_release(buffer);
    tt_pending_release(pending);
    return status;
  }
  if (pending && pending->graph == g->number) {
    *out_ref = tt_ref_make(TT_REF_VALUE, pending->number);
    tt_pending_release(pending);
  } else {
    *out_ref = pending ? add_pending(g, pending) : add_buffer(g, buffer, layout);
  }
  return TT_SUCCESS;
}

static tt_status bind_inputs(tt_graph *g, const tt_plan *plan, const tt_call *call, const tt_key *key) {
  tt_ref *refs = g->refs + g->ref_count;
  for (int i = 0; i < plan->input_count; ++i) {
    const tt_plan_input *in = &plan->inputs[i];
    if (in->kind == TT_INPUT_STORAGE) {
      TT_TRY(bind_storage(g, plan, in, call, &refs[i]));
      continue;
    }
    TT_TRY(tt_launch_number(plan, in, call, key, &g->numbers[g->number_count]));
    refs[i] = tt_ref_make(TT_REF_NUMBER, g->number_count++);
  }
  return TT_SUCCESS;
}

// --- its results ------------------------------------------------------------------------------------------------------------------

// The values exist before the first storage gets one, so a failure leaves storages as they were.
static tt_status make_values(tt_graph *g, const tt_plan *plan, tt_results *results) {
  int made = 0;
  tt_status status = TT_SUCCESS;
  for (; made < plan->output_count; ++made) {
    const tt_plan_output *out = &plan->outputs[made];
    int number = g->value_count + made;
    tt_pending *value = tt_pending_create(g->device, out->layout, plan->op_name, g->number, number);
    if (!value) break;
    g->values[number] = value;
    if (out->slot < 0)
      status = tt_storage_create_pending(tt_pending_retain(value), &results->items[out->result].storage);
    if (status) {
      tt_pending_release(value);
      break;
    }
  }
  if (made == plan->output_count) return TT_SUCCESS;
  for (int i = 0; i < made; ++i) tt_pending_release(g->values[g->value_count + i]);
  for (int i = 0; i < results->count; ++i) {
    tt_storage_release(results->items[i].storage);
    results->items[i].storage = NULL;
  }
  return status ? status : out_of_memory();
}

static tt_status write_storages(tt_graph *g, const tt_plan *plan, const tt_call *call) {
  tt_status status = TT_SUCCESS;
  for (int i = 0; i < plan->output_count; ++i) {
    const tt_plan_output *out = &plan->outputs[i];
    if (out->slot < 0) continue;
    tt_pending *value = tt_pending_retain(g->values[g->value_count + i]);
    status = tt_status_join(status, tt_storage_write_pending(call->tensors[out->slot].storage, value));
  }
  return status;
}

tt_status tt_graph_add(tt_graph *g, tt_plan *plan, const tt_call *call, const tt_key *key, tt_results *results) {
  if (!reserve_for(g, plan)) return out_of_memory();
  int outsides = g->outside_count, numbers = g->number_count;
  tt_status status = bind_inputs(g, plan, call, key);
  if (!status) status = make_values(g, plan, results);
  if (status) {
    release_outsides(g, outsides);
    g->number_count = numbers;
    return status;
  }
  status = write_storages(g, plan, call);
  g->nodes[g->node_count++] = (tt_node){tt_plan_retain(plan), g->ref_count, g->value_count, NULL};
  g->ref_count += plan->input_count;
  g->value_count += plan->output_count;
  g->op_count += plan->program->fragment.op_count;
  return status;
}
