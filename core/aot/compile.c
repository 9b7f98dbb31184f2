// compile.c - compiling one text for a topology; see aot.h.
#include "aot/aot.h"
#include "pjrt/topology.h"

tt_status tt_aot_compile(const char *plugin_path, const char *topology, const char *text, int64_t size,
                         tt_aot_report *out_report) {
  tt_plugin *plugin = NULL;
  TT_TRY(tt_plugin_open_file(plugin_path, &plugin));
  // Describing a few chips takes milliseconds, compiling for them a hundred times that.
  tt_topology *described = NULL;
  TT_TRY(tt_topology_create(plugin, topology, &described));
  tt_compile_report report;
  tt_status status = tt_topology_compile(described, text, size, &report);
  tt_topology_destroy(described);
  if (status) return status;
  *out_report = (tt_aot_report){report.optimal_seconds, report.code_bytes,  report.argument_bytes,
                                report.output_bytes,    report.alias_bytes, report.temporary_bytes};
  return TT_SUCCESS;
}
