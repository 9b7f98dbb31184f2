// test_run.c - core/graph's storages and core/run's process-wide state: addresses, values, memory, random numbers, start,
// queue, points, modes, counters.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "graph/storage.h"
#include "pjrt/executable.h"
#include "run/env.h"
#include "run/internal.h"
#include "run/random.h"
#include "runner.h"

// ---- helpers ---------------------------------------------------------------------------------------------------------

// What has been allocated since `live` stays: tables that live for ever.
static void keep_since(int64_t live) { test_keeps_blocks(tt_memory_live_count() - live); }

static tt_storage *create(tt_device *device, int64_t byte_size) {
  tt_storage *storage = NULL;
  CHECK_OK(tt_storage_create(device, byte_size, &storage));
  return storage;
}

// Makes the tables for storages of these sizes, which stay.
static void warm_up(tt_device *device, const int64_t *sizes, int count) {
  int64_t live = tt_memory_live_count();
  for (int i = 0; i < count; i++) tt_storage_release(create(device, sizes[i]));
  keep_since(live);
}
#define WARM_UP(device, ...)                                                                                            \
  warm_up(device, (const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static const tt_layout *layout_of(tt_dtype dtype, int rank, const int64_t *dims) {
  const tt_layout *layout = NULL;
  CHECK_OK(tt_layout_intern(dtype, rank, dims, &layout));
  return layout;
}

// Starts the runtime with the test's plugin.
static tt_device *start(void) {
  int64_t live = tt_memory_live_count();
  setenv("TORCH_TPU_PJRT_PLUGIN", test_plugin_path(), 1);
  CHECK_OK(tt_runtime_start());
  tt_device *device = NULL;
  CHECK_OK(tt_device_find(0, &device));
  keep_since(live);
  return device;
}

static tt_buffer *floats(tt_device *device, int64_t count, float value) {
  float *data = tt_calloc((size_t)count, sizeof(float));
  for (int64_t i = 0; i < count; i++) data[i] = value;
  tt_buffer *buffer = NULL;
  CHECK_OK(tt_buffer_from_host(device, data, TT_F32, 1, &count, TT_HOST_COPY, NULL, &buffer));
  tt_free(data);
  return buffer;
}

static void in_threads(int count, void *(*body)(void *), void *user) {
  pthread_t threads[8];
  for (int i = 0; i < count; i++) CHECK(pthread_create(&threads[i], NULL, body, user) == 0);
  for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

// A device without a plugin: enough for storages that never get a value.
static tt_device idle_device = {.index = 0, .memory_limit = (int64_t)1 << 40};

// ---- layouts ---------------------------------------------------------------------------------------------------------

TEST(layout_is_interned) {
  int64_t live = tt_memory_live_count(), dims[] = {2, 3, 4};
  const tt_layout *layout = layout_of(TT_F32, 3, dims);
  CHECK(layout == layout_of(TT_F32, 3, dims));
  CHECK(layout != layout_of(TT_BF16, 3, dims));
  CHECK(layout != layout_of(TT_F32, 2, dims));
  CHECK_INT(layout->count, 24);
  CHECK_INT(layout->byte_size, 96);
  CHECK_INT(layout->strides[0], 12);
  CHECK_INT(layout->strides[1], 4);
  CHECK_INT(layout->strides[2], 1);
  CHECK_INT(layout_of(TT_F64, 0, NULL)->byte_size, 8);
  int64_t wide[40];
  for (int i = 0; i < 40; i++) wide[i] = 1;
  CHECK(layout_of(TT_S8, 40, wide) == layout_of(TT_S8, 40, wide));
  keep_since(live);
}

TEST(layout_sizes_are_checked) {
  int64_t live = tt_memory_live_count();
  const tt_layout *layout = NULL;
  CHECK_FAILS(tt_layout_intern(TT_F32, 1, (int64_t[]){-1}, &layout), TT_INVALID_ARGUMENT, "negative");
  CHECK_FAILS(tt_layout_intern(TT_F32, 2, (int64_t[]){(int64_t)1 << 40, (int64_t)1 << 40}, &layout),
              TT_INVALID_ARGUMENT, "64 bits");
  CHECK_FAILS(tt_layout_intern(TT_F64, 1, (int64_t[]){(int64_t)1 << 61}, &layout), TT_INVALID_ARGUMENT, "64 bits");
  keep_since(live);
  live = tt_memory_live_count();
  layout = layout_of(TT_F32, 3, (int64_t[]){(int64_t)1 << 40, 0, (int64_t)1 << 40});
  CHECK_INT(layout->count, 0);
  CHECK_INT(layout->byte_size, 0);
  layout = layout_of(TT_F32, 2, (int64_t[]){3, 0});
  CHECK_INT(layout->strides[0], 1);
  keep_since(live);
}

static tt_status intern_new(void *user) {
  int64_t dims[20];
  for (int i = 0; i < 20; i++) dims[i] = 1;
  dims[0] = ++*(int64_t *)user;
  const tt_layout *layout = NULL;
  int64_t live = tt_memory_live_count();
  tt_status status = tt_layout_intern(TT_S8, 20, dims, &layout);
  // A failure leaves nothing behind.
  if (status != NULL && tt_memory_live_count() - live > 1)
    test_fail(__FILE__, __LINE__, "a failure left blocks behind");
  tt_status_free(status);
  return NULL;
}

TEST(layout_allocations_may_fail) {
  int64_t live = tt_memory_live_count(), dim = 0;
  for (int64_t n = 1; n < 8; n++) {
    tt_memory_fail_at(n, n % 2 == 0);
    CHECK_OK(intern_new(&dim));
    tt_memory_fail_at(0, false);
  }
  keep_since(live);
}

// ---- storages: addresses and memory ----------------------------------------------------------------------------------

TEST(storage_addresses_do_not_overlap) {
  static tt_device other = {.index = 3, .memory_limit = (int64_t)1 << 40};
  const int64_t sizes[] = {1, 64, 65, 4096, 5 << 20, (int64_t)3 << 30, (int64_t)40 << 30, 100, 100};
  enum { COUNT = sizeof(sizes) / sizeof(sizes[0]) };
  warm_up(&idle_device, sizes, COUNT);
  warm_up(&other, sizes, COUNT);
  tt_storage *storages[2 * COUNT];
  for (int i = 0; i < 2 * COUNT; i++) storages[i] = create(i % 2 == 0 ? &idle_device : &other, sizes[i / 2]);
  for (int i = 0; i < 2 * COUNT; i++) {
    uintptr_t low = (uintptr_t)storages[i]->address, high = low + (uintptr_t)storages[i]->byte_size;
    CHECK(low != 0 && low % 64 == 0);
    int first = -1, last = -1;
    CHECK(tt_storage_owns_address((void *)low, &first) && tt_storage_owns_address((void *)(high - 1), &last));
    CHECK_INT(first, storages[i]->device->index);
    CHECK_INT(last, storages[i]->device->index);
    for (int j = 0; j < i; j++) {
      uintptr_t low_j = (uintptr_t)storages[j]->address, high_j = low_j + (uintptr_t)storages[j]->byte_size;
      CHECK(high <= low_j || high_j <= low);
    }
  }
  int index = -1;
  CHECK(!tt_storage_owns_address(NULL, &index));
  CHECK(!tt_storage_owns_address(&index, &index));
  for (int i = 0; i < 2 * COUNT; i++) tt_storage_release(storages[i]);
}

TEST(storage_addresses_are_used_again) {
  WARM_UP(&idle_device, 1000, 1000000);
  tt_storage *a = create(&idle_device, 1000), *b = create(&idle_device, 1000);
  void *address_a = a->address, *address_b = b->address;
  tt_storage_release(a);
  tt_storage_release(b);
  a = create(&idle_device, 1000);
  CHECK(a->address == address_b); // last in, first out
  b = create(&idle_device, 999);
  CHECK(b->address == address_a);
  tt_storage_release(a);
  tt_storage_release(b);
  tt_storage *empty = create(&idle_device, 0);
  CHECK(empty->address == NULL);
  tt_storage_release(empty);
  tt_storage_release(NULL);
  tt_storage *storage = NULL;
  CHECK_FAILS(tt_storage_create(&idle_device, -1, &storage), TT_INVALID_ARGUMENT, "negative");
}

TEST(storage_range_is_split_when_dealt_out) {
  static tt_device huge = {.index = 0, .memory_limit = INT64_MAX};
  int64_t live = tt_memory_live_count();
  // All 16 TiB in one block, then small ones.
  tt_storage *all = NULL;
  tt_status status = tt_storage_create(&huge, (int64_t)1 << 44, &all);
  if (status != NULL) { // this system reserves less
    CHECK_FAILS(status, TT_OUT_OF_MEMORY, "address range");
    keep_since(live);
    return;
  }
  tt_storage *storage = NULL;
  CHECK_FAILS(tt_storage_create(&huge, 64, &storage), TT_OUT_OF_MEMORY, "no block of 64 bytes");
  tt_storage_release(all);
  tt_storage *small = create(&huge, 64), *large = create(&huge, (int64_t)1 << 43);
  CHECK((char *)large->address >= (char *)small->address + ((int64_t)1 << 43));
  tt_storage_release(small);
  tt_storage_release(large);
  keep_since(live);
}

TEST(storage_counts_until_it_has_a_value) {
  WARM_UP(&idle_device, 1 << 20);
  tt_memory_reset_peak(&idle_device);
  tt_storage *storage = create(&idle_device, 1 << 20);
  CHECK_INT(idle_device.memory.current, 1 << 20);
  tt_storage_set_counted(storage, false);
  tt_storage_set_counted(storage, false);
  CHECK_INT(idle_device.memory.current, 0);
  tt_storage_set_counted(storage, true);
  CHECK_INT(idle_device.memory.current, 1 << 20);
  tt_storage_clear(storage);
  CHECK_INT(idle_device.memory.current, 1 << 20);
  tt_storage_release(tt_storage_retain(storage));
  CHECK_INT(idle_device.memory.blocks_current, 1);
  tt_storage_release(storage);
  CHECK_INT(idle_device.memory.current, 0);
  CHECK_INT(idle_device.memory.peak, 1 << 20);
}

TEST(storage_limit_error_lists_largest) {
  static tt_device small = {.index = 1, .memory_limit = 100 << 20};
  WARM_UP(&small, 30 << 20, 10 << 20, 1 << 20);
  tt_storage *a = create(&small, 30 << 20), *b = create(&small, 20 << 20), *c = create(&small, 20 << 20);
  tt_storage *d = create(&small, 1 << 20), *storage = NULL;
  tt_status status = tt_storage_create(&small, (int64_t)1 << 50, &storage);
  CHECK_INT(tt_status_code(status), TT_OUT_OF_MEMORY);
  CHECK_TEXT(
      tt_status_message(status),
      "TPU out of memory. Tried to allocate 1024.00 TiB. TPU 1 has a total capacity of 100.00 MiB of which 29.00 MiB "
      "is free. Of the allocated memory 71.00 MiB is allocated by torch_tpu. Largest live tensors:\n"
      "  40.00 MiB  2 x uninitialised\n"
      "  30.00 MiB  uninitialised\n"
      "  1024.00 KiB  uninitialised");
  CHECK_INT(small.memory.out_of_memory_count, 0);
  tt_status_told(status);
  tt_status_free(status);
  CHECK_INT(small.memory.out_of_memory_count, 1);
  CHECK_FAILS(tt_storage_check_limit(&small, (29 << 20) + 1), TT_OUT_OF_MEMORY, "29.00 MiB");
  CHECK_OK(tt_storage_check_limit(&small, 29 << 20));
  CHECK_FAILS(tt_storage_explain_out_of_memory(&small, tt_error(TT_OUT_OF_MEMORY, "the plugin's words")),
              TT_OUT_OF_MEMORY, "the plugin's words\nLargest live tensors:\n  40.00 MiB");
  CHECK_FAILS(tt_storage_set_size(d, 100 << 20), TT_OUT_OF_MEMORY, "TPU out of memory");
  CHECK_INT(d->byte_size, 1 << 20);
  tt_storage_release(a);
  tt_storage_release(b);
  tt_storage_release(c);
  tt_storage_release(d);
}

static tt_status create_many(void *user) {
  tt_device *device = user;
  tt_storage *storages[40] = {NULL};
  tt_status status = NULL;
  for (int i = 0; i < 40 && status == NULL; i++) status = tt_storage_create(device, 1 << 16, &storages[i]);
  if (status == NULL) status = tt_storage_set_size(storages[0], 1 << 20);
  for (int i = 0; i < 40; i++) tt_storage_release(storages[i]);
  CHECK_INT(device->memory.current, 0);
  return status;
}

TEST(storage_allocations_may_fail) {
  WARM_UP(&idle_device, 1 << 16, 1 << 20);
  test_each_allocation_failing(create_many, &idle_device);
}

static void *churn(void *user) {
  tt_storage *shared = user;
  for (int i = 0; i < 300; i++) {
    tt_storage *mine = create(shared->device, 64 << (i % 8));
    tt_storage_retain(shared);
    int index = -1;
    CHECK(tt_storage_owns_address(mine->address, &index));
    if (i % 50 == 0) {
      tt_string text = TT_STRING_INIT;
      tt_storage_report(shared->device, 4, &text);
      tt_string_free(&text);
    }
    tt_storage_release(shared);
    tt_storage_release(mine);
  }
  return NULL;
}

TEST(storage_is_shared_by_threads) {
  WARM_UP(&idle_device, 64, 128, 256, 512, 1024, 2048, 4096, 8192);
  tt_storage *shared = create(&idle_device, 128);
  in_threads(4, churn, shared);
  CHECK_INT(shared->references, 1);
  tt_storage_release(shared);
  CHECK_INT(idle_device.memory.current, 0);
}

// ---- storages: values ------------------------------------------------------------------------------------------------

PLUGIN_TEST(storage_value_is_swapped_and_taken) {
  tt_device *device = start();
  WARM_UP(device, 64, 1 << 20);
  int64_t live = tt_memory_live_count(), dims[] = {16};
  const tt_layout *layout = layout_of(TT_F32, 1, dims), *smaller = layout_of(TT_F32, 1, (int64_t[]){8});
  const tt_layout *got_layout = NULL;
  keep_since(live);
  tt_storage *storage = create(device, 64);
  tt_buffer *buffer = NULL, *first = floats(device, 16, 1);
  CHECK_OK(tt_storage_read(storage, &buffer, &got_layout));
  CHECK(buffer == NULL && got_layout == NULL && tt_storage_layout(storage) == NULL);
  CHECK_INT(device->memory.current, 128);
  CHECK_OK(tt_storage_write(storage, first, layout));
  CHECK_INT(device->memory.current, 64);

  CHECK_OK(tt_storage_read(storage, &buffer, &got_layout));
  CHECK(buffer == first && got_layout == layout);
  bool sole = true;
  tt_buffer *taken = NULL;
  CHECK_OK(tt_storage_take(storage, &taken, &got_layout, &sole)); // `buffer` holds it too
  CHECK(taken == first && !sole);
  tt_buffer_release(taken);
  tt_buffer_release(buffer);
  CHECK_OK(tt_storage_take(storage, &taken, &got_layout, &sole));
  CHECK(taken == first && sole && got_layout == layout);
  CHECK(storage->buffer == NULL && tt_storage_layout(storage) == layout);
  CHECK_INT(device->memory.current, 64);
  CHECK_OK(tt_storage_write(storage, taken, layout));

  CHECK_FAILS(tt_storage_write(storage, floats(device, 8, 0), smaller), TT_INTERNAL, "32 bytes");
  tt_storage_clear(storage);
  CHECK_INT(device->memory.current, 64);
  tt_storage_release(storage);
  CHECK_INT(device->memory.current, 0);
  tt_memory_reset_peak(device);
  CHECK_OK(tt_storage_create_with(floats(device, 16, 2), layout, &storage));
  CHECK_INT(device->memory.peak, 64);
  void *address = storage->address;
  CHECK_OK(tt_storage_set_size(storage, 60)); // the block of 64 bytes serves
  CHECK(storage->address == address && storage->buffer == NULL);
  CHECK_INT(device->memory.current, 60);
  CHECK_OK(tt_storage_set_size(storage, 1 << 20));
  CHECK(storage->address != address);
  CHECK_OK(tt_storage_set_size(storage, 0));
  CHECK(storage->address == NULL);
  CHECK_INT(device->memory.current, 0);
  tt_storage_release(storage);
}

typedef struct write_job {
  tt_storage *storage;
  const tt_layout *layout;
} write_job;

static void *read_and_write(void *user) {
  write_job *job = user;
  for (int i = 0; i < 100; i++) {
    CHECK_OK(tt_storage_write(job->storage, floats(job->storage->device, 16, (float)i), job->layout));
    tt_buffer *buffer = NULL;
    const tt_layout *layout = NULL;
    bool sole = false;
    if (i % 3 == 0) {
      CHECK_OK(tt_storage_take(job->storage, &buffer, &layout, &sole));
    } else {
      CHECK_OK(tt_storage_read(job->storage, &buffer, &layout));
    }
    CHECK(buffer != NULL && layout == job->layout);
    if (sole) {
      CHECK_OK(tt_storage_write(job->storage, buffer, layout)); // for which the others wait
    } else {
      tt_buffer_release(buffer);
    }
  }
  return NULL;
}

PLUGIN_TEST(storage_value_is_shared_by_threads) {
  tt_device *device = start();
  WARM_UP(device, 64);
  int64_t live = tt_memory_live_count();
  write_job job = {.layout = layout_of(TT_F32, 1, (int64_t[]){16})};
  keep_since(live);
  job.storage = create(device, 64);
  in_threads(4, read_and_write, &job);
  tt_storage_release(job.storage);
  CHECK_INT(device->memory.current, 0);
}

// ---- random numbers --------------------------------------------------------------------------------------------------

TEST(generator_moves_on_by_fours) {
  tt_generator *g = NULL;
  CHECK_OK(tt_generator_create(2, 7, &g));
  CHECK_INT(tt_generator_device(g), 2);
  uint64_t state[2];
  tt_generator_advance(g, 5, state);
  CHECK_INT(state[0], 7);
  CHECK_INT(state[1], 0);
  tt_generator_advance(g, 0, state);
  CHECK_INT(state[1], 8);
  tt_generator_advance(g, 4, state);
  CHECK_INT(tt_generator_offset(g), 12);
  uint8_t bytes[TT_GENERATOR_STATE_SIZE];
  tt_generator_get_state(g, bytes);
  CHECK_INT(bytes[0], 7);
  CHECK_INT(bytes[8], 12);
  tt_generator_set_seed(g, 9);
  CHECK_INT(tt_generator_offset(g), 0);
  tt_generator_set_state(g, bytes);
  CHECK_INT(tt_generator_seed(g), 7);
  CHECK_INT(tt_generator_offset(g), 12);
  tt_generator_set_offset(g, 16);
  CHECK_INT(tt_generator_offset(g), 16);
  tt_generator_retain(g);
  tt_generator_release(g);
  tt_generator_release(g);
}

static void *draw(void *user) {
  uint64_t state[2];
  for (int i = 0; i < 1000; i++) tt_generator_advance(user, 3, state);
  return NULL;
}

TEST(generator_is_shared_by_threads) {
  tt_generator *g = NULL;
  CHECK_OK(tt_generator_create(0, 1, &g));
  in_threads(4, draw, g);
  CHECK_INT(tt_generator_offset(g), 16000);
  tt_generator_release(g);
}

PLUGIN_TEST(generator_default_is_one_per_device) {
  start();
  int64_t live = tt_memory_live_count();
  tt_generator *g = NULL, *again = NULL;
  CHECK_OK(tt_generator_default(0, &g));
  CHECK_OK(tt_generator_default(0, &again));
  keep_since(live);
  CHECK(g == again);
  CHECK(tt_generator_seed(g) == TT_DEFAULT_SEED);
  CHECK_FAILS(tt_generator_default(1, &again), TT_INVALID_ARGUMENT, "invalid device ordinal");
  CHECK_FAILS(tt_generator_default(-1, &again), TT_INVALID_ARGUMENT, "invalid device ordinal");
}

// ---- start -----------------------------------------------------------------------------------------------------------

PLUGIN_TEST(runtime_counts_devices_before_start) {
  int64_t live = tt_memory_live_count();
  CHECK_INT(tt_runtime_device_count(), tt_runtime_tpu_attached() ? tt_runtime_device_count() : 0);
  setenv("TORCH_TPU_PJRT_PLUGIN", test_plugin_path(), 1);
  setenv("TORCH_TPU_VIRTUAL_DEVICES", "3", 1);
  CHECK_INT(tt_runtime_device_count(), 3);
  CHECK(!tt_runtime_started());
  CHECK_OK(tt_set_current_device(2));
  CHECK_FAILS(tt_set_current_device(3), TT_INVALID_ARGUMENT, "invalid device ordinal");
  CHECK_INT(tt_current_device(), 2);
  CHECK_OK(tt_runtime_start());
  CHECK_INT(tt_runtime_device_count(), 3);
  tt_device *device = NULL;
  CHECK_OK(tt_device_find(2, &device));
  CHECK_INT(device->index, 2);
  CHECK_FAILS(tt_device_find(3, &device), TT_INVALID_ARGUMENT, "there are 3 devices");
  keep_since(live);
}

PLUGIN_TEST(runtime_tells_about_devices) {
  start();
  CHECK_OK(tt_runtime_start());
  tt_device_properties properties;
  CHECK_OK(tt_device_get_properties(0, &properties));
  CHECK_TEXT(properties.name, "virtual TPU (XLA CPU)");
  CHECK_TEXT(properties.platform, "cpu");
  CHECK_INT(properties.generation, 0);
  CHECK(properties.total_memory > 1 << 20);
  CHECK(!tt_runtime_target()->is_tpu && tt_runtime_target()->conv_needs_forward);
  int64_t free_bytes = 0, total = 0;
  CHECK_OK(tt_device_free_memory(0, &free_bytes, &total));
  CHECK(free_bytes == total && total == properties.total_memory);
  tt_memory_snapshot snapshot;
  CHECK_OK(tt_device_memory(0, &snapshot));
  CHECK_INT(snapshot.current, 0);
  CHECK_OK(tt_device_reset_peak_memory(0));
  CHECK_OK(tt_device_reset_accumulated_memory(0));
  CHECK_OK(tt_device_empty_cache());
  char *text = NULL;
  CHECK_OK(tt_runtime_info_json(&text));
  CHECK(strstr(text, "{\"error\": null, \"plugin\": \"/") == text);
  CHECK(strstr(text, "\"devices\": [{\"index\": 0, ") != NULL);
  CHECK(strstr(text, "\"TORCH_TPU_FALLBACK\": \"warn\"") != NULL);
  tt_text_free(text);
}

TEST(runtime_remembers_a_failed_start) {
  int64_t live = tt_memory_live_count();
  setenv("TORCH_TPU_PJRT_PLUGIN", "/nonexistent/plugin.so", 1);
  CHECK_INT(tt_runtime_device_count(), 0);
  CHECK_FAILS(tt_runtime_start(), TT_UNAVAILABLE, "/nonexistent/plugin.so");
  setenv("TORCH_TPU_PJRT_PLUGIN", "/elsewhere", 1);
  CHECK_FAILS(tt_runtime_start(), TT_UNAVAILABLE, "/nonexistent/plugin.so");
  CHECK_OK(tt_runtime_set_search_dirs((const char *const[]){"/a", "/b"}, 2));
  CHECK_FAILS(tt_runtime_start(), TT_UNAVAILABLE, "/elsewhere");
  CHECK_FAILS(tt_synchronize(0), TT_UNAVAILABLE, "/elsewhere");
  CHECK(tt_device_is_idle(0));
  char *text = NULL;
  CHECK_OK(tt_runtime_info_json(&text));
  CHECK(strstr(text, "\"path\": \"/elsewhere\"") != NULL);
  tt_text_free(text);
  keep_since(live);
}

TEST(runtime_names_bad_environment) {
  int64_t live = tt_memory_live_count();
  setenv("TORCH_TPU_FALLBACK", "maybe", 1);
  setenv("TORCH_TPU_VIRTUAL_DEVICES", "", 1);
  setenv("TORCH_TPU_LAUNCH_BLOCKING", "1", 1);
  CHECK_FAILS(tt_runtime_start(), TT_VALUE, "TORCH_TPU_FALLBACK is \"maybe\", expected error|warn|allow");
  CHECK_INT(tt_get_fallback(), TT_FALLBACK_WARN);
  CHECK_INT(tt_env_number(TT_ENV_VIRTUAL_DEVICES), 1);
  CHECK_INT(tt_get_eager_mode(), TT_DEFER_NEVER_AND_LAUNCH_BLOCKING);
  CHECK_TEXT(tt_env_text(TT_ENV_FALLBACK), "warn");
  keep_since(live);
}

PLUGIN_TEST(runtime_refuses_after_fork) {
  start();
  CHECK(!tt_runtime_in_bad_fork());
  pid_t child = fork();
  if (child == 0) {
    tt_status status = tt_runtime_start();
    bool good = tt_runtime_in_bad_fork() && tt_status_code(status) == TT_UNAVAILABLE &&
                strstr(tt_status_message(status), "Cannot re-initialize TPU in forked subprocess") != NULL &&
                tt_synchronize(0) != NULL && tt_device_is_idle(0);
    char *text = NULL;
    good = good && tt_runtime_info_json(&text) == NULL && strstr(text, "forked subprocess") != NULL;
    _exit(good ? 0 : 1);
  }
  int state = -1;
  CHECK(waitpid(child, &state, 0) == child);
  CHECK(WIFEXITED(state) && WEXITSTATUS(state) == 0);
  CHECK(!tt_runtime_in_bad_fork());
  CHECK_OK(tt_synchronize(0));
}

TEST(tpu_kinds_have_generations) {
  const char *name = NULL;
  CHECK_INT(tt_tpu_generation("TPU v5 lite", &name), 5);
  CHECK_TEXT(name, "TPU v5e");
  CHECK_INT(tt_tpu_generation("TPU v5", &name), 5);
  CHECK_TEXT(name, "TPU v5p");
  CHECK_INT(tt_tpu_generation("TPU v6 lite", &name), 6);
  CHECK_INT(tt_tpu_generation("TPU7x", &name), 7);
  CHECK_INT(tt_tpu_generation("TPU v9 huge", &name), 9);
  CHECK_TEXT(name, "TPU v9 huge");
  CHECK_INT(tt_tpu_generation("cpu", &name), 0);
}

// ---- modes, streams, counters ----------------------------------------------------------------------------------------

static void *check_other_thread(void *user) {
  (void)user;
  CHECK_INT(tt_get_eager_mode(), TT_DEFER_NEVER_AND_LAUNCH_BLOCKING);
  CHECK_INT(tt_get_precision(), TT_PRECISION_HIGHEST);
  CHECK_INT(tt_get_fallback(), TT_FALLBACK_ERROR);
  CHECK_INT(tt_stream_current(0), 0);
  CHECK_INT(tt_current_device(), 0);
  return NULL;
}

TEST(modes_belong_to_the_process_and_streams_to_threads) {
  int64_t live = tt_memory_live_count();
  CHECK_INT(tt_get_eager_mode(), TT_DEFER_NEVER);
  keep_since(live); // the environment's texts
  CHECK_INT(tt_get_precision(), -1);
  CHECK_OK(tt_set_eager_mode(TT_DEFER_NEVER_AND_LAUNCH_BLOCKING));
  CHECK_FAILS(tt_set_eager_mode((tt_eager_mode)3), TT_VALUE, "there is no eager mode 3");
  CHECK_INT(tt_get_eager_mode(), TT_DEFER_NEVER_AND_LAUNCH_BLOCKING);
  tt_set_precision(TT_PRECISION_HIGHEST);
  tt_set_fallback(TT_FALLBACK_ERROR);
  int64_t stream = tt_stream_new(0), other = tt_stream_new(0);
  CHECK(stream != 0 && other != stream);
  CHECK_INT(tt_stream_exchange(0, stream), 0);
  CHECK_INT(tt_stream_exchange(0, other), stream);
  in_threads(1, check_other_thread, NULL);
  CHECK_INT(tt_stream_current(0), other);
}

static void sum_fallbacks(void *user, const char *op, int64_t count) {
  *(int64_t *)user += strcmp(op, "aten::one") == 0 ? count : 1000 * count;
}

TEST(counters_count) {
  CHECK_TEXT(tt_counter_name(TT_COUNTER_plan_hits), "plan_hits");
  tt_counter_add(TT_COUNTER_compiles, 3);
  tt_counter_add(TT_COUNTER_compiles, 4);
  CHECK_INT(tt_counter_get(TT_COUNTER_compiles), 7);
  tt_count_fallback("aten::one");
  tt_count_fallback("aten::two");
  tt_count_fallback("aten::one");
  int64_t sum = 0;
  tt_each_fallback(sum_fallbacks, &sum);
  CHECK_INT(sum, 1002);
  tt_memory_fail_at(1, true);
  tt_count_fallback("aten::three");
  tt_memory_fail_at(0, false);
  tt_counters_reset();
  CHECK_INT(tt_counter_get(TT_COUNTER_compiles), 0);
  sum = 0;
  tt_each_fallback(sum_fallbacks, &sum);
  CHECK_INT(sum, 0);
}

// ---- the queue -------------------------------------------------------------------------------------------------------

// A product that takes some milliseconds, and a flag that is true if its operand is 1.
static const char slow_text[] =
    "module @slow {\n"
    "  func.func public @main(%a: tensor<700x700xf32>) -> (tensor<700x700xf32>, tensor<i1>) {\n"
    "    %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] :\n"
    "      (tensor<700x700xf32>, tensor<700x700xf32>) -> tensor<700x700xf32>\n"
    "    %1 = stablehlo.slice %0 [0:1, 0:1] : (tensor<700x700xf32>) -> tensor<1x1xf32>\n"
    "    %2 = stablehlo.reshape %1 : (tensor<1x1xf32>) -> tensor<f32>\n"
    "    %3 = stablehlo.constant dense<700.0> : tensor<f32>\n"
    "    %4 = stablehlo.compare EQ, %2, %3 : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
    "    return %0, %4 : tensor<700x700xf32>, tensor<i1>\n"
    "  }\n"
    "}\n";

typedef struct slow_program {
  tt_device *device;
  tt_executable *executable;
  tt_buffer *ones, *twos;
  int64_t live; // blocks while nothing runs
} slow_program;

static tt_buffer *square(tt_device *device, float value) {
  int64_t dims[] = {700, 700};
  float *data = tt_calloc(700 * 700, sizeof(float));
  for (int i = 0; i < 700 * 700; i++) data[i] = value;
  tt_buffer *buffer = NULL;
  CHECK_OK(tt_buffer_from_host(device, data, TT_F32, 2, dims, TT_HOST_COPY, NULL, &buffer));
  tt_free(data);
  return buffer;
}

static slow_program slow_create(void) {
  slow_program p = {.device = start()};
  tt_compile_options options = {0};
  int64_t live = tt_memory_live_count();
  CHECK_OK(tt_executable_compile(tt_runtime_client(), slow_text, sizeof(slow_text) - 1, &options, &p.executable));
  keep_since(live);
  p.ones = square(p.device, 1);
  p.twos = square(p.device, 2);
  return p;
}

static void slow_destroy(slow_program *p) {
  // The plugin lets go of a mark a little after it has told that the last event is ready.
  for (int i = 0; i < 1000 && tt_memory_live_count() > p->live; i++) usleep(1000);
  // The executable stays, as plans do: a thread of the plugin may still hold it, and must not be the one to destroy it while
  // the process ends.
  tt_buffer_release(p->ones);
  tt_buffer_release(p->twos);
}

// Starts the program, with a check of its flag if `checked`.
static void slow_run(slow_program *p, tt_buffer *operand, bool checked) {
  void *outputs[2] = {NULL, NULL};
  tt_event done = {NULL, NULL};
  tt_buffer *product = NULL, *flag = NULL;
  CHECK_OK(tt_executable_execute(p->executable, p->device, &operand, 1, NULL, outputs, &done));
  CHECK_OK(tt_buffer_wrap(p->device, outputs[0], 700 * 700 * 4, "mm", &product));
  CHECK_OK(tt_buffer_wrap(p->device, outputs[1], 1, "mm", &flag));
  tt_queue_add(p->device, done, "mm");
  if (checked) {
    tt_queue_add_check(p->device, (tt_check){flag, "mm", TT_INDEX, "the operand is not one", NULL}, false);
  } else {
    tt_buffer_release(flag);
  }
  tt_buffer_release(product);
}

// The queue's ring is made at the first program that does not finish at once, and stays.
static void warm_up_queue(slow_program *p) {
  int64_t live = tt_memory_live_count();
  for (int i = 0; i < 3; i++) slow_run(p, p->ones, true);
  CHECK_OK(tt_queue_wait(p->device));
  keep_since(live);
  p->live = tt_memory_live_count();
}

PLUGIN_TEST(queue_waits_for_all) {
  slow_program p = slow_create();
  warm_up_queue(&p);
  tt_counters_reset();
  CHECK(tt_device_is_idle(0));
  for (int i = 0; i < 6; i++) slow_run(&p, p.ones, true);
  CHECK_OK(tt_synchronize(0));
  CHECK(tt_device_is_idle(0));
  CHECK_INT(tt_counter_get(TT_COUNTER_host_waits), 1);
  CHECK_OK(tt_queue_take_failure(p.device));
  tt_queue_add(p.device, (tt_event){NULL, NULL}, "nothing");
  CHECK_OK(tt_synchronize(0));
  slow_destroy(&p);
}

PLUGIN_TEST(queue_reports_a_failed_check_once) {
  slow_program p = slow_create();
  warm_up_queue(&p);
  slow_run(&p, p.ones, true);
  slow_run(&p, p.twos, true);
  slow_run(&p, p.twos, true);
  slow_run(&p, p.ones, true);
  CHECK_FAILS(tt_synchronize(0), TT_INDEX, "mm: the operand is not one");
  CHECK_OK(tt_synchronize(0));
  // A flag that is known at once.
  bool no = false, yes = true;
  tt_buffer *flag = NULL;
  CHECK_OK(tt_buffer_from_host(p.device, &no, TT_BOOL, 0, NULL, TT_HOST_COPY, NULL, &flag));
  CHECK_OK(tt_buffer_wait(flag));
  tt_queue_add_check(p.device, (tt_check){flag, "index_select", TT_INDEX, "index out of range in self", NULL}, false);
  CHECK_OK(tt_buffer_from_host(p.device, &yes, TT_BOOL, 0, NULL, TT_HOST_COPY, NULL, &flag));
  tt_queue_add_check(p.device, (tt_check){flag, "gather", TT_INDEX, "not this", NULL}, false);
  CHECK_FAILS(tt_queue_take_failure(p.device), TT_INDEX, "index_select: index out of range in self");
  CHECK_OK(tt_queue_take_failure(p.device));
  slow_destroy(&p);
}

static void *run_and_wait(void *user) {
  for (int i = 0; i < 6; i++) {
    slow_program *p = user;
    slow_run(p, p->ones, i % 2 == 0);
    tt_mark *mark = NULL;
    CHECK_OK(tt_queue_mark(p->device, &mark));
    if (i % 3 == 1) CHECK_OK(tt_queue_wait(p->device));
    if (i % 3 == 2) tt_mark_wait(mark);
    tt_queue_is_idle(p->device);
    CHECK_OK(tt_queue_take_failure(p->device));
    tt_mark_release(mark);
  }
  return NULL;
}

PLUGIN_TEST(queue_is_shared_by_threads) {
  slow_program p = slow_create();
  warm_up_queue(&p);
  in_threads(4, run_and_wait, &p);
  CHECK_OK(tt_queue_wait(p.device));
  CHECK(tt_queue_is_idle(p.device));
  slow_destroy(&p);
}

PLUGIN_TEST(queue_is_bounded) {
  tt_device *device = start();
  // A ready buffer's events finish at once; a chain behind a slow program fills the ring.
  slow_program p = slow_create();
  warm_up_queue(&p);
  slow_run(&p, p.ones, false);
  for (int i = 0; i < 1500; i++) {
    bool yes = true;
    tt_buffer *flag = NULL;
    CHECK_OK(tt_buffer_from_host(device, &yes, TT_BOOL, 0, NULL, TT_HOST_COPY, NULL, &flag));
    tt_queue_add_check(device, (tt_check){flag, "chain", TT_INTERNAL, "must not fail", NULL}, false);
    tt_queue_add(device, (tt_event){NULL, NULL}, "nothing");
  }
  for (int i = 0; i < 20; i++) slow_run(&p, p.ones, true);
  CHECK_OK(tt_queue_wait(device));
  slow_destroy(&p);
}

PLUGIN_TEST(settle_waits_for_programs) {
  tt_runtime_settle();
  slow_program p = slow_create();
  warm_up_queue(&p);
  for (int i = 0; i < 10; i++) slow_run(&p, p.ones, false);
  tt_runtime_settle();
  CHECK(tt_device_is_idle(0));
  slow_destroy(&p);
}

PLUGIN_TEST(point_tells_when_work_is_done) {
  slow_program p = slow_create();
  warm_up_queue(&p);
  tt_point *start_point = NULL, *end_point = NULL;
  double ms = -1;
  CHECK_OK(tt_point_create(0, &start_point));
  CHECK_OK(tt_point_create(0, &end_point));
  CHECK(tt_point_query(start_point));
  CHECK_OK(tt_point_wait(start_point));
  CHECK_FAILS(tt_point_elapsed_ms(start_point, end_point, &ms), TT_VALUE, "Both events must be recorded");
  CHECK_OK(tt_point_record(start_point, 0));
  CHECK(tt_point_query(start_point));
  for (int i = 0; i < 8; i++) slow_run(&p, p.ones, true);
  CHECK_OK(tt_point_record(end_point, 0));
  if (!tt_point_query(end_point)) { // a machine fast enough needs no wait
    tt_status status = tt_point_elapsed_ms(start_point, end_point, &ms);
    if (status != NULL) CHECK_FAILS(status, TT_INVALID_ARGUMENT, "Both events must be completed");
  }
  CHECK_OK(tt_synchronize(0));
  CHECK_OK(tt_point_elapsed_ms(start_point, end_point, &ms)); // after a synchronize, whatever the plugin's callbacks do
  CHECK(ms > 0.1 && ms < 50000);
  // Recorded again when nothing runs: now.
  CHECK_OK(tt_point_record(end_point, 0));
  double later = 0;
  CHECK_OK(tt_point_elapsed_ms(start_point, end_point, &later));
  CHECK(later >= ms);
  slow_run(&p, p.twos, true);
  CHECK_OK(tt_point_record(end_point, 0));
  tt_status status = tt_point_wait(end_point);
  CHECK_FAILS(status, TT_INDEX, "mm: the operand is not one");
  CHECK(tt_point_query(end_point));
  CHECK_FAILS(tt_point_record(end_point, 5), TT_INVALID_ARGUMENT, "invalid device ordinal");
  tt_point_destroy(start_point);
  tt_point_destroy(end_point);
  tt_point_destroy(NULL);
  slow_destroy(&p);
}

static tt_status record_points(void *user) {
  tt_point *point = NULL;
  (void)user;
  TT_TRY(tt_point_create(0, &point));
  tt_status status = tt_point_record(point, 0);
  tt_point_destroy(point);
  return status;
}

PLUGIN_TEST(point_allocations_may_fail) {
  start();
  test_each_allocation_failing(record_points, NULL);
}
