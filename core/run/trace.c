// trace.c - who listens to events, and telling them.
//
// `lock` guards the listeners and what they have kept; it is a leaf: nothing is called under it that takes another. The line of an
// event is found before it is taken.
#include "run/trace.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/string.h"
#include "run/env.h"
#include "run/reason.h"
#include "run/runtime.h"
#include "run/site.h"

static const char *const kind_names[] = {
#define X(name, text) #name,
    TT_TRACE_KINDS(X)
#undef X
};

const char *tt_trace_kind_name(tt_trace_kind kind) { return kind_names[kind]; }

struct tt_trace_collector {
  unsigned kinds, site_kinds;
  tt_trace_event *events; // their texts are one block each, at `name`
  size_t count, capacity;
  int64_t lost;
  struct tt_trace_collector *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t settled = PTHREAD_COND_INITIALIZER; // `running` became 0
static tt_trace_collector *collectors;
static unsigned log_kinds;
static int running; // executions whose end is awaited

_Atomic unsigned tt_trace_wanted;
static _Atomic unsigned sited; // kinds whose line somebody wants
static _Atomic int forbidden[TT_TRACE_KIND_COUNT];

static _Thread_local struct {
  int held;
  char *site; // noted by tt_trace_hold
  const char *fallback;
  uint64_t correlation;
  int thread;
} here;

static bool has(unsigned kinds, tt_trace_kind kind) { return kinds >> kind & 1; }

int64_t tt_trace_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int thread_number(void) {
  if (here.thread == 0) here.thread = (int)gettid();
  return here.thread;
}

void tt_trace_set_correlation(uint64_t correlation) { here.correlation = correlation; }
uint64_t tt_trace_correlation(void) { return here.correlation; }

// Called with the lock held.
static void count_listeners(void) {
  unsigned wanted = log_kinds, with_site = log_kinds;
  for (const tt_trace_collector *c = collectors; c; c = c->next) {
    wanted |= c->kinds;
    with_site |= c->site_kinds;
  }
  atomic_store_explicit(&sited, with_site, memory_order_relaxed);
  atomic_store_explicit(&tt_trace_wanted, wanted, memory_order_relaxed);
}

// ---- lines -----------------------------------------------------------------------------------------------------------

static bool may_need_site(void) {
  return atomic_load_explicit(&sited, memory_order_relaxed) || tt_trace_forbids(TT_TRACE_compile);
}

void tt_trace_hold(void) {
  if (here.held++ == 0 && __builtin_expect(may_need_site(), 0)) here.site = tt_site();
}

tt_status tt_trace_let_go(tt_status status) {
  if (--here.held > 0) return status;
  if (__builtin_expect(here.site != NULL, 0)) {
    tt_free(here.site);
    here.site = NULL;
  }
  return tt_reason_after(status);
}

bool tt_trace_is_held(void) { return here.held > 0; }

char *tt_trace_site(void) {
  if (here.held == 0) return tt_site();
  return here.site ? tt_strdup(here.site) : NULL;
}

// ---- the log ---------------------------------------------------------------------------------------------------------

static void append_amount(tt_string *out, int64_t bytes) {
  if (bytes < 1 << 10)
    tt_string_printf(out, ", %lld bytes", (long long)bytes);
  else if (bytes < 1 << 20)
    tt_string_printf(out, ", %.1f KiB", (double)bytes / (1 << 10));
  else
    tt_string_printf(out, ", %.1f MiB", (double)bytes / (1 << 20));
}

static void log_event(const tt_trace_event *e) {
  tt_string line = TT_STRING_INIT;
  tt_string_printf(&line, "torch_tpu %s: %s: %.3f ms, %s", e->site ? e->site : "(no Python line)", kind_names[e->kind],
                   (double)(e->end_ns - e->begin_ns) / 1e6, e->name);
  if (e->operands) tt_string_printf(&line, "(%s)", e->operands);
  if (e->bytes) append_amount(&line, e->bytes);
  if (e->detail) tt_string_printf(&line, ": %s", e->detail);
  if (e->fallback && e->kind != TT_TRACE_fallback) tt_string_printf(&line, " (for %s on the CPU)", e->fallback);
  tt_string_append(&line, "\n");
  // One write, so that lines of several threads do not mix. A stderr that is gone is no reason to fail.
  if (tt_string_status(&line) == TT_SUCCESS && write(STDERR_FILENO, line.data, line.size) < 0) tt_string_clear(&line);
  tt_string_free(&line);
}

static tt_status parse_kinds(const char *text, unsigned *out_kinds) {
  unsigned kinds = 0;
  while (text && *text) {
    size_t size = strcspn(text, ",");
    unsigned kind = size == 3 && strncmp(text, "all", 3) == 0 ? TT_TRACE_ALL : 0;
    for (int i = 0; i < TT_TRACE_KIND_COUNT; ++i)
      if (strlen(kind_names[i]) == size && strncmp(kind_names[i], text, size) == 0) kind = TT_TRACE_BIT(i);
    if (!kind)
      return tt_error(TT_VALUE, "\"%.*s\" is none of compile, cache, execute, transfer, wait, fallback, all", (int)size,
                      text);
    kinds |= kind;
    text += size + (text[size] == ',');
  }
  *out_kinds = kinds;
  return TT_SUCCESS;
}

tt_status tt_trace_set_log(const char *text) {
  unsigned kinds;
  TT_TRY(parse_kinds(text, &kinds));
  pthread_mutex_lock(&lock);
  log_kinds = kinds;
  count_listeners();
  pthread_mutex_unlock(&lock);
  return TT_SUCCESS;
}

// ---- copies of events ------------------------------------------------------------------------------------------------

static size_t text_size(const char *text) { return text ? strlen(text) + 1 : 0; }

static const char *put_text(char **at, const char *text) {
  if (!text) return NULL;
  size_t size = strlen(text) + 1;
  char *copy = memcpy(*at, text, size);
  *at += size;
  return copy;
}

// *out has texts of its own, in one block that begins at its name.
static bool copy_event(const tt_trace_event *e, tt_trace_event *out) {
  char *at = tt_malloc(text_size(e->name) + text_size(e->operands) + text_size(e->detail) + text_size(e->site) +
                       text_size(e->fallback));
  if (!at) return false;
  *out = *e;
  out->name = put_text(&at, e->name);
  out->operands = put_text(&at, e->operands);
  out->detail = put_text(&at, e->detail);
  out->site = put_text(&at, e->site);
  out->fallback = put_text(&at, e->fallback);
  return true;
}

static void free_copy(tt_trace_event *e) { tt_free((char *)e->name); }

// ---- telling ---------------------------------------------------------------------------------------------------------

static bool make_room(tt_trace_collector *c) {
  if (c->count < c->capacity) return true;
  size_t capacity = c->capacity ? 2 * c->capacity : 64;
  tt_trace_event *events = tt_realloc_array(c->events, capacity, sizeof *events);
  if (!events) return false;
  c->events = events;
  c->capacity = capacity;
  return true;
}

// Called with the lock held.
static void collect(tt_trace_collector *c, const tt_trace_event *e) {
  if (make_room(c) && copy_event(e, &c->events[c->count]))
    ++c->count;
  else
    ++c->lost;
}

static void deliver(const tt_trace_event *e) {
  pthread_mutex_lock(&lock);
  bool logged = has(log_kinds, e->kind);
  for (tt_trace_collector *c = collectors; c; c = c->next)
    if (has(c->kinds, e->kind)) collect(c, e);
  pthread_mutex_unlock(&lock);
  if (logged) log_event(e);
}

// What this thread knows about its event. The line is the caller's to free.
static tt_trace_event complete(const tt_trace_event *event, char **out_site) {
  tt_trace_event e = *event;
  e.thread = thread_number();
  if (e.correlation == 0) e.correlation = here.correlation;
  e.fallback = here.fallback;
  const bool find_site = !e.site && e.kind != TT_TRACE_compile && e.kind != TT_TRACE_cache &&
                         has(atomic_load_explicit(&sited, memory_order_relaxed), e.kind);
  *out_site = find_site ? tt_trace_site() : NULL;
  if (find_site) e.site = *out_site;
  return e;
}

void tt_trace_tell(const tt_trace_event *event) {
  char *site;
  int64_t now = tt_trace_now();
  tt_trace_event e = complete(event, &site);
  e.end_ns = now;
  deliver(&e);
  tt_free(site);
}

// On a thread of the plugin, or at once.
static void execution_done(tt_status status, void *user) {
  tt_trace_event *e = user;
  tt_status_free(status); // the queue tells it
  e->end_ns = tt_trace_now();
  deliver(e);
  free_copy(e);
  tt_free(e);
  pthread_mutex_lock(&lock);
  if (--running == 0) pthread_cond_broadcast(&settled);
  pthread_mutex_unlock(&lock);
}

void tt_trace_execution(const tt_event *done, int64_t begin_ns, const tt_device *device, const char *name) {
  if (__builtin_expect(begin_ns == 0, 1)) return;
  char *site;
  const tt_trace_event event = {
      .kind = TT_TRACE_execute, .name = name, .begin_ns = begin_ns, .device_index = device->index};
  const tt_trace_event e = complete(&event, &site);
  tt_trace_event *copy = tt_malloc(sizeof *copy);
  bool copied = copy && copy_event(&e, copy);
  tt_free(site);
  if (!copied) {
    tt_free(copy);
    return;
  }
  pthread_mutex_lock(&lock);
  ++running;
  pthread_mutex_unlock(&lock);
  tt_status status = tt_event_on_ready(done, execution_done, copy);
  if (status) execution_done(status, copy); // no call will come
}

// ---- collectors ------------------------------------------------------------------------------------------------------

tt_status tt_trace_collect(unsigned kinds, unsigned site_kinds, tt_trace_collector **out_collector) {
  void *block;
  TT_TRY(tt_allocate(1, sizeof(tt_trace_collector), &block));
  tt_trace_collector *c = block;
  c->kinds = kinds;
  c->site_kinds = kinds & site_kinds;
  pthread_mutex_lock(&lock);
  c->next = collectors;
  collectors = c;
  count_listeners();
  pthread_mutex_unlock(&lock);
  *out_collector = c;
  return TT_SUCCESS;
}

// Called with the lock held.
static void await_executions(void) {
  struct timespec limit;
  clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_sec += 1;
  while (running > 0 && pthread_cond_timedwait(&settled, &lock, &limit) == 0) {}
}

void tt_trace_collector_stop(tt_trace_collector *collector, bool settle) {
  pthread_mutex_lock(&lock);
  if (settle) await_executions();
  tt_trace_collector **at = &collectors;
  while (*at != collector) at = &(*at)->next;
  *at = collector->next;
  count_listeners();
  pthread_mutex_unlock(&lock);
}

const tt_trace_event *tt_trace_collector_events(const tt_trace_collector *collector, size_t *out_count) {
  *out_count = collector->count;
  return collector->events;
}

int64_t tt_trace_collector_lost(const tt_trace_collector *collector) { return collector->lost; }

void tt_trace_collector_free(tt_trace_collector *collector) {
  if (!collector) return;
  for (size_t i = 0; i < collector->count; ++i) free_copy(&collector->events[i]);
  tt_free(collector->events);
  tt_free(collector);
}

// ---- forbidding ------------------------------------------------------------------------------------------------------

void tt_trace_forbid(tt_trace_kind kind, bool forbid) {
  atomic_fetch_add_explicit(&forbidden[kind], forbid ? 1 : -1, memory_order_relaxed);
}

bool tt_trace_forbids(tt_trace_kind kind) {
  return __builtin_expect(atomic_load_explicit(&forbidden[kind], memory_order_relaxed) > 0, 0);
}

tt_status tt_trace_forbidden(tt_trace_kind kind, const char *name, const char *operands, const char *detail) {
  tt_string text = TT_STRING_INIT;
  char *site = tt_trace_site();
  tt_string_printf(&text, "torch.tpu.forbid_%ss: %s", kind_names[kind], name);
  if (operands) tt_string_printf(&text, kind == TT_TRACE_compile ? "(%s)" : " (%s)", operands);
  tt_string_append(&text, kind == TT_TRACE_compile ? " has to be compiled" : " makes the host wait for the device");
  if (here.fallback) tt_string_printf(&text, " (for %s, which runs on the CPU)", here.fallback);
  if (detail) tt_string_printf(&text, ": %s", detail);
  if (site) tt_string_printf(&text, " (called at %s)", site);
  tt_status status = tt_error(TT_FORBIDDEN, "%s", tt_string_text(&text));
  tt_free(site);
  tt_string_free(&text);
  return status;
}

tt_status tt_trace_check_wait(const char *what, const char *operands) {
  return tt_trace_forbids(TT_TRACE_wait) ? tt_trace_forbidden(TT_TRACE_wait, what, operands, NULL) : TT_SUCCESS;
}

// ---- fallbacks -------------------------------------------------------------------------------------------------------

void tt_fallback_begin(const char *op, tt_fallback_scope *out_scope) {
  *out_scope = (tt_fallback_scope){op, here.fallback, tt_trace_begin(TT_TRACE_fallback)};
  here.fallback = op;
}

void tt_fallback_end(const tt_fallback_scope *scope) {
  here.fallback = scope->outer;
  TT_TRACE_END(fallback, scope->begin_ns, .name = scope->op);
}

// ---- start -----------------------------------------------------------------------------------------------------------

tt_status tt_trace_start(void) {
  const char *kinds = tt_env_text(TT_ENV_LOG);
  if (kinds[0] != '\0')
    TT_TRY_CONTEXT(tt_trace_set_log(kinds), "environment variable %s", tt_env_at(TT_ENV_LOG)->variable);
  tt_reason_watch_compiler();
  return TT_SUCCESS;
}
