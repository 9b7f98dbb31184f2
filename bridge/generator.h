// generator.h - torch.Generator(device="tpu") around a tt_generator.
#pragma once

#include <ATen/core/Generator.h>

#include "run/random.h"

namespace torch_tpu {

// The default generator of a device; index -1 is the current one. Lives for ever.
const at::Generator &default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);

// The core's generator behind a torch one; raises unless it is a TPU's. Borrowed.
tt_generator *generator_of(const at::Generator &generator);

} // namespace torch_tpu
