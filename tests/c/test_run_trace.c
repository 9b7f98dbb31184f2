// test_run_trace.c - run/trace.h and run/progress.h: events, who hears of them and what can be forbidden.
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/memory.h"
#include "programs.h"
#include "run/env.h"
#include "run/internal.h"
#include "run/program.h"
#include "run/progress.h"
#include "run/site.h"
#include "run/trace.h"
#include "runner.h"

static void tell(tt_trace_kind kind, const char *name) {
  int64_t began = tt_trace_begin(kind);
  if (began) tt_trace_tell(&(tt_trace_event){.kind = kind, .name = name, .begin_ns = began});
}

TEST(trace_costs_nothing_without_a_listener) {
  CHECK_INT(tt_trace_begin(TT_TRACE_wait), 0);
  tt_trace_collector *c;
  CHECK_OK(tt_trace_collect(TT_TRACE_BIT(TT_TRACE_wait), 0, &c));
  CHECK(tt_trace_begin(TT_TRACE_wait) > 0);
  CHECK_INT(tt_trace_begin(TT_TRACE_compile), 0);
  tt_trace_collector_stop(c, false);
  tt_trace_collector_free(c);
  CHECK_INT(tt_trace_begin(TT_TRACE_wait), 0);
}

TEST(trace_log_knows_its_words) {
  CHECK_FAILS(tt_trace_set_log("compile,wiat"), TT_VALUE, "\"wiat\" is none of compile, ");
  CHECK_FAILS(tt_trace_set_log("compile,,wait"), TT_VALUE, "\"\" is none of");
  CHECK_INT(tt_trace_begin(TT_TRACE_compile), 0);
  CHECK_OK(tt_trace_set_log("compile,wait"));
  CHECK(tt_trace_begin(TT_TRACE_compile) > 0 && tt_trace_begin(TT_TRACE_wait) > 0);
  CHECK_INT(tt_trace_begin(TT_TRACE_cache), 0);
  CHECK_OK(tt_trace_set_log("all"));
  CHECK(tt_trace_begin(TT_TRACE_cache) > 0);
  CHECK_OK(tt_trace_set_log(NULL));
  CHECK_INT(tt_trace_begin(TT_TRACE_compile), 0);
}

TEST(trace_events_are_whole) {
  tt_trace_collector *c;
  CHECK_OK(tt_trace_collect(TT_TRACE_ALL, 0, &c));
  tt_trace_set_correlation(7);
  tt_fallback_scope outer, inner;
  tt_fallback_begin("aten::outer", &outer);
  tt_fallback_begin("aten::inner", &inner);
  tell(TT_TRACE_wait, "item");
  tt_fallback_end(&inner);
  tt_fallback_end(&outer);
  tt_trace_collector_stop(c, true);
  size_t count;
  const tt_trace_event *e = tt_trace_collector_events(c, &count);
  CHECK_INT(count, 3);
  CHECK_TEXT(e[0].name, "item");
  CHECK_TEXT(e[0].fallback, "aten::inner");
  CHECK_INT(e[0].correlation, 7);
  CHECK(e[0].thread > 0 && e[0].end_ns >= e[0].begin_ns && e[0].site == NULL);
  CHECK_TEXT(e[1].name, "aten::inner");
  CHECK_TEXT(e[1].fallback, "aten::outer");
  CHECK_TEXT(e[2].name, "aten::outer");
  CHECK(e[2].fallback == NULL && e[2].begin_ns <= e[1].begin_ns);
  tt_trace_collector_free(c);
}

enum { TELLERS = 4, EACH = 400 };
static _Atomic bool tellers_done;

static void *teller(void *user) {
  (void)user;
  for (int i = 0; i < EACH; ++i) {
    tt_trace_hold();
    tell(TT_TRACE_transfer, "to the device");
    CHECK_OK(tt_trace_let_go(NULL));
    tell(TT_TRACE_wait, "item");
  }
  return NULL;
}

// Collectors come and go meanwhile.
static void *passer_by(void *user) {
  (void)user;
  while (!atomic_load(&tellers_done)) {
    tt_trace_collector *c;
    CHECK_OK(tt_trace_collect(TT_TRACE_BIT(TT_TRACE_wait), TT_TRACE_ALL, &c));
    tt_trace_collector_stop(c, false);
    size_t count;
    const tt_trace_event *events = tt_trace_collector_events(c, &count);
    for (size_t i = 0; i < count; ++i) CHECK_TEXT(events[i].name, "item");
    tt_trace_collector_free(c);
  }
  return NULL;
}

TEST(trace_is_told_by_threads) {
  tt_trace_collector *c;
  CHECK_OK(tt_trace_collect(TT_TRACE_ALL, 0, &c));
  pthread_t tellers[TELLERS], passer;
  CHECK(pthread_create(&passer, NULL, passer_by, NULL) == 0);
  for (int i = 0; i < TELLERS; ++i) CHECK(pthread_create(&tellers[i], NULL, teller, NULL) == 0);
  for (int i = 0; i < TELLERS; ++i) pthread_join(tellers[i], NULL);
  atomic_store(&tellers_done, true);
  pthread_join(passer, NULL);
  tt_trace_collector_stop(c, true);
  size_t count;
  tt_trace_collector_events(c, &count);
  CHECK_INT(count, 2 * TELLERS * EACH);
  CHECK_INT(tt_trace_collector_lost(c), 0);
  tt_trace_collector_free(c);
}

static tt_status collect_two(void *user) {
  (void)user;
  tt_trace_collector *c;
  TT_TRY(tt_trace_collect(TT_TRACE_ALL, 0, &c));
  tell(TT_TRACE_wait, "item");
  tell(TT_TRACE_wait, "item");
  tt_trace_collector_stop(c, true);
  size_t count;
  tt_trace_collector_events(c, &count);
  CHECK_INT((int64_t)count + tt_trace_collector_lost(c), 2);
  tt_trace_collector_free(c);
  return TT_SUCCESS;
}

TEST(trace_allocations_may_fail) { test_each_allocation_failing(collect_two, NULL); }

// --- lines and locks ----------------------------------------------------------------------------------------------------------

static bool locked;
static int site_questions;

static char *test_site(uint64_t *out_layer) {
  CHECK(!locked);
  ++site_questions;
  if (out_layer) *out_layer = 3;
  return tt_strdup("model.py:12");
}

TEST(trace_asks_for_no_line_under_a_lock) {
  tt_set_site_hook(test_site);
  tt_trace_collector *c;
  CHECK_OK(tt_trace_collect(TT_TRACE_ALL, TT_TRACE_BIT(TT_TRACE_wait), &c));
  tt_trace_hold();
  locked = true;
  tell(TT_TRACE_wait, "item");
  tell(TT_TRACE_transfer, "to the device");
  locked = false;
  CHECK_OK(tt_trace_let_go(NULL));
  CHECK_INT(site_questions, 1);
  tt_trace_collector_stop(c, false);
  size_t count;
  const tt_trace_event *e = tt_trace_collector_events(c, &count);
  CHECK_INT(count, 2);
  CHECK_TEXT(e[0].site, "model.py:12");
  CHECK(e[1].site == NULL); // not asked for
  tt_trace_collector_free(c);
  tt_trace_hold(); // nobody listens: nobody is asked
  CHECK_FAILS(tt_trace_let_go(tt_error(TT_VALUE, "passed on")), TT_VALUE, "passed on");
  CHECK_INT(site_questions, 1);
}

TEST(trace_forbids_waits_until_all_allow_them) {
  tt_set_site_hook(test_site);
  CHECK_OK(tt_trace_check_wait("item", "Float []"));
  tt_trace_forbid(TT_TRACE_wait, true);
  tt_trace_forbid(TT_TRACE_wait, true);
  CHECK_FAILS(tt_trace_check_wait("item", "Float []"), TT_FORBIDDEN,
              "torch.tpu.forbid_waits: item (Float []) makes the host wait for the device (called at model.py:12)");
  tt_trace_forbid(TT_TRACE_wait, false);
  CHECK_FAILS(tt_trace_check_wait("synchronize", NULL), TT_FORBIDDEN, "synchronize makes");
  tt_trace_forbid(TT_TRACE_wait, false);
  CHECK_OK(tt_trace_check_wait("item", NULL));
}

// --- the compiler -----------------------------------------------------------------------------------------------------------

PLUGIN_TEST(trace_tells_of_compiles_and_hits) {
  start_runtime();
  int64_t live = tt_memory_live_count();
  tt_trace_collector *c;
  CHECK_OK(tt_trace_collect(TT_TRACE_ALL, TT_TRACE_ALL, &c));
  tt_program *program = make_program(1, -1), *same = make_program(1, -1);
  tt_executable *executable;
  tt_trace_forbid(TT_TRACE_compile, true);
  CHECK_FAILS(tt_program_executable(program, &executable), TT_FORBIDDEN, "torch.tpu.forbid_compiles: add has to be");
  tt_program_compile_soon(program); // nothing: who needs it hears of that
  CHECK(!tt_program_is_compiled(program));
  tt_trace_forbid(TT_TRACE_compile, false);
  CHECK_OK(tt_program_executable(program, &executable));
  tt_trace_forbid(TT_TRACE_compile, true);
  CHECK_OK(tt_program_executable(same, &executable));
  tt_trace_forbid(TT_TRACE_compile, false);
  tt_trace_collector_stop(c, false);
  size_t count;
  const tt_trace_event *e = tt_trace_collector_events(c, &count);
  CHECK_INT(count, 2);
  CHECK_INT(e[0].kind, TT_TRACE_compile);
  CHECK_TEXT(e[0].name, "add");
  CHECK_INT(e[1].kind, TT_TRACE_cache);
  CHECK_TEXT(e[1].detail, "memory");
  tt_trace_collector_free(c);
  tt_program_release(program);
  tt_program_release(same);
  test_keeps_blocks(tt_memory_live_count() - live); // the compile cache
}

// --- progress ---------------------------------------------------------------------------------------------------------------

static pthread_mutex_t told_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told_changed = PTHREAD_COND_INITIALIZER;
static int told, told_done;

static void on_progress(uint64_t id, const char *program, double seconds, bool done) {
  CHECK(id > 0 && seconds >= 0);
  CHECK_TEXT(program, "aten::mm(Float [2, 2])");
  pthread_mutex_lock(&told_lock);
  ++*(done ? &told_done : &told);
  pthread_cond_broadcast(&told_changed);
  pthread_mutex_unlock(&told_lock);
}

static void await(const int *count, int wanted) {
  pthread_mutex_lock(&told_lock);
  while (*count < wanted) pthread_cond_wait(&told_changed, &told_lock);
  pthread_mutex_unlock(&told_lock);
}

static void *compile_slowly(void *user) {
  (void)user;
  void *progress = tt_progress_begin("aten::mm", "Float [2, 2]");
  CHECK(progress != NULL);
  await(&told, TELLERS); // each is told at least once, since all last until then
  tt_progress_end(progress);
  return NULL;
}

TEST(trace_progress_of_long_compilations) {
  CHECK(tt_progress_begin("aten::mm", "") == NULL); // nobody wants to know
  tt_progress_end(NULL);
  int64_t live = tt_memory_live_count();
  tt_set_progress_hook(on_progress, 0);
  CHECK_INT(tt_env_number(TT_ENV_PROGRESS), 1);
  live = tt_memory_live_count() - live; // the environment's texts
  pthread_t threads[TELLERS];
  for (int i = 0; i < TELLERS; ++i) CHECK(pthread_create(&threads[i], NULL, compile_slowly, NULL) == 0);
  for (int i = 0; i < TELLERS; ++i) pthread_join(threads[i], NULL);
  await(&told_done, 1);
  tt_progress_stop();
  CHECK(tt_progress_begin("aten::mm", "Float [2, 2]") == NULL);
  test_keeps_blocks(live);
}

TEST(trace_progress_of_short_compilations_is_silent) {
  int64_t live = tt_memory_live_count();
  tt_set_progress_hook(on_progress, 3600 * 1000);
  CHECK_INT(tt_env_number(TT_ENV_PROGRESS), 1);
  live = tt_memory_live_count() - live;
  for (int i = 0; i < 100; ++i) tt_progress_end(tt_progress_begin("aten::mm", "Float [2, 2]"));
  tt_progress_stop();
  CHECK_INT(told + told_done, 0);
  test_keeps_blocks(live);
}
