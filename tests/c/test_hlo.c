// test_hlo.c - core/hlo: the text of programs, their checks and their failures, and that the plugins take every op.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "hlo/builder.h"
#include "pjrt/client.h"
#include "pjrt/executable.h"
#include "pjrt/plugin.h"
#include "runner.h"

#define DIMS(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__}
#define I64S(...) (const int64_t[]){__VA_ARGS__}
#define INTS(...) (const int[]){__VA_ARGS__}
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

static tt_builder *new_builder(void) {
  tt_target target = {0};
  tt_builder *b;
  CHECK_OK(tt_builder_create(&target, &b));
  return b;
}

static tt_value *matrix(tt_builder *b, tt_dtype dtype) { return tt_builder_parameter(b, dtype, DIMS(2, 3)); }

// Checks the whole module that returns `count` results, and frees the builder.
static void check_module(tt_builder *b, int count, tt_value *const *results, const char *expected) {
  const char *text;
  int64_t size;
  CHECK_OK(tt_builder_finish(b, count, results, &text, &size));
  CHECK_TEXT(text, expected);
  CHECK_INT(size, strlen(expected));
  tt_builder_free(b);
}

// The same for one result, where `expected` is only the ops between the head and the return.
static void check_ops(tt_builder *b, tt_value *result, const char *expected) {
  const char *text;
  int64_t size;
  CHECK_OK(tt_builder_finish(b, 1, &result, &text, &size));
  const char *begin = strstr(text, " {\n%") + 3, *end = strstr(text, "\nreturn ") + 1;
  char ops[4096];
  CHECK(end > begin && (size_t)(end - begin) < sizeof ops);
  memcpy(ops, begin, (size_t)(end - begin));
  ops[end - begin] = 0;
  CHECK_TEXT(ops, expected);
  tt_builder_free(b);
}

// The element text of a scalar constant must be this.
static void check_constant(tt_builder *b, tt_value *x, const char *expected) {
  const char *text;
  int64_t size;
  CHECK_OK(tt_builder_finish(b, 1, &x, &text, &size));
  const char *last = NULL;
  for (const char *p = text; (p = strstr(p, "dense<")) != NULL; p += 6) last = p + 6;
  CHECK(last != NULL);
  char element[64];
  size_t length = (size_t)(strstr(last, "> : ") - last);
  CHECK(length < sizeof element);
  memcpy(element, last, length);
  element[length] = 0;
  CHECK_TEXT(element, expected);
}

// ---- text ------------------------------------------------------------------------------------------------------------

TEST(hlo_module_with_aliases) {
  tt_builder *b = new_builder();
  tt_value *x = matrix(b, TT_F32), *y = tt_builder_parameter(b, TT_F32, DIMS(3));
  tt_builder_alias(b, 0, 1);
  CHECK_INT(tt_builder_parameter_count(b), 2);
  tt_hlo_broadcast_both(b, &x, &y);
  tt_value *sum = tt_hlo_add(b, x, y);
  CHECK_INT(tt_builder_op_count(b), 2);
  check_module(b, 2, (tt_value *[]){tt_hlo_compare(b, TT_LT, x, y), sum},
               "module @torch_tpu {\n"
               "func.func public @main(%0: tensor<2x3xf32> {tf.aliasing_output = 1 : i32}, %1: tensor<3xf32>) -> "
               "(tensor<2x3xi1>, tensor<2x3xf32>) {\n"
               "%2 = stablehlo.broadcast_in_dim %1, dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>\n"
               "%3 = stablehlo.add %0, %2 : tensor<2x3xf32>\n"
               "%4 = stablehlo.compare LT, %0, %2 : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>\n"
               "return %4, %3 : tensor<2x3xi1>, tensor<2x3xf32>\n"
               "}\n}\n");
}

TEST(hlo_module_without_results) {
  check_module(new_builder(), 0, NULL, "module @torch_tpu {\nfunc.func public @main() -> () {\nreturn\n}\n}\n");
}

static void argmax(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  (void)user;
  tt_value *greater = tt_hlo_compare(b, TT_GT, arguments[0], arguments[2]);
  results[0] = tt_hlo_select(b, greater, arguments[0], arguments[2]);
  results[1] = tt_hlo_select(b, greater, arguments[1], arguments[3]);
}

TEST(hlo_reduce_with_region) {
  tt_builder *b = new_builder();
  tt_value *xs[] = {matrix(b, TT_F32), matrix(b, TT_S32)};
  tt_value *initial[] = {tt_hlo_min_value(b, TT_F32), tt_hlo_constant(b, TT_S32, 0)}, *results[2];
  tt_hlo_reduce_with(b, 2, xs, initial, 1, INTS(1), argmax, NULL, results);
  check_ops(b, results[1],
            "%2 = stablehlo.constant dense<0xFF800000> : tensor<f32>\n"
            "%3 = stablehlo.constant dense<0> : tensor<i32>\n"
            "%4:2 = \"stablehlo.reduce\"(%0, %1, %2, %3) ({\n"
            "^bb0(%5: tensor<f32>, %6: tensor<i32>, %7: tensor<f32>, %8: tensor<i32>):\n"
            "%9 = stablehlo.compare GT, %5, %7 : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
            "%10 = stablehlo.select %9, %5, %7 : tensor<i1>, tensor<f32>\n"
            "%11 = stablehlo.select %9, %6, %8 : tensor<i1>, tensor<i32>\n"
            "stablehlo.return %10, %11 : tensor<f32>, tensor<i32>\n"
            "}) {dimensions = array<i64: 1>} : (tensor<2x3xf32>, tensor<2x3xi32>, tensor<f32>, tensor<i32>) -> "
            "(tensor<2xf32>, tensor<2xi32>)\n");
}

TEST(hlo_shape_ops) {
  tt_builder *b = new_builder();
  tt_value *x = matrix(b, TT_BF16);
  x = tt_hlo_transpose(b, x, INTS(1, 0));
  x = tt_hlo_slice_dim(b, x, 0, 0, 3, 2);
  x = tt_hlo_pad(b, x, tt_hlo_constant(b, TT_BF16, 1), I64S(1, 0), I64S(0, -1), I64S(1, 0));
  x = tt_hlo_reverse(b, x, 1, INTS(0));
  x = tt_hlo_concatenate(b, 2, (tt_value *[]){x, x}, 1);
  x = tt_hlo_unsqueeze_dim(b, x, 0);
  check_ops(b, x,
            "%1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<2x3xbf16>) -> tensor<3x2xbf16>\n"
            "%2 = stablehlo.slice %1 [0:3:2, 0:2] : (tensor<3x2xbf16>) -> tensor<2x2xbf16>\n"
            "%3 = stablehlo.constant dense<1.0> : tensor<bf16>\n"
            "%4 = stablehlo.pad %2, %3, low = [1, 0], high = [0, 0], interior = [1, 0] : "
            "(tensor<2x2xbf16>, tensor<bf16>) -> tensor<4x2xbf16>\n"
            "%5 = stablehlo.slice %4 [0:4, 0:1] : (tensor<4x2xbf16>) -> tensor<4x1xbf16>\n"
            "%6 = stablehlo.reverse %5, dims = [0] : tensor<4x1xbf16>\n"
            "%7 = stablehlo.concatenate %6, %6, dim = 1 : (tensor<4x1xbf16>, tensor<4x1xbf16>) -> tensor<4x2xbf16>\n"
            "%8 = stablehlo.reshape %7 : (tensor<4x2xbf16>) -> tensor<1x4x2xbf16>\n");
}

TEST(hlo_scatter_text) {
  tt_builder *b = new_builder();
  tt_value *x = tt_builder_parameter(b, TT_S32, DIMS(4, 8)), *indices = tt_builder_parameter(b, TT_S64, DIMS(2, 1));
  tt_value *updates = tt_builder_parameter(b, TT_S32, DIMS(2, 8));
  tt_scatter numbers = {.window_count = 1,
                        .update_window_dims = INTS(1),
                        .inserted_count = 1,
                        .inserted_window_dims = INTS(0),
                        .map_count = 1,
                        .scatter_dims_to_operand_dims = INTS(0),
                        .index_vector_dim = 1,
                        .unique = true};
  check_ops(b, tt_hlo_scatter(b, x, indices, updates, &numbers, TT_COMBINE_REPLACE),
            "%3 = \"stablehlo.scatter\"(%0, %1, %2) ({\n"
            "^bb0(%4: tensor<i32>, %5: tensor<i32>):\n"
            "stablehlo.return %5 : tensor<i32>\n"
            "}) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], "
            "input_batching_dims = [], scatter_indices_batching_dims = [], scatter_dims_to_operand_dims = [0], "
            "index_vector_dim = 1>, indices_are_sorted = false, unique_indices = true} : "
            "(tensor<4x8xi32>, tensor<2x1xi64>, tensor<2x8xi32>) -> tensor<4x8xi32>\n");
}

TEST(hlo_convolution_text) {
  tt_builder *b = new_builder();
  tt_value *x = tt_builder_parameter(b, TT_F32, DIMS(2, 4, 9)),
           *filter = tt_builder_parameter(b, TT_F32, DIMS(6, 2, 3));
  tt_convolution numbers = {
      .spatial = 1, .stride = I64S(2), .pad_low = I64S(1), .feature_groups = 2, .batch_groups = 1};
  check_ops(b, tt_hlo_convolution(b, x, filter, &numbers, TT_F32, TT_PRECISION_HIGH),
            "%2 = stablehlo.convolution(%0, %1) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {stride = [2], "
            "pad = [[1, 0]], lhs_dilate = [1], rhs_dilate = [1]} {feature_group_count = 2 : i64, batch_group_count = 1 "
            ": i64, "
            "precision_config = [#stablehlo<precision HIGH>, #stablehlo<precision HIGH>]} : "
            "(tensor<2x4x9xf32>, tensor<6x2x3xf32>) -> tensor<2x6x4xf32>\n");
}

TEST(hlo_dot_text) {
  tt_builder *b = new_builder();
  tt_value *x = tt_builder_parameter(b, TT_BF16, DIMS(5, 2, 3)), *y = tt_builder_parameter(b, TT_BF16, DIMS(5, 3, 4));
  tt_dot numbers = {1, INTS(0), INTS(0), 1, INTS(2), INTS(1)};
  check_ops(b, tt_hlo_dot_general(b, x, y, &numbers, TT_F32, TT_PRECISION_MEDIUM),
            "%2 = stablehlo.dot_general %0, %1, batching_dims = [0] x [0], contracting_dims = [2] x [1], "
            "precision = [DEFAULT, DEFAULT] : (tensor<5x2x3xbf16>, tensor<5x3x4xbf16>) -> tensor<5x2x4xf32>\n");
}

// ---- constants -------------------------------------------------------------------------------------------------------

TEST(hlo_constants_are_exact) {
  static const struct {
    tt_dtype dtype;
    double value;
    const char *text;
  } cases[] = {
      {TT_F32, 0, "0.0"},
      {TT_F32, -0.0, "0x80000000"},
      {TT_F32, -12.375, "-12.375"},
      {TT_F32, 0.1, "0x3DCCCCCD"},
      {TT_F32, INFINITY, "0x7F800000"},
      {TT_F64, 0.5, "0.5"},
      {TT_F64, 0.1, "0x3FB999999999999A"},
      {TT_BF16, 1.5, "1.5"},
      {TT_BF16, -INFINITY, "0xFF80"},
      {TT_F16, 3, "0x4200"},
      {TT_F8E4M3FN, 3, "0x44"},
      {TT_F8E8M0FNU, 1, "0x7F"},
      {TT_C64, 0.1, "(0x3DCCCCCD, 0.0)"},
      {TT_BOOL, NAN, "true"},
      {TT_BOOL, 0, "false"},
      {TT_U8, -1, "0"},
      {TT_U8, 300, "255"},
      {TT_S8, -1e9, "-128"},
      {TT_S64, 1e300, "9223372036854775807"},
      {TT_S64, -INFINITY, "-9223372036854775808"},
      {TT_U64, 1e300, "18446744073709551615"},
      {TT_S32, -7.9, "-7"},
      {TT_S32, NAN, "0"},
  };
  tt_builder *b = new_builder();
  for (size_t i = 0; i < COUNT_OF(cases); ++i)
    check_constant(b, tt_hlo_constant(b, cases[i].dtype, cases[i].value), cases[i].text);
  tt_builder_free(b);
}

TEST(hlo_integer_constants_are_exact) {
  tt_builder *b = new_builder();
  check_constant(b, tt_hlo_constant_i64(b, TT_S64, INT64_MIN), "-9223372036854775808");
  check_constant(b, tt_hlo_constant_i64(b, TT_S64, (INT64_C(1) << 53) + 1), "9007199254740993");
  check_constant(b, tt_hlo_constant_i64(b, TT_U64, -1), "18446744073709551615");
  check_constant(b, tt_hlo_constant_i64(b, TT_U8, -1), "255");
  check_constant(b, tt_hlo_constant_i64(b, TT_S8, 200), "-56");
  check_constant(b, tt_hlo_constant_i64(b, TT_BOOL, 2), "true");
  check_constant(b, tt_hlo_constant_i64(b, TT_F32, 3), "3.0");
  check_constant(b, tt_hlo_constant_complex(b, TT_C128, 1, -INFINITY), "(1.0, 0xFFF0000000000000)");
  check_constant(b, tt_hlo_constant_vector(b, TT_S64, 3, I64S(1, -2, 3)), "[1, -2, 3]");
  check_constant(b, tt_hlo_constant_vector(b, TT_S64, 0, NULL), "");
  tt_builder_free(b);
}

TEST(hlo_limits) {
  tt_builder *b = new_builder();
  check_constant(b, tt_hlo_max_value(b, TT_F32), "0x7F800000");
  check_constant(b, tt_hlo_min_value(b, TT_S16), "-32768");
  check_constant(b, tt_hlo_max_value(b, TT_U64), "18446744073709551615");
  check_constant(b, tt_hlo_max_value(b, TT_BOOL), "true");
  check_constant(b, tt_hlo_max_value(b, TT_F8E4M3FN), "0x7E");
  check_constant(b, tt_hlo_reduction_identity(b, TT_REDUCE_MIN, TT_S32), "2147483647");
  check_constant(b, tt_hlo_reduction_identity(b, TT_REDUCE_AND, TT_U16), "65535");
  check_constant(b, tt_hlo_reduction_identity(b, TT_REDUCE_MULTIPLY, TT_BF16), "1.0");
  tt_builder_free(b);
}

// ---- conversions and what costs nothing --------------------------------------------------------------------------------

TEST(hlo_no_ops_return_their_operand) {
  tt_builder *b = new_builder();
  tt_value *x = matrix(b, TT_F32), *u = matrix(b, TT_U8);
  CHECK(tt_hlo_reshape(b, x, DIMS(2, 3)) == x);
  CHECK(tt_hlo_transpose(b, x, INTS(0, 1)) == x);
  CHECK(tt_hlo_broadcast_to(b, x, DIMS(2, 3)) == x);
  CHECK(tt_hlo_slice_dim(b, x, 1, 0, 3, 1) == x);
  CHECK(tt_hlo_pad(b, x, tt_hlo_constant(b, TT_F32, 0), I64S(0, 0), I64S(0, 0), I64S(0, 0)) == x);
  CHECK(tt_hlo_convert(b, x, TT_F32) == x);
  CHECK(tt_hlo_reduce(b, x, TT_REDUCE_ADD, 0, NULL) == x);
  CHECK(tt_hlo_concatenate(b, 1, &x, 0) == x);
  CHECK(tt_hlo_real(b, x) == x);
  CHECK(tt_hlo_conj(b, x) == x);
  CHECK(tt_hlo_abs(b, u) == u);
  CHECK_INT(tt_builder_op_count(b), 1); // the fill
  tt_builder_free(b);
}

TEST(hlo_float_to_narrow_integer_wraps) {
  tt_builder *b = new_builder();
  check_ops(b, tt_hlo_convert(b, matrix(b, TT_F32), TT_U8),
            "%1 = stablehlo.convert %0 : (tensor<2x3xf32>) -> tensor<2x3xi64>\n"
            "%2 = stablehlo.convert %1 : (tensor<2x3xi64>) -> tensor<2x3xui8>\n");
}

TEST(hlo_convert_complex_to_bool) {
  tt_builder *b = new_builder();
  check_ops(b, tt_hlo_convert(b, tt_builder_parameter(b, TT_C64, 0, NULL), TT_BOOL),
            "%1 = stablehlo.real %0 : (tensor<complex<f32>>) -> tensor<f32>\n"
            "%2 = stablehlo.constant dense<0.0> : tensor<f32>\n"
            "%3 = stablehlo.compare NE, %1, %2 : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
            "%4 = stablehlo.imag %0 : (tensor<complex<f32>>) -> tensor<f32>\n"
            "%5 = stablehlo.constant dense<0.0> : tensor<f32>\n"
            "%6 = stablehlo.compare NE, %4, %5 : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
            "%7 = stablehlo.or %3, %6 : tensor<i1>\n");
}

TEST(hlo_bitcast_of_complex_goes_by_parts) {
  tt_builder *b = new_builder();
  tt_value *x = tt_builder_parameter(b, TT_C64, DIMS(5));
  tt_value *bytes = tt_hlo_bitcast_convert(b, x, TT_U8, DIMS(5, 8));
  tt_value *back = tt_hlo_bitcast_convert(b, bytes, TT_C64, DIMS(5));
  CHECK(!tt_builder_failed(b));
  CHECK_INT(back->dtype, TT_C64);
  CHECK(tt_value_same_shape(back, x));
  tt_builder_free(b);
}

// ---- failure ---------------------------------------------------------------------------------------------------------

TEST(hlo_failure_is_sticky) {
  tt_builder *b = new_builder();
  tt_value *x = matrix(b, TT_F32);
  tt_value *bad = tt_builder_fail(b, tt_error(TT_VALUE, "the first"));
  CHECK(tt_builder_failed(b));
  CHECK_INT(bad->dtype, TT_F32);
  CHECK_INT(bad->rank, 0);
  CHECK_INT(tt_value_count(bad), 1);
  CHECK(tt_builder_fail(b, tt_error(TT_TYPE, "the second")) == bad);
  // Every kind of function now gives the harmless value, whatever it is called with.
  CHECK(tt_hlo_add(b, x, bad) == bad);
  CHECK(tt_hlo_constant(b, TT_DTYPE_NONE, 1) == bad);
  CHECK(tt_hlo_transpose(b, NULL, NULL) == bad);
  CHECK(tt_hlo_gather(b, bad, x, NULL) == bad);
  tt_value *results[] = {x, x};
  tt_hlo_sort(b, 2, (tt_value *[]){x, x}, 7, false, argmax, NULL, results);
  CHECK(results[0] == bad && results[1] == bad);
  tt_hlo_broadcast_both(b, &results[0], &results[1]);
  CHECK(bad->dims[-1] == 1 && bad->dims[3] == 1); // a lowering may look at sizes before it knows
  CHECK_INT(tt_builder_op_count(b), 0);
  const char *text;
  int64_t size;
  CHECK_FAILS(tt_builder_finish(b, 1, &x, &text, &size), TT_VALUE, "the first");
  CHECK(tt_builder_failed(b)); // the status is gone, the builder is still of no use
  CHECK(tt_builder_take_status(b) == NULL);
  CHECK_FAILS(tt_builder_finish(b, 1, &x, &text, &size), TT_INTERNAL, "taken");
  tt_builder_free(b);
}

TEST(hlo_free_takes_null_and_untaken_failures) {
  tt_builder_free(NULL);
  tt_builder *b = new_builder();
  tt_builder_fail(b, tt_error(TT_VALUE, "nobody asks"));
  tt_builder_free(b);
}

// Each of these breaks one rule. x is f32[2,3], y f32[3,2], i s32[2,3], z c64[2,3], p bool[2,3], s an f32 scalar.
typedef struct operands {
  tt_value *x, *y, *i, *z, *p, *s;
} operands;

static void wrong_result(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  (void)b;
  (void)user;
  results[0] = arguments[0];
}

static void no_result(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  (void)b;
  (void)arguments;
  (void)results;
  (void)user;
}

#define BREAKS(X)                                                                                                       \
  X(tt_hlo_add(b, o.x, o.y), "stablehlo.add: operands must be of one type, got Float[2, 3], Float[3, 2]")               \
  X(tt_hlo_add(b, o.x, o.i), "Float[2, 3], Int[2, 3]")                                                                  \
  X(tt_hlo_add(b, o.x, NULL), "stablehlo.add: operand 1 of 2 is absent")                                                \
  X(tt_hlo_maximum(b, o.z, o.z), "stablehlo.maximum: dtype does not fit")                                               \
  X(tt_hlo_remainder(b, o.z, o.z), "stablehlo.remainder: dtype")                                                        \
  X(tt_hlo_subtract(b, o.p, o.p), "stablehlo.subtract: dtype")                                                          \
  X(tt_hlo_exponential(b, o.i), "stablehlo.exponential: dtype does not fit, got Int[2, 3]")                             \
  X(tt_hlo_unary(b, "stablehlo.nothing", o.x), "unknown unary op")                                                      \
  X(tt_hlo_compare(b, TT_LT, o.z, o.z), "no order")                                                                     \
  X(tt_hlo_compare(b, TT_EQ, o.x, o.s), "compare EQ")                                                                   \
  X(tt_hlo_select(b, o.x, o.x, o.x), "select: wants a Bool")                                                            \
  X(tt_hlo_clamp(b, o.s, o.x, o.s), "clamp")                                                                            \
  X(tt_hlo_complex(b, o.i, o.i), "complex")                                                                             \
  X(tt_hlo_convert(b, o.x, TT_DTYPE_NONE), "convert: unknown dtype")                                                    \
  X(tt_hlo_reduce_precision(b, o.i, 5, 2), "reduce_precision")                                                          \
  X(tt_hlo_constant(b, TT_DTYPE_NONE, 0), "constant: dtype 0")                                                          \
  X(tt_hlo_constant_complex(b, TT_F32, 0, 0), "constant_complex")                                                       \
  X(tt_hlo_max_value(b, TT_C64), "no order")                                                                            \
  X(tt_hlo_splat(b, TT_F32, DIMS(-1), 0), "negative or too large")                                                      \
  X(tt_hlo_splat(b, TT_F32, DIMS(INT64_MAX, 4), 0), "negative or too large")                                            \
  X(tt_hlo_iota(b, TT_S32, DIMS(4), 1), "iota")                                                                         \
  X(tt_hlo_reshape(b, o.x, DIMS(7)), "reshape: another number of elements in [7]")                                      \
  X(tt_hlo_transpose(b, o.x, INTS(0, 0)), "not a permutation")                                                          \
  X(tt_hlo_reverse(b, o.x, 1, INTS(2)), "reverse")                                                                      \
  X(tt_hlo_broadcast_in_dim(b, o.x, DIMS(2, 4), INTS(0, 1)), "broadcast_in_dim: does not broadcast to [2, 4]")          \
  X(tt_hlo_slice_dim(b, o.x, 1, 2, 4, 1), "slice: [2:4:1] is out of range in dimension 1")                              \
  X(tt_hlo_slice_dim(b, o.x, 2, 0, 1, 1), "dimension 2 is out of range")                                                \
  X(tt_hlo_dynamic_slice(b, o.x, (tt_value *[]){o.s, o.s}, I64S(1, 1)), "start 0 is not a scalar of the common integer") \
  X(tt_hlo_dynamic_update_slice(b, o.x, o.y, NULL), "the update does not fit")                                          \
  X(tt_hlo_pad(b, o.x, o.s, I64S(-3, 0), I64S(0, 0), I64S(0, 0)), "pad: low -3")                                        \
  X(tt_hlo_pad(b, o.x, o.x, I64S(0, 0), I64S(0, 0), I64S(0, 0)), "scalar fill")                                         \
  X(tt_hlo_concatenate(b, 2, (tt_value *[]){o.x, o.y}, 0), "operand 1 does not fit along dimension 0")                  \
  X(tt_hlo_concatenate(b, 0, NULL, 0), "no operands")                                                                   \
  X(tt_hlo_squeeze_dim(b, o.x, 0), "not of size 1")                                                                     \
  X(tt_hlo_unsqueeze_dim(b, o.x, 3), "out of range")                                                                    \
  X(tt_hlo_bitcast_convert(b, o.x, TT_U8, DIMS(2, 3)), "does not become Byte[2, 3]")                                    \
  X(tt_hlo_reduce(b, o.x, TT_REDUCE_AND, 1, INTS(0)), "does not take this dtype")                                       \
  X(tt_hlo_reduce(b, o.x, TT_REDUCE_ADD, 2, INTS(0, 0)), "repeated")                                                    \
  X(tt_hlo_reduce_window(b, o.x, TT_REDUCE_ADD, &(tt_window){.stride = I64S(0, 1)}), "window does not fit")             \
  X(tt_hlo_select_and_scatter_add(b, o.x, o.x, &(tt_window){.size = I64S(2, 2)}), "select_and_scatter")                 \
  X(tt_hlo_gather(b, o.x, o.x, &(tt_gather){0}), "gather: the dimension numbers do not fit")                            \
  X(tt_hlo_scatter(b, o.x, o.i, o.y, &(tt_scatter){0}, TT_COMBINE_ADD), "scatter: the dimension numbers do not fit")    \
  X(tt_hlo_dot_general(b, o.x, o.x, &(tt_dot){.contract_count = 1, .lhs_contract = INTS(1), .rhs_contract = INTS(0)},   \
                       TT_F32, TT_PRECISION_HIGHEST), "dot_general")                                                    \
  X(tt_hlo_convolution(b, o.x, o.x, &(tt_convolution){.spatial = 1}, TT_F32, TT_PRECISION_HIGHEST), "convolution")      \
  X(tt_hlo_cholesky(b, o.x, true), "cholesky")                                                                          \
  X(tt_hlo_triangular_solve(b, o.x, o.x, true, true, true, "NO_TRANSPOSE"), "triangular_solve")                         \
  X(tt_hlo_fft(b, o.x, "FFT", 1, I64S(3)), "FFT of lengths [3]")                                                        \
  X(tt_hlo_rng_bits(b, o.x, TT_U32, DIMS(4)), "rng_bits")                                                               \
  X((tt_hlo_sort(b, 1, &o.x, 1, true, wrong_result, NULL, &o.y), o.y), "not of type Bool[]")                            \
  X((tt_hlo_sort(b, 1, &o.x, 2, true, wrong_result, NULL, &o.y), o.y), "wants one shape with dimension 2")              \
  X((tt_hlo_while(b, 1, &o.x, no_result, wrong_result, NULL, &o.y), o.y), "while condition: operand 0 of 1 is absent")  \
  X((tt_hlo_when(b, o.x, 1, &o.x, wrong_result, NULL, &o.y), o.y), "while condition")                                   \
  X((tt_hlo_case(b, o.x, 1, no_result, (void *[]){NULL}, 1, &o.x, &o.y), o.y), "case: wants an Int scalar and branches") \
  X((tt_hlo_case(b, tt_hlo_constant(b, TT_S32, 0), 1, no_result, (void *[]){NULL}, 1, &o.x, &o.y), o.y),                \
    "case: operand 0 of 1 is absent")

TEST(hlo_broken_rules_are_mismatches){
#define X(call, text)                                                                                                   \
  {                                                                                                                     \
    tt_builder *b = new_builder();                                                                                      \
    operands o = {matrix(b, TT_F32), tt_builder_parameter(b, TT_F32, DIMS(3, 2)), matrix(b, TT_S32),                    \
                  matrix(b, TT_C64), matrix(b, TT_BOOL), tt_builder_parameter(b, TT_F32, 0, NULL)};                     \
    (void)o;                                                                                                            \
    tt_value *result = call;                                                                                            \
    CHECK(result != NULL);                                                                                              \
    CHECK(tt_builder_failed(b));                                                                                        \
    CHECK_FAILS(tt_builder_take_status(b), TT_MISMATCH, text);                                                          \
    tt_builder_free(b);                                                                                                 \
  }
    BREAKS(X)
#undef X
}

TEST(hlo_broadcast_errors_read_like_torch) {
  tt_builder *b = new_builder();
  tt_value *x = matrix(b, TT_F32), *y = tt_builder_parameter(b, TT_F32, DIMS(4));
  tt_hlo_broadcast_both(b, &x, &y);
  CHECK_FAILS(tt_builder_take_status(b), TT_INVALID_ARGUMENT,
              "The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 1");
  tt_builder_free(b);
  b = new_builder();
  tt_hlo_broadcast_to(b, matrix(b, TT_F32), DIMS(5, 2, 4));
  CHECK_FAILS(tt_builder_take_status(b), TT_INVALID_ARGUMENT,
              "The expanded size of the tensor (4) must match the existing size (3) at non-singleton dimension 2.  "
              "Target sizes: [5, 2, 4].  Tensor sizes: [2, 3]");
  tt_builder_free(b);
}

TEST(hlo_alias_takes_an_output_once) {
  tt_builder *b = new_builder();
  for (int i = 0; i < 2; ++i) matrix(b, TT_F32);
  for (int i = 0; i < 2; ++i) tt_builder_alias(b, i, 5);
  CHECK_FAILS(tt_builder_take_status(b), TT_INTERNAL,
              "alias of parameter 1 and output 5: one is out of range or taken");
  tt_builder_free(b);
}

TEST(hlo_alias_wants_one_type) {
  tt_builder *b = new_builder();
  tt_value *x = matrix(b, TT_F32), *y = tt_hlo_convert(b, x, TT_F64);
  tt_builder_alias(b, 0, 0);
  const char *text;
  int64_t size;
  CHECK_FAILS(tt_builder_finish(b, 1, &y, &text, &size), TT_MISMATCH, "alias: parameter and output differ in type");
  tt_builder_free(b);
}

TEST(hlo_finish_wants_results) {
  tt_builder *b = new_builder();
  tt_value *x = NULL;
  const char *text;
  int64_t size;
  CHECK_FAILS(tt_builder_finish(b, 1, &x, &text, &size), TT_MISMATCH, "return: operand 0 of 1 is absent");
  tt_builder_free(b);
}

static void descending(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  (void)user;
  results[0] = tt_hlo_compare(b, TT_GT, arguments[0], arguments[1]);
}

static void below_five(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  (void)user;
  results[0] = tt_hlo_compare(b, TT_LT, arguments[0], tt_hlo_constant(b, TT_S32, 5));
}

// A branch that gives its `user`, a value from outside.
static void give_outside(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  (void)b, (void)arguments;
  results[0] = user;
}

static void count_up(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  (void)user;
  results[0] = tt_hlo_add(b, arguments[0], tt_hlo_constant(b, TT_S32, 1));
  results[1] = tt_hlo_multiply(b, arguments[1], tt_hlo_constant_like(b, arguments[1], 2));
}

// A softmax, a sort with indices, a loop and a gather: every way in which the builder allocates.
static tt_status build_program(void *user) {
  (void)user;
  tt_target target = {0};
  tt_builder *b;
  TT_TRY(tt_builder_create(&target, &b));
  for (int i = 0; i < 20; ++i) tt_builder_parameter(b, TT_F32, DIMS(2, 3)); // more than the first capacity
  tt_value *x = tt_builder_parameter(b, TT_F32, DIMS(4, 8)), *results[4];
  tt_value *top =
      tt_hlo_broadcast_to(b, tt_hlo_unsqueeze_dim(b, tt_hlo_reduce(b, x, TT_REDUCE_MAX, 1, INTS(1)), 1), DIMS(4, 8));
  tt_value *e = tt_hlo_exponential(b, tt_hlo_subtract(b, x, top));
  tt_value *sum = tt_hlo_unsqueeze_dim(b, tt_hlo_reduce(b, e, TT_REDUCE_ADD, 1, INTS(1)), 1);
  tt_hlo_broadcast_both(b, &e, &sum);
  results[0] = tt_hlo_divide(b, e, sum);
  tt_hlo_sort(b, 2, (tt_value *[]){x, tt_hlo_iota(b, TT_S32, DIMS(4, 8), 1)}, 1, true, descending, NULL, results + 1);
  tt_hlo_while(b, 2, (tt_value *[]){tt_hlo_constant(b, TT_S32, 0), results[0]}, below_five, count_up, NULL,
               results + 2);
  tt_hlo_when(b, tt_hlo_constant(b, TT_BOOL, 1), 2, results + 2, count_up, NULL, results + 2);
  tt_hlo_case(b, results[2], 2, give_outside, (void *[]){results[0], results[3]}, 1, results, results);
  tt_gather numbers = {1, INTS(1), 1, INTS(0), 0, NULL, NULL, 1, INTS(0), 1, I64S(1, 8)};
  results[2] = tt_hlo_gather(b, x, tt_hlo_constant_vector(b, TT_S64, 3, I64S(3, 0, 3)), &numbers);
  const char *text;
  int64_t size;
  tt_status status = tt_builder_finish(b, 4, results, &text, &size);
  tt_builder_free(b);
  return status;
}

TEST(hlo_each_allocation_failing) {
  CHECK_OK(build_program(NULL));
  test_each_allocation_failing(build_program, NULL);
}

// ---- plugins ---------------------------------------------------------------------------------------------------------

// Results of the program that is being built.
typedef struct program {
  tt_builder *b;
  int count;
  tt_value *results[128];
} program;

static void keep(program *p, tt_value *x) {
  CHECK(p->count < (int)COUNT_OF(p->results));
  p->results[p->count++] = x;
}

// Builds a program for `dtype` by `build` and compiles it: the compiler's verifier checks each type and attribute.
static void compile_program(tt_client *client, tt_dtype dtype, void (*build)(program *p, tt_dtype dtype)) {
  program p = {.b = new_builder()};
  build(&p, dtype);
  const char *text;
  int64_t size;
  CHECK_OK(tt_builder_finish(p.b, p.count, p.results, &text, &size));
  tt_compile_options options = {0};
  tt_executable *executable;
  CHECK_OK(tt_executable_compile(client, text, size, &options, &executable));
  tt_executable_release(executable);
  tt_builder_free(p.b);
}

static tt_client *new_client(void) {
  int64_t live = tt_memory_live_count();
  tt_plugin *plugin;
  CHECK_OK(tt_plugin_open_file(test_plugin_path(), &plugin));
  test_keeps_blocks(tt_memory_live_count() - live); // plugins stay
  tt_client *client;
  CHECK_OK(tt_client_create(plugin, 1, &client));
  return client;
}

typedef tt_value *unary_function(tt_builder *b, tt_value *x);
typedef tt_value *binary_function(tt_builder *b, tt_value *x, tt_value *y);

#define X(name, text) tt_hlo_##name,
static unary_function *const unary_functions[] = {TT_HLO_UNARY(X)};
static binary_function *const binary_functions[] = {TT_HLO_BINARY(X)};
#undef X

// Would this op of one or two operands take the dtype? Asks a builder that is thrown away.
static bool takes(unary_function *unary, binary_function *binary, tt_dtype dtype) {
  tt_builder *b = new_builder();
  tt_value *x = tt_builder_parameter(b, dtype, DIMS(4));
  if (unary != NULL) unary(b, x);
  if (binary != NULL) binary(b, x, x);
  bool taken = !tt_builder_failed(b);
  tt_builder_free(b);
  return taken;
}

static void build_elementwise(program *p, tt_dtype dtype) {
  tt_value *x = tt_builder_parameter(p->b, dtype, DIMS(4)), *y = tt_builder_parameter(p->b, dtype, DIMS(4));
  for (size_t i = 0; i < COUNT_OF(unary_functions); ++i) {
    if (takes(unary_functions[i], NULL, dtype)) keep(p, unary_functions[i](p->b, x));
  }
  for (size_t i = 0; i < COUNT_OF(binary_functions); ++i) {
    if (takes(NULL, binary_functions[i], dtype)) keep(p, binary_functions[i](p->b, x, y));
  }
  keep(p, tt_hlo_compare(p->b, TT_NE, x, y));
  keep(p, tt_hlo_select(p->b, tt_hlo_compare(p->b, TT_EQ, x, y), x, y));
  keep(p, tt_hlo_is_finite(p->b, x));
  keep(p, tt_hlo_is_nan(p->b, x));
  keep(p, tt_hlo_is_inf(p->b, x));
  keep(p, tt_hlo_optimization_barrier(p->b, x));
  if (tt_dtype_is_float(dtype)) keep(p, tt_hlo_reduce_precision(p->b, x, 4, 3));
}

static void build_conversions(program *p, tt_dtype dtype) {
  tt_value *x = tt_builder_parameter(p->b, dtype, DIMS(2, 3));
  for (int to = TT_DTYPE_NONE + 1; to < TT_DTYPE_COUNT; ++to) {
    keep(p, tt_hlo_convert(p->b, x, (tt_dtype)to));
    int from_size = tt_dtype_size(dtype), to_size = tt_dtype_size((tt_dtype)to);
    tt_value *whole = tt_builder_parameter(p->b, dtype, DIMS(5, from_size < to_size ? to_size / from_size : 1));
    int64_t dims[] = {5, 1, from_size / to_size};
    keep(p, tt_hlo_bitcast_convert(p->b, whole, (tt_dtype)to,
                                   from_size < to_size   ? 1
                                   : from_size > to_size ? 3
                                                         : 2,
                                   dims));
  }
}

static void build_constants(program *p, tt_dtype dtype) {
  static const double values[] = {0, 1, -1, 0.1, -0.0, 300.7, 1e30, INFINITY, -INFINITY, NAN};
  for (size_t i = 0; i < COUNT_OF(values); ++i) keep(p, tt_hlo_constant(p->b, dtype, values[i]));
  keep(p, tt_hlo_constant_i64(p->b, dtype, INT64_MIN));
  keep(p, tt_hlo_constant_vector(p->b, dtype, 0, NULL));
  keep(p, tt_hlo_constant_vector(p->b, dtype, 2, I64S(1, 0)));
  keep(p, tt_hlo_splat(p->b, dtype, DIMS(0, 3), 1));
  if (dtype != TT_BOOL) keep(p, tt_hlo_iota(p->b, dtype, DIMS(2, 3), 1));
  if (!tt_dtype_is_complex(dtype)) {
    keep(p, tt_hlo_max_value(p->b, dtype));
    keep(p, tt_hlo_min_value(p->b, dtype));
  }
}

static void build_movement(program *p, tt_dtype dtype) {
  tt_builder *b = p->b;
  tt_value *x = matrix(b, dtype), *zero = tt_hlo_constant(b, dtype, 0), *one = tt_hlo_constant(b, TT_S32, 1);
  tt_value *starts[] = {one, one};
  keep(p, tt_hlo_reshape(b, x, DIMS(3, 2)));
  keep(p, tt_hlo_transpose(b, x, INTS(1, 0)));
  keep(p, tt_hlo_reverse(b, x, 2, INTS(1, 0)));
  keep(p, tt_hlo_broadcast_to(b, x, DIMS(4, 2, 3)));
  keep(p, tt_hlo_slice_dim(b, x, 1, 0, 3, 2));
  keep(p, tt_hlo_slice_dim(b, x, 0, 1, 1, 1));
  keep(p, tt_hlo_pad(b, x, zero, I64S(1, 0), I64S(0, -1), I64S(1, 0)));
  keep(p, tt_hlo_pad(b, x, zero, I64S(-1, 1), I64S(0, -2), I64S(0, 1)));
  keep(p, tt_hlo_concatenate(b, 2, (tt_value *[]){x, x}, 0));
  tt_value *part = tt_hlo_dynamic_slice(b, x, starts, I64S(1, 2));
  keep(p, part);
  keep(p, tt_hlo_dynamic_update_slice(b, x, part, starts));
}

static bool reduces(tt_reduction kind, tt_dtype dtype) {
  if (kind >= TT_REDUCE_AND) return dtype == TT_BOOL || tt_dtype_is_integral(dtype);
  return kind <= TT_REDUCE_MULTIPLY || !tt_dtype_is_complex(dtype);
}

static void build_reductions(program *p, tt_dtype dtype) {
  tt_builder *b = p->b;
  tt_value *x = matrix(b, dtype), *empty = tt_builder_parameter(b, dtype, DIMS(0, 3));
  tt_window window = {.size = I64S(2, 2), .stride = I64S(1, 2), .pad_low = I64S(0, 1), .window_dilation = I64S(1, 2)};
  for (int kind = TT_REDUCE_ADD; kind <= TT_REDUCE_OR; ++kind) {
    if (!reduces((tt_reduction)kind, dtype)) continue;
    keep(p, tt_hlo_reduce(b, x, (tt_reduction)kind, 1, INTS(1)));
    keep(p, tt_hlo_reduce(b, empty, (tt_reduction)kind, 2, INTS(0, 1)));
    keep(p, tt_hlo_reduce_window(b, x, (tt_reduction)kind, &window));
  }
  if (tt_dtype_is_complex(dtype)) return;
  tt_value *xs[] = {x, tt_hlo_iota(b, TT_S32, DIMS(2, 3), 1)}, *results[2];
  tt_value *initial[] = {tt_hlo_min_value(b, dtype), tt_hlo_constant(b, TT_S32, 0)};
  tt_hlo_reduce_with(b, 2, xs, initial, 1, INTS(1), argmax, NULL, results);
  keep(p, results[1]);
  tt_hlo_reduce_window_with(b, 2, xs, initial, &window, argmax, NULL, results);
  keep(p, results[1]);
  tt_hlo_sort(b, 2, xs, 1, true, descending, NULL, results);
  keep(p, results[1]);
  keep(p, tt_hlo_select_and_scatter_add(b, x, tt_hlo_splat(b, dtype, DIMS(1, 2), 1), &(tt_window){.size = I64S(2, 2)}));
}

static void build_indexing(program *p, tt_dtype dtype) {
  tt_builder *b = p->b;
  tt_value *x = tt_builder_parameter(b, dtype, DIMS(4, 8)), *rows = tt_builder_parameter(b, TT_S64, DIMS(2, 3));
  tt_value *columns = tt_builder_parameter(b, TT_S32, DIMS(4, 2));
  tt_gather take_rows = {1, INTS(2), 1, INTS(0), 0, NULL, NULL, 1, INTS(0), 2, I64S(1, 8)};
  tt_gather take_columns = {0, NULL, 1, INTS(1), 1, INTS(0), INTS(0), 1, INTS(1), 2, I64S(1, 1)};
  tt_value *some_rows = tt_hlo_gather(b, x, rows, &take_rows),
           *some_columns = tt_hlo_gather(b, x, columns, &take_columns);
  keep(p, some_rows);
  keep(p, some_columns);
  tt_scatter put_rows = {1, INTS(2), 1, INTS(0), 0, NULL, NULL, 1, INTS(0), 2, false, false};
  tt_scatter put_columns = {0, NULL, 1, INTS(1), 1, INTS(0), INTS(0), 1, INTS(1), 2, true, true};
  for (int combine = TT_COMBINE_REPLACE; combine <= TT_COMBINE_MIN; ++combine) {
    if (combine >= TT_COMBINE_MAX && tt_dtype_is_complex(dtype)) continue;
    keep(p, tt_hlo_scatter(b, x, rows, some_rows, &put_rows, (tt_combine)combine));
    keep(p, tt_hlo_scatter(b, x, columns, some_columns, &put_columns, (tt_combine)combine));
  }
  tt_value *results[2];
  tt_hlo_while(b, 2, (tt_value *[]){tt_hlo_constant(b, TT_S32, 0), x}, below_five, count_up, NULL, results);
  keep(p, results[1]);
  tt_hlo_case(b, results[0], 2, give_outside, (void *[]){x, results[1]}, 1, &x, results);
  keep(p, results[0]);
  tt_value *none = tt_hlo_constant(b, TT_BOOL, 0);
  tt_hlo_when(b, none, 2, (tt_value *[]){tt_hlo_constant(b, TT_S32, 0), x}, count_up, NULL, results);
  keep(p, results[1]);
}

static void build_contractions(program *p, tt_dtype dtype) {
  tt_builder *b = p->b;
  tt_value *x = tt_builder_parameter(b, dtype, DIMS(2, 4, 8)), *y = tt_builder_parameter(b, dtype, DIMS(2, 8, 3));
  tt_dot batched = {1, INTS(0), INTS(0), 1, INTS(2), INTS(1)}, outer = {0};
  keep(p, tt_hlo_dot_general(b, x, y, &batched, dtype, TT_PRECISION_MEDIUM));
  keep(p, tt_hlo_dot_general(b, x, y, &outer, dtype, TT_PRECISION_HIGH));
  if (tt_dtype_is_narrow_float(dtype)) keep(p, tt_hlo_dot_general(b, x, y, &batched, TT_F32, TT_PRECISION_HIGHEST));
  int64_t sizes[] = {2, 4, 8, 7, 6}, filter_sizes[] = {6, 2, 3, 2, 2};
  for (int spatial = 0; spatial <= 3; ++spatial) {
    tt_value *input = tt_builder_parameter(b, dtype, 2 + spatial, sizes);
    tt_value *filter = tt_builder_parameter(b, dtype, 2 + spatial, filter_sizes);
    tt_convolution numbers = {.spatial = spatial,
                              .stride = I64S(2, 1, 1),
                              .pad_low = I64S(1, 0, 1),
                              .pad_high = I64S(0, 1, -1),
                              .lhs_dilation = I64S(1, 2, 1),
                              .rhs_dilation = I64S(2, 1, 1),
                              .feature_groups = 2,
                              .batch_groups = 1};
    keep(p, tt_hlo_convolution(b, input, filter, &numbers, dtype, TT_PRECISION_HIGHEST));
  }
  tt_convolution turned = {.spatial = 2,
                           .feature_groups = 1,
                           .batch_groups = 1,
                           .dimension_numbers = "[f, 0, b, 1] x [i, o, 0, 1] -> [0, 1, b, f]"};
  tt_value *input = tt_builder_parameter(b, dtype, DIMS(4, 9, 2, 7)),
           *filter = tt_builder_parameter(b, dtype, DIMS(4, 5, 3, 2));
  keep(p, tt_hlo_convolution(b, input, filter, &turned, dtype, TT_PRECISION_MEDIUM));
}

static void build_linalg(program *p, tt_dtype dtype) {
  tt_builder *b = p->b;
  tt_value *a = tt_builder_parameter(b, dtype, DIMS(5, 2, 2)), *x = tt_builder_parameter(b, dtype, DIMS(5, 2, 3));
  keep(p, tt_hlo_cholesky(b, a, true));
  keep(p, tt_hlo_triangular_solve(b, a, x, true, false, true, "ADJOINT"));
  keep(p, tt_hlo_triangular_solve(b, a, tt_hlo_transpose(b, x, INTS(0, 2, 1)), false, true, false, "NO_TRANSPOSE"));
  keep(p,
       tt_dtype_is_complex(dtype) ? tt_hlo_fft(b, x, "IFFT", 2, I64S(2, 3)) : tt_hlo_fft(b, x, "RFFT", 2, I64S(2, 3)));
  keep(p, tt_dtype_is_complex(dtype) ? tt_hlo_fft(b, x, "IRFFT", 1, I64S(5)) : x);
  tt_value *state = tt_builder_parameter(b, TT_U64, DIMS(2));
  keep(p, tt_hlo_rng_bits(b, state, TT_U32, DIMS(2, 3)));
  keep(p, tt_hlo_rng_bits(b, state, TT_U64, DIMS(0)));
}

typedef struct case_of {
  tt_dtype dtype; // one of each kind that prints or is checked in a way of its own
  void (*build)(program *p, tt_dtype dtype);
} case_of;

static void compile_all(size_t count, const case_of *cases) {
  tt_client *client = new_client();
  for (size_t i = 0; i < count; ++i) compile_program(client, cases[i].dtype, cases[i].build);
  tt_client_destroy(client);
}

// x / y or its remainder of a dtype on a target; does the text hold a division of 64-bit integers?
static bool divides_wide(bool is_tpu, tt_dtype dtype, bool remainder) {
  tt_target target = {.is_tpu = is_tpu};
  tt_builder *b;
  CHECK_OK(tt_builder_create(&target, &b));
  tt_value *x = matrix(b, dtype), *y = matrix(b, dtype);
  tt_value *result = remainder ? tt_hlo_remainder(b, x, y) : tt_hlo_divide(b, x, y);
  const char *text;
  int64_t size;
  CHECK_OK(tt_builder_finish(b, 1, &result, &text, &size));
  bool wide = false;
  for (const char *line = text; line; line = strchr(line + 1, '\n')) {
    const char *end = strchr(line + 1, '\n');
    size_t length = end ? (size_t)(end - line) : strlen(line);
    bool divides = memmem(line, length, "stablehlo.divide", 16) || memmem(line, length, "stablehlo.remainder", 19);
    wide |= divides && memmem(line, length, "i64>", 4);
  }
  tt_builder_free(b);
  return wide;
}

TEST(hlo_wide_division_is_written_out_for_a_tpu) {
  for (int remainder = 0; remainder < 2; ++remainder) {
    CHECK(divides_wide(false, TT_S64, remainder));
    CHECK(!divides_wide(true, TT_S64, remainder));
    CHECK(!divides_wide(true, TT_U64, remainder));
  }
}

PLUGIN_TEST(hlo_plugins_take_every_constant) {
  case_of cases[TT_DTYPE_COUNT - 1];
  for (int i = 0; i < TT_DTYPE_COUNT - 1; ++i) cases[i] = (case_of){(tt_dtype)(i + 1), build_constants};
  compile_all(COUNT_OF(cases), cases);
}

PLUGIN_TEST(hlo_plugins_take_every_conversion) {
  static const case_of cases[] = {{TT_BOOL, build_conversions},
                                  {TT_S64, build_conversions},
                                  {TT_F8E4M3FN, build_conversions},
                                  {TT_C64, build_conversions}};
  compile_all(COUNT_OF(cases), cases);
}

PLUGIN_TEST(hlo_plugins_take_every_elementwise_op) {
  static const case_of cases[] = {{TT_BOOL, build_elementwise},
                                  {TT_U8, build_elementwise},
                                  {TT_F32, build_elementwise},
                                  {TT_C64, build_elementwise}};
  compile_all(COUNT_OF(cases), cases);
}

PLUGIN_TEST(hlo_plugins_take_every_structural_op) {
  static const case_of cases[] = {{TT_F32, build_movement},
                                  {TT_BOOL, build_reductions},
                                  {TT_F32, build_reductions},
                                  {TT_F32, build_indexing},
                                  {TT_C64, build_indexing}};
  compile_all(COUNT_OF(cases), cases);
}

PLUGIN_TEST(hlo_plugins_take_every_linear_op) {
  static const case_of cases[] = {
      {TT_S64, build_contractions}, {TT_BF16, build_contractions}, {TT_F32, build_linalg}, {TT_C64, build_linalg}};
  compile_all(COUNT_OF(cases), cases);
}
