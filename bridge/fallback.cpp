// fallback.cpp - an op without a kernel: a plan of its decomposition, else its decomposition, else the CPU.
#include <memory>
#include <mutex>
#include <unordered_map>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

#include "generator.h"
#include "register.h"
#include "support.h"

namespace torch_tpu {
namespace {

struct Unlowered {
  explicit Unlowered(const c10::OperatorHandle &op)
      : name(c10::toString(op.operator_name())), overload(op, nullptr, false) {}

  std::string name;
  Overload overload;
  bool try_decomposition = true;
  bool warned = false;
};

// Made on first use, kept for ever.
Unlowered &unlowered(const c10::OperatorHandle &op) {
  static auto &lock = *new std::mutex;
  static auto &ops = *new std::unordered_map<c10::OperatorName, std::unique_ptr<Unlowered>>;
  const std::lock_guard hold(lock);
  auto &slot = ops[op.operator_name()];
  if (!slot) slot = std::make_unique<Unlowered>(op);
  return *slot;
}

std::string describe_inputs(const FlatCall &call) {
  std::ostringstream text;
  for (int i = 0; i < call.core.tensor_count; ++i) {
    const tt_tensor &tensor = call.core.tensors[i];
    text << (i > 0 ? ", " : "") << tt_dtype_text(tensor.dtype) << " "
         << c10::IntArrayRef(tensor.sizes, static_cast<size_t>(tensor.rank));
  }
  return text.str();
}

// CPU kernels take CPU generators: one whose seed follows from the TPU generator's state stands in.
void replace_generators(const c10::OperatorHandle &op, int device_index, torch::jit::Stack &stack) {
  const auto &arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (*arguments[i].type() != *c10::OptionalType::create(c10::GeneratorType::get())) continue;
    c10::IValue &value = stack[stack.size() - arguments.size() + i];
    tt_generator *generator = value.isNone()
                                  ? generator_of(default_generator(static_cast<c10::DeviceIndex>(device_index)))
                                  : generator_of(value.toGenerator());
    uint64_t state[2];
    tt_generator_advance(generator, 4, state);
    value = at::detail::createCPUGenerator(state[0] + 0x9e3779b97f4a7c15 * state[1]);
  }
}

// torch sends the results to the device of the first tensor argument, which may be a CPU scalar.
void move_to_device(c10::Device device, c10::ArrayRef<bool> is_argument, torch::jit::Stack &stack) {
  for (size_t i = 0; i < is_argument.size(); ++i) {
    c10::IValue &value = stack[stack.size() - is_argument.size() + i];
    if (!is_argument[i] && value.isTensor() && value.toTensor().defined()) value = value.toTensor().to(device);
  }
}

void run_on_cpu(const c10::OperatorHandle &op, const Overload &overload, int device_index, torch::jit::Stack &stack) {
  replace_generators(op, device_index, stack);
  at::native::cpu_fallback(op, &stack);
  c10::SmallVector<bool, 4> is_argument;
  for (const auto &plan : overload.returns) is_argument.push_back(plan.kind == Overload::Return::kArgument);
  move_to_device({kTPU, static_cast<c10::DeviceIndex>(device_index)}, is_argument, stack);
}

void fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  Unlowered &entry = unlowered(op);
  if (entry.overload.prepare != nullptr && entry.overload.prepare(entry.overload, *stack)) return;
  FlatCall call(entry.overload, op, *stack);
  Results results;
  if (!call.run(results)) return finish(entry.overload, results, *stack);
  if (entry.try_decomposition && record_decomposition(op, entry.overload, call, *stack) && !call.run(results))
    return finish(entry.overload, results, *stack);
  TORCH_CHECK_NOT_IMPLEMENTED(!tt_record_active(), entry.name,
                              " is not lowered for TPU and cannot be part of a program");
  announce_fallback(op, describe_inputs(call));
  const FallbackScope scope(entry.name.c_str());
  run_on_cpu(op, entry.overload, call.core.device_index, *stack);
  entry.try_decomposition = false; // the call was sound, so the decomposition (if any) is of no use here
}

} // namespace

void announce_fallback(const c10::OperatorHandle &op, const std::string &inputs) {
  Unlowered &entry = unlowered(op);
  tt_count_fallback(entry.name.c_str());
  const tt_fallback policy = tt_get_fallback();
  if (policy == TT_FALLBACK_ALLOW || (policy == TT_FALLBACK_WARN && entry.warned)) return;
  TORCH_CHECK_NOT_IMPLEMENTED(policy != TT_FALLBACK_ERROR, entry.name, " is not lowered for TPU (inputs: ", inputs,
                              "). torch.tpu.fallback = 'warn' or 'allow' lets it run on the CPU.");
  entry.warned = true;
  TORCH_WARN(
      entry.name, " is not lowered for TPU; it runs on the CPU (inputs: ", inputs,
      "). This copies its tensors to the host and back each time. torch.tpu.fallback = 'error' turns this into an "
      "error, 'allow' silences it.");
}

void register_fallback() {
  auto &library = *new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

} // namespace torch_tpu
