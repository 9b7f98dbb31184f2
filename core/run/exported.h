// exported.h - running an exported program: a folder with StableHLO, weights and a manifest (docs/export.md).
//
// Loading reads all of it, copies the weights to the device and compiles; running takes the user's inputs. Any thread may run
// one, also several at once.
#ifndef TT_RUN_EXPORTED_H_
#define TT_RUN_EXPORTED_H_

#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "run/call.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tt_exported tt_exported;

// An input that the user gives, or an output.
typedef struct tt_exported_value {
  const char *kind; // "user_input", "user_output", "buffer_mutation"
  const char *name;
  tt_dtype dtype;
  int rank;
  const int64_t *dims;
  int64_t byte_size; // of its elements, row-major
} tt_exported_value;

// Loads `folder` onto a device. Starts the runtime.
// Errors: TT_VALUE naming the file and what is wrong with it; those of the compiler; TT_OUT_OF_MEMORY.
tt_status tt_exported_load(const char *folder, int device_index, tt_exported **out_exported);
void tt_exported_free(tt_exported *exported); // NULL is fine

int tt_exported_input_count(const tt_exported *exported);
int tt_exported_output_count(const tt_exported *exported);
const tt_exported_value *tt_exported_input(const tt_exported *exported, int index);  // NULL when out of range
const tt_exported_value *tt_exported_output(const tt_exported *exported, int index); // NULL when out of range

// Runs it. `inputs` are tensors on the device, of the dtypes and sizes of the user's inputs, in their order; *out_results are
// the outputs, whose storages are the caller's. Nothing waits for the program.
// Errors: TT_INVALID_ARGUMENT naming the input that does not fit.
tt_status tt_exported_run(tt_exported *exported, const tt_tensor *inputs, int count, tt_results *out_results);

#ifdef __cplusplus
}
#endif
#endif // TT_RUN_EXPORTED_H_
