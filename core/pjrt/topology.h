// topology.h - compiling for devices that are not there.
//
// A TPU plugin can describe a topology by name ("v5e:1x1", "v6e:1x1", "tpu7x:2x2x1" with libtpu) and compile for it on any
// machine. The result cannot be run here; what counts is whether it compiled, and what the compiler says of it.
//
// libtpu may end the process on a program that it did not expect, so call it from a process that can be spared. One thread at
// a time per topology.
#ifndef TT_PJRT_TOPOLOGY_H_
#define TT_PJRT_TOPOLOGY_H_

#include <stdint.h>

#include "base/status.h"
#include "pjrt/plugin.h"

typedef struct tt_topology tt_topology;

// Errors: TT_UNAVAILABLE for a plugin that cannot compile ahead of time, TT_PLUGIN for a name that it does not know.
tt_status tt_topology_create(tt_plugin *plugin, const char *name, tt_topology **out_topology);
void tt_topology_destroy(tt_topology *topology); // NULL is fine

// What the compiler says of a program. Bytes of device memory; -1 where it does not say.
typedef struct tt_compile_report {
  double optimal_seconds; // the compiler's own estimate of the run time; NaN where it has none
  int64_t code_bytes, argument_bytes, output_bytes, alias_bytes, temporary_bytes;
} tt_compile_report;

// Compiles StableHLO text of `size` bytes with the options that a program of one device gets (pjrt/options.h).
// Errors: TT_PLUGIN, TT_NOT_IMPLEMENTED and TT_OUT_OF_MEMORY (also the device's) with the compiler's message.
tt_status tt_topology_compile(tt_topology *topology, const char *text, int64_t size, tt_compile_report *out_report);

#endif // TT_PJRT_TOPOLOGY_H_
