// status.h - a failed tt_status as the exception that Python expects.
#pragma once

#include <c10/util/Exception.h>

#include "base/status.h"

namespace torch_tpu {

// What a compile or a host wait raises where the user forbids it: nobody may take it for a refusal of the arguments.
class Forbidden final : public c10::Error {
public:
  using c10::Error::Error;
};

// Throws the class that TT_CODES names for the status's code, with its message unchanged, and frees the status.
[[noreturn]] void raise(tt_status status);

inline void check(tt_status status) {
  if (status != nullptr) [[unlikely]]
    raise(status);
}

// Keeps the Python exception that is set on this thread, which holds the GIL, for `raise` of the TT_PYTHON that is returned.
tt_status keep_python_error();

} // namespace torch_tpu

// Throws if `status` failed.
#define TT_CHECK(status) ::torch_tpu::check(status)
