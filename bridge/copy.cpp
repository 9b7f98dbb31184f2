// copy.cpp - Tensor.copy_ and what is built on it.
//
// The host's side of a transfer is dense and row-major: a CPU tensor of another form goes through a temporary. Memory of the
// user's is never used after the call returns, unless it is pinned and the copy is non_blocking; then a reference to its
// storage is held until the transfer is done.
#include "copy.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>

#include "cache.h"
#include "host_allocator.h"
#include "tensor.h"

namespace torch_tpu {
namespace {

bool is_tpu(const at::Tensor &tensor) { return tensor.device().type() == kTPU; }

void release_host_storage(void *storage) { delete static_cast<c10::Storage *>(storage); }

// `host` is dense and row-major and has the target's sizes.
void upload(const at::Tensor &target, const at::Tensor &host, bool may_hold) {
  const tt_tensor tensor = describe(target);
  const tt_dtype dtype = to_dtype(host.scalar_type());
  auto *held = may_hold ? new c10::Storage(host.storage()) : nullptr;
  TT_CHECK(tt_copy_from_host(&tensor, host.const_data_ptr(), dtype, may_hold ? &release_host_storage : nullptr, held));
}

void copy_on_device(const at::Tensor &target, const at::Tensor &source) {
  const tt_tensor to = describe(target), from = describe(source);
  TT_CHECK(tt_copy(&to, &from));
}

void copy_from_host(const at::Tensor &target, const at::Tensor &source, bool non_blocking) {
  at::Tensor host = source.resolve_conj().resolve_neg();
  if (to_dtype(host.scalar_type()) == TT_DTYPE_NONE) host = host.to(target.scalar_type());
  host = host.contiguous();
  const bool may_hold = !host.is_alias_of(source) || (non_blocking && is_pinned(host.const_data_ptr()));
  if (host.sizes() == target.sizes()) return upload(target, host, may_hold);
  const at::Tensor staged = at::empty(host.sizes(), target.options().dtype(host.scalar_type()));
  upload(staged, host, may_hold);
  copy_on_device(target, staged);
}

// Into pinned memory, if that takes no more than a change of form that the device can do: then nothing waits.
bool start_copy_to_host(at::Tensor &target, const at::Tensor &source) {
  if (!target.is_contiguous() || target.is_conj() || target.is_neg() || !is_pinned(target.const_data_ptr()))
    return false;
  const at::Tensor given = source.expand(target.sizes()).to(target.scalar_type());
  const tt_tensor from = describe(given);
  TT_CHECK(
      tt_copy_to_host(&from, target.mutable_data_ptr(), &release_host_storage, new c10::Storage(target.storage())));
  return true;
}

void copy_to_host(at::Tensor &target, const at::Tensor &source, bool non_blocking) {
  if (non_blocking && start_copy_to_host(target, source)) return;
  const bool direct = target.sizes() == source.sizes() && target.scalar_type() == source.scalar_type() &&
                      target.is_contiguous() && !target.is_conj() && !target.is_neg();
  at::Tensor host = direct ? target : at::empty(source.sizes(), source.options().device(c10::kCPU));
  const tt_tensor from = describe(source);
  TT_CHECK(tt_copy_to_host(&from, host.mutable_data_ptr(), nullptr, nullptr));
  warn_late();
  if (!direct) target.copy_(host);
}

void check_sizes(const at::Tensor &self, const at::Tensor &source) {
  if (self.sizes() == source.sizes()) return;
  const auto sizes = at::infer_size(self.sizes(), source.sizes());
  TORCH_CHECK(self.sizes() == c10::IntArrayRef(sizes), "output with shape ", self.sizes(),
              " doesn't match the broadcast shape ", c10::IntArrayRef(sizes));
}

} // namespace

at::Tensor &copy_(at::Tensor &self, const at::Tensor &source, bool non_blocking) {
  if (self.is_same(source)) return self;
  TORCH_CHECK(!source.is_meta(), "Cannot copy out of meta tensor; no data!");
  if (self.is_meta()) return self;
  check_sizes(self, source);
  if (self.numel() == 0) return self;
  if (source.is_complex() && !self.is_complex() && self.scalar_type() != c10::ScalarType::Bool) {
    TORCH_WARN_ONCE("Casting complex values to real discards the imaginary part");
  }
  at::assert_no_internal_overlap(self);

  if (!is_tpu(self)) {
    copy_to_host(self, source, non_blocking);
  } else if (is_tpu(source)) {
    at::assert_no_partial_overlap(self, source);
    copy_on_device(self, source);
  } else {
    copy_from_host(self, source.cpu(), non_blocking);
  }
  return self;
}

} // namespace torch_tpu
