// exported.cpp - a function of tensors recorded as a program to be written to a file, and such a file as a function of tensors.
#include "exported.h"

#include <memory>
#include <string>
#include <vector>

#include <pybind11/stl.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DefaultDtype.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

#include "call.h"
#include "run/export.h"
#include "run/exported.h"
#include "status.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

// TPU tensors and the core's view of them.
struct Tensors {
  std::vector<at::Tensor> tensors;
  std::vector<tt_tensor> slots;

  explicit Tensors(const py::sequence &values) {
    for (const py::handle value : values) {
      TORCH_CHECK_TYPE(THPVariable_Check(value.ptr()), "expected tensors, but got ",
                       py::str(py::type::of(value)).cast<std::string>());
      tensors.push_back(THPVariable_Unpack(value.ptr()));
      TORCH_CHECK(tensors.back().device().type() == kTPU, "expected tensors on tpu, but got one on ",
                  tensors.back().device());
      slots.push_back(describe(tensors.back()));
    }
  }
};

py::object dtype_object(tt_dtype dtype) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject *>(torch::getTHPDtype(to_scalar_type(dtype))));
}

py::list dims_of(int rank, const int64_t *dims) { return py::cast(std::vector<int64_t>(dims, dims + rank)); }

// --- exporting -------------------------------------------------------------------------------------------------------

py::tuple to_python(const tt_export &program) {
  py::list inputs, outputs;
  for (int i = 0; i < program.input_count; ++i) {
    const tt_export_input &in = program.inputs[i];
    py::object data = py::none();
    if (in.data != nullptr) data = py::bytes(static_cast<const char *>(in.data), static_cast<size_t>(in.byte_size));
    inputs.append(py::make_tuple(in.slot, tt_dtype_hlo(in.dtype), dims_of(in.rank, in.dims), data));
  }
  for (int i = 0; i < program.output_count; ++i) {
    const tt_export_output &out = program.outputs[i];
    outputs.append(py::make_tuple(tt_dtype_hlo(out.dtype), dims_of(out.rank, out.dims), out.message, out.code));
  }
  return py::make_tuple(py::bytes(program.text, program.size), inputs, outputs);
}

// Runs `run` with the tensors once while the core records. Returns the program's text, its inputs (the number of the tensor or
// -1, dtype, shape, bytes of those of -1) and its outputs (dtype, shape, message and code of a check).
py::tuple export_program(const py::sequence &values, const py::object &run) {
  const Tensors arguments(values);
  tt_overload *overload = tt_overload_create(nullptr, "exported program", TT_FUNCTIONAL, false, 0, 0);
  if (overload == nullptr) throw std::bad_alloc();
  tt_call call{};
  call.overload = overload;
  call.tensors = arguments.slots.data();
  call.tensor_count = static_cast<int>(arguments.slots.size());
  call.device_index = tt_current_device();
  call.default_dtype = to_dtype(c10::get_default_dtype_as_scalartype());
  call.precision = matmul_precision();
  TT_CHECK(tt_record_begin(&call));
  std::unique_ptr<tt_export, decltype(&tt_export_free)> program(nullptr, tt_export_free);
  try {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Tensors results(run(*values));
    tt_export *exported = nullptr;
    TT_CHECK(tt_record_export(&call, results.slots.data(), static_cast<int>(results.slots.size()), &exported));
    program.reset(exported);
  } catch (...) {
    tt_record_abort();
    throw;
  }
  return to_python(*program);
}

// --- running ---------------------------------------------------------------------------------------------------------

class Exported {
public:
  Exported(const std::string &folder, int device_index) : program_(nullptr, tt_exported_free) {
    tt_exported *program = nullptr;
    {
      const py::gil_scoped_release unlocked;
      TT_CHECK(tt_exported_load(folder.c_str(), device_index, &program));
    }
    program_.reset(program);
  }

  py::list call(const py::sequence &values) const {
    const Tensors inputs(values);
    Results results;
    {
      const py::gil_scoped_release unlocked;
      TT_CHECK(tt_exported_run(program_.get(), inputs.slots.data(), static_cast<int>(inputs.slots.size()), &results));
    }
    py::list outputs;
    for (int i = 0; i < results.count; ++i)
      outputs.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(wrap(results.items[i]))));
    return outputs;
  }

  py::list inputs() const { return values(tt_exported_input_count(program_.get()), tt_exported_input); }
  py::list outputs() const { return values(tt_exported_output_count(program_.get()), tt_exported_output); }

private:
  // (kind, name, dtype, shape) of each.
  py::list values(int count, const tt_exported_value *(*at)(const tt_exported *, int)) const {
    py::list result;
    for (int i = 0; i < count; ++i) {
      const tt_exported_value &value = *at(program_.get(), i);
      result.append(py::make_tuple(value.kind, value.name, dtype_object(value.dtype), dims_of(value.rank, value.dims)));
    }
    return result;
  }

  std::unique_ptr<tt_exported, decltype(&tt_exported_free)> program_;
};

} // namespace

void define_exported(py::module_ &m) {
  m.def("_export_program", &export_program);
  py::class_<Exported>(m, "_Exported")
      .def(py::init<const std::string &, int>())
      .def("__call__", &Exported::call)
      .def("inputs", &Exported::inputs)
      .def("outputs", &Exported::outputs);
}

} // namespace torch_tpu
