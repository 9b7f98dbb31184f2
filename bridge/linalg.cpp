// linalg.cpp - what torch's linear algebra reads from results on the host: error codes, and ranks that decide on a shape.
#include <string_view>

#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <torch/library.h>

#include "call.h"
#include "prepare.h"
#include "register.h"

namespace torch_tpu {
namespace {

// The names under which torch's kernels report.
std::string_view reported_name(std::string_view op) {
  if (op == "linalg_cholesky_ex") return "linalg.cholesky_ex";
  if (op == "linalg_inv_ex") return "linalg.inv_ex";
  if (op == "_linalg_solve_ex") return "torch.linalg.solve_ex";
  if (op == "linalg_lu_factor_ex") return "torch.linalg.lu_factor_ex";
  return "torch.linalg.ldl_factor_ex";
}

c10::OperatorHandle handle_of(const Overload &overload) {
  const std::string name = overload.core->name;
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, dot).c_str(),
                                                        dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

at::Tensor checked_cholesky(const at::Tensor &self, bool upper) {
  if (self.numel() == 0) return at::empty_like(self, at::MemoryFormat::Contiguous);
  at::native::squareCheckInputs(self, "cholesky");
  TORCH_CHECK_NOT_IMPLEMENTED(self.is_floating_point() || self.is_complex(), "\"cholesky_cpu\" not implemented for '",
                              self.scalar_type(), "'");
  auto [factor, info] = at::linalg_cholesky_ex(self, upper);
  at::_linalg_check_errors(info, "cholesky", self.dim() == 2);
  return factor;
}

at::Tensor &checked_cholesky_out(const at::Tensor &self, bool upper, at::Tensor &out) {
  TORCH_CHECK(at::canCast(self.scalar_type(), out.scalar_type()), "cholesky: Expected out to be safely castable from ",
              self.scalar_type(), " dtype, but got out with dtype ", out.scalar_type());
  const at::Tensor factor = checked_cholesky(self, upper);
  at::native::resize_output(out, factor.sizes());
  return out.copy_(factor);
}

} // namespace

bool report_errors(const Overload &overload, torch::jit::Stack &stack) {
  c10::IValue &check = stack.back(); // check_errors is the last argument of each
  if (!check.toBool()) return false;
  check = false;
  const auto op = handle_of(overload);
  const bool is_matrix = stack[stack.size() - overload.arg_count].toTensor().dim() == 2;
  op.callBoxed(stack);
  at::_linalg_check_errors(stack.back().toTensor(), reported_name(op.schema().name().substr(6)), is_matrix);
  return true;
}

bool drop_residuals(const Overload &overload, torch::jit::Stack &stack) {
  const size_t first = stack.size() - overload.arg_count;
  const auto driver = stack[first + 3].toOptional<std::string_view>().value_or("");
  if (driver != "gelsd" && driver != "gelss") return false;
  const int64_t columns = stack[first].toTensor().size(-1);
  Results results;
  {
    const auto op = handle_of(overload);
    const FlatCall call(overload, op, stack);
    TORCH_INTERNAL_ASSERT(!call.run(results));
  }
  finish(overload, results, stack);
  c10::IValue &residuals = stack[stack.size() - 3]; // solution, residuals, rank, singular values
  const at::Tensor rank = stack[stack.size() - 2].toTensor();
  if (residuals.toTensor().numel() > 0 && !rank.eq(columns).all().item<bool>())
    residuals = residuals.toTensor().new_empty({0});
  return true;
}

void register_linalg() {
  auto &m = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  m.impl("cholesky", TORCH_FN(checked_cholesky));
  m.impl("cholesky.out", TORCH_FN(checked_cholesky_out));
}

} // namespace torch_tpu
