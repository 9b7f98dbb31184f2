// export.h - a recorded program as something to be written to a file: its StableHLO, and what its inputs and outputs are.
#ifndef TT_RUN_EXPORT_H_
#define TT_RUN_EXPORT_H_

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "run/call.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tt_export_input {
  int slot; // tensor of the call; -1: `data`
  tt_dtype dtype;
  int rank;
  const int64_t *dims;
  const void *data; // of a tensor that the calls brought along: row-major, `byte_size` bytes
  int64_t byte_size;
} tt_export_input;

typedef struct tt_export_output {
  tt_dtype dtype;
  int rank;
  const int64_t *dims;
  // Of a check, a BOOL that must come out true: the failure otherwise. NULL: a result of the call, in their order.
  const char *message, *code;
} tt_export_output;

typedef struct tt_export {
  const char *text; // of the whole module
  size_t size;
  int input_count, output_count;
  const tt_export_input *inputs;
  const tt_export_output *outputs;
} tt_export;

// Ends the recording that tt_record_begin(call) began and gives its program; nothing is compiled, and no plan is entered. The
// tensors of `call` are whole storages. Errors: TT_NOT_IMPLEMENTED where the program needs more than these tensors (random
// numbers) or writes them.
tt_status tt_record_export(const tt_call *call, const tt_tensor *results, int count, tt_export **out_export);
void tt_export_free(tt_export *e); // NULL is fine

#ifdef __cplusplus
}
#endif
#endif // TT_RUN_EXPORT_H_
