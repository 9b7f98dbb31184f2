// guard.cpp - devices, streams and events for c10::DeviceGuard, torch.Stream and torch.Event.
//
// A device's work is one queue, so streams are names only and every wait is for the whole queue; an event is a tt_point.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "register.h"
#include "tensor.h"

namespace torch_tpu {
namespace {

tt_point *point(void *event) { return static_cast<tt_point *>(event); }
c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : static_cast<c10::DeviceIndex>(tt_current_device());
}
c10::Stream stream(c10::Device device, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kTPU, index_of(device)), id);
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
public:
  c10::DeviceType type() const override { return kTPU; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device old = getDevice();
    if (old.index() != device.index()) setDevice(device);
    return old;
  }
  c10::Device getDevice() const override { return {kTPU, static_cast<c10::DeviceIndex>(tt_current_device())}; }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) TT_CHECK(tt_set_current_device(device.index()));
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) tt_status_free(tt_set_current_device(device.index()));
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(tt_runtime_device_count());
  }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
#define X(name, torch, text, hlo, pjrt, bytes, category, is_signed)                                                    \
  capability.capability_data.capability_bits |= UINT64_C(1) << torch;
    TT_DTYPES(X)
#undef X
    return capability;
  }

  // --- streams
  c10::Stream getStream(c10::Device device) const override {
    return stream(device, tt_stream_current(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream(device, tt_stream_new(index_of(device)));
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(next.device(), tt_stream_exchange(index_of(next.device()), next.id()));
  }
  void *getStreamNativeHandle(const c10::Stream stream) const override { return reinterpret_cast<void *>(stream.id()); }
  bool queryStream(const c10::Stream &stream) const override { return tt_device_is_idle(index_of(stream.device())); }
  void synchronizeStream(const c10::Stream &stream) const override {
    TT_CHECK(tt_synchronize(index_of(stream.device())));
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override { TT_CHECK(tt_synchronize(index)); }
  void recordDataPtrOnStream(const c10::DataPtr &, const c10::Stream &) const override {}

  // --- events
  void record(void **event, const c10::Stream &stream, const c10::DeviceIndex index,
              const c10::EventFlag) const override {
    TORCH_CHECK(index == -1 || index == stream.device_index(), "Event device index ", index,
                " does not match recording stream's device index ", stream.device_index(), ".");
    const int device = index_of(stream.device());
    if (*event == nullptr) {
      tt_point *created = nullptr;
      TT_CHECK(tt_point_create(device, &created));
      *event = created;
    }
    TT_CHECK(tt_point_record(point(*event), device));
  }
  // Work already runs in the order of its calls, on one device; across devices PJRT orders it by the buffers it reads.
  void block(void *, const c10::Stream &) const override {}
  bool queryEvent(void *event) const override { return event == nullptr || tt_point_query(point(event)); }
  void synchronizeEvent(void *event) const override {
    if (event != nullptr) TT_CHECK(tt_point_wait(point(event)));
  }
  double elapsedTime(void *start, void *end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "Both events must be recorded before calculating elapsed time.");
    double milliseconds = 0;
    TT_CHECK(tt_point_elapsed_ms(point(start), point(end), &milliseconds));
    return milliseconds;
  }
  void destroyEvent(void *event, const c10::DeviceIndex) const noexcept override {
    if (event != nullptr) tt_point_destroy(point(event));
  }
};

} // namespace

void register_guard() { c10::impl::DeviceGuardImplRegistrar(kTPU, new Guard); }

} // namespace torch_tpu
