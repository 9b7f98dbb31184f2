// fake_calls.h - tensors and ATen calls on the fake plugin's devices, for tests of core/run.
#ifndef TT_TESTS_FAKE_CALLS_H_
#define TT_TESTS_FAKE_CALLS_H_

#include <unistd.h>

#include "fake.h"
#include "graph/storage.h"
#include "op/op.h"
#include "run/call.h"
#include "run/internal.h"
#include "run/program.h"
#include "run/runtime.h"

enum { ELEMENTS = 4 };

// A dense tensor of ELEMENTS floats, or of integers to index with.
typedef struct tensor {
  tt_storage *storage;
  tt_dtype dtype;
} tensor;

static const int64_t tensor_size = ELEMENTS, tensor_stride = 1;

static inline tt_tensor view_of(const tensor *t) {
  CHECK(t->storage != NULL);
  return (tt_tensor){.storage = t->storage,
                     .dtype = t->dtype,
                     .rank = 1,
                     .sizes = &tensor_size,
                     .strides = &tensor_stride,
                     .device_index = t->storage->device->index,
                     .defined = true};
}

static inline void tensor_free(tensor *t) {
  tt_storage_release(t->storage);
  t->storage = NULL;
}

typedef struct overloads {
  const tt_overload *add, *add_in_place, *mul, *index_select;
} overloads;

// Starts the runtime with the fake plugin.
static inline overloads start_fake(const char *platform, const char *devices) {
  int64_t live = tt_memory_live_count();
  fake_control()->platform = platform;
  setenv("TORCH_TPU_PJRT_PLUGIN", fake_path(), 1);
  setenv("TORCH_TPU_VIRTUAL_DEVICES", devices, 1);
  CHECK_OK(tt_runtime_start());
  overloads all = {
      tt_overload_create(tt_op_find("add.Tensor"), "aten::add.Tensor", TT_FUNCTIONAL, false, 3, 1),
      tt_overload_create(tt_op_find("add.Tensor"), "aten::add_.Tensor", TT_IN_PLACE, false, 3, 1),
      tt_overload_create(tt_op_find("mul.Tensor"), "aten::mul.Tensor", TT_FUNCTIONAL, false, 2, 1),
      tt_overload_create(tt_op_find("index_select"), "aten::index_select", TT_FUNCTIONAL, false, 3, 1),
  };
  test_keeps_blocks(tt_memory_live_count() - live);
  return all;
}

// op(a, b, argument); an in-place call has no `out`.
static inline tt_status call_on(const tt_overload *overload, const tensor *a, const tensor *b, const tt_arg *args,
                                tensor *out) {
  const tt_tensor tensors[] = {view_of(a), view_of(b)};
  const int written[] = {0};
  const tt_call call = {.overload = overload,
                        .args = args,
                        .arg_count = overload->arg_count,
                        .tensors = tensors,
                        .tensor_count = 2,
                        .written = written,
                        .written_count = overload->variant == TT_IN_PLACE ? 1 : 0,
                        .device_index = a->storage->device->index,
                        .default_dtype = TT_F32,
                        .precision = TT_PRECISION_HIGHEST};
  tt_results results;
  bool miss;
  TT_TRY(tt_call_run(&call, &results, &miss));
  if (out != NULL) {
    *out = (tensor){results.items[0].storage, results.items[0].dtype};
    CHECK(out->storage != NULL);
  }
  tt_results_free(&results);
  return TT_SUCCESS;
}

// a + alpha * b
static inline tt_status add(const tt_overload *overload, const tensor *a, const tensor *b, int alpha, tensor *out) {
  const tt_arg args[] = {{.kind = TT_ARG_TENSOR, .u.slot = 0},
                         {.kind = TT_ARG_TENSOR, .u.slot = 1},
                         {.kind = TT_ARG_INT, .number = alpha != 1, .u.integer = alpha}};
  return call_on(overload, a, b, args, out);
}

static inline tt_status multiply(const tt_overload *overload, const tensor *a, const tensor *b, tensor *out) {
  const tt_arg args[] = {{.kind = TT_ARG_TENSOR, .u.slot = 0}, {.kind = TT_ARG_TENSOR, .u.slot = 1}};
  return call_on(overload, a, b, args, out);
}

static inline tt_status select_rows(const tt_overload *overload, const tensor *a, const tensor *index, tensor *out) {
  const tt_arg args[] = {
      {.kind = TT_ARG_TENSOR, .u.slot = 0}, {.kind = TT_ARG_INT, .u.integer = 0}, {.kind = TT_ARG_TENSOR, .u.slot = 1}};
  return call_on(overload, a, index, args, out);
}

// All elements are `value`.
static inline tt_status make_tensor(int device_index, tt_dtype dtype, float value, tensor *out) {
  float floats[ELEMENTS];
  int64_t integers[ELEMENTS];
  for (int i = 0; i < ELEMENTS; i++) {
    floats[i] = value;
    integers[i] = (int64_t)value;
  }
  out->dtype = dtype;
  TT_TRY(tt_storage_create_on(device_index, ELEMENTS * tt_dtype_size(dtype), &out->storage));
  tt_tensor view = view_of(out);
  return tt_copy_from_host(&view, dtype == TT_F32 ? (void *)floats : (void *)integers, dtype, NULL, NULL);
}

// The value of all elements.
static inline tt_status read_tensor(const tensor *t, float *out) {
  float data[ELEMENTS] = {0};
  tt_tensor view = view_of(t);
  TT_TRY(tt_copy_to_host(&view, data, NULL, NULL));
  for (int i = 1; i < ELEMENTS; i++) CHECK(data[i] == data[0]);
  *out = data[0];
  return TT_SUCCESS;
}

static inline void check_value(const tensor *t, float expected) {
  float value = 0;
  CHECK_OK(read_tensor(t, &value));
  if (value != expected) test_fail(__FILE__, __LINE__, "a value is %g, expected %g", (double)value, (double)expected);
}

#endif // TT_TESTS_FAKE_CALLS_H_
