// out.c - see out.h.
#include "op/out.h"

#include <string.h>

#include "base/string.h"

// What is taken: the result's own dtype; any that it can be cast to; bool and uint8; any that is not complex.
typedef enum rule { SAME, CASTABLE, LOGICAL, REAL } rule;

static const struct refusal {
  const char *row;
  int result;
  rule rule;
  tt_code code;
  const char *text;
} refusals[] = {
#define TT_OUT(row, result, rule, code, text) {row, result, rule, TT_##code, text},
#include "op/out.def"
};

static const struct computed {
  const char *row, *text;
} computed[] = {
#define TT_OUT(row, result, rule, code, text)
#define TT_OUT_COMPUTED(row, text) {row, text},
#include "op/out.def"
};

static const struct refusal *find(const tt_op *op, int result) {
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; ++i)
    if (refusals[i].result == result && strcmp(refusals[i].row, op->name) == 0) return &refusals[i];
  return NULL;
}

// The status with the text, whose names in braces are replaced.
static tt_status refuse(tt_code code, const char *text, tt_dtype value, tt_dtype out) {
  const struct {
    const char *name, *word;
  } words[] = {{"{value}", tt_dtype_text(value)},
               {"{out}", tt_dtype_text(out)},
               {"{value_cpp}", tt_dtype_type_name(value)},
               {"{out_cpp}", tt_dtype_type_name(out)},
               {"{is_int32}", value == TT_S32 ? "True" : "False"}};
  tt_string line = TT_STRING_INIT;
  while (*text) {
    size_t known = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words && !known; ++i) {
      size_t length = strlen(words[i].name);
      if (strncmp(text, words[i].name, length) != 0) continue;
      tt_string_append(&line, words[i].word);
      known = length;
    }
    if (!known) tt_string_printf(&line, "%c", *text);
    text += known ? known : 1;
  }
  tt_status status = tt_error(code, "%s", tt_string_text(&line));
  tt_string_free(&line);
  return status;
}

static bool takes(rule rule, tt_dtype value, tt_dtype out) {
  switch (rule) {
  case SAME: return value == out;
  case CASTABLE: return tt_dtype_can_cast(value, out);
  case LOGICAL: return out == TT_BOOL || out == TT_U8;
  case REAL: return !tt_dtype_is_complex(out);
  }
  return false;
}

tt_status tt_op_check_out(const tt_op *op, int result, tt_dtype value, tt_dtype out) {
  if (value == out) return TT_SUCCESS;
  const struct refusal *own = find(op, result);
  if (own) return takes(own->rule, value, out) ? TT_SUCCESS : refuse(own->code, own->text, value, out);
  if (op->flags & (TT_OP_EXACT_OUT | TT_OP_OUT_HAS_DTYPE)) // of the latter, one whose dtype argument was given
    return refuse(TT_INVALID_ARGUMENT, "Expected out tensor to have dtype {value_cpp}, but got {out_cpp} instead",
                  value, out);
  if (op->flags & TT_OP_SAME_OUT)
    return refuse(TT_INVALID_ARGUMENT, "Found dtype {out} but expected {value}", value, out);
  if (op->flags & TT_OP_TYPED_OUT)
    return refuse(TT_INVALID_ARGUMENT, "expected scalar type {value} but found {out}", value, out);
  if (takes(CASTABLE, value, out)) return TT_SUCCESS;
  return refuse(TT_INVALID_ARGUMENT, "result type {value} can't be cast to the desired output type {out}", value, out);
}

tt_status tt_op_check_out_computed(const tt_op *op, tt_dtype operand, tt_dtype out) {
  if (!tt_dtype_is_float(operand) || tt_dtype_is_float(out)) return TT_SUCCESS;
  for (size_t i = 0; i < sizeof computed / sizeof *computed; ++i)
    if (strcmp(computed[i].row, op->name) == 0) return refuse(TT_NOT_IMPLEMENTED, computed[i].text, operand, out);
  return TT_SUCCESS;
}
