// graph.c - recording calls into a device's graph, and running it; see graph.h.
#include "run/graph.h"

#include <string.h>

#include "base/memory.h"
#include "graph/storage.h"
#include "run/graph_internal.h"
#include "run/internal.h"
#include "run/site.h"

enum {
  // Compile time grows faster than the number of ops beyond about this many (a chain of 20,000 takes minutes).
  MAX_OPS = 4000,
  MAX_NODES = 1000,
  FIRST_SEARCH = 128, // calls in a graph
};

static tt_graph graphs[TT_MAX_DEVICES];
static pthread_once_t graphs_once = PTHREAD_ONCE_INIT;

static uint64_t next_number(void) {
  static _Atomic uint64_t last = 0;
  return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}

static void graphs_initialize(void) {
  for (int i = 0; i < TT_MAX_DEVICES; ++i) pthread_mutex_init(&graphs[i].lock, NULL);
  tt_pending_set_runner(tt_graph_run);
}

tt_graph *tt_graph_of(tt_device *device) {
  pthread_once(&graphs_once, graphs_initialize);
  return &graphs[device->index];
}

static tt_status out_of_memory(void) { return tt_error(TT_OUT_OF_MEMORY, "out of host memory while deferring a call"); }

// --- appending ---------------------------------------------------------------------------------------------------------------

static bool reserve(void **array, int count, int more, int *capacity, size_t size) {
  if (count + more <= *capacity) return true;
  int wanted = *capacity ? 2 * *capacity : 256;
  while (wanted < count + more) wanted *= 2;
  void *bigger = tt_realloc_array(*array, (size_t)wanted, size);
  if (!bigger) return false;
  *array = bigger;
  *capacity = wanted;
  return true;
}

#define RESERVE(g, array, counter, more)                                                                               \
  reserve((void **)&(g)->array, (g)->counter##_count, more, &(g)->counter##_capacity, sizeof *(g)->array)

static bool reserve_for(tt_graph *g, const tt_plan *plan) {
  return RESERVE(g, nodes, node, 1) && RESERVE(g, refs, ref, plan->input_count) &&
         RESERVE(g, values, value, plan->output_count) && RESERVE(g, buffers, buffer, plan->input_count) &&
         RESERVE(g, numbers, number, plan->input_count);
}

// Takes over the reference.
static tt_ref add_buffer(tt_graph *g, tt_buffer *buffer, const tt_layout *layout) {
  if (buffer->graph == g->number && g->buffers[buffer->graph_index].layout == layout) {
    tt_buffer_release(buffer);
    return tt_ref_make(TT_REF_BUFFER, buffer->graph_index);
  }
  buffer->graph = g->number;
  buffer->graph_index = g->buffer_count;
  g->buffers[g->buffer_count] = (tt_graph_buffer){buffer, layout};
  return tt_ref_make(TT_REF_BUFFER, g->buffer_count++);
}

static tt_status changed_operand(const tt_plan *plan) {
  return tt_error(TT_INVALID_ARGUMENT, "%s: another thread changed an operand during the call", plan->op_name);
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
  tt_status status = layout == in->layout ? TT_SUCCESS : changed_operand(plan);
  if (!status && buffer) {
    *out_ref = add_buffer(g, buffer, layout);
    return TT_SUCCESS;
  }
  if (!status && pending && pending->number < g->value_count && g->values[pending->number] == pending)
    *out_ref = tt_ref_make(TT_REF_VALUE, pending->number);
  else if (!status)
    status = pending ? tt_pending_resolve(pending) : changed_operand(plan); // lost: says so
  tt_buffer_release(buffer);
  tt_pending_release(pending);
  return status;
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

// The values exist before the first storage gets one, so a failure leaves storages as they were.
static tt_status make_values(tt_graph *g, const tt_plan *plan, tt_results *results) {
  int made = 0;
  tt_status status = TT_SUCCESS;
  for (; made < plan->output_count; ++made) {
    const tt_plan_output *out = &plan->outputs[made];
    int number = g->value_count + made;
    tt_pending *value = tt_pending_create(g->device, out->layout, plan->op_name, number);
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

static uint64_t oldest_storage(const tt_plan *plan, const tt_call *call) {
  uint64_t oldest = UINT64_MAX;
  for (int i = 0; i < plan->input_count; ++i) {
    const tt_plan_input *in = &plan->inputs[i];
    if (in->kind != TT_INPUT_STORAGE || in->constant) continue;
    uint64_t number = call->tensors[in->slot].storage->number;
    if (number < oldest) oldest = number;
  }
  return oldest == UINT64_MAX ? 0 : oldest;
}

// Takes over `site` when it succeeds.
static tt_status append(tt_graph *g, tt_plan *plan, const tt_call *call, const tt_key *key, char *site,
                        tt_results *results) {
  if (!reserve_for(g, plan)) return out_of_memory();
  const tt_noted_call noted = {plan->serial, tt_storage_live_bytes(g->device), oldest_storage(plan, call),
                               tt_storage_newest()};
  TT_TRY(bind_inputs(g, plan, call, key));
  TT_TRY(make_values(g, plan, results));
  tt_status status = write_storages(g, plan, call);
  g->nodes[g->node_count++] = (tt_node){tt_plan_retain(plan), g->ref_count, g->value_count, status ? NULL : site};
  g->ref_count += plan->input_count;
  g->value_count += plan->output_count;
  g->op_count += plan->program->fragment.op_count;
  g->is_due = tt_repeat_note(&g->repeat, &noted, g->node_count);
  return status;
}

// --- running -------------------------------------------------------------------------------------------------------------------

static void empty(tt_graph *g) {
  for (int i = 0; i < g->node_count; ++i) {
    tt_plan_release(g->nodes[i].plan);
    tt_free(g->nodes[i].site);
  }
  for (int i = 0; i < g->value_count; ++i) tt_pending_release(g->values[i]);
  for (int i = 0; i < g->buffer_count; ++i) tt_buffer_release(g->buffers[i].buffer);
  g->node_count = g->ref_count = g->value_count = g->buffer_count = g->number_count = 0;
  g->op_count = 0;
  g->is_due = false;
  g->next_search = FIRST_SEARCH;
  g->number = next_number();
}

static void set_bit(uint64_t *bits, int i) { bits[i >> 6] |= UINT64_C(1) << (i & 63); }

// The arguments and results of one execution, on the heap.
typedef struct execution {
  tt_buffer **inputs;
  int input_count, owned_from; // inputs from here on are released afterwards
  uint64_t *keep;
  void **outputs;
} execution;

static tt_status execution_prepare(execution *e, int inputs, int outputs) {
  *e = (execution){0};
  e->inputs = tt_calloc((size_t)inputs + 1, sizeof *e->inputs);
  e->keep = tt_calloc((size_t)inputs / 64 + 1, sizeof *e->keep);
  e->outputs = tt_calloc((size_t)outputs + 1, sizeof *e->outputs);
  return e->inputs && e->keep && e->outputs ? TT_SUCCESS : out_of_memory();
}

static void execution_finish(execution *e) {
  for (int i = e->owned_from; i < e->input_count; ++i) tt_buffer_release(e->inputs[i]);
  tt_free(e->inputs);
  tt_free(e->keep);
  tt_free(e->outputs);
}

static tt_status execution_start(execution *e, tt_graph *g, tt_program *program, const char *op_name) {
  tt_executable *executable;
  TT_TRY(tt_program_executable(program, &executable));
  tt_event done = {0};
  tt_status status =
      tt_executable_execute(executable, g->device, e->inputs, e->input_count, e->keep, e->outputs, &done);
  if (status) return tt_storage_explain_out_of_memory(g->device, status);
  tt_counter_add(TT_COUNTER_executions, 1);
  tt_queue_add(g->device, done, op_name);
  return TT_SUCCESS;
}

// Gives the value its buffer.
static tt_status place_value(tt_graph *g, tt_pending *value, void *pjrt) {
  tt_buffer *buffer;
  TT_TRY(tt_buffer_wrap(g->device, pjrt, value->layout->byte_size, value->op_name, &buffer));
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

// --- all at once ---

static tt_status collect_arguments(tt_graph *g, const tt_graph_program *p, execution *e) {
  for (int i = 0; i < g->buffer_count; ++i) {
    tt_buffer *buffer = g->buffers[i].buffer;
    e->inputs[e->input_count++] = buffer;
    if (p->aliases[i] < 0 || !tt_buffer_is_unique(buffer)) set_bit(e->keep, i);
  }
  e->owned_from = e->input_count;
  for (int i = 0; i < g->number_count; ++i) {
    set_bit(e->keep, e->input_count);
    TT_TRY(tt_run_number_buffer(g->device, &g->numbers[i], &e->inputs[e->input_count]));
    ++e->input_count;
  }
  return TT_SUCCESS;
}

static tt_status check_room(tt_graph *g, const tt_graph_program *p) {
  int64_t bytes = 0;
  for (int i = 0; i < p->output_count; ++i) bytes += g->values[p->outputs[i]]->layout->byte_size;
  for (int i = 0; i < g->buffer_count; ++i)
    if (p->aliases[i] >= 0) bytes -= g->buffers[i].layout->byte_size;
  return bytes > 0 ? tt_storage_check_limit(g->device, bytes) : TT_SUCCESS;
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

// Buffers whose memory the results have now.
static void release_reused(tt_graph *g, const execution *e) {
  for (int i = 0; i < g->buffer_count; ++i) {
    if (e->keep[i >> 6] >> (i & 63) & 1) continue;
    tt_buffer_release(g->buffers[i].buffer);
    g->buffers[i].buffer = NULL;
  }
}

static tt_status run_fused(tt_graph *g) {
  tt_graph_program *p;
  TT_TRY(tt_graph_program_find(g, &p));
  tt_status status = TT_SUCCESS;
  if (p->program) {
    execution e;
    status = execution_prepare(&e, g->buffer_count + g->number_count, p->output_count + p->check_count);
    if (!status) status = check_room(g, p);
    if (!status) status = collect_arguments(g, p, &e);
    if (!status) status = execution_start(&e, g, p->program, g->nodes[g->node_count - 1].plan->op_name);
    if (!status) release_reused(g, &e);
    if (!status) status = place_outputs(g, p, &e);
    execution_finish(&e);
  }
  tt_graph_program_release(p);
  return status;
}

// --- one by one ---

static tt_buffer *buffer_of(const tt_graph *g, tt_ref ref) {
  int i = tt_ref_index(ref);
  return tt_ref_kind_of(ref) == TT_REF_BUFFER ? g->buffers[i].buffer
                                              : atomic_load_explicit(&g->values[i]->buffer, memory_order_relaxed);
}

static bool needs_lost(const tt_graph *g, const tt_node *node) {
  for (int i = 0; i < node->plan->input_count; ++i) {
    tt_ref ref = g->refs[node->first_ref + i];
    if (tt_ref_kind_of(ref) != TT_REF_NUMBER && !buffer_of(g, ref)) return true;
  }
  return false;
}

static tt_status node_arguments(tt_graph *g, const tt_node *node, execution *e) {
  for (int i = 0; i < node->plan->input_count; ++i) {
    tt_ref ref = g->refs[node->first_ref + i];
    set_bit(e->keep, i);
    if (tt_ref_kind_of(ref) == TT_REF_NUMBER)
      TT_TRY(tt_run_number_buffer(g->device, &g->numbers[tt_ref_index(ref)], &e->inputs[i]));
    else
      e->inputs[i] = tt_buffer_retain(buffer_of(g, ref));
    e->input_count = i + 1;
  }
  return TT_SUCCESS;
}

static tt_status run_node(tt_graph *g, const tt_node *node) {
  const tt_plan *plan = node->plan;
  int64_t bytes = 0;
  for (int i = 0; i < plan->output_count; ++i) bytes += plan->outputs[i].layout->byte_size;
  execution e;
  tt_status status = execution_prepare(&e, plan->input_count, plan->output_count + plan->check_count);
  if (!status) status = tt_storage_check_limit(g->device, bytes);
  if (!status) status = node_arguments(g, node, &e);
  if (!status) status = execution_start(&e, g, plan->program, plan->op_name);
  for (int i = 0; !status && i < plan->output_count; ++i)
    status = place_value(g, g->values[node->first_value + i], e.outputs[i]);
  for (int i = 0; !status && i < plan->check_count; ++i)
    status = place_check(g, node, i, e.outputs[plan->output_count + i]);
  execution_finish(&e);
  return status ? tt_status_context(status, "%s", plan->op_name) : TT_SUCCESS;
}

static void lose(tt_graph *g, const tt_node *node) {
  for (int i = 0; i < node->plan->output_count; ++i)
    atomic_store_explicit(&g->values[node->first_value + i]->lost, true, memory_order_release);
}

// What depends on a failed call is lost; the rest runs. The first failure.
static tt_status run_one_by_one(tt_graph *g) {
  tt_status status = TT_SUCCESS;
  for (int i = 0; i < g->node_count; ++i) {
    tt_node *node = &g->nodes[i];
    bool lost = needs_lost(g, node);
    tt_status own = lost ? TT_SUCCESS : run_node(g, node);
    if (lost || own) lose(g, node);
    status = tt_status_join(status, own);
  }
  return status;
}

static tt_status run(tt_graph *g) {
  if (g->node_count == 0) return TT_SUCCESS;
  tt_status status = run_fused(g);
  if (status) {
    tt_status_free(status);
    status = run_one_by_one(g);
  }
  empty(g);
  return status;
}

// A graph in which no step has ended yet is searched whenever it has doubled.
static void look_for_steps(tt_graph *g) {
  g->next_search = 2 * g->node_count;
  tt_repeat_search(&g->repeat, g->node_count / 2);
}

// Runs the graph where a step ends or, when it has become long, where it is. Before the next call rather than behind the last:
// what dies in between is then no result.
static tt_status make_room(tt_graph *g) {
  bool is_long = g->op_count >= MAX_OPS || g->node_count >= MAX_NODES;
  if (!g->is_due && g->node_count >= g->next_search) look_for_steps(g);
  return g->is_due || is_long ? run(g) : TT_SUCCESS;
}

// --- for other files ---------------------------------------------------------------------------------------------------------

tt_status tt_graph_append(tt_plan *plan, const tt_call *call, const tt_key *key, tt_results *out_results) {
  TT_TRY(tt_launch_check(plan, call));
  tt_status status = tt_launch_results(plan, call->device_index, out_results);
  if (status || !plan->program) return status;
  tt_device *device = tt_client_device(tt_runtime_client(), call->device_index);
  tt_graph *g = tt_graph_of(device);
  char *site = plan->check_count > 0 ? tt_site() : NULL;
  pthread_mutex_lock(&g->lock);
  if (!g->device) {
    g->device = device;
    empty(g);
  }
  status = make_room(g);
  if (!status) status = append(g, plan, call, key, site, out_results);
  pthread_mutex_unlock(&g->lock);
  if (status) {
    tt_free(site);
    for (int i = 0; i < out_results->count; ++i) tt_storage_release(out_results->items[i].storage);
    tt_results_free(out_results);
  }
  return status;
}

tt_status tt_graph_run(tt_device *device) {
  tt_graph *g = tt_graph_of(device);
  pthread_mutex_lock(&g->lock);
  if (g->node_count >= FIRST_SEARCH) look_for_steps(g);
  tt_repeat_disturb(&g->repeat);
  tt_status status = run(g);
  pthread_mutex_unlock(&g->lock);
  return status;
}

bool tt_graph_is_empty(tt_device *device) {
  tt_graph *g = tt_graph_of(device);
  pthread_mutex_lock(&g->lock);
  bool is_empty = g->node_count == 0;
  tt_queue_note_failure(device, run(g));
  pthread_mutex_unlock(&g->lock);
  return is_empty;
}

tt_status tt_graph_run_all(void) {
  tt_status status = TT_SUCCESS;
  if (!tt_runtime_started()) return status;
  int count = tt_client_device_count(tt_runtime_client());
  for (int i = 0; i < count; ++i)
    status = tt_status_join(status, tt_graph_run(tt_client_device(tt_runtime_client(), i)));
  return status;
}
