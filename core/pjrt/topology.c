// topology.c - see topology.h.
#include "pjrt/topology.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/memory.h"
#include "base/string.h"
#include "pjrt/api.h"
#include "pjrt/options.h"

// What is called here and nowhere else: plugins that only run programs may lack these.
#define TT_PJRT_TOPOLOGY_FUNCTIONS(X)                                                                                   \
  X(PJRT_TopologyDescription_Create)                                                                                    \
  X(PJRT_TopologyDescription_Destroy)                                                                                   \
  X(PJRT_Compile)                                                                                                       \
  X(PJRT_Executable_Destroy)                                                                                            \
  X(PJRT_Executable_GetCostAnalysis)                                                                                    \
  X(PJRT_Executable_GetCompiledMemoryStats)

struct tt_topology {
  tt_plugin *plugin;
  PJRT_TopologyDescription *pjrt;
  tt_option_set refused_options; // what the plugin answered "No such compile option" to
};

static const tt_plugin_function functions[] = {
#define X(function) {#function, offsetof(PJRT_Api, function)},
    TT_PJRT_TOPOLOGY_FUNCTIONS(X)
#undef X
};

tt_status tt_topology_create(tt_plugin *plugin, const char *name, tt_topology **out_topology) {
  TT_TRY(tt_plugin_check_functions(plugin->api, functions, sizeof(functions) / sizeof(functions[0])));
  void *block = NULL;
  TT_TRY(tt_allocate(1, sizeof(tt_topology), &block));
  tt_topology *topology = block;
  topology->plugin = plugin;
  PJRT_TopologyDescription_Create_Args args =
      TT_PJRT_ARGS(PJRT_TopologyDescription_Create, .topology_name = name, .topology_name_size = strlen(name));
  tt_status status = TT_PJRT(plugin, PJRT_TopologyDescription_Create, &args);
  if (status != NULL) {
    tt_free(topology);
    return tt_status_context(status, "topology \"%s\"", name);
  }
  topology->pjrt = args.topology;
  *out_topology = topology;
  return TT_SUCCESS;
}

void tt_topology_destroy(tt_topology *topology) {
  if (topology == NULL) return;
  const tt_plugin *plugin = topology->plugin;
  tt_pjrt_ignore(plugin, plugin->api->PJRT_TopologyDescription_Destroy(
                             &TT_PJRT_ARGS(PJRT_TopologyDescription_Destroy, .topology = topology->pjrt)));
  tt_free(topology);
}

// ---- compiling -------------------------------------------------------------------------------------------------------

static tt_status compile_once(tt_topology *topology, const char *text, int64_t size, const tt_string *options,
                              PJRT_Executable **out_executable) {
  PJRT_Program program = tt_pjrt_program(text, size);
  PJRT_Compile_Args args = TT_PJRT_ARGS(PJRT_Compile, .topology = topology->pjrt, .program = &program,
                                        .compile_options = options->data, .compile_options_size = options->size);
  TT_TRY(TT_PJRT(topology->plugin, PJRT_Compile, &args));
  *out_executable = args.executable;
  return TT_SUCCESS;
}

// Drops one option after the other while the plugin refuses them.
static tt_status compile(tt_topology *topology, const char *text, int64_t size, PJRT_Executable **out_executable) {
  const tt_compile_options options = {.effort = TT_EFFORT_FULL};
  for (;;) {
    tt_option_set sent = 0;
    tt_string proto = TT_STRING_INIT;
    tt_status status =
        tt_options_write(/*is_host=*/false, text, size, &options, topology->refused_options, &proto, &sent);
    if (status == NULL) status = compile_once(topology, text, size, &proto, out_executable);
    tt_string_free(&proto);
    tt_option_set refused = tt_options_refused(status, sent);
    if (refused == 0) return status;
    topology->refused_options |= refused;
    tt_status_free(status);
  }
}

// ---- the report ------------------------------------------------------------------------------------------------------

// libtpu's estimate loses one second for each op that it knows nothing of (seen with libtpu 0.0.52), so that a negative one
// says nothing.
static void read_cost(const tt_plugin *plugin, PJRT_Executable *executable, tt_compile_report *report) {
  PJRT_Executable_GetCostAnalysis_Args args = TT_PJRT_ARGS(PJRT_Executable_GetCostAnalysis, .executable = executable);
  PJRT_Error *error = plugin->api->PJRT_Executable_GetCostAnalysis(&args);
  if (error != NULL) return tt_pjrt_ignore(plugin, error);
  static const char name[] = "optimal_seconds";
  for (size_t i = 0; i < args.num_properties; i++) {
    const PJRT_NamedValue *property = &args.properties[i];
    if (property->type == PJRT_NamedValue_kFloat && property->name_size == sizeof(name) - 1 &&
        memcmp(property->name, name, sizeof(name) - 1) == 0 && property->float_value >= 0) {
      report->optimal_seconds = (double)property->float_value;
    }
  }
}

static void read_memory(const tt_plugin *plugin, PJRT_Executable *executable, tt_compile_report *report) {
  PJRT_Executable_GetCompiledMemoryStats_Args args =
      TT_PJRT_ARGS(PJRT_Executable_GetCompiledMemoryStats, .executable = executable);
  PJRT_Error *error = plugin->api->PJRT_Executable_GetCompiledMemoryStats(&args);
  if (error != NULL) return tt_pjrt_ignore(plugin, error);
  report->code_bytes = args.generated_code_size_in_bytes;
  report->argument_bytes = args.argument_size_in_bytes;
  report->output_bytes = args.output_size_in_bytes;
  report->alias_bytes = args.alias_size_in_bytes;
  report->temporary_bytes = args.temp_size_in_bytes;
}

tt_status tt_topology_compile(tt_topology *topology, const char *text, int64_t size, tt_compile_report *out_report) {
  PJRT_Executable *executable = NULL;
  TT_TRY(compile(topology, text, size, &executable));
  const tt_plugin *plugin = topology->plugin;
  *out_report = (tt_compile_report){NAN, -1, -1, -1, -1, -1};
  read_cost(plugin, executable, out_report);
  read_memory(plugin, executable, out_report);
  tt_pjrt_ignore(
      plugin, plugin->api->PJRT_Executable_Destroy(&TT_PJRT_ARGS(PJRT_Executable_Destroy, .executable = executable)));
  return TT_SUCCESS;
}
