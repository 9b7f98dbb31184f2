// executable.c - compiling and running programs.
#include "pjrt/executable.h"

#include <string.h>

#include "base/memory.h"
#include "base/string.h"
#include "pjrt/api.h"

// ---- compile options -------------------------------------------------------------------------------------------------
//
// Written by hand in protobuf's wire format: CompileOptionsProto has the build options in field 3, the portable flag in 4
// and XLA's debug options in 7, a map from a name to an OptionOverrideProto.

// Debug options that may be sent. An option's index is its bit in a tt_option_set.
//   FAST_MIN_MAX        min and max lose NaN with it, in reductions and larger programs
//   EXCESS_PRECISION    chains of bfloat16 ops keep float32 in between with it; eager torch rounds after each
//   DISABLE_PASSES      names of passes, separated by commas
//   OPTIMIZATION_LEVEL  of LLVM
//   YNN_FUSION          what goes to the YNNPACK library
#define OPTIONS(X)                                                                                                     \
  X(FAST_MIN_MAX, "xla_cpu_enable_fast_min_max")                                                                       \
  X(EXCESS_PRECISION, "xla_allow_excess_precision")                                                                    \
  X(DISABLE_PASSES, "xla_disable_hlo_passes")                                                                          \
  X(OPTIMIZATION_LEVEL, "xla_backend_optimization_level")                                                              \
  X(YNN_FUSION, "xla_cpu_experimental_ynn_fusion_type")

enum {
#define X(name, text) OPTION_INDEX_##name,
  OPTIONS(X)
#undef X
      OPTION_COUNT
};

static const char *const option_names[OPTION_COUNT] = {
#define X(name, text) [OPTION_INDEX_##name] = text,
    OPTIONS(X)
#undef X
};

// The fields of OptionOverrideProto.
enum { VALUE_STRING = 1, VALUE_BOOL = 2, VALUE_INT64 = 3 };

static void put_varint(tt_string *out, uint64_t value) {
  char bytes[10];
  size_t size = 0;
  for (; value >= 0x80; value >>= 7) bytes[size++] = (char)(value | 0x80);
  bytes[size++] = (char)value;
  tt_string_append_n(out, bytes, size);
}

static void put_number(tt_string *out, int field, int64_t value) {
  put_varint(out, (uint64_t)field << 3);
  put_varint(out, (uint64_t)value);
}

static void put_bytes(tt_string *out, int field, const char *data, size_t size) {
  put_varint(out, (uint64_t)field << 3 | 2);
  put_varint(out, size);
  tt_string_append_n(out, data, size);
}

// Appends a message that was written apart, since its size comes first, and empties it for the next.
static void put_message(tt_string *out, int field, tt_string *message) {
  put_bytes(out, field, tt_string_text(message), message->size);
  out->failed |= message->failed;
  tt_string_clear(message);
}

// The debug options being written: `entry` and `value` are scratch.
typedef struct option_writer {
  tt_string *out;
  tt_string entry, value;
  tt_option_set refused, sent;
} option_writer;

// Ends the option whose value was just written to w->value.
static void put_option(option_writer *w, int index) {
  put_bytes(&w->entry, 1, option_names[index], strlen(option_names[index]));
  put_message(&w->entry, 2, &w->value);
  put_message(w->out, 7, &w->entry);
  w->sent |= (tt_option_set)1 << index;
}

static void put_number_option(option_writer *w, int index, int kind, int64_t value) {
  if (w->refused >> index & 1) return;
  put_number(&w->value, kind, value);
  put_option(w, index);
}

static void put_text_option(option_writer *w, int index, const char *value) {
  if (w->refused >> index & 1) return;
  put_bytes(&w->value, VALUE_STRING, value, strlen(value));
  put_option(w, index);
}

static bool contains(const char *text, int64_t size, const char *word) {
  return memmem(text, (size_t)size, word, strlen(word)) != NULL;
}

// Does some op take much longer per element than reading and writing it?
static bool has_costly_ops(const char *text, int64_t size) {
  static const char *const words[] = {
      "cbrt",   "chlo.", "convolution", "cosine", "exponential", "gather", "log",   "power",
      "reduce", "rng",   "scatter",     "sine",   "sort",        "tan",    "while", "stablehlo.atan2"};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    if (contains(text, size, words[i])) return true;
  }
  return false;
}

// The passes to leave out.
//   fusion-wrapper              a single op compiles faster without
//   algsimp                     without, the value of op after op stays what each op alone gives, e.g. (x + 1e8) - 1e8
//   cpu-parallel-task-assigner  gives half of a loop to another thread, whose start takes longer than a short loop
static void put_disabled_passes(option_writer *w, const char *text, int64_t size, tt_effort effort,
                                const tt_compile_options *options) {
  tt_string names = TT_STRING_INIT;
  if (effort != TT_EFFORT_FULL) tt_string_append(&names, ",fusion-wrapper");
  if (options->exact) tt_string_append(&names, ",algsimp");
  if (options->short_loops && !has_costly_ops(text, size)) tt_string_append(&names, ",cpu-parallel-task-assigner");
  if (names.size > 0) put_text_option(w, OPTION_INDEX_DISABLE_PASSES, tt_string_text(&names) + 1);
  w->out->failed |= names.failed;
  tt_string_free(&names);
}

// CPU plugins hand large reductions to YNNPACK, whose min and max lose NaN whatever xla_cpu_enable_fast_min_max says (with API
// 0.106 from about 1,000 elements on: amax over [1000, 1000]; with 0.115 always). Its sums are good and fast, so only programs
// with a min or max do without. A plugin that does not know the option refuses it, and it is left out. Dots go to it one by one,
// as by default: LIBRARY_FUSION_TYPE_DOT, which joins dots, kills the process where a dot's result is both operands of
// another (API 0.106: a segmentation fault in xla::cpu::YnnMatcher::IsOpSupported).
static bool ynnpack_would_lose_nan(const char *text, int64_t size) {
  return contains(text, size, "stablehlo.maximum") || contains(text, size, "stablehlo.minimum");
}

static void put_cpu_options(option_writer *w, const char *text, int64_t size) {
  put_number_option(w, OPTION_INDEX_FAST_MIN_MAX, VALUE_BOOL, false);
  if (ynnpack_would_lose_nan(text, size)) {
    put_text_option(w, OPTION_INDEX_YNN_FUSION, "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT");
  }
}

static void put_debug_options(option_writer *w, const tt_client *client, const char *text, int64_t size,
                              const tt_compile_options *options) {
  // A scatter outside a fusion is refused ("HLO opcode scatter is not supported by XLA:CPU ThunkEmitter").
  bool full = !client->is_host || contains(text, size, "scatter");
  tt_effort effort = full ? TT_EFFORT_FULL : options->effort;
  if (client->is_host) put_cpu_options(w, text, size);
  put_number_option(w, OPTION_INDEX_EXCESS_PRECISION, VALUE_BOOL, false);
  put_disabled_passes(w, text, size, effort, options);
  if (effort == TT_EFFORT_LEAST) put_number_option(w, OPTION_INDEX_OPTIMIZATION_LEVEL, VALUE_INT64, 0);
}

// Writes the CompileOptionsProto for a program, without the options in `refused`; *out_sent are those that it holds.
static tt_status write_options(const tt_client *client, const char *text, int64_t size,
                               const tt_compile_options *options, tt_option_set refused, tt_string *out,
                               tt_option_set *out_sent) {
  option_writer w = {.out = out, .entry = TT_STRING_INIT, .value = TT_STRING_INIT, .refused = refused};
  put_number(&w.value, 1, -1); // device_ordinal: none, as the program is portable
  put_number(&w.value, 4, 1);  // num_replicas
  put_number(&w.value, 5, 1);  // num_partitions
  put_message(out, 3, &w.value);
  put_number(out, 4, true); // compile_portable_executable
  put_debug_options(&w, client, text, size, options);
  tt_string_free(&w.entry);
  tt_string_free(&w.value);
  *out_sent = w.sent;
  return tt_string_status(out);
}

// The option that `status` says the plugin does not know, 0 if it says something else.
static tt_option_set refused_option(tt_status status, tt_option_set sent) {
  const char *message = tt_status_message(status);
  if (strstr(message, "No such compile option") == NULL) return 0;
  for (int i = 0; i < OPTION_COUNT; i++) {
    if ((sent >> i & 1) && strstr(message, option_names[i]) != NULL) return (tt_option_set)1 << i;
  }
  return 0;
}

// ---- compiling -------------------------------------------------------------------------------------------------------

static void destroy_loaded(const tt_plugin *plugin, PJRT_LoadedExecutable *loaded) {
  tt_pjrt_ignore(plugin, plugin->api->PJRT_LoadedExecutable_Destroy(
                             &TT_PJRT_ARGS(PJRT_LoadedExecutable_Destroy, .executable = loaded)));
}

static tt_status compile_once(const tt_client *client, const char *text, int64_t size, const tt_string *options,
                              PJRT_LoadedExecutable **out_loaded) {
  static const char format[] = "mlir";
  PJRT_Program program = {
      .struct_size = PJRT_Program_STRUCT_SIZE,
      .code = (char *)text, // not written to; PJRT uses the struct for output too
      .code_size = (size_t)size,
      .format = format,
      .format_size = sizeof(format) - 1,
  };
  PJRT_Client_Compile_Args args = TT_PJRT_ARGS(PJRT_Client_Compile, .client = client->pjrt, .program = &program,
                                               .compile_options = options->data, .compile_options_size = options->size);
  TT_TRY(TT_PJRT(client->plugin, PJRT_Client_Compile, &args));
  *out_loaded = args.executable;
  return TT_SUCCESS;
}

// Compiles, dropping one option after the other while the plugin refuses them.
static tt_status compile(tt_client *client, const char *text, int64_t size, const tt_compile_options *options,
                         PJRT_LoadedExecutable **out_loaded) {
  for (;;) {
    tt_option_set sent = 0;
    tt_string proto = TT_STRING_INIT;
    tt_option_set known_refused = atomic_load(&client->refused_options);
    tt_status status = write_options(client, text, size, options, known_refused, &proto, &sent);
    if (status == NULL) status = compile_once(client, text, size, &proto, out_loaded);
    tt_string_free(&proto);

    tt_option_set refused = refused_option(status, sent);
    if (refused == 0) return status;
    // Another thread may have learnt the same; the set only grows, so this ends.
    atomic_fetch_or(&client->refused_options, refused);
    tt_status_free(status);
  }
}

static tt_status read_output_count(const tt_plugin *plugin, PJRT_LoadedExecutable *loaded, int *out_count) {
  PJRT_LoadedExecutable_GetExecutable_Args get =
      TT_PJRT_ARGS(PJRT_LoadedExecutable_GetExecutable, .loaded_executable = loaded);
  TT_TRY(TT_PJRT(plugin, PJRT_LoadedExecutable_GetExecutable, &get));
  PJRT_Executable_NumOutputs_Args outputs = TT_PJRT_ARGS(PJRT_Executable_NumOutputs, .executable = get.executable);
  tt_status status = TT_PJRT(plugin, PJRT_Executable_NumOutputs, &outputs);
  tt_pjrt_ignore(plugin, plugin->api->PJRT_Executable_Destroy(
                             &TT_PJRT_ARGS(PJRT_Executable_Destroy, .executable = get.executable)));
  if (status == NULL) *out_count = (int)outputs.num_outputs;
  return status;
}

tt_status tt_executable_compile(tt_client *client, const char *text, int64_t size, const tt_compile_options *options,
                                tt_executable **out_executable) {
  void *block = NULL;
  TT_TRY(tt_allocate(1, sizeof(tt_executable), &block));
  tt_executable *executable = block;
  PJRT_LoadedExecutable *loaded = NULL;
  tt_status status = compile(client, text, size, options, &loaded);
  if (status == NULL) status = read_output_count(client->plugin, loaded, &executable->output_count);
  if (status != NULL) {
    if (loaded != NULL) destroy_loaded(client->plugin, loaded);
    tt_free(executable);
    return status;
  }
  atomic_init(&executable->references, 1);
  executable->client = client;
  executable->pjrt = loaded;
  executable->may_donate = contains(text, size, "tf.aliasing_output") || contains(text, size, "jax.buffer_donor");
  *out_executable = executable;
  return TT_SUCCESS;
}

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
    if (keep == NULL || (keep[i / 64] >> (i % 64) & 1)) out_indices[kept++] = i;
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
