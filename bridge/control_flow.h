// control_flow.h - what torch_tpu._C offers for torch's control flow operators.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_tpu {

void define_control_flow(pybind11::module_ &m);

} // namespace torch_tpu
