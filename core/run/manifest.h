// manifest.h - the folder of an exported program, as read from its manifest.json.
#ifndef TT_RUN_MANIFEST_H_
#define TT_RUN_MANIFEST_H_

#include "base/arena.h"
#include "base/status.h"
#include "base/string.h"
#include "graph/storage.h"
#include "run/exported.h"

typedef struct tt_manifest_value {
  tt_exported_value public;
  const tt_layout *layout;
  const char *data; // of an input that is no user's: in the weights
  // Of an output of kind "check", a BOOL that must come out true: the failure otherwise.
  const char *message;
  tt_code code;
} tt_manifest_value;

typedef struct tt_manifest {
  const char *name;
  const char *code; // StableHLO
  int64_t code_size;
  bool exact; // see tt_compile_options
  int input_count, output_count, check_count;
  tt_manifest_value *inputs, *outputs; // in the program's order; the checks are the last outputs
  tt_arena arena;                      // owns the arrays and texts
  tt_string program, weights;          // the files
} tt_manifest;

// Reads the folder's files. On failure there is nothing to free. Errors: TT_VALUE naming the file.
tt_status tt_manifest_read(const char *folder, tt_manifest *out_manifest);
void tt_manifest_free(tt_manifest *manifest);

#endif // TT_RUN_MANIFEST_H_
