// plugin.h - finding and loading a PJRT plugin (a shared object that exports GetPjrtApi).
//
// Order: $TORCH_TPU_PJRT_PLUGIN; libtpu when a TPU is attached to this machine (Google's PCI vendor id, /dev/accel*, or
// $TPU_LIBRARY_PATH set); the CPU plugins that pip may have brought, the default one first. Every place tried is
// remembered with the reason why it failed, for the error message and for `python -m torch_tpu info`. Where
// $TORCH_TPU_PJRT_PLUGIN is set, nothing else is tried.
//
// A plugin is never unloaded: PJRT plugins do not support it. Any thread may call after tt_plugin_open returned.
#ifndef TT_PJRT_PLUGIN_H_
#define TT_PJRT_PLUGIN_H_

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

// The oldest PJRT API minor version that is accepted: 0.57 moved the functions of PJRT_Api to where they are now.
#define TT_PJRT_MINOR_MIN 57

typedef struct tt_plugin tt_plugin;

typedef struct tt_plugin_probe {
  char *source; // "TORCH_TPU_PJRT_PLUGIN", "libtpu", "fastatomstruct-xla-cpu", ...
  char *path;   // the file that was tried; NULL when none was (no TPU attached, variable unset)
  char *reason; // why it was not taken; NULL for the one that was
} tt_plugin_probe;

typedef struct tt_plugin_probes {
  tt_plugin_probe *items;
  size_t count;
} tt_plugin_probes;

// Finds and loads. `search_dirs` are folders like site-packages, tried in order for each known plugin. *out_probes
// (may be NULL) is filled on success and on failure; free it with tt_plugin_probes_free.
// Errors: TT_UNAVAILABLE naming every place tried and why each failed.
tt_status tt_plugin_open(const char *const *search_dirs, size_t count, tt_plugin_probes *out_probes,
                         tt_plugin **out_plugin);
// Loads exactly this file and checks it: GetPjrtApi present, API major version equal to ours, minor at least
// TT_PJRT_MINOR_MIN, PJRT_Api's struct size large enough for every function that the core calls.
tt_status tt_plugin_open_file(const char *path, tt_plugin **out_plugin);
// Is there a file that tt_plugin_open would try on a machine without a TPU? Loads nothing.
bool tt_plugin_file_exists(const char *const *search_dirs, size_t count);
void tt_plugin_probes_free(tt_plugin_probes *probes);

const char *tt_plugin_path(const tt_plugin *plugin);
void tt_plugin_version(const tt_plugin *plugin, int *out_major, int *out_minor);
// Lets a CPU plugin take its large blocks (results of programs, what is between them, uploads) from base/pool.h instead of
// malloc; PJRT has no way to ask for that, so the plugin's own calls of malloc's functions are led there. Before a
// program runs. False if the plugin or the machine does not allow it: then malloc serves as before. (plugin_memory.c)
bool tt_plugin_pool_memory(const tt_plugin *plugin);
bool tt_tpu_attached(void); // hardware probe only; starts nothing, takes microseconds

#endif // TT_PJRT_PLUGIN_H_
