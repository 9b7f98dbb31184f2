// table.c - the one table of lowered operators, from op/*.def.
#include <string.h>

#include "op/op.h"

// Declares each lowering and formula once; repeats are harmless.
#define TT_OP(name, lower, flags) void lower(tt_lowering *l);
#define TT_UNARY_OP(name, emit, flags) tt_value *emit(tt_builder *b, tt_value *x);
#define TT_BINARY_OP(name, emit, flags) tt_value *emit(tt_builder *b, tt_value *x, tt_value *y);
#include "op/table.def"

enum {
#define TT_OP(name, lower, flags) +1
#define TT_UNARY_OP(name, emit, flags) +1
#define TT_BINARY_OP(name, emit, flags) +1
  OP_COUNT = 0
#include "op/table.def"
};

// `index` is the row's number, given by the running count of __COUNTER__ from the first row on. __FILE__ is where a macro is
// used, so the .def file.
enum { FIRST = __COUNTER__ + 1 };
static const tt_op table[OP_COUNT + 1] = {
#define TT_OP(name, lower, flags) {name, lower, {NULL}, (flags), __COUNTER__ - FIRST, __FILE__},
#define TT_UNARY_OP(name, formula, flags) {name, tt_lower_unary, {.unary = formula}, (flags), __COUNTER__ - FIRST, __FILE__},
#define TT_BINARY_OP(name, formula, flags) {name, tt_lower_binary, {.binary = formula}, (flags), __COUNTER__ - FIRST, __FILE__},
#include "op/table.def"
    {NULL, NULL, {NULL}, 0, OP_COUNT, NULL},
};

int tt_op_count(void) { return OP_COUNT; }

const tt_op *tt_op_at(int index) { return index >= 0 && index < OP_COUNT ? &table[index] : NULL; }

const tt_op *tt_op_find(const char *name) {
  for (int i = 0; i < OP_COUNT; ++i)
    if (strcmp(table[i].name, name) == 0) return &table[i];
  return NULL;
}
