// attention.cpp - which form scaled_dot_product_attention takes: the fused row of the core, or torch's plain formula.
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

#include "register.h"
#include "tensor.h"

namespace torch_tpu {
namespace {

bool has_fused_rows() {
  static const bool has = tt_op_find("_scaled_dot_product_fused_attention_overrideable") != nullptr &&
                          tt_op_find("_scaled_dot_product_fused_attention_overrideable_backward") != nullptr;
  return has;
}

bool fits(const at::Tensor &tensor) {
  return tensor.dim() == 4 && tensor.is_floating_point() && tensor.itemsize() >= 2;
}

int64_t choose(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
               const std::optional<at::Tensor> &, double, bool, std::optional<double>, bool) {
  const bool allowed = at::globalContext().userEnabledOverrideableSDP() && has_fused_rows();
  const bool fused = allowed && fits(query) && fits(key) && fits(value);
  return static_cast<int64_t>(fused ? at::SDPBackend::overrideable : at::SDPBackend::math);
}

} // namespace

void register_attention() {
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose);
  auto &m = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  m.impl("_fused_sdp_choice", TORCH_FN(choose)); // asked by name too
}

} // namespace torch_tpu
