// peer_shim.c - an XLA CPU plugin that also answers PJRT_Executable_OutputMemoryKinds, which TorchTPU's torch.compile asks for
// and the plugin leaves out: all outputs are in the memory that is the default. Everything else is the plugin's own
// ($PEER_SHIM_PLUGIN). bench/harness.py builds it.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt_c_api.h"

static const PJRT_Api *plugin;

// The answer lives as long as the process: there is one for each program.
static PJRT_Error *output_memory_kinds(PJRT_Executable_OutputMemoryKinds_Args *args) {
  static const char kind[] = "device";
  PJRT_Executable_NumOutputs_Args outputs = {.struct_size = PJRT_Executable_NumOutputs_Args_STRUCT_SIZE,
                                             .executable = args->executable};
  PJRT_Error *error = plugin->PJRT_Executable_NumOutputs(&outputs);
  if (error) return error;
  const char **kinds = calloc(outputs.num_outputs + 1, sizeof *kinds);
  size_t *sizes = calloc(outputs.num_outputs + 1, sizeof *sizes);
  if (!kinds || !sizes) abort();
  for (size_t i = 0; i < outputs.num_outputs; ++i) {
    kinds[i] = kind;
    sizes[i] = sizeof kind - 1;
  }
  args->num_outputs = outputs.num_outputs;
  args->memory_kinds = kinds;
  args->memory_kind_sizes = sizes;
  return NULL;
}

const PJRT_Api *GetPjrtApi(void) {
  static PJRT_Api *api;
  if (api) return api;
  void *library = dlopen(getenv("PEER_SHIM_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
  const PJRT_Api *(*get)(void) = NULL;
  if (library) *(void **)&get = dlsym(library, "GetPjrtApi");
  if (!get) {
    fprintf(stderr, "peer_shim: %s\n", dlerror());
    exit(1);
  }
  plugin = get();
  const size_t size = plugin->struct_size > sizeof *api ? plugin->struct_size : sizeof *api;
  api = calloc(1, size); // the plugin's may be of a newer version, with more entries
  if (!api) abort();
  memcpy(api, plugin, plugin->struct_size);
  api->PJRT_Executable_OutputMemoryKinds = output_memory_kinds;
  return api;
}
