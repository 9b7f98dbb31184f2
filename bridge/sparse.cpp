// sparse.cpp - sparse tensors, whose indices and values are TPU tensors.
//
// Most of torch's sparse kernels are written in terms of dense ops on indices and values; those run here as they are, under the
// name of their CPU registration. The few that loop over memory are replaced (coalesce, add, mul, addmm of COO tensors) or run on
// the CPU with the usual warning.
#include <unordered_set>

#include <ATen/ATen.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "register.h"
#include "support.h"

namespace torch_tpu {
namespace {

using at::Tensor;
using c10::ScalarType;

// --- kernels of torch's own -----------------------------------------------------------------------------------------------

// Registered for a sparse CPU layout, but not for CUDA's: these read memory.
const std::unordered_set<std::string_view> &reads_memory() {
  static const auto &names = *new std::unordered_set<std::string_view>{
      "aten::bmm",
      "aten::bmm.out",
      "aten::_sparse_sparse_matmul",
      "aten::is_pinned",
      "aten::_pin_memory",
      "aten::sspaddmm.out",
      "aten::_sparse_sum_backward",
      "aten::_sparse_softmax",
      "aten::_sparse_softmax_backward_data",
      "aten::_sparse_log_softmax",
      "aten::_sparse_log_softmax_backward_data",
      "aten::addmm.out",
      "aten::hspmm",
      "aten::hspmm.out",
      "aten::index_select",
      "aten::addmv.out",
      "aten::_sparse_csr_sum.dim_dtype",
      "aten::_sparse_csr_prod.dim_dtype",
      "aten::sparse_sampled_addmm",
      "aten::sparse_sampled_addmm.out",
      "aten::_sparse_mm_reduce_impl",
      "aten::_sparse_mm_reduce_impl_backward",
      "aten::triangular_solve.X",
      "aten::add.out",
  };
  return names;
}

// Calls `change` for every tensor in the last `count` values of the stack.
template <typename Change>
void for_each_tensor(torch::jit::Stack &stack, size_t count, const Change &change) {
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    c10::IValue &value = stack[i];
    if (value.isTensor() && value.toTensor().defined()) {
      change(i, value);
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor &item : value.toTensorVector()) {
        c10::IValue element = item;
        change(i, element);
        list.push_back(element.toTensor());
      }
      value = list;
    }
  }
}

void describe_tensor(std::ostream &text, const Tensor &tensor) {
  text << (text.tellp() > 0 ? ", " : "") << tt_dtype_text(to_dtype(tensor.scalar_type())) << " " << tensor.sizes();
  if (tensor.layout() != c10::kStrided) text << " " << tensor.layout();
}

// Like at::native::cpu_fallback, for sparse tensors too.
void run_on_host(const c10::OperatorHandle &op, torch::jit::Stack &stack) {
  const auto &schema = op.schema();
  const std::string name = c10::toString(op.operator_name());
  const FallbackScope scope(name.c_str());
  std::ostringstream inputs;
  std::vector<std::pair<size_t, Tensor>> written; // by argument: what the caller wants changed
  const size_t first = stack.size() - schema.arguments().size();
  c10::Device device(kTPU, 0);
  for_each_tensor(stack, schema.arguments().size(), [&](size_t at, c10::IValue &value) {
    const Tensor tensor = value.toTensor();
    if (tensor.device().type() == kTPU) device = tensor.device();
    describe_tensor(inputs, tensor);
    if (is_written(schema.arguments()[at - first])) written.emplace_back(at - first, tensor);
    Tensor copy = tensor.cpu();
    if (tensor.requires_grad())
      copy.set_requires_grad(true); // _sparse_mm_reduce_impl keeps what its backward needs only then
    value = copy;
  });
  announce_fallback(op, inputs.str());
  std::vector<Tensor> changed;
  for (const auto &[argument, tensor] : written) changed.push_back(stack[first + argument].toTensor());
  op.callBoxed(&stack);
  for (size_t i = 0; i < written.size(); ++i) {
    if (written[i].second.layout() == c10::kStrided) written[i].second.resize_(changed[i].sizes());
    written[i].second.copy_(changed[i]);
  }
  for_each_tensor(stack, schema.returns().size(), [&](size_t, c10::IValue &value) {
    const Tensor result = value.toTensor();
    for (size_t i = 0; i < changed.size(); ++i)
      if (result.is_same(changed[i])) {
        value = written[i].second;
        return;
      }
    value = result.to(device);
  });
}

template <c10::DispatchKey cpu>
void run_cpu_kernel(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  op.callBoxedForDispatchKey(cpu, *stack);
}

void sparse_fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack) { run_on_host(op, *stack); }

std::vector<SparseOp> &on_cpu() {
  static auto &ops = *new std::vector<SparseOp>;
  return ops;
}

// Registers torch's kernels for `cpu` under `key`, where it has none yet. For those that read memory the fallback, since torch has
// composite kernels for some that merely raise.
template <c10::DispatchKey cpu>
void adopt_kernels(c10::DispatchKey key) {
  auto &library = *new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  for (const auto &name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || name.getNamespace() != "aten" || !op->hasKernelForDispatchKey(cpu) || op->hasKernelForDispatchKey(key))
      continue;
    const auto text = c10::toString(name);
    const bool on_host = reads_memory().contains(text);
    if (on_host) on_cpu().push_back({text, key == c10::DispatchKey::SparsePrivateUse1 ? "COO" : "compressed"});
    library.impl(text.c_str(), on_host ? torch::CppFunction::makeFromBoxedFunction<&sparse_fallback>()
                                       : torch::CppFunction::makeFromBoxedFunction<&run_cpu_kernel<cpu>>());
  }
  auto &rest = *new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  rest.fallback(torch::CppFunction::makeFromBoxedFunction<&sparse_fallback>());
}

// --- replaced kernels -----------------------------------------------------------------------------------------------------

// The position of each entry in the tensor's sparse dims, row-major: [nnz].
Tensor flat_positions(const Tensor &sparse) {
  const Tensor indices = sparse._indices();
  Tensor flat = at::zeros({indices.size(1)}, indices.options());
  for (int64_t dim = 0; dim < sparse.sparse_dim(); ++dim)
    flat = at::add(at::mul(flat, sparse.size(dim)), indices.select(0, dim));
  return flat;
}

Tensor indices_at(const Tensor &sparse, Tensor flat) {
  std::vector<Tensor> rows(sparse.sparse_dim());
  for (int64_t dim = sparse.sparse_dim() - 1; dim >= 0; --dim) {
    const int64_t size = std::max<int64_t>(sparse.size(dim), 1);
    rows[dim] = at::remainder(flat, size);
    flat = at::floor_divide(flat, size);
  }
  return rows.empty() ? at::zeros({0, flat.size(0)}, flat.options()) : at::stack(rows);
}

Tensor make_sparse(const Tensor &like, const Tensor &indices, const Tensor &values, bool coalesced) {
  return at::_sparse_coo_tensor_with_dims_and_tensors(like.sparse_dim(), like.dense_dim(), like.sizes(), indices,
                                                      values, values.options().layout(c10::kSparse), coalesced);
}

Tensor coalesce(const Tensor &self) {
  if (self._nnz() < 2) {
    Tensor copy = self.clone();
    copy._coalesced_(true);
    return copy;
  }
  const auto [positions, entry, counts] = at::_unique2(flat_positions(self), true, /*return_inverse=*/true, false);
  const Tensor values = self._values();
  std::vector<int64_t> sizes = values.sizes().vec();
  sizes[0] = positions.size(0);
  const bool is_bool = values.scalar_type() == ScalarType::Bool; // a sum of bools is "or"
  Tensor sums = at::zeros(sizes, is_bool ? values.options().dtype(ScalarType::Int) : values.options());
  sums.index_add_(0, entry, is_bool ? values.to(ScalarType::Int) : values);
  return make_sparse(self, indices_at(self, positions), is_bool ? at::ne(sums, 0) : sums, true);
}

// Makes `out` the sparse tensor `result`, converted to its dtype.
Tensor &assign(Tensor &out, const Tensor &result) {
  TORCH_CHECK(c10::canCast(result.scalar_type(), out.scalar_type()), "Can't convert result type ", result.scalar_type(),
              " to output ", out.scalar_type());
  auto *impl = static_cast<at::SparseTensorImpl *>(out.unsafeGetTensorImpl());
  impl->resize_(result.sparse_dim(), result.dense_dim(), result.sizes());
  impl->set_indices_and_values_unsafe(result._indices(), result._values().to(out.scalar_type()));
  return out._coalesced_(result.is_coalesced());
}

std::vector<Tensor> unbind_indices(const Tensor &sparse) { return sparse._indices().unbind(0); }
c10::List<std::optional<Tensor>> as_index(const Tensor &sparse) {
  c10::List<std::optional<Tensor>> index;
  for (const Tensor &row : unbind_indices(sparse)) index.push_back(row);
  return index;
}

Tensor &add_out(const Tensor &self, const Tensor &other, const c10::Scalar &alpha, Tensor &out) {
  TORCH_CHECK(other.is_sparse(), "add: expected 'other' to be sparse, but it is dense");
  const auto type = at::result_type(self, other);
  const Tensor scaled = at::mul(other._values(), alpha).to(type);
  if (!self.is_sparse()) {
    TORCH_CHECK(self.sizes() == other.sizes(), "add: expected 'self' and 'other' to have same size, but self has size ",
                self.sizes(), " while other has size ", other.sizes(),
                " (FYI: dense-sparse addition does not currently support broadcasting)");
    Tensor sum = self.to(type, /*non_blocking=*/false, /*copy=*/true);
    if (other.sparse_dim() > 0)
      sum.index_put_(as_index(other), scaled, /*accumulate=*/true);
    else
      sum.add_(scaled.sum(0));
    TORCH_CHECK(c10::canCast(type, out.scalar_type()), "Can't convert result type ", type, " to output ",
                out.scalar_type(), " in add operation");
    out.resize_(sum.sizes());
    return out.copy_(sum);
  }
  TORCH_CHECK(self.sizes() == other.sizes(), "add: expected sizes of 'self' and 'other' to match, but ", self.sizes(),
              " != ", other.sizes());
  TORCH_CHECK(self.sparse_dim() == other.sparse_dim() && self.dense_dim() == other.dense_dim(),
              "add: expected 'self' and 'other' to have same density, but 'self' has ", self.sparse_dim(),
              " sparse dimensions while 'other' has ", other.sparse_dim(), " sparse dimensions");
  return assign(out, make_sparse(self, at::cat({self._indices(), other._indices()}, 1),
                                 at::cat({self._values().to(type), scaled}, 0), false));
}

// Where both have an entry.
Tensor multiply_sparse(const Tensor &x, const Tensor &y) {
  const Tensor a = x.coalesce(), b = y.coalesce();
  if (a._nnz() == 0 || b._nnz() == 0) return at::mul(a._nnz() == 0 ? a : b, 0);
  const Tensor at_a = flat_positions(a), at_b = flat_positions(b);
  const Tensor near = at::searchsorted(at_b, at_a).clamp_max(b._nnz() - 1);
  const Tensor shared = at::nonzero(at::eq(at_b.index_select(0, near), at_a)).select(1, 0);
  const Tensor values =
      at::mul(a._values().index_select(0, shared), b._values().index_select(0, near.index_select(0, shared)));
  return make_sparse(a, a._indices().index_select(1, shared), values, true);
}

Tensor &mul_out(const Tensor &self, const Tensor &other, Tensor &out) {
  const Tensor &sparse = self.is_sparse() ? self : other, &factor = self.is_sparse() ? other : self;
  if (factor.dim() == 0) {
    const Tensor number = factor.is_sparse() ? factor.to_dense() : factor;
    const Tensor values = at::mul(sparse._values(), number);
    return assign(out, make_sparse(sparse, sparse._indices().clone(), values, sparse.is_coalesced()));
  }
  TORCH_CHECK(self.sizes() == other.sizes(),
              "mul: expected 'self' and 'other' to have same sizes when both are sparse, but ", self.sizes(),
              " != ", other.sizes());
  if (factor.is_sparse()) return assign(out, multiply_sparse(self, other));
  const Tensor values = at::mul(sparse._values(), at::index(factor, as_index(sparse)));
  return assign(out, make_sparse(sparse, sparse._indices().clone(), values, sparse.is_coalesced()));
}

// beta * self + alpha * (matrix @ dense), with a sparse matrix.
Tensor multiply_add(const Tensor &self, const Tensor &matrix, const Tensor &dense, const c10::Scalar &beta,
                    const c10::Scalar &alpha) {
  TORCH_CHECK(matrix.is_sparse() && !dense.is_sparse() && !self.is_sparse(),
              "addmm: expected 'mat1' to be sparse, 'self' and 'mat2' to be dense");
  TORCH_CHECK(matrix.sparse_dim() == 2 && matrix.dense_dim() == 0, "addmm: matrices expected, got ",
              matrix.sparse_dim(), "D sparse tensor");
  TORCH_CHECK(dense.dim() == 2, "addmm: matrices expected, got ", dense.dim(), "D tensor");
  TORCH_CHECK(matrix.size(1) == dense.size(0), "addmm: Argument #3 (dense): Expected dim 0 size ", matrix.size(1),
              ", got ", dense.size(0));
  const Tensor rows = matrix._indices().select(0, 0), columns = matrix._indices().select(0, 1);
  const Tensor start = self.expand({matrix.size(0), dense.size(1)});
  Tensor sum = beta.equal(0) ? at::zeros_like(start, c10::MemoryFormat::Contiguous) : at::mul(start, beta).contiguous();
  const Tensor terms = at::mul(dense.index_select(0, columns), matrix._values().unsqueeze(1));
  return sum.index_add_(0, rows, terms, alpha);
}

Tensor &multiply_add_(Tensor &self, const Tensor &matrix, const Tensor &dense, const c10::Scalar &beta,
                      const c10::Scalar &alpha) {
  return self.copy_(multiply_add(self, matrix, dense, beta, alpha));
}

} // namespace

const std::vector<SparseOp> &sparse_ops_on_cpu() { return on_cpu(); }

void register_sparse() {
  auto &coo =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::SparsePrivateUse1, __FILE__, __LINE__);
  coo.impl("_coalesce", TORCH_FN(coalesce));
  coo.impl("add.out", TORCH_FN(add_out));
  coo.impl("mul.out", TORCH_FN(mul_out));
  coo.impl("addmm", TORCH_FN(multiply_add));
  coo.impl("addmm_", TORCH_FN(multiply_add_));
  adopt_kernels<c10::DispatchKey::SparseCPU>(c10::DispatchKey::SparsePrivateUse1);
  adopt_kernels<c10::DispatchKey::SparseCsrCPU>(c10::DispatchKey::SparseCsrPrivateUse1);
  auto &dense = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (const char *name :
       {"_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"})
    dense.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_cpu_kernel<c10::DispatchKey::CPU>>());
}

} // namespace torch_tpu
