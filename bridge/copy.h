// copy.h - copies between TPU tensors and the host.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_tpu {

// torch's copy_: converts, broadcasts, honours conjugate and negative bits; at least one side is a TPU tensor.
at::Tensor &copy_(at::Tensor &self, const at::Tensor &source, bool non_blocking);

} // namespace torch_tpu
