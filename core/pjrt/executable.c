// executable.c - compiling and running programs.
#include "pjrt/executable.h"

#include <stddef.h>
#include <string.h>

#include "base/bits.h"
#include "base/memory.h"
#include "base/string.h"
#include "pjrt/api.h"
#include "pjrt/options.h"

// ---- compiling -------------------------------------------------------------------------------------------------------

static void destroy_loaded(const tt_plugin *plugin, PJRT_LoadedExecutable *loaded) {
  tt_pjrt_ignore(plugin, plugin->api->PJRT_LoadedExecutable_Destroy(
                             &TT_PJRT_ARGS(PJRT_LoadedExecutable_Destroy, .executable = loaded)));
}

static tt_status compile_once(const tt_client *client, const char *text, int64_t size, const tt_string *options,
                              PJRT_LoadedExecutable **out_loaded) {
  PJRT_Program program = tt_pjrt_program(text, size);
  PJRT_Client_Compile_Args args = TT_PJRT_ARGS(PJRT_Client_Compile, .client = client->pjrt, .program = &program,
                                               .compile_options = options->data, .compile_options_size = options->size);
  TT_TRY(TT_PJRT(client->plugin, PJRT_Client_Compile, &args));
  *out_loaded = args.executable;
  return TT_SUCCESS;
}

// Compiles, dropping one option after the other while the plugin refuses them.
static tt_status compile_unobserved(tt_client *client, const char *text, int64_t size,
                                    const tt_compile_options *options, PJRT_LoadedExecutable **out_loaded) {
  for (;;) {
    tt_option_set sent = 0;
    tt_string proto = TT_STRING_INIT;
    tt_option_set known_refused = atomic_load(&client->refused_options);
    tt_status status = tt_options_write(client->is_host, text, size, options, known_refused, &proto, &sent);
    if (status == NULL) status = compile_once(client, text, size, &proto, out_loaded);
    tt_string_free(&proto);

    tt_option_set refused = tt_options_refused(status, sent);
    if (refused == 0) return status;
    // Another thread may have learnt the same; the set only grows, so this ends.
    atomic_fetch_or(&client->refused_options, refused);
    tt_status_free(status);
  }
}

static _Atomic(const tt_compile_observer *) compile_observer;

void tt_executable_observe_compiles(const tt_compile_observer *observer) { atomic_store(&compile_observer, observer); }

static tt_status compile(tt_client *client, const char *text, int64_t size, const tt_compile_options *options,
                         PJRT_LoadedExecutable **out_loaded) {
  const tt_compile_observer *observer = atomic_load_explicit(&compile_observer, memory_order_acquire);
  if (observer != NULL) TT_TRY(observer->begin());
  tt_status status = compile_unobserved(client, text, size, options, out_loaded);
  if (observer != NULL) observer->end(status);
  return status;
}

// What plugins do not tell counts as nothing.
static int64_t read_temporary_bytes(const tt_plugin *plugin, PJRT_Executable *executable) {
  PJRT_Executable_GetCompiledMemoryStats_Args args =
      TT_PJRT_ARGS(PJRT_Executable_GetCompiledMemoryStats, .executable = executable);
  PJRT_Error *error = plugin->api->PJRT_Executable_GetCompiledMemoryStats(&args);
  tt_pjrt_ignore(plugin, error);
  return error == NULL && args.temp_size_in_bytes > 0 ? args.temp_size_in_bytes : 0;
}

static tt_status read_facts(const tt_plugin *plugin, PJRT_LoadedExecutable *loaded, tt_executable *out) {
  PJRT_LoadedExecutable_GetExecutable_Args get =
      TT_PJRT_ARGS(PJRT_LoadedExecutable_GetExecutable, .loaded_executable = loaded);
  TT_TRY(TT_PJRT(plugin, PJRT_LoadedExecutable_GetExecutable, &get));
  PJRT_Executable_NumOutputs_Args outputs = TT_PJRT_ARGS(PJRT_Executable_NumOutputs, .executable = get.executable);
  tt_status status = TT_PJRT(plugin, PJRT_Executable_NumOutputs, &outputs);
  out->temporary_bytes = read_temporary_bytes(plugin, get.executable);
  tt_pjrt_ignore(plugin, plugin->api->PJRT_Executable_Destroy(
                             &TT_PJRT_ARGS(PJRT_Executable_Destroy, .executable = get.executable)));
  if (status == NULL) out->output_count = (int)outputs.num_outputs;
  return status;
}

// Wraps what was compiled or loaded; takes it over also when it fails.
static tt_status create(tt_client *client, const char *text, int64_t size, PJRT_LoadedExecutable *loaded,
                        tt_executable **out_executable) {
  void *block = NULL;
  tt_status status = tt_allocate(1, sizeof(tt_executable), &block);
  tt_executable *executable = block;
  if (status == NULL) status = read_facts(client->plugin, loaded, executable);
  if (status != NULL) {
    destroy_loaded(client->plugin, loaded);
    tt_free(executable);
    return status;
  }
  atomic_init(&executable->references, 1);
  executable->client = client;
  executable->pjrt = loaded;
  executable->may_donate =
      tt_text_contains(text, size, "tf.aliasing_output") || tt_text_contains(text, size, "jax.buffer_donor");
  *out_executable = executable;
  return TT_SUCCESS;
}

tt_status tt_executable_compile(tt_client *client, const char *text, int64_t size, const tt_compile_options *options,
                                tt_executable **out_executable) {
  PJRT_LoadedExecutable *loaded = NULL;
  TT_TRY(compile(client, text, size, options, &loaded));
  return create(client, text, size, loaded, out_executable);
}

// ---- as bytes --------------------------------------------------------------------------------------------------------

tt_status tt_executable_options(const tt_client *client, const char *text, int64_t size,
                                const tt_compile_options *options, tt_string *out) {
  tt_option_set sent = 0;
  return tt_options_write(client->is_host, text, size, options, /*refused=*/0, out, &sent);
}

// What is called here and nowhere else: a plugin may do without.
static const tt_plugin_function serialize_function = {"PJRT_Executable_Serialize",
                                                      offsetof(PJRT_Api, PJRT_Executable_Serialize)};
static const tt_plugin_function load_function = {"PJRT_Executable_DeserializeAndLoad",
                                                 offsetof(PJRT_Api, PJRT_Executable_DeserializeAndLoad)};

tt_status tt_executable_serialize(const tt_executable *executable, tt_string *out) {
  const tt_plugin *plugin = executable->client->plugin;
  TT_TRY(tt_plugin_check_functions(plugin->api, &serialize_function, 1));
  PJRT_LoadedExecutable_GetExecutable_Args get =
      TT_PJRT_ARGS(PJRT_LoadedExecutable_GetExecutable, .loaded_executable = executable->pjrt);
  TT_TRY(TT_PJRT(plugin, PJRT_LoadedExecutable_GetExecutable, &get));
  PJRT_Executable_Serialize_Args args = TT_PJRT_ARGS(PJRT_Executable_Serialize, .executable = get.executable);
  tt_status status = TT_PJRT(plugin, PJRT_Executable_Serialize, &args);
  if (status == NULL) {
    tt_string_append_n(out, args.serialized_bytes, args.serialized_bytes_size);
    status = tt_string_status(out);
    args.serialized_executable_deleter(args.serialized_executable);
  }
  tt_pjrt_ignore(plugin, plugin->api->PJRT_Executable_Destroy(
                             &TT_PJRT_ARGS(PJRT_Executable_Destroy, .executable = get.executable)));
  return status;
}

tt_status tt_executable_load(tt_client *client, const char *text, int64_t size, const void *bytes, size_t byte_size,
                             tt_executable **out_executable) {
  const tt_plugin *plugin = client->plugin;
  TT_TRY(tt_plugin_check_functions(plugin->api, &load_function, 1));
  PJRT_Executable_DeserializeAndLoad_Args args =
      TT_PJRT_ARGS(PJRT_Executable_DeserializeAndLoad, .client = client->pjrt, .serialized_executable = bytes,
                   .serialized_executable_size = byte_size);
  TT_TRY(TT_PJRT(plugin, PJRT_Executable_DeserializeAndLoad, &args));
  return create(client, text, size, args.loaded_executable, out_executable);
}

// ---- lifetime --------------------------------------------------------------------------------------------------------

tt_executable *tt_executable_retain(tt_executable *executable) {
  atomic_fetch_add_explicit(&executable->references, 1, memory_order_relaxed);
  return executable;
}

void tt_executable_release(tt_executable *executable) {
  if (executable == NULL) return;
  if (atomic_fetch_sub_explicit(&executable->references, 1, memory_order_acq_rel) != 1) return;
  destroy_loaded(executable->client->plugin, executable->pjrt);
  tt_free(executable);
}

// ---- running ---------------------------------------------------------------------------------------------------------

#define INLINE_ARGUMENTS 64

// The indices of the arguments that must survive; returns how many.
static size_t list_kept(const uint64_t *keep, int count, int64_t *out_indices) {
  size_t kept = 0;
  for (int i = 0; i < count; i++) {
    if (keep == NULL || tt_bit(keep, i)) out_indices[kept++] = i;
  }
  return kept;
}

// `pjrt_arguments` and `kept` have room for `count` entries.
static tt_status execute(tt_executable *executable, tt_device *device, tt_buffer *const *arguments, int count,
                         const uint64_t *keep, PJRT_Buffer **pjrt_arguments, int64_t *kept, void **out_pjrt,
                         tt_event *out_done) {
  const tt_plugin *plugin = executable->client->plugin;
  for (int i = 0; i < count; i++) pjrt_arguments[i] = arguments[i]->pjrt;

  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  // Plugins build a set out of the list, so it is only sent where it can make a difference.
  if (executable->may_donate) {
    options.non_donatable_input_indices = kept;
    options.num_non_donatable_input_indices = list_kept(keep, count, kept);
  }
  PJRT_Buffer *const *argument_list = pjrt_arguments;
  PJRT_Buffer **output_list = (PJRT_Buffer **)out_pjrt;
  PJRT_Event *done = NULL;
  PJRT_LoadedExecutable_Execute_Args args = TT_PJRT_ARGS(
      PJRT_LoadedExecutable_Execute, .executable = executable->pjrt, .options = &options,
      .argument_lists = &argument_list, .num_devices = 1, .num_args = (size_t)count, .output_lists = &output_list,
      .device_complete_events = out_done != NULL ? &done : NULL, .execute_device = device->pjrt);
  tt_status status = TT_PJRT(plugin, PJRT_LoadedExecutable_Execute, &args);
  if (__builtin_expect(status != NULL, 0)) return tt_device_note(device, status);
  if (out_done != NULL) *out_done = (tt_event){executable->client->plugin, done};
  tt_memory_use(device, executable->temporary_bytes);
  return TT_SUCCESS;
}

tt_status tt_executable_execute(tt_executable *executable, tt_device *device, tt_buffer *const *arguments, int count,
                                const uint64_t *keep, void **out_pjrt, tt_event *out_done) {
  if (__builtin_expect(count <= INLINE_ARGUMENTS, 1)) {
    PJRT_Buffer *pjrt_arguments[INLINE_ARGUMENTS];
    int64_t kept[INLINE_ARGUMENTS];
    return execute(executable, device, arguments, count, keep, pjrt_arguments, kept, out_pjrt, out_done);
  }
  void *block = NULL;
  TT_TRY(tt_allocate((size_t)count, sizeof(int64_t) + sizeof(PJRT_Buffer *), &block));
  int64_t *kept = block;
  PJRT_Buffer **pjrt_arguments = (PJRT_Buffer **)(kept + count);
  tt_status status = execute(executable, device, arguments, count, keep, pjrt_arguments, kept, out_pjrt, out_done);
  tt_free(block);
  return status;
}
