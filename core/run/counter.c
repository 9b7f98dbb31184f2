// counter.c - counters that users read and tests hold flat.
//
// Numbers are atomic; `lock` guards the fallbacks by op.
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "run/runtime.h"

static _Atomic int64_t counters[TT_COUNTER_COUNT];

static const char *const names[] = {
#define X(name, text) #name,
    TT_COUNTERS(X)
#undef X
};

typedef struct fallback_count {
  int64_t count;
  char op[];
} fallback_count;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tt_map fallbacks = TT_MAP_INIT; // op name -> fallback_count

void tt_counter_add(tt_counter counter, int64_t value) {
  atomic_fetch_add_explicit(&counters[counter], value, memory_order_relaxed);
}

int64_t tt_counter_get(tt_counter counter) { return atomic_load_explicit(&counters[counter], memory_order_relaxed); }

const char *tt_counter_name(tt_counter counter) { return names[counter]; }

// NULL when memory is exhausted.
static fallback_count *find_or_insert(const char *op) {
  size_t size = strlen(op);
  uint64_t hash = tt_hash(op, size);
  fallback_count *found = tt_map_get(&fallbacks, hash, op, size);
  if (found != NULL) return found;
  found = tt_malloc(sizeof(*found) + size + 1);
  if (found == NULL) return NULL;
  found->count = 0;
  memcpy(found->op, op, size + 1);
  tt_status status = tt_map_set(&fallbacks, hash, op, size, found, NULL);
  if (status == NULL) return found;
  tt_status_free(status);
  tt_free(found);
  return NULL;
}

void tt_count_fallback(const char *op) {
  pthread_mutex_lock(&lock);
  fallback_count *found = find_or_insert(op);
  // Without memory for a name the count is lost; the call itself can go on.
  if (found != NULL) found->count++;
  pthread_mutex_unlock(&lock);
}

typedef struct visitor {
  void (*visit)(void *user, const char *op, int64_t count);
  void *user;
} visitor;

static void visit_entry(void *user, const tt_map_entry *entry) {
  const visitor *v = user;
  const fallback_count *found = entry->value;
  v->visit(v->user, found->op, found->count);
}

void tt_each_fallback(void (*visit)(void *user, const char *op, int64_t count), void *user) {
  pthread_mutex_lock(&lock);
  tt_map_each(&fallbacks, visit_entry, &(visitor){visit, user});
  pthread_mutex_unlock(&lock);
}

static void free_entry(void *user, const tt_map_entry *entry) {
  (void)user;
  tt_free(entry->value);
}

void tt_counters_reset(void) {
  for (int i = 0; i < TT_COUNTER_COUNT; i++) atomic_store_explicit(&counters[i], 0, memory_order_relaxed);
  pthread_mutex_lock(&lock);
  tt_map_each(&fallbacks, free_entry, NULL);
  tt_map_free(&fallbacks);
  pthread_mutex_unlock(&lock);
}
