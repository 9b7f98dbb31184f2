// test_run_compile.c - run/program.h: programs compiled by whoever needs them, or ahead on threads of their own.
#include <pthread.h>

#include "cache/cache.h"
#include "programs.h"

PLUGIN_TEST(program_has_its_text_before_it_is_compiled) {
  start_runtime();
  tt_program *program = make_program(1, 0);
  tt_string text = TT_STRING_INIT;
  CHECK_OK(tt_program_text(program, &text));
  CHECK(strstr(tt_string_text(&text), "stablehlo.add") != NULL);
  CHECK(strstr(tt_string_text(&text), "tf.aliasing_output = 0") != NULL);
  tt_string_free(&text);
  CHECK(!tt_program_is_compiled(program));
  CHECK_INT(tt_counter_get(TT_COUNTER_compiles), 0);
  tt_program_release(program);
}

PLUGIN_TEST(program_compiles_ahead_and_once) {
  start_runtime();
  enum { COUNT = 12 };
  tt_program *programs[COUNT];
  for (int i = 0; i < COUNT; ++i) {
    programs[i] = make_program(i, 0);
    tt_program_compile_soon(programs[i]);
    tt_program_compile_soon(programs[i]);
  }
  for (int i = COUNT - 1; i >= 0; --i) { // the last first: it is compiled here if no thread began
    tt_executable *executable = NULL, *again = NULL;
    CHECK_OK(tt_program_executable(programs[i], &executable));
    CHECK_OK(tt_program_executable(programs[i], &again));
    CHECK(executable != NULL && executable == again);
    CHECK(tt_program_is_compiled(programs[i]));
  }
  CHECK_INT(tt_counter_get(TT_COUNTER_compiles), COUNT);
  for (int i = 0; i < COUNT; ++i) tt_program_release(programs[i]);
  tt_compile_stop();
  tt_cache_clear();
}

static void *ask(void *user) {
  tt_executable *executable = NULL;
  tt_program_compile_soon(user);
  CHECK_OK(tt_program_executable(user, &executable));
  return executable;
}

PLUGIN_TEST(program_asked_for_by_many_threads_compiles_once) {
  start_runtime();
  enum { THREADS = 6 };
  for (int round = 0; round < 5; ++round) {
    tt_program *program = make_program(100 + round, 0);
    pthread_t threads[THREADS];
    void *executables[THREADS];
    for (int i = 0; i < THREADS; ++i) CHECK(pthread_create(&threads[i], NULL, ask, program) == 0);
    for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], &executables[i]);
    for (int i = 1; i < THREADS; ++i) CHECK(executables[i] == executables[0]);
    tt_program_release(program);
  }
  CHECK_INT(tt_counter_get(TT_COUNTER_compiles), 5);
  tt_compile_stop();
  tt_cache_clear();
}

PLUGIN_TEST(program_that_is_refused_fails_for_who_needs_it) {
  start_runtime();
  tt_program *program = make_program(7, 0);
  static const char unknown[] = "%1 = stablehlo.no_such_op %0 : tensor<4xf32>\n";
  program->fragment.body = unknown;
  program->fragment.size = sizeof unknown - 1;
  tt_program_compile_soon(program);
  tt_executable *executable = NULL;
  for (int i = 0; i < 2; ++i) CHECK_FAILS(tt_program_executable(program, &executable), TT_PLUGIN, "no_such_op");
  tt_program_release(program);
  tt_compile_stop();
}

PLUGIN_TEST(program_queue_may_be_left_behind) {
  start_runtime();
  int64_t live = tt_memory_live_count();
  for (int i = 0; i < 40; ++i) {
    tt_program *program = make_program(200 + i, 0);
    tt_program_compile_soon(program);
    tt_program_release(program);
  }
  tt_compile_stop();
  CHECK(tt_counter_get(TT_COUNTER_compiles) <= 40);
  tt_program_compile_soon(make_program(300, 0)); // after the end nothing is queued
  test_keeps_blocks(tt_memory_live_count() - live);
}
