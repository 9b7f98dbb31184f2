// test_run_faults.c - core/run when the plugin fails, runs out of memory or finishes late and in another order.
#include <stdio.h>

#include "fake_calls.h"

static const int modes[] = {TT_DEFER_NEVER, TT_DEFER_NEVER_AND_LAUNCH_BLOCKING, TT_DEFER_AND_FUSE};
enum { MODES = sizeof modes / sizeof *modes };

static overloads ops;

// ---- each call of each function failing --------------------------------------------------------------------------------

typedef struct world {
  tensor x, y, index;          // x is overwritten, the others are only read
  tensor sum, picked, product; // what the calls give
  tensor moved;                // on the other device
  float uploaded[ELEMENTS], downloaded[ELEMENTS];
  int transfers;           // that were started without waiting
  _Atomic int transferred; // of them
} world;

static void on_transfer(void *user) { atomic_fetch_add((_Atomic int *)user, 1); }

static tt_status use_all(world *w) {
  // x = 1, y = 2
  w->x.dtype = TT_F32;
  TT_TRY(tt_storage_create_on(0, sizeof w->uploaded, &w->x.storage));
  tt_tensor view = view_of(&w->x);
  w->transfers++;
  TT_TRY(tt_copy_from_host(&view, w->uploaded, TT_F32, on_transfer, &w->transferred));
  TT_TRY(make_tensor(0, TT_F32, 2, &w->y));
  TT_TRY(make_tensor(0, TT_S64, 1, &w->index));

  TT_TRY(add(ops.add, &w->x, &w->y, 1, &w->sum));                        // 3
  TT_TRY(add(ops.add_in_place, &w->x, &w->y, 1, NULL));                  // 3
  TT_TRY(add(ops.add_in_place, &w->x, &w->y, 2, NULL));                  // 7
  TT_TRY(select_rows(ops.index_select, &w->sum, &w->index, &w->picked)); // 3
  TT_TRY(multiply(ops.mul, &w->x, &w->picked, &w->product));             // 21

  view = view_of(&w->sum);
  w->transfers++;
  TT_TRY(tt_copy_to_host(&view, w->downloaded, on_transfer, &w->transferred));
  TT_TRY(make_tensor(1, TT_F32, 0, &w->moved));
  tt_tensor moved = view_of(&w->moved), product = view_of(&w->product);
  TT_TRY(tt_copy(&moved, &product));
  TT_TRY(tt_synchronize(0));
  return tt_synchronize(1);
}

static tt_status check_results(world *w) {
  float value = 0;
  TT_TRY(read_tensor(&w->moved, &value));
  CHECK(value == 21);
  TT_TRY(read_tensor(&w->x, &value));
  CHECK(value == 7);
  TT_TRY(read_tensor(&w->product, &value));
  CHECK(value == 21);
  CHECK(w->downloaded[0] == 3 && w->downloaded[ELEMENTS - 1] == 3);
  return TT_SUCCESS;
}

// A value that was there stays, whatever failed, unless it never came: its upload failed behind the call. x may have been
// written or not, or its writer may have failed.
static void check_survivors(world *w) {
  const float of_y[] = {2, 2, 2}, of_x[] = {1, 3, 7};
  const struct {
    const tensor *t;
    const float *values;
    bool may_fail;
  } all[] = {{&w->y, of_y, fake_control()->fault_comes_late}, {&w->x, of_x, true}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    float value = 0;
    if (all[i].t->storage == NULL || tt_storage_layout(all[i].t->storage) == NULL) continue;
    tt_status status = read_tensor(all[i].t, &value);
    if (status != NULL && !all[i].may_fail) CHECK_OK(status);
    CHECK(status != NULL || value == all[i].values[0] || value == all[i].values[1] || value == all[i].values[2]);
    tt_status_free(status);
  }
}

static void forget_failures(void) {
  tt_status_free(tt_synchronize(0));
  tt_status_free(tt_synchronize(1));
  CHECK_OK(tt_synchronize(0)); // a failure is told once
  CHECK_OK(tt_synchronize(1));
}

static void tear_down(world *w) {
  // Memory that a transfer uses is the host's again once it says so.
  while (atomic_load(&w->transferred) < w->transfers) usleep(100);
  CHECK_INT(w->transferred, w->transfers);
  tensor *all[] = {&w->x, &w->y, &w->index, &w->sum, &w->picked, &w->product, &w->moved};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) tensor_free(all[i]);
}

// After it everything is as after any other: no plans but those of two calls, and a graph that has had values and numbers.
static void start_anew(tensor *bystander) {
  tt_plans_forget();
  CHECK_OK(tt_device_empty_cache());
  tensor sum = {0}, product = {0};
  CHECK_OK(add(ops.add, bystander, bystander, 2, &sum));
  check_value(&sum, 21);
  tensor_free(&sum);
  CHECK_OK(multiply(ops.mul, bystander, bystander, &product));
  check_value(&product, 49);
  tensor_free(&product);
  check_value(bystander, 7);
  CHECK_OK(tt_synchronize(0));
  CHECK_OK(tt_device_empty_cache());
  fake_control()->wait_until_idle();
}

static tt_status scenario(void) {
  world w = {.uploaded = {1, 1, 1, 1}};
  tt_status status = use_all(&w);
  if (status == NULL) status = check_results(&w);
  fake_fail_at(fake_control(), 0, 0);
  forget_failures();
  if (status != NULL) check_survivors(&w);
  tear_down(&w);
  return status;
}

// Whether the message of a failure says where it came from.
static bool names_its_source(const char *message) {
  static const char *const sources[] = {"add", "mul", "index_select", "copy", "contiguous"};
  for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
    if (strstr(message, sources[i]) != NULL) return true;
  return false;
}

// "add.Tensor: add.Tensor: ..."
static bool says_it_twice(const char *message) {
  const char *colon = strstr(message, ": ");
  size_t size = colon != NULL ? (size_t)(colon - message) + 2 : 0;
  return size > 0 && strncmp(message, message + size, size) == 0;
}

static bool is_of_an_op(int function) {
  return function == FAKE_PJRT_Client_Compile || function == FAKE_PJRT_LoadedExecutable_Execute;
}

typedef struct counts {
  int64_t blocks, bytes, objects[FAKE_OBJECT_COUNT];
} counts;

static counts count_all(const fake_plugin *fake) {
  counts c = {.blocks = tt_memory_live_count(), .bytes = fake->live_bytes};
  for (int i = 0; i < FAKE_OBJECT_COUNT; i++) c.objects[i] = fake->live[i];
  return c;
}

// The same for 20 ms: threads that compile have let go of their programs.
static counts count_settled(const fake_plugin *fake) {
  counts last = count_all(fake);
  for (int ms = 0; ms < 20; ms++) {
    usleep(1000);
    counts now = count_all(fake);
    if (memcmp(&now, &last, sizeof now) != 0) ms = 0;
    last = now;
  }
  return last;
}

// A thread that compiles lets go of its program a little after others have it.
static void check_same_counts(const fake_plugin *fake, const counts *before) {
  counts now = count_all(fake);
  for (int ms = 0; ms < 5000 && memcmp(&now, before, sizeof now) != 0; ms++) {
    usleep(1000);
    now = count_all(fake);
  }
  for (int i = 0; i < FAKE_OBJECT_COUNT; i++) {
    if (now.objects[i] == before->objects[i]) continue;
    test_fail(__FILE__, __LINE__, "%lld live objects of kind %d, %lld before", (long long)now.objects[i], i,
              (long long)before->objects[i]);
  }
  CHECK_INT(now.bytes, before->bytes);
  CHECK_INT(now.blocks, before->blocks);
}

typedef enum fault_kind { ONCE, FROM_THEN_ON, LATE } fault_kind;

static void fail_each_call(fake_plugin *fake, tensor *bystander, const counts *begin, int function, fault_kind kind) {
  int64_t before = fake->calls[function];
  CHECK_OK(scenario());
  int64_t calls = fake->calls[function] - before;
  start_anew(bystander);
  for (int64_t n = 1; n <= calls; n++) {
    fake->fault_comes_late = kind == LATE;
    fake->fault_stays = kind == FROM_THEN_ON;
    fake_fail_at(fake, function, n);
    tt_status status = scenario();
    fake->fault_comes_late = fake->fault_stays = false;
    const char *message = tt_status_message(status);
    if (status != NULL && strstr(message, "as wished") == NULL && strstr(message, "is lost") == NULL)
      test_fail(__FILE__, __LINE__, "call %lld of %s: %s", (long long)n, fake_function_name(function), message);
    if (status != NULL && is_of_an_op(function) && !names_its_source(message))
      test_fail(__FILE__, __LINE__, "call %lld of %s names no op: %s", (long long)n, fake_function_name(function),
                message);
    if (says_it_twice(message)) test_fail(__FILE__, __LINE__, "%s", message);
    if (kind == FROM_THEN_ON && is_of_an_op(function)) CHECK(status != NULL);
    tt_status_free(status);
    start_anew(bystander);
    check_same_counts(fake, begin);
  }
  CHECK_INT(fake->misuses, 0);
}

// A device's queue has its ring once a program of it did not finish at once.
static void warm_up_queue(fake_plugin *fake, int device_index) {
  tensor x = {0};
  CHECK_OK(make_tensor(device_index, TT_F32, 1, &x));
  for (int i = 0; i < 2; i++) {
    fake->hold(i == 1); // the first call compiles
    CHECK_OK(add(ops.add_in_place, &x, &x, 1, NULL));
    fake->hold(false);
    CHECK_OK(tt_synchronize(device_index));
  }
  check_value(&x, 4);
  tensor_free(&x);
}

static void fail_all(const char *platform, int order, fault_kind kind) {
  fake_plugin *fake = fake_control();
  ops = start_fake(platform, "2");
  int64_t live = tt_memory_live_count();
  tensor bystander = {0};
  CHECK_OK(make_tensor(0, TT_F32, 7, &bystander));
  for (int i = 0; i < 2; i++) warm_up_queue(fake, i);
  fake->order = order;
  for (int m = 0; m < MODES; m++) {
    CHECK_OK(tt_set_eager_mode((tt_eager_mode)modes[m]));
    CHECK_OK(scenario());
    CHECK_OK(scenario());
    start_anew(&bystander);
    counts begin = count_settled(fake);
    for (int f = 0; f < FAKE_PJRT_Error_Destroy; f++) fail_each_call(fake, &bystander, &begin, f, kind);
  }
  tensor_free(&bystander);
  tt_compile_stop();
  test_keeps_blocks(tt_memory_live_count() - live);
}

TEST(run_every_call_of_every_function_may_fail_on_a_tpu) { fail_all("tpu", FAKE_AT_ONCE, ONCE); }

TEST(run_every_call_of_every_function_may_fail_on_a_host) { fail_all("cpu", FAKE_AT_ONCE, ONCE); }

TEST(run_every_call_of_every_function_may_fail_out_of_order) { fail_all("tpu", FAKE_SHUFFLED, ONCE); }

TEST(run_work_that_was_started_may_fail) { fail_all("tpu", FAKE_SHUFFLED, LATE); }

TEST(run_functions_may_stop_working) { fail_all("cpu", FAKE_NEWEST_FIRST, FROM_THEN_ON); }

// ---- memory that runs out ------------------------------------------------------------------------------------------------

TEST(run_names_what_is_alive_when_memory_runs_out) {
  fake_plugin *fake = fake_control();
  ops = start_fake("tpu", "1");
  int64_t live = tt_memory_live_count();
  for (int m = 0; m < MODES; m++) {
    CHECK_OK(tt_set_eager_mode((tt_eager_mode)modes[m]));
    tensor x = {0}, y = {0}, sum = {0}, spare = {0};
    CHECK_OK(make_tensor(0, TT_F32, 1, &x));
    CHECK_OK(make_tensor(0, TT_F32, 2, &y));
    CHECK_OK(make_tensor(0, TT_F32, 3, &spare));
    CHECK_OK(tt_synchronize(0));
    fake->memory_limit = fake->live_bytes + 15;

    // The call that has no room fails, or in a graph whoever asks for its value.
    float value = 0;
    tt_status status = add(ops.add, &x, &y, 1, &sum);
    if (status == NULL) status = read_tensor(&sum, &value);
    const char *message = tt_status_message(status);
    CHECK_INT(tt_status_code(status), TT_OUT_OF_MEMORY);
    CHECK(
        strstr(message, "add.Tensor: PJRT_LoadedExecutable_Execute: RESOURCE_EXHAUSTED: Out of memory allocating 16"));
    CHECK(strstr(message, "Largest live tensors:\n  48 bytes  3 x Float [4]") != NULL);
    tt_status_told(status);
    tt_status_free(status);
    if (sum.storage != NULL) tensor_free(&sum);

    // Memory that is overwritten is enough.
    CHECK_OK(add(ops.add_in_place, &x, &y, 1, NULL));
    check_value(&x, 3);
    check_value(&spare, 3);
    tensor_free(&spare);
    CHECK_OK(add(ops.add, &x, &y, 1, &sum));
    check_value(&sum, 5);
    fake->memory_limit = 0;
    tensor_free(&x);
    tensor_free(&y);
    tensor_free(&sum);
    CHECK_OK(tt_synchronize(0));
    CHECK_OK(tt_device_empty_cache());
    tt_memory_snapshot memory;
    CHECK_OK(tt_device_memory(0, &memory));
    CHECK_INT(memory.current, 0);
    CHECK_INT(memory.out_of_memory_count, m + 1); // also where a graph that finds no room tries its calls one by one
    fake->wait_until_idle();
    CHECK_INT(fake->live_bytes, 0);
  }
  CHECK_INT(fake->misuses, 0);
  tt_compile_stop();
  test_keeps_blocks(tt_memory_live_count() - live);
}

// Whoever asks for a value hears why it is lost, also when its call was started, and failed, before.
TEST(run_says_why_a_value_is_lost) {
  fake_plugin *fake = fake_control();
  ops = start_fake("tpu", "1");
  int64_t live = tt_memory_live_count();
  const tt_eager_mode deferring[] = {TT_DEFER_NEVER, TT_DEFER_AND_FUSE};
  for (int m = 0; m < 2; m++) {
    CHECK_OK(tt_set_eager_mode(deferring[m]));
    tt_plans_forget();
    tensor x = {0}, sum = {0}, twice = {0};
    float value = 0;
    CHECK_OK(make_tensor(0, TT_F32, 1, &x));
    CHECK_OK(tt_synchronize(0));
    fake->memory_limit = fake->live_bytes + 1;
    CHECK_OK(add(ops.add, &x, &x, 1, &sum)); // waits for its program
    while (!tt_device_is_idle(0)) usleep(100);
    fake->memory_limit = 0;
    CHECK_FAILS(read_tensor(&sum, &value), TT_OUT_OF_MEMORY, "add.Tensor: PJRT_LoadedExecutable_Execute: RESOURCE_");
    CHECK_FAILS(read_tensor(&sum, &value), TT_INVALID_ARGUMENT, "the value that add.Tensor was to give is lost");
    CHECK_FAILS(add(ops.add, &sum, &x, 1, &twice), TT_INVALID_ARGUMENT, "is lost");
    CHECK_OK(tt_synchronize(0));
    tensor_free(&x);
    tensor_free(&sum);
  }
  tt_compile_stop();
  test_keeps_blocks(tt_memory_live_count() - live);
}

// How memory runs out: at a call, behind it, or before the plugin is asked.
typedef enum shortage { PLUGIN_REFUSES, WORK_FAILS, DEVICE_IS_FULL, SHORTAGES } shortage;

static void begin_shortage(fake_plugin *fake, shortage kind) {
  if (kind == PLUGIN_REFUSES) fake->memory_limit = fake->live_bytes + 15;
  if (kind == DEVICE_IS_FULL) {
    tt_device *device = tt_client_device(tt_runtime_client(), 0);
    device->memory_limit = device->memory.current + 15;
  }
  if (kind != WORK_FAILS) return;
  fake->fault_comes_late = fake->fault_stays = true;
  fake_fail_at(fake, FAKE_PJRT_LoadedExecutable_Execute, 1);
  fake->fault_code = 8;
}

static void end_shortage(fake_plugin *fake) {
  fake->memory_limit = 0;
  fake->fault_comes_late = fake->fault_stays = false;
  fake_fail_at(fake, 0, 0);
  tt_device *device = tt_client_device(tt_runtime_client(), 0);
  device->memory_limit = INT64_C(1) << 34;
}

// As the user hears of it. Counts errors for lack of memory.
static void tell(tt_status status, int64_t *count) {
  if (tt_status_code(status) == TT_OUT_OF_MEMORY) ++*count;
  tt_status_told(status);
  tt_status_free(status);
}

// Two calls that need room, neither of which needs the other.
static void run_short_of_memory(fake_plugin *fake, tensor *x, tensor *y, shortage kind, int64_t *count) {
  tensor results[2] = {{0}, {0}};
  float value = 0;
  begin_shortage(fake, kind);
  tell(add(ops.add, x, y, 1, &results[0]), count);
  tell(multiply(ops.mul, x, y, &results[1]), count);
  for (int i = 0; i < 2; i++) {
    if (results[i].storage == NULL) continue;
    tell(read_tensor(&results[i], &value), count);
    tensor_free(&results[i]);
  }
  tell(tt_synchronize(0), count);
  end_shortage(fake);
}

TEST(run_counts_an_error_for_lack_of_memory_once) {
  fake_plugin *fake = fake_control();
  ops = start_fake("tpu", "1");
  int64_t live = tt_memory_live_count(), count = 0;
  tensor x = {0}, y = {0};
  CHECK_OK(make_tensor(0, TT_F32, 1, &x));
  CHECK_OK(make_tensor(0, TT_F32, 2, &y));
  for (int m = 0; m < MODES; m++) {
    CHECK_OK(tt_set_eager_mode((tt_eager_mode)modes[m]));
    // Also while the calls wait for a compiler, and when work finishes behind the call.
    for (int i = 0; i < 4 * SHORTAGES; i++) {
      if (i % 2 == 0) tt_plans_forget();
      fake->order = i / (2 * SHORTAGES) == 0 ? FAKE_AT_ONCE : FAKE_IN_ORDER;
      int64_t before = count;
      run_short_of_memory(fake, &x, &y, (shortage)(i / 2 % SHORTAGES), &count);
      CHECK(count > before);
      tt_memory_snapshot memory;
      CHECK_OK(tt_device_memory(0, &memory));
      CHECK_INT(memory.out_of_memory_count, count);
    }
  }
  check_value(&x, 1);
  check_value(&y, 2);
  tensor_free(&x);
  tensor_free(&y);
  CHECK_OK(tt_synchronize(0));
  tt_compile_stop();
  test_keeps_blocks(tt_memory_live_count() - live);
}

TEST(run_survives_memory_that_ends_at_any_byte) {
  fake_plugin *fake = fake_control();
  ops = start_fake("cpu", "2");
  int64_t live = tt_memory_live_count();
  tensor bystander = {0};
  CHECK_OK(make_tensor(0, TT_F32, 7, &bystander));
  for (int m = 0; m < MODES; m++) {
    CHECK_OK(tt_set_eager_mode((tt_eager_mode)modes[m]));
    start_anew(&bystander);
    CHECK_OK(scenario());
    start_anew(&bystander);
    counts begin = count_settled(fake);
    for (int64_t room = 0;; room += 4) {
      fake->memory_limit = begin.bytes + room;
      tt_status status = scenario();
      fake->memory_limit = 0;
      tt_code code = tt_status_code(status);
      bool lost = strstr(tt_status_message(status), "is lost") != NULL;
      tt_status_free(status);
      CHECK(code == TT_OK || code == TT_OUT_OF_MEMORY || lost);
      start_anew(&bystander);
      check_same_counts(fake, &begin);
      if (code == TT_OK) break;
    }
  }
  tensor_free(&bystander);
  tt_compile_stop();
  test_keeps_blocks(tt_memory_live_count() - live);
}

// ---- work that finishes late and in another order ----------------------------------------------------------------------------

static void check_chain(fake_plugin *fake) {
  enum { LENGTH = 40 };
  tensor x = {0}, one = {0}, copies[LENGTH] = {{0}};
  CHECK_OK(make_tensor(0, TT_F32, 0, &x));
  CHECK_OK(make_tensor(0, TT_F32, 1, &one));
  fake->hold(fake->order != FAKE_AT_ONCE);
  for (int i = 0; i < LENGTH; i++) {
    CHECK_OK(add(ops.add, &x, &one, 1, &copies[i])); // reads x, which the next call overwrites
    CHECK_OK(add(ops.add_in_place, &x, &one, 1, NULL));
  }
  fake->hold(false);
  for (int i = LENGTH - 1; i >= 0; i--) {
    check_value(&copies[i], (float)i + 1);
    tensor_free(&copies[i]);
  }
  check_value(&x, LENGTH);
  tensor_free(&x);
  tensor_free(&one);
  CHECK_OK(tt_synchronize(0));
}

TEST(run_gives_the_same_in_whatever_order_programs_finish) {
  fake_plugin *fake = fake_control();
  ops = start_fake("tpu", "1");
  int64_t live = tt_memory_live_count();
  for (int m = 0; m < MODES; m++) {
    CHECK_OK(tt_set_eager_mode((tt_eager_mode)modes[m]));
    for (int order = FAKE_AT_ONCE; order <= FAKE_SHUFFLED; order++) {
      if (modes[m] == TT_DEFER_NEVER_AND_LAUNCH_BLOCKING && order != FAKE_AT_ONCE) continue; // waits for what is held
      fake->order = order;
      check_chain(fake);
    }
  }
  CHECK_INT(fake->misuses, 0);
  tt_compile_stop();
  test_keeps_blocks(tt_memory_live_count() - live);
}

TEST(run_reports_a_failed_check_in_whatever_order_programs_finish) {
  fake_plugin *fake = fake_control();
  ops = start_fake("tpu", "1");
  int64_t live = tt_memory_live_count();
  tensor x = {0}, index = {0}, rows[8] = {{0}};
  CHECK_OK(make_tensor(0, TT_F32, 5, &x));
  CHECK_OK(make_tensor(0, TT_S64, 1, &index));
  for (int m = 0; m < MODES; m++) {
    CHECK_OK(tt_set_eager_mode((tt_eager_mode)modes[m]));
    for (int order = FAKE_AT_ONCE; order <= FAKE_SHUFFLED; order++) {
      fake->order = order;
      for (int k = 0; k < 2; k++) {
        fake->flag = k == 0;
        tt_status status = NULL;
        int count = 0;
        while (status == NULL && count < 8) {
          status = select_rows(ops.index_select, &x, &index, &rows[count]);
          if (status == NULL) count++;
        }
        status = tt_status_join(status, tt_synchronize(0));
        if (k == 0)
          CHECK_OK(status);
        else
          CHECK_FAILS(status, TT_INDEX, "index_select: index");
        CHECK_OK(tt_synchronize(0)); // once
        while (count > 0) tensor_free(&rows[--count]);
      }
    }
  }
  check_value(&x, 5);
  tensor_free(&x);
  tensor_free(&index);
  tt_compile_stop();
  test_keeps_blocks(tt_memory_live_count() - live);
}

// Whoever reads a value hears of a failed check of the call that made it, though the check's flag comes a little later.
static void read_what_failed(const char *platform) {
  fake_plugin *fake = fake_control();
  ops = start_fake(platform, "1");
  int64_t live = tt_memory_live_count();
  tensor x = {0}, index = {0}, rows = {0}, sum = {0};
  CHECK_OK(make_tensor(0, TT_F32, 5, &x));
  CHECK_OK(make_tensor(0, TT_S64, 1, &index));
  for (int m = 0; m < MODES; m++) {
    CHECK_OK(tt_set_eager_mode((tt_eager_mode)modes[m]));
    for (int i = 0; i < 40; i++) {
      fake->order = FAKE_AT_ONCE + i % 4;
      fake->flag = i % 2 == 0;
      float value = 0;
      tt_status status = select_rows(ops.index_select, &x, &index, &rows);
      if (status == NULL) status = add(ops.add, &rows, &x, 1, &sum);
      if (status == NULL) status = read_tensor(&sum, &value);
      if (fake->flag) {
        CHECK_OK(status);
        CHECK(value == 10);
      } else {
        CHECK_FAILS(status, TT_INDEX, "index_select: index");
      }
      CHECK_OK(tt_synchronize(0));
      if (rows.storage != NULL) tensor_free(&rows);
      if (sum.storage != NULL) tensor_free(&sum);
    }
  }
  tensor_free(&x);
  tensor_free(&index);
  tt_compile_stop();
  test_keeps_blocks(tt_memory_live_count() - live);
}

TEST(run_tells_a_reader_of_a_failed_check) { read_what_failed("tpu"); }
TEST(run_tells_a_reader_of_a_failed_check_on_a_host) { read_what_failed("cpu"); }

// ---- numbers -------------------------------------------------------------------------------------------------------------------

// A step's learning rate comes once, perhaps for each parameter: its buffer does not stay, unlike that of a number that comes
// in every step.
TEST(run_keeps_buffers_of_numbers_that_come_again) {
  fake_plugin *fake = fake_control();
  ops = start_fake("tpu", "1");
  int64_t live = tt_memory_live_count();
  tensor x = {0}, y = {0};
  CHECK_OK(make_tensor(0, TT_F32, 1, &x));
  int64_t most = 0, uploads = 0;
  for (int step = 0; step < 2000; step++) {
    const int numbers[] = {7, 1000 + step, 1000 + step, 8};
    uploads = fake->calls[FAKE_PJRT_Client_BufferFromHostBuffer];
    for (int i = 0; i < 4; i++) {
      CHECK_OK(add(ops.add, &x, &x, numbers[i], &y));
      if (step % 100 == 0) check_value(&y, (float)numbers[i] + 1);
      tensor_free(&y);
    }
    if (fake->live[FAKE_buffer] > most) most = fake->live[FAKE_buffer];
  }
  CHECK(most <= 140);
  CHECK_INT(fake->calls[FAKE_PJRT_Client_BufferFromHostBuffer], uploads + 1); // of the step's own number
  tensor_free(&x);
  CHECK_OK(tt_device_empty_cache());
  CHECK_OK(tt_synchronize(0));
  CHECK_INT(fake->live[FAKE_buffer], 0);
  tt_compile_stop();
  test_keeps_blocks(tt_memory_live_count() - live);
}
