// arg.h - the arguments of one ATen call as the core sees them.
//
// Everything here is borrowed for the time of the call. The bridge flattens the dispatcher's stack into an array of tt_arg,
// one per schema argument, and an array of tt_tensor, one per tensor in the order in which they appear (tensors in lists
// included); the latter are the call's *slots*.
#ifndef TT_OP_ARG_H_
#define TT_OP_ARG_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tt_storage tt_storage;     // graph/storage.h
typedef struct tt_generator tt_generator; // run/random.h

// A torch tensor: a strided window on a storage. Sizes, strides and offset count elements of `dtype`.
typedef struct tt_tensor {
  tt_storage *storage; // NULL for a CPU scalar
  tt_dtype dtype;
  int rank;
  const int64_t *sizes, *strides;
  int64_t offset;
  int device_index;
  bool cpu_scalar;     // a 0-d CPU tensor among device tensors: its value travels as a runtime scalar
  bool wrapped_number; // a Python number in tensor's clothing: promotes like a number
  bool conj, negative; // torch's lazy bits: the elements are the conjugates, the negatives of what is stored
  bool defined;        // false for an undefined tensor inside a Tensor?[] list
  // value of a CPU scalar: `integer` for integral and bool dtypes, real and imag for the others
  int64_t integer;
  double real, imag;
} tt_tensor;

typedef enum tt_arg_kind {
  TT_ARG_NONE,
  TT_ARG_TENSOR,
  TT_ARG_INT, // also dtypes, layouts and memory formats, which torch's schemas carry as int
  TT_ARG_BOOL,
  TT_ARG_DOUBLE,
  TT_ARG_COMPLEX,
  TT_ARG_STRING,
  TT_ARG_GENERATOR,
  TT_ARG_LIST,
  TT_ARG_OTHER, // devices, streams: never part of a lowering
} tt_arg_kind;

typedef struct tt_arg {
  tt_arg_kind kind;
  bool number; // schema type Scalar or float: the value may travel at run time instead of being compiled in
  int count;   // LIST: number of items
  union {
    int slot; // TENSOR: index into the call's tensors
    int64_t integer;
    double real;
    double complex_number[2];
    const char *string;
    tt_generator *generator;
    const struct tt_arg *items;
  } u;
} tt_arg;

#ifdef __cplusplus
}
#endif
#endif // TT_OP_ARG_H_
