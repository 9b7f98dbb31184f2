// test_pjrt_fake.c - core/pjrt against fake_plugin.c: what no plugin at hand does. $TT_FAKE_PLUGIN is its path.
#include "fake.h"
#include "pjrt/buffer.h"
#include "pjrt/executable.h"
#include "pjrt/plugin.h"
#include "runner.h"

static tt_status compile(tt_client *client, const char *text, const tt_compile_options *options) {
  tt_executable *executable = NULL;
  TT_TRY(tt_executable_compile(client, text, (int64_t)strlen(text), options, &executable));
  CHECK_INT(executable->output_count, 3);
  tt_executable_release(executable);
  return TT_SUCCESS;
}

TEST(fake_unfit_plugins_are_refused) {
  static const struct {
    const char *fault, *message;
    tt_code code;
  } cases[] = {
      {"null", "GetPjrtApi returned nothing", TT_UNAVAILABLE},
      {"major", "has PJRT API 1.81, needed is 0.57", TT_UNAVAILABLE},
      {"minor", "has PJRT API 0.56, needed is 0.57", TT_UNAVAILABLE},
      {"short", "the plugin has no PJRT_Buffer_ToHostBuffer", TT_UNAVAILABLE},
      {"hole", "the plugin has no PJRT_Event_OnReady", TT_UNAVAILABLE},
      {"initialize", "PJRT_Plugin_Initialize: FAILED_PRECONDITION: no luck today", TT_PLUGIN},
  };
  tt_plugin *plugin = NULL;
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    setenv("TT_FAKE_PLUGIN_FAULT", cases[i].fault, 1);
    CHECK_FAILS(tt_plugin_open_file(fake_path(), &plugin), cases[i].code, cases[i].message);
    CHECK(plugin == NULL);
  }
}

TEST(fake_client_reads_the_device) {
  tt_client *client = fake_client(0);
  CHECK_INT(fake_control()->create_options, 0);
  CHECK_TEXT(tt_client_platform(client), "tpu");
  CHECK_TEXT(tt_client_platform_version(client), "fake 1");
  CHECK(!tt_client_is_host(client));
  tt_device *device = tt_client_device(client, 0);
  CHECK_INT(device->id, 2048);
  CHECK_INT(device->index, 0);
  CHECK_TEXT(device->kind, "TPU v5 lite");
  CHECK_INT(device->memory_limit, 16911433728);
  tt_client_destroy(client);
}

TEST(fake_error_codes_map) {
  static const struct {
    const char *text;
    tt_code code;
    const char *message;
  } cases[] = {
      {"!3", TT_PLUGIN, "PJRT_Client_Compile: INVALID_ARGUMENT: as wished"},
      {"!8", TT_OUT_OF_MEMORY, "PJRT_Client_Compile: RESOURCE_EXHAUSTED: as wished"},
      {"!12", TT_NOT_IMPLEMENTED, "PJRT_Client_Compile: UNIMPLEMENTED: as wished"},
      {"!13", TT_PLUGIN, "PJRT_Client_Compile: INTERNAL: as wished"},
      {"!77", TT_PLUGIN, "PJRT_Client_Compile: UNKNOWN: as wished"},
  };
  tt_client *client = fake_client(1);
  const tt_compile_options options = {0};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    tt_status status = compile(client, cases[i].text, &options);
    CHECK_TEXT(tt_status_message(status), cases[i].message); // trailing newlines are gone
    CHECK_FAILS(status, cases[i].code, "");
  }
  tt_client_destroy(client);
}

TEST(fake_refused_options_are_left_out) {
  tt_client *client = fake_client(1);
  fake_plugin *fake = fake_control();
  const char *sent = fake->options;
  const tt_compile_options options = {.effort = TT_EFFORT_LEAST, .exact = true};

  CHECK_OK(compile(client, "program", &options));
  CHECK_INT(fake->compilations, 1);
  CHECK(strstr(sent, "xla_allow_excess_precision") != NULL && strstr(sent, "algsimp") != NULL);
  // Nothing of the CPU compiler's on another platform.
  CHECK(strstr(sent, "xla_cpu_") == NULL && strstr(sent, "fusion-wrapper") == NULL);

  fake->refused_option = "xla_allow_excess_precision";
  CHECK_OK(compile(client, "program", &options));
  CHECK_INT(fake->compilations, 3);
  CHECK(strstr(sent, "xla_allow_excess_precision") == NULL && strstr(sent, "algsimp") != NULL);
  CHECK_OK(compile(client, "program", &options)); // remembered
  CHECK_INT(fake->compilations, 4);
  fake->refused_option = "xla_disable_hlo_passes";
  CHECK_OK(compile(client, "program", &options));
  CHECK_INT(fake->compilations, 6);

  // An option that was not sent cannot be left out: the error comes through, and there is no endless loop.
  fake->refused_option = "";
  CHECK_FAILS(compile(client, "program", &options), TT_PLUGIN, "No such compile option");
  CHECK_INT(fake->compilations, 7);
  tt_client_destroy(client);

  // Another client starts anew.
  fake->refused_option = NULL;
  client = fake_client(1);
  CHECK_OK(compile(client, "program", &options));
  CHECK(strstr(sent, "xla_allow_excess_precision") != NULL);
  tt_client_destroy(client);
}

TEST(fake_device_memory_is_counted) {
  fake_plugin *fake = fake_control();
  tt_client *client = fake_client(1);
  tt_device *device = tt_client_device(client, 0);
  const tt_compile_options options = {0};
  tt_executable *executable = NULL;
  CHECK_OK(tt_executable_compile(client, "p", 1, &options, &executable));
  CHECK(!executable->may_donate);
  void *outputs[3];
  fake->memory_limit = 11;
  tt_status status = tt_executable_execute(executable, device, NULL, 0, NULL, outputs, NULL);
  CHECK_INT(device->memory.out_of_memory_count, 0);
  tt_status_told(status);
  CHECK_FAILS(status, TT_OUT_OF_MEMORY,
              "PJRT_LoadedExecutable_Execute: RESOURCE_EXHAUSTED: Out of memory allocating 4 bytes.");
  CHECK_INT(device->memory.out_of_memory_count, 1);
  CHECK_INT(fake->live_bytes, 0);
  tt_executable_release(executable);

  // A plugin may return no event at all; memory that is not the host's has no address.
  float data = 1;
  tt_event done = {NULL, NULL};
  tt_buffer *buffer = NULL;
  void *address = NULL;
  fake->no_done_events = true;
  CHECK_OK(tt_buffer_from_host(device, &data, TT_F32, 0, NULL, TT_HOST_UNTIL_DONE, &done, &buffer));
  CHECK(done.pjrt == NULL && tt_event_is_ready(&done));
  CHECK_OK(tt_event_wait(&done));
  CHECK_FAILS(tt_buffer_host_data(buffer, &address), TT_NOT_IMPLEMENTED, "platform tpu");
  fake_fail_at(fake, FAKE_PJRT_Buffer_ReadyEvent, 1);
  CHECK_FAILS(tt_buffer_wait(buffer), TT_PLUGIN, "PJRT_Buffer_ReadyEvent: INTERNAL: as wished");
  fake_fail_at(fake, FAKE_PJRT_Buffer_ReadyEvent, 1);
  CHECK(tt_buffer_is_ready(buffer));
  tt_buffer_release(buffer);
  tt_client_destroy(client);
}
