// call.cpp - flattens the dispatcher's stack, wraps what comes back.
#include "call.h"

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DefaultDtype.h>

#include "cache.h"
#include "counted.h"
#include "generator.h"
#include "status.h"

namespace torch_tpu {

// --- arguments -------------------------------------------------------------------------------------------------------
int matmul_precision() {
  const int thread = tt_get_precision();
  if (thread >= 0) return thread;
  // NONE until the user calls torch.set_float32_matmul_precision: then the TPU's own default.
  const auto &context = at::globalContext();
  if (context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) == at::Float32Precision::NONE)
    return TT_PRECISION_MEDIUM;
  switch (context.float32MatmulPrecision()) {
  case at::Float32MatmulPrecision::HIGHEST: return TT_PRECISION_HIGHEST;
  case at::Float32MatmulPrecision::HIGH: return TT_PRECISION_HIGH;
  default: return TT_PRECISION_MEDIUM;
  }
}

static inline bool is_one(const tt_arg &arg) {
  return (arg.kind == TT_ARG_INT && arg.u.integer == 1) || (arg.kind == TT_ARG_DOUBLE && arg.u.real == 1);
}

FlatCall::FlatCall(const Overload &overload, const c10::OperatorHandle &op, const torch::jit::Stack &stack)
    : op_(op), values_(stack.data() + stack.size() - overload.arg_count) {
  const int count = overload.arg_count;
  args_.resize_for_overwrite(count);
  for (argument_ = 0; argument_ < count; ++argument_) {
    add(values_[argument_], args_[argument_], overload.numbers >> argument_ & 1, overload.written >> argument_ & 1);
    if ((overload.ones >> argument_ & 1) && is_one(args_[argument_])) args_[argument_].number = false;
  }

  core.overload = overload.core;
  core.args = args_.data();
  core.arg_count = count;
  core.tensors = tensors_.data();
  core.tensor_count = static_cast<int>(tensors_.size());
  core.written = written_.data();
  core.written_count = static_cast<int>(written_.size());
  core.device_index = device_ >= 0 ? device_ : tt_current_device();
  core.default_dtype = to_dtype(c10::get_default_dtype_as_scalartype());
  core.precision = overload.has_products ? matmul_precision() : TT_PRECISION_MEDIUM;
}

inline void FlatCall::add(const c10::IValue &value, tt_arg &arg, bool number, bool written) {
  arg.number = number;
  if (value.isTensor()) {
    add_tensor(value.toTensor(), arg, written);
  } else if (value.isNone()) {
    arg.kind = TT_ARG_NONE;
  } else if (value.isInt()) {
    arg.kind = TT_ARG_INT;
    arg.u.integer = value.toInt();
  } else if (value.isDouble()) {
    arg.kind = TT_ARG_DOUBLE;
    arg.u.real = value.toDouble();
  } else if (value.isBool()) {
    arg.kind = TT_ARG_BOOL;
    arg.u.integer = value.toBool();
  } else if (value.isList()) {
    add_list(value, arg, number, written);
  } else if (value.isSymInt()) {
    arg.kind = TT_ARG_INT;
    arg.u.integer = value.toSymInt().guard_int(__FILE__, __LINE__);
  } else if (value.isSymFloat()) {
    arg.kind = TT_ARG_DOUBLE;
    arg.u.real = value.toSymFloat().guard_float(__FILE__, __LINE__);
  } else if (value.isSymBool()) {
    arg.kind = TT_ARG_BOOL;
    arg.u.integer = value.toSymBool().guard_bool(__FILE__, __LINE__);
  } else if (value.isComplexDouble()) {
    const auto complex = value.toComplexDouble();
    arg.kind = TT_ARG_COMPLEX;
    arg.u.complex_number[0] = complex.real();
    arg.u.complex_number[1] = complex.imag();
  } else if (value.isString()) {
    arg.kind = TT_ARG_STRING;
    arg.u.string = value.toStringRef().c_str();
  } else if (value.isGenerator()) {
    arg.kind = TT_ARG_GENERATOR;
    arg.u.generator = generator_of(value.toGenerator());
  } else {
    arg.kind = TT_ARG_OTHER;
    if (value.isDevice() && device_ < 0 && value.toDevice().has_index()) device_ = value.toDevice().index();
  }
}

inline void FlatCall::add_tensor(const at::Tensor &tensor, tt_arg &arg, bool written) {
  const auto *impl = tensor.unsafeGetTensorImpl();
  if (!tensor.defined()) {
    arg.kind = TT_ARG_NONE;
    return;
  }
  arg.kind = TT_ARG_TENSOR;
  arg.u.slot = static_cast<int>(tensors_.size());
  tensors_.resize_for_overwrite(tensors_.size() + 1);
  tt_tensor &slot = tensors_.back();
  if (impl->device_type() != kTPU) [[unlikely]]
    return add_host_tensor(tensor, slot, written);
  describe(*impl, slot);
  if (device_ != slot.device_index) {
    if (device_ >= 0) raise_device_mismatch(impl->device());
    device_ = slot.device_index;
  }
  if (written) {
    if (!impl->is_non_overlapping_and_dense()) at::assert_no_internal_overlap(tensor);
    written_.push_back(arg.u.slot);
  }
}

// Among TPU tensors torch admits a 0-d CPU tensor as a scalar; it has a storage offset like any other (pytorch#187117).
void FlatCall::add_host_tensor(const at::Tensor &tensor, tt_tensor &slot, bool written) {
  if (!tensor.device().is_cpu() || tensor.dim() != 0 || written) raise_device_mismatch(tensor.device());
  describe_cpu_scalar(tensor, slot);
}

inline void FlatCall::add_list(const c10::IValue &value, tt_arg &arg, bool number, bool written) {
  const auto values = value.toListRef();
  tt_arg *items = items_ + items_used_;
  if (values.size() <= kItems - items_used_)
    items_used_ += values.size();
  else
    items = more_items_.emplace_front(new tt_arg[values.size()]).get();
  arg.kind = TT_ARG_LIST;
  arg.count = static_cast<int>(values.size());
  arg.u.items = items;
  for (const auto &item : values) add(item, *items++, number, written);
}

void FlatCall::raise_device_mismatch(c10::Device other) const {
  const auto name = op_.operator_name();
  const auto &arguments = op_.schema().arguments();
  const c10::Device device(kTPU, static_cast<c10::DeviceIndex>(device_ >= 0 ? device_ : tt_current_device()));
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", device, " and ",
              other, "! (when checking argument for argument ", arguments[argument_].name(),
              " in method wrapper_PrivateUse1_", name.overload_name, name.overload_name.empty() ? "" : "_",
              name.name.substr(name.name.find("::") + 2), ")");
}

bool FlatCall::run(Results &results) const {
  bool miss = false;
  if (tt_status status = tt_call_run(&core, &results, &miss)) [[unlikely]]
    refuse(status);
  warn_late();
  return miss;
}

namespace {

// An argument without data: tensors on the meta device, of the same sizes and strides.
c10::IValue as_meta(const c10::IValue &value) {
  const c10::Device meta(c10::kMeta);
  if (value.isTensor() && value.toTensor().defined()) {
    const at::Tensor tensor = value.toTensor();
    at::Tensor empty = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(meta));
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) empty.unsafeGetTensorImpl()->set_wrapped_number(true);
    return empty;
  }
  if (value.isDevice()) return meta;
  if (value.isGenerator()) return c10::IValue();
  if (!value.isTensorList() && !value.isOptionalTensorList()) return value;
  c10::impl::GenericList items(value.toList().elementType());
  for (const c10::IValue &item : value.toListRef()) items.push_back(as_meta(item));
  return items;
}

// Does torch have a kernel of this op for tensors without data?
bool has_meta_kernel(const c10::OperatorHandle &op) {
  using c10::DispatchKey;
  for (const DispatchKey key :
       {DispatchKey::Meta, DispatchKey::CompositeExplicitAutograd, DispatchKey::CompositeExplicitAutogradNonFunctional,
        DispatchKey::CompositeImplicitAutograd})
    if (op.hasKernelForDispatchKey(key)) return true;
  return false;
}

} // namespace

// Lowerings check what torch's kernels check; what they forgot shows as a shape or a dtype that does not fit. If torch's kernel
// for tensors without data refuses the arguments as well, its words are the user's answer. Not so for ops that only torch itself
// calls, whose kernels trust their arguments and stumble over them, nor where Python stumbles.
void FlatCall::refuse(tt_status status) const {
  const tt_code code = tt_status_code(status);
  const std::string &name = op_.schema().name();
  const bool checked = !name.starts_with("aten::_") && name.find("backward") == std::string::npos;
  if ((code != TT_MISMATCH && code != TT_INTERNAL) || tt_record_active() || !checked || !has_meta_kernel(op_))
    raise(status);
  try {
    torch::jit::Stack stack;
    for (size_t i = 0; i < op_.schema().arguments().size(); ++i) stack.push_back(as_meta(values_[i]));
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  } catch (const c10::Error &) {
    tt_status_free(status);
    throw;
  } catch (const std::exception &) {
    // Python's own complaint, as of an index out of range
  }
  raise(status);
}

// --- returns ---------------------------------------------------------------------------------------------------------
namespace {

at::Tensor take(tt_results &results, int &next) {
  if (next >= results.count) return {};
  tt_result &result = results.items[next++];
  return result.storage != nullptr ? wrap(result) : at::Tensor();
}

// One return: the next of the results, or an argument, which leaves the stack.
c10::IValue make_return(const Overload &overload, size_t index, c10::IValue *arguments, tt_results &results,
                        int &next) {
  const Overload::ReturnPlan &plan = overload.returns[index];
  switch (plan.kind) {
  case Overload::Return::kFresh: return take(results, next);
  case Overload::Return::kArgument: return std::move(arguments[plan.argument]);
  case Overload::Return::kNumber: ++next; return int64_t{0};
  case Overload::Return::kFreshList: break;
  }
  c10::List<at::Tensor> list;
  const int size = overload.list_size(results.count);
  list.reserve(size);
  for (int i = 0; i < size; ++i) list.push_back(take(results, next));
  return list;
}

} // namespace

void finish(const Overload &overload, tt_results &results, torch::jit::Stack &stack) {
  const size_t first = stack.size() - overload.arg_count, count = overload.returns.size();
  c10::IValue *arguments = stack.data() + first;
  int next = 0;
  if (count == 1) [[likely]] {
    c10::IValue returned = make_return(overload, 0, arguments, results, next);
    stack.resize(first);
    stack.push_back(std::move(returned));
    return;
  }
  torch::jit::Stack returned;
  for (size_t i = 0; i < count; ++i) returned.push_back(make_return(overload, i, arguments, results, next));
  stack.resize(first);
  for (auto &value : returned) stack.push_back(std::move(value));
}

void finish_counted(const Overload &overload, tt_results &results, torch::jit::Stack &stack) {
  int last = results.count - 1;
  const at::Tensor counts = take(results, last);
  --results.count;
  std::vector<int64_t> extents(counts.numel());
  const tt_tensor source = describe(counts);
  TT_CHECK(tt_copy_to_host(&source, extents.data(), nullptr, nullptr));
  finish(overload, results, stack);
  for (auto &value : torch::jit::last(stack, overload.returns.size())) {
    const size_t result = &value - &stack[stack.size() - overload.returns.size()];
    const int64_t dim = extents[2 * result], size = extents[2 * result + 1];
    if (size >= 0 && size != value.toTensor().size(dim)) shorten(value.toTensor(), dim, size);
  }
}

} // namespace torch_tpu
