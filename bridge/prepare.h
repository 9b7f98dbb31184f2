// prepare.h - what has to happen to a call's arguments before the core sees them, for the few ops that need it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torch_tpu {

class Overload;

// Changes the arguments on the stack. True if the call is done and its returns are there instead.
using Prepare = bool (*)(const Overload &overload, torch::jit::Stack &stack);

// NULL for most ops.
Prepare find_prepare(const c10::FunctionSchema &schema);

// Ops with `Tensor?[] indices`: masks and CPU tensors among the indices become long TPU tensors, as in torch.cuda. A write
// under one mask of one number is done as masked_fill, which needs no count of the mask's elements.
bool prepare_indices(const Overload &overload, torch::jit::Stack &stack);

// Outputs whose size follows from the values of arguments get it.
bool resize_arange_output(const Overload &overload, torch::jit::Stack &stack);
bool resize_range_output(const Overload &overload, torch::jit::Stack &stack);
bool resize_randperm_output(const Overload &overload, torch::jit::Stack &stack);

// Without an output size the host counts.
bool count_repeats(const Overload &overload, torch::jit::Stack &stack);

// linalg.cpp: check_errors of the factorizations looks at info when the device is done and raises torch's error.
bool report_errors(const Overload &overload, torch::jit::Stack &stack);
// linalg.cpp: residuals of a least squares problem exist only where all matrices have full rank.
bool drop_residuals(const Overload &overload, torch::jit::Stack &stack);

} // namespace torch_tpu
