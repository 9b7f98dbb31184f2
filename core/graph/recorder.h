// recorder.h - a program being put together from calls.
//
// The recorder runs the lowerings of one call (eager modes) or of many (a decomposition, a compiled graph) into one builder.
// It knows the current value of every storage that the calls touched: an input of the program until a call writes it. Storages
// themselves change only when the program has run, so giving a recording up leaves no trace.
//
// Owned by one thread. Storages that it saw are retained until tt_recorder_free.
#ifndef TT_GRAPH_RECORDER_H_
#define TT_GRAPH_RECORDER_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "graph/storage.h"
#include "hlo/builder.h"
#include "op/lowering.h"

typedef enum tt_input_kind {
  TT_INPUT_STORAGE,    // the whole value of a storage
  TT_INPUT_NUMBER,     // a run-time number of the call
  TT_INPUT_CPU_SCALAR, // the value of a CPU scalar tensor
  TT_INPUT_DIGIT,      // a digit of a slot's offset, S32
  TT_INPUT_OFFSET,     // a slot's offset, S64
  TT_INPUT_RANDOM,     // ui64[2] {seed, offset}
} tt_input_kind;

// A parameter of the program.
typedef struct tt_input {
  tt_input_kind kind;
  tt_dtype dtype;
  int slot; // of the call for which the program is made; -1: a storage that the call does not hold (a captured constant)
  int number; // TT_INPUT_NUMBER
  tt_digit digit;
  tt_storage *storage;     // TT_INPUT_STORAGE: borrowed from the recorder
  const tt_layout *layout; // TT_INPUT_STORAGE
  tt_value *value;         // the parameter
} tt_input;

// What the recorder knows of a storage.
typedef struct tt_record {
  tt_storage *storage;
  tt_value *value;         // current; NULL while uninitialised
  const tt_layout *layout; // of `value`
  int input;               // parameter number, -1 if it was never read from outside
  int slot;                // first slot of the call for which the program is made, -1 otherwise
  bool written, fresh;     // fresh: created by this recording
  bool overwritten;        // see tt_recorder_overwrite
  tt_value *reader;        // the last product that read it since, NULL: none
} tt_record;

typedef struct tt_recorded_check {
  tt_value *ok;
  tt_code code;
  const char *message;
} tt_recorded_check;

// A fresh result of a lowered call.
typedef struct tt_recorded_result {
  tt_value *value; // in physical order, dims as in the layout; NULL: undefined
  tt_dtype dtype;
  int rank;
  int64_t *sizes, *strides; // logical, in the recorder's arena
  const tt_layout *layout;
} tt_recorded_result;

// What a region reads from outside, as a parameter.
typedef struct tt_capture {
  tt_value *value;           // of the program around it; NULL: the random state
  const tt_storage *storage; // whose value it is
} tt_capture;

struct tt_recorder {
  tt_builder *b;
  bool single; // one call: its numbers and offsets are inputs; otherwise they are constants, as its key holds them
  const tt_tensor *slots; // of the call for which the program is made
  int slot_count;
  tt_input *inputs;
  int input_count, input_capacity;
  tt_record *records;
  int record_count, record_capacity;
  int overwritten_count; // records of arguments that are overwritten at the end
  int *table;            // hash of storage -> record + 1
  int table_size;
  tt_recorded_check *checks;
  int check_count, check_capacity;
  tt_requirement *requirements; // of the one call, if `single`
  int requirement_count, requirement_capacity;
  int64_t random_count; // 4-byte draws so far
  tt_value *random_state;
  // Of a region (region.h); of a whole program NULL and 0.
  tt_recorder *outer;   // of the program or region around it
  uint64_t newest;      // storage when the region began: later ones are its own
  tt_capture *captures; // the parameters behind the region's arguments
  int capture_count, capture_capacity;
  // The call being lowered.
  const tt_tensor *tensors;
  const tt_arg *args;
  int arg_count;
};

tt_status tt_recorder_init(tt_recorder *r, const tt_target *target, bool single, const tt_tensor *slots,
                           int slot_count);
void tt_recorder_free(tt_recorder *r);

// What a call brings to its lowering besides `op`.
typedef struct tt_recorded_call {
  const tt_op *op;
  const tt_arg *args;
  int arg_count;
  const tt_tensor *tensors;
  int tensor_count;
  const int *written; // declared outputs; none: all results are fresh
  int written_count;
  tt_dtype default_dtype;
  tt_precision precision;
  int device_index;
} tt_recorded_call;

// Lowers one call. Writes go into the records; *out_results (in the recorder's arena) are the fresh results.
// Errors: those of the lowering (the user's), TT_OUT_OF_MEMORY, TT_INTERNAL.
tt_status tt_recorder_lower(tt_recorder *r, const tt_recorded_call *call, tt_recorded_result **out_results,
                            int *out_count);

// The value of a tensor as a fresh result: read through its view, laid out by its strides where they are dense.
tt_status tt_recorder_read(tt_recorder *r, const tt_tensor *tensor, tt_recorded_result *out_result);

// The value of a tensor as a lowering sees it: read through its view, in its sizes. Failures stay in the builder.
tt_value *tt_recorder_operand(tt_recorder *r, const tt_tensor *tensor);
// A value as a fresh result, row-major.
tt_status tt_recorder_result(tt_recorder *r, tt_value *value, tt_recorded_result *out_result);
// Is it a region, and the storage not its own?
bool tt_recorder_is_outside(const tt_recorder *r, const tt_storage *storage);
// Replaces the value of a storage, in its layout.
tt_status tt_recorder_write(tt_recorder *r, tt_storage *storage, tt_value *value);
// What tt_source.check and tt_source.random_state do.
void tt_recorder_check(tt_recorder *r, tt_value *ok, tt_code code, const char *message);
tt_value *tt_recorder_random_state(tt_recorder *r, int64_t count);

// Says that the program will write this argument at its end. A compiler knows no order but that of operands: for all it knows a
// weight is updated, in its own memory, before the backward pass reads it, and XLA copies it first. So each read of the
// argument waits for the last product (tt_value) that read it.
tt_status tt_recorder_overwrite(tt_recorder *r, tt_storage *storage);

// The record of a storage, made if new. NULL when memory is exhausted.
tt_record *tt_recorder_find(tt_recorder *r, tt_storage *storage);
// Its current value, entering it as an input of the program when it comes from outside. NULL when uninitialised.
tt_status tt_recorder_value(tt_recorder *r, tt_storage *storage, tt_value **out_value, const tt_layout **out_layout);
// Enters a storage created by this recording with its value.
tt_status tt_recorder_add_fresh(tt_recorder *r, tt_storage *storage, const tt_recorded_result *result);

// Enters the CPU scalar in this slot of the call for which the program is made as an input of it.
tt_status tt_recorder_scalar(tt_recorder *r, int slot, tt_recorded_result *out_result);

#endif // TT_GRAPH_RECORDER_H_
