// aot.h - the TPU compiler as judge of the lowerings, on a machine without a TPU.
//
// Two halves that meet in a folder of program texts: a process that works on any device collects the programs that its calls
// would be on a TPU; another one, which libtpu may end, compiles them for a topology. `python -m torch_tpu tpu-compile` drives
// both (docs/tpu-compiler.md).
#ifndef TT_AOT_AOT_H_
#define TT_AOT_AOT_H_

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- collecting -----------------------------------------------------------------------------------------------------------
// From now on every call that needs a new plan is lowered again for each TPU generation (5, 6, 7), and the texts are written
// into `folder`, which must exist. A call in a recorded decomposition counts as a call of its own.
//
// A file is named after the op's row and a hash, so that the same text comes once: "add.Tensor-0123456789abcdef.mlir". It is
// StableHLO with three lines of comment in front:
//   // row: add.Tensor
//   // call: aten::add.out(Float [2, 3], Float [3], Float [2, 3])
//   // generations: 5 6 7
// Where the lowering fails for a TPU, the file ends with the line "// error: ..." instead of a program.
//
// NULL stops collecting. Returns the first failure to collect since the last call: a full disk, lack of memory. Without
// collecting a call costs nothing more, a new plan one load. Any thread.
tt_status tt_aot_collect(const char *folder);

// --- compiling ------------------------------------------------------------------------------------------------------------
// pjrt/topology.h says what each means.
typedef struct tt_aot_report {
  double optimal_seconds;
  int64_t code_bytes, argument_bytes, output_bytes, alias_bytes, temporary_bytes;
} tt_aot_report;

// Compiles a text of `size` bytes with the plugin at `plugin_path` for a topology such as "v5e:1x1". libtpu may end the process.
// Errors: TT_UNAVAILABLE for the plugin; TT_PLUGIN, TT_NOT_IMPLEMENTED or TT_OUT_OF_MEMORY with the compiler's message.
tt_status tt_aot_compile(const char *plugin_path, const char *topology, const char *text, int64_t size,
                         tt_aot_report *out_report);

#ifdef __cplusplus
}
#endif
#endif // TT_AOT_AOT_H_
