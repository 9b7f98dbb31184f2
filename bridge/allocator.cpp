// allocator.cpp - device memory as torch sees it. The core allocates, counts and frees; a block here is a tt_storage.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StorageImpl.h>

#include "register.h"
#include "tensor.h"

namespace torch_tpu {
namespace {

using Stats = c10::CachingDeviceAllocator::DeviceStats;

void set_stat(c10::CachingAllocator::StatArray &stat, int64_t current, int64_t peak, int64_t allocated, int64_t freed) {
  auto &aggregate = stat[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  aggregate.current = current;
  aggregate.peak = peak;
  aggregate.allocated = allocated;
  aggregate.freed = freed;
}

class Allocator final : public c10::DeviceAllocator {
public:
  c10::DataPtr allocate(size_t byte_size) override {
    const int index = tt_current_device();
    tt_storage *storage = nullptr;
    TT_CHECK(tt_storage_create_on(index, static_cast<int64_t>(byte_size), &storage));
    return {tt_storage_address(storage), storage, &release_storage,
            c10::Device(kTPU, static_cast<c10::DeviceIndex>(index))};
  }

  // None: the context of a DataPtr is not its address, so torch's raw interface does not apply.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void *, const void *, size_t) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "tpu: memory cannot be copied by address; copy tensors instead");
  }

  bool initialized() override { return tt_runtime_started(); }
  void emptyCache(c10::MempoolId_t) override { TT_CHECK(tt_device_empty_cache()); }
  void recordStream(const c10::DataPtr &, c10::Stream) override {} // the runtime holds buffers until their work is done

  // There is no cache between torch and the plugin: reserved, active, allocated and requested bytes are the same, but for what
  // programs reserve while they run.
  Stats getDeviceStats(c10::DeviceIndex device) override {
    tt_memory_snapshot memory;
    TT_CHECK(tt_device_memory(device, &memory));
    Stats stats;
    for (auto *bytes : {&stats.allocated_bytes, &stats.active_bytes, &stats.requested_bytes})
      set_stat(*bytes, memory.current, memory.peak, memory.allocated, memory.freed);
    set_stat(stats.reserved_bytes, memory.current, memory.reserved_peak, memory.allocated, memory.freed);
    for (auto *blocks : {&stats.allocation, &stats.segment, &stats.active})
      set_stat(*blocks, memory.blocks_current, memory.blocks_peak, memory.blocks_allocated, memory.blocks_freed);
    stats.num_ooms = memory.out_of_memory_count;
    stats.num_device_alloc = memory.blocks_allocated;
    stats.num_device_free = memory.blocks_freed;
    return stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override { TT_CHECK(tt_device_reset_accumulated_memory(device)); }
  void resetPeakStats(c10::DeviceIndex device) override { TT_CHECK(tt_device_reset_peak_memory(device)); }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    int64_t free = 0, total = 0;
    TT_CHECK(tt_device_free_memory(device, &free, &total));
    return {free, total};
  }
};

} // namespace

c10::Allocator *allocator() {
  static auto *allocator = new Allocator; // never destroyed: tensors may outlive the module
  return allocator;
}

void release_storage(void *context) { tt_storage_release(static_cast<tt_storage *>(context)); }

void resize_storage(c10::StorageImpl &storage, int64_t byte_size) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  TORCH_CHECK(storage.data_ptr().get_deleter() == &release_storage, "resize: a storage that torch_tpu did not make");
  auto *handle = static_cast<tt_storage *>(storage.data_ptr().get_context());
  TT_CHECK(tt_resize_storage(handle, byte_size));
  // The address range is new; the handle, with its one reference, stays.
  c10::DataPtr old =
      storage.set_data_ptr(c10::DataPtr(tt_storage_address(handle), handle, &release_storage, storage.device()));
  old.release_context();
  storage.set_nbytes(byte_size);
}

void register_allocator() { c10::SetAllocator(kTPU, allocator()); }

} // namespace torch_tpu
