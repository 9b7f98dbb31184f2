// basics.cpp - what is not a lowering: making tensors, views, storages, and reading values on the host.
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/stack.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "cache.h"
#include "copy.h"
#include "register.h"
#include "tensor.h"

namespace torch_tpu {
namespace {

using at::Tensor;
using c10::IntArrayRef;
using c10::ScalarType;
using std::optional;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// --- making ----------------------------------------------------------------------------------------------------------
ScalarType checked_dtype(const char *op, optional<ScalarType> dtype, optional<c10::Layout> layout,
                         optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == c10::kStrided, op, ": layout ", *layout,
                              " is not supported on TPU");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  const ScalarType type = c10::dtype_or_default(dtype);
  if (to_dtype(type) == TT_DTYPE_NONE) raise_unsupported_dtype(op, type);
  return type;
}

Tensor empty_memory_format(IntArrayRef size, optional<ScalarType> dtype, optional<c10::Layout> layout,
                           optional<c10::Device> device, optional<bool> pin_memory,
                           optional<c10::MemoryFormat> format) {
  const ScalarType type = checked_dtype("empty", dtype, layout, pin_memory);
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, allocator(), kKeys, type, format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<ScalarType> dtype, optional<c10::Layout> layout,
                     optional<c10::Device> device, optional<bool> pin_memory) {
  const ScalarType type = checked_dtype("empty_strided", dtype, layout, pin_memory);
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, allocator(), kKeys, type);
}

// --- storages and sizes ----------------------------------------------------------------------------------------------
void set_sizes(Tensor const &self, IntArrayRef size, at::OptionalIntArrayRef stride) {
  auto *impl = self.unsafeGetTensorImpl();
  if (impl->sizes() == size && (!stride || impl->strides() == *stride)) return;
  if (stride)
    impl->set_sizes_and_strides(size, *stride);
  else
    impl->set_sizes_contiguous(size);
  if (impl->numel() == 0) return;
  const size_t itemsize = self.dtype().itemsize(), offset = impl->storage_offset();
  const size_t needed = stride ? at::detail::computeStorageNbytes(size, *stride, itemsize, offset)
                               : at::detail::computeStorageNbytesContiguous(size, itemsize, offset);
  auto *storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (needed > storage->nbytes()) resize_storage(*storage, static_cast<int64_t>(needed));
}

const Tensor &resize_(const Tensor &self, IntArrayRef size, optional<c10::MemoryFormat> format) {
  set_sizes(self, size, std::nullopt);
  if (format) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format", *format);
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return self;
}

Tensor &set_storage_offset(Tensor &self, at::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  at::native::checkSetStorage<int64_t>(self, source, offset, size, stride);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  set_sizes(self, size, stride.data() != nullptr ? at::OptionalIntArrayRef(stride) : std::nullopt);
  return self;
}

Tensor &set_storage(Tensor &self, at::Storage source) { return at::native::set_(self, std::move(source)); }

Tensor &set_empty(Tensor &self) {
  const c10::DeviceGuard guard(self.device());
  return self.set_(at::Storage(at::Storage::use_byte_size_t(), 0, allocator(), /*resizable=*/true), 0, {0}, {});
}

// Streams order nothing, and the runtime keeps buffers until their work is done.
void record_stream(Tensor &, at::Stream) {}

// A module may swap a parameter's data between CPU and TPU, so that optimizers and tied weights keep their tensors.
bool has_compatible_shallow_copy_type(const Tensor &self, const Tensor &from) {
  const auto is_dense = [](const Tensor &tensor) {
    const bool here = tensor.is_cpu() || tensor.device().type() == kTPU;
    return here && tensor.layout() == c10::kStrided && !tensor.is_quantized() && !tensor.is_nested();
  };
  return self.key_set() == from.key_set() || (is_dense(self) && is_dense(from));
}

// --- copies ----------------------------------------------------------------------------------------------------------
Tensor copy_from(const Tensor &self, const Tensor &target, bool non_blocking) {
  Tensor result = target;
  return copy_(result, self, non_blocking);
}

Tensor copy_from_and_resize(const Tensor &self, const Tensor &target) {
  if (target.sizes() != self.sizes()) target.resize_(self.sizes());
  return copy_from(self, target, false);
}

// A tensor of zeros without memory, for forward-mode AD; torch's ZeroTensor kernels read it, none of ours.
class NoMemory final : public c10::Allocator {
public:
  explicit NoMemory(c10::Device device) : device_(device) {}
  c10::DataPtr allocate(size_t) override { return {nullptr, device_}; }
  void copy_data(void *, const void *, size_t) const override {}

private:
  c10::Device device_;
};

Tensor zero_tensor(c10::IntArrayRef size, optional<ScalarType> dtype, optional<c10::Layout>,
                   optional<c10::Device> device, optional<bool>) {
  const bool given = device && device->has_index();
  NoMemory allocator(c10::Device(kTPU, given ? device->index() : static_cast<c10::DeviceIndex>(tt_current_device())));
  const c10::DispatchKeySet keys({c10::DispatchKey::PrivateUse1, c10::DispatchKey::ZeroTensor});
  return at::detail::empty_generic(size, &allocator, keys, c10::dtype_or_default(dtype), std::nullopt);
}

// --- values on the host ----------------------------------------------------------------------------------------------
at::Scalar local_scalar_dense(const Tensor &self) {
  alignas(16) char element[16];
  const tt_tensor tensor = describe(self);
  TT_CHECK(tt_item(&tensor, element));
  warn_late();
  return load_scalar(self.scalar_type(), element);
}

bool are_equal(const Tensor &self, const Tensor &other) {
  TORCH_CHECK(self.device() == other.device(), "Cannot compare two tensors on different devices. Got: ", self.device(),
              " and ", other.device());
  return self.sizes() == other.sizes() && (self.numel() == 0 || at::eq(self, other).all().item<bool>());
}

// --- what a TPU tensor cannot be -------------------------------------------------------------------------------------
// The dtype that a call asks for or, without one, that of its first tensor.
optional<ScalarType> dtype_of_call(const c10::FunctionSchema &schema, c10::ArrayRef<c10::IValue> arguments) {
  optional<ScalarType> type;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (schema.arguments()[i].name() == "dtype" && arguments[i].isInt()) return arguments[i].toScalarType();
    if (arguments[i].isTensor() && arguments[i].toTensor().defined() && !type)
      type = arguments[i].toTensor().scalar_type();
  }
  return type;
}

void raise_quantized(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  const auto type = dtype_of_call(op.schema(), torch::jit::last(*stack, op.schema().arguments().size()));
  raise_unsupported_dtype(op.schema().name().c_str(), type && c10::isQIntType(*type) ? *type : ScalarType::QInt8);
}

} // namespace

void register_basics() {
  auto &m = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  m.impl("empty.memory_format", TORCH_FN(empty_memory_format));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_efficientzerotensor", TORCH_FN(zero_tensor));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));

  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage", TORCH_FN(set_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_offset));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_", TORCH_FN(set_empty));
  m.impl("is_set_to", TORCH_FN(at::native::is_set_to));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));

  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));

  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("equal", TORCH_FN(are_equal));

  auto &quantized =
      *new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::QuantizedPrivateUse1, __FILE__, __LINE__);
  quantized.fallback(torch::CppFunction::makeFromBoxedFunction<&raise_quantized>());

  // torch resolves conjugate and negative bits by copying, so these see them.
  for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
    auto &bits = *new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    bits.impl("_copy_from", torch::CppFunction::makeFallthrough());
  }
}

} // namespace torch_tpu
