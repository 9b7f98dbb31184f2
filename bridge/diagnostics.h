// diagnostics.h - what torch_tpu._C offers torch.tpu.explain, set_log, forbid_compiles, forbid_waits and the progress line.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_tpu {

void define_diagnostics(pybind11::module_ &m);

} // namespace torch_tpu
