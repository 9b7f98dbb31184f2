// tensor.h - torch tensors and the core's view of them.
//
// A TPU tensor is a plain TensorImpl on a plain StorageImpl. Its DataPtr holds an address that nothing dereferences and, as
// context, the tt_storage with the data; `release_storage` marks such a DataPtr and gives the reference back.
#pragma once

#include <array>

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include "run/call.h"
#include "run/runtime.h"
#include "status.h"

namespace torch_tpu {

constexpr c10::DeviceType kTPU = c10::DeviceType::PrivateUse1;

// --- dtypes ----------------------------------------------------------------------------------------------------------
namespace detail {
constexpr size_t kScalarTypes = 64; // more than torch has
constexpr auto make_dtypes() {
  std::array<tt_dtype, kScalarTypes> dtypes{};
#define X(name, torch, text, hlo, pjrt, bytes, category, is_signed) dtypes[torch] = TT_##name;
  TT_DTYPES(X)
#undef X
  return dtypes;
}
inline constexpr auto dtypes = make_dtypes();
} // namespace detail

inline tt_dtype to_dtype(c10::ScalarType type) {
  return detail::dtypes[static_cast<size_t>(type) % detail::kScalarTypes];
}
inline c10::ScalarType to_scalar_type(tt_dtype dtype) { return static_cast<c10::ScalarType>(tt_dtype_torch(dtype)); }
// NotImplementedError that names the nearest dtype which a TPU has.
[[noreturn]] void raise_unsupported_dtype(const char *op, c10::ScalarType type);

// The element of `type` at `data`.
c10::Scalar load_scalar(c10::ScalarType type, const void *data);

// --- storages --------------------------------------------------------------------------------------------------------
c10::Allocator *allocator();
void release_storage(void *context);
// Grows or shrinks a TPU storage, keeping the common prefix of its contents.
void resize_storage(c10::StorageImpl &storage, int64_t byte_size);

// --- tensors ---------------------------------------------------------------------------------------------------------
// Finds the storage behind a tensor that torch made by address (at::from_blob), for describe.
void locate(const c10::TensorImpl &tensor, tt_tensor &out);

// The core's view of a TPU tensor. Borrows its storage, sizes and strides.
inline void describe(const c10::TensorImpl &tensor, tt_tensor &out) {
  const c10::StorageImpl *storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  const auto type = c10::typeMetaToScalarType(tensor.dtype());
  out.dtype = to_dtype(type);
  out.rank = static_cast<int>(sizes.size());
  out.sizes = sizes.data();
  out.strides = strides.data();
  out.offset = tensor.storage_offset();
  out.device_index = tensor.device().index();
  out.cpu_scalar = false;
  out.wrapped_number = tensor.is_wrapped_number();
  out.conj = tensor.is_conj();
  out.negative = tensor.is_neg();
  out.defined = true;
  if (storage != nullptr && storage->data_ptr().get_deleter() == &release_storage) [[likely]]
    out.storage = static_cast<tt_storage *>(storage->data_ptr().get_context());
  else
    locate(tensor, out);
  if (out.dtype == TT_DTYPE_NONE) [[unlikely]]
    raise_unsupported_dtype("tpu", type);
}
inline tt_tensor describe(const at::Tensor &tensor) {
  tt_tensor out;
  describe(*tensor.unsafeGetTensorImpl(), out);
  return out;
}

// The core's view of a 0-d CPU tensor among TPU tensors: its value.
void describe_cpu_scalar(const at::Tensor &tensor, tt_tensor &out);

// A new torch tensor for a result; takes over its storage.
at::Tensor wrap(tt_result &result);

} // namespace torch_tpu
