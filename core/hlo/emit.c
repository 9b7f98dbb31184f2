// emit.c - printing of values, types, attributes and regions; see internal.h.
#include "hlo/internal.h"

void tt_emit_value(tt_builder *b, const tt_value *x) {
  tt_string_append_n(&b->body, "%", 1);
  tt_string_append_i64(&b->body, x->id);
  if (x->sub < 0) return;
  tt_string_append_n(&b->body, "#", 1);
  tt_string_append_i64(&b->body, x->sub);
}

void tt_emit_values(tt_builder *b, const char *before, int count, tt_value *const *xs) {
  tt_emit(b, before);
  for (int i = 0; i < count; ++i) {
    if (i > 0) tt_string_append_n(&b->body, ", ", 2);
    tt_emit_value(b, xs[i]);
  }
}

void tt_emit_type(tt_string *text, const tt_value *x) {
  tt_string_append_n(text, "tensor<", 7);
  for (int i = 0; i < x->rank; ++i) {
    tt_string_append_i64(text, x->dims[i]);
    tt_string_append_n(text, "x", 1);
  }
  tt_string_append(text, tt_dtype_hlo(x->dtype));
  tt_string_append_n(text, ">", 1);
}

void tt_emit_types(tt_builder *b, int count, tt_value *const *xs) {
  for (int i = 0; i < count; ++i) {
    if (i > 0) tt_string_append_n(&b->body, ", ", 2);
    tt_emit_type(&b->body, xs[i]);
  }
}

// `values` are int64_t (`wide`) or int.
static void emit_numbers(tt_builder *b, const char *open, int count, const void *values, bool wide, const char *close) {
  tt_emit(b, open);
  for (int i = 0; i < count; ++i) {
    if (i > 0) tt_emit(b, ", ");
    tt_emit_i64(b, wide ? ((const int64_t *)values)[i] : ((const int *)values)[i]);
  }
  tt_emit(b, close);
}

void tt_emit_i64s(tt_builder *b, const char *before, int count, const int64_t *values) {
  tt_emit(b, before);
  emit_numbers(b, "[", count, values, true, "]");
}

void tt_emit_ints(tt_builder *b, const char *before, int count, const int *values) {
  tt_emit(b, before);
  emit_numbers(b, "[", count, values, false, "]");
}

void tt_emit_array(tt_builder *b, const char *before, int count, const int64_t *values) {
  tt_emit(b, before);
  emit_numbers(b, count > 0 ? "array<i64: " : "array<i64", count, values, true, ">");
}

void tt_emit_bool(tt_builder *b, const char *before, bool value) {
  tt_emit(b, before);
  tt_emit(b, value ? "true" : "false");
}

// --- ops ------------------------------------------------------------------------------------------------------------------

int64_t tt_emit_results(tt_builder *b, const char *op, int count) {
  int64_t id = tt_hlo_next_id(b);
  ++b->op_count;
  tt_emit(b, "%");
  tt_emit_i64(b, id);
  if (count > 1) {
    tt_emit(b, ":");
    tt_emit_i64(b, count);
  }
  tt_emit(b, " = ");
  tt_emit(b, op);
  return id;
}

tt_value *tt_emit_result(tt_builder *b, const char *op, tt_dtype dtype, int rank, const int64_t *dims) {
  int64_t id = tt_emit_results(b, op, 1);
  return tt_hlo_value(b, dtype, rank, dims, id, -1);
}

tt_value *tt_emit_signature(tt_builder *b, int count, tt_value *const *operands, tt_value *result) {
  tt_emit_signature_n(b, count, operands, 1, &result);
  return result;
}

void tt_emit_signature_n(tt_builder *b, int count, tt_value *const *operands, int result_count,
                         tt_value *const *results) {
  tt_emit(b, " : (");
  tt_emit_types(b, count, operands);
  tt_emit(b, result_count == 1 ? ") -> " : ") -> (");
  tt_emit_types(b, result_count, results);
  tt_emit(b, result_count == 1 ? "\n" : ")\n");
}

// --- regions --------------------------------------------------------------------------------------------------------------

tt_value *tt_hlo_scalar_type(tt_builder *b, tt_dtype dtype) { return tt_hlo_value(b, dtype, 0, NULL, -1, -1); }

static void emit_block_arguments(tt_builder *b, int count, tt_value *const *arguments) {
  tt_emit(b, "{\n^bb0");
  for (int i = 0; i < count; ++i) {
    tt_emit(b, i == 0 ? "(" : ", ");
    tt_emit_value(b, arguments[i]);
    tt_emit(b, ": ");
    tt_emit_type(&b->body, arguments[i]);
  }
  tt_emit(b, count == 0 ? ":\n" : "):\n");
}

static bool check_results(tt_builder *b, const char *op, int count, tt_value *const *results, tt_value *const *wanted) {
  if (!TT_HLO_READY_N(b, op, count, results)) return false;
  for (int i = 0; i < count; ++i) {
    if (tt_hlo_same_type(results[i], wanted[i])) continue;
    TT_HLO_REFUSE(b, op,
                  TT_HLO_TEXT(b, "result %d of the region is not of type %s", i, tt_hlo_value_text(b, wanted[i])),
                  results[i]);
    return false;
  }
  return true;
}

void tt_emit_region(tt_builder *b, const char *op, int argument_count, tt_value *const *likes, int result_count,
                    tt_value *const *wanted, tt_body body, void *user) {
  tt_value **arguments = tt_hlo_allocate(b, (size_t)argument_count + 1, sizeof *arguments);
  tt_value **results = tt_hlo_allocate(b, (size_t)result_count, sizeof *results);
  for (int i = 0; i < argument_count && !b->failed; ++i)
    arguments[i] = tt_hlo_value(b, likes[i]->dtype, likes[i]->rank, likes[i]->dims, tt_hlo_next_id(b), -1);
  if (b->failed) return; // before the body runs, so that it never sees a NULL argument
  emit_block_arguments(b, argument_count, arguments);
  body(b, arguments, results, user);
  if (!check_results(b, op, result_count, results, wanted)) return;
  tt_emit(b, "stablehlo.return");
  tt_emit_values(b, " ", result_count, results);
  tt_emit(b, " : ");
  tt_emit_types(b, result_count, results);
  tt_emit(b, "\n}");
}

void tt_hlo_combine_body(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  results[0] = tt_hlo_binary(b, user, arguments[0], arguments[1]);
}
