// kernel.cpp - flattens the dispatcher's stack, calls the core, wraps what comes back. The hot path of every op.
#include "kernel.h"

#include <string_view>
#include <unordered_set>

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <c10/core/DefaultDtype.h>

#include "generator.h"
#include "status.h"

namespace torch_tpu {

// --- overloads -------------------------------------------------------------------------------------------------------------
namespace {

bool is_number(const c10::TypePtr &type) {
  switch (type->kind()) {
  case c10::TypeKind::NumberType:
  case c10::TypeKind::FloatType: return true;
  case c10::TypeKind::OptionalType:
  case c10::TypeKind::ListType: return is_number(type->containedType(0));
  default: return false;
  }
}

bool is_tensor_list(const c10::TypePtr &type) {
  return type->kind() == c10::TypeKind::ListType && type->containedType(0)->kind() == c10::TypeKind::TensorType;
}

Overload::ReturnPlan plan_return(const c10::FunctionSchema &schema, const c10::Argument &result) {
  using enum Overload::Return;
  if (const auto *alias = result.alias_info())
    for (size_t i = 0; i < schema.arguments().size(); ++i)
      if (const auto *argument = schema.arguments()[i].alias_info(); argument != nullptr && *argument == *alias)
        return {kArgument, static_cast<uint8_t>(i)};
  if (is_tensor_list(result.type())) return {kFreshList, 0};
  return {result.type()->kind() == c10::TypeKind::TensorType ? kFresh : kNumber, 0};
}

// Elementwise rows hold no matrix products, so their calls need not ask torch for the precision (20 ns).
bool may_have_products(const tt_op *row) {
  static const std::unordered_set<std::string_view> elementwise = {
#define TT_OP(name, lower, flags) name,
#define TT_UNARY_OP(name, emit, flags) name,
#define TT_BINARY_OP(name, emit, flags) name,
#include "op/foreach.def"
#include "op/pointwise.def"
#undef TT_OP
#undef TT_UNARY_OP
#undef TT_BINARY_OP
  };
  return row == nullptr || !elementwise.contains(row->name);
}

} // namespace

bool is_written(const c10::Argument &argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool is_output(const c10::Argument &argument) { return argument.kwarg_only() && is_written(argument); }

tt_variant variant_of(const c10::FunctionSchema &schema) {
  const auto &arguments = schema.arguments();
  for (const auto &argument : arguments)
    if (is_output(argument)) return TT_OUT;
  // By the schema, not by the name: __ilshift__ is one too.
  return !arguments.empty() && is_written(arguments[0]) ? TT_IN_PLACE : TT_FUNCTIONAL;
}

int Overload::list_size(int result_count) const {
  int lists = 0, singles = 0;
  for (const auto &plan : returns) {
    lists += plan.kind == Return::kFreshList;
    singles += plan.kind == Return::kFresh || plan.kind == Return::kNumber;
  }
  return lists > 0 ? (result_count - singles) / lists : 0;
}

Overload::Overload(const c10::OperatorHandle &op, const tt_op *row, bool structured) {
  const auto &schema = op.schema();
  has_products = may_have_products(row);
  prepare = find_prepare(schema);
  arg_count = static_cast<int>(schema.arguments().size());
  for (int i = 0; i < arg_count; ++i) {
    const auto &argument = schema.arguments()[i];
    const uint64_t bit = UINT64_C(1) << i;
    if (is_number(argument.type())) numbers |= bit;
    if (is_written(argument)) written |= bit;
  }
  if (row != nullptr && (row->flags & TT_OP_ONE_IS_STATIC)) ones = numbers;
  for (const auto &result : schema.returns()) returns.push_back(plan_return(schema, result));

  const auto name = c10::toString(op.operator_name());
  core = tt_overload_create(row, name.c_str(), variant_of(schema), structured, arg_count, static_cast<int>(returns.size()));
  TORCH_CHECK_WITH(OutOfMemoryError, core != nullptr, "host memory is exhausted");
  probe = *core;
  probe.structured = true;
}

// --- flattening ------------------------------------------------------------------------------------------------------------
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

FlatCall::FlatCall(const Overload &overload, const c10::OperatorHandle &op, const torch::jit::Stack &stack) : op_(op) {
  const int count = overload.arg_count;
  const c10::IValue *values = stack.data() + stack.size() - count;
  args_.resize_for_overwrite(count);
  for (argument_ = 0; argument_ < count; ++argument_) {
    add(values[argument_], args_[argument_], overload.numbers >> argument_ & 1, overload.written >> argument_ & 1);
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
  const c10::ScalarType type = tensor.scalar_type();
  slot = {};
  slot.dtype = to_dtype(type);
  slot.cpu_scalar = true;
  slot.wrapped_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  slot.defined = true;
  if (slot.dtype == TT_DTYPE_NONE) raise_unsupported_dtype("tpu", type);
  const c10::Scalar value = load_scalar(type, tensor.const_data_ptr());
  if (type == c10::ScalarType::UInt64) {
    slot.integer = static_cast<int64_t>(value.toUInt64());
  } else if (value.isIntegral(/*includeBool=*/true)) {
    slot.integer = value.toLong();
  } else {
    slot.real = value.toComplexDouble().real();
    slot.imag = value.toComplexDouble().imag();
  }
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
  TT_CHECK(tt_call_run(&core, &results, &miss));
  return miss;
}

// --- results ---------------------------------------------------------------------------------------------------------------
void finish(const Overload &overload, tt_results &results, torch::jit::Stack &stack) {
  const size_t first = stack.size() - overload.arg_count;
  auto take = [&results, next = 0]() mutable -> at::Tensor {
    if (next >= results.count) return {};
    tt_result &result = results.items[next++];
    return result.storage != nullptr ? wrap(result) : at::Tensor();
  };

  c10::SmallVector<c10::IValue, 4> returned;
  for (const auto &plan : overload.returns) {
    switch (plan.kind) {
    case Overload::Return::kFresh: returned.emplace_back(take()); break;
    case Overload::Return::kArgument: returned.push_back(std::move(stack[first + plan.argument])); break;
    case Overload::Return::kNumber:
      take();
      returned.emplace_back(int64_t{0});
      break;
    case Overload::Return::kFreshList: {
      c10::List<at::Tensor> list;
      list.reserve(overload.list_size(results.count));
      for (int i = overload.list_size(results.count); i > 0; --i) list.push_back(take());
      returned.emplace_back(std::move(list));
    }
    }
  }
  stack.resize(first);
  for (auto &value : returned) stack.push_back(std::move(value));
}

// --- kernels ---------------------------------------------------------------------------------------------------------------
namespace {

// The out= variant that this thread's structured wrapper is about to call with outputs of its own making.
thread_local const tt_overload *expected_out = nullptr;

class ExpectOut {
 public:
  explicit ExpectOut(const tt_overload *out) : before_(std::exchange(expected_out, out)) {}
  ~ExpectOut() { expected_out = before_; }
  ExpectOut(const ExpectOut &) = delete;
  ExpectOut &operator=(const ExpectOut &) = delete;

 private:
  const tt_overload *before_;
};

void append_tensors(const c10::IValue &value, c10::SmallVectorImpl<tt_tensor> &tensors) {
  if (value.isTensor() && value.toTensor().defined()) tensors.push_back(describe(value.toTensor()));
  if (value.isTensorList())
    for (const c10::IValue &item : value.toListRef()) append_tensors(item, tensors);
}

// A structured op that meets this signature for the first time: torch's wrapper checks the arguments, makes the outputs and
// calls our out= variant; the core then knows the plan for the next call.
void run_wrapper(const c10::OperatorHandle &op, const Overload &overload, FlatCall &call, torch::jit::Stack &stack) {
  const torch::jit::Stack arguments(stack.end() - overload.arg_count, stack.end()); // `call` borrows from them
  {
    const ExpectOut expect(overload.out);
    op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional, stack);
  }
  c10::SmallVector<tt_tensor, 4> results;
  for (const auto &value : torch::jit::last(stack, overload.returns.size())) append_tensors(value, results);
  tt_call_adopt(&call.core, results.data(), static_cast<int>(results.size()));
}

} // namespace

void Kernel::operator()(const c10::OperatorHandle &op, c10::DispatchKeySet, torch::jit::Stack *stack) {
  if (overload.prepare != nullptr && overload.prepare(overload, *stack)) return;
  FlatCall call(overload, op, *stack);
  Results results;
  if (call.run(results)) return run_wrapper(op, overload, call, *stack);
  finish(overload, results, *stack);
}

OutKernel::OutKernel(const c10::OperatorHandle &op, const tt_op *row, bool structured, const c10::OperatorHandle &functional)
    : overload(op, row, false), structured_(structured), functional_(functional) {
  for (const auto &argument : functional.schema().arguments())
    sources_.push_back(op.schema().argumentIndexWithName(argument.name()).value_or(-1));
}

void OutKernel::operator()(const c10::OperatorHandle &op, c10::DispatchKeySet, torch::jit::Stack *stack) {
  const bool expected = expected_out == overload.core;
  if (overload.prepare != nullptr) overload.prepare(overload, *stack);
  FlatCall call(overload, op, *stack);
  Results results;
  if (expected) {
    const ExpectOut no_more(nullptr);
    call.run(results);
    return finish(overload, results, *stack);
  }
  assert_no_partial_overlap(*stack);
  if (structured_) {
    call.core.overload = &overload.probe; // outputs of these sizes and dtypes came from torch's wrapper before
    if (!call.run(results)) return finish(overload, results, *stack);
  }
  run_functional(*stack);
}

void OutKernel::assert_no_partial_overlap(const torch::jit::Stack &stack) const {
  const auto values = torch::jit::last(stack, overload.arg_count);
  for (int out = 0; out < overload.arg_count; ++out)
    for (int in = 0; in < overload.arg_count; ++in)
      if ((overload.written >> out & 1) && in != out && values[in].isTensor() && values[in].toTensor().defined())
        at::assert_no_partial_overlap(values[out].toTensor(), values[in].toTensor());
}

// The user's own out=: of any size, perhaps of another dtype. Computes the result, then resizes and copies, as torch's
// generated out= variants do.
void OutKernel::run_functional(torch::jit::Stack &stack) const {
  const size_t first = stack.size() - overload.arg_count;
  const auto &returns = overload.returns;
  const at::Tensor &out0 = stack[first + returns[0].argument].toTensor();

  torch::jit::Stack values;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const auto &argument = functional_.schema().arguments()[i];
    if (sources_[i] >= 0)
      values.push_back(stack[first + sources_[i]]);
    else if (argument.name() == "dtype")
      values.emplace_back(out0.scalar_type());
    else if (argument.name() == "device")
      values.emplace_back(out0.device());
    else
      values.emplace_back(argument.default_value().value_or(c10::IValue()));
  }
  functional_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &values);

  torch::jit::Stack returned;
  for (size_t i = 0; i < returns.size(); ++i) {
    const at::Tensor &out = stack[first + returns[i].argument].toTensor(), &value = values[i].toTensor();
    TORCH_CHECK(c10::canCast(value.scalar_type(), out.scalar_type()), "result type ", value.scalar_type(),
                " can't be cast to the desired output type ", out.scalar_type());
    at::native::resize_output(out, value.sizes());
    const tt_tensor target = describe(out), source = describe(value);
    TT_CHECK(tt_copy(&target, &source));
    returned.emplace_back(out);
  }
  torch::jit::drop(stack, overload.arg_count);
  for (auto &value : returned) stack.push_back(std::move(value));
}

} // namespace torch_tpu
