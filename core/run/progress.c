// progress.c - see progress.h.
//
// `lock` guards everything here. The thread sleeps while nothing compiles, and otherwise until the oldest compilation becomes
// due: a compilation that begins meanwhile is due later, so it need not wake the thread.
#include "run/progress.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "base/memory.h"
#include "run/env.h"
#include "run/trace.h"

enum { REPEAT_MS = 1000 };

typedef struct progress {
  struct progress *next;
  uint64_t id;
  int64_t begin_ns, due_ns;
  int64_t end_ns; // 0: runs
  bool told;
  char program[256];
} progress;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static tt_progress_hook hook;
static int64_t delay_ns;
static progress *all; // newest first; ended ones leave when they are told, or at once
static uint64_t last_id;
static pthread_t thread;
static bool has_thread, is_idle, is_stopping;

void tt_set_progress_hook(tt_progress_hook new_hook, int64_t delay_ms) {
  pthread_mutex_lock(&lock);
  hook = new_hook;
  delay_ns = delay_ms * 1000000;
  pthread_mutex_unlock(&lock);
}

// The next that has to be told, and when.
static progress *next_due(void) {
  progress *first = NULL;
  for (progress *p = all; p; p = p->next)
    if (!first || p->due_ns < first->due_ns) first = p;
  return first;
}

static void take_out(progress *p) {
  progress **at = &all;
  while (*at != p) at = &(*at)->next;
  *at = p->next;
}

static void sleep_until(int64_t time_ns) {
  struct timespec limit;
  clock_gettime(CLOCK_REALTIME, &limit);
  int64_t wait = time_ns - tt_trace_now(), at = limit.tv_nsec + wait % 1000000000;
  limit.tv_sec += wait / 1000000000 + at / 1000000000;
  limit.tv_nsec = at % 1000000000;
  pthread_cond_timedwait(&changed, &lock, &limit);
}

// Calls the hook without the lock.
static void tell(progress *p) {
  const progress copy = *p;
  if (copy.end_ns) {
    take_out(p);
    tt_free(p);
  } else {
    p->told = true;
    p->due_ns = tt_trace_now() + (int64_t)REPEAT_MS * 1000000;
  }
  pthread_mutex_unlock(&lock);
  int64_t until = copy.end_ns ? copy.end_ns : tt_trace_now();
  hook(copy.id, copy.program, (double)(until - copy.begin_ns) / 1e9, copy.end_ns != 0);
  pthread_mutex_lock(&lock);
}

static void *watch(void *user) {
  pthread_mutex_lock(&lock);
  while (!is_stopping) {
    progress *p = next_due();
    is_idle = p == NULL;
    if (!p)
      pthread_cond_wait(&changed, &lock);
    else if (p->due_ns > tt_trace_now())
      sleep_until(p->due_ns);
    else
      tell(p);
  }
  pthread_mutex_unlock(&lock);
  return user;
}

// Called with the lock held.
static bool start_thread(void) {
  if (!has_thread) has_thread = pthread_create(&thread, NULL, watch, NULL) == 0;
  return has_thread;
}

void *tt_progress_begin(const char *name, const char *operands) {
  progress *p = NULL;
  pthread_mutex_lock(&lock);
  // The environment is asked here: what a program sets after the import counts.
  if (hook && !is_stopping && tt_env_number(TT_ENV_PROGRESS) && start_thread()) p = tt_malloc(sizeof *p);
  if (p) {
    int64_t begin = tt_trace_now();
    *p = (progress){.next = all, .id = ++last_id, .begin_ns = begin, .due_ns = begin + delay_ns};
    snprintf(p->program, sizeof p->program, operands[0] ? "%s(%s)" : "%s", name, operands);
    all = p;
    if (is_idle) pthread_cond_signal(&changed);
  }
  pthread_mutex_unlock(&lock);
  return p;
}

void tt_progress_end(void *user) {
  progress *p = user;
  if (!p) return;
  pthread_mutex_lock(&lock);
  if (p->told && !is_stopping) {
    p->end_ns = p->due_ns = tt_trace_now();
    pthread_cond_signal(&changed);
  } else {
    take_out(p);
    tt_free(p);
  }
  pthread_mutex_unlock(&lock);
}

void tt_progress_stop(void) {
  pthread_mutex_lock(&lock);
  bool join = has_thread && !is_stopping;
  is_stopping = true;
  pthread_cond_signal(&changed);
  pthread_mutex_unlock(&lock);
  if (!join) return;
  pthread_join(thread, NULL);
  pthread_mutex_lock(&lock);
  for (progress *p = all, *next; p; p = next) {
    next = p->next;
    if (!p->end_ns) continue; // its compilation still holds it
    take_out(p);
    tt_free(p);
  }
  pthread_mutex_unlock(&lock);
}
