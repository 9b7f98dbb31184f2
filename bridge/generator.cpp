// generator.cpp - the seed and offset of a TPU generator, 16 bytes as DTensor and torch.save read them.
#include "generator.h"

#include <deque>
#include <mutex>

#include <ATen/EmptyTensor.h>
#include <ATen/core/TensorBase.h>
#include <c10/core/GeneratorImpl.h>

#include "status.h"
#include "tensor.h"

namespace torch_tpu {
namespace {

class Generator final : public c10::GeneratorImpl {
public:
  // Takes over one reference.
  explicit Generator(tt_generator *generator)
      : GeneratorImpl({kTPU, static_cast<c10::DeviceIndex>(tt_generator_device(generator))},
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        generator_(generator) {}
  ~Generator() override { tt_generator_release(generator_); }

  tt_generator *get() const { return generator_; }

  void set_current_seed(uint64_t seed) override { tt_generator_set_seed(generator_, seed); }
  uint64_t current_seed() const override { return tt_generator_seed(generator_); }
  uint64_t seed() override {
    const uint64_t seed = c10::detail::getNonDeterministicRandom(/*is_cuda=*/true);
    set_current_seed(seed);
    return seed;
  }
  void set_offset(uint64_t offset) override {
    TORCH_CHECK(offset % 4 == 0, "offset must be a multiple of 4");
    tt_generator_set_offset(generator_, offset);
  }
  uint64_t get_offset() const override { return tt_generator_offset(generator_); }

  void set_state(const c10::TensorImpl &state) override {
    at::detail::check_rng_state(state);
    TORCH_CHECK(state.numel() == TT_GENERATOR_STATE_SIZE, "RNG state is wrong size: expected ", TT_GENERATOR_STATE_SIZE,
                " bytes, got ", state.numel());
    tt_generator_set_state(generator_, static_cast<const uint8_t *>(state.data()));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::detail::empty_cpu({TT_GENERATOR_STATE_SIZE}, c10::ScalarType::Byte, false, std::nullopt);
    tt_generator_get_state(generator_, static_cast<uint8_t *>(state.mutable_data_ptr()));
    return state.getIntrusivePtr();
  }

private:
  Generator *clone_impl() const override {
    tt_generator *copy = nullptr;
    TT_CHECK(tt_generator_create(device().index(), current_seed(), &copy));
    tt_generator_set_offset(copy, get_offset());
    return new Generator(copy);
  }

  tt_generator *generator_;
};

c10::DeviceIndex or_current(c10::DeviceIndex index) {
  return index >= 0 ? index : static_cast<c10::DeviceIndex>(tt_current_device());
}

} // namespace

const at::Generator &default_generator(c10::DeviceIndex index) {
  static auto &generators = *new std::deque<at::Generator>; // references into it stay valid as it grows
  static auto &lock = *new std::mutex;
  index = or_current(index);
  tt_generator *generator = nullptr;
  TT_CHECK(tt_generator_default(index, &generator)); // checks the index
  const std::lock_guard hold(lock);
  if (generators.size() <= static_cast<size_t>(index)) generators.resize(index + 1);
  at::Generator &slot = generators[index];
  if (!slot.defined()) {
    tt_generator_retain(generator);
    slot = at::make_generator<Generator>(generator);
  }
  return slot;
}

at::Generator new_generator(c10::DeviceIndex index) {
  tt_generator *generator = nullptr;
  TT_CHECK(tt_generator_create(or_current(index), c10::default_rng_seed_val, &generator));
  return at::make_generator<Generator>(generator);
}

tt_generator *generator_of(const at::Generator &generator) {
  const auto *impl = dynamic_cast<const Generator *>(generator.unsafeGetGeneratorImpl());
  TORCH_CHECK(impl != nullptr, "Expected a 'tpu' device type for generator but found '", generator.device().type(),
              "'");
  return impl->get();
}

} // namespace torch_tpu
