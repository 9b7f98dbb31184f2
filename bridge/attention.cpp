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

// Sizes may be symbols of a graph that is being captured: comparing them makes guards, reading them would fix them.
bool broadcasts(const c10::SymInt &size, const c10::SymInt &to) { return size == to || size == 1; }

const c10::SymInt &largest(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value, int64_t dim) {
  const c10::SymInt &size = query.sym_sizes()[dim];
  const c10::SymInt &other = size == 1 ? key.sym_sizes()[dim] : size;
  return other == 1 ? value.sym_sizes()[dim] : other;
}

// Sizes that the fused row takes. All others are left to torch's formula, which says what is wrong with them: it repeats the
// heads of key and value for enable_gqa, and broadcasts otherwise.
bool sizes_fit(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value, bool grouped) {
  const c10::SymInt &batch = largest(query, key, value, 0);
  const c10::SymInt &heads = grouped ? query.sym_sizes()[1] : largest(query, key, value, 1);
  for (const auto *tensor : {&query, &key, &value}) {
    const c10::SymInt &own = tensor->sym_sizes()[1];
    if (!broadcasts(tensor->sym_sizes()[0], batch)) return false;
    if (grouped ? own == 0 || heads % own != 0 : !broadcasts(own, heads)) return false;
  }
  return query.sym_sizes()[3] == key.sym_sizes()[3] && key.sym_sizes()[2] == value.sym_sizes()[2];
}

int64_t choose(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
               const std::optional<at::Tensor> &, double dropout, bool, std::optional<double>, bool grouped) {
  const bool allowed = at::globalContext().userEnabledOverrideableSDP() && has_fused_rows();
  const bool fused = allowed && fits(query) && fits(key) && fits(value) && sizes_fit(query, key, value, grouped) &&
                     dropout >= 0 && dropout <= 1;
  return static_cast<int64_t>(fused ? at::SDPBackend::overrideable : at::SDPBackend::math);
}

} // namespace

void register_attention() {
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose);
  auto &m = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  m.impl("_fused_sdp_choice", TORCH_FN(choose)); // asked by name too
}

} // namespace torch_tpu
