// counted.h - ops whose results are as long as the data says; see counted.cpp.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_tpu {

// Makes the tensor show only `size` elements along `dim`; its storage stays.
void shorten(const at::Tensor &tensor, int64_t dim, int64_t size);

// self[mask] for a mask of bools or bytes over self's first dims.
bool can_index_by_mask(const at::Tensor &self, const at::Tensor &mask);
at::Tensor index_by_mask(const at::Tensor &self, const at::Tensor &mask);

// repeat_interleave(repeats) on the host.
at::Tensor host_repeats(const at::Tensor &repeats);

} // namespace torch_tpu
