// prepare.cpp - indices as long tensors on the indexed tensor's device, and outputs of the right size.
#include "prepare.h"

#include <ATen/core/List.h>
#include <ATen/native/RangeUtils.h>
#include <ATen/native/TensorAdvancedIndexingUtils.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/masked_fill.h>

#include "call.h"
#include "counted.h"

namespace torch_tpu {

// --- indices ---------------------------------------------------------------------------------------------------------
namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

bool is_mask(const at::Tensor &index) {
  return index.scalar_type() == c10::ScalarType::Bool || index.scalar_type() == c10::ScalarType::Byte;
}

// A write takes masks as they are: its lowering needs no count of their true elements, hence no wait for the device.
bool is_ready(const c10::IValue &index, bool writes) {
  if (index.isNone() || !index.toTensor().defined()) return true;
  const at::Tensor &tensor = index.toTensor();
  return tensor.device().type() == kTPU &&
         (!is_mask(tensor) || (writes && tensor.scalar_type() == c10::ScalarType::Bool));
}

Indices expand(const at::Tensor &self, const Indices &indices) {
  Indices expanded;
  for (auto &index : at::native::expandTensors(self, indices, /*ensure_same_device=*/true))
    expanded.push_back(index.defined() ? std::optional(index.to(self.device())) : std::nullopt);
  return expanded;
}

} // namespace

bool prepare_indices(const Overload &overload, torch::jit::Stack &stack) {
  const size_t first = stack.size() - overload.arg_count;
  c10::IValue &argument = stack[first + 1];  // self, indices, values, accumulate
  const bool puts = overload.arg_count >= 4; // index_put and its siblings
  bool ready = true;
  for (const auto &index : argument.toListRef()) ready = ready && is_ready(index, puts);
  const at::Tensor self = stack[first].toTensor();
  TORCH_CHECK(self.device().type() == kTPU, "indices should be either on ", c10::kCPU,
              " or on the same device as the indexed tensor (", self.device(), ")");
  if (ready) return false;

  const auto indices = argument.toOptionalTensorList();
  if (puts && !stack[first + 3].toBool()) {
    const at::Tensor value = stack[first + 2].toTensor();
    const auto [can, mask] = at::native::canDispatchToMaskedFill(self, indices, value);
    if (can) {
      const c10::Scalar number = value.item();
      at::Tensor result = overload.written != 0 ? self.masked_fill_(mask, number) : self.masked_fill(mask, number);
      torch::jit::drop(stack, overload.arg_count);
      stack.emplace_back(std::move(result));
      return true;
    }
  }
  if (overload.arg_count == 2 && indices.size() == 1) { // self[mask]
    const at::Tensor mask = indices.get(0).value_or(at::Tensor());
    if (mask.defined() && is_mask(mask) && mask.device() == self.device() && can_index_by_mask(self, mask)) {
      at::Tensor result = index_by_mask(self, mask);
      torch::jit::drop(stack, overload.arg_count);
      stack.emplace_back(std::move(result));
      return true;
    }
  }
  argument = expand(self, indices);
  return false;
}

// --- outputs ---------------------------------------------------------------------------------------------------------
namespace {

// The arguments of an overload, by position.
const c10::IValue *arguments(const Overload &overload, const torch::jit::Stack &stack) {
  return stack.data() + stack.size() - overload.arg_count;
}

void resize(const at::Tensor &out, int64_t size) {
  if (out.numel() == size) return;
  if (out.numel() > 0) {
    TORCH_WARN(
        "The number of elements in the out tensor of shape ", out.sizes(), " is ", out.numel(),
        " which does not match the computed number of elements ", size,
        ". Note that this may occur as a result of rounding error. The out tensor will be resized to a tensor of "
        "shape (",
        size, ",).");
  }
  out.resize_({size});
}

} // namespace

bool resize_arange_output(const Overload &overload, torch::jit::Stack &stack) {
  const auto *values = arguments(overload, stack);
  const at::Tensor &out = values[3].toTensor();
  const auto start = values[0].toScalar(), end = values[1].toScalar(), step = values[2].toScalar();
  resize(out, out.scalar_type() == c10::ScalarType::Long ? at::native::compute_arange_size<int64_t>(start, end, step)
                                                         : at::native::compute_arange_size<double>(start, end, step));
  return false;
}

bool resize_range_output(const Overload &overload, torch::jit::Stack &stack) {
  const auto *values = arguments(overload, stack);
  const auto start = values[0].toScalar(), end = values[1].toScalar(), step = values[2].toScalar();
  at::native::arange_check_bounds(start, end, step);
  resize(values[3].toTensor(), static_cast<int64_t>((end.toDouble() - start.toDouble()) / step.toDouble() + 1));
  return false;
}

bool resize_randperm_output(const Overload &overload, torch::jit::Stack &stack) {
  const auto *values = arguments(overload, stack);
  const int64_t n = values[0].toInt();
  const at::Tensor &out = values[2].toTensor();
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  at::native::check_supported_max_int_with_precision(n, out);
  if (out.numel() != n) out.resize_({n});
  return false;
}

// The size of repeat_interleave's result is the sum of its repeats.
bool count_repeats(const Overload &overload, torch::jit::Stack &stack) {
  const size_t first = stack.size() - overload.arg_count;
  if (!stack[first + 1].isNone()) return false;
  const at::Tensor repeats = stack[first].toTensor();
  at::Tensor result = host_repeats(repeats).to(repeats.device());
  torch::jit::drop(stack, overload.arg_count);
  stack.emplace_back(std::move(result));
  return true;
}

// The last offset says how many rows the result has.
bool count_rows(const Overload &overload, torch::jit::Stack &stack) {
  const size_t first = stack.size() - overload.arg_count;
  const auto offsets = stack[first + 1].toTensorVector();
  if (stack[first + 2].isNone() && offsets.size() == 1 && offsets[0].dim() == 1 && offsets[0].numel() > 0)
    stack[first + 2] = offsets[0][-1].item<int64_t>();
  return false;
}

// --- numbers ---------------------------------------------------------------------------------------------------------
namespace {

// A value that lies on the CPU is a number, which must fit the dtype: the sibling that takes one says so.
bool take_number(const Overload &overload, torch::jit::Stack &stack, const char *sibling) {
  const at::Tensor value = stack.back().toTensor();
  if (!value.device().is_cpu() || value.dim() != 0) return false;
  stack.back() = value.item();
  const std::string name = overload.core->name;
  c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, name.find('.')).c_str(), sibling).callBoxed(&stack);
  return true;
}

bool take_scalar(const Overload &overload, torch::jit::Stack &stack) { return take_number(overload, stack, "Scalar"); }
bool take_int_scalar(const Overload &overload, torch::jit::Stack &stack) {
  return take_number(overload, stack, "int_Scalar");
}

} // namespace

// --- which -----------------------------------------------------------------------------------------------------------
Prepare find_prepare(const c10::FunctionSchema &schema) {
  const auto name = c10::toString(schema.operator_name());
  if (name == "aten::arange.start_out") return &resize_arange_output;
  if (name == "aten::range.out") return &resize_range_output;
  if (name == "aten::randperm.generator_out") return &resize_randperm_output;
  if (name == "aten::repeat_interleave.Tensor") return &count_repeats;
  if (name == "aten::_padded_dense_to_jagged_forward") return &count_rows;
  if (name == "aten::linalg_lstsq") return &drop_residuals;
  if (name == "aten::masked_fill.Tensor" || name == "aten::masked_fill_.Tensor") return &take_scalar;
  if (name == "aten::index_fill.int_Tensor" || name == "aten::index_fill_.int_Tensor") return &take_int_scalar;
  if (!schema.arguments().empty() && schema.arguments().back().name() == "check_errors") return &report_errors;
  if (schema.arguments().size() < 2 || schema.arguments()[1].name() != "indices") return nullptr;
  return *schema.arguments()[1].type() == *c10::ListType::ofOptionalTensors() ? &prepare_indices : nullptr;
}

} // namespace torch_tpu
