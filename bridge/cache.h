// cache.h - the compile cache's part of torch_tpu._C.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_tpu {

// Tells what threads without Python had to say, by torch's warnings. Costs a load when there is nothing.
void warn_late();
// The same with the GIL, where torch has not called.
void warn_late_in_python();

void define_cache(pybind11::module_ &m);

} // namespace torch_tpu
