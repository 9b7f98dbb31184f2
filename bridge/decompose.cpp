// decompose.cpp - runs a decomposition written in Python while the core records it.
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include "status.h"
#include "support.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

PyObject *decomposition_hook = nullptr; // under the GIL

py::object find(const std::string &name) {
  return decomposition_hook != nullptr ? py::handle(decomposition_hook)(name) : py::none();
}

// Schemas carry dtypes, layouts and memory formats as int; Python has classes for them.
py::object to_python(const c10::Argument &argument, const c10::IValue &value) {
  auto type = argument.real_type();
  if (type->kind() == c10::TypeKind::OptionalType) type = type->containedType(0);
  if (value.isInt() && type->kind() == c10::TypeKind::ScalarTypeType)
    return py::reinterpret_borrow<py::object>(
        reinterpret_cast<PyObject *>(torch::getTHPDtype(static_cast<c10::ScalarType>(value.toInt()))));
  if (value.isInt() && type->kind() == c10::TypeKind::LayoutType)
    return py::reinterpret_borrow<py::object>(
        reinterpret_cast<PyObject *>(torch::getTHPLayout(static_cast<c10::Layout>(value.toInt()))));
  if (value.isInt() && type->kind() == c10::TypeKind::MemoryFormatType)
    return py::reinterpret_borrow<py::object>(
        torch::utils::getTHPMemoryFormat(static_cast<c10::MemoryFormat>(value.toInt())));
  return torch::jit::toPyObject(value);
}

py::object call_python(const py::object &function, const c10::FunctionSchema &schema, const torch::jit::Stack &stack) {
  py::list positional;
  py::dict keywords;
  const auto values = torch::jit::last(stack, schema.arguments().size());
  for (size_t i = 0; i < values.size(); ++i) {
    const auto &argument = schema.arguments()[i];
    if (argument.kwarg_only())
      keywords[argument.name().c_str()] = to_python(argument, values[i]);
    else
      positional.append(to_python(argument, values[i]));
  }
  return function(*positional, **keywords);
}

torch::jit::Stack from_python(const c10::FunctionSchema &schema, const py::object &object) {
  const auto &returns = schema.returns();
  torch::jit::Stack values;
  if (returns.size() == 1) {
    values.push_back(torch::jit::toIValue(object, returns[0].type()));
  } else if (returns.size() > 1) {
    const auto items = py::cast<py::sequence>(object);
    TORCH_CHECK(items.size() == returns.size(), schema.name(), ": its decomposition returns ", items.size(),
                " values, not ", returns.size());
    for (size_t i = 0; i < returns.size(); ++i) values.push_back(torch::jit::toIValue(items[i], returns[i].type()));
  }
  return values;
}

void append_tensors(const c10::IValue &value, std::vector<tt_tensor> &tensors) {
  if (value.isTensor() && value.toTensor().defined()) tensors.push_back(describe(value.toTensor()));
  if (value.isTensorList())
    for (const c10::IValue &item : value.toListRef()) append_tensors(item, tensors);
}

// The ops whose decompositions this thread is running, innermost first: some lead back to themselves.
struct Active {
  const Overload &overload;
  const Active *outer;
};
thread_local const Active *active = nullptr;

bool is_active(const Overload &overload) {
  for (const Active *each = active; each != nullptr; each = each->outer)
    if (&each->overload == &overload) return true;
  return false;
}

// From tt_record_begin to tt_record_end; aborts on the way out if that did not come.
class Recording {
public:
  Recording(const Overload &overload, const tt_call &call) : call_(call), active_{overload, active} {
    TT_CHECK(tt_record_begin(&call));
    active = &active_;
  }
  ~Recording() {
    active = active_.outer;
    if (!ended_) tt_record_abort();
  }
  void end(const std::vector<tt_tensor> &results) {
    ended_ = true;
    TT_CHECK(tt_record_end(&call_, results.data(), static_cast<int>(results.size())));
  }

private:
  const tt_call &call_;
  const Active active_;
  bool ended_ = false;
};

} // namespace

void set_decomposition_hook(PyObject *hook) {
  Py_XINCREF(hook);
  Py_XDECREF(std::exchange(decomposition_hook, hook));
}

bool has_decomposition(const std::string &name) {
  const py::gil_scoped_acquire gil;
  return !find(name).is_none();
}

bool record_decomposition(const c10::OperatorHandle &op, const Overload &overload, const FlatCall &call,
                          const torch::jit::Stack &stack) {
  if (is_active(overload)) return false;
  const py::gil_scoped_acquire gil;
  const py::object function = find(overload.core->name);
  if (function.is_none()) return false;
  try {
    Recording recording(overload, call.core);
    const auto returned = from_python(op.schema(), call_python(function, op.schema(), stack));
    std::vector<tt_tensor> results;
    if (overload.core->variant == TT_FUNCTIONAL)
      for (const auto &value : returned) append_tensors(value, results);
    recording.end(results);
    return true;
  } catch (py::error_already_set &error) {
    if (error.matches(PyExc_KeyboardInterrupt)) throw;
    return false; // what it dislikes, the CPU's kernel does or reports in torch's own words
  } catch (const Forbidden &) {
    throw;
  } catch (const c10::Error &) {
    return false;
  }
}

} // namespace torch_tpu
