// scalar.h - device buffers of single numbers.
//
// Learning rates, slice starts and Python numbers are inputs of programs, not constants in them. Most come again and again,
// so the buffers are kept in a direct-mapped table; those that come once leave it soon. Any thread may call.
#ifndef TT_RUN_SCALAR_H_
#define TT_RUN_SCALAR_H_

#include "base/dtype.h"
#include "base/status.h"
#include "op/arg.h"
#include "pjrt/buffer.h"

// A number as the bridge hands it over: `integer` counts for integer and bool dtypes, real and imag for the others.
typedef struct tt_scalar {
  bool is_integer; // the source is an integer or a bool: `integer` is exact
  int64_t integer;
  double real, imag;
} tt_scalar;

tt_scalar tt_scalar_of_arg(const tt_arg *arg);          // INT, BOOL, DOUBLE or COMPLEX
tt_scalar tt_scalar_of_tensor(const tt_tensor *tensor); // a CPU scalar

// A rank-0 buffer holding `value` as `dtype`. The caller owns one reference.
tt_status tt_scalar_buffer(tt_device *device, tt_dtype dtype, const tt_scalar *value, tt_buffer **out_buffer);
// Frees the table's buffers.
void tt_scalar_clear(void);

#endif // TT_RUN_SCALAR_H_
