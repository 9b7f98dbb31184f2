// kernel.h - the two kernels behind all lowered overloads: one for most, one for out= variants.
#pragma once

#include <vector>

#include <ATen/core/boxing/OperatorKernel.h>

#include "call.h"

namespace torch_tpu {

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
  const tt_op *row_;
  c10::OperatorHandle functional_;
  std::vector<int> sources_; // per functional argument: the argument of this overload, or -1
};

} // namespace torch_tpu
