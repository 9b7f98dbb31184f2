// kernel.cpp - calls the core; leads structured ops through torch's own wrapper the first time.
#include "kernel.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>

#include "op/out.h"

namespace torch_tpu {
namespace {

// The out= variant that this thread's structured wrapper is about to call with outputs of its own making.
thread_local const tt_overload *expected_out = nullptr;

class ExpectOut {
public:
  explicit ExpectOut(const tt_overload *out) : before_(std::exchange(expected_out, out)) {}
  ~ExpectOut() { expected_out = before_; }
  ExpectOut(const ExpectOut &) = delete;
  ExpectOut &operator=(const ExpectOut &) = delete;

private:
  const tt_overload *before_;
};

void append_tensors(const c10::IValue &value, c10::SmallVectorImpl<tt_tensor> &tensors) {
  if (value.isTensor() && value.toTensor().defined()) tensors.push_back(describe(value.toTensor()));
  if (value.isTensorList())
    for (const c10::IValue &item : value.toListRef()) append_tensors(item, tensors);
}

// A structured op that meets this signature for the first time: torch's wrapper checks the arguments, makes the outputs and
// calls our out= variant; the core then knows the plan for the next call.
void run_wrapper(const c10::OperatorHandle &op, const Overload &overload, FlatCall &call, torch::jit::Stack &stack) {
  const torch::jit::Stack arguments(stack.end() - overload.arg_count, stack.end()); // `call` borrows from them
  {
    const ExpectOut expect(overload.out);
    op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional, stack);
  }
  c10::SmallVector<tt_tensor, 4> results;
  for (const auto &value : torch::jit::last(stack, overload.returns.size())) append_tensors(value, results);
  tt_call_adopt(&call.core, results.data(), static_cast<int>(results.size()));
}

} // namespace

void Kernel::operator()(const c10::OperatorHandle &op, c10::DispatchKeySet, torch::jit::Stack *stack) {
  if (overload.prepare != nullptr && overload.prepare(overload, *stack)) return;
  FlatCall call(overload, op, *stack);
  Results results;
  if (call.run(results)) return run_wrapper(op, overload, call, *stack);
  if (overload.counted) return finish_counted(overload, results, *stack);
  finish(overload, results, *stack);
}

OutKernel::OutKernel(const c10::OperatorHandle &op, const tt_op *row, bool structured,
                     const c10::OperatorHandle &functional)
    : overload(op, row, false), structured_(structured), row_(row), functional_(functional) {
  for (const auto &argument : functional.schema().arguments())
    sources_.push_back(op.schema().argumentIndexWithName(argument.name()).value_or(-1));
}

void OutKernel::operator()(const c10::OperatorHandle &op, c10::DispatchKeySet, torch::jit::Stack *stack) {
  const bool expected = expected_out == overload.core;
  if (overload.prepare != nullptr) overload.prepare(overload, *stack);
  FlatCall call(overload, op, *stack);
  Results results;
  if (expected) {
    const ExpectOut no_more(nullptr);
    call.run(results);
    return finish(overload, results, *stack);
  }
  assert_no_partial_overlap(*stack);
  if (structured_) {
    call.core.overload = &overload.probe; // outputs of these sizes and dtypes came from torch's wrapper before
    if (!call.run(results)) return finish(overload, results, *stack);
  }
  run_functional(*stack);
}

void OutKernel::assert_no_partial_overlap(const torch::jit::Stack &stack) const {
  const auto values = torch::jit::last(stack, overload.arg_count);
  for (int out = 0; out < overload.arg_count; ++out)
    for (int in = 0; in < overload.arg_count; ++in)
      if ((overload.written >> out & 1) && in != out && values[in].isTensor() && values[in].toTensor().defined())
        at::assert_no_partial_overlap(values[out].toTensor(), values[in].toTensor());
}

// The user's own out=: of any size, perhaps of another dtype. Computes the result, then resizes and copies, as torch's
// generated out= variants do.
void OutKernel::run_functional(torch::jit::Stack &stack) const {
  const size_t first = stack.size() - overload.arg_count;
  const auto &returns = overload.returns;
  const at::Tensor &out0 = stack[first + returns[0].argument].toTensor();

  torch::jit::Stack values;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const auto &argument = functional_.schema().arguments()[i];
    const bool is_given = sources_[i] >= 0;
    const bool is_outs = is_given && argument.name() == "dtype" && (row_->flags & TT_OP_OUT_HAS_DTYPE) != 0 &&
                         stack[first + sources_[i]].isNone();
    if (is_outs)
      TT_CHECK(
          tt_op_check_out_computed(row_, to_dtype(values[0].toTensor().scalar_type()), to_dtype(out0.scalar_type())));
    if (is_given && !is_outs)
      values.push_back(stack[first + sources_[i]]);
    else if (argument.name() == "dtype")
      values.emplace_back(out0.scalar_type());
    else if (argument.name() == "device")
      values.emplace_back(out0.device());
    else
      values.emplace_back(argument.default_value().value_or(c10::IValue()));
  }
  functional_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &values);

  torch::jit::Stack returned;
  for (size_t i = 0; i < returns.size(); ++i) {
    const at::Tensor &out = stack[first + returns[i].argument].toTensor(), &value = values[i].toTensor();
    TT_CHECK(tt_op_check_out(row_, static_cast<int>(i), to_dtype(value.scalar_type()), to_dtype(out.scalar_type())));
    at::native::resize_output(out, value.sizes());
    const tt_tensor target = describe(out), source = describe(value);
    TT_CHECK(tt_copy(&target, &source));
    returned.emplace_back(out);
  }
  torch::jit::drop(stack, overload.arg_count);
  for (auto &value : returned) stack.push_back(std::move(value));
}

} // namespace torch_tpu
