// status.cpp - the classes of torch's exceptions, by code.
#include "status.h"

#include <optional>
#include <string>

#include <torch/csrc/Exceptions.h>

namespace torch_tpu {
namespace {

thread_local std::optional<python_error> kept_error;

} // namespace

tt_status keep_python_error() {
  kept_error.emplace();
  kept_error->persist();
  return tt_error(TT_PYTHON, "%s", kept_error->what());
}

void raise(tt_status status) {
  const tt_code code = tt_status_code(status);
  const std::string message = tt_status_message(status);
  tt_status_told(status);
  tt_status_free(status);
  switch (code) {
  case TT_VALUE: TORCH_CHECK_VALUE(false, message);
  case TT_TYPE: TORCH_CHECK_TYPE(false, message);
  case TT_INDEX: TORCH_CHECK_INDEX(false, message);
  case TT_NOT_IMPLEMENTED: TORCH_CHECK_NOT_IMPLEMENTED(false, message);
  case TT_LINALG: TORCH_CHECK_LINALG(false, message);
  case TT_FORBIDDEN: throw Forbidden({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message);
  case TT_PYTHON:
    if (kept_error) {
      python_error error = std::move(*kept_error);
      kept_error.reset();
      throw error;
    }
    TORCH_CHECK(false, message); // of another thread
  case TT_OUT_OF_MEMORY: TORCH_CHECK_WITH(OutOfMemoryError, false, message);
  default: TORCH_CHECK(false, message);
  }
}

} // namespace torch_tpu
