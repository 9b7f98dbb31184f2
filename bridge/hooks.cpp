// hooks.cpp - what torch's own code asks of an accelerator: is it there, which device, which generator, whose pointer.
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "generator.h"
#include "host_allocator.h"
#include "register.h"
#include "tensor.h"

namespace torch_tpu {
namespace {

class Hooks final : public at::PrivateUse1HooksInterface {
public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return tt_runtime_device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return tt_runtime_started(); }
  void init() const override { TT_CHECK(tt_runtime_start()); }

  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(tt_runtime_device_count()); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(tt_current_device()); }
  void setCurrentDevice(c10::DeviceIndex index) const override { TT_CHECK(tt_set_current_device(index)); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex old = getCurrentDevice();
    if (index != old) setCurrentDevice(index);
    return old;
  }
  // As for CUDA: a negative index changes nothing and returns -1.
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? c10::DeviceIndex(-1) : exchangeDevice(index);
  }

  const at::Generator &getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    const int count = tt_runtime_device_count();
    TORCH_CHECK(index < count, "Device index value ", static_cast<int>(index), " is out of index range [0, ", count,
                ")");
    return new_generator(index);
  }

  bool isPinnedPtr(const void *data) const override { return is_pinned(data); }
  c10::Allocator *getPinnedMemoryAllocator() const override { return at::getHostAllocator(kTPU); }
  c10::Device getDeviceFromPtr(void *data) const override {
    int index = 0;
    TORCH_CHECK(tt_storage_owns_address(data, &index), "The specified pointer resides on host memory and is not "
                                                       "registered with any TPU device.");
    return {kTPU, static_cast<c10::DeviceIndex>(index)};
  }
  void resizePrivateUse1Bytes(const c10::Storage &storage, size_t byte_size) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), static_cast<int64_t>(byte_size));
  }
};

} // namespace

void register_hooks() { at::RegisterPrivateUse1HooksInterface(new Hooks); }

} // namespace torch_tpu
