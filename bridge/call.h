// call.h - one call: the dispatcher's stack laid out as the core reads it, and back. The hot path of every op.
//
// A FlatCall borrows everything from the dispatcher's stack; its arrays lie on the C++ stack unless a call is large.
#pragma once

#include <forward_list>
#include <memory>

#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "overload.h"
#include "tensor.h"

namespace torch_tpu {

// The results of a call. Frees what nobody took.
struct Results : tt_results {
  Results() {
    count = 0;
    items = inline_items;
  }
  ~Results() {
    for (int i = 0; i < count; ++i) tt_storage_release(items[i].storage);
    tt_results_free(this);
  }
  Results(const Results &) = delete;
  Results &operator=(const Results &) = delete;
};

class FlatCall {
public:
  // Raises torch's errors for tensors on wrong devices and for written tensors that overlap themselves.
  FlatCall(const Overload &overload, const c10::OperatorHandle &op, const torch::jit::Stack &stack);
  FlatCall(const FlatCall &) = delete;
  FlatCall &operator=(const FlatCall &) = delete;

  // True on a miss. A call that its lowering cannot build raises what torch's meta kernel raises, if that refuses it too.
  bool run(Results &results) const;

  tt_call core;

private:
  void add(const c10::IValue &value, tt_arg &arg, bool number, bool written);
  void add_tensor(const at::Tensor &tensor, tt_arg &arg, bool written);
  void add_host_tensor(const at::Tensor &tensor, tt_tensor &slot, bool written);
  void add_list(const c10::IValue &value, tt_arg &arg, bool number, bool written);
  [[noreturn]] void raise_device_mismatch(c10::Device other) const;
  [[noreturn]] void refuse(tt_status status) const;

  static constexpr size_t kArgs = 16, kItems = 32, kTensors = 8;
  const c10::OperatorHandle &op_;
  const c10::IValue *values_; // the arguments on the stack
  int argument_ = 0;          // being added
  int device_ = -1;           // of the first TPU tensor
  size_t items_used_ = 0;
  c10::SmallVector<tt_arg, kArgs> args_;
  c10::SmallVector<tt_tensor, kTensors> tensors_;
  c10::SmallVector<int, 4> written_;
  std::forward_list<std::unique_ptr<tt_arg[]>> more_items_; // of lists that do not fit into items_
  tt_arg items_[kItems];
};

// Takes the arguments off the stack and puts the returns on it.
void finish(const Overload &overload, tt_results &results, torch::jit::Stack &stack);

// The same for TT_OP_COUNTED: waits for the sizes of the results and shortens them.
void finish_counted(const Overload &overload, tt_results &results, torch::jit::Stack &stack);

// The precision of float32 matmuls in force: torch.tpu's, else torch.set_float32_matmul_precision's, else medium.
int matmul_precision();

} // namespace torch_tpu
