// kernel.h - the one kernel behind every lowered overload.
//
// An Overload is what a schema says, digested once at registration. A FlatCall is one call: the dispatcher's stack laid out
// as the core reads it, in arrays on the C++ stack. Everything in it is borrowed from the dispatcher's stack.
#pragma once

#include <cstdint>
#include <forward_list>
#include <memory>
#include <vector>

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "prepare.h"
#include "tensor.h"

namespace torch_tpu {

// What a schema says of an argument and of an overload.
bool is_written(const c10::Argument &argument);
bool is_output(const c10::Argument &argument); // of an out= variant
tt_variant variant_of(const c10::FunctionSchema &schema);

class Overload {
 public:
  // `row` may be NULL: an op without a lowering.
  Overload(const c10::OperatorHandle &op, const tt_op *row, bool structured);

  enum class Return : uint8_t { kFresh, kFreshList, kArgument, kNumber };
  struct ReturnPlan {
    Return kind;
    uint8_t argument; // kArgument: the argument that is handed back
  };

  // How many of a call's results belong to each list that it returns.
  int list_size(int result_count) const;

  tt_overload *core;                // the core's half of this; lives for ever
  tt_overload probe;                // the same plans, but a miss instead of a compilation
  const tt_overload *out = nullptr; // structured: the out= variant that torch's wrapper calls
  int arg_count;
  uint64_t numbers = 0; // bit per argument: Scalar or float
  uint64_t ones = 0;    // bit per argument: a number that is compiled in when it is 1 (TT_OP_ONE_IS_STATIC)
  uint64_t written = 0; // bit per argument: the schema marks it as written
  bool has_products;    // may hold matrix products: the precision in force matters
  Prepare prepare;      // NULL for most
  std::vector<ReturnPlan> returns;
};

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

  // True on a miss.
  bool run(Results &results) const;

  tt_call core;

 private:
  void add(const c10::IValue &value, tt_arg &arg, bool number, bool written);
  void add_tensor(const at::Tensor &tensor, tt_arg &arg, bool written);
  void add_host_tensor(const at::Tensor &tensor, tt_tensor &slot, bool written);
  void add_list(const c10::IValue &value, tt_arg &arg, bool number, bool written);
  [[noreturn]] void raise_device_mismatch(c10::Device other) const;

  static constexpr size_t kArgs = 16, kItems = 32, kTensors = 8;
  const c10::OperatorHandle &op_;
  int argument_ = 0;     // being added
  int device_ = -1;      // of the first TPU tensor
  size_t items_used_ = 0;
  c10::SmallVector<tt_arg, kArgs> args_;
  c10::SmallVector<tt_tensor, kTensors> tensors_;
  c10::SmallVector<int, 4> written_;
  std::forward_list<std::unique_ptr<tt_arg[]>> more_items_; // of lists that do not fit into items_
  tt_arg items_[kItems];
};

// Takes the arguments off the stack and puts the returns on it.
void finish(const Overload &overload, tt_results &results, torch::jit::Stack &stack);

// A functional or in-place overload, or an out= variant that a row names itself.
class Kernel final : public c10::OperatorKernel {
 public:
  Kernel(const c10::OperatorHandle &op, const tt_op *row, bool structured) : overload(op, row, structured) {}
  void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet keys, torch::jit::Stack *stack);

  Overload overload;
};

// An out= variant whose functional sibling is lowered.
class OutKernel final : public c10::OperatorKernel {
 public:
  OutKernel(const c10::OperatorHandle &op, const tt_op *row, bool structured, const c10::OperatorHandle &functional);
  void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet keys, torch::jit::Stack *stack);

  Overload overload;

 private:
  void assert_no_partial_overlap(const torch::jit::Stack &stack) const;
  void run_functional(torch::jit::Stack &stack) const;

  bool structured_;
  c10::OperatorHandle functional_;
  std::vector<int> sources_; // per functional argument: the argument of this overload, or -1
};

// The precision of float32 matmuls in force: this thread's, else torch.set_float32_matmul_precision, else medium.
int matmul_precision();

} // namespace torch_tpu
