// compiled.h - what torch_tpu._C offers the backend of torch.compile.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_tpu {

void define_compiled(pybind11::module_ &m);

} // namespace torch_tpu
