// counted.cpp - ops whose results are as long as the data says: positions of true elements, selections by mask, repeats, bins.
//
// Each waits for the device once. What depends on the count runs in sizes rounded up to a power of two and the result is cut
// to size afterwards, so that not every count is compiled for anew. (_unique and its kin count on the device: TT_OP_COUNTED.)
#include "counted.h"

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorAdvancedIndexingUtils.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "register.h"
#include "tensor.h"

namespace torch_tpu {

using at::Tensor;
using c10::ScalarType;

void shorten(const Tensor &tensor, int64_t dim, int64_t size) {
  c10::SmallVector<int64_t, 8> sizes(tensor.sizes().begin(), tensor.sizes().end());
  const c10::SmallVector<int64_t, 8> strides(tensor.strides().begin(), tensor.strides().end());
  sizes[dim] = size;
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
}

namespace {

constexpr int64_t kSmallestSize = 16;

int64_t round_up(int64_t count) {
  int64_t size = kSmallestSize;
  while (size < count) size *= 2;
  return size;
}

// Host rows [count] as rows [round_up(count)] on the device, with zeros at the end.
Tensor upload_rounded(const Tensor &rows, c10::Device device) {
  const Tensor padded = at::zeros({round_up(rows.size(0))}, rows.options());
  padded.narrow(0, 0, rows.size(0)).copy_(rows);
  return padded.to(device);
}

// --- masks -----------------------------------------------------------------------------------------------------------
// One byte per element goes to the host, which finds the positions: [count, dims] there.
Tensor host_positions(const Tensor &self) {
  const Tensor mask = self.scalar_type() == ScalarType::Bool ? self : at::ne(self, 0);
  return at::nonzero(mask.cpu());
}

Tensor nonzero_positions(const Tensor &self) { return host_positions(self).to(self.device()); }

Tensor &nonzero_out(const Tensor &self, Tensor &out) {
  TORCH_CHECK(out.scalar_type() == ScalarType::Long,
              "nonzero: Expected out tensor to have scalar type Long but got scalar type ", out.scalar_type());
  const Tensor result = nonzero_positions(self);
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

Tensor select_by_mask(const Tensor &self, const Tensor &mask) {
  TORCH_CHECK(mask.scalar_type() == ScalarType::Bool, "masked_select: expected BoolTensor for mask");
  const Tensor self1 = self.dim() == 0 ? self.unsqueeze(0) : self, mask1 = mask.dim() == 0 ? mask.unsqueeze(0) : mask;
  const auto [values, selected] = at::expand_outplace(self1, mask1); // may borrow from the two
  return at::index(*values, {*selected});
}

Tensor &masked_select_out(const Tensor &self, const Tensor &mask, Tensor &out) {
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "masked_select(): self and result must have the same scalar type");
  const Tensor result = select_by_mask(self, mask);
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

} // namespace

bool can_index_by_mask(const Tensor &self, const Tensor &mask) {
  return mask.dim() > 0 && mask.dim() <= self.dim() && mask.sizes() == self.sizes().slice(0, mask.dim());
}

Tensor index_by_mask(const Tensor &self, const Tensor &mask) {
  const Tensor positions = host_positions(mask);
  const int64_t count = positions.size(0);
  c10::List<std::optional<Tensor>> indices;
  for (int64_t i = 0; i < mask.dim(); ++i) {
    const Tensor column = positions.select(1, i);
    indices.push_back(count > 0 ? upload_rounded(column, self.device()) : column.to(self.device()));
  }
  Tensor result = at::index(self, indices);
  if (result.size(0) != count) shorten(result, 0, count);
  return result;
}

// --- repeats ---------------------------------------------------------------------------------------------------------
Tensor host_repeats(const Tensor &repeats) { return at::repeat_interleave(repeats.cpu()); }

namespace {

// torch's repeat_interleave.self_Tensor, but with rounded positions. Above autograd, which sees index_select and narrow.
Tensor repeat_elements(const Tensor &self, const Tensor &repeats, std::optional<int64_t> dim,
                       std::optional<c10::SymInt> output_size) {
  const Tensor input = dim ? self : self.flatten();
  const int64_t along = at::maybe_wrap_dim(dim.value_or(0), self.dim());
  TORCH_CHECK(repeats.dim() <= 1, "repeats must be 0-dim or 1-dim tensor");
  const bool same = repeats.dim() == 0 || repeats.size(0) == 1;
  const int64_t size = input.dim() == 0 ? 1 : input.size(along);
  TORCH_CHECK(same || repeats.size(0) == size,
              "repeats must have the same size as input along dim, but got repeats.size(0) = ",
              repeats.dim() == 0 ? 1 : repeats.size(0), " and input.size(", along, ") = ", size);
  const Tensor each = same ? repeats.reshape({1}).expand({size}) : repeats;
  if (output_size) {
    const std::optional<int64_t> wanted = output_size->guard_int(__FILE__, __LINE__);
    return input.index_select(along, at::repeat_interleave(each, wanted));
  }
  const Tensor positions = host_repeats(each);
  const int64_t count = positions.size(0);
  // Cut along an inner dim, the result would not be contiguous.
  if (count == 0 || c10::multiply_integers(input.sizes().begin(), input.sizes().begin() + along) > 1)
    return input.index_select(along, positions.to(self.device()));
  return input.index_select(along, upload_rounded(positions, self.device())).narrow(along, 0, count);
}

// --- bins ------------------------------------------------------------------------------------------------------------
Tensor bincount(const Tensor &self, const std::optional<Tensor> &weights, int64_t minlength) {
  const bool weighted = weights && weights->defined();
  TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isIntegralType(self.scalar_type(), /*includeBool=*/false),
                              "\"bincount\" not implemented for '", self.scalar_type(), "'");
  TORCH_CHECK(self.dim() == 1, "bincount only supports 1-d non-negative integral inputs.");
  TORCH_CHECK(!weighted || (weights->dim() == 1 && weights->size(0) == self.size(0)),
              "weights should be 1-d and have the same length as input");
  int64_t size = minlength;
  if (self.numel() > 0) {
    const auto [least, greatest] = at::aminmax(self);
    const Tensor ends = at::stack({least, greatest}).to(ScalarType::Long).cpu();
    TORCH_CHECK(ends[0].item<int64_t>() >= 0, "bincount only supports 1-d non-negative integral inputs.");
    size = std::max(size, ends[1].item<int64_t>() + 1);
  }
  const auto type = !weighted                                     ? ScalarType::Long
                    : weights->scalar_type() == ScalarType::Float ? ScalarType::Float
                                                                  : ScalarType::Double;
  const Tensor bins = at::zeros({self.numel() > 0 ? round_up(size) : size}, self.options().dtype(type));
  if (self.numel() > 0) {
    const Tensor index = self.to(ScalarType::Long);
    bins.scatter_add_(0, index, weighted ? weights->to(type) : at::ones_like(index));
    shorten(bins, 0, size);
  }
  return bins;
}

} // namespace

void register_counted() {
  auto &m = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  m.impl("nonzero", TORCH_FN(nonzero_positions));
  m.impl("nonzero.out", TORCH_FN(nonzero_out));
  m.impl("masked_select", TORCH_FN(select_by_mask));
  m.impl("masked_select.out", TORCH_FN(masked_select_out));
  m.impl("repeat_interleave.self_Tensor", TORCH_FN(repeat_elements));
  m.impl("bincount", TORCH_FN(bincount));
  auto &autograd =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  autograd.impl("repeat_interleave.self_Tensor", TORCH_FN(repeat_elements));
}

} // namespace torch_tpu
