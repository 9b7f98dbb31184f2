// nested.cpp - nested tensors. Those of the jagged layout are torch's Python over dense tensors and need nothing here.
//
// Those of the strided layout are the work of torch's own kernels, which are written in dense ops on the
// buffer and run here under the name of their CPU registration; attention over jagged tensors is made of those. Two are replaced, and
// the rest of them loops over memory, so that it is refused.
#include <unordered_set>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <ATen/ops/matmul.h>
#include <torch/library.h>

#include "register.h"
#include "tensor.h"

namespace torch_tpu {
namespace {

// These loop over memory, or call what is made for the CPU alone.
const std::unordered_set<std::string_view> &reads_memory() {
  static const auto &names = *new std::unordered_set<std::string_view>{
      "aten::_native_multi_head_attention",
      "aten::_nested_tensor_softmax_with_shape",
      "aten::_transform_bias_rescale_qkv",
      "aten::_transformer_encoder_layer_fwd",
      "aten::_pin_memory",
      "aten::is_pinned",
      "aten::native_layer_norm",
      "aten::native_layer_norm_backward",
      "aten::normal_",
      "aten::sum.dim_IntList",
  };
  return names;
}

template <c10::DispatchKey cpu>
void run_cpu_kernel(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  op.callBoxedForDispatchKey(cpu, *stack);
}

// torch's pads, multiplies and takes the elements out again by a mask. What a mask gives here lies in a storage with room to spare,
// and a nested tensor's buffer is its whole storage.
at::Tensor matmul(const at::Tensor &self, const at::Tensor &mat2) {
  if (!self.is_nested() || !mat2.is_nested())
    return at::_ops::matmul::redispatch(c10::DispatchKeySet(c10::DispatchKey::NestedTensorCPU), self, mat2);
  const auto left = self.unbind(), right = mat2.unbind();
  TORCH_CHECK(left.size() == right.size(),
              "matmul: Expected size for the 1st dimension of 2nd input tensor to be: ", left.size(),
              " but got: ", right.size(), ".");
  std::vector<at::Tensor> products;
  for (size_t i = 0; i < left.size(); ++i) products.push_back(at::matmul(left[i], right[i]));
  return at::_nested_tensor_from_tensor_list(products);
}

// The corner of each item of `padded` that has the sizes in a row of `sizes`, a CPU tensor.
at::Tensor from_padded(const at::Tensor &padded, const at::Tensor &sizes, bool fuse_transform_0213) {
  TORCH_CHECK_NOT_IMPLEMENTED(!fuse_transform_0213, "_nested_from_padded is not implemented on tpu with a transpose");
  TORCH_CHECK(sizes.dim() == 2 && sizes.size(0) == padded.size(0) && sizes.size(1) + 1 == padded.dim(),
              "_nested_from_padded: got sizes of shape ", sizes.sizes(), " for a padded tensor of shape ",
              padded.sizes());
  const auto row = sizes.accessor<int64_t, 2>();
  std::vector<at::Tensor> items = padded.unbind();
  for (int64_t i = 0; i < sizes.size(0); ++i)
    for (int64_t dim = 0; dim < sizes.size(1); ++dim) items[i] = items[i].narrow(dim, 0, row[i][dim]);
  return at::_nested_tensor_from_tensor_list(items);
}

at::Tensor from_padded_like(const at::Tensor &padded, const at::Tensor &example) {
  return from_padded(padded, example._nested_tensor_size(), false);
}

void refuse(const c10::OperatorHandle &op, torch::jit::Stack *) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, c10::toString(op.operator_name()),
      " is not implemented for nested tensors of the strided layout on tpu. Nested tensors of the "
      "jagged layout have it: torch.nested.nested_tensor(..., layout=torch.jagged).");
}

// torch.nn.TransformerEncoder asks this, and makes strided nested tensors of what it gets if the answer is yes. Padded, it runs.
bool wants_strided(const at::Tensor &, const at::Tensor &) { return false; }

} // namespace

void register_nested() {
  constexpr auto key = c10::DispatchKey::NestedTensorPrivateUse1;
  auto &m = *new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  m.impl("matmul", TORCH_FN(matmul));
  m.impl("_nested_from_padded_and_nested_example", TORCH_FN(from_padded_like));
  for (const auto &name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || name.getNamespace() != "aten" || !op->hasKernelForDispatchKey(c10::DispatchKey::NestedTensorCPU) ||
        op->hasKernelForDispatchKey(key))
      continue;
    const auto text = c10::toString(name);
    if (!reads_memory().contains(text))
      m.impl(text.c_str(),
             torch::CppFunction::makeFromBoxedFunction<&run_cpu_kernel<c10::DispatchKey::NestedTensorCPU>>());
  }
  auto &rest = *new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  rest.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>());
  auto &dense = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  // Sizes and strides of nested tensors are CPU tensors.
  dense.impl("_nested_view_from_buffer",
             torch::CppFunction::makeFromBoxedFunction<&run_cpu_kernel<c10::DispatchKey::CPU>>());
  dense.impl("_nested_from_padded", TORCH_FN(from_padded));
  dense.impl("_nested_tensor_from_mask_left_aligned", TORCH_FN(wants_strided));
}

} // namespace torch_tpu
