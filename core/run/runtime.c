// runtime.c - starting the plugin and the client, once per process, and telling what was found.
//
// Owns the client, which lives until the process ends. `runtime.lock` guards the start; `started` is set last, after which
// client and target do not change. After a fork `forked` is set in the child and every start fails there: the plugin's
// threads exist in the parent only.
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/memory.h"
#include "base/string.h"
#include "graph/address.h"
#include "pjrt/plugin.h"
#include "run/env.h"
#include "run/internal.h"
#include "run/trace.h"

static struct {
  pthread_mutex_t lock;
  char **search_dirs;
  size_t search_dir_count;
  tt_plugin_probes probes;
  tt_client *client;
  tt_target target;
  tt_code failure_code; // of the first start, if it failed for good
  char *failure_message;
  bool fork_guarded;
} runtime = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Atomic bool started;
static _Atomic bool forked;

// ---- fork ------------------------------------------------------------------------------------------------------------

static void mark_forked(void) {
  if (atomic_load_explicit(&started, memory_order_relaxed)) {
    atomic_store_explicit(&forked, true, memory_order_relaxed);
  }
}

static tt_status bad_fork(void) {
  // torch.cuda's words, which users know and search for.
  return tt_error(TT_UNAVAILABLE,
                  "Cannot re-initialize TPU in forked subprocess. To use TPU with multiprocessing, you must "
                  "use the 'spawn' start method");
}

bool tt_runtime_in_bad_fork(void) { return atomic_load_explicit(&forked, memory_order_relaxed); }

// ---- start -----------------------------------------------------------------------------------------------------------

static void free_texts(char **texts, size_t count) {
  for (size_t i = 0; i < count; i++) tt_free(texts[i]);
  tt_free(texts);
}

static void forget_failure(void) {
  tt_free(runtime.failure_message);
  runtime.failure_message = NULL;
}

tt_status tt_runtime_set_search_dirs(const char *const *dirs, size_t count) {
  void *block = NULL;
  TT_TRY(tt_allocate(count, sizeof(char *), &block));
  char **copies = block;
  for (size_t i = 0; i < count; i++) {
    copies[i] = tt_strdup(dirs[i]);
    if (copies[i] == NULL) {
      free_texts(copies, i);
      return tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted");
    }
  }
  pthread_mutex_lock(&runtime.lock);
  free_texts(runtime.search_dirs, runtime.search_dir_count);
  runtime.search_dirs = copies;
  runtime.search_dir_count = count;
  forget_failure(); // there may be a plugin in the new folders
  pthread_mutex_unlock(&runtime.lock);
  return TT_SUCCESS;
}

static tt_status open_plugin(tt_plugin **out_plugin) {
  tt_plugin_probes_free(&runtime.probes);
  return tt_plugin_open((const char *const *)runtime.search_dirs, runtime.search_dir_count, &runtime.probes,
                        out_plugin);
}

static tt_status guard_forks(void) {
  if (runtime.fork_guarded) return TT_SUCCESS;
  if (pthread_atfork(NULL, NULL, mark_forked) != 0) return tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted");
  runtime.fork_guarded = true;
  return TT_SUCCESS;
}

tt_target tt_tpu_target(int generation) { return (tt_target){.is_tpu = true, .generation = generation}; }

// Does the processor multiply bfloat16 itself? Those with AMX do so too.
static bool has_bf16_products(void) {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

static tt_target describe_target(tt_client *client) {
  const char *name = NULL;
  if (strcmp(tt_client_platform(client), "tpu") == 0)
    return tt_tpu_target(tt_tpu_generation(tt_client_device(client, 0)->kind, &name));
  int generation = (int)tt_env_number(TT_ENV_TARGET_GENERATION);
  if (generation > 0) return tt_tpu_target(generation);
  int major, minor;
  tt_plugin_version(tt_client_plugin(client), &major, &minor);
  return (tt_target){
      .conv_needs_forward = true,
      .dot_lhs_in_order = true,
      .sums_as_dots = minor <= 106, // later ones hand reductions to a library
      .rsqrt_by_division = true,
      .concat_copies = true,
      .scatter_flat = true,
      .scan_by_dots = true,
      .attention_in_blocks = true,
      .bf16_dot = has_bf16_products(),
  };
}

static tt_status start_locked(void) {
  TT_TRY(tt_env_check());
  TT_TRY(tt_runtime_configure_cache());
  TT_TRY(tt_trace_start());
  TT_TRY(guard_forks());
  tt_plugin *plugin = NULL;
  TT_TRY(open_plugin(&plugin));
  tt_client *client = NULL;
  TT_TRY_CONTEXT(tt_client_create(plugin, (int)tt_env_number(TT_ENV_VIRTUAL_DEVICES), &client), "PJRT plugin %s",
                 tt_plugin_path(plugin));
  if (tt_client_device_count(client) > TT_MAX_DEVICES) {
    int count = tt_client_device_count(client);
    tt_client_destroy(client);
    return tt_error(TT_UNAVAILABLE, "PJRT plugin %s has %d devices; torch_tpu handles %d", tt_plugin_path(plugin),
                    count, TT_MAX_DEVICES);
  }
  if (tt_client_is_host(client) && tt_env_number(TT_ENV_MEMORY_POOL) != 0) tt_plugin_pool_memory(plugin);
  runtime.client = client;
  runtime.target = describe_target(client);
  atomic_store_explicit(&started, true, memory_order_release);
  return TT_SUCCESS;
}

// Keeps a failure for later calls, unless it was for lack of memory, which may pass.
static void remember_failure(tt_status status) {
  runtime.failure_code = tt_status_code(status);
  if (runtime.failure_code == TT_OUT_OF_MEMORY) return;
  runtime.failure_message = tt_strdup(tt_status_message(status)); // without memory the next call tries again
}

tt_status tt_runtime_start(void) {
  if (__builtin_expect(tt_runtime_in_bad_fork(), 0)) return bad_fork();
  if (__builtin_expect(tt_runtime_started(), 1)) return TT_SUCCESS;
  pthread_mutex_lock(&runtime.lock);
  tt_status status = TT_SUCCESS;
  if (tt_runtime_started()) {
    // Another thread was faster.
  } else if (runtime.failure_message != NULL) {
    status = tt_error(runtime.failure_code, "%s", runtime.failure_message);
  } else {
    status = start_locked();
    if (status != NULL) remember_failure(status);
  }
  pthread_mutex_unlock(&runtime.lock);
  return status;
}

bool tt_runtime_started(void) { return atomic_load_explicit(&started, memory_order_acquire); }

bool tt_runtime_tpu_attached(void) { return tt_tpu_attached(); }

tt_client *tt_runtime_client(void) { return runtime.client; }

const tt_target *tt_runtime_target(void) { return &runtime.target; }

static bool plugin_file_exists(void) {
  pthread_mutex_lock(&runtime.lock);
  bool exists = tt_plugin_file_exists((const char *const *)runtime.search_dirs, runtime.search_dir_count);
  pthread_mutex_unlock(&runtime.lock);
  return exists;
}

int tt_runtime_device_count(void) {
  if (tt_runtime_started()) return tt_client_device_count(runtime.client);
  if (!tt_tpu_attached()) return plugin_file_exists() ? (int)tt_env_number(TT_ENV_VIRTUAL_DEVICES) : 0;
  tt_status status = tt_runtime_start(); // only the plugin knows
  bool usable = status == NULL;
  tt_status_free(status); // whoever uses a device hears why there is none
  return usable ? tt_client_device_count(runtime.client) : 0;
}

// ---- information -----------------------------------------------------------------------------------------------------

// A JSON string, or null.
static void append_json_text(tt_string *out, const char *text) {
  if (text == NULL) {
    tt_string_append(out, "null");
    return;
  }
  tt_string_append(out, "\"");
  for (const char *c = text; *c != '\0'; c++) {
    if (*c == '"' || *c == '\\') {
      tt_string_printf(out, "\\%c", *c);
    } else if ((unsigned char)*c < 0x20) {
      tt_string_printf(out, "\\u%04x", *c);
    } else {
      tt_string_append_n(out, c, 1);
    }
  }
  tt_string_append(out, "\"");
}

// "name": "text" behind a comma.
static void append_member(tt_string *out, const char *name, const char *text) {
  tt_string_printf(out, ", \"%s\": ", name);
  append_json_text(out, text);
}

static void append_client(tt_string *out, tt_client *client) {
  int major = 0, minor = 0;
  tt_plugin *plugin = tt_client_plugin(client);
  tt_plugin_version(plugin, &major, &minor);
  append_member(out, "plugin", tt_plugin_path(plugin));
  tt_string_printf(out, ", \"pjrt_api\": \"%d.%d\"", major, minor);
  append_member(out, "platform", tt_client_platform(client));
  append_member(out, "platform_version", tt_client_platform_version(client));
  tt_string_append(out, ", \"devices\": [");
  for (int i = 0; i < tt_client_device_count(client); i++) {
    const tt_device *device = tt_client_device(client, i);
    tt_string_printf(out, "%s{\"index\": %d, \"id\": %lld, \"memory\": %lld", i > 0 ? ", " : "", i,
                     (long long)device->id, (long long)device->memory_limit);
    tt_device_properties properties = {.name = ""};
    tt_status_free(tt_device_get_properties(i, &properties)); // cannot fail for a device of the client
    append_member(out, "name", properties.name);
    append_member(out, "kind", device->kind);
    tt_string_append(out, "}");
  }
  tt_string_append(out, "]");
}

static void append_probes(tt_string *out) {
  tt_string_append(out, ", \"probes\": [");
  for (size_t i = 0; i < runtime.probes.count; i++) {
    const tt_plugin_probe *probe = &runtime.probes.items[i];
    tt_string_append(out, i > 0 ? ", {\"source\": " : "{\"source\": ");
    append_json_text(out, probe->source);
    append_member(out, "path", probe->path);
    append_member(out, "reason", probe->reason);
    tt_string_append(out, "}");
  }
  tt_string_append(out, "]");
}

static void append_environment(tt_string *out) {
  tt_string_append(out, ", \"environment\": {");
  for (int i = 0; i < TT_ENV_COUNT; i++) {
    tt_string_printf(out, "%s\"%s\": ", i > 0 ? ", " : "", tt_env_at((tt_env)i)->variable);
    append_json_text(out, tt_env_text((tt_env)i));
  }
  tt_string_append(out, "}");
}

tt_status tt_runtime_info_json(char **out_text) {
  tt_status failure = tt_runtime_start(); // part of the information, not of this call
  tt_string text = TT_STRING_INIT;
  tt_string_append(&text, "{\"error\": ");
  append_json_text(&text, failure != NULL ? tt_status_message(failure) : NULL);
  if (failure == NULL) append_client(&text, runtime.client);
  tt_status_free(failure);
  tt_string_printf(&text, ", \"tpu_attached\": %s", tt_tpu_attached() ? "true" : "false");
  // In a forked child the lock may belong to a thread that is not there.
  if (!tt_runtime_in_bad_fork()) {
    pthread_mutex_lock(&runtime.lock);
    append_probes(&text);
    pthread_mutex_unlock(&runtime.lock);
  }
  append_environment(&text);
  tt_string_append(&text, "}");
  tt_status status = tt_string_status(&text);
  if (status != NULL) {
    tt_string_free(&text);
    return status;
  }
  *out_text = text.data; // from the same gate as tt_text_free
  return TT_SUCCESS;
}

void tt_text_free(char *text) { tt_free(text); }
