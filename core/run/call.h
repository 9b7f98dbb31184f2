// call.h - one ATen call: key, plan, program, results.
//
// tt_call_run makes the call's key (op, dtypes, sizes, how each view reads its storage, compiled-in arguments) and looks for
// the plan: a compiled program with the recipe for its inputs and outputs. On a miss the op's lowering makes the program.
// While this thread records (graph/recorder.h), the lowering goes into the recorder's program instead and nothing runs.
#ifndef TT_RUN_CALL_H_
#define TT_RUN_CALL_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "op/arg.h"
#include "op/op.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TT_MAX_RANK = 64 }; // torch's own limit for most kernels

typedef enum tt_variant { TT_FUNCTIONAL, TT_IN_PLACE, TT_OUT } tt_variant;

// One registered overload: filled once by the bridge, never changed.
typedef struct tt_overload {
  const tt_op *op;  // NULL: an op without a lowering, which may get plans by recording its decomposition
  const char *name; // "aten::add.out", static
  int id;           // unique per overload
  tt_variant variant;
  bool
      structured; // functional or in-place: torch's own wrapper gives checks, shapes and dtypes by calling the out= variant
  // Of an op without a lowering: CPU scalars travel at run time (tt_record_scalar) instead of being compiled in; its program
  // need not give the values that its calls give one by one.
  bool scalars_are_inputs, fast_math;
  int arg_count;    // of its schema
  int result_count; // of its schema; lists count as one
} tt_overload;

tt_overload *tt_overload_create(const tt_op *op, const char *name, tt_variant variant, bool structured, int arg_count,
                                int result_count); // NULL when memory is exhausted; lives for ever

typedef struct tt_call {
  const tt_overload *overload;
  const tt_arg *args;
  int arg_count;
  const tt_tensor *tensors; // slots
  int tensor_count;
  const int *written; // slots that the schema marks as written, in order
  int written_count;
  int device_index;
  tt_dtype default_dtype;
  int precision; // tt_precision in force
} tt_call;

// A fresh result tensor.
typedef struct tt_result {
  tt_storage *storage; // one reference, the caller's
  tt_dtype dtype;
  int rank;
  const int64_t *sizes, *strides; // owned by the plan (or this thread's next call): copy before the next call
  int device_index;
} tt_result;

enum { TT_INLINE_RESULTS = 16 };
typedef struct tt_results {
  int count;
  tt_result *items; // `inline_items`, or heap when there are more
  tt_result inline_items[TT_INLINE_RESULTS];
} tt_results;
void tt_results_free(tt_results *results); // frees the heap array only; the storages are the caller's

// Runs the call. Written slots get their new values; fresh results (TT_FUNCTIONAL) are put into *out_results in order.
// *out_miss true: nothing was done, because the overload is structured (or has no lowering) and its plan is not known:
// run torch's wrapper (or record the decomposition), then call tt_call_adopt (or tt_record_end) and the next call hits.
tt_status tt_call_run(const tt_call *call, tt_results *out_results, bool *out_miss);

// After torch's structured wrapper ran for `call`: if this thread's last run was its out= variant on the same operands, the
// plan is entered under `call`'s key too, with these result tensors as the shapes. Returns whether it was.
bool tt_call_adopt(const tt_call *call, const tt_tensor *results, int count);

// Forgets all plans and programs; those of calls that are under way live until these are over. Calls after it compile again.
void tt_plans_forget(void);

// --- host data, copies ----------------------------------------------------------------------------------------------------
// Writes `tensor` from dense row-major host data of the same sizes and of dtype `host_dtype` (converted on the device).
// `host_done` (may be NULL) is called with `user`, on any thread, when the host memory is no longer needed, also when the
// call fails; with NULL the call copies first.
tt_status tt_copy_from_host(const tt_tensor *tensor, const void *data, tt_dtype host_dtype,
                            void (*host_done)(void *user), void *user);
// Reads `tensor` into dense row-major host memory of the same sizes in its own dtype. With NULL for `host_done` the data is
// there when the call returns. Otherwise the call does not wait: the copy is work of the device's queue like a program, and
// `host_done` is called with `user`, on any thread, when the host memory is no longer written, also when the call fails.
tt_status tt_copy_to_host(const tt_tensor *tensor, void *data, void (*host_done)(void *user), void *user);
// dst = src with conversion and broadcasting; both on tpu devices, perhaps different ones.
tt_status tt_copy(const tt_tensor *dst, const tt_tensor *src);
// A new storage that holds the tensor densely in larger sizes, with zeros behind its elements in each dimension; the caller's
// reference. On a host platform this compiles nothing, whatever the sizes.
tt_status tt_copy_padded(const tt_tensor *tensor, const int64_t *sizes, tt_storage **out_storage);
// The one element of a tensor, 16 bytes at most.
tt_status tt_item(const tt_tensor *tensor, void *out_element);
// Changes a storage's size, keeping the common prefix of its contents.
tt_status tt_resize_storage(tt_storage *storage, int64_t byte_size);

// --- recording a decomposition ----------------------------------------------------------------------------------------------
// Starts recording on this thread for `call`, whose plan is missing. Tensors of the call keep their handles; every op that
// this thread runs until the end goes into one program. Nested recordings join the outer one.
tt_status tt_record_begin(const tt_call *call);
bool tt_record_active(void);
// Says that the program will overwrite this argument of `call` at its end; see tt_recorder_overwrite.
tt_status tt_record_overwrite(const tt_tensor *tensor);
// For a call whose overload's scalars are inputs: a tensor that stands for the CPU scalar in this slot while the call's program
// is recorded. Its storage is the caller's.
tt_status tt_record_scalar(const tt_call *call, int slot, tt_result *out_result);
// Ends it: `results` are the tensors returned by the decomposition (none for in-place and out= calls). The program is compiled
// and entered under the call's key; storages are as they were before, and running the call again hits the plan.
tt_status tt_record_end(const tt_call *call, const tt_tensor *results, int count);
// Ends it without a program.
void tt_record_abort(void);

// --- control flow in a recorded program -----------------------------------------------------------------------------------
// A region is a part of the program that an op runs as its own: a loop's body or condition, a branch. This thread, which is
// recording, begins one; what it runs until the end goes into the region, which reads tensors from outside as they are in front
// of the op. Regions may hold regions, and live until the recording ends. (region.c)
typedef struct tt_region tt_region;
// Begins a region with arguments of the dtypes and sizes of `likes`: fresh, contiguous tensors, in *out_arguments.
tt_status tt_region_begin(int device_index, const tt_tensor *likes, int count, tt_results *out_arguments);
// Ends it: it gives the values of `results`. On failure the region is still to be aborted.
tt_status tt_region_end(const tt_tensor *results, int count, tt_region **out_region);
// Ends it without a region.
void tt_region_abort(void);
// The ops; graph/region.h says what they do. Their results are fresh, contiguous tensors.
tt_status tt_record_while(int device_index, const tt_region *condition, const tt_region *body, const tt_tensor *carried,
                          int count, tt_results *out_results);
tt_status tt_record_case(const tt_tensor *index, tt_region *const *branches, int count, tt_results *out_results);
tt_status tt_record_scan(int device_index, const tt_region *body, int64_t length, const tt_tensor *carried,
                         int carried_count, const tt_tensor *xs, int xs_count, tt_results *out_results);

#ifdef __cplusplus
}
#endif
#endif // TT_RUN_CALL_H_
