// overload.h - what an overload's schema says, digested once at registration.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "prepare.h"
#include "run/call.h"

namespace torch_tpu {

// What a schema says of an argument and of an overload.
bool is_written(const c10::Argument &argument);
bool is_output(const c10::Argument &argument); // of an out= variant
tt_variant variant_of(const c10::FunctionSchema &schema);

class Overload {
public:
  // `row` may be NULL: an op without a lowering.
  Overload(const c10::OperatorHandle &op, const tt_op *row, bool structured);

  enum class Return : uint8_t { kFresh, kFreshList, kArgument, kNumber };
  struct ReturnPlan {
    Return kind;
    uint8_t argument; // kArgument: the argument that is handed back
  };

  // How many of a call's results belong to each list that it returns.
  int list_size(int result_count) const;

  tt_overload *core;                // the core's half of this; lives for ever
  tt_overload probe;                // the same plans, but a miss instead of a compilation
  const tt_overload *out = nullptr; // structured: the out= variant that torch's wrapper calls
  int arg_count;
  uint64_t numbers = 0; // bit per argument: Scalar or float
  uint64_t ones = 0;    // bit per argument: a number that is compiled in when it is 1 (TT_OP_ONE_IS_STATIC)
  uint64_t written = 0; // bit per argument: the schema marks it as written
  bool counted;         // the sizes of its results are data (TT_OP_COUNTED)
  bool has_products;    // may hold matrix products: the precision in force matters
  Prepare prepare;      // NULL for most
  std::vector<ReturnPlan> returns;
};

} // namespace torch_tpu
