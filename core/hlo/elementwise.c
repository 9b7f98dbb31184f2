// elementwise.c - ops that work element by element, conversions between element types, and complex numbers.
//
// Which dtypes an op takes is written in one table and checked here: XLA refuses a wrong one with an MLIR parse error at
// best, and aborts the process at worst (ordering or converting complex numbers, the remainder of complex numbers).
#include <math.h>
#include <string.h>

#include "hlo/internal.h"

// --- printing -------------------------------------------------------------------------------------------------------------------

static bool is_chlo(const char *op) { return op[0] == 'c'; }

static tt_value *lies_like(tt_value *result, int count, tt_value *const *xs) {
  for (int i = 0; i < count && result != &tt_hlo_poison; ++i) result->transposed |= xs[i]->transposed;
  return result;
}

// "%3 = op %1, %2 : type" for ops whose operands and result are of one type; CHLO wants all of them spelled out.
static tt_value *emit_same_type(tt_builder *b, const char *op, int count, tt_value *const *xs) {
  tt_value *result = tt_emit_result(b, op, xs[0]->dtype, xs[0]->rank, xs[0]->dims);
  tt_emit_values(b, " ", count, xs);
  tt_emit(b, " : ");
  if (is_chlo(op)) {
    tt_emit_types(b, count, xs);
    tt_emit(b, " -> ");
  }
  tt_emit_type(&b->body, result);
  tt_emit(b, "\n");
  return lies_like(result, count, xs);
}

// "%3 = op %1, %2 : (types) -> type" with a result of another dtype.
static tt_value *emit_typed(tt_builder *b, const char *op, int count, tt_value *const *xs, tt_dtype dtype) {
  tt_value *result = tt_emit_result(b, op, dtype, xs[0]->rank, xs[0]->dims);
  tt_emit_values(b, " ", count, xs);
  return lies_like(tt_emit_signature(b, count, xs, result), count, xs);
}

static tt_value *emit_plain(tt_builder *b, const char *op, tt_value *x) { return emit_same_type(b, op, 1, &x); }

// StableHLO's abs and sign know no unsigned numbers, abs of a complex number is real, and conj of a real one is itself.
static bool is_unsigned(const tt_value *x) { return tt_dtype_is_integral(x->dtype) && !tt_dtype_is_signed(x->dtype); }

static tt_value *emit_abs(tt_builder *b, const char *op, tt_value *x) {
  if (is_unsigned(x)) return x;
  return emit_typed(b, op, 1, &x, tt_dtype_real(x->dtype));
}

static tt_value *emit_sign(tt_builder *b, const char *op, tt_value *x) {
  if (is_unsigned(x)) return tt_hlo_convert(b, tt_hlo_convert(b, x, TT_BOOL), x->dtype);
  return emit_plain(b, op, x);
}

static tt_value *emit_conj(tt_builder *b, const char *op, tt_value *x) {
  return tt_dtype_is_complex(x->dtype) ? emit_plain(b, op, x) : x;
}

// The plugins have no expansion of these for 8-bit floats.
static tt_value *emit_widened(tt_builder *b, const char *op, tt_value *x) {
  if (!tt_hlo_is_f8(x->dtype)) return emit_plain(b, op, x);
  return tt_hlo_convert(b, emit_plain(b, op, tt_hlo_convert(b, x, TT_F32)), x->dtype);
}

enum { RSQRT_ELEMENTS = 1 << 18 }; // for 65,536 rsqrt takes 17 us and the division 23, for 1M 2,000 and 320

// XLA would make the reciprocal of a square root an rsqrt again if it saw that the dividend is 1.
static tt_value *emit_rsqrt(tt_builder *b, const char *op, tt_value *x) {
  bool divides =
      b->target.rsqrt_by_division && (x->dtype == TT_F32 || x->dtype == TT_F64) && tt_value_count(x) > RSQRT_ELEMENTS;
  if (!divides) return emit_plain(b, op, x);
  tt_value *one = tt_hlo_optimization_barrier(b, tt_hlo_constant(b, x->dtype, 1));
  return tt_hlo_divide(b, tt_hlo_broadcast_like(b, one, x), tt_hlo_sqrt(b, x));
}

// --- which dtypes an op takes, and how it prints ----------------------------------------------------------------------------------

enum {
  B = 1 << TT_CATEGORY_BOOL,
  I = 1 << TT_CATEGORY_INTEGER,
  F = 1 << TT_CATEGORY_FLOAT,
  C = 1 << TT_CATEGORY_COMPLEX
};

typedef struct unary_rule {
  const char *op;
  int categories;
  tt_value *(*emit)(tt_builder *b, const char *op, tt_value *x);
} unary_rule;

typedef struct binary_rule {
  const char *op;
  int categories;
} binary_rule;

static const unary_rule unary_rules[] = {
    {"stablehlo.abs", I | F | C, emit_abs},
    {"stablehlo.negate", I | F | C, emit_plain},
    {"stablehlo.sign", I | F | C, emit_sign},
    {"stablehlo.exponential", F | C, emit_plain},
    {"stablehlo.exponential_minus_one", F | C, emit_plain},
    {"stablehlo.log", F | C, emit_plain},
    {"stablehlo.log_plus_one", F | C, emit_plain},
    {"stablehlo.logistic", F | C, emit_plain},
    {"stablehlo.sqrt", F | C, emit_plain},
    {"stablehlo.rsqrt", F | C, emit_rsqrt},
    {"stablehlo.cbrt", F, emit_plain},
    {"stablehlo.tanh", F | C, emit_plain},
    {"stablehlo.sine", F | C, emit_plain},
    {"stablehlo.cosine", F | C, emit_plain},
    {"stablehlo.tan", F | C, emit_plain},
    {"stablehlo.floor", F, emit_plain},
    {"stablehlo.ceil", F, emit_plain},
    {"stablehlo.round_nearest_even", F, emit_plain},
    {"stablehlo.not", B | I, emit_plain},
    {"stablehlo.popcnt", I, emit_plain},
    {"stablehlo.count_leading_zeros", I, emit_plain},
    {"chlo.erf", F, emit_plain},
    {"chlo.erfc", F, emit_widened},
    {"chlo.erf_inv", F, emit_plain},
    {"chlo.asin", F | C, emit_plain},
    {"chlo.acos", F | C, emit_plain},
    {"chlo.atan", F | C, emit_plain},
    {"chlo.sinh", F | C, emit_plain},
    {"chlo.cosh", F | C, emit_plain},
    {"chlo.asinh", F | C, emit_plain},
    {"chlo.acosh", F | C, emit_plain},
    {"chlo.atanh", F | C, emit_plain},
    {"chlo.bessel_i1e", F, emit_widened},
    {"chlo.conj", B | I | F | C, emit_conj},
};

static const binary_rule binary_rules[] = {
    {"stablehlo.add", B | I | F | C},
    {"stablehlo.subtract", I | F | C},
    {"stablehlo.multiply", B | I | F | C},
    {"stablehlo.divide", I | F | C},
    {"stablehlo.remainder", I | F},
    {"stablehlo.power", I | F | C},
    {"stablehlo.atan2", F | C},
    {"stablehlo.maximum", B | I | F},
    {"stablehlo.minimum", B | I | F},
    {"stablehlo.and", B | I},
    {"stablehlo.or", B | I},
    {"stablehlo.xor", B | I},
    {"stablehlo.shift_left", I},
    {"stablehlo.shift_right_arithmetic", I},
    {"stablehlo.shift_right_logical", I},
    {"chlo.next_after", F},
};

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

static bool takes(int categories, tt_dtype dtype) { return (categories >> tt_dtype_category(dtype) & 1) != 0; }

// --- unary and binary -----------------------------------------------------------------------------------------------------------

static const unary_rule *find_unary(const char *op) {
  for (size_t i = 0; i < COUNT_OF(unary_rules); ++i) {
    if (strcmp(unary_rules[i].op, op) == 0) return &unary_rules[i];
  }
  return NULL;
}

static const binary_rule *find_binary(const char *op) {
  for (size_t i = 0; i < COUNT_OF(binary_rules); ++i) {
    if (strcmp(binary_rules[i].op, op) == 0) return &binary_rules[i];
  }
  return NULL;
}

tt_value *tt_hlo_unary(tt_builder *b, const char *op, tt_value *x) {
  if (!TT_HLO_READY(b, op, x)) return &tt_hlo_poison;
  const unary_rule *rule = find_unary(op);
  if (rule == NULL) return TT_HLO_REFUSE(b, op, "unknown unary op", x);
  if (!takes(rule->categories, x->dtype)) return TT_HLO_REFUSE(b, op, "dtype does not fit", x);
  return rule->emit(b, op, x);
}

tt_value *tt_hlo_binary(tt_builder *b, const char *op, tt_value *x, tt_value *y) {
  if (!TT_HLO_READY(b, op, x, y)) return &tt_hlo_poison;
  const binary_rule *rule = find_binary(op);
  if (rule == NULL) return TT_HLO_REFUSE(b, op, "unknown binary op", x, y);
  if (!tt_hlo_same_type(x, y)) return TT_HLO_REFUSE(b, op, "operands must be of one type", x, y);
  if (!takes(rule->categories, x->dtype)) return TT_HLO_REFUSE(b, op, "dtype does not fit", x, y);
  if (b->target.is_tpu && (x->dtype == TT_S64 || x->dtype == TT_U64)) {
    const bool remainder = strcmp(op, "stablehlo.remainder") == 0;
    if (remainder || strcmp(op, "stablehlo.divide") == 0) return tt_hlo_divide_wide(b, x, y, remainder);
  }
  return emit_same_type(b, op, 2, (tt_value *[]){x, y});
}

#define X(name, text)                                                                                                   \
  tt_value *tt_hlo_##name(tt_builder *b, tt_value *x) { return tt_hlo_unary(b, text, x); }
TT_HLO_UNARY(X)
#undef X
#define X(name, text)                                                                                                   \
  tt_value *tt_hlo_##name(tt_builder *b, tt_value *x, tt_value *y) { return tt_hlo_binary(b, text, x, y); }
TT_HLO_BINARY(X)
#undef X

// --- comparison and selection -----------------------------------------------------------------------------------------------------

tt_value *tt_hlo_compare(tt_builder *b, tt_compare direction, tt_value *x, tt_value *y) {
  static const char *const texts[] = {
      [TT_EQ] = "stablehlo.compare EQ,", [TT_NE] = "stablehlo.compare NE,", [TT_LT] = "stablehlo.compare LT,",
      [TT_LE] = "stablehlo.compare LE,", [TT_GT] = "stablehlo.compare GT,", [TT_GE] = "stablehlo.compare GE,"};
  if (!TT_HLO_READY(b, "compare", x, y)) return &tt_hlo_poison;
  if ((int)direction < TT_EQ || direction > TT_GE) return TT_HLO_REFUSE(b, "compare", "unknown direction", x, y);
  const char *op = texts[direction];
  if (!tt_hlo_same_type(x, y)) return TT_HLO_REFUSE(b, op, "operands must be of one type", x, y);
  if (tt_dtype_is_complex(x->dtype) && direction > TT_NE)
    return TT_HLO_REFUSE(b, op, "complex numbers have no order", x, y);
  return emit_typed(b, op, 2, (tt_value *[]){x, y}, TT_BOOL);
}

tt_value *tt_hlo_select(tt_builder *b, tt_value *predicate, tt_value *on_true, tt_value *on_false) {
  if (!TT_HLO_READY(b, "select", predicate, on_true, on_false)) return &tt_hlo_poison;
  if (predicate->dtype != TT_BOOL || !tt_value_same_shape(predicate, on_true) || !tt_hlo_same_type(on_true, on_false))
    return TT_HLO_REFUSE(b, "select", "wants a Bool and two operands of one type, all of one shape", predicate, on_true,
                         on_false);
  tt_value *result = tt_emit_result(b, "stablehlo.select", on_true->dtype, on_true->rank, on_true->dims);
  tt_emit_values(b, " ", 3, (tt_value *[]){predicate, on_true, on_false});
  tt_emit(b, " : ");
  tt_emit_types(b, 2, (tt_value *[]){predicate, on_true});
  tt_emit(b, "\n");
  return lies_like(result, 2, (tt_value *[]){on_true, on_false});
}

tt_value *tt_hlo_clamp(tt_builder *b, tt_value *low, tt_value *x, tt_value *high) {
  if (!TT_HLO_READY(b, "clamp", low, x, high)) return &tt_hlo_poison;
  if (!tt_hlo_same_type(low, x) || !tt_hlo_same_type(x, high) || tt_dtype_is_complex(x->dtype))
    return TT_HLO_REFUSE(b, "clamp", "operands must be of one ordered type", low, x, high);
  return emit_same_type(b, "stablehlo.clamp", 3, (tt_value *[]){low, x, high});
}

// --- classification -----------------------------------------------------------------------------------------------------------------

static tt_value *all_bool(tt_builder *b, const tt_value *x, bool value) {
  return tt_hlo_splat(b, TT_BOOL, x->rank, x->dims, value);
}

// 8-bit floats are judged as F32, which holds all their values: some of them have no infinity, or one NaN only.
static tt_value *as_judged(tt_builder *b, tt_value *x) {
  return tt_hlo_is_f8(x->dtype) ? tt_hlo_convert(b, x, TT_F32) : x;
}

// What `test` says of the real and of the imaginary part, joined. One call after the other: C leaves the order of arguments
// open, and the text of a program must not depend on the compiler.
static tt_value *of_parts(tt_builder *b, tt_value *(*test)(tt_builder *, tt_value *),
                          tt_value *(*join)(tt_builder *, tt_value *, tt_value *), tt_value *x) {
  tt_value *real = test(b, tt_hlo_real(b, x));
  tt_value *imag = test(b, tt_hlo_imag(b, x));
  return join(b, real, imag);
}

// What `judge` says of a float. Of a complex number both parts must be so for a test that is true of integers, and one of
// them for another.
static tt_value *classify(tt_builder *b, const char *op, tt_value *x, tt_value *(*judge)(tt_builder *, tt_value *),
                          bool of_integers) {
  if (!TT_HLO_READY(b, op, x)) return &tt_hlo_poison;
  if (tt_dtype_is_complex(x->dtype)) return of_parts(b, judge, of_integers ? tt_hlo_and : tt_hlo_or, x);
  if (!tt_dtype_is_float(x->dtype)) return all_bool(b, x, of_integers);
  return judge(b, as_judged(b, x));
}

static tt_value *judge_finite(tt_builder *b, tt_value *x) {
  return emit_typed(b, "stablehlo.is_finite", 1, &x, TT_BOOL);
}

static tt_value *judge_nan(tt_builder *b, tt_value *x) { return tt_hlo_compare(b, TT_NE, x, x); }

static tt_value *judge_inf(tt_builder *b, tt_value *x) {
  tt_value *magnitude = tt_hlo_abs(b, x);
  return tt_hlo_compare(b, TT_EQ, magnitude, tt_hlo_constant_like(b, x, HUGE_VAL));
}

tt_value *tt_hlo_is_finite(tt_builder *b, tt_value *x) { return classify(b, "is_finite", x, judge_finite, true); }
tt_value *tt_hlo_is_nan(tt_builder *b, tt_value *x) { return classify(b, "is_nan", x, judge_nan, false); }
tt_value *tt_hlo_is_inf(tt_builder *b, tt_value *x) { return classify(b, "is_inf", x, judge_inf, false); }

// --- conversion ---------------------------------------------------------------------------------------------------------------------

static tt_value *plain_convert(tt_builder *b, tt_value *x, tt_dtype dtype) {
  return x->dtype == dtype ? x : emit_typed(b, "stablehlo.convert", 1, &x, dtype);
}

static tt_value *convert_to_bool(tt_builder *b, tt_value *x) {
  if (b->failed) return &tt_hlo_poison;
  if (tt_dtype_is_complex(x->dtype)) return of_parts(b, convert_to_bool, tt_hlo_or, x);
  if (x->dtype == TT_BOOL) return x;
  x = as_judged(b, x);
  return tt_hlo_compare(b, TT_NE, x, tt_hlo_constant_like(b, x, 0)); // NaN != 0 is true
}

// XLA saturates a float at the limits of the integer dtype. torch on the CPU converts to a wider register and keeps the low
// bits: -1.0 is 255 as a uint8, 300.0 is 44. S64 in between does the same for everything that fits it.
static bool wraps(tt_dtype from, tt_dtype to) {
  return tt_dtype_is_float(from) && tt_dtype_is_integral(to) && (tt_dtype_size(to) < 4 || to == TT_U32);
}

// A Float8_e8m0fnu is a float's exponent. XLA makes NaN of zero and of negative numbers, torch 2^-127 and the magnitude.
static tt_value *convert_to_e8m0(tt_builder *b, tt_value *x) {
  x = tt_hlo_convert(b, x, TT_F32);
  tt_value *bits = tt_hlo_bitcast_convert(b, x, TT_U32, x->rank, x->dims);
  bits = tt_hlo_and(b, bits, tt_hlo_constant_like(b, bits, 0x7fffffff));
  // Half an exponent rounds up, but for the step to the smallest normal number.
  tt_value *is_subnormal = tt_hlo_compare(b, TT_LT, bits, tt_hlo_constant_like(b, bits, 0x800000));
  tt_value *below = tt_hlo_constant_like(b, bits, 0x3fffff), *at = tt_hlo_constant_like(b, bits, 0x400000);
  bits = tt_hlo_add(b, bits, tt_hlo_select(b, is_subnormal, below, at));
  tt_value *exponent = tt_hlo_shift_right_logical(b, bits, tt_hlo_constant_like(b, bits, 23));
  exponent = tt_hlo_minimum(b, exponent, tt_hlo_constant_like(b, exponent, 0xff)); // infinity and NaN
  exponent = tt_hlo_convert(b, exponent, TT_U8);
  return tt_hlo_bitcast_convert(b, exponent, TT_F8E8M0FNU, exponent->rank, exponent->dims);
}

tt_value *tt_hlo_convert(tt_builder *b, tt_value *x, tt_dtype dtype) {
  if (!TT_HLO_READY(b, "convert", x)) return &tt_hlo_poison;
  if (dtype <= TT_DTYPE_NONE || dtype >= TT_DTYPE_COUNT) return TT_HLO_REFUSE(b, "convert", "unknown dtype", x);
  if (x->dtype == dtype) return x;
  if (dtype == TT_BOOL) return convert_to_bool(b, x);
  bool from_complex = tt_dtype_is_complex(x->dtype), to_complex = tt_dtype_is_complex(dtype);
  if (from_complex && to_complex) return plain_convert(b, x, dtype);
  if (from_complex) return tt_hlo_convert(b, tt_hlo_real(b, x), dtype);
  if (dtype == TT_F8E8M0FNU) return convert_to_e8m0(b, x);
  if (to_complex) {
    tt_value *real = tt_hlo_convert(b, x, tt_dtype_real(dtype));
    return tt_hlo_complex(b, real, tt_hlo_constant_like(b, real, 0));
  }
  if (wraps(x->dtype, dtype)) x = plain_convert(b, x, TT_S64);
  return b->failed ? &tt_hlo_poison : plain_convert(b, x, dtype);
}

tt_value *tt_hlo_reduce_precision(tt_builder *b, tt_value *x, int exponent_bits, int mantissa_bits) {
  if (!TT_HLO_READY(b, "reduce_precision", x)) return &tt_hlo_poison;
  if (!tt_dtype_is_float(x->dtype) || exponent_bits < 1 || mantissa_bits < 0)
    return TT_HLO_REFUSE(b, "reduce_precision", "wants a float and at least e1m0", x);
  tt_value *result = tt_emit_result(b, "stablehlo.reduce_precision", x->dtype, x->rank, x->dims);
  tt_emit_values(b, " ", 1, &x);
  tt_emit(b, ", format = e");
  tt_emit_i64(b, exponent_bits);
  tt_emit(b, "m");
  tt_emit_i64(b, mantissa_bits);
  tt_emit(b, " : ");
  tt_emit_type(&b->body, result);
  tt_emit(b, "\n");
  return lies_like(result, 1, &x);
}

// --- complex numbers ------------------------------------------------------------------------------------------------------------------

tt_value *tt_hlo_real(tt_builder *b, tt_value *x) {
  if (!TT_HLO_READY(b, "real", x)) return &tt_hlo_poison;
  return tt_dtype_is_complex(x->dtype) ? emit_typed(b, "stablehlo.real", 1, &x, tt_dtype_real(x->dtype)) : x;
}

tt_value *tt_hlo_imag(tt_builder *b, tt_value *x) {
  if (!TT_HLO_READY(b, "imag", x)) return &tt_hlo_poison;
  if (!tt_dtype_is_complex(x->dtype)) return tt_hlo_constant_like(b, x, 0);
  return emit_typed(b, "stablehlo.imag", 1, &x, tt_dtype_real(x->dtype));
}

tt_value *tt_hlo_complex(tt_builder *b, tt_value *real, tt_value *imag) {
  if (!TT_HLO_READY(b, "complex", real, imag)) return &tt_hlo_poison;
  if (!tt_hlo_same_type(real, imag) || (real->dtype != TT_F32 && real->dtype != TT_F64))
    return TT_HLO_REFUSE(b, "complex", "wants two operands of one type, Float or Double", real, imag);
  return emit_typed(b, "stablehlo.complex", 2, (tt_value *[]){real, imag}, tt_dtype_complex(real->dtype));
}

void tt_hlo_optimization_barrier_n(tt_builder *b, int count, tt_value *const *xs, tt_value **out_results) {
  if (!TT_HLO_READY_N(b, "optimization_barrier", count, xs)) {
    tt_hlo_poison_all(count, out_results);
    return;
  }
  int64_t id = tt_emit_results(b, "stablehlo.optimization_barrier", count);
  tt_emit_values(b, " ", count, xs);
  tt_emit(b, " : ");
  tt_emit_types(b, count, xs);
  tt_emit(b, "\n");
  for (int i = 0; i < count; ++i)
    out_results[i] = tt_hlo_value(b, xs[i]->dtype, xs[i]->rank, xs[i]->dims, id, tt_hlo_result_sub(count, i));
}

tt_value *tt_hlo_optimization_barrier(tt_builder *b, tt_value *x) {
  if (!TT_HLO_READY(b, "optimization_barrier", x)) return &tt_hlo_poison;
  tt_value *result = emit_same_type(b, "stablehlo.optimization_barrier", 1, &x);
  if (result != &tt_hlo_poison) result->product = x->product;
  return result;
}
