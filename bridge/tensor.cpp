// tensor.cpp - from torch's tensors and scalars to the core and back.
#include "tensor.h"

#include <string_view>

#include <ATen/core/TensorBase.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>

namespace torch_tpu {

// --- dtypes ----------------------------------------------------------------------------------------------------------
namespace {

constexpr std::string_view name_of(c10::ScalarType type) {
  switch (type) {
#define X(type, name)                                                                                                  \
  case c10::ScalarType::name: return #name;
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(X)
#undef X
  default: return "Undefined";
  }
}

constexpr int size_of(c10::ScalarType type) {
  switch (type) {
#define X(type, name)                                                                                                  \
  case c10::ScalarType::name: return sizeof(type);
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(X)
#undef X
  default: return 0;
  }
}

// The core's table of dtypes holds torch's own numbers.
#define X(name, torch, text, hlo, pjrt, bytes, category, is_signed)                                                    \
  static_assert(name_of(static_cast<c10::ScalarType>(torch)) == text &&                                                \
                size_of(static_cast<c10::ScalarType>(torch)) == bytes && torch < detail::kScalarTypes);
TT_DTYPES(X)
#undef X

c10::ScalarType nearest_supported(c10::ScalarType type) {
  using enum c10::ScalarType;
  switch (type) {
  case ComplexHalf: return ComplexFloat;
  case QInt8:
  case Int1:
  case Int2:
  case Int3:
  case Int4:
  case Int5:
  case Int6:
  case Int7: return Char;
  case QInt32: return Int;
  case Bits16: return UInt16;
  case Float4_e2m1fn_x2: return Float8_e4m3fn;
  default: return Byte;
  }
}

} // namespace

void raise_unsupported_dtype(const char *op, c10::ScalarType type) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op, ": dtype ", type, " is not supported on TPU; nearest supported dtype is ",
                              nearest_supported(type));
}

c10::Scalar load_scalar(c10::ScalarType type, const void *data) {
  switch (type) {
#define X(type, name)                                                                                                  \
  case c10::ScalarType::name: return *static_cast<const type *>(data);
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_EXCEPT_COMPLEX_HALF_F8NZ(X)
    X(c10::Float8_e5m2fnuz, Float8_e5m2fnuz)
    X(c10::Float8_e4m3fnuz, Float8_e4m3fnuz)
    X(c10::Float8_e8m0fnu, Float8_e8m0fnu)
    X(uint16_t, UInt16)
    X(uint32_t, UInt32)
    X(uint64_t, UInt64)
#undef X
  default: raise_unsupported_dtype("item", type);
  }
}

// --- storages and tensors --------------------------------------------------------------------------------------------
void locate(const c10::TensorImpl &tensor, tt_tensor &out) {
  const c10::StorageImpl *storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  int64_t byte_offset = 0;
  out.storage = storage != nullptr ? tt_storage_at(storage->data_ptr().get(), &byte_offset) : nullptr;
  const int64_t itemsize = static_cast<int64_t>(tensor.itemsize());
  TORCH_CHECK(out.storage != nullptr && byte_offset % itemsize == 0, "a tensor on ", tensor.device(),
              " has a storage that torch_tpu did not make");
  out.offset += byte_offset / itemsize;
}

void describe_cpu_scalar(const at::Tensor &tensor, tt_tensor &out) {
  const c10::ScalarType type = tensor.scalar_type();
  out = {};
  out.dtype = to_dtype(type);
  out.cpu_scalar = true;
  out.wrapped_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  out.defined = true;
  if (out.dtype == TT_DTYPE_NONE) raise_unsupported_dtype("tpu", type);
  const c10::Scalar value = load_scalar(type, tensor.const_data_ptr());
  if (type == c10::ScalarType::UInt64) {
    out.integer = static_cast<int64_t>(value.toUInt64());
  } else if (value.isIntegral(/*includeBool=*/true)) {
    out.integer = value.toLong();
  } else {
    const auto number = value.toComplexDouble() * (tensor.is_neg() ? -1.0 : 1.0);
    out.real = number.real();
    out.imag = tensor.is_conj() ? -number.imag() : number.imag();
  }
}

at::Tensor wrap(tt_result &result) {
  tt_storage *handle = std::exchange(result.storage, nullptr);
  c10::DataPtr data(tt_storage_address(handle), handle, &release_storage,
                    c10::Device(kTPU, static_cast<c10::DeviceIndex>(result.device_index)));
  int64_t byte_size = tt_dtype_size(result.dtype);
  for (int i = 0; i < result.rank; ++i) byte_size *= result.sizes[i];
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), c10::SymInt(byte_size),
                                                       std::move(data), allocator(), /*resizable=*/true);
  auto tensor = at::detail::make_tensor_base<c10::TensorImpl>(std::move(storage),
                                                              c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                              c10::scalarTypeToTypeMeta(to_scalar_type(result.dtype)));
  const auto rank = static_cast<size_t>(result.rank);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides({result.sizes, rank}, {result.strides, rank});
  return at::Tensor(std::move(tensor));
}

} // namespace torch_tpu
