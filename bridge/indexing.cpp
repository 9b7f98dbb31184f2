// indexing.cpp - the indices of x[...] as the core takes them: long tensors on x's device.
#include <ATen/core/List.h>
#include <ATen/native/TensorAdvancedIndexingUtils.h>
#include <ATen/ops/masked_fill.h>

#include "kernel.h"

namespace torch_tpu {
namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

bool is_mask(const at::Tensor &index) {
  return index.scalar_type() == c10::ScalarType::Bool || index.scalar_type() == c10::ScalarType::Byte;
}

bool is_ready(const c10::IValue &index) {
  if (index.isNone() || !index.toTensor().defined()) return true;
  return index.toTensor().device().type() == kTPU && !is_mask(index.toTensor());
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
  c10::IValue &argument = stack[first + overload.indices];
  bool ready = true;
  for (const auto &index : argument.toListRef()) ready = ready && is_ready(index);
  const at::Tensor self = stack[first].toTensor();
  TORCH_CHECK(self.device().type() == kTPU, "indices should be either on ", c10::kCPU,
              " or on the same device as the indexed tensor (", self.device(), ")");
  if (ready) return false;

  const auto indices = argument.toOptionalTensorList();
  const int values = overload.indices + 1, accumulate = overload.indices + 2; // of index_put and its siblings
  if (accumulate < overload.arg_count && !stack[first + accumulate].toBool()) {
    const at::Tensor value = stack[first + values].toTensor();
    const auto [can, mask] = at::native::canDispatchToMaskedFill(self, indices, value);
    if (can) {
      at::Tensor result = overload.written != 0 ? self.masked_fill_(mask, value.item()) : self.masked_fill(mask, value.item());
      torch::jit::drop(stack, overload.arg_count);
      stack.emplace_back(std::move(result));
      return true;
    }
  }
  argument = expand(self, indices);
  return false;
}

} // namespace torch_tpu
