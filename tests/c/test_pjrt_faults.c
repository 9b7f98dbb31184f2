// test_pjrt_faults.c - core/pjrt when the plugin fails: each function that it calls, at the first call, the second and so on.
//
// One scenario uses all of core/pjrt. Whatever fails in it, its failure says what it was, the plugin has got back all that it
// gave out, and the scenario works the next time.
#include <glob.h>
#include <stdio.h>

#include "fake.h"
#include "pjrt/buffer.h"
#include "pjrt/executable.h"
#include "pjrt/topology.h"

static const char add_text[] =
    "module @add {\n"
    "func.func public @main(%0: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %1: tensor<4xf32>)"
    " -> (tensor<4xf32>, tensor<i1>) {\n"
    "%2 = stablehlo.add %0, %1 : tensor<4xf32>\n"
    "%3 = stablehlo.constant dense<true> : tensor<i1>\n"
    "return %2, %3 : tensor<4xf32>, tensor<i1>\n"
    "}\n"
    "}\n";

// ---- the scenario ----------------------------------------------------------------------------------------------------

// What it holds, to be released whatever happened.
typedef struct world {
  tt_plugin *plugin;
  tt_client *client;
  tt_executable *compiled, *loaded;
  tt_topology *topology;
  tt_buffer *x, *y, *sum, *flag, *moved;
  tt_event uploaded, done, downloaded;
  tt_string bytes;
  float ones[4], twos[4], host[4];
  _Atomic int callbacks;
} world;

static void on_done(tt_status status, void *user) {
  tt_status_free(status);
  atomic_fetch_add((_Atomic int *)user, 1);
}

static tt_status make_programs(world *w) {
  const tt_compile_options options = {0};
  const size_t size = sizeof(add_text) - 1;
  TT_TRY(tt_executable_compile(w->client, add_text, (int64_t)size, &options, &w->compiled));
  TT_TRY(tt_executable_serialize(w->compiled, &w->bytes));
  TT_TRY(tt_executable_load(w->client, add_text, (int64_t)size, w->bytes.data, w->bytes.size, &w->loaded));
  // The compiler's own refusal comes through, whatever else fails.
  tt_executable *refused = NULL;
  tt_status status = tt_executable_compile(w->client, "!3", 2, &options, &refused);
  CHECK(status != NULL && refused == NULL);
  bool is_own = strstr(tt_status_message(status), "INVALID_ARGUMENT: as wished") != NULL;
  bool is_nameless = strstr(tt_status_message(status), "UNKNOWN: as wished") != NULL; // its code could not be had
  if (!is_own && !is_nameless) return status;
  tt_status_free(status);
  return TT_SUCCESS;
}

static tt_status make_buffers(world *w) {
  tt_device *device = tt_client_device(w->client, 0);
  const int64_t four = 4;
  TT_TRY(tt_buffer_from_host(device, w->ones, TT_F32, 1, &four, TT_HOST_UNTIL_DONE, &w->uploaded, &w->x));
  TT_TRY(tt_buffer_from_host(device, w->twos, TT_F32, 1, &four, TT_HOST_COPY, NULL, &w->y));
  return tt_event_on_ready(&w->uploaded, on_done, &w->callbacks);
}

// The sum takes x's memory.
static tt_status run_program(world *w, tt_executable *executable) {
  tt_device *device = tt_client_device(w->client, 0);
  tt_buffer *arguments[] = {w->x, w->y};
  const uint64_t keep[] = {2};
  void *outputs[2];
  TT_TRY(tt_executable_execute(executable, device, arguments, 2, keep, outputs, &w->done));
  CHECK_OK(tt_buffer_wrap(device, outputs[0], 16, "add", &w->sum));
  CHECK_OK(tt_buffer_wrap(device, outputs[1], 1, "add", &w->flag));
  tt_buffer_release(w->x);
  w->x = NULL;
  return tt_event_wait(&w->done);
}

static tt_status read_back(world *w) {
  TT_TRY(tt_buffer_to_device(w->sum, tt_client_device(w->client, 1), &w->moved));
  TT_TRY(tt_buffer_wait(w->moved));
  CHECK(tt_buffer_is_ready(w->moved));
  TT_TRY(tt_buffer_to_host(w->moved, w->host, sizeof w->host, &w->downloaded));
  TT_TRY(tt_event_wait(&w->downloaded));
  for (int i = 0; i < 4; i++) CHECK(w->host[i] == 3);
  if (!tt_client_is_host(w->client)) return TT_SUCCESS;
  void *data = NULL;
  TT_TRY(tt_buffer_host_data(w->sum, &data));
  CHECK(((float *)data)[3] == 3);
  return TT_SUCCESS;
}

static tt_status compile_for_topology(world *w) {
  tt_compile_report report;
  TT_TRY(tt_topology_create(w->plugin, "v9:1x1", &w->topology));
  return tt_topology_compile(w->topology, add_text, sizeof(add_text) - 1, &report);
}

static tt_status use_all(world *w) {
  TT_TRY(tt_client_create(w->plugin, 2, &w->client));
  TT_TRY(make_programs(w));
  TT_TRY(make_buffers(w));
  TT_TRY(run_program(w, w->loaded));
  TT_TRY(read_back(w));
  return compile_for_topology(w);
}

// Host memory is the plugin's until an event comes, also after a failure.
static void tear_down(world *w) {
  tt_status_free(tt_event_wait(&w->uploaded));
  tt_status_free(tt_event_wait(&w->downloaded));
  tt_status_free(tt_event_wait(&w->done));
  tt_event_release(&w->uploaded);
  tt_event_release(&w->downloaded);
  tt_event_release(&w->done);
  tt_buffer *buffers[] = {w->x, w->y, w->sum, w->flag, w->moved};
  for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) tt_buffer_release(buffers[i]);
  tt_executable_release(w->compiled);
  tt_executable_release(w->loaded);
  tt_string_free(&w->bytes);
  tt_topology_destroy(w->topology);
  tt_client_destroy(w->client);
}

static bool failed_in_use; // and not when all was released

static tt_status scenario(tt_plugin *plugin) {
  world w = {.plugin = plugin, .bytes = TT_STRING_INIT, .ones = {1, 1, 1, 1}, .twos = {2, 2, 2, 2}};
  tt_status status = use_all(&w);
  failed_in_use = fake_control()->fault_at == 0;
  tear_down(&w);
  return status;
}

// ---- its failures ----------------------------------------------------------------------------------------------------

// These have nothing to report, or say what can be done without.
static bool may_fail_unheard(int function) {
  static const fake_function functions[] = {FAKE_PJRT_Event_Destroy,
                                            FAKE_PJRT_Event_IsReady,
                                            FAKE_PJRT_Client_Destroy,
                                            FAKE_PJRT_Executable_Destroy,
                                            FAKE_PJRT_Buffer_Destroy,
                                            FAKE_PJRT_LoadedExecutable_Destroy,
                                            FAKE_PJRT_Error_GetCode,
                                            FAKE_PJRT_TopologyDescription_Destroy,
                                            FAKE_PJRT_Device_MemoryStats,
                                            FAKE_PJRT_Executable_GetCostAnalysis,
                                            FAKE_PJRT_Executable_GetCompiledMemoryStats};
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
    if ((int)functions[i] == function) return true;
  return false;
}

static void check_all_came_back(fake_plugin *fake) {
  static const char *const names[] = {
#define X(name) #name,
      FAKE_OBJECTS(X)
#undef X
  };
  fake->wait_until_idle();
  for (int i = 0; i < FAKE_OBJECT_COUNT; i++)
    if (fake->live[i] != 0) test_fail(__FILE__, __LINE__, "%lld left: %s", (long long)fake->live[i], names[i]);
  CHECK_INT(fake->live_bytes, 0);
  CHECK_INT(fake->misuses, 0);
}

static void check_failure(tt_status status, int function, int64_t n, tt_code code) {
  const char *name = fake_function_name(function), *message = tt_status_message(status);
  if (status == NULL) {
    bool is_a_question = function == FAKE_PJRT_Buffer_ReadyEvent && n == 2; // of tt_buffer_is_ready; a wait tells
    if (failed_in_use && !may_fail_unheard(function) && !is_a_question)
      test_fail(__FILE__, __LINE__, "call %lld of %s failed unheard", (long long)n, name);
    return;
  }
  if (may_fail_unheard(function)) test_fail(__FILE__, __LINE__, "%s failing gave %s", name, message);
  CHECK_INT(tt_status_code(status), code);
  if (strstr(message, name) == NULL || strstr(message, "as wished") == NULL)
    test_fail(__FILE__, __LINE__, "call %lld of %s failing gave: %s", (long long)n, name, message);
  tt_status_free(status);
}

static void fail_each_call(fake_plugin *fake, tt_plugin *plugin, int function, int fault_code, tt_code code) {
  int64_t before = fake->calls[function];
  CHECK_OK(scenario(plugin));
  int64_t calls = fake->calls[function] - before;
  for (int64_t n = 1; n <= calls; n++) {
    int64_t live = tt_memory_live_count();
    fake_fail_at(fake, function, n);
    fake->fault_code = fault_code;
    tt_status status = scenario(plugin);
    CHECK_INT(fake->fault_at, 0);
    check_failure(status, function, n, code);
    check_all_came_back(fake);
    CHECK_INT(tt_memory_live_count(), live);
    CHECK_OK(scenario(plugin));
  }
}

// The functions that core/pjrt calls, by its sources: what stands behind "TT_PJRT_ARGS(" or "api->".
static void each_call_site(void (*visit)(const char *name, void *user), void *user) {
  static const char *const heads[] = {"TT_PJRT_ARGS(", "api->"};
  char pattern[1024];
  snprintf(pattern, sizeof pattern, "%.*s../../core/pjrt/*.[ch]", (int)(strrchr(__FILE__, '/') + 1 - __FILE__),
           __FILE__);
  glob_t files;
  CHECK(glob(pattern, 0, NULL, &files) == 0 && files.gl_pathc > 5);
  for (size_t i = 0; i < files.gl_pathc; i++) {
    static char text[1 << 17];
    FILE *file = fopen(files.gl_pathv[i], "re");
    CHECK(file != NULL);
    size_t size = fread(text, 1, sizeof text - 1, file);
    CHECK(size < sizeof text - 1);
    text[size] = '\0';
    fclose(file);
    for (size_t h = 0; h < sizeof heads / sizeof *heads; h++) {
      for (const char *at = text; (at = strstr(at, heads[h])) != NULL;) {
        char name[64];
        at += strlen(heads[h]);
        if (sscanf(at, " %63[A-Za-z_]", name) == 1 && strncmp(name, "PJRT_", 5) == 0) visit(name, user);
      }
    }
  }
  globfree(&files);
}

static int call_sites;

static void check_driven(const char *name, void *user) {
  const fake_plugin *fake = user;
  call_sites++;
  for (int i = 0; i < FAKE_FUNCTION_COUNT; i++) {
    if (strcmp(fake_function_name(i), name) != 0) continue;
    if (fake->calls[i] == 0) test_fail(__FILE__, __LINE__, "the scenario does not call %s", name);
    bool cannot = i == FAKE_PJRT_Error_Destroy || i == FAKE_PJRT_Error_Message;
    if (!cannot && fake->failures[i] == 0) test_fail(__FILE__, __LINE__, "%s never failed", name);
    return;
  }
  test_fail(__FILE__, __LINE__, "core/pjrt calls %s, which fake_plugin.h does not list", name);
}

TEST(pjrt_every_call_of_every_function_may_fail) {
  fake_plugin *fake = fake_control();
  tt_plugin *plugin = NULL;
  fake_fail_at(fake, FAKE_PJRT_Plugin_Initialize, 1);
  CHECK_FAILS(tt_plugin_open_file(fake_path(), &plugin), TT_PLUGIN, "PJRT_Plugin_Initialize: INTERNAL: as wished");
  CHECK(plugin == NULL);
  plugin = fake_open();
  static const struct {
    const char *platform;
    int order, fault_code;
    tt_code code;
  } cases[] = {{"tpu", FAKE_AT_ONCE, 13, TT_PLUGIN},
               {"cpu", FAKE_AT_ONCE, 8, TT_OUT_OF_MEMORY},
               {"tpu", FAKE_SHUFFLED, 12, TT_NOT_IMPLEMENTED},
               {"cpu", FAKE_NEWEST_FIRST, 13, TT_PLUGIN}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    fake->platform = cases[c].platform;
    fake->order = cases[c].order;
    for (int f = 0; f < FAKE_PJRT_Error_Destroy; f++)
      fail_each_call(fake, plugin, f, cases[c].fault_code, cases[c].code);
  }
  each_call_site(check_driven, fake);
  CHECK(call_sites > 40);
}

TEST(pjrt_work_that_was_started_may_fail) {
  static const fake_function functions[] = {FAKE_PJRT_LoadedExecutable_Execute, FAKE_PJRT_Client_BufferFromHostBuffer,
                                            FAKE_PJRT_Buffer_CopyToDevice, FAKE_PJRT_Buffer_ToHostBuffer};
  fake_plugin *fake = fake_control();
  tt_plugin *plugin = fake_open();
  fake->fault_comes_late = true;
  for (int order = FAKE_AT_ONCE; order <= FAKE_SHUFFLED; order++) {
    fake->order = order;
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
      fake_fail_at(fake, functions[f], 1);
      CHECK_FAILS(scenario(plugin), TT_PLUGIN, "PJRT_Event_Await: INTERNAL: as wished");
      CHECK_INT(fake->failures[functions[f]], order + 1);
      check_all_came_back(fake);
      CHECK_OK(scenario(plugin));
    }
  }
}

TEST(pjrt_memory_may_run_out_at_any_byte) {
  fake_plugin *fake = fake_control();
  tt_plugin *plugin = fake_open();
  int64_t failures = 0;
  for (int64_t limit = 1;; limit++) {
    fake->memory_limit = limit;
    tt_status status = scenario(plugin);
    check_all_came_back(fake);
    if (status == NULL) break;
    failures++;
    CHECK_FAILS(status, TT_OUT_OF_MEMORY, "RESOURCE_EXHAUSTED: Out of memory allocating ");
  }
  CHECK_INT(failures, 16 + 16 + 1 + 16 - 1); // x, whose memory the sum takes, y, the flag and the copy
}
