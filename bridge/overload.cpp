// overload.cpp - reading schemas.
#include "overload.h"

#include <string_view>
#include <unordered_set>

namespace torch_tpu {
namespace {

bool is_number(const c10::TypePtr &type) {
  switch (type->kind()) {
  case c10::TypeKind::NumberType:
  case c10::TypeKind::FloatType: return true;
  case c10::TypeKind::OptionalType:
  case c10::TypeKind::ListType: return is_number(type->containedType(0));
  default: return false;
  }
}

bool is_tensor_list(const c10::TypePtr &type) {
  return type->kind() == c10::TypeKind::ListType && type->containedType(0)->kind() == c10::TypeKind::TensorType;
}

Overload::ReturnPlan plan_return(const c10::FunctionSchema &schema, const c10::Argument &result) {
  using enum Overload::Return;
  if (const auto *alias = result.alias_info())
    for (size_t i = 0; i < schema.arguments().size(); ++i)
      if (const auto *argument = schema.arguments()[i].alias_info(); argument != nullptr && *argument == *alias)
        return {kArgument, static_cast<uint8_t>(i)};
  if (is_tensor_list(result.type())) return {kFreshList, 0};
  return {result.type()->kind() == c10::TypeKind::TensorType ? kFresh : kNumber, 0};
}

// Elementwise rows hold no matrix products, so their calls need not ask torch for the precision (20 ns).
bool may_have_products(const tt_op *row) {
  static const std::unordered_set<std::string_view> elementwise = {
#define TT_OP(name, lower, flags) name,
#define TT_UNARY_OP(name, emit, flags) name,
#define TT_BINARY_OP(name, emit, flags) name,
#include "op/foreach.def"
#include "op/pointwise.def"
#undef TT_OP
#undef TT_UNARY_OP
#undef TT_BINARY_OP
  };
  return row == nullptr || !elementwise.contains(row->name);
}

} // namespace

bool is_written(const c10::Argument &argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool is_output(const c10::Argument &argument) { return argument.kwarg_only() && is_written(argument); }

tt_variant variant_of(const c10::FunctionSchema &schema) {
  const auto &arguments = schema.arguments();
  for (const auto &argument : arguments)
    if (is_output(argument)) return TT_OUT;
  // By the schema, not by the name: __ilshift__ is one too.
  return !arguments.empty() && is_written(arguments[0]) ? TT_IN_PLACE : TT_FUNCTIONAL;
}

int Overload::list_size(int result_count) const {
  int lists = 0, singles = 0;
  for (const auto &plan : returns) {
    lists += plan.kind == Return::kFreshList;
    singles += plan.kind == Return::kFresh || plan.kind == Return::kNumber;
  }
  return lists > 0 ? (result_count - singles) / lists : 0;
}

Overload::Overload(const c10::OperatorHandle &op, const tt_op *row, bool structured) {
  const auto &schema = op.schema();
  counted = row != nullptr && (row->flags & TT_OP_COUNTED) != 0;
  has_products = may_have_products(row);
  prepare = find_prepare(schema);
  arg_count = static_cast<int>(schema.arguments().size());
  for (int i = 0; i < arg_count; ++i) {
    const auto &argument = schema.arguments()[i];
    const uint64_t bit = UINT64_C(1) << i;
    if (is_number(argument.type())) numbers |= bit;
    if (is_written(argument)) written |= bit;
  }
  if (row != nullptr && (row->flags & TT_OP_ONE_IS_STATIC)) ones = numbers;
  for (const auto &result : schema.returns()) returns.push_back(plan_return(schema, result));

  const auto name = c10::toString(op.operator_name());
  core = tt_overload_create(row, name.c_str(), variant_of(schema), structured, arg_count,
                            static_cast<int>(returns.size()));
  TORCH_CHECK_WITH(OutOfMemoryError, core != nullptr, "host memory is exhausted");
  probe = *core;
  probe.structured = true;
}

} // namespace torch_tpu
