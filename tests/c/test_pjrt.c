// test_pjrt.c - core/pjrt: the conformance suite that every PJRT plugin must pass, and the search for plugins.
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/pool.h"
#include "base/string.h"
#include "pjrt/buffer.h"
#include "pjrt/client.h"
#include "pjrt/event.h"
#include "pjrt/executable.h"
#include "pjrt/imports.h"
#include "pjrt/plugin.h"
#include "runner.h"

// ---- helpers ---------------------------------------------------------------------------------------------------------

static tt_plugin *open_plugin_file(const char *path) {
  int64_t live = tt_memory_live_count();
  tt_plugin *plugin = NULL;
  CHECK_OK(tt_plugin_open_file(path, &plugin));
  test_keeps_blocks(tt_memory_live_count() - live); // plugins stay
  return plugin;
}

static tt_plugin *open_plugin(void) { return open_plugin_file(test_plugin_path()); }

static tt_client *create_client(int devices) {
  tt_client *client = NULL;
  CHECK_OK(tt_client_create(open_plugin(), devices, &client));
  return client;
}

static const tt_compile_options default_options = {0};

static tt_executable *compile(tt_client *client, const char *text, const tt_compile_options *options) {
  tt_executable *executable = NULL;
  CHECK_OK(tt_executable_compile(client, text, (int64_t)strlen(text), options, &executable));
  return executable;
}

static tt_buffer *from_host(tt_device *device, const void *data, tt_dtype dtype, int rank, const int64_t *dims) {
  tt_buffer *buffer = NULL;
  CHECK_OK(tt_buffer_from_host(device, data, dtype, rank, dims, TT_HOST_COPY, NULL, &buffer));
  return buffer;
}

static tt_buffer *from_floats(tt_device *device, const float *data, int64_t count) {
  return from_host(device, data, TT_F32, 1, &count);
}

static void to_host(const tt_buffer *buffer, void *data, int64_t size) {
  tt_event done = {NULL, NULL};
  CHECK_OK(tt_buffer_to_host(buffer, data, size, &done));
  CHECK_OK(tt_event_wait(&done));
  tt_event_release(&done);
}

// Runs a program of one output on `device` and wraps that.
static tt_buffer *run(tt_executable *executable, tt_device *device, tt_buffer *const *arguments, int count,
                      const uint64_t *keep, int64_t byte_size) {
  void *output = NULL;
  tt_buffer *buffer = NULL;
  CHECK_INT(executable->output_count, 1);
  CHECK_OK(tt_executable_execute(executable, device, arguments, count, keep, &output, NULL));
  CHECK_OK(tt_buffer_wrap(device, output, byte_size, "test", &buffer));
  return buffer;
}

static const char add_text[] = "module @add {\n"
                               "  func.func public @main(%a: tensor<16xf32>, %b: tensor<16xf32>) -> tensor<16xf32> {\n"
                               "    %0 = stablehlo.add %a, %b : tensor<16xf32>\n"
                               "    return %0 : tensor<16xf32>\n"
                               "  }\n"
                               "}\n";

// The sum goes into the memory of the first argument, if that may be had.
static const char donating_add_text[] = "module @add {\n"
                                        "  func.func public @main(%a: tensor<16xf32> {tf.aliasing_output = 0 : i32}, "
                                        "%b: tensor<16xf32>) -> tensor<16xf32> {\n"
                                        "    %0 = stablehlo.add %a, %b : tensor<16xf32>\n"
                                        "    return %0 : tensor<16xf32>\n"
                                        "  }\n"
                                        "}\n";

static void fill(float *data, int count, float first) {
  for (int i = 0; i < count; i++) data[i] = first + (float)i;
}

// buffer[i] must be first + step * i.
static void check_floats(const tt_buffer *buffer, int count, float first, float step) {
  float data[256];
  to_host(buffer, data, (int64_t)sizeof(float) * count);
  for (int i = 0; i < count; i++) {
    float expected = first + step * (float)i;
    if (data[i] != expected) test_fail(__FILE__, __LINE__, "element %d is %g, expected %g", i, data[i], expected);
  }
}

// ---- plugins ---------------------------------------------------------------------------------------------------------

PLUGIN_TEST(plugin_opens_once) {
  tt_plugin *plugin = open_plugin(), *again = open_plugin();
  CHECK(plugin == again);
  CHECK_TEXT(tt_plugin_path(plugin), test_plugin_path());
  int major = -1, minor = -1;
  tt_plugin_version(plugin, &major, &minor);
  CHECK_INT(major, 0);
  CHECK(minor >= TT_PJRT_MINOR_MIN);
}

TEST(plugin_file_errors_are_clean) {
  tt_plugin *plugin = NULL;
  CHECK_FAILS(tt_plugin_open_file("/nonexistent/plugin.so", &plugin), TT_UNAVAILABLE, "No such file");
  CHECK_FAILS(tt_plugin_open_file("libm.so.6", &plugin), TT_UNAVAILABLE, "libm.so.6: not a PJRT plugin");
  CHECK_FAILS(tt_plugin_open_file("/proc/self/status", &plugin), TT_UNAVAILABLE, "/proc/self/status");
  CHECK(plugin == NULL);
}

TEST(plugin_search_names_every_place) {
  unsetenv("TORCH_TPU_PJRT_PLUGIN");
  unsetenv("TPU_LIBRARY_PATH");
  const char *dirs[] = {"/nonexistent/a", "/nonexistent/b"};
  tt_plugin *plugin = NULL;
  tt_plugin_probes probes;
  tt_status status = tt_plugin_open(dirs, 2, &probes, &plugin);
  static const char *const parts[] = {"TORCH_TPU_PJRT_PLUGIN: not set",
                                      "libtpu",
                                      "fastatomstruct-xla-cpu: /nonexistent/a/fastatomstruct_xla_cpu/",
                                      "lammps-jax-pjrt-cpu",
                                      "/xla_cpu_pjrt.so: No such file",
                                      "/nonexistent/b/"};
  for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
    if (strstr(tt_status_message(status), parts[i]) == NULL) {
      test_fail(__FILE__, __LINE__, "no \"%s\" in: %s", parts[i], tt_status_message(status));
    }
  }
  CHECK_FAILS(status, TT_UNAVAILABLE, "no PJRT plugin could be loaded");
  CHECK(probes.count >= 8);
  for (size_t i = 0; i < probes.count; i++) CHECK(probes.items[i].source != NULL && probes.items[i].reason != NULL);
  tt_plugin_probes_free(&probes);
  CHECK_FAILS(tt_plugin_open(NULL, 0, NULL, &plugin), TT_UNAVAILABLE, "no PJRT plugin");
}

TEST(plugin_search_keeps_to_the_variable) {
  setenv("TORCH_TPU_PJRT_PLUGIN", "/nonexistent/mine.so", 1);
  tt_plugin *plugin = NULL;
  tt_plugin_probes probes;
  CHECK_FAILS(tt_plugin_open(NULL, 0, &probes, &plugin), TT_UNAVAILABLE,
              "TORCH_TPU_PJRT_PLUGIN: /nonexistent/mine.so: No such file");
  CHECK_INT(probes.count, 1);
  tt_plugin_probes_free(&probes);
}

PLUGIN_TEST(plugin_search_takes_the_variable) {
  setenv("TORCH_TPU_PJRT_PLUGIN", test_plugin_path(), 1);
  tt_plugin *kept = open_plugin(), *plugin = NULL;
  tt_plugin_probes probes;
  CHECK_OK(tt_plugin_open(NULL, 0, &probes, &plugin));
  CHECK(plugin == kept);
  CHECK_INT(probes.count, 1);
  CHECK(probes.items[0].reason == NULL);
  CHECK_TEXT(probes.items[0].path, test_plugin_path());
  tt_plugin_probes_free(&probes);
}

// A folder like site-packages in which the second known plugin is the one under test and the first is no plugin at all.
static void make_site_packages(char *root, size_t size) {
  char path[512];
  snprintf(root, size, "/tmp/tt_test_XXXXXX");
  CHECK(mkdtemp(root) != NULL);
  snprintf(path, sizeof(path),
           "mkdir %s/fastatomstruct_xla_cpu %s/lammps_jax_pjrt_cpu && echo text > "
           "%s/fastatomstruct_xla_cpu/libpjrt_cpu.so",
           root, root, root);
  CHECK_INT(system(path), 0);
  snprintf(path, sizeof(path), "%s/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so", root);
  CHECK_INT(symlink(test_plugin_path(), path), 0);
}

static void remove_site_packages(const char *root) {
  char command[512];
  snprintf(command, sizeof(command), "rm -r %s", root);
  CHECK_INT(system(command), 0);
}

static tt_status search_scenario(void *user) {
  const char *dir = user;
  tt_plugin *plugin = NULL;
  tt_plugin_probes probes;
  tt_status status = tt_plugin_open(&dir, 1, &probes, &plugin);
  tt_plugin_probes_free(&probes);
  return status;
}

PLUGIN_TEST(plugin_search_goes_past_broken_files) {
  unsetenv("TORCH_TPU_PJRT_PLUGIN");
  char root[64];
  make_site_packages(root, sizeof(root));
  const char *dir = root;
  tt_plugin *kept = open_plugin(), *plugin = NULL;
  tt_plugin_probes probes;
  CHECK_OK(tt_plugin_open(&dir, 1, &probes, &plugin));
  CHECK(plugin == kept);
  CHECK_INT(probes.count, 4);
  CHECK_TEXT(probes.items[2].source, "fastatomstruct-xla-cpu");
  CHECK(strstr(probes.items[2].reason, "libpjrt_cpu.so") != NULL);
  CHECK(probes.items[3].reason == NULL);
  tt_plugin_probes_free(&probes);
  test_each_allocation_failing(search_scenario, root);
  remove_site_packages(root);
}

TEST(imports_of_other_libraries_stay) {
  void *library = dlopen("libm.so.6", RTLD_NOW);
  CHECK(library != NULL);
  const tt_import none[] = {{"no_such_function", (void *)tt_pool_trim}, {"sin", (void *)tt_pool_trim}};
  CHECK_INT(tt_imports_replace(library, none, 2), 0); // one nowhere, one of its own
  CHECK(sin(0.5) > 0.47 && sin(0.5) < 0.48);
  CHECK_INT(tt_imports_replace(dlopen(NULL, RTLD_NOW), none, 1), 0);
}

PLUGIN_TEST(plugins_live_side_by_side) {
  // All plugins of the list in one process, each with a client.
  char list[4096];
  snprintf(list, sizeof(list), "%s", getenv("TT_TEST_PLUGINS"));
  tt_client *clients[8] = {NULL};
  int count = 0;
  char *rest = list;
  for (const char *path; count < 8 && (path = strsep(&rest, ":")) != NULL;) {
    if (path[0] != '\0') CHECK_OK(tt_client_create(open_plugin_file(path), 1, &clients[count++]));
  }
  float a[16], b[16];
  fill(a, 16, 1);
  fill(b, 16, 100);
  for (int i = 0; i < count; i++) {
    tt_device *device = tt_client_device(clients[i], 0);
    tt_executable *executable = compile(clients[i], add_text, &default_options);
    tt_buffer *arguments[] = {from_floats(device, a, 16), from_floats(device, b, 16)};
    tt_buffer *sum = run(executable, device, arguments, 2, NULL, sizeof(a));
    check_floats(sum, 16, 101, 2);
    tt_buffer_release(sum);
    tt_buffer_release(arguments[0]);
    tt_buffer_release(arguments[1]);
    tt_executable_release(executable);
  }
  for (int i = 0; i < count; i++) tt_client_destroy(clients[i]);
}

// ---- clients ---------------------------------------------------------------------------------------------------------

PLUGIN_TEST(client_has_devices) {
  static const int counts[] = {1, 4};
  for (size_t i = 0; i < 2; i++) {
    tt_client *client = create_client(counts[i]);
    CHECK_INT(tt_client_device_count(client), counts[i]);
    CHECK_TEXT(tt_client_platform(client), "cpu");
    CHECK(tt_client_platform_version(client)[0] != '\0');
    CHECK(tt_client_is_host(client));
    CHECK(tt_client_device(client, -1) == NULL && tt_client_device(client, counts[i]) == NULL);
    for (int j = 0; j < counts[i]; j++) {
      tt_device *device = tt_client_device(client, j);
      CHECK(device->client == client && device->pjrt != NULL && device->kind[0] != '\0');
      CHECK_INT(device->index, j);
      CHECK(device->memory_limit > 1 << 20);
      CHECK_INT(device->memory.current, 0);
    }
    tt_client_destroy(client);
  }
  tt_client_destroy(NULL);
}

static tt_status client_scenario(void *user) {
  tt_client *client = NULL;
  TT_TRY(tt_client_create(user, 2, &client));
  tt_client_destroy(client);
  return TT_SUCCESS;
}

PLUGIN_TEST(client_each_allocation_failing) { test_each_allocation_failing(client_scenario, open_plugin()); }

PLUGIN_TEST(memory_statistics) {
  tt_client *client = create_client(1);
  tt_device *device = tt_client_device(client, 0);
  tt_memory_stats *stats = &device->memory;
  float data[16] = {0};
  tt_buffer *a = from_floats(device, data, 16), *b = from_floats(device, data, 8);
  CHECK_INT(stats->current, 96);
  CHECK_INT(stats->peak, 96);
  CHECK_INT(stats->blocks_current, 2);
  tt_buffer_release(tt_buffer_retain(a)); // not the last reference
  CHECK_INT(stats->current, 96);
  tt_buffer_release(a);
  CHECK_INT(stats->current, 32);
  CHECK_INT(stats->peak, 96);
  CHECK_INT(stats->freed, 64);
  tt_memory_reset_peak(device);
  CHECK_INT(stats->peak, 32);
  CHECK_INT(stats->blocks_peak, 1);
  CHECK_INT(stats->allocated, 96);
  tt_memory_reset_accumulated(device);
  CHECK_INT(stats->allocated, 0);
  CHECK_INT(stats->blocks_freed, 0);
  CHECK_INT(stats->current, 32);
  tt_buffer_release(b);
  CHECK_INT(stats->current, 0);
  tt_client_destroy(client);
}

// ---- buffers ---------------------------------------------------------------------------------------------------------

static const tt_host_semantics all_semantics[] = {TT_HOST_COPY, TT_HOST_UNTIL_DONE, TT_HOST_ZERO_COPY,
                                                  TT_HOST_ZERO_COPY_MUTABLE};

static void check_round_trip(tt_device *device, tt_dtype dtype, tt_host_semantics semantics) {
  static _Alignas(64) unsigned char source[3 * 5 * 16];
  unsigned char back[sizeof(source)];
  const int64_t dims[] = {3, 5}, size = 15 * tt_dtype_size(dtype);
  for (size_t i = 0; i < sizeof(source); i++) source[i] = (unsigned char)(dtype == TT_BOOL ? i % 3 == 0 : i * 7);

  tt_event done = {NULL, NULL};
  tt_buffer *buffer = NULL;
  CHECK_OK(tt_buffer_from_host(device, source, dtype, 2, dims, semantics, &done, &buffer));
  CHECK_INT(buffer->byte_size, size);
  if (semantics == TT_HOST_COPY) memset(source, 0xee, sizeof(source)); // ours again
  CHECK_OK(tt_buffer_wait(buffer));
  CHECK(tt_buffer_is_ready(buffer));
  to_host(buffer, back, size);
  for (int64_t i = 0; i < size; i++) {
    unsigned char expected = (unsigned char)(dtype == TT_BOOL ? i % 3 == 0 : i * 7);
    if (back[i] != expected) {
      test_fail(__FILE__, __LINE__, "%s, semantics %d: byte %d is %d, expected %d", tt_dtype_text(dtype),
                (int)semantics, (int)i, back[i], expected);
    }
  }
  tt_buffer_release(buffer);
  CHECK_OK(tt_event_wait(&done)); // a lent source comes back at the latest now
  tt_event_release(&done);
}

PLUGIN_TEST(buffer_of_each_dtype_and_semantics) {
  tt_client *client = create_client(1);
  for (int dtype = TT_DTYPE_NONE + 1; dtype < TT_DTYPE_COUNT; dtype++) {
    for (size_t i = 0; i < 4; i++) check_round_trip(tt_client_device(client, 0), (tt_dtype)dtype, all_semantics[i]);
  }
  tt_client_destroy(client);
}

PLUGIN_TEST(buffer_without_elements_and_without_dimensions) {
  tt_client *client = create_client(1);
  tt_device *device = tt_client_device(client, 0);
  const int64_t shapes[][3] = {{0, 1, 1}, {3, 0, 2}, {INT64_MAX, INT64_MAX, 0}};
  for (size_t i = 0; i < 2; i++) {
    for (size_t j = 0; j < 4; j++) {
      tt_buffer *empty = NULL;
      tt_event done = {NULL, NULL};
      CHECK_OK(tt_buffer_from_host(device, NULL, TT_F32, 3, shapes[i], all_semantics[j], &done, &empty));
      CHECK_INT(empty->byte_size, 0);
      to_host(empty, NULL, 0);
      CHECK_OK(tt_buffer_wait(empty));
      tt_buffer_release(empty);
      CHECK_OK(tt_event_wait(&done));
      tt_event_release(&done);
    }
  }
  double pi = 3.25, back = 0;
  tt_buffer *scalar = from_host(device, &pi, TT_F64, 0, NULL);
  CHECK_INT(scalar->byte_size, 8);
  to_host(scalar, &back, sizeof(back));
  CHECK(back == pi);
  tt_buffer_release(scalar);
  tt_client_destroy(client);
}

PLUGIN_TEST(buffer_refuses_what_would_crash) {
  tt_client *client = create_client(1);
  tt_device *device = tt_client_device(client, 0);
  static const float data[4];
  const int64_t good[] = {2, 2}, negative[] = {2, -2}, huge[] = {INT64_MAX / 2, 3};
  tt_buffer *buffer = NULL;
  tt_event event;
  CHECK_FAILS(tt_buffer_from_host(device, data, TT_DTYPE_NONE, 2, good, TT_HOST_COPY, NULL, &buffer),
              TT_INVALID_ARGUMENT, "dtype");
  CHECK_FAILS(tt_buffer_from_host(device, data, (tt_dtype)99, 2, good, TT_HOST_COPY, NULL, &buffer),
              TT_INVALID_ARGUMENT, "dtype");
  CHECK_FAILS(tt_buffer_from_host(device, data, TT_F32, 2, negative, TT_HOST_COPY, NULL, &buffer), TT_INVALID_ARGUMENT,
              "size -2 of dimension 1 is negative");
  CHECK_FAILS(tt_buffer_from_host(device, data, TT_F32, 2, huge, TT_HOST_COPY, NULL, &buffer), TT_INVALID_ARGUMENT,
              "64 bits");
  CHECK_FAILS(tt_buffer_from_host(device, data, TT_F32, -1, good, TT_HOST_COPY, NULL, &buffer), TT_INVALID_ARGUMENT,
              "dimensions");
  CHECK_FAILS(tt_buffer_from_host(device, data, TT_F32, 2, good, TT_HOST_ZERO_COPY, NULL, &buffer), TT_INTERNAL,
              "event");
  CHECK(buffer == NULL);
  CHECK_OK(tt_buffer_from_host(device, data, TT_F32, 2, good, TT_HOST_COPY, NULL, &buffer));
  float back[4];
  CHECK_FAILS(tt_buffer_to_host(buffer, back, 15, &event), TT_INVALID_ARGUMENT, "does not fit 15 bytes");
  tt_buffer_release(buffer);
  tt_buffer_release(NULL);
  CHECK_INT(device->memory.current, 0);
  tt_client_destroy(client);
}

PLUGIN_TEST(buffer_zero_copy_shares_memory) {
  tt_client *client = create_client(1);
  tt_device *device = tt_client_device(client, 0);
  static _Alignas(64) float data[16];
  const int64_t count = 16;
  for (size_t i = 2; i < 4; i++) {
    tt_event done = {NULL, NULL};
    tt_buffer *buffer = NULL;
    void *address = NULL;
    CHECK_OK(tt_buffer_from_host(device, data, TT_F32, 1, &count, all_semantics[i], &done, &buffer));
    CHECK_OK(tt_buffer_wait(buffer));
    CHECK_OK(tt_buffer_host_data(buffer, &address));
    CHECK(address == data);
    CHECK(!tt_event_is_ready(&done));
    tt_buffer_release(buffer);
    CHECK_OK(tt_event_wait(&done));
    CHECK(tt_event_is_ready(&done));
    tt_event_release(&done);
  }
  tt_client_destroy(client);
}

PLUGIN_TEST(buffer_copies_to_another_device) {
  tt_client *client = create_client(2);
  tt_device *first = tt_client_device(client, 0), *second = tt_client_device(client, 1);
  float data[16];
  fill(data, 16, 3);
  tt_buffer *source = from_floats(first, data, 16), *copy = NULL;
  CHECK_OK(tt_buffer_to_device(source, second, &copy));
  CHECK(copy->device == second);
  CHECK_INT(second->memory.current, 64);
  CHECK_INT(first->memory.current, 64);
  void *source_data = NULL, *copy_data = NULL;
  CHECK_OK(tt_buffer_wait(copy));
  CHECK_OK(tt_buffer_host_data(source, &source_data));
  CHECK_OK(tt_buffer_host_data(copy, &copy_data));
  CHECK(source_data != copy_data);
  tt_buffer_release(source);
  check_floats(copy, 16, 3, 1);
  tt_buffer_release(copy);
  tt_client_destroy(client);
}

static tt_status buffer_scenario(void *user) {
  tt_client *client = user;
  tt_device *device = tt_client_device(client, 0);
  static const float data[4] = {1, 2, 3, 4};
  const int64_t count = 4;
  tt_buffer *buffer = NULL, *copy = NULL;
  tt_status status = tt_buffer_from_host(device, data, TT_F32, 1, &count, TT_HOST_COPY, NULL, &buffer);
  if (status == NULL) status = tt_buffer_to_device(buffer, tt_client_device(client, 1), &copy);
  if (status == NULL) status = tt_buffer_wait(copy);
  tt_buffer_release(copy);
  tt_buffer_release(buffer);
  return status;
}

PLUGIN_TEST(buffer_each_allocation_failing) {
  tt_client *client = create_client(2);
  test_each_allocation_failing(buffer_scenario, client);
  CHECK_INT(tt_client_device(client, 0)->memory.current, 0);
  CHECK_INT(tt_client_device(client, 1)->memory.current, 0);
  tt_client_destroy(client);
}

// ---- events ----------------------------------------------------------------------------------------------------------

typedef struct ready_log {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int calls;
  tt_status status;
} ready_log;

static void log_ready(tt_status status, void *user) {
  ready_log *log = user;
  pthread_mutex_lock(&log->lock);
  log->calls++;
  log->status = status;
  pthread_cond_signal(&log->changed);
  pthread_mutex_unlock(&log->lock);
}

static void wait_for_call(ready_log *log) {
  pthread_mutex_lock(&log->lock);
  while (log->calls == 0) pthread_cond_wait(&log->changed, &log->lock);
  pthread_mutex_unlock(&log->lock);
}

#define READY_LOG_INIT ((ready_log){PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, NULL})

TEST(event_of_nothing_is_ready) {
  tt_event event = {NULL, NULL};
  ready_log log = READY_LOG_INIT;
  CHECK(tt_event_is_ready(&event));
  CHECK_OK(tt_event_wait(&event));
  CHECK_OK(tt_event_on_ready(&event, log_ready, &log));
  CHECK_INT(log.calls, 1);
  CHECK(log.status == NULL);
  tt_event_release(&event);
}

static tt_status event_scenario(void *user) {
  const tt_event *event = user;
  ready_log log = READY_LOG_INIT;
  TT_TRY(tt_event_on_ready(event, log_ready, &log));
  wait_for_call(&log);
  return log.status;
}

PLUGIN_TEST(event_tells_when_a_program_has_run) {
  tt_client *client = create_client(1);
  tt_device *device = tt_client_device(client, 0);
  tt_executable *executable = compile(client, add_text, &default_options);
  float data[16] = {0};
  tt_buffer *argument = from_floats(device, data, 16), *arguments[] = {argument, argument}, *sum = NULL;
  void *output = NULL;
  tt_event done = {NULL, NULL};
  CHECK_OK(tt_executable_execute(executable, device, arguments, 2, NULL, &output, &done));
  CHECK_OK(tt_buffer_wrap(device, output, sizeof(data), "add", &sum));
  test_each_allocation_failing(event_scenario, &done);
  CHECK_OK(tt_event_wait(&done));
  CHECK_OK(tt_event_wait(&done)); // as often as one likes
  CHECK(tt_event_is_ready(&done));
  tt_event_release(&done);
  tt_event_release(&done);
  tt_buffer_release(sum);
  tt_buffer_release(argument);
  tt_executable_release(executable);
  tt_client_destroy(client);
}

// ---- programs --------------------------------------------------------------------------------------------------------

PLUGIN_TEST(executable_adds) {
  tt_client *client = create_client(1);
  tt_device *device = tt_client_device(client, 0);
  for (int i = 0; i < 4; i++) {
    const tt_compile_options options = {.effort = i & 1 ? TT_EFFORT_LEAST : TT_EFFORT_FULL, .exact = i & 2};
    tt_executable *executable = compile(client, add_text, &options);
    float a[16], b[16];
    fill(a, 16, 1);
    fill(b, 16, 20);
    tt_buffer *arguments[] = {from_floats(device, a, 16), from_floats(device, b, 16)};
    tt_buffer *sum = run(executable, device, arguments, 2, NULL, sizeof(a));
    CHECK_OK(tt_buffer_wait(sum));
    check_floats(sum, 16, 21, 2);
    check_floats(arguments[0], 16, 1, 1);
    tt_buffer_release(sum);
    tt_buffer_release(arguments[0]);
    tt_buffer_release(arguments[1]);
    tt_executable_release(tt_executable_retain(executable));
    tt_executable_release(executable);
  }
  tt_executable_release(NULL);
  tt_client_destroy(client);
}

// A mebibyte of each kind of block: an upload, what a program keeps between its ops, and its result.
PLUGIN_TEST(memory_pool_serves_large_blocks) {
  static const char text[] = "func.func public @main(%a: tensor<512x512xf32>) -> tensor<512x512xf32> {\n"
                             "  %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] : "
                             "(tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>\n"
                             "  %1 = stablehlo.dot_general %0, %0, contracting_dims = [1] x [0] : "
                             "(tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>\n"
                             "  return %1 : tensor<512x512xf32>\n}\n";
  enum { COUNT = 512 * 512, SIZE = COUNT * sizeof(float) };
  tt_plugin *plugin = open_plugin();
  CHECK(tt_plugin_pool_memory(plugin));
  tt_client *client = NULL;
  CHECK_OK(tt_client_create(plugin, 1, &client));
  tt_device *device = tt_client_device(client, 0);
  tt_executable *executable = compile(client, text, &default_options);
  static float data[COUNT], result[COUNT];
  for (int i = 0; i < COUNT; i++) data[i] = i % 513 == 0 ? 2.0F : 0.0F; // twice the unit matrix
  const int64_t dims[] = {512, 512}, before = tt_pool_get_use().taken;
  void *addresses[2] = {NULL, NULL};
  for (int round = 0; round < 2; round++) {
    tt_buffer *argument = from_host(device, data, TT_F32, 2, dims);
    tt_buffer *product = run(executable, device, &argument, 1, NULL, SIZE);
    CHECK_OK(tt_buffer_wait(product));
    CHECK_OK(tt_buffer_host_data(argument, &addresses[0]));
    CHECK(tt_pool_owns(addresses[0]));
    CHECK_OK(tt_buffer_host_data(product, &addresses[1]));
    CHECK(tt_pool_owns(addresses[1]));
    CHECK(tt_pool_get_use().taken >= before + 2 * SIZE);
    to_host(product, result, SIZE);
    for (int i = 0; i < COUNT; i++) CHECK(result[i] == (i % 513 == 0 ? 16.0F : 0.0F));
    tt_buffer_release(product);
    tt_buffer_release(argument);
  }
  tt_executable_release(executable);
  tt_client_destroy(client);
  CHECK_INT(tt_pool_get_use().taken, before);
  CHECK(tt_pool_get_use().kept >= 3 * SIZE); // the temporary too
}

PLUGIN_TEST(executable_runs_in_the_background) {
  // A product that takes some milliseconds; its result feeds the next while it is still being computed.
  static const char text[] = "func.func public @main(%a: tensor<512x512xf32>) -> (tensor<512x512xf32>, tensor<f32>) {\n"
                             "  %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] : "
                             "(tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>\n"
                             "  %s = stablehlo.constant dense<0.00390625> : tensor<512x512xf32>\n"
                             "  %1 = stablehlo.multiply %0, %s : tensor<512x512xf32>\n"
                             "  %z = stablehlo.constant dense<1.0> : tensor<f32>\n"
                             "  return %1, %z : tensor<512x512xf32>, tensor<f32>\n"
                             "}\n";
  tt_client *client = create_client(1);
  tt_device *device = tt_client_device(client, 0);
  tt_executable *executable = compile(client, text, &default_options);
  CHECK_INT(executable->output_count, 2);
  static float data[512 * 512], back[512 * 512];
  for (size_t i = 0; i < 512 * 512; i++) data[i] = 1;
  const int64_t dims[] = {512, 512};
  tt_buffer *value = from_host(device, data, TT_F32, 2, dims);
  for (int i = 0; i < 4; i++) {
    void *outputs[2] = {NULL, NULL};
    tt_buffer *next = NULL, *one = NULL;
    CHECK_OK(tt_executable_execute(executable, device, &value, 1, NULL, outputs, NULL));
    CHECK_OK(tt_buffer_wrap(device, outputs[0], sizeof(data), "mm", &next));
    CHECK_OK(tt_buffer_wrap(device, outputs[1], sizeof(float), "mm", &one));
    tt_buffer_release(one);
    tt_buffer_release(value);
    value = next;
  }
  to_host(value, back, sizeof(back));
  for (size_t i = 0; i < 512 * 512; i++) CHECK(back[i] == 32768.0f); // x -> 2 x^2, four times
  tt_buffer_release(value);
  tt_executable_release(executable);
  tt_client_destroy(client);
}

static void *host_address(const tt_buffer *buffer) {
  void *address = NULL;
  CHECK_OK(tt_buffer_wait(buffer));
  CHECK_OK(tt_buffer_host_data(buffer, &address));
  return address;
}

PLUGIN_TEST(executable_keeps_what_it_must) {
  tt_client *client = create_client(1);
  tt_device *device = tt_client_device(client, 0);
  tt_executable *executable = compile(client, donating_add_text, &default_options);
  float a[16], b[16];
  fill(a, 16, 1);
  fill(b, 16, 20);
  tt_buffer *arguments[] = {from_floats(device, a, 16), from_floats(device, b, 16)};
  const uint64_t keep_all = 3, keep_second = 2;
  const void *memory = host_address(arguments[0]);

  // The argument is marked for donation, yet kept: by default, and by its bit.
  const uint64_t *keeps[] = {NULL, &keep_all};
  for (int i = 0; i < 2; i++) {
    tt_buffer *sum = run(executable, device, arguments, 2, keeps[i], sizeof(a));
    CHECK(host_address(sum) != memory);
    check_floats(sum, 16, 21, 2);
    check_floats(arguments[0], 16, 1, 1);
    tt_buffer_release(sum);
  }
  // Let go: the result lives in its memory, and the argument is gone.
  tt_buffer *sum = run(executable, device, arguments, 2, &keep_second, sizeof(a));
  CHECK(host_address(sum) == memory);
  check_floats(sum, 16, 21, 2);
  check_floats(arguments[1], 16, 20, 1);
  // A read of it fails, at once or when it is done.
  tt_event event = {NULL, NULL};
  void *output = NULL;
  tt_status status = tt_buffer_to_host(arguments[0], a, sizeof(a), &event);
  CHECK_FAILS(status != NULL ? status : tt_event_wait(&event), TT_PLUGIN, "");
  tt_event_release(&event);
  CHECK_FAILS(tt_buffer_wait(arguments[0]), TT_PLUGIN, "");
  CHECK_FAILS(tt_executable_execute(executable, device, arguments, 2, NULL, &output, NULL), TT_PLUGIN, "");
  tt_buffer_release(sum);
  tt_buffer_release(arguments[0]);
  tt_buffer_release(arguments[1]);
  tt_executable_release(executable);
  tt_client_destroy(client);
}

enum { WIDE = 100 };

// A program of 100 arguments f32[4] that adds them up; number 70 may be reused for the result.
static void wide_text(tt_string *text) {
  tt_string_append(text, "func.func public @main(");
  for (int i = 0; i < WIDE; i++) {
    const char *alias = i == 70 ? " {tf.aliasing_output = 0 : i32}" : "";
    tt_string_printf(text, "%s%%a%d: tensor<4xf32>%s", i > 0 ? ", " : "", i, alias);
  }
  tt_string_append(text, ") -> tensor<4xf32> {\n  %s0 = stablehlo.add %a0, %a0 : tensor<4xf32>\n");
  for (int i = 1; i < WIDE; i++) {
    tt_string_printf(text, "  %%s%d = stablehlo.add %%s%d, %%a%d : tensor<4xf32>\n", i, i - 1, i);
  }
  tt_string_printf(text, "  return %%s%d : tensor<4xf32>\n}\n", WIDE - 1);
  CHECK_OK(tt_string_status(text));
}

PLUGIN_TEST(executable_takes_many_arguments) {
  tt_client *client = create_client(1);
  tt_device *device = tt_client_device(client, 0);
  tt_string text = TT_STRING_INIT;
  wide_text(&text);
  tt_executable *executable = compile(client, tt_string_text(&text), &default_options);
  tt_buffer *arguments[WIDE];
  float data[4];
  fill(data, 4, 0);
  for (int i = 0; i < WIDE; i++) arguments[i] = from_floats(device, data, 4);
  const void *memory = host_address(arguments[70]);
  const uint64_t keep_all_but_70[2] = {UINT64_MAX, ~(UINT64_C(1) << (70 - 64))};

  tt_buffer *sum = run(executable, device, arguments, WIDE, NULL, sizeof(data));
  check_floats(sum, 4, 0, WIDE + 1);
  tt_buffer_release(sum);
  sum = run(executable, device, arguments, WIDE, keep_all_but_70, sizeof(data));
  check_floats(sum, 4, 0, WIDE + 1);
  CHECK(host_address(sum) == memory);
  tt_buffer_release(sum);
  for (int i = 0; i < WIDE; i++) tt_buffer_release(arguments[i]);
  tt_executable_release(executable);
  tt_string_free(&text);
  tt_client_destroy(client);
}

PLUGIN_TEST(executable_runs_on_any_device) {
  tt_client *client = create_client(4);
  tt_executable *executable = compile(client, add_text, &default_options);
  for (int i = 3; i >= 0; i--) {
    tt_device *device = tt_client_device(client, i);
    float a[16];
    fill(a, 16, (float)i);
    tt_buffer *argument = from_floats(device, a, 16), *arguments[] = {argument, argument};
    tt_buffer *sum = run(executable, device, arguments, 2, NULL, sizeof(a));
    check_floats(sum, 16, 2 * (float)i, 2);
    tt_buffer_release(sum);
    tt_buffer_release(argument);
  }
  // An argument on another device is refused, not copied.
  float a[16] = {0};
  tt_buffer *argument = from_floats(tt_client_device(client, 1), a, 16), *arguments[] = {argument, argument};
  void *output = NULL;
  CHECK_FAILS(tt_executable_execute(executable, tt_client_device(client, 0), arguments, 2, NULL, &output, NULL),
              TT_PLUGIN, "device");
  tt_buffer_release(argument);
  tt_executable_release(executable);
  tt_client_destroy(client);
}

PLUGIN_TEST(executable_refuses_wrong_arguments) {
  tt_client *client = create_client(1);
  tt_device *device = tt_client_device(client, 0);
  tt_executable *executable = compile(client, add_text, &default_options);
  float data[32] = {0};
  tt_buffer *right = from_floats(device, data, 16), *wrong = from_floats(device, data, 32);
  tt_buffer *arguments[] = {right, wrong, right};
  void *output = NULL;
  tt_event done = {NULL, NULL};
  CHECK_FAILS(tt_executable_execute(executable, device, arguments, 1, NULL, &output, &done), TT_PLUGIN, "2");
  CHECK_FAILS(tt_executable_execute(executable, device, arguments, 3, NULL, &output, &done), TT_PLUGIN, "2");
  CHECK_FAILS(tt_executable_execute(executable, device, arguments, 0, NULL, &output, NULL), TT_PLUGIN, "2");
  CHECK_FAILS(tt_executable_execute(executable, device, arguments, 2, NULL, &output, NULL), TT_PLUGIN, "");
  CHECK(output == NULL && done.pjrt == NULL);
  tt_buffer_release(right);
  tt_buffer_release(wrong);
  tt_executable_release(executable);
  tt_client_destroy(client);
}

PLUGIN_TEST(executable_compile_errors_are_clean) {
  static const char *const texts[] = {
      "",
      "this is no MLIR",
      "func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %b : tensor<4xf32> }",
      "func.func public @main(%a: tensor<4xf32>) -> tensor<5xf32> { return %a : tensor<4xf32> }",
      "func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
      "  %0 = stablehlo.no_such_op %a : tensor<4xf32>\n  return %0 : tensor<4xf32>\n}",
      "func.func public @other() { return }",
  };
  tt_client *client = create_client(1);
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
    tt_executable *executable = NULL;
    tt_status status =
        tt_executable_compile(client, texts[i], (int64_t)strlen(texts[i]), &default_options, &executable);
    const char *message = tt_status_message(status);
    printf("%s\n", message);
    CHECK(executable == NULL);
    CHECK(strlen(message) > 30 && message[strlen(message) - 1] != '\n');
    for (const char *c = message; *c != '\0'; c++) CHECK(*c == '\n' || *c == '\t' || (unsigned char)*c >= ' ');
    CHECK_FAILS(status, TT_PLUGIN, "PJRT_Client_Compile: ");
  }
  tt_client_destroy(client);
}

// Runs a program of one f32[count] argument and one f32[count] or f32[] result.
static void run_floats(tt_client *client, const char *text, bool exact, const float *in, int64_t count, float *out,
                       int64_t out_count) {
  const tt_compile_options options = {.exact = exact};
  tt_device *device = tt_client_device(client, 0);
  tt_executable *executable = compile(client, text, &options);
  tt_buffer *argument = from_floats(device, in, count);
  tt_buffer *result = run(executable, device, &argument, 1, NULL, out_count * (int64_t)sizeof(float));
  to_host(result, out, out_count * (int64_t)sizeof(float));
  tt_buffer_release(result);
  tt_buffer_release(argument);
  tt_executable_release(executable);
}

PLUGIN_TEST(executable_exact_keeps_op_by_op_values) {
  static const char text[] = "func.func public @main(%a: tensor<3xf32>) -> tensor<3xf32> {\n"
                             "  %c = stablehlo.constant dense<1.0e8> : tensor<3xf32>\n"
                             "  %0 = stablehlo.add %a, %c : tensor<3xf32>\n"
                             "  %1 = stablehlo.subtract %0, %c : tensor<3xf32>\n"
                             "  return %1 : tensor<3xf32>\n"
                             "}\n";
  tt_client *client = create_client(1);
  const float in[] = {100, 1e-30f, 3.14159f};
  float out[3];
  run_floats(client, text, /*exact=*/true, in, 3, out, 3);
  CHECK(out[0] == 96 && out[1] == 0 && out[2] == 0);
  tt_client_destroy(client);
}

PLUGIN_TEST(executable_rounds_bfloat16_after_each_op) {
  static const char text[] = "func.func public @main(%a: tensor<64xf32>) -> tensor<64xf32> {\n"
                             "  %0 = stablehlo.convert %a : (tensor<64xf32>) -> tensor<64xbf16>\n"
                             "  %1 = stablehlo.multiply %0, %0 : tensor<64xbf16>\n"
                             "  %2 = stablehlo.multiply %1, %0 : tensor<64xbf16>\n"
                             "  %3 = stablehlo.multiply %2, %0 : tensor<64xbf16>\n"
                             "  %4 = stablehlo.convert %3 : (tensor<64xbf16>) -> tensor<64xf32>\n"
                             "  return %4 : tensor<64xf32>\n"
                             "}\n";
  tt_client *client = create_client(1);
  float in[64], out[64];
  for (int i = 0; i < 64; i++) in[i] = 1.0f + (float)i / 64;
  run_floats(client, text, /*exact=*/false, in, 64, out, 64);
  for (int i = 0; i < 64; i++) {
    float expected = in[i];
    for (int j = 0; j < 3; j++) {
      uint32_t bits = 0;
      tt_dtype_encode(TT_BF16, expected * in[i], 0, 0, &bits);
      bits <<= 16;
      memcpy(&expected, &bits, sizeof(expected));
    }
    if (out[i] != expected) test_fail(__FILE__, __LINE__, "%g^4 is %g, expected %g", in[i], out[i], expected);
  }
  tt_client_destroy(client);
}

PLUGIN_TEST(executable_maximum_keeps_nan) {
  static const char text[] = "func.func public @main(%a: tensor<4096xf32>) -> tensor<f32> {\n"
                             "  %c = stablehlo.constant dense<0xFF800000> : tensor<f32>\n"
                             "  %0 = stablehlo.reduce(%a init: %c) applies stablehlo.maximum across dimensions = [0] : "
                             "(tensor<4096xf32>, tensor<f32>) -> tensor<f32>\n"
                             "  return %0 : tensor<f32>\n"
                             "}\n";
  tt_client *client = create_client(1);
  static float in[4096];
  float out = 0;
  in[1234] = NAN;
  run_floats(client, text, /*exact=*/false, in, 4096, &out, 1);
  CHECK(isnan(out));
  tt_client_destroy(client);
}

PLUGIN_TEST(executable_out_of_memory_is_told_and_counted) {
  static const char text[] =
      "func.func public @main(%a: tensor<f32>) -> tensor<70368744177664xf32> {\n"
      "  %0 = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> tensor<70368744177664xf32>\n"
      "  return %0 : tensor<70368744177664xf32>\n"
      "}\n";
  tt_client *client = create_client(1);
  tt_device *device = tt_client_device(client, 0);
  tt_executable *executable = compile(client, text, &default_options);
  float one = 1;
  tt_buffer *argument = from_host(device, &one, TT_F32, 0, NULL), *huge = NULL;
  void *output = NULL;
  tt_status status = tt_executable_execute(executable, device, &argument, 1, NULL, &output, NULL);
  if (status == NULL) {
    CHECK_OK(tt_buffer_wrap(device, output, INT64_C(4) << 46, "aten::expand", &huge));
    status = tt_buffer_wait(huge);
    CHECK(strncmp(tt_status_message(status), "aten::expand: ", 14) == 0);
  }
  tt_status_told(status);
  CHECK_FAILS(status, TT_OUT_OF_MEMORY, "emory");
  CHECK_INT(device->memory.out_of_memory_count, 1);
  tt_buffer_release(huge);
  tt_buffer_release(argument);
  tt_executable_release(executable);
  tt_client_destroy(client);
}

typedef struct wide_run {
  tt_client *client;
  const char *text;
  tt_buffer *const *arguments;
} wide_run;

static tt_status executable_scenario(void *user) {
  const wide_run *wide = user;
  tt_device *device = tt_client_device(wide->client, 0);
  tt_executable *executable = NULL;
  void *output = NULL;
  tt_buffer *sum = NULL;
  const tt_compile_options options = {.effort = TT_EFFORT_LEAST, .exact = true};
  tt_status status =
      tt_executable_compile(wide->client, wide->text, (int64_t)strlen(wide->text), &options, &executable);
  if (status == NULL) status = tt_executable_execute(executable, device, wide->arguments, WIDE, NULL, &output, NULL);
  if (status == NULL) status = tt_buffer_wrap(device, output, 16, "sum", &sum);
  if (status == NULL) status = tt_buffer_wait(sum);
  tt_buffer_release(sum);
  tt_executable_release(executable);
  return status;
}

PLUGIN_TEST(executable_each_allocation_failing) {
  tt_client *client = create_client(1);
  tt_device *device = tt_client_device(client, 0);
  tt_string text = TT_STRING_INIT;
  wide_text(&text);
  tt_buffer *arguments[WIDE];
  float data[4] = {0};
  arguments[0] = from_floats(device, data, 4);
  for (int i = 1; i < WIDE; i++) arguments[i] = tt_buffer_retain(arguments[0]);
  wide_run wide = {client, tt_string_text(&text), arguments};
  test_each_allocation_failing(executable_scenario, &wide);
  for (int i = 0; i < WIDE; i++) tt_buffer_release(arguments[i]);
  CHECK_INT(device->memory.current, 0);
  tt_string_free(&text);
  tt_client_destroy(client);
}

// ---- threads ---------------------------------------------------------------------------------------------------------

enum { THREADS = 4, ROUNDS = 200 };

typedef struct shared_run {
  tt_executable *executable;
  tt_device *device;
  tt_buffer *argument; // shared by all threads
} shared_run;

static void *run_rounds(void *user) {
  const shared_run *shared = user;
  for (int i = 0; i < ROUNDS; i++) {
    float data[16];
    fill(data, 16, (float)i);
    tt_buffer *own = from_floats(shared->device, data, 16);
    tt_buffer *arguments[] = {own, tt_buffer_retain(shared->argument)};
    tt_executable *executable = tt_executable_retain(shared->executable);
    tt_buffer *sum = run(executable, shared->device, arguments, 2, NULL, sizeof(data));
    check_floats(sum, 16, (float)i + 1, 2);
    tt_executable_release(executable);
    tt_buffer_release(sum);
    tt_buffer_release(arguments[0]);
    tt_buffer_release(arguments[1]);
  }
  return NULL;
}

PLUGIN_TEST(threads_share_buffers_and_programs) {
  tt_client *client = create_client(1);
  tt_device *device = tt_client_device(client, 0);
  float data[16];
  fill(data, 16, 1);
  shared_run shared = {compile(client, add_text, &default_options), device, from_floats(device, data, 16)};
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) CHECK_INT(pthread_create(&threads[i], NULL, run_rounds, &shared), 0);
  for (int i = 0; i < THREADS; i++) CHECK_INT(pthread_join(threads[i], NULL), 0);
  CHECK(tt_buffer_is_unique(shared.argument));
  tt_buffer_release(shared.argument);
  tt_executable_release(shared.executable);
  tt_memory_stats *stats = &device->memory;
  CHECK_INT(stats->current, 0);
  CHECK_INT(stats->blocks_allocated, 2 * THREADS * ROUNDS + 1);
  CHECK_INT(stats->allocated, stats->freed);
  CHECK(stats->peak >= 3 * 64 && stats->peak <= (2 * THREADS + 1) * 64);
  tt_client_destroy(client);
}

static void *compile_one(void *user) {
  tt_client *client = user;
  const tt_compile_options options = {.effort = TT_EFFORT_LEAST, .exact = true};
  tt_executable_release(compile(client, add_text, &options));
  return NULL;
}

PLUGIN_TEST(threads_compile_at_once) {
  tt_client *client = create_client(1);
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) CHECK_INT(pthread_create(&threads[i], NULL, compile_one, client), 0);
  for (int i = 0; i < THREADS; i++) CHECK_INT(pthread_join(threads[i], NULL), 0);
  tt_client_destroy(client);
}
