// compiled.cpp - a graph of torch.compile: one call of the core, whose plan comes from running the graph once while the core
// records.
#include "compiled.h"

#include <map>
#include <string>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/as_strided_native.h>
#include <c10/core/DefaultDtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include "call.h"
#include "status.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

// Where a value that the graph returns comes from.
struct Output {
  enum class Kind { kResult, kArgument, kConstant };
  Kind kind = Kind::kConstant;
  size_t index = 0;     // of the result or of the argument
  bool is_view = false; // of the result's or the argument's storage, else the tensor itself
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  caffe2::TypeMeta dtype;              // a view may have another than what it is a view of, as view_as_real's has
  bool conj = false, negative = false; // torch's lazy bits
  py::object constant;
};

// The arguments of one call as the core reads them.
struct Arguments {
  std::vector<at::Tensor> tensors; // those among the arguments, which they keep alive
  std::vector<tt_tensor> slots;
  std::vector<tt_arg> args;
  int device_index = -1;
};

tt_arg of_number(const py::handle &value) {
  tt_arg arg{};
  if (value.is_none()) {
    arg.kind = TT_ARG_NONE;
  } else if (PyBool_Check(value.ptr())) {
    arg.kind = TT_ARG_BOOL;
    arg.u.integer = value.cast<bool>();
  } else if (PyLong_Check(value.ptr())) {
    arg.kind = TT_ARG_INT;
    arg.u.integer = value.cast<int64_t>();
  } else if (PyFloat_Check(value.ptr())) {
    arg.kind = TT_ARG_DOUBLE;
    arg.u.real = value.cast<double>();
  } else {
    throw py::type_error("a compiled graph takes tensors and numbers, not " +
                         py::str(py::type::of(value)).cast<std::string>());
  }
  return arg;
}

Arguments read_arguments(const py::list &values) {
  Arguments result;
  const size_t count = values.size();
  result.args.reserve(count);
  result.slots.reserve(count);
  result.tensors.reserve(count);
  for (const py::handle value : values) {
    if (!THPVariable_Check(value.ptr())) {
      result.args.push_back(of_number(value));
      continue;
    }
    const at::Tensor &tensor = THPVariable_Unpack(value.ptr());
    tt_arg arg{};
    arg.kind = TT_ARG_TENSOR;
    arg.u.slot = static_cast<int>(result.slots.size());
    result.args.push_back(arg);
    result.slots.emplace_back();
    if (tensor.device().type() == kTPU) {
      describe(*tensor.unsafeGetTensorImpl(), result.slots.back());
      if (result.device_index < 0) result.device_index = result.slots.back().device_index;
    } else {
      TORCH_CHECK(tensor.device().is_cpu() && tensor.dim() == 0,
                  "expected a tensor on tpu or a scalar, but got one of sizes ", tensor.sizes(), " on ",
                  tensor.device());
      describe_cpu_scalar(tensor, result.slots.back());
    }
    result.tensors.push_back(tensor);
  }
  return result;
}

// A graph that AOTAutograd made, whose tensors are on one device: called with a list of its inputs, which it empties.
class CompiledGraph {
public:
  // `overwritten`: the numbers of the arguments that the graph writes at its end.
  CompiledGraph(const std::string &name, int argument_count, bool fast_math, py::object run,
                std::vector<int> overwritten)
      : run_(std::move(run)), overwritten_(std::move(overwritten)),
        overload_(tt_overload_create(nullptr, name.c_str(), TT_FUNCTIONAL, false, argument_count, 0)) {
    if (overload_ == nullptr) throw std::bad_alloc();
    overload_->scalars_are_inputs = true;
    overload_->fast_math = fast_math;
  }

  py::object call(py::list values) {
    Arguments arguments = read_arguments(values);
    tt_call call{};
    call.overload = overload_;
    call.args = arguments.args.data();
    call.arg_count = static_cast<int>(arguments.args.size());
    call.tensors = arguments.slots.data();
    call.tensor_count = static_cast<int>(arguments.slots.size());
    call.device_index = arguments.device_index >= 0 ? arguments.device_index : tt_current_device();
    call.default_dtype = to_dtype(c10::get_default_dtype_as_scalartype());
    call.precision = matmul_precision();
    Results results;
    if (run_core(call, results)) {
      record(call, values, arguments);
      if (run_core(call, results)) TORCH_CHECK(false, overload_->name, ": what was recorded is not there");
    }
    if (PyList_SetSlice(values.ptr(), 0, PY_SSIZE_T_MAX, nullptr) != 0) throw py::error_already_set();
    return take_outputs(results, arguments);
  }

private:
  static std::vector<int64_t> numbers_of(const Arguments &arguments) {
    std::vector<int64_t> numbers;
    for (const tt_arg &arg : arguments.args)
      if (arg.kind == TT_ARG_INT) numbers.push_back(arg.u.integer);
    return numbers;
  }

  static bool run_core(const tt_call &call, Results &results) {
    bool miss = false;
    const py::gil_scoped_release unlocked;
    TT_CHECK(tt_call_run(&call, &results, &miss));
    return miss;
  }

  // Runs the graph op by op; its calls land in one program.
  void record(const tt_call &call, const py::list &values, const Arguments &arguments) {
    TT_CHECK(tt_record_begin(&call));
    try {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      for (const int i : overwritten_) {
        const tt_arg &arg = call.args[i];
        if (arg.kind == TT_ARG_TENSOR) TT_CHECK(tt_record_overwrite(&call.tensors[arg.u.slot]));
      }
      const py::sequence returned = run_(*placeholders(values, call));
      std::vector<at::Tensor> kept; // until the end of the recording
      std::vector<tt_tensor> recorded;
      std::vector<Output> outputs;
      for (const py::handle value : returned) outputs.push_back(describe_output(value, arguments, kept, recorded));
      outputs_.insert_or_assign(numbers_of(arguments), std::move(outputs));
      TT_CHECK(tt_record_end(&call, recorded.data(), static_cast<int>(recorded.size())));
    } catch (...) {
      tt_record_abort();
      throw;
    }
  }

  // The arguments, with a TPU tensor for each CPU scalar.
  static py::list placeholders(const py::list &values, const tt_call &call) {
    py::list result(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const tt_arg &arg = call.args[i];
      result[i] = values[i];
      if (arg.kind != TT_ARG_TENSOR || !call.tensors[arg.u.slot].cpu_scalar) continue;
      tt_result scalar;
      TT_CHECK(tt_record_scalar(&call, arg.u.slot, &scalar));
      result[i] = py::reinterpret_steal<py::object>(THPVariable_Wrap(wrap(scalar)));
    }
    return result;
  }

  static Output describe_output(const py::handle &value, const Arguments &arguments, std::vector<at::Tensor> &kept,
                                std::vector<tt_tensor> &recorded) {
    Output output;
    if (!THPVariable_Check(value.ptr()) || THPVariable_Unpack(value.ptr()).device().type() != kTPU) {
      output.constant = py::reinterpret_borrow<py::object>(value);
      return output;
    }
    const at::Tensor &tensor = THPVariable_Unpack(value.ptr());
    output.sizes = tensor.sizes().vec();
    output.strides = tensor.strides().vec();
    output.offset = tensor.storage_offset();
    output.dtype = tensor.dtype();
    output.conj = tensor.is_conj();
    output.negative = tensor.is_neg();
    for (size_t i = 0; i < arguments.tensors.size(); ++i) {
      if (!arguments.tensors[i].is_alias_of(tensor)) continue;
      output.kind = Output::Kind::kArgument;
      output.index = i;
      output.is_view = arguments.tensors[i].unsafeGetTensorImpl() != tensor.unsafeGetTensorImpl();
      return output;
    }
    output.kind = Output::Kind::kResult;
    output.is_view = true;
    for (size_t i = 0; i < kept.size(); ++i) {
      if (!kept[i].is_alias_of(tensor)) continue;
      output.index = i;
      return output;
    }
    // The storage as a whole, of which this output and perhaps later ones are views.
    const at::Tensor stored = with_bits(tensor, /*conj=*/false, /*negative=*/false);
    const auto itemsize = static_cast<int64_t>(tensor.itemsize());
    const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
    const bool whole =
        stored.is_non_overlapping_and_dense() && stored.storage_offset() == 0 && stored.numel() * itemsize == bytes;
    output.index = kept.size();
    output.is_view = !whole || output.conj || output.negative;
    kept.push_back(whole ? stored : at::native::as_strided_tensorimpl(stored, {bytes / itemsize}, {1}, 0));
    recorded.push_back(torch_tpu::describe(kept.back()));
    return output;
  }

  // The same tensor with torch's lazy bits as given.
  static at::Tensor with_bits(at::Tensor tensor, bool conj, bool negative) {
    if (tensor.is_conj() != conj) tensor = tensor._conj();
    if (tensor.is_neg() != negative) tensor = tensor._neg_view();
    return tensor;
  }

  static at::Tensor view_of(const at::Tensor &base, const Output &output) {
    const c10::DispatchKeySet bits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
    const at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set() - bits, output.dtype);
    at::native::setStrided<int64_t>(view, output.sizes, output.strides, output.offset);
    return with_bits(view, output.conj, output.negative);
  }

  py::object take_outputs(Results &results, const Arguments &arguments) {
    std::vector<at::Tensor> fresh;
    fresh.reserve(results.count);
    for (int i = 0; i < results.count; ++i) fresh.push_back(wrap(results.items[i]));
    const std::vector<Output> &outputs = outputs_.at(numbers_of(arguments));
    py::list list(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Output &output = outputs[i];
      if (output.kind == Output::Kind::kConstant) {
        list[i] = output.constant;
        continue;
      }
      const at::Tensor &base =
          output.kind == Output::Kind::kResult ? fresh[output.index] : arguments.tensors[output.index];
      list[i] = py::reinterpret_steal<py::object>(THPVariable_Wrap(output.is_view ? view_of(base, output) : base));
    }
    return list;
  }

  py::object run_;
  std::vector<int> overwritten_;
  tt_overload *overload_; // lives for ever
  // By the numbers among the arguments, which Dynamo passes for sizes that change.
  std::map<std::vector<int64_t>, std::vector<Output>> outputs_;
};

// as_strided without a trace: what autograd sees is a tensor of its own, not a view.
at::Tensor restride(const at::Tensor &tensor, const std::vector<int64_t> &sizes, const std::vector<int64_t> &strides,
                    int64_t offset) {
  return at::native::as_strided_tensorimpl(tensor, sizes, strides, offset);
}

// The tensor with zeros behind its elements, in larger sizes.
at::Tensor pad(const at::Tensor &tensor, const std::vector<int64_t> &sizes) {
  TORCH_CHECK(tensor.device().type() == kTPU && sizes.size() == static_cast<size_t>(tensor.dim()),
              "expected a tensor on tpu with ", sizes.size(), " dimensions, but got one of sizes ", tensor.sizes(),
              " on ", tensor.device());
  const tt_tensor described = torch_tpu::describe(tensor);
  tt_result result{};
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= sizes[d];
  }
  result.dtype = described.dtype;
  result.rank = static_cast<int>(sizes.size());
  result.sizes = sizes.data();
  result.strides = strides.data();
  result.device_index = described.device_index;
  {
    const py::gil_scoped_release unlocked;
    TT_CHECK(tt_copy_padded(&described, sizes.data(), &result.storage));
  }
  return wrap(result);
}

} // namespace

void define_compiled(py::module_ &m) {
  m.def("_pad", &pad);
  m.def("_restride", &restride);
  py::class_<CompiledGraph>(m, "_CompiledGraph")
      .def(py::init<const std::string &, int, bool, py::object, std::vector<int>>())
      .def("__call__", &CompiledGraph::call);
}

} // namespace torch_tpu
