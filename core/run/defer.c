// defer.c - when deferred calls run: a device's open graph and its line of closed ones; see graph.h.
#include "base/memory.h"
#include "graph/storage.h"
#include "run/graph_internal.h"
#include "run/internal.h"
#include "run/site.h"
#include "run/trace.h"

enum {
  // Compile time grows faster than the number of ops beyond about this many (a chain of 20,000 takes minutes).
  MAX_OPS = 4000,
  MAX_NODES = 1000,
  FIRST_SEARCH = 128, // calls in a graph
};

typedef struct deferral {
  tt_device *device;
  tt_graph *open;               // NULL before the first deferred call
  tt_graph *first, **last_next; // the line of closed graphs: the oldest, and where the next one goes
  pthread_mutex_t lock;
  tt_repeat repeat;        // of the calls in open graphs
  int next_search;         // number of nodes of the open graph at which to look for a repetition
  bool is_due;             // a step ends behind the newest node: close before the next
  _Atomic bool has_closed; // written under the lock
} deferral;

static deferral deferrals[TT_MAX_DEVICES];
static pthread_once_t deferrals_once = PTHREAD_ONCE_INIT;

static void initialize(void) {
  for (int i = 0; i < TT_MAX_DEVICES; ++i) {
    pthread_mutex_init(&deferrals[i].lock, NULL);
    deferrals[i].last_next = &deferrals[i].first;
  }
  tt_pending_set_runner(tt_run_deferred, tt_queue_take_failure);
}

// Locked.
static deferral *deferral_of(tt_device *device) {
  pthread_once(&deferrals_once, initialize);
  deferral *d = &deferrals[device->index];
  tt_trace_hold();
  pthread_mutex_lock(&d->lock);
  d->device = device;
  return d;
}

// Passes `status` on, or the failure of what had to wait until the lock was free.
static tt_status unlock(deferral *d, tt_status status) {
  pthread_mutex_unlock(&d->lock);
  return tt_trace_let_go(status);
}

static int open_nodes(const deferral *d) { return d->open ? d->open->node_count : 0; }

// --- the line of closed graphs -----------------------------------------------------------------------------------------------

static void line_up(deferral *d, tt_graph *g) {
  *d->last_next = g;
  d->last_next = &g->next;
  atomic_store_explicit(&d->has_closed, true, memory_order_relaxed);
}

// Compiles what the first graph needs, without the lock: the compile cache may have to wait for Python. TT_FORBIDDEN if that is
// forbidden now: the graph may start later.
static tt_status await_first(deferral *d, tt_program *program) {
  d->first->was_awaited = true;
  tt_program_retain(program);
  pthread_mutex_unlock(&d->lock);
  tt_executable *executable;
  tt_status status = tt_program_executable(program, &executable);
  pthread_mutex_lock(&d->lock);
  bool is_forbidden = tt_status_code(status) == TT_FORBIDDEN;
  if (is_forbidden && d->first && tt_graph_awaits(d->first) == program) d->first->was_awaited = false;
  tt_program_release(program);
  if (is_forbidden) return status;
  tt_status_free(status); // comes again when the graph starts
  return TT_SUCCESS;
}

// Starts graphs from the front: all, or as long as they need not wait for a compiler. The first failure.
static tt_status start_closed(deferral *d, bool all) {
  tt_status status = TT_SUCCESS;
  while (d->first) {
    tt_program *awaited = d->first->was_awaited ? NULL : tt_graph_awaits(d->first);
    if (awaited) {
      if (!all) break;
      tt_status refused = await_first(d, awaited);
      if (!refused) continue; // another thread may have started it meanwhile
      status = tt_status_join(status, refused);
      break;
    }
    tt_graph *g = d->first;
    status = tt_status_join(status, tt_graph_start(g));
    d->first = g->next;
    if (!d->first) d->last_next = &d->first;
    g->next = NULL;
    tt_graph_clear(g);
    if (d->open)
      tt_graph_free(g);
    else
      d->open = g; // its arrays serve again
  }
  atomic_store_explicit(&d->has_closed, d->first != NULL, memory_order_relaxed);
  return status;
}

// Closes the open graph. Its calls are one by one if no program can be made of them.
static void close_open(deferral *d) {
  tt_graph *g = d->open;
  if (open_nodes(d) == 0) return;
  d->open = NULL;
  d->is_due = false;
  d->next_search = FIRST_SEARCH;
  tt_status status = tt_graph_program_find(g, &g->program);
  tt_status_free(status);
  if (!status && g->program->program) tt_program_compile_soon(g->program->program);
  line_up(d, g);
}

// --- deferring -----------------------------------------------------------------------------------------------------------------

static tt_status make_open(deferral *d) {
  if (d->open) return TT_SUCCESS;
  d->next_search = FIRST_SEARCH;
  return tt_graph_create(d->device, &d->open);
}

// A graph in which no step has ended yet is searched whenever it has doubled.
static void look_for_steps(deferral *d) {
  d->next_search = 2 * open_nodes(d);
  tt_repeat_search(&d->repeat, open_nodes(d) / 2);
}

// Closes the open graph where a step ends or, when it has become long, where it is. Before the next call rather than behind
// the last: what dies in between is then no result.
static void make_room(deferral *d) {
  bool is_long = open_nodes(d) >= MAX_NODES || (d->open && d->open->op_count >= MAX_OPS);
  if (!d->is_due && open_nodes(d) >= d->next_search) look_for_steps(d);
  if (d->is_due || is_long) close_open(d);
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

static tt_status defer_into_open(deferral *d, tt_plan *plan, const tt_call *call, const tt_key *key, char *site,
                                 tt_results *results) {
  make_room(d);
  TT_TRY(make_open(d));
  const tt_noted_call noted = {plan->serial, tt_storage_live_bytes(d->device), oldest_storage(plan, call),
                               tt_storage_newest()};
  TT_TRY(tt_graph_add(d->open, plan, call, key, results));
  d->open->nodes[open_nodes(d) - 1].site = site;
  d->is_due = tt_repeat_note(&d->repeat, &noted, open_nodes(d));
  return TT_SUCCESS;
}

static tt_status defer_alone(deferral *d, tt_plan *plan, const tt_call *call, const tt_key *key, char *site,
                             tt_results *results) {
  close_open(d); // of another mode: what was deferred first runs first
  tt_graph *g;
  TT_TRY(tt_graph_create(d->device, &g));
  tt_status status = tt_graph_add(g, plan, call, key, results);
  if (status) {
    tt_graph_free(g);
    return status;
  }
  g->nodes[0].site = site;
  tt_program_compile_soon(plan->program);
  line_up(d, g);
  return TT_SUCCESS;
}

tt_status tt_defer(tt_plan *plan, const tt_call *call, const tt_key *key, bool fuse, tt_results *out_results) {
  TT_TRY(tt_launch_check(plan, call));
  tt_status status = tt_launch_results(plan, call->device_index, out_results);
  if (status || !plan->program) return status;
  tt_device *device = tt_client_device(tt_runtime_client(), call->device_index);
  char *site = plan->check_count > 0 ? tt_site() : NULL; // before the lock, as it may wait for Python's
  deferral *d = deferral_of(device);
  status = fuse ? defer_into_open(d, plan, call, key, site, out_results)
                : defer_alone(d, plan, call, key, site, out_results);
  tt_status earlier = start_closed(d, false);
  if (status) tt_free(site);
  status = unlock(d, status);
  tt_queue_note_failure(device, earlier);
  if (status) tt_launch_drop_results(out_results);
  return status;
}

bool tt_must_defer(const tt_plan *plan, const tt_call *call) {
  if (!plan->program) return false;
  tt_device *device = tt_client_device(tt_runtime_client(), call->device_index);
  if (!atomic_load_explicit(&deferrals[device->index].has_closed, memory_order_relaxed)) return false;
  deferral *d = deferral_of(device);
  tt_status earlier = start_closed(d, false);
  tt_queue_note_failure(device, unlock(d, earlier));
  for (int i = 0; i < call->tensor_count; ++i)
    if (call->tensors[i].storage && tt_storage_is_pending(call->tensors[i].storage)) return true;
  return false;
}

// --- running --------------------------------------------------------------------------------------------------------------------

tt_status tt_run_deferred(tt_device *device) {
  deferral *d = deferral_of(device);
  if (open_nodes(d) >= FIRST_SEARCH) look_for_steps(d);
  tt_repeat_disturb(&d->repeat);
  close_open(d);
  return unlock(d, start_closed(d, true));
}

bool tt_nothing_deferred(tt_device *device) {
  deferral *d = deferral_of(device);
  close_open(d);
  tt_status earlier = start_closed(d, false);
  bool nothing = d->first == NULL;
  tt_queue_note_failure(device, unlock(d, earlier));
  return nothing;
}

tt_status tt_run_all_deferred(void) {
  tt_status status = TT_SUCCESS;
  if (!tt_runtime_started()) return status;
  int count = tt_client_device_count(tt_runtime_client());
  for (int i = 0; i < count; ++i)
    status = tt_status_join(status, tt_run_deferred(tt_client_device(tt_runtime_client(), i)));
  return status;
}

void tt_start_closed_graphs(void) {
  if (!tt_runtime_started()) return;
  int count = tt_client_device_count(tt_runtime_client());
  for (int i = 0; i < count; ++i) {
    tt_device *device = tt_client_device(tt_runtime_client(), i);
    deferral *d = deferral_of(device);
    tt_status failure = unlock(d, start_closed(d, true));
    tt_queue_note_failure(device, failure);
  }
}

tt_status tt_pending_graph(int index, tt_storage *storage, int format, char **out_text) {
  tt_device *device;
  TT_TRY(tt_device_find(index, &device));
  tt_string out = TT_STRING_INIT;
  deferral *d = deferral_of(device);
  tt_status status = make_open(d);
  if (!status) status = tt_graph_show(d->open, storage, (tt_graph_format)format, &out);
  status = unlock(d, status);
  *out_text = status ? NULL : tt_strdup(tt_string_text(&out));
  tt_string_free(&out);
  if (!status && !*out_text) status = tt_error(TT_OUT_OF_MEMORY, "out of host memory while showing a graph");
  return status;
}
