// nested.cpp - nested tensors. Those of the jagged layout are torch's Python over dense tensors and need nothing here.
//
// Those of the strided layout are made, taken apart and moved by torch's own kernels, which are written in dense ops on the
// buffer and run here under the name of their CPU registration. The rest of them loops over memory, so that it is refused.
#include <torch/library.h>

#include "register.h"
#include "tensor.h"

namespace torch_tpu {
namespace {

void run_cpu_kernel(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  op.callBoxedForDispatchKey(c10::DispatchKey::NestedTensorCPU, *stack);
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
  for (const char *name :
       {"_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets", "unbind.int", "values",
        "detach", "alias", "is_same_size", "clone", "empty_like", "copy_", "_to_copy", "select.int"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_cpu_kernel>());
  auto &rest = *new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  rest.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>());
  auto &dense = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  dense.impl("_nested_tensor_from_mask_left_aligned", TORCH_FN(wants_strided));
}

} // namespace torch_tpu
