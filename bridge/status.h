// status.h - a failed tt_status as the exception that Python expects.
#pragma once

#include "base/status.h"

namespace torch_tpu {

// Throws the class that TT_CODES names for the status's code, with its message unchanged, and frees the status.
[[noreturn]] void raise(tt_status status);

inline void check(tt_status status) {
  if (status != nullptr) [[unlikely]]
    raise(status);
}

} // namespace torch_tpu

// Throws if `status` failed.
#define TT_CHECK(status) ::torch_tpu::check(status)
