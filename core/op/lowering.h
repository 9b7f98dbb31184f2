// lowering.h - what a lowering sees of the call it lowers.
//
// Operands come as values already read through their views, in logical (torch) order; results are given as values in logical
// order and are written by shared code: converted to the declared dtype, permuted to the declared strides, put into the
// storage through the view that is written. A lowering never sees strides.
//
// Argument indices are those of the functional (or in-place) schema. An argument read with the wrong kind is an internal
// fault and sticks to the builder.
#ifndef TT_OP_LOWERING_H_
#define TT_OP_LOWERING_H_

#include "base/status.h"
#include "hlo/builder.h"
#include "op/arg.h"
#include "op/op.h"
#include "op/view.h"

// A condition on the numbers of a call: success, or the failure to report. `number` is the argument it is about, or the item of
// it if that is a list of numbers.
typedef tt_status (*tt_requirement_fn)(const tt_arg *number, tt_dtype dtype);
typedef struct tt_requirement {
  tt_requirement_fn test;
  int arg, item; // item -1: the argument itself
  tt_dtype dtype;
} tt_requirement;

// Where operand values come from: a program being compiled (parameters) or a graph being recorded (its nodes).
typedef struct tt_source {
  // The whole current value of a slot's storage, in its own dtype and dims.
  tt_value *(*base)(void *user, int slot);
  // A number known only at run time, as a rank-0 value of `dtype`. `number` counts the call's runtime numbers in argument
  // order.
  tt_value *(*number)(void *user, int number, tt_dtype dtype);
  // A CPU scalar tensor's value as a rank-0 value of `dtype`.
  tt_value *(*cpu_scalar)(void *user, int slot, tt_dtype dtype);
  // A digit of a slot's offset (op/view.h) as a rank-0 S32 value.
  tt_value *(*start)(void *user, int slot, const tt_digit *digit);
  // ui64[2] {seed, offset} for `count` 4-byte draws by the call's generator (NULL: the device's default generator).
  tt_value *(*random_state)(void *user, tt_generator *generator, int64_t count);
  // A BOOL scalar that must be true when the program has run; else the call fails with `code` and `message` (static text).
  void (*check)(void *user, tt_value *ok, tt_code code, const char *message);
  // A condition that holds for the call being lowered and must hold for each that uses its plan.
  void (*require)(void *user, const tt_requirement *requirement);
  void *user;
} tt_source;

typedef struct tt_lowered {
  tt_value *value;    // NULL: undefined tensor
  bool channels_last; // fresh results: channels-last strides
  const int *order;   // fresh results: dims from the largest stride to the smallest; NULL: row-major or channels last
  int slot;           // writes: the slot written
} tt_lowered;

struct tt_lowering {
  tt_builder *b;
  const tt_op *op;
  const tt_arg *args;
  int arg_count;
  const tt_tensor *tensors; // the call's slots
  int tensor_count;
  const int *outputs;     // slots of the declared outputs of in-place and out= calls, `output_count` of them
  int output_count;       // 0 when all results are fresh
  tt_dtype default_dtype; // torch.get_default_dtype()
  tt_precision precision;
  int device_index;
  tt_source source;
  tt_value **operands; // per slot, read once
  // results
  struct tt_lowered *results; // grows with tt_set_result
  int result_count, result_capacity;
  // Arguments that the op writes though its schema does not say so (running statistics), by slot.
  struct tt_lowered *writes;
  int write_count, write_capacity;
};

// --- operands --------------------------------------------------------------------------------------------------------
bool tt_has(const tt_lowering *l, int arg);                       // given, and not None / undefined
tt_value *tt_operand(tt_lowering *l, int arg);                    // in its own dtype
tt_value *tt_operand_as(tt_lowering *l, int arg, tt_dtype dtype); // converted; a CPU scalar is encoded on the host
const tt_tensor *tt_tensor_arg(const tt_lowering *l, int arg);    // its metadata; NULL when absent
int tt_list_count(const tt_lowering *l, int arg);
bool tt_list_has(const tt_lowering *l, int arg, int item); // defined
tt_value *tt_list_operand(tt_lowering *l, int arg, int item);
tt_value *tt_list_operand_as(tt_lowering *l, int arg, int item, tt_dtype dtype);
const tt_tensor *tt_list_tensor(const tt_lowering *l, int arg, int item);

// --- arguments -------------------------------------------------------------------------------------------------------
int64_t tt_int(tt_lowering *l, int arg);                       // int, bool or a static integral Scalar
int64_t tt_int_or(tt_lowering *l, int arg, int64_t otherwise); // for int? and SymInt?
bool tt_bool(tt_lowering *l, int arg);
bool tt_bool_or(tt_lowering *l, int arg, bool otherwise);
tt_dtype tt_dtype_arg(tt_lowering *l, int arg, tt_dtype otherwise); // ScalarType?
const char *tt_text(tt_lowering *l, int arg);                       // "" for None
// int[] into the arena; *out_count 0 and NULL for None or empty.
const int64_t *tt_ints(tt_lowering *l, int arg, int *out_count);
const double *tt_doubles(tt_lowering *l, int arg, int *out_count);
// Static numbers: only for ops with TT_OP_STATIC_NUMBERS.
double tt_double(tt_lowering *l, int arg);
double tt_double_or(tt_lowering *l, int arg, double otherwise);
// A number as a rank-0 value of `dtype`; at run time unless the op has static numbers.
tt_value *tt_number(tt_lowering *l, int arg, tt_dtype dtype);
tt_value *tt_list_number(tt_lowering *l, int arg, int item, tt_dtype dtype);
// True when the argument is known to be 1 while lowering: see TT_OP_ONE_IS_STATIC.
bool tt_number_is_one(const tt_lowering *l, int arg);
// dtype of a Scalar argument as torch promotes it: BOOL, S64, F64 (default float), C128 (default complex).
tt_dtype tt_number_dtype(const tt_lowering *l, int arg);

// --- dimensions -------------------------------------------------------------------------------------------------------
// Wraps a negative dim; fails with torch's IndexError text when out of range. rank 0 counts as 1.
int tt_wrap_dim(tt_lowering *l, int64_t dim, int rank);
// A dim list argument, wrapped, sorted ascending and checked for repeats; None or empty = all dims.
const int *tt_dims(tt_lowering *l, int arg, int rank, int *out_count);

// --- types --------------------------------------------------------------------------------------------------------------
// torch.result_type over these arguments (tensors, CPU scalars, numbers), with torch's categories of priority.
tt_dtype tt_promote(tt_lowering *l, const int *args, int count);
// The same; an argument that is a list (of tensors or numbers) takes part with its item number `item`.
tt_dtype tt_promote_item(tt_lowering *l, const int *args, int count, int item);
tt_dtype tt_promote_list(tt_lowering *l, int arg); // over a tensor list
// The dtype in which to compute on `dtype`: f32 for narrow floats, itself otherwise.
tt_dtype tt_compute_dtype(tt_dtype dtype);
// default_dtype for bool and integers, itself otherwise.
tt_dtype tt_float_dtype(const tt_lowering *l, tt_dtype dtype);
tt_dtype tt_output_dtype(const tt_lowering *l, int result, tt_dtype otherwise); // declared dtype of an output
// Declared shape of an output; false for a fresh one.
bool tt_output_shape(const tt_lowering *l, int result, int *out_rank, const int64_t **out_sizes);

// --- results -----------------------------------------------------------------------------------------------------------
// Shape must equal the declared output's (an internal fault otherwise); the dtype is converted for declared outputs and kept
// for fresh ones.
void tt_set_result(tt_lowering *l, int result, tt_value *value);
void tt_set_channels_last(tt_lowering *l, int result, bool channels_last);
// The dims of a fresh result lie in memory in the order in which those of tensor argument `arg`, of the same rank, do (torch's
// preserve_format where sizes differ). Call after tt_set_result.
void tt_set_order_like(tt_lowering *l, int result, int arg);
// The dims of a fresh result lie in the order that torch's TensorIterator gives a result of these operands (NULL: not a tensor):
// by the strides of the first operand in which two dims both move. TensorIteratorBase::reorder_dimensions.
void tt_set_order_of_iterator(tt_lowering *l, int result, int count, const tt_tensor *const *operands);
// The dims of tensor argument `arg` from the largest stride to the smallest, in the builder's arena; NULL without memory.
int *tt_order_of(tt_lowering *l, int arg);
// The columns of a fresh result's matrices lie one after the other, as LAPACK and cuSOLVER leave them.
void tt_set_column_major(tt_lowering *l, int result);
// The order, said outright: `order` (in the builder's arena) lists the dims from the largest stride to the smallest.
void tt_set_order(tt_lowering *l, int result, const int *order);
// For rows with TT_OP_COUNTED, whose results' sizes are data. The results have the largest sizes possible; of each, `size` (a
// scalar; NULL for all) elements along `dim` count. Makes one more result, number `count`, S64 [count, 2] of dims and sizes
// (-1 for all), which the bridge reads to shorten the others.
typedef struct tt_extent {
  int dim;
  tt_value *size;
} tt_extent;
void tt_set_extents(tt_lowering *l, const tt_extent *extents, int count);
// Writes `value` (of the argument's sizes; converted to its dtype) into tensor argument `arg`, which the schema does not mark as
// written.
void tt_write_operand(tt_lowering *l, int arg, tt_value *value);
// Follows torch's suggest_memory_format of a 4-d or 5-d operand.
bool tt_is_channels_last(const tt_lowering *l, int arg);

// --- the rest -----------------------------------------------------------------------------------------------------------
// The user is told: fails with this status. Message without op name; it is added.
void tt_fail(tt_lowering *l, tt_code code, const char *format, ...) __attribute__((format(printf, 3, 4)));
bool tt_failed(const tt_lowering *l);
// Random bits and uniforms from the generator argument `generator_arg` (-1: default generator).
tt_value *tt_random_bits(tt_lowering *l, int generator_arg, tt_dtype dtype, int rank, const int64_t *dims);
// Fails if `test` does now and makes every later call that finds this plan fail before anything runs if it does then.
// For what torch checks of numbers, whose values are no part of a plan's key.
void tt_require(tt_lowering *l, tt_requirement_fn test, int arg, tt_dtype dtype);
// The same of an item of a list of numbers; of the argument itself if it is none.
void tt_require_item(tt_lowering *l, tt_requirement_fn test, int arg, int item, tt_dtype dtype);
// Looks at a requirement of a call again.
tt_status tt_requirement_check(const tt_requirement *requirement, const tt_arg *args);
// The argument, if it is a number, must fit the dtype, as c10::Scalar::to wants it. (Where torch makes a 0-d tensor of the
// number first, as of the operands of binary ops, it wraps.)
void tt_require_fits(tt_lowering *l, int arg, tt_dtype dtype);
void tt_require_item_fits(tt_lowering *l, int arg, int item, tt_dtype dtype);
tt_value *tt_fitting_operand_as(tt_lowering *l, int arg, tt_dtype dtype); // tt_operand_as with this condition
double tt_real_number(const tt_arg *arg);                                 // of a number (its real part), for tests
// Checks at run time that every element of `ok` (BOOL) holds; see tt_source.check.
void tt_check_all(tt_lowering *l, tt_value *ok, tt_code code, const char *message);

// --- for run/ and graph/, which drive lowerings ---------------------------------------------------------------------------
// Reads a slot through its view (cached in l->operands).
tt_value *tt_lowering_read(tt_lowering *l, int slot);
// The value of a storage after `value` (the tensor's sizes) was written through slot's view: converted to its dtype, in the
// storage's new layout. `base` is the storage's value before (its own dtype and dims), NULL when it has none or when the
// write covers it; see tt_view.full.
tt_value *tt_lowering_store(tt_lowering *l, int slot, tt_value *value, tt_value *base, int64_t byte_size);
// Does a write through this tensor replace all `byte_size` bytes of its storage, each once?
bool tt_tensor_covers(const tt_tensor *tensor, int64_t byte_size);
// A number argument (INT, BOOL, DOUBLE or COMPLEX) compiled in, as a rank-0 value of `dtype`.
tt_value *tt_number_constant(tt_builder *b, const tt_arg *arg, tt_dtype dtype);
// How many runtime numbers the arguments hold (tt_source.number counts them).
int tt_count_numbers(const tt_arg *args, int count);

// Shorthands used all over: elementwise ops with broadcasting of rank-0 and smaller operands.
tt_value *tt_add(tt_lowering *l, tt_value *x, tt_value *y);
tt_value *tt_sub(tt_lowering *l, tt_value *x, tt_value *y);
tt_value *tt_mul(tt_lowering *l, tt_value *x, tt_value *y);
tt_value *tt_div(tt_lowering *l, tt_value *x, tt_value *y);

// Dot products under the precision policy of this call: float32 operands are cut to bfloat16 passes on a target that ignores
// precision attributes; integers and bool work; narrow floats accumulate in f32. The result has dtype `result`.
tt_value *tt_dot_product(tt_lowering *l, tt_value *x, tt_value *y, const tt_dot *numbers, tt_dtype result);
tt_value *tt_matmul_2d(tt_lowering *l, tt_value *x, tt_value *y, tt_dtype result); // [m, k] x [k, n]
tt_value *tt_matmul_3d(tt_lowering *l, tt_value *x, tt_value *y, tt_dtype result); // [b, m, k] x [b, k, n]
tt_value *tt_convolve(tt_lowering *l, tt_value *x, tt_value *filter, const tt_convolution *numbers, tt_dtype result);
// An operand of a product that is written as multiplies and adds: rounded to bfloat16 where this call's dots would do so.
tt_value *tt_round_operand(tt_lowering *l, tt_value *x);

#endif // TT_OP_LOWERING_H_
