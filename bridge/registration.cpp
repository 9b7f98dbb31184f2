// registration.cpp - walks the core's table of ops and registers a kernel for each row and its siblings.
//
// A row names one overload, mostly a functional one. Its in-place and out= siblings are found in torch's schemas: the same
// arguments under the same base name. One lowering serves all.
#include <string>
#include <unordered_map>

#include <torch/library.h>

#include "kernel.h"
#include "register.h"
#include "support.h"

namespace torch_tpu {
namespace {

using c10::DispatchKey;
using c10::FunctionSchema;
using c10::OperatorHandle;

// Every overload of aten, by base name.
class Aten {
public:
  Aten() {
    auto &dispatcher = c10::Dispatcher::singleton();
    for (const auto &name : dispatcher.getAllOpNames())
      if (name.name.starts_with("aten::"))
        if (auto op = dispatcher.findSchema(name)) overloads_[name.name.substr(6)].push_back(*op);
  }

  const std::vector<OperatorHandle> &overloads(const std::string &base) const {
    static const std::vector<OperatorHandle> none;
    const auto found = overloads_.find(base);
    return found != overloads_.end() ? found->second : none;
  }

  std::optional<OperatorHandle> find(const std::string &name) const {
    const size_t dot = name.find('.');
    const auto overload = dot == std::string::npos ? std::string() : name.substr(dot + 1);
    for (const auto &op : overloads(name.substr(0, dot)))
      if (op.schema().overload_name() == overload) return op;
    return std::nullopt;
  }

private:
  std::unordered_map<std::string, std::vector<OperatorHandle>> overloads_;
};

// Arguments that describe a fresh result and that siblings with a given one may lack.
bool is_factory_option(const c10::Argument &argument) {
  const auto &name = argument.name();
  return name == "dtype" || name == "layout" || name == "device" || name == "pin_memory" || name == "memory_format";
}

// Equal arguments in name and type, but for outputs and, unless `exact`, factory options.
bool same_arguments(const FunctionSchema &a, const FunctionSchema &b, bool exact) {
  const auto skip = [exact](const auto &arguments, size_t i) {
    while (i < arguments.size() && (is_output(arguments[i]) || (!exact && is_factory_option(arguments[i])))) ++i;
    return i;
  };
  const auto &x = a.arguments(), &y = b.arguments();
  size_t i = skip(x, 0), j = skip(y, 0);
  for (; i < x.size() && j < y.size(); i = skip(x, i + 1), j = skip(y, j + 1))
    if (x[i].name() != y[j].name() || *x[i].type() != *y[j].type()) return false;
  return i == x.size() && j == y.size();
}

std::optional<OperatorHandle> find_sibling(const Aten &aten, const OperatorHandle &op, tt_variant variant) {
  const std::string base = op.schema().name().substr(6) + (variant == TT_IN_PLACE ? "_" : "");
  for (const bool exact : {true, false}) // norm.ScalarOpt_dim has norm.out and norm.dtype_out
    for (const auto &sibling : aten.overloads(base))
      if (variant_of(sibling.schema()) == variant && same_arguments(op.schema(), sibling.schema(), exact))
        return sibling;
  return std::nullopt;
}

// torch's generated out= variants and true composites already call what we register. Few ops have a composite beside a kernel for
// the CPU; that kernel's checks are those of a row.
bool is_composite(const OperatorHandle &op) {
  return op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}

bool has_wrapper(const OperatorHandle &op) {
  return op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
}

bool returns_only_outputs(const FunctionSchema &schema) {
  for (const auto &argument : schema.arguments())
    if (is_output(argument) && argument.type()->kind() != c10::TypeKind::TensorType) return false;
  return !schema.returns().empty();
}

// Which row lowers an overload; for supported_ops.
std::unordered_map<std::string, const char *> &rows_by_overload() {
  static std::unordered_map<std::string, const char *> rows;
  return rows;
}

class Registration {
public:
  void add_row(const tt_op *row) {
    const auto op = aten_.find(row->name);
    if (!op) {
      TORCH_WARN("torch_tpu: the table of ops names aten::", row->name, ", which this torch does not have");
      return;
    }
    if (variant_of(op->schema()) != TT_FUNCTIONAL) return add_kernel(*op, row, false, nullptr);

    const auto out = find_sibling(aten_, *op, TT_OUT);
    const bool has_out = out && (!is_composite(*out) || out->hasKernelForDispatchKey(DispatchKey::CPU)) &&
                         returns_only_outputs(out->schema());
    const bool structured = has_out && has_wrapper(*op) && !(row->flags & TT_OP_UNSTRUCTURED);
    const tt_overload *out_core = nullptr;
    if (has_out) {
      auto kernel = std::make_unique<OutKernel>(*out, row, structured, *op);
      out_core = kernel->overload.core;
      add(*out, std::move(kernel));
    }
    add_kernel(*op, row, structured, out_core);

    const auto in_place = find_sibling(aten_, *op, TT_IN_PLACE);
    if (in_place && !in_place->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd))
      add_kernel(*in_place, row, structured && has_wrapper(*in_place), out_core);
  }

private:
  void add_kernel(const OperatorHandle &op, const tt_op *row, bool structured, const tt_overload *out) {
    auto kernel = std::make_unique<Kernel>(op, row, structured);
    kernel->overload.out = structured ? out : nullptr;
    add(op, std::move(kernel));
  }

  template <typename AnyKernel>
  void add(const OperatorHandle &op, std::unique_ptr<AnyKernel> kernel) {
    const auto name = c10::toString(op.operator_name());
    if (op.hasKernelForDispatchKey(DispatchKey::PrivateUse1)) return; // another row's, or basics.cpp's
    rows_by_overload()[name] = kernel->overload.core->op->name;
    library_.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
  }

  Aten aten_;
  torch::Library &library_ =
      *new torch::Library(torch::Library::IMPL, "aten", DispatchKey::PrivateUse1, __FILE__, __LINE__);
};

} // namespace

void register_kernels() {
  Registration registration;
  for (int i = 0; i < tt_op_count(); ++i) registration.add_row(tt_op_at(i));
}

// --- the list behind `python -m torch_tpu ops` -----------------------------------------------------------------------
std::vector<SupportedOp> supported_ops() {
  std::vector<SupportedOp> ops;
  auto &dispatcher = c10::Dispatcher::singleton();
  for (const auto &name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || !name.name.starts_with("aten::")) continue;
    const auto text = c10::toString(name);
    const auto *how = op->hasKernelForDispatchKey(DispatchKey::PrivateUse1) ? "lowered"
                      : is_composite(*op) || has_wrapper(*op)               ? "composite"
                      : has_decomposition(text)                             ? "decomposed"
                      : op->hasKernelForDispatchKey(DispatchKey::CPU)       ? "CPU"
                                                                            : "none";
    const auto row = rows_by_overload().find(text);
    ops.push_back({text, how, row != rows_by_overload().end() ? row->second : ""});
  }
  return ops;
}

} // namespace torch_tpu
