// reason.c - see reason.h; and the compiler's observer, which tells of each compilation with its reason.
//
// `lock` guards both tables and is a leaf but for the allocation gate.
#include "run/reason.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "base/string.h"
#include "pjrt/executable.h"
#include "run/progress.h"
#include "run/record.h"
#include "run/runtime.h"
#include "run/site.h"
#include "run/trace.h"

enum {
  SIGNATURES = 8,   // kept for each call site
  GRAPHS = 16,      // kept altogether
  MANY = 8,         // programs for one call site
  MOST_SITES = 4096 // then they are forgotten
};

// ---- signatures ------------------------------------------------------------------------------------------------------

typedef struct operand {
  tt_dtype dtype;
  int rank;
  bool defined, cpu_scalar, whole;
  bool is_out; // made by torch to take a result: its sizes follow from the others'
  const tt_layout *layout;
  const int64_t *sizes, *strides;
  char place[48]; // "argument 1", "argument 1, item 3"
} operand;

typedef struct signature {
  tt_arena arena; // owns the rest
  int precision, operand_count, value_count;
  tt_dtype default_dtype;
  operand *operands;
  const char **values; // of the arguments that are no tensors: "argument 2 = 3"; NULL for tensors
} signature;

static void signature_free(signature *s) {
  if (!s) return;
  tt_arena arena = s->arena; // holds *s too
  tt_arena_clear(&arena);
}

static void append_value(tt_string *out, const tt_arg *arg, bool compiled_in) {
  if (arg->number && !compiled_in && arg->kind != TT_ARG_LIST) return tt_string_append(out, "a number");
  switch (arg->kind) {
  case TT_ARG_NONE: return tt_string_append(out, "None");
  case TT_ARG_TENSOR: return tt_string_append(out, "a tensor");
  case TT_ARG_BOOL: return tt_string_append(out, arg->u.integer ? "True" : "False");
  case TT_ARG_INT: return tt_string_append_i64(out, arg->u.integer);
  case TT_ARG_DOUBLE: return tt_string_printf(out, "%.9g", arg->u.real);
  case TT_ARG_COMPLEX: return tt_string_printf(out, "%.9g%+.9gj", arg->u.complex_number[0], arg->u.complex_number[1]);
  case TT_ARG_STRING: return tt_string_printf(out, "'%s'", arg->u.string);
  case TT_ARG_LIST:
    tt_string_append(out, "[");
    for (int i = 0; i < arg->count; ++i) {
      if (i) tt_string_append(out, ", ");
      append_value(out, &arg->u.items[i], compiled_in);
    }
    return tt_string_append(out, "]");
  default: return tt_string_append(out, "an object");
  }
}

static bool is_tensors(const tt_arg *arg) {
  return arg->kind == TT_ARG_TENSOR ||
         (arg->kind == TT_ARG_LIST && arg->count > 0 && arg->u.items[0].kind == TT_ARG_TENSOR);
}

static bool fill_values(signature *s, const tt_call *call) {
  bool compiled_in = !call->overload->op || (call->overload->op->flags & TT_OP_STATIC_NUMBERS);
  s->values = tt_arena_allocate(&s->arena, (size_t)call->arg_count + 1, sizeof *s->values);
  if (!s->values) return false;
  s->value_count = call->arg_count;
  for (int i = 0; i < call->arg_count; ++i) {
    if (is_tensors(&call->args[i])) continue;
    tt_string text = TT_STRING_INIT;
    append_value(&text, &call->args[i], compiled_in);
    s->values[i] = tt_arena_format(&s->arena, "%s", tt_string_text(&text));
    tt_string_free(&text);
    if (!s->values[i]) return false;
  }
  return true;
}

static void fill_places(signature *s, const tt_call *call) {
  for (int i = 0; i < call->arg_count; ++i) {
    const tt_arg *arg = &call->args[i];
    if (arg->kind == TT_ARG_TENSOR && arg->u.slot < s->operand_count)
      snprintf(s->operands[arg->u.slot].place, sizeof s->operands[0].place, "argument %d", i + 1);
    for (int k = 0; arg->kind == TT_ARG_LIST && k < arg->count; ++k) {
      const tt_arg *item = &arg->u.items[k];
      if (item->kind == TT_ARG_TENSOR && item->u.slot < s->operand_count)
        snprintf(s->operands[item->u.slot].place, sizeof s->operands[0].place, "argument %d, item %d", i + 1, k + 1);
    }
  }
}

static bool fill_operands(signature *s, const tt_call *call) {
  s->operands = tt_arena_allocate(&s->arena, (size_t)call->tensor_count + 1, sizeof *s->operands);
  if (!s->operands) return false;
  s->operand_count = call->tensor_count;
  for (int i = 0; i < call->tensor_count; ++i) {
    const tt_tensor *t = &call->tensors[i];
    operand *o = &s->operands[i];
    *o = (operand){.dtype = t->dtype, .rank = t->rank, .defined = t->defined, .cpu_scalar = t->cpu_scalar};
    snprintf(o->place, sizeof o->place, "operand %d", i + 1);
    if (!t->defined || t->cpu_scalar) continue;
    const size_t bytes = (size_t)t->rank * sizeof(int64_t);
    o->layout = tt_storage_layout(t->storage);
    o->whole = t->offset == 0;
    o->sizes = tt_arena_copy(&s->arena, t->sizes, bytes);
    o->strides = tt_arena_copy(&s->arena, t->strides, bytes);
    if (t->rank && (!o->sizes || !o->strides)) return false;
  }
  fill_places(s, call);
  for (int i = 0; call->overload->variant == TT_OUT && i < call->written_count; ++i)
    s->operands[call->written[i]].is_out = true;
  return true;
}

// NULL without memory.
static signature *signature_of(const tt_call *call) {
  tt_arena arena = TT_ARENA_INIT;
  signature *s = tt_arena_allocate(&arena, 1, sizeof *s);
  if (!s) return NULL;
  s->arena = arena;
  s->precision = call->precision;
  s->default_dtype = call->default_dtype;
  if (fill_values(s, call) && fill_operands(s, call)) return s;
  signature_free(s);
  return NULL;
}

// ---- differences -----------------------------------------------------------------------------------------------------

static bool same_numbers(int count, const int64_t *a, const int64_t *b) {
  return count == 0 || memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

static bool same_sizes(const operand *a, const operand *b) {
  return a->rank == b->rank && a->defined == b->defined && a->cpu_scalar == b->cpu_scalar &&
         (!a->sizes || same_numbers(a->rank, a->sizes, b->sizes));
}

static bool same_layout(const operand *a, const operand *b) {
  return a->layout == b->layout && a->whole == b->whole &&
         (!a->strides || !b->strides || a->rank != b->rank || same_numbers(a->rank, a->strides, b->strides));
}

static void append_sizes(tt_string *out, const operand *o) {
  if (!o->defined) return tt_string_append(out, "none");
  if (o->cpu_scalar) return tt_string_append(out, "a number on the CPU");
  tt_string_append(out, "[");
  for (int i = 0; i < o->rank; ++i) tt_string_printf(out, i ? ", %lld" : "%lld", (long long)o->sizes[i]);
  tt_string_append(out, "]");
}

static void begin_difference(tt_string *out, int *io_count) {
  if ((*io_count)++) tt_string_append(out, "; ");
}

static void compare_operands(const operand *before, const operand *now, tt_string *out, int *io_count) {
  if (!same_sizes(before, now)) {
    begin_difference(out, io_count);
    tt_string_printf(out, "sizes of %s: ", now->place);
    append_sizes(out, before);
    tt_string_append(out, " before, ");
    append_sizes(out, now);
    tt_string_append(out, " now");
  }
  if (before->dtype != now->dtype) {
    begin_difference(out, io_count);
    tt_string_printf(out, "dtype of %s: %s before, %s now", now->place, tt_dtype_text(before->dtype),
                     tt_dtype_text(now->dtype));
  }
  if (same_sizes(before, now) && before->dtype == now->dtype && !same_layout(before, now)) {
    begin_difference(out, io_count);
    tt_string_printf(out, "layout of %s: other strides, or another view of its storage", now->place);
  }
}

static void compare_values(const signature *before, const signature *now, tt_string *out, int *io_count) {
  for (int i = 0; i < now->value_count && i < before->value_count; ++i) {
    const char *a = before->values[i], *b = now->values[i];
    if ((!a && !b) || (a && b && strcmp(a, b) == 0)) continue;
    begin_difference(out, io_count);
    tt_string_printf(out, "argument %d, which is compiled in: %s before, %s now", i + 1, a ? a : "a tensor",
                     b ? b : "a tensor");
  }
}

// What differs, as text; how much.
static int compare(const signature *before, const signature *now, tt_string *out) {
  int count = 0;
  if (before->operand_count != now->operand_count) {
    begin_difference(out, &count);
    tt_string_printf(out, "number of tensors: %d before, %d now", before->operand_count, now->operand_count);
    count += now->operand_count; // far away
  } else {
    for (int i = 0; i < now->operand_count; ++i)
      if (!now->operands[i].is_out) compare_operands(&before->operands[i], &now->operands[i], out, &count);
    for (int i = 0; i < now->operand_count && count == 0; ++i)
      if (now->operands[i].is_out) compare_operands(&before->operands[i], &now->operands[i], out, &count);
  }
  compare_values(before, now, out, &count);
  if (before->precision != now->precision) {
    begin_difference(out, &count);
    tt_string_append(out, "matmul precision");
  }
  if (before->default_dtype != now->default_dtype) {
    begin_difference(out, &count);
    tt_string_printf(out, "default dtype: %s before, %s now", tt_dtype_text(before->default_dtype),
                     tt_dtype_text(now->default_dtype));
  }
  return count;
}

// ---- call sites ------------------------------------------------------------------------------------------------------

typedef struct call_site {
  int programs; // compiled for it
  bool warned;
  int count, next; // of the ring
  signature *recent[SIGNATURES];
} call_site;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tt_map sites = TT_MAP_INIT; // site_key -> call_site

static _Atomic(tt_warning_hook) warning_hook;

void tt_set_warning_hook(tt_warning_hook hook) { atomic_store(&warning_hook, hook); }

static _Thread_local struct {
  bool has_graph; // made a graph's program while it held a lock, which nobody has counted
  // What this thread compiles.
  const tt_program *program;
  int64_t entered_ns, begin_ns;
  void *progress;
} mine;

// A call site by its line, layer and overload.
typedef struct site_key {
  char bytes[320];
  size_t size;
} site_key;

static site_key make_key(const char *site, uint64_t layer, uint64_t overload) {
  site_key key;
  memcpy(key.bytes, &layer, sizeof layer);
  memcpy(key.bytes + 8, &overload, sizeof overload);
  size_t size = site ? strnlen(site, sizeof key.bytes - 16) : 0;
  if (size) memcpy(key.bytes + 16, site, size);
  key.size = 16 + size;
  return key;
}

static void free_site(void *user, const tt_map_entry *entry) {
  (void)user;
  call_site *s = entry->value;
  for (int i = 0; i < SIGNATURES; ++i) signature_free(s->recent[i]);
  tt_free(s);
}

// Called with the lock held.
static void forget_sites(void) {
  tt_map_each(&sites, free_site, NULL);
  tt_map_free(&sites);
}

// Made if it is new. Called with the lock held. NULL without memory.
static call_site *find_site(const site_key *key) {
  uint64_t hash = tt_hash(key->bytes, key->size);
  call_site *s = tt_map_get(&sites, hash, key->bytes, key->size);
  if (s) return s;
  if (sites.count >= MOST_SITES) forget_sites();
  s = tt_calloc(1, sizeof *s);
  if (!s) return NULL;
  tt_status status = tt_map_set(&sites, hash, key->bytes, key->size, s, NULL);
  if (!status) return s;
  tt_status_free(status);
  tt_free(s);
  return NULL;
}

// Appends what the nearest known signature has otherwise. Called with the lock held.
static void find_reason(const call_site *s, const signature *given, tt_string *out) {
  if (s->count == 0) return tt_string_append(out, "first call");
  int least = 0;
  for (int i = 0; i < s->count; ++i) {
    tt_string text = TT_STRING_INIT;
    int differences = compare(s->recent[i], given, &text);
    if (i == 0 || differences < least) {
      least = differences;
      tt_string_clear(out);
      tt_string_append(out, differences ? tt_string_text(&text)
                                        : "other tensors share a storage, or its program was forgotten");
    }
    tt_string_free(&text);
  }
}

// Takes over `given`. Called with the lock held.
static void remember(call_site *s, signature *given) {
  signature_free(s->recent[s->next]);
  s->recent[s->next] = given;
  s->next = (s->next + 1) % SIGNATURES;
  if (s->count < SIGNATURES) ++s->count;
}

// ---- many programs for one line --------------------------------------------------------------------------------------

// The sizes of the first operand that changes, each once. Called with the lock held.
static void append_shapes(tt_string *out, const call_site *s, const char *reason) {
  const signature *newest = s->recent[(s->next + SIGNATURES - 1) % SIGNATURES];
  int changing = -1;
  for (int k = 0; k < newest->operand_count && changing < 0; ++k)
    for (int i = 0; i < s->count && !newest->operands[k].is_out; ++i)
      if (k < s->recent[i]->operand_count && !same_sizes(&newest->operands[k], &s->recent[i]->operands[k]))
        changing = k;
  if (changing < 0) {
    tt_string_printf(out, "The last time because of %s.", reason);
    return;
  }
  tt_string_printf(out, "Sizes of %s: ", newest->operands[changing].place);
  for (int i = 0, shown = 0; i < s->count; ++i) {
    const int first = s->next + SIGNATURES - s->count;
    const signature *each = s->recent[(first + i) % SIGNATURES];
    bool is_new = changing < each->operand_count;
    for (int k = 0; k < i && is_new; ++k) {
      const signature *other = s->recent[(first + k) % SIGNATURES];
      is_new = changing >= other->operand_count || !same_sizes(&each->operands[changing], &other->operands[changing]);
    }
    if (!is_new) continue;
    if (shown++) tt_string_append(out, ", ");
    append_sizes(out, &each->operands[changing]);
  }
  tt_string_append(out, ". Each new size costs a compilation: pad the tensors, or round their sizes up to a few "
                        "(buckets).");
}

// Appends a warning if it is due. Called with the lock held.
static void count_program(call_site *s, const char *name, const char *reason, tt_string *warning) {
  if (++s->programs < MANY || s->warned) return;
  s->warned = true;
  tt_string_printf(warning, "%d programs made for %s at one line. ", s->programs, name);
  if (s->count)
    append_shapes(warning, s, reason);
  else
    tt_string_append(warning, "Deferred calls run as one program; other calls, sizes or live results make another. Let "
                              "each step of a loop do the same, and pad the tensors or round their sizes up to a few "
                              "(buckets).");
}

// Takes over `warning`. Without a line nobody could do something about it.
static tt_status warn(const char *site, tt_string *warning) {
  tt_warning_hook hook = atomic_load_explicit(&warning_hook, memory_order_acquire);
  tt_status status = hook && site && warning->size ? hook(site, tt_string_text(warning)) : TT_SUCCESS;
  tt_string_free(warning);
  return status;
}

// ---- notes -----------------------------------------------------------------------------------------------------------

static const char *keep(tt_program *program, const char *text) {
  return text ? tt_arena_format(&program->arena, "%s", text) : NULL;
}

static void note_call(const tt_call *call, const char *site, const char *reason, tt_program *program) {
  tt_string operands = TT_STRING_INIT;
  tt_call_describe_operands(call, &operands);
  program->note.overload = call->overload->name; // lives for ever
  program->note.operands = keep(program, tt_string_text(&operands));
  program->note.reason = keep(program, reason);
  program->note.site = keep(program, site);
  program->note.correlation = tt_trace_correlation();
  tt_string_free(&operands);
}

tt_status tt_reason_note(const tt_call *call, tt_plan *plan) {
  if (!plan->program || tt_get_eager_mode() == TT_DEFER_AND_FUSE) return TT_SUCCESS;
  uint64_t layer;
  char *site = tt_call_site(&layer);
  const site_key key = make_key(site, layer, (uint64_t)call->overload->id);
  signature *given = signature_of(call);
  tt_string reason = TT_STRING_INIT, warning = TT_STRING_INIT;
  pthread_mutex_lock(&lock);
  call_site *s = given ? find_site(&key) : NULL;
  if (s) {
    find_reason(s, given, &reason);
    remember(s, given);
    count_program(s, call->overload->name, tt_string_text(&reason), &warning);
  }
  pthread_mutex_unlock(&lock);
  if (!s) signature_free(given);
  note_call(call, site, tt_string_text(&reason), plan->program);
  tt_status status = warn(site, &warning);
  tt_string_free(&reason);
  tt_free(site);
  return status;
}

tt_status tt_reason_after(tt_status status) {
  if (__builtin_expect(!mine.has_graph, 1)) return status;
  mine.has_graph = false;
  char *site = tt_site();
  const site_key key = make_key(site, 0, 0);
  tt_string warning = TT_STRING_INIT;
  pthread_mutex_lock(&lock);
  call_site *s = find_site(&key);
  if (s) count_program(s, "deferred calls", "", &warning);
  pthread_mutex_unlock(&lock);
  status = tt_status_join(status, warn(site, &warning));
  tt_free(site);
  return status;
}

// ---- graphs ----------------------------------------------------------------------------------------------------------

typedef struct known_graph {
  int call_count, result_count;
  uint64_t wiring, results;
  struct known_call {
    uint32_t serial;
    const char *name;
    const tt_layout *layout; // of its first result; layouts live for ever
  } calls[];
} known_graph;

static known_graph *graphs[GRAPHS]; // guarded by the lock; a ring
static int next_graph;

static known_graph *known_graph_create(const tt_graph_signature *given) {
  known_graph *g = tt_malloc(sizeof *g + (size_t)given->call_count * sizeof g->calls[0]);
  if (!g) return NULL;
  *g = (known_graph){given->call_count, given->result_count, given->wiring, given->results};
  for (int i = 0; i < given->call_count; ++i) {
    const tt_plan *plan = given->plans[i];
    g->calls[i] = (struct known_call){plan->serial, plan->op_name, plan->output_count ? plan->outputs[0].layout : NULL};
  }
  return g;
}

// The first call that has another name or, with `plans`, another plan.
static int common_calls(const known_graph *a, const known_graph *b, bool plans) {
  int i = 0;
  while (i < a->call_count && i < b->call_count && strcmp(a->calls[i].name, b->calls[i].name) == 0 &&
         (!plans || a->calls[i].serial == b->calls[i].serial))
    ++i;
  return i;
}

static const known_graph *nearest_graph(const known_graph *given) {
  const known_graph *nearest = NULL;
  int64_t most = 0;
  for (int i = 0; i < GRAPHS; ++i) {
    if (!graphs[i]) continue;
    const bool same_count = graphs[i]->call_count == given->call_count;
    int64_t common = 2 * (int64_t)common_calls(graphs[i], given, false) + common_calls(graphs[i], given, true) +
                     (same_count && graphs[i]->wiring == given->wiring);
    if (common <= most) continue;
    most = common;
    nearest = graphs[i];
  }
  return nearest;
}

static void append_layout(tt_string *out, const tt_layout *layout) {
  if (!layout) return tt_string_append(out, "nothing");
  tt_string_printf(out, "%s [", tt_dtype_text(layout->dtype));
  for (int i = 0; i < layout->rank; ++i) tt_string_printf(out, i ? ", %lld" : "%lld", (long long)layout->dims[i]);
  tt_string_append(out, "]");
}

static void compare_graphs(const known_graph *before, const known_graph *given, tt_string *out) {
  int named = common_calls(before, given, false), planned = common_calls(before, given, true);
  if (named < given->call_count && named < before->call_count) {
    tt_string_printf(out, "other calls: call %d is %s, was %s (%d calls before, %d now)", named + 1,
                     given->calls[named].name, before->calls[named].name, before->call_count, given->call_count);
  } else if (before->call_count != given->call_count) {
    tt_string_printf(out, "other calls: %d before, %d now, alike as far as both go", before->call_count,
                     given->call_count);
  } else if (planned < given->call_count) {
    tt_string_printf(out, "other calls: call %d, %s, gives ", planned + 1, given->calls[planned].name);
    append_layout(out, before->calls[planned].layout);
    tt_string_append(out, " before, ");
    append_layout(out, given->calls[planned].layout);
    tt_string_append(out, " now");
  } else if (before->wiring != given->wiring) {
    tt_string_append(out, "the same calls with other operands of each other");
  } else if (before->result_count != given->result_count) {
    tt_string_printf(out, "other live results: %d before, %d now", before->result_count, given->result_count);
  } else {
    tt_string_append(out, "other live results, or other memory that they may take");
  }
}

void tt_reason_note_graph(const tt_graph_signature *signature, tt_program *program) {
  known_graph *given = known_graph_create(signature);
  if (!given) return;
  tt_string text = TT_STRING_INIT;
  pthread_mutex_lock(&lock);
  const known_graph *before = nearest_graph(given);
  if (before)
    compare_graphs(before, given, &text);
  else
    tt_string_append(&text, "first time");
  tt_free(graphs[next_graph]);
  graphs[next_graph] = given;
  next_graph = (next_graph + 1) % GRAPHS;
  pthread_mutex_unlock(&lock);
  program->note.reason = keep(program, tt_string_text(&text));
  tt_string_free(&text);
  if (!tt_trace_is_held()) return;
  char *site = tt_trace_site();
  program->note.site = keep(program, site);
  program->note.correlation = tt_trace_correlation();
  tt_free(site);
  mine.has_graph = true;
}

void tt_reasons_forget(void) {
  pthread_mutex_lock(&lock);
  forget_sites();
  for (int i = 0; i < GRAPHS; ++i) {
    tt_free(graphs[i]);
    graphs[i] = NULL;
  }
  pthread_mutex_unlock(&lock);
}

// ---- the compiler ----------------------------------------------------------------------------------------------------

static const tt_program_note *note(void) {
  static const tt_program_note nothing = {.name = "a program"};
  return mine.program ? &mine.program->note : &nothing;
}

static const char *name_of(const tt_program_note *n) { return n->overload ? n->overload : n->name; }
static const char *reason_of(const tt_program_note *n) { return n->reason ? n->reason : "its first run by itself"; }

void tt_trace_enter_program(const tt_program *program) {
  mine.program = program;
  mine.entered_ns = tt_trace_begin(TT_TRACE_cache);
}

void tt_trace_leave_program(const char *tier) {
  const tt_program_note *n = note();
  if (tier)
    TT_TRACE_END(cache, mine.entered_ns, .name = name_of(n), .operands = n->operands, .detail = tier, .site = n->site,
                 .correlation = n->correlation);
  mine.program = NULL;
}

static tt_status compile_begins(void) {
  const tt_program_note *n = note();
  if (tt_trace_forbids(TT_TRACE_compile))
    return tt_trace_forbidden(TT_TRACE_compile, name_of(n), n->operands, reason_of(n));
  mine.begin_ns = tt_trace_begin(TT_TRACE_compile);
  mine.progress = tt_progress_begin(name_of(n), n->operands ? n->operands : "");
  return TT_SUCCESS;
}

static void compile_ended(tt_status status) {
  (void)status;
  const tt_program_note *n = note();
  tt_progress_end(mine.progress);
  TT_TRACE_END(compile, mine.begin_ns, .name = name_of(n), .operands = n->operands, .detail = reason_of(n),
               .site = n->site, .correlation = n->correlation);
}

void tt_reason_watch_compiler(void) {
  static const tt_compile_observer observer = {compile_begins, compile_ended};
  tt_executable_observe_compiles(&observer);
}
