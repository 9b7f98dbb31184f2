// exported.h - what torch_tpu._C offers torch.tpu.export and torch.tpu.load_exported.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_tpu {

void define_exported(pybind11::module_ &m);

} // namespace torch_tpu
