// support.h - ops without a lowering: the decompositions of torch's Python side, and the list of what runs how.
#pragma once

#include <string>
#include <vector>

#include "call.h"
#include "run/trace.h"

using PyObject = struct _object;

namespace torch_tpu {

// The Python callable that maps "aten::name.overload" to a decomposition or None. Takes a reference; NULL removes it.
void set_decomposition_hook(PyObject *hook);
bool has_decomposition(const std::string &name);

// Makes the op's decomposition the plan of `call`, whose arguments are on `stack`: running the call again hits it. False if
// there is no decomposition or it failed, which leaves everything as it was.
bool record_decomposition(const c10::OperatorHandle &op, const Overload &overload, const FlatCall &call,
                          const torch::jit::Stack &stack);

// An op is about to run on the CPU: counts it, and raises or warns as torch.tpu.fallback says. `inputs` lists its tensors.
void announce_fallback(const c10::OperatorHandle &op, const std::string &inputs);

// While an op runs on the CPU: what happens meanwhile is its doing (run/trace.h). `name` must live until the end.
class FallbackScope {
public:
  explicit FallbackScope(const char *name) { tt_fallback_begin(name, &scope_); }
  ~FallbackScope() { tt_fallback_end(&scope_); }
  FallbackScope(const FallbackScope &) = delete;
  FallbackScope &operator=(const FallbackScope &) = delete;

private:
  tt_fallback_scope scope_;
};

// An overload of aten: how it runs ("lowered", "composite", "decomposed", "CPU" or "none") and, where a row of the core's table
// lowers it, the row's name; else "".
struct SupportedOp {
  std::string name, how, row;
};
std::vector<SupportedOp> supported_ops(); // all of them

// An overload of aten that runs on the CPU for tensors of a sparse layout, "COO" or "compressed".
struct SparseOp {
  std::string name, layout;
};
const std::vector<SparseOp> &sparse_ops_on_cpu();

} // namespace torch_tpu
