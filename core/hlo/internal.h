// internal.h - what the files of hlo/ share: the builder's inside, operand checks and the printing of ops.
//
// An op prints as one line of three parts, which keeps every builder function short:
//
//   tt_value *result = tt_emit_result(b, "stablehlo.pad", dtype, rank, dims);  // "%7 = stablehlo.pad"
//   tt_emit_values(b, " ", 2, operands);                                       // " %1, %2"
//   tt_emit_i64s(b, ", low = ", rank, low);                                    // ", low = [1, 0]"
//   return tt_emit_signature(b, 2, operands, result);                          // " : (type, type) -> type\n"
//
// Printing never fails by itself: exhausted memory is kept by the text buffer and noticed when the next value is made.
#ifndef TT_HLO_INTERNAL_H_
#define TT_HLO_INTERNAL_H_

#include <stddef.h>

#include "hlo/builder.h"

// Ranks above torch's own limit (TensorIterator) do not occur; the bound lets dims live in local arrays.
#define TT_HLO_MAX_RANK 64

struct tt_builder {
  tt_target target;
  tt_arena arena;
  tt_string body;   // ops of @main, one line each; regions are printed in place
  tt_string module; // the whole text, put together by tt_builder_finish
  tt_status status; // the first failure until it is taken
  bool failed;      // stays true after the status was taken
  tt_value **parameters;
  int *aliases; // output that may reuse each parameter's memory, -1 for none
  int parameter_count, parameter_capacity;
  int64_t next_id;
  int64_t op_count;
};

// --- values and failure -----------------------------------------------------------------------------------------------
// The harmless value that stands for the result of every call after a failure. Its dims pointer may be read with small
// indices of either sign, so that a lowering that computes with sizes before it looks at tt_builder_failed stays in bounds.
extern tt_value tt_hlo_poison;

// A new value with its own copy of dims; sub is -1 for the single result of an op. Checks that no size is negative and that
// the number of bytes fits an int64_t; returns the poison on failure.
tt_value *tt_hlo_value(tt_builder *b, tt_dtype dtype, int rank, const int64_t *dims, int64_t id, int sub);
int64_t tt_hlo_next_id(tt_builder *b);
// Zeroed memory of the builder's arena; on exhaustion the builder fails and the result is NULL.
void *tt_hlo_allocate(tt_builder *b, size_t count, size_t size);

// False when the builder has failed, or an operand is NULL (which makes it fail).
bool tt_hlo_ready_at(tt_builder *b, const char *file, int line, const char *op, int count, tt_value *const *operands);
// Fails with "op: reason, got Float[2, 3], Long[2]"; returns the poison. reason may be NULL (no memory for its text).
tt_value *tt_hlo_refuse_at(tt_builder *b, const char *file, int line, const char *op, const char *reason, int count,
                           tt_value *const *operands);
#define TT_HLO_LIST(...) (int)(sizeof((tt_value *const[]){__VA_ARGS__}) / sizeof(tt_value *)), (tt_value *const[]){__VA_ARGS__}
#define TT_HLO_READY(b, op, ...) tt_hlo_ready_at(b, __FILE__, __LINE__, op, TT_HLO_LIST(__VA_ARGS__))
#define TT_HLO_READY_N(b, op, count, xs) tt_hlo_ready_at(b, __FILE__, __LINE__, op, count, xs)
#define TT_HLO_REFUSE(b, op, reason, ...) tt_hlo_refuse_at(b, __FILE__, __LINE__, op, reason, TT_HLO_LIST(__VA_ARGS__))
#define TT_HLO_REFUSE_N(b, op, reason, count, xs) tt_hlo_refuse_at(b, __FILE__, __LINE__, op, reason, count, xs)
// Fills results with the poison: what functions with several results do on failure.
void tt_hlo_poison_all(int count, tt_value **results);

// "Float[2, 3]" in the arena.
const char *tt_hlo_value_text(tt_builder *b, const tt_value *x);
// Printf-style text in the arena, for the reason of a refusal; may be NULL.
#define TT_HLO_TEXT(b, ...) tt_arena_format(&(b)->arena, __VA_ARGS__)

bool tt_hlo_same_type(const tt_value *x, const tt_value *y); // dtype and shape
bool tt_hlo_same_dims(int rank, const int64_t *x, const int64_t *y);
bool tt_hlo_is_f8(tt_dtype dtype);
// True when all `count` dimensions are in [0, rank) and no two are equal.
bool tt_hlo_distinct_dims(int rank, int count, const int *dims);

// --- printing -----------------------------------------------------------------------------------------------------------
static inline void tt_emit(tt_builder *b, const char *text) { tt_string_append(&b->body, text); }
static inline void tt_emit_i64(tt_builder *b, int64_t value) { tt_string_append_i64(&b->body, value); }
void tt_emit_value(tt_builder *b, const tt_value *x);                                   // "%5" or "%5#1"
void tt_emit_values(tt_builder *b, const char *before, int count, tt_value *const *xs); // before "%1, %2"
void tt_emit_type(tt_string *text, const tt_value *x);                                  // "tensor<2x3xf32>"
void tt_emit_types(tt_builder *b, int count, tt_value *const *xs);                      // "tensor<2xf32>, tensor<i32>"
void tt_emit_i64s(tt_builder *b, const char *before, int count, const int64_t *values); // before "[1, 2]"
void tt_emit_ints(tt_builder *b, const char *before, int count, const int *values);
void tt_emit_array(tt_builder *b, const char *before, int count, const int64_t *values); // before "array<i64: 1, 2>"
void tt_emit_bool(tt_builder *b, const char *before, bool value);

// Starts an op with one result: "%7 = op". Returns the result.
tt_value *tt_emit_result(tt_builder *b, const char *op, tt_dtype dtype, int rank, const int64_t *dims);
// Starts an op with `count` results: "%7:2 = op". Returns the id; the caller makes the values with tt_hlo_value.
int64_t tt_emit_results(tt_builder *b, const char *op, int count);
static inline int tt_hlo_result_sub(int count, int index) { return count == 1 ? -1 : index; }
// Ends an op: " : (types) -> type\n". Returns the result.
tt_value *tt_emit_signature(tt_builder *b, int count, tt_value *const *operands, tt_value *result);
void tt_emit_signature_n(tt_builder *b, int count, tt_value *const *operands, int result_count,
                         tt_value *const *results);

// --- regions ------------------------------------------------------------------------------------------------------------
// Prints one region "{ ^bb0(...): ... }" whose block arguments are new values of the types of `likes`; what the body gives
// must have the types of `wanted`.
void tt_emit_region(tt_builder *b, const char *op, int argument_count, tt_value *const *likes, int result_count,
                    tt_value *const *wanted, tt_body body, void *user);
// A value that is never printed, only asked for its type: for likes and wanted.
tt_value *tt_hlo_scalar_type(tt_builder *b, tt_dtype dtype);
// The op text of a reduction, "stablehlo.add". NULL if it is not of the enum.
const char *tt_hlo_reduction_op(tt_reduction kind);
// May this reduction take this dtype?
bool tt_hlo_reduction_fits(tt_reduction kind, tt_dtype dtype);

// x / y or its remainder, of S64 or U64, without a division of that width: for a TPU. (wide.c)
tt_value *tt_hlo_divide_wide(tt_builder *b, tt_value *x, tt_value *y, bool remainder);

// How many windows of `size` (dilated by `window_dilation`) fit a dimension of n elements (dilated by `base_dilation`) padded
// by low and high, at steps of `stride`. -1 when a number is out of range.
int64_t tt_hlo_window_count(int64_t n, int64_t size, int64_t stride, int64_t low, int64_t high, int64_t base_dilation,
                            int64_t window_dilation);

#endif // TT_HLO_INTERNAL_H_
