// host_allocator.cpp - page-aligned blocks of host memory and the list of them. Any thread.
#include "host_allocator.h"

#include <cstdlib>
#include <map>
#include <mutex>

#include <ATen/core/CachingHostAllocator.h>

#include "register.h"
#include "tensor.h"

namespace torch_tpu {
namespace {

constexpr size_t kPage = 4096;

// The live blocks, by address.
class Blocks {
public:
  void *allocate(size_t byte_size) {
    void *block = nullptr;
    TORCH_CHECK_WITH(OutOfMemoryError, posix_memalign(&block, kPage, byte_size) == 0,
                     "host memory is exhausted: pinned block of ", byte_size, " bytes");
    const std::lock_guard hold(lock_);
    blocks_.emplace(static_cast<char *>(block), byte_size);
    stats_.active_requests.increase(1);
    stats_.allocations.increase(1);
    stats_.active_bytes.increase(byte_size);
    stats_.allocated_bytes.increase(byte_size);
    ++stats_.num_host_alloc;
    return block;
  }

  void free(void *block) {
    {
      const std::lock_guard hold(lock_);
      const auto found = blocks_.find(static_cast<char *>(block));
      if (found == blocks_.end()) return;
      stats_.active_requests.decrease(1);
      stats_.allocations.decrease(1);
      stats_.active_bytes.decrease(found->second);
      stats_.allocated_bytes.decrease(found->second);
      ++stats_.num_host_free;
      blocks_.erase(found);
    }
    std::free(block);
  }

  bool contain(const void *address) {
    const auto *at = static_cast<const char *>(address);
    const std::lock_guard hold(lock_);
    auto after = blocks_.upper_bound(at);
    if (after == blocks_.begin()) return false;
    const auto &[start, byte_size] = *--after;
    return at < start + byte_size;
  }

  at::HostStats stats() {
    const std::lock_guard hold(lock_);
    return stats_;
  }

  template <typename Reset>
  void reset(Reset reset) {
    const std::lock_guard hold(lock_);
    for (auto *stat : {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations, &stats_.allocated_bytes})
      reset(*stat);
  }

private:
  std::mutex lock_;
  std::map<const char *, size_t> blocks_;
  at::HostStats stats_;
};

Blocks &blocks() {
  static auto &blocks = *new Blocks; // pinned tensors may outlive the module
  return blocks;
}

void free_block(void *block) { blocks().free(block); }

class PinnedAllocator final : public at::HostAllocator {
public:
  c10::DataPtr allocate(size_t byte_size) override {
    void *block = byte_size > 0 ? blocks().allocate(byte_size) : nullptr;
    return {block, block, &free_block, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void *to, const void *from, size_t count) const override { default_copy_data(to, from, count); }

  // A transfer keeps the memory that it reads or writes alive by itself.
  bool record_event(void *, void *, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return blocks().stats(); }
  void reset_accumulated_stats() override {
    blocks().reset([](c10::CachingAllocator::Stat &stat) { stat.reset_accumulated(); });
  }
  void reset_peak_stats() override {
    blocks().reset([](c10::CachingAllocator::Stat &stat) { stat.reset_peak(); });
  }
};

} // namespace

bool is_pinned(const void *address) { return blocks().contain(address); }

void register_host_allocator() { at::setHostAllocator(kTPU, new PinnedAllocator); }

} // namespace torch_tpu
