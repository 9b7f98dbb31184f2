// fuse.c - the program of a graph: found by the graph's key, or put together of the plans' fragments.
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "graph/storage.h"
#include "run/graph_internal.h"
#include "run/internal.h"
#include "run/reason.h"

enum {
  FAR_VALUES = 32,  // a value made so many values before its use was made long ago
  MOST_JOINED = 16, // a call of more operands is an update of many tensors
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards `programs`
static tt_map programs = TT_MAP_INIT;                    // key -> tt_graph_program, one reference each

static tt_status out_of_memory(void) { return tt_error(TT_OUT_OF_MEMORY, "out of host memory while fusing calls"); }

void tt_graph_program_release(tt_graph_program *p) {
  if (!p || atomic_fetch_sub_explicit(&p->references, 1, memory_order_acq_rel) != 1) return;
  tt_program_release(p->program);
  tt_free(p);
}

static tt_graph_program *retain(tt_graph_program *p) {
  atomic_fetch_add_explicit(&p->references, 1, memory_order_relaxed);
  return p;
}

// --- what decides on the program ---------------------------------------------------------------------------------------------

// The live values, and which buffer each may be written into.
typedef struct shape {
  int *outputs, output_count; // numbers of live values
  int *aliases;               // per buffer: an output's position or -1
  int *origins;               // per value: the buffer that it is a new version of or takes the place of, -1
  int check_count;
} shape;

static int output_origin(const tt_graph *g, const shape *s, const tt_node *node, int output) {
  const tt_plan *plan = node->plan;
  int slot = plan->outputs[output].slot;
  for (int i = 0; slot >= 0 && i < plan->input_count; ++i) {
    const tt_plan_input *in = &plan->inputs[i];
    if (!in->overwritten || in->slot != slot || in->kind != TT_INPUT_STORAGE) continue;
    tt_ref ref = g->refs[node->first_ref + i];
    return tt_ref_kind_of(ref) == TT_REF_OUTSIDE ? tt_ref_index(ref) : s->origins[tt_ref_index(ref)];
  }
  return -1;
}

// Does nobody but the graph hold the value, besides the graph that is to make it?
static bool dies(const tt_outside *o) {
  if (!o->pending) return tt_buffer_is_unique(o->buffer);
  const tt_buffer *buffer = atomic_load_explicit(&o->pending->buffer, memory_order_acquire);
  int32_t holders = atomic_load_explicit(&o->pending->references, memory_order_acquire);
  return buffer ? holders == 1 && tt_buffer_is_unique(buffer) : holders == 2;
}

// A value that dies with the graph leaves its memory to a live one of its layout that has none to take.
static void inherit_memory(const tt_graph *g, shape *s) {
  for (int i = 0; i < g->outside_count; ++i) {
    const tt_outside *o = &g->outsides[i];
    if (s->aliases[i] >= 0 || !dies(o)) continue;
    for (int k = 0; k < s->output_count && s->aliases[i] < 0; ++k) {
      int v = s->outputs[k];
      if (s->origins[v] >= 0 || g->values[v]->layout != o->layout) continue;
      s->origins[v] = i;
      s->aliases[i] = k;
    }
  }
}

static void find_shape(const tt_graph *g, shape *s) {
  for (int n = 0; n < g->node_count; ++n) {
    const tt_node *node = &g->nodes[n];
    s->check_count += node->plan->check_count;
    for (int i = 0; i < node->plan->output_count; ++i) s->origins[node->first_value + i] = output_origin(g, s, node, i);
  }
  for (int i = 0; i < g->outside_count; ++i) s->aliases[i] = -1;
  for (int v = 0; v < g->value_count; ++v) {
    if (!tt_pending_is_live(g->values[v])) continue;
    int buffer = s->origins[v];
    if (buffer >= 0 && s->aliases[buffer] < 0) s->aliases[buffer] = s->output_count;
    s->outputs[s->output_count++] = v;
  }
  inherit_memory(g, s);
}

// Numbers of words of the key: each node's plan and refs, the outputs, the aliases.
static uint32_t *make_key(const tt_graph *g, const shape *s, size_t *out_size) {
  size_t count = (size_t)g->node_count + (size_t)g->ref_count + (size_t)s->output_count + (size_t)g->outside_count + 2;
  uint32_t *words = tt_malloc(count * sizeof *words), *at = words;
  if (!words) return NULL;
  for (int n = 0; n < g->node_count; ++n) {
    const tt_node *node = &g->nodes[n];
    *at++ = node->plan->serial;
    memcpy(at, g->refs + node->first_ref, (size_t)node->plan->input_count * sizeof *at);
    at += node->plan->input_count;
  }
  *at++ = (uint32_t)s->output_count;
  memcpy(at, s->outputs, (size_t)s->output_count * sizeof *at);
  at += s->output_count;
  *at++ = (uint32_t)g->outside_count;
  memcpy(at, s->aliases, (size_t)g->outside_count * sizeof *at);
  *out_size = count * sizeof *words;
  return words;
}

// --- putting it together -----------------------------------------------------------------------------------------------------

typedef struct fusion {
  const tt_graph *g;
  const shape *s;
  tt_builder *b;
  tt_value **values, **outsides, **numbers, **results;
  int result_count;
  int64_t largest; // elements of the largest tensor
} fusion;

static tt_status reserve_values(fusion *f) {
  const tt_graph *g = f->g;
  tt_arena *arena = tt_builder_arena(f->b);
  f->values = tt_arena_allocate(arena, (size_t)g->value_count + 1, sizeof *f->values);
  f->outsides = tt_arena_allocate(arena, (size_t)g->outside_count + 1, sizeof *f->outsides);
  f->numbers = tt_arena_allocate(arena, (size_t)g->number_count + 1, sizeof *f->numbers);
  f->results = tt_arena_allocate(arena, (size_t)(f->s->output_count + f->s->check_count) + 1, sizeof *f->results);
  return f->values && f->outsides && f->numbers && f->results ? TT_SUCCESS : out_of_memory();
}

static void add_parameters(fusion *f) {
  const tt_graph *g = f->g;
  for (int i = 0; i < g->outside_count; ++i) {
    const tt_layout *layout = g->outsides[i].layout;
    f->outsides[i] = tt_builder_parameter(f->b, layout->dtype, layout->rank, layout->dims);
    if (layout->count > f->largest) f->largest = layout->count;
  }
  static const int64_t two = 2;
  for (int i = 0; i < g->number_count; ++i)
    f->numbers[i] = g->numbers[i].is_random ? tt_builder_parameter(f->b, TT_U64, 1, &two)
                                            : tt_builder_parameter(f->b, g->numbers[i].dtype, 0, NULL);
}

static tt_value *value_of(const fusion *f, tt_ref ref) {
  int i = tt_ref_index(ref);
  switch (tt_ref_kind_of(ref)) {
  case TT_REF_VALUE: return f->values[i];
  case TT_REF_OUTSIDE: return f->outsides[i];
  default: return f->numbers[i];
  }
}

// A value that is used long after it was made, as a backward pass uses the forward pass's, with others that were just made. The
// compiler would start on it early, or share parts of both calls, and keep results that take more memory than the value: a
// barrier makes it wait for the others.
static void keep_apart(const fusion *f, const tt_node *node, tt_value **operands) {
  const tt_plan *plan = node->plan;
  tt_value *values[MOST_JOINED], *joined[MOST_JOINED];
  int places[MOST_JOINED], count = 0, far = 0;
  for (int i = 0; i < plan->input_count; ++i) {
    tt_ref ref = f->g->refs[node->first_ref + i];
    if (tt_ref_kind_of(ref) != TT_REF_VALUE) continue;
    if (count == MOST_JOINED) return;
    far += node->first_value - tt_ref_index(ref) > FAR_VALUES;
    places[count] = i;
    values[count++] = operands[i];
  }
  if (far == 0 || far == count) return;
  tt_hlo_optimization_barrier_n(f->b, count, values, joined);
  for (int i = 0; i < count; ++i) operands[places[i]] = joined[i];
}

// Inlines the node's fragment. Its checks go behind the live values among the results.
static tt_status add_node(fusion *f, const tt_node *node, int *io_check) {
  const tt_plan *plan = node->plan;
  tt_arena *arena = tt_builder_arena(f->b);
  tt_value **operands = tt_arena_allocate(arena, (size_t)plan->input_count + 1, sizeof *operands);
  tt_value **results = tt_arena_allocate(arena, (size_t)(plan->output_count + plan->check_count) + 1, sizeof *results);
  if (!operands || !results) return out_of_memory();
  for (int i = 0; i < plan->input_count; ++i) operands[i] = value_of(f, f->g->refs[node->first_ref + i]);
  keep_apart(f, node, operands);
  tt_fragment_inline(f->b, &plan->program->fragment, operands, results);
  for (int i = 0; i < plan->output_count; ++i) {
    f->values[node->first_value + i] = results[i];
    if (plan->outputs[i].layout->count > f->largest) f->largest = plan->outputs[i].layout->count;
  }
  for (int i = 0; i < plan->check_count; ++i) f->results[(*io_check)++] = results[plan->output_count + i];
  return TT_SUCCESS;
}

// The program's name and the reason why it is a new one.
static tt_status describe(const tt_graph *g, const shape *s, tt_program *program) {
  const tt_plan **plans = tt_malloc(((size_t)g->node_count + 1) * sizeof *plans);
  if (!plans) return out_of_memory();
  for (int n = 0; n < g->node_count; ++n) plans[n] = g->nodes[n].plan;
  const uint64_t aliases = tt_hash(s->aliases, (size_t)g->outside_count * sizeof *s->aliases);
  const tt_graph_signature signature = {
      .call_count = g->node_count,
      .result_count = s->output_count,
      .plans = plans,
      .wiring = tt_hash(g->refs, (size_t)g->ref_count * sizeof *g->refs),
      .results = tt_hash(s->outputs, (size_t)s->output_count * sizeof *s->outputs) ^ aliases * 3,
  };
  const char *name =
      tt_arena_format(&program->arena, g->node_count == 1 ? "graph of %d call (%s)" : "graph of %d calls (%s ... %s)",
                      g->node_count, plans[0]->op_name, plans[g->node_count - 1]->op_name);
  tt_reason_note_graph(&signature, program);
  tt_free(plans);
  if (!name || !program->note.reason) return out_of_memory();
  program->note.name = name;
  return TT_SUCCESS;
}

static tt_status fuse(fusion *f, tt_graph_program *p) {
  const tt_graph *g = f->g;
  TT_TRY(reserve_values(f));
  add_parameters(f);
  int check = f->s->output_count;
  for (int n = 0; n < g->node_count; ++n) TT_TRY(add_node(f, &g->nodes[n], &check));
  for (int i = 0; i < f->s->output_count; ++i) f->results[i] = f->values[f->s->outputs[i]];
  int parameters = g->outside_count + g->number_count;
  int *aliases = tt_arena_allocate(tt_builder_arena(f->b), (size_t)parameters + 1, sizeof *aliases);
  if (!aliases) return out_of_memory();
  for (int i = 0; i < parameters; ++i) aliases[i] = i < g->outside_count ? p->aliases[i] : -1;
  const tt_compile_options options = tt_program_options(tt_builder_op_count(f->b), f->largest, /*exact=*/true);
  TT_TRY(tt_program_create(f->b, check, f->results, aliases, &options, &p->program));
  return describe(g, f->s, p->program);
}

// A block of its own that holds the arrays too.
static tt_graph_program *new_program(const tt_graph *g, const shape *s) {
  size_t ints = (size_t)s->output_count + (size_t)g->outside_count;
  tt_graph_program *p = tt_calloc(1, sizeof *p + ints * sizeof(int));
  if (!p) return NULL;
  atomic_init(&p->references, 1);
  p->output_count = s->output_count;
  p->check_count = s->check_count;
  int *arrays = (int *)(p + 1);
  p->outputs = memcpy(arrays, s->outputs, (size_t)s->output_count * sizeof(int));
  p->aliases = memcpy(arrays + s->output_count, s->aliases, (size_t)g->outside_count * sizeof(int));
  return p;
}

static tt_status make_program(const tt_graph *g, const shape *s, tt_graph_program **out_program) {
  tt_graph_program *p = new_program(g, s);
  if (!p) return out_of_memory();
  tt_status status = TT_SUCCESS;
  if (s->output_count + s->check_count > 0) {
    fusion f = {.g = g, .s = s};
    status = tt_builder_create(tt_runtime_target(), &f.b);
    if (!status) {
      status = fuse(&f, p);
      tt_builder_free(f.b);
    }
  }
  if (status)
    tt_graph_program_release(p);
  else
    *out_program = p;
  return status;
}

static tt_status find_or_make(const tt_graph *g, const shape *s, const void *key, size_t size,
                              tt_graph_program **out_program) {
  uint64_t hash = tt_hash(key, size);
  pthread_mutex_lock(&lock);
  tt_graph_program *p = tt_map_get(&programs, hash, key, size);
  if (p) retain(p);
  pthread_mutex_unlock(&lock);
  if (p) {
    tt_counter_add(TT_COUNTER_graph_hits, 1);
    *out_program = p;
    return TT_SUCCESS;
  }
  TT_TRY(make_program(g, s, &p));
  void *old = NULL;
  retain(p); // the map's, before another thread can make it let go
  pthread_mutex_lock(&lock);
  tt_status status = tt_map_set(&programs, hash, key, size, p, &old);
  pthread_mutex_unlock(&lock);
  tt_graph_program_release(old);
  if (status) {
    tt_graph_program_release(p);
    tt_graph_program_release(p);
    return status;
  }
  *out_program = p;
  return TT_SUCCESS;
}

tt_status tt_graph_program_find(const tt_graph *g, tt_graph_program **out_program) {
  int *ints = tt_malloc(((size_t)g->value_count * 2 + (size_t)g->outside_count + 1) * sizeof *ints);
  if (!ints) return out_of_memory();
  shape s = {.outputs = ints, .origins = ints + g->value_count, .aliases = ints + 2 * g->value_count};
  find_shape(g, &s);
  size_t size;
  uint32_t *key = make_key(g, &s, &size);
  tt_status status = key ? find_or_make(g, &s, key, size, out_program) : out_of_memory();
  tt_free(key);
  tt_free(ints);
  return status;
}

static void release_entry(void *user, const tt_map_entry *entry) {
  (void)user;
  tt_graph_program_release(entry->value);
}

void tt_graph_programs_forget(void) {
  pthread_mutex_lock(&lock);
  tt_map forgotten = programs;
  programs = TT_MAP_INIT;
  pthread_mutex_unlock(&lock);
  tt_map_each(&forgotten, release_entry, NULL);
  tt_map_free(&forgotten);
}
