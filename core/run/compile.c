// compile.c - compiling programs: by whoever needs one now, or ahead by threads of its own.
//
// A program is compiled by one thread at a time. The threads are made with the first program that is to be compiled soon, as
// many as there are cores, at most four, and take programs in the order in which they came.
#include <pthread.h>
#include <unistd.h>

#include "cache/cache.h"
#include "run/call.h"
#include "run/internal.h"
#include "run/program.h"
#include "run/trace.h"

enum { MAX_THREADS = 4 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards all below, and the programs' state
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static tt_program *first, **last_next = &first; // queued, one reference each
static pthread_t threads[MAX_THREADS];
static int thread_count;
static bool stopping;

// --- one program -------------------------------------------------------------------------------------------------------------

static tt_status compile(const tt_program *program, tt_executable **out_executable) {
  tt_string text = TT_STRING_INIT;
  static const char *const tiers[] = {
      [TT_FROM_MEMORY] = "memory", [TT_FROM_DISK] = "disk", [TT_FROM_REMOTE] = "remote", [TT_FROM_COMPILER] = NULL};
  tt_cache_source source = TT_FROM_COMPILER;
  tt_trace_enter_program(program);
  tt_status status = tt_program_text(program, &text);
  if (!status)
    status = tt_cache_get(tt_runtime_client(), tt_string_text(&text), (int64_t)text.size, &program->options,
                          out_executable, &source);
  tt_string_free(&text);
  tt_trace_leave_program(status ? NULL : tiers[source]);
  if (status) return status;
  static const tt_counter counters[] = {[TT_FROM_MEMORY] = TT_COUNTER_cache_hits,
                                        [TT_FROM_DISK] = TT_COUNTER_disk_hits,
                                        [TT_FROM_REMOTE] = TT_COUNTER_remote_hits,
                                        [TT_FROM_COMPILER] = TT_COUNTER_compiles};
  tt_counter_add(counters[source], 1);
  if (source != TT_FROM_MEMORY && tt_cache_mappings_run_out(tt_runtime_client())) tt_plans_forget();
  return TT_SUCCESS;
}

// Compiles a program whose state is TT_COMPILE_RUNNING, and gives the state up.
static tt_status compile_now(tt_program *program) {
  tt_executable *compiled = NULL;
  tt_status status = compile(program, &compiled);
  pthread_mutex_lock(&lock);
  if (!status) atomic_store_explicit(&program->executable, compiled, memory_order_release);
  program->state = TT_COMPILE_IDLE;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return status;
}

// --- the line ----------------------------------------------------------------------------------------------------------------

// Takes a queued program out, whose reference is the caller's then. Called with the lock held.
static void take_out(tt_program *program) {
  tt_program **at = &first;
  while (*at != program) at = &(*at)->next;
  *at = program->next;
  if (!*at) last_next = at;
  program->next = NULL;
  program->state = TT_COMPILE_RUNNING;
}

static void *work(void *user) {
  (void)user;
  pthread_mutex_lock(&lock);
  while (!stopping) {
    tt_program *program = first;
    if (!program) {
      pthread_cond_wait(&changed, &lock);
      continue;
    }
    take_out(program);
    pthread_mutex_unlock(&lock);
    tt_status_free(compile_now(program)); // who needs it compiles again and gets the failure
    tt_program_release(program);
    pthread_mutex_lock(&lock);
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

// Called with the lock held.
static void make_threads(void) {
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  int wanted = cores < 1 ? 1 : cores > MAX_THREADS ? MAX_THREADS : (int)cores;
  while (thread_count < wanted && pthread_create(&threads[thread_count], NULL, work, NULL) == 0) ++thread_count;
}

void tt_program_compile_soon(tt_program *program) {
  if (tt_trace_forbids(TT_TRACE_compile)) return; // who needs it hears of that
  pthread_mutex_lock(&lock);
  if (thread_count == 0 && !stopping) make_threads();
  if (!tt_program_is_compiled(program) && program->state == TT_COMPILE_IDLE && thread_count > 0) {
    program->state = TT_COMPILE_QUEUED;
    *last_next = tt_program_retain(program);
    last_next = &program->next;
    pthread_cond_broadcast(&changed); // who waits for a program hears it too
  }
  pthread_mutex_unlock(&lock);
}

tt_status tt_program_executable(tt_program *program, tt_executable **out_executable) {
  if (__builtin_expect(!tt_program_is_compiled(program), 0)) {
    pthread_mutex_lock(&lock);
    while (program->state == TT_COMPILE_RUNNING) pthread_cond_wait(&changed, &lock);
    bool is_compiled = tt_program_is_compiled(program), was_queued = program->state == TT_COMPILE_QUEUED;
    if (was_queued) take_out(program);
    if (!is_compiled) program->state = TT_COMPILE_RUNNING;
    pthread_mutex_unlock(&lock);
    tt_status status = is_compiled ? TT_SUCCESS : compile_now(program);
    if (was_queued) tt_program_release(program);
    if (status) return status;
  }
  *out_executable = atomic_load_explicit(&program->executable, memory_order_acquire);
  return TT_SUCCESS;
}

void tt_compile_stop(void) {
  pthread_mutex_lock(&lock);
  stopping = true;
  pthread_cond_broadcast(&changed);
  int count = thread_count;
  thread_count = 0;
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < count; ++i) pthread_join(threads[i], NULL);
}
