// control_flow.cpp - loops and branches in a program being recorded: Python functions run once and become regions of it.
#include "control_flow.h"

#include <vector>

#include <torch/csrc/autograd/python_variable.h>

#include "call.h"
#include "status.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

// Tensors of one TPU as the core reads them.
struct Tensors {
  explicit Tensors(const py::sequence &values) {
    tensors.reserve(values.size());
    described.reserve(values.size());
    for (const py::handle value : values) {
      TORCH_CHECK_TYPE(THPVariable_Check(value.ptr()), "expected tensors in control flow, but got ",
                       py::str(py::type::of(value)).cast<std::string>());
      const at::Tensor &tensor = THPVariable_Unpack(value.ptr());
      TORCH_CHECK(tensor.device().type() == kTPU, "expected tensors on tpu in control flow, but got one on ",
                  tensor.device());
      tensors.push_back(tensor);
      described.push_back(describe(tensor));
    }
  }
  int count() const { return static_cast<int>(described.size()); }
  int device_index() const { return described.empty() ? tt_current_device() : described[0].device_index; }

  std::vector<at::Tensor> tensors; // kept alive
  std::vector<tt_tensor> described;
};

py::list take(Results &results) {
  py::list list(results.count);
  for (int i = 0; i < results.count; ++i)
    list[i] = py::reinterpret_steal<py::object>(THPVariable_Wrap(wrap(results.items[i])));
  return list;
}

// Runs `function` on arguments like these; what it records becomes a region.
tt_region *record_region(int device_index, const std::vector<tt_tensor> &likes, const py::object &function) {
  Results arguments;
  TT_CHECK(tt_region_begin(device_index, likes.data(), static_cast<int>(likes.size()), &arguments));
  try {
    const Tensors given(py::sequence(function(*take(arguments))));
    tt_region *region = nullptr;
    TT_CHECK(tt_region_end(given.described.data(), given.count(), &region));
    return region;
  } catch (...) {
    tt_region_abort();
    throw;
  }
}

py::list record_while(const py::object &condition, const py::object &body, const py::sequence &carried) {
  const Tensors initial(carried);
  const int device = initial.device_index();
  const tt_region *goes_on = record_region(device, initial.described, condition);
  const tt_region *step = record_region(device, initial.described, body);
  Results results;
  TT_CHECK(tt_record_while(device, goes_on, step, initial.described.data(), initial.count(), &results));
  return take(results);
}

py::list record_case(const py::object &index, const py::sequence &branches) {
  const Tensors number(py::make_tuple(index));
  std::vector<tt_region *> regions;
  regions.reserve(branches.size());
  for (const py::handle branch : branches)
    regions.push_back(record_region(number.device_index(), {}, py::reinterpret_borrow<py::object>(branch)));
  TORCH_CHECK(!regions.empty(), "expected branches");
  Results results;
  TT_CHECK(tt_record_case(number.described.data(), regions.data(), static_cast<int>(regions.size()), &results));
  return take(results);
}

// The tensor's elements along its first dimension, described.
tt_tensor element_of(const tt_tensor &tensor) {
  TORCH_CHECK_INDEX(tensor.rank > 0, "expected a tensor with dimensions to scan");
  tt_tensor element = tensor;
  ++element.sizes;
  ++element.strides;
  --element.rank;
  return element;
}

py::list record_scan(const py::object &body, int64_t length, const py::sequence &carried, const py::sequence &xs) {
  const Tensors initial(carried), scanned(xs);
  const int device = initial.count() != 0 ? initial.device_index() : scanned.device_index();
  std::vector<tt_tensor> likes = initial.described;
  for (const tt_tensor &x : scanned.described) likes.push_back(element_of(x));
  const tt_region *step = record_region(device, likes, body);
  Results results;
  TT_CHECK(tt_record_scan(device, step, length, initial.described.data(), initial.count(), scanned.described.data(),
                          scanned.count(), &results));
  return take(results);
}

} // namespace

void define_control_flow(py::module_ &m) {
  m.def("_record_active", &tt_record_active);
  m.def("_record_while", &record_while);
  m.def("_record_case", &record_case);
  m.def("_record_scan", &record_scan);
}

} // namespace torch_tpu
