// status.cpp - the classes of torch's exceptions, by code.
#include "status.h"

#include <string>

#include <c10/util/Exception.h>

namespace torch_tpu {

void raise(tt_status status) {
  const tt_code code = tt_status_code(status);
  const std::string message = tt_status_message(status);
  tt_status_free(status);
  switch (code) {
  case TT_VALUE: TORCH_CHECK_VALUE(false, message);
  case TT_TYPE: TORCH_CHECK_TYPE(false, message);
  case TT_INDEX: TORCH_CHECK_INDEX(false, message);
  case TT_NOT_IMPLEMENTED: TORCH_CHECK_NOT_IMPLEMENTED(false, message);
  case TT_LINALG: TORCH_CHECK_LINALG(false, message);
  case TT_OUT_OF_MEMORY: TORCH_CHECK_WITH(OutOfMemoryError, false, message);
  default: TORCH_CHECK(false, message);
  }
}

} // namespace torch_tpu
