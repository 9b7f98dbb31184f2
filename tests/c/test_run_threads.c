// test_run_threads.c - core/run used by several threads at once, over a plugin whose work finishes late and in any order: what a
// race needs to show. Run it under ThreadSanitizer (make -C core tsan).
#include <pthread.h>
#include <sched.h>

#include "fake_calls.h"
#include "run/trace.h"

enum { THREADS = 4, ROUNDS = 12, STEPS = 6 };

static overloads ops;

typedef struct shared {
  tensor constant;  // read by all: 5
  tensor contended; // written by all, without order
  bool may_fail;    // the plugin does, so that values are not known
  _Atomic bool done;
} shared;

static void on_transfer(void *user) { atomic_store((_Atomic bool *)user, true); }

// A copy to the host that nobody waits for but this.
static tt_status copy_out(const tensor *t, float *data) {
  _Atomic bool arrived = false;
  tt_tensor view = view_of(t);
  tt_status status = tt_copy_to_host(&view, data, on_transfer, &arrived);
  while (!atomic_load(&arrived)) usleep(50);
  return status;
}

static tt_status to_other_device(const tensor *from, tensor *to) {
  TT_TRY(make_tensor(1 - from->storage->device->index, TT_F32, 0, to));
  tt_tensor dst = view_of(to), src = view_of(from);
  return tt_copy(&dst, &src);
}

typedef struct locals {
  tensor x, one, index, product, rows, moved;
} locals;

static void check(const shared *s, float value, float expected) {
  if (s->may_fail || value == expected) return;
  test_fail(__FILE__, __LINE__, "a value is %g, expected %g", (double)value, (double)expected);
}

// x = start + STEPS, by itself; product = 5 x; what is read is checked unless calls may fail.
static tt_status compute(shared *s, locals *l, int device, float start) {
  float data[ELEMENTS] = {0}, value = 0;
  TT_TRY(make_tensor(device, TT_F32, start, &l->x));
  TT_TRY(make_tensor(device, TT_F32, 1, &l->one));
  TT_TRY(make_tensor(device, TT_S64, 2, &l->index));
  for (int i = 0; i < STEPS; i++) {
    TT_TRY(add(ops.add_in_place, &l->x, &l->one, 1, NULL));
    if (device == 0) tt_status_free(add(ops.add_in_place, &s->contended, &l->one, 1, NULL));
  }
  if (device == 0) {
    TT_TRY(multiply(ops.mul, &l->x, &s->constant, &l->product));
  } else {
    TT_TRY(add(ops.add, &l->x, &l->x, 4, &l->product));
  }
  TT_TRY(select_rows(ops.index_select, &l->product, &l->index, &l->rows));
  TT_TRY(copy_out(&l->rows, data));
  check(s, data[0], 5 * (start + STEPS));
  TT_TRY(to_other_device(&l->product, &l->moved));
  TT_TRY(read_tensor(&l->moved, &value));
  check(s, value, 5 * (start + STEPS));
  TT_TRY(read_tensor(&l->x, &value));
  check(s, value, start + STEPS);
  return TT_SUCCESS;
}

static void free_locals(locals *l) {
  tensor *all[] = {&l->x, &l->one, &l->index, &l->product, &l->rows, &l->moved};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) tensor_free(all[i]);
}

static tt_status look_around(int round, int device) {
  tt_point *point = NULL;
  TT_TRY(tt_point_create(device, &point));
  tt_status status = tt_point_record(point, device);
  if (status == NULL && round % 2 == 0) status = tt_point_wait(point);
  tt_point_query(point);
  tt_point_destroy(point);
  tt_device_is_idle(device);
  return round % 3 == 0 ? tt_status_join(status, tt_synchronize(device)) : status;
}

typedef struct worker {
  shared *shared;
  int number;
} worker;

static void *work(void *user) {
  worker *w = user;
  for (int round = 0; round < ROUNDS; round++) {
    locals l = {0};
    int device = (w->number + round) % 2;
    tt_status status = compute(w->shared, &l, device, (float)(100 * w->number + round));
    status = tt_status_join(status, look_around(round, device));
    free_locals(&l);
    if (!w->shared->may_fail) CHECK_OK(status);
    tt_status_free(status);
  }
  return NULL;
}

// Does what a program does now and then, and what a user looks at, while the others run.
static void *disturb(void *user) {
  shared *s = user;
  for (int round = 0; !atomic_load(&s->done); round++) {
    tt_trace_collector *collector = NULL;
    CHECK_OK(tt_trace_collect(TT_TRACE_ALL, 0, &collector));
    if (round % 4 == 0) tt_plans_forget();
    if (round % 4 == 1) CHECK_OK(tt_device_empty_cache());
    tt_memory_snapshot memory;
    CHECK_OK(tt_device_memory(round % 2, &memory));
    tt_counter_get(TT_COUNTER_executions);
    tt_start_closed_graphs();
    char *text = NULL;
    CHECK_OK(tt_pending_graph(round % 2, NULL, 0, &text));
    tt_text_free(text);
    text = NULL;
    CHECK_OK(tt_runtime_info_json(&text));
    tt_text_free(text);
    tt_trace_collector_stop(collector, false);
    tt_trace_collector_free(collector);
    usleep(300);
  }
  return NULL;
}

static void *switch_modes(void *user) {
  shared *s = user;
  for (int i = 0; !atomic_load(&s->done); i++) {
    tt_status status = tt_set_eager_mode(i % 2 == 0 ? TT_DEFER_AND_FUSE : TT_DEFER_NEVER);
    if (!s->may_fail) CHECK_OK(status);
    tt_status_free(status);
    usleep(700);
  }
  return NULL;
}

// As the limit of mapped memory does.
static void *forget_plans(void *user) {
  shared *s = user;
  while (!atomic_load(&s->done)) {
    tt_plans_forget();
    sched_yield();
  }
  return NULL;
}

// Lets a call fail now and then, of one function after the other.
static void *break_things(void *user) {
  static const fake_function functions[] = {FAKE_PJRT_LoadedExecutable_Execute,
                                            FAKE_PJRT_Client_BufferFromHostBuffer,
                                            FAKE_PJRT_Client_Compile,
                                            FAKE_PJRT_Buffer_ToHostBuffer,
                                            FAKE_PJRT_LoadedExecutable_GetExecutable,
                                            FAKE_PJRT_Event_OnReady,
                                            FAKE_PJRT_Buffer_ReadyEvent,
                                            FAKE_PJRT_Event_Await};
  shared *s = user;
  fake_plugin *fake = fake_control();
  for (unsigned i = 0; !atomic_load(&s->done); i++) {
    fake->fault_comes_late = i % 3 == 0;
    fake_fail_at(fake, functions[i % (sizeof functions / sizeof *functions)], 2);
    usleep(500);
  }
  fake_fail_at(fake, 0, 0);
  return NULL;
}

static void run_threads(const char *platform, tt_eager_mode mode, void *(*other)(void *user)) {
  fake_plugin *fake = fake_control();
  ops = start_fake(platform, "2");
  int64_t live = tt_memory_live_count();
  CHECK_OK(tt_set_eager_mode(mode));
  shared s = {.may_fail = other == break_things};
  CHECK_OK(make_tensor(0, TT_F32, 5, &s.constant));
  CHECK_OK(make_tensor(0, TT_F32, 0, &s.contended));
  fake->order = FAKE_SHUFFLED;
  fake->delay_us = 20;
  pthread_t threads[THREADS], disturber, another;
  worker workers[THREADS];
  CHECK(pthread_create(&disturber, NULL, disturb, &s) == 0);
  if (other != NULL) CHECK(pthread_create(&another, NULL, other, &s) == 0);
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (worker){&s, i};
    CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  atomic_store(&s.done, true);
  pthread_join(disturber, NULL);
  if (other != NULL) pthread_join(another, NULL);

  tt_status_free(tt_synchronize(0)); // of the contended tensor, and of what was broken
  tt_status_free(tt_synchronize(1));
  check_value(&s.constant, 5);
  tensor_free(&s.constant);
  tensor_free(&s.contended);
  CHECK_OK(tt_set_eager_mode(TT_DEFER_NEVER));
  CHECK_OK(tt_synchronize(0));
  CHECK_OK(tt_synchronize(1));
  tt_compile_stop();
  tt_plans_forget();
  CHECK_OK(tt_device_empty_cache());
  fake->wait_until_idle();
  tt_memory_snapshot memory;
  for (int i = 0; i < 2; i++) {
    CHECK_OK(tt_device_memory(i, &memory));
    CHECK_INT(memory.current, 0);
  }
  CHECK_INT(fake->live[FAKE_buffer], 0);
  CHECK_INT(fake->live[FAKE_event], 0);
  CHECK_INT(fake->live[FAKE_error], 0);
  CHECK_INT(fake->live_bytes, 0);
  if (!s.may_fail) CHECK_INT(fake->misuses, 0);
  test_keeps_blocks(tt_memory_live_count() - live);
}

// ---- one tensor that is overwritten while others read it ---------------------------------------------------------------------

static void *overwrite(void *user) {
  shared *s = user;
  for (int i = 0; i < 60; i++) CHECK_OK(add(ops.add_in_place, &s->contended, &s->constant, 1, NULL));
  return NULL;
}

static void *read_while_overwritten(void *user) {
  shared *s = user;
  while (!atomic_load(&s->done)) {
    float value = 0;
    tensor sum = {0};
    CHECK_OK(read_tensor(&s->contended, &value));
    CHECK(value >= 1000);
    CHECK_OK(add(ops.add, &s->contended, &s->constant, 1, &sum));
    CHECK_OK(read_tensor(&sum, &value));
    CHECK(value >= 1005);
    tensor_free(&sum);
  }
  return NULL;
}

static void overwrite_and_read(tt_eager_mode mode) {
  fake_plugin *fake = fake_control();
  ops = start_fake("cpu", "1");
  int64_t live = tt_memory_live_count();
  CHECK_OK(tt_set_eager_mode(mode));
  shared s = {0};
  CHECK_OK(make_tensor(0, TT_F32, 5, &s.constant));
  CHECK_OK(make_tensor(0, TT_F32, 1000, &s.contended));
  CHECK_OK(tt_synchronize(0));
  fake->order = FAKE_SHUFFLED;
  pthread_t writers[2], readers[2], forgetter;
  for (int i = 0; i < 2; i++) CHECK(pthread_create(&readers[i], NULL, read_while_overwritten, &s) == 0);
  for (int i = 0; i < 2; i++) CHECK(pthread_create(&writers[i], NULL, overwrite, &s) == 0);
  CHECK(pthread_create(&forgetter, NULL, forget_plans, &s) == 0);
  for (int i = 0; i < 2; i++) pthread_join(writers[i], NULL);
  atomic_store(&s.done, true);
  for (int i = 0; i < 2; i++) pthread_join(readers[i], NULL);
  pthread_join(forgetter, NULL);
  CHECK_OK(tt_synchronize(0));
  tensor_free(&s.constant);
  tensor_free(&s.contended);
  tt_compile_stop();
  test_keeps_blocks(tt_memory_live_count() - live);
}

TEST(threads_read_what_others_overwrite) { overwrite_and_read(TT_DEFER_NEVER); }
TEST(threads_read_what_others_overwrite_blocking) { overwrite_and_read(TT_DEFER_NEVER_AND_LAUNCH_BLOCKING); }
TEST(threads_read_what_others_overwrite_in_graphs) { overwrite_and_read(TT_DEFER_AND_FUSE); }

TEST(threads_share_strict_mode) { run_threads("tpu", TT_DEFER_NEVER, NULL); }
TEST(threads_share_strict_mode_on_a_host) { run_threads("cpu", TT_DEFER_NEVER, NULL); }
TEST(threads_share_blocking_mode) { run_threads("tpu", TT_DEFER_NEVER_AND_LAUNCH_BLOCKING, NULL); }
TEST(threads_share_graphs) { run_threads("tpu", TT_DEFER_AND_FUSE, NULL); }
TEST(threads_share_graphs_on_a_host) { run_threads("cpu", TT_DEFER_AND_FUSE, NULL); }
TEST(threads_go_on_while_modes_change) { run_threads("tpu", TT_DEFER_NEVER, switch_modes); }
TEST(threads_share_calls_that_are_forgotten) { run_threads("cpu", TT_DEFER_NEVER, forget_plans); }
TEST(threads_share_graphs_that_are_forgotten) { run_threads("tpu", TT_DEFER_AND_FUSE, forget_plans); }
TEST(threads_survive_a_plugin_that_fails) { run_threads("tpu", TT_DEFER_NEVER, break_things); }
TEST(threads_survive_a_plugin_that_fails_in_graphs) { run_threads("cpu", TT_DEFER_AND_FUSE, break_things); }
