// pointwise.h - what every elementwise lowering shares: the driver around a formula, and shorthands to write formulas.
//
// A formula is a pure function from operands to result. Its operands come promoted, widened and broadcast together; what it
// gives is converted to the result's dtype. Where arguments of the call are lists (the _foreach_ ops), the driver runs the
// formula once per item, all in one program, so a _foreach_ row needs no lowering of its own.
#ifndef TT_OP_POINTWISE_H_
#define TT_OP_POINTWISE_H_

#include "op/lowering.h"

enum { TT_POINTWISE_OPERANDS = 5 };

typedef struct tt_pointwise {
  tt_lowering *l;
  tt_builder *b;
  int item;         // which item of the lists this turn computes; also the number of its result
  tt_dtype common;  // what the operands promote to: the dtype of the result, unless flags of the op say otherwise
  tt_dtype compute; // dtype of x: `common`, or float32 for narrow floats
  int count;
  int arg_count; // operands that take part in the promotion: x[0..arg_count) come from these arguments
  const int *args;
  tt_value *x[TT_POINTWISE_OPERANDS];              // all of one shape
  const tt_tensor *tensors[TT_POINTWISE_OPERANDS]; // what they come from; NULL: a number
} tt_pointwise;

typedef tt_value *(*tt_pointwise_fn)(tt_pointwise *p);

// Runs the formula for every item. Operands are the arguments args[0..count) (NULL: the first `count` ones): tensors, numbers,
// or lists of either. Refuses dtypes by the op's flags, and shapes that do not broadcast, in torch's words.
void tt_pointwise_each(tt_lowering *l, tt_pointwise_fn formula, int count, const int *args);

// The parts of the driver, for lowerings with several results or another result dtype.
int tt_pointwise_items(tt_lowering *l); // list lengths, checked to agree; 1 without lists
tt_pointwise tt_pointwise_begin(tt_lowering *l, int item, int count, const int *args);
// Adds an operand that takes no part in the promotion (a mask, a weight); broadcasts all operands again.
tt_value *tt_pointwise_append(tt_pointwise *p, int arg, tt_dtype dtype);
// A number of the call, which must fit, (or of its item, for a list) in the dtype and shape of x[0].
tt_value *tt_pointwise_number(tt_pointwise *p, int arg);
// Converts to the result dtype the op's flags ask for and sets result `result`.
void tt_pointwise_set(tt_pointwise *p, int result, tt_value *value);
// Sets a result of this dtype; fails as torch does when a declared output cannot hold it.
void tt_pointwise_set_as(tt_pointwise *p, int result, tt_value *value, tt_dtype dtype);

// --- shorthands -----------------------------------------------------------------------------------------------------------
// An elementwise op of x and a constant of x's dtype.
static inline tt_value *tt_add_constant(tt_builder *b, tt_value *x, double c) {
  return tt_hlo_add(b, x, tt_hlo_constant_like(b, x, c));
}
static inline tt_value *tt_multiply_constant(tt_builder *b, tt_value *x, double c) {
  return tt_hlo_multiply(b, x, tt_hlo_constant_like(b, x, c));
}
static inline tt_value *tt_divide_constant(tt_builder *b, tt_value *x, double c) {
  return tt_hlo_divide(b, x, tt_hlo_constant_like(b, x, c));
}
static inline tt_value *tt_constant_minus(tt_builder *b, double c, tt_value *x) {
  return tt_hlo_subtract(b, tt_hlo_constant_like(b, x, c), x);
}
static inline tt_value *tt_compare_constant(tt_builder *b, tt_compare direction, tt_value *x, double c) {
  return tt_hlo_compare(b, direction, x, tt_hlo_constant_like(b, x, c));
}
// predicate ? c : x
static inline tt_value *tt_select_constant(tt_builder *b, tt_value *predicate, double c, tt_value *x) {
  return tt_hlo_select(b, predicate, tt_hlo_constant_like(b, x, c), x);
}
static inline tt_value *tt_square(tt_builder *b, tt_value *x) { return tt_hlo_multiply(b, x, x); }
// 1 / x
static inline tt_value *tt_reciprocal(tt_builder *b, tt_value *x) {
  return tt_hlo_divide(b, tt_hlo_constant_like(b, x, 1), x);
}
// The sign bit of a float, BOOL. True for -0.0 and NaN with its sign set.
tt_value *tt_sign_bit(tt_builder *b, tt_value *x);
// A BOOL constant of x's shape.
tt_value *tt_bool_like(tt_builder *b, const tt_value *x, bool value);
// Towards zero; integers as they are.
tt_value *tt_emit_trunc(tt_builder *b, tt_value *x);

#endif // TT_OP_POINTWISE_H_
