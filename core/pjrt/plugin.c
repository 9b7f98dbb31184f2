// plugin.c - finding, loading and checking PJRT plugins.
//
// Loaded plugins stay in a list for the life of the process, guarded by plugins_lock.
#include "pjrt/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/string.h"
#include "pjrt/api.h"

// The dtype table writes PJRT's numbers down; here is the header that they come from.
#define TT_PJRT_TYPE_BOOL PJRT_Buffer_Type_PRED
#define TT_PJRT_TYPE_U8 PJRT_Buffer_Type_U8
#define TT_PJRT_TYPE_S8 PJRT_Buffer_Type_S8
#define TT_PJRT_TYPE_S16 PJRT_Buffer_Type_S16
#define TT_PJRT_TYPE_S32 PJRT_Buffer_Type_S32
#define TT_PJRT_TYPE_S64 PJRT_Buffer_Type_S64
#define TT_PJRT_TYPE_U16 PJRT_Buffer_Type_U16
#define TT_PJRT_TYPE_U32 PJRT_Buffer_Type_U32
#define TT_PJRT_TYPE_U64 PJRT_Buffer_Type_U64
#define TT_PJRT_TYPE_F16 PJRT_Buffer_Type_F16
#define TT_PJRT_TYPE_BF16 PJRT_Buffer_Type_BF16
#define TT_PJRT_TYPE_F32 PJRT_Buffer_Type_F32
#define TT_PJRT_TYPE_F64 PJRT_Buffer_Type_F64
#define TT_PJRT_TYPE_F8E5M2 PJRT_Buffer_Type_F8E5M2
#define TT_PJRT_TYPE_F8E4M3FN PJRT_Buffer_Type_F8E4M3FN
#define TT_PJRT_TYPE_F8E5M2FNUZ PJRT_Buffer_Type_F8E5M2FNUZ
#define TT_PJRT_TYPE_F8E4M3FNUZ PJRT_Buffer_Type_F8E4M3FNUZ
#define TT_PJRT_TYPE_F8E8M0FNU PJRT_Buffer_Type_F8E8M0FNU
#define TT_PJRT_TYPE_C64 PJRT_Buffer_Type_C64
#define TT_PJRT_TYPE_C128 PJRT_Buffer_Type_C128
#define X(name, torch, text, hlo, pjrt, bytes, category, is_signed)                                                     \
  _Static_assert((pjrt) == (int)TT_PJRT_TYPE_##name, "the dtype table disagrees with pjrt_c_api.h");
TT_DTYPES(X)
#undef X

static pthread_mutex_t plugins_lock = PTHREAD_MUTEX_INITIALIZER;
static tt_plugin *plugins;

// ---- errors ----------------------------------------------------------------------------------------------------------

static const char *pjrt_code_name(PJRT_Error_Code code) {
  static const char *const names[] = {
      [PJRT_Error_Code_OK] = "OK",
      [PJRT_Error_Code_CANCELLED] = "CANCELLED",
      [PJRT_Error_Code_UNKNOWN] = "UNKNOWN",
      [PJRT_Error_Code_INVALID_ARGUMENT] = "INVALID_ARGUMENT",
      [PJRT_Error_Code_DEADLINE_EXCEEDED] = "DEADLINE_EXCEEDED",
      [PJRT_Error_Code_NOT_FOUND] = "NOT_FOUND",
      [PJRT_Error_Code_ALREADY_EXISTS] = "ALREADY_EXISTS",
      [PJRT_Error_Code_PERMISSION_DENIED] = "PERMISSION_DENIED",
      [PJRT_Error_Code_RESOURCE_EXHAUSTED] = "RESOURCE_EXHAUSTED",
      [PJRT_Error_Code_FAILED_PRECONDITION] = "FAILED_PRECONDITION",
      [PJRT_Error_Code_ABORTED] = "ABORTED",
      [PJRT_Error_Code_OUT_OF_RANGE] = "OUT_OF_RANGE",
      [PJRT_Error_Code_UNIMPLEMENTED] = "UNIMPLEMENTED",
      [PJRT_Error_Code_INTERNAL] = "INTERNAL",
      [PJRT_Error_Code_UNAVAILABLE] = "UNAVAILABLE",
      [PJRT_Error_Code_DATA_LOSS] = "DATA_LOSS",
      [PJRT_Error_Code_UNAUTHENTICATED] = "UNAUTHENTICATED",
  };
  return (unsigned)code < sizeof(names) / sizeof(names[0]) ? names[code] : "UNKNOWN";
}

static tt_code code_from_pjrt(PJRT_Error_Code code) {
  switch (code) {
  case PJRT_Error_Code_RESOURCE_EXHAUSTED: return TT_OUT_OF_MEMORY;
  case PJRT_Error_Code_UNIMPLEMENTED: return TT_NOT_IMPLEMENTED;
  default: return TT_PLUGIN;
  }
}

tt_status tt_pjrt_error(const tt_plugin *plugin, const char *function, PJRT_Error *error) {
  PJRT_Error_Message_Args text = TT_PJRT_ARGS(PJRT_Error_Message, .error = error);
  plugin->api->PJRT_Error_Message(&text);
  PJRT_Error_GetCode_Args code = TT_PJRT_ARGS(PJRT_Error_GetCode, .error = error);
  PJRT_Error *code_error = plugin->api->PJRT_Error_GetCode(&code);
  if (code_error != NULL) code.code = PJRT_Error_Code_UNKNOWN;
  tt_pjrt_ignore(plugin, code_error);

  int size = text.message_size < 1 << 20 ? (int)text.message_size : 1 << 20;
  while (size > 0 && (text.message[size - 1] == '\n' || text.message[size - 1] == ' ')) size--;
  tt_status status = tt_error(code_from_pjrt(code.code), "%s: %s: %.*s", function, pjrt_code_name(code.code), size,
                              text.message != NULL ? text.message : "");
  tt_pjrt_ignore(plugin, error);
  return status;
}

// ---- loading one file ------------------------------------------------------------------------------------------------

static const tt_plugin_function required_functions[] = {
#define X(function) {#function, offsetof(PJRT_Api, function)},
    TT_PJRT_FUNCTIONS(X)
#undef X
};

tt_status tt_plugin_check_functions(const PJRT_Api *api, const tt_plugin_function *functions, size_t count) {
  for (size_t i = 0; i < count; i++) {
    size_t offset = functions[i].offset;
    void *function = NULL;
    if (offset + sizeof(function) <= api->struct_size) memcpy(&function, (const char *)api + offset, sizeof(function));
    if (function == NULL) return tt_error(TT_UNAVAILABLE, "the plugin has no %s", functions[i].name);
  }
  return TT_SUCCESS;
}

static tt_status check_api(const PJRT_Api *api) {
  if (api == NULL) return tt_error(TT_UNAVAILABLE, "GetPjrtApi returned nothing");
  if (api->struct_size < offsetof(PJRT_Api, PJRT_Error_Destroy)) {
    return tt_error(TT_UNAVAILABLE, "the plugin's PJRT_Api has only %zu bytes", api->struct_size);
  }
  int major = api->pjrt_api_version.major_version, minor = api->pjrt_api_version.minor_version;
  if (major != PJRT_API_MAJOR || minor < TT_PJRT_MINOR_MIN) {
    return tt_error(TT_UNAVAILABLE, "the plugin has PJRT API %d.%d, needed is %d.%d or a later %d.x", major, minor,
                    PJRT_API_MAJOR, TT_PJRT_MINOR_MIN, PJRT_API_MAJOR);
  }
  return tt_plugin_check_functions(api, required_functions, sizeof(required_functions) / sizeof(required_functions[0]));
}

static bool file_name_is_libtpu(const char *path) {
  const char *slash = strrchr(path, '/');
  return strncmp(slash != NULL ? slash + 1 : path, "libtpu", strlen("libtpu")) == 0;
}

// dlopen and GetPjrtApi. The library stays loaded even if it is refused: plugins start threads when they are loaded.
static tt_status load_api(const char *path, void **out_library, const PJRT_Api **out_api) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char *reason = dlerror();
    return tt_error(TT_UNAVAILABLE, "%s", reason != NULL ? reason : "dlopen failed");
  }
  const PJRT_Api *(*get_api)(void) = NULL;
  void *symbol = dlsym(library, "GetPjrtApi");
  memcpy(&get_api, &symbol, sizeof(get_api)); // ISO C has no cast from an object pointer to a function pointer
  if (get_api == NULL) return tt_error(TT_UNAVAILABLE, "not a PJRT plugin: it exports no GetPjrtApi");
  const PJRT_Api *api = get_api();
  TT_TRY(check_api(api));
  *out_library = library;
  *out_api = api;
  return TT_SUCCESS;
}

// Makes and initialises the plugin; the caller holds plugins_lock.
static tt_status plugin_create(const char *path, void *library, const PJRT_Api *api, tt_plugin **out_plugin) {
  void *block = NULL;
  TT_TRY(tt_allocate(1, sizeof(tt_plugin), &block));
  tt_plugin *plugin = block;
  plugin->api = api;
  plugin->library = library;
  plugin->is_libtpu = file_name_is_libtpu(path);
  plugin->path = tt_strdup(path);
  tt_status status = plugin->path != NULL ? TT_SUCCESS : tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted");
  if (status == NULL) {
    status = TT_PJRT(plugin, PJRT_Plugin_Initialize, &TT_PJRT_ARGS(PJRT_Plugin_Initialize, .extension_start = NULL));
  }
  if (status != NULL) {
    tt_free(plugin->path);
    tt_free(plugin);
    return status;
  }
  *out_plugin = plugin;
  return TT_SUCCESS;
}

// Settings that a plugin reads when it is loaded. What the user has set stays.
static void set_environment(const char *path) {
  // The plugins note each client on stderr. API 0.106 for the CPU moreover logs two errors of 3 KB for every program that it loads
  // from bytes: it adds LLVM's tuning wishes prefer-no-gather and prefer-no-scatter to the features that the code needs, and
  // finds that no CPU has them. What fails is a status all the same, so of CPU plugins only fatal errors come through.
  setenv("TF_CPP_MIN_LOG_LEVEL", file_name_is_libtpu(path) ? "1" : "3", /*overwrite=*/0);
  // Where there is no TPU, libtpu asks the metadata server of Google's cloud for one and hangs (seen with libtpu 0.0.52).
  if (file_name_is_libtpu(path) && !tt_tpu_attached()) setenv("TPU_SKIP_MDS_QUERY", "1", /*overwrite=*/0);
}

static tt_status open_locked(const char *path, tt_plugin **out_plugin) {
  set_environment(path);
  void *library = NULL;
  const PJRT_Api *api = NULL;
  TT_TRY(load_api(path, &library, &api));
  // A second opening of the same library must not initialise it again.
  for (tt_plugin *known = plugins; known != NULL; known = known->next) {
    if (known->api == api) {
      *out_plugin = known;
      return TT_SUCCESS;
    }
  }
  tt_plugin *plugin = NULL;
  TT_TRY(plugin_create(path, library, api, &plugin));
  plugin->next = plugins;
  plugins = plugin;
  *out_plugin = plugin;
  return TT_SUCCESS;
}

tt_status tt_plugin_open_file(const char *path, tt_plugin **out_plugin) {
  pthread_mutex_lock(&plugins_lock);
  tt_status status = open_locked(path, out_plugin);
  pthread_mutex_unlock(&plugins_lock);
  return tt_status_context(status, "PJRT plugin %s", path);
}

const char *tt_plugin_path(const tt_plugin *plugin) { return plugin->path; }

void tt_plugin_version(const tt_plugin *plugin, int *out_major, int *out_minor) {
  *out_major = plugin->api->pjrt_api_version.major_version;
  *out_minor = plugin->api->pjrt_api_version.minor_version;
}

// ---- is there a TPU? -------------------------------------------------------------------------------------------------

// Reads the number in a file like /sys/bus/pci/devices/*/vendor; 0 if there is none.
static unsigned long read_hex(const char *path) {
  FILE *file = fopen(path, "re");
  if (file == NULL) return 0;
  char line[32] = "";
  if (fgets(line, sizeof(line), file) == NULL) line[0] = '\0';
  fclose(file);
  return strtoul(line, NULL, 16);
}

// Google's vendor id alone is not enough: the network and disk controllers of its virtual machines carry it too.
static bool is_tpu_pci_device(const char *vendor_path) {
  static const unsigned short tpu_ids[] = {0x0027 /* v2, v3 */, 0x0056,           0x005e /* v4 */, 0x0062 /* v5p */,
                                           0x0063 /* v5e */,    0x006f /* v6e */, 0x0076 /* 7x */};
  if (read_hex(vendor_path) != 0x1ae0) return false;
  char device_path[256];
  int folder = (int)(strlen(vendor_path) - strlen("vendor"));
  int size = snprintf(device_path, sizeof(device_path), "%.*sdevice", folder, vendor_path);
  if (size < 0 || (size_t)size >= sizeof(device_path)) return false;
  unsigned long id = read_hex(device_path);
  for (size_t i = 0; i < sizeof(tpu_ids) / sizeof(tpu_ids[0]); i++) {
    if (id == tpu_ids[i]) return true;
  }
  return false;
}

static bool any_path(const char *pattern, bool (*accept)(const char *path)) {
  glob_t found;
  bool any = false;
  if (glob(pattern, GLOB_NOSORT, NULL, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc && !any; i++) any = accept == NULL || accept(found.gl_pathv[i]);
    globfree(&found);
  }
  return any;
}

static const char *environment(const char *name) {
  const char *value = getenv(name);
  return value != NULL && value[0] != '\0' ? value : NULL;
}

bool tt_tpu_attached(void) {
  return environment("TPU_LIBRARY_PATH") != NULL || any_path("/dev/accel[0-9]*", NULL) ||
         any_path("/sys/bus/pci/devices/*/vendor", is_tpu_pci_device);
}

// ---- finding ---------------------------------------------------------------------------------------------------------

typedef struct known_plugin {
  const char *source;   // the package on PyPI
  const char *relative; // to a folder like site-packages
} known_plugin;

static const known_plugin libtpu_plugin = {"libtpu", "libtpu/libtpu.so"};
static const known_plugin cpu_plugins[] = {
    {"fastatomstruct-xla-cpu", "fastatomstruct_xla_cpu/libpjrt_cpu.so"},
    {"lammps-jax-pjrt-cpu", "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"},
    {"xla-cpu-pjrt", "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so"},
};

// A search in progress: the places tried, and the plugin once there is one.
typedef struct search {
  const char *const *dirs;
  size_t dir_count;
  tt_plugin_probes probes;
  tt_plugin *plugin;
} search;

// Remembers a place. `path` and `reason` may be NULL.
static tt_status search_note(search *s, const char *source, const char *path, const char *reason) {
  tt_plugin_probes *probes = &s->probes;
  tt_plugin_probe *items = tt_realloc_array(probes->items, probes->count + 1, sizeof(*items));
  if (items == NULL) return tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted");
  probes->items = items;
  tt_plugin_probe *probe = &items[probes->count++];
  probe->source = tt_strdup(source);
  probe->path = path != NULL ? tt_strdup(path) : NULL;
  probe->reason = reason != NULL ? tt_strdup(reason) : NULL;
  if (probe->source == NULL || (path != NULL && probe->path == NULL) || (reason != NULL && probe->reason == NULL)) {
    return tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted");
  }
  return TT_SUCCESS;
}

// Tries one file. A plugin that does not load is a remembered reason, not a failure of the search.
static tt_status search_file(search *s, const char *source, const char *path) {
  if (access(path, F_OK) != 0) return search_note(s, source, path, strerror(errno));
  tt_plugin *plugin = NULL;
  tt_status opened = tt_plugin_open_file(path, &plugin);
  if (tt_status_code(opened) == TT_OUT_OF_MEMORY) return opened;
  tt_status noted = search_note(s, source, path, opened != NULL ? tt_status_message(opened) : NULL);
  tt_status_free(opened);
  TT_TRY(noted);
  s->plugin = plugin;
  return TT_SUCCESS;
}

static tt_status search_known(search *s, const known_plugin *known) {
  for (size_t i = 0; i < s->dir_count && s->plugin == NULL; i++) {
    tt_string path = TT_STRING_INIT;
    tt_string_printf(&path, "%s/%s", s->dirs[i], known->relative);
    tt_status status = tt_string_status(&path);
    if (status == NULL) status = search_file(s, known->source, tt_string_text(&path));
    tt_string_free(&path);
    TT_TRY(status);
  }
  return TT_SUCCESS;
}

static tt_status search_libtpu(search *s) {
  if (!tt_tpu_attached()) return search_note(s, libtpu_plugin.source, NULL, "no TPU is attached to this machine");
  const char *path = environment("TPU_LIBRARY_PATH");
  if (path != NULL) TT_TRY(search_file(s, "TPU_LIBRARY_PATH", path));
  return s->plugin == NULL ? search_known(s, &libtpu_plugin) : TT_SUCCESS;
}

static tt_status search_all(search *s) {
  const char *path = environment("TORCH_TPU_PJRT_PLUGIN");
  // Who names a plugin wants that one or none.
  if (path != NULL) return search_file(s, "TORCH_TPU_PJRT_PLUGIN", path);
  TT_TRY(search_note(s, "TORCH_TPU_PJRT_PLUGIN", NULL, "not set"));
  TT_TRY(search_libtpu(s));
  for (size_t i = 0; i < sizeof(cpu_plugins) / sizeof(cpu_plugins[0]) && s->plugin == NULL; i++) {
    TT_TRY(search_known(s, &cpu_plugins[i]));
  }
  return TT_SUCCESS;
}

static tt_status nothing_found(const tt_plugin_probes *probes) {
  tt_string text = TT_STRING_INIT;
  for (size_t i = 0; i < probes->count; i++) {
    const tt_plugin_probe *probe = &probes->items[i];
    const char *path = probe->path != NULL ? probe->path : "", *space = probe->path != NULL ? " " : "";
    tt_string_printf(&text, "\n  %s:%s%s%s%s", probe->source, space, path, probe->path != NULL ? ": " : " ",
                     probe->reason);
  }
  tt_status status = tt_error(TT_UNAVAILABLE,
                              "no PJRT plugin could be loaded; pip install fastatomstruct-xla-cpu "
                              "brings one for the CPU. Tried:%s",
                              tt_string_text(&text));
  tt_string_free(&text);
  return status;
}

tt_status tt_plugin_open(const char *const *search_dirs, size_t count, tt_plugin_probes *out_probes,
                         tt_plugin **out_plugin) {
  search s = {.dirs = search_dirs, .dir_count = count};
  tt_status status = search_all(&s);
  if (status == NULL && s.plugin == NULL) status = nothing_found(&s.probes);
  if (status == NULL) *out_plugin = s.plugin;
  if (out_probes != NULL) {
    *out_probes = s.probes;
  } else {
    tt_plugin_probes_free(&s.probes);
  }
  return status;
}

static bool known_file_exists(const known_plugin *known, const char *dir) {
  tt_string path = TT_STRING_INIT;
  tt_string_printf(&path, "%s/%s", dir, known->relative);
  bool exists = !path.failed && access(tt_string_text(&path), F_OK) == 0;
  tt_string_free(&path);
  return exists;
}

bool tt_plugin_file_exists(const char *const *search_dirs, size_t count) {
  const char *path = environment("TORCH_TPU_PJRT_PLUGIN");
  if (path != NULL) return access(path, F_OK) == 0;
  for (size_t i = 0; i < count; i++) {
    for (size_t k = 0; k < sizeof(cpu_plugins) / sizeof(cpu_plugins[0]); k++) {
      if (known_file_exists(&cpu_plugins[k], search_dirs[i])) return true;
    }
  }
  return false;
}

void tt_plugin_probes_free(tt_plugin_probes *probes) {
  for (size_t i = 0; i < probes->count; i++) {
    tt_free(probes->items[i].source);
    tt_free(probes->items[i].path);
    tt_free(probes->items[i].reason);
  }
  tt_free(probes->items);
  *probes = (tt_plugin_probes){NULL, 0};
}
