// constant.c - constants, limits and iota.
//
// Integers print in decimal. Floats print as the bit pattern of their own width, which MLIR takes as it is, so no decimal
// conversion can lose a bit; small values with a short exact decimal print as such to keep programs readable.
#include <math.h>
#include <string.h>

#include "hlo/internal.h"

// --- element text -----------------------------------------------------------------------------------------------------------

static void emit_u64(tt_builder *b, uint64_t value) {
  char digits[20];
  int at = (int)sizeof digits;
  do {
    digits[--at] = (char)('0' + value % 10);
    value /= 10;
  } while (value != 0);
  tt_string_append_n(&b->body, digits + at, sizeof digits - (size_t)at);
}

static void emit_bits(tt_builder *b, const void *element, int size) {
  uint64_t bits = 0;
  memcpy(&bits, element, (size_t)size); // little-endian, like every host that PJRT plugins run on
  char text[18] = "0x";
  for (int i = 0; i < 2 * size; ++i) text[2 + i] = "0123456789ABCDEF"[bits >> (8 * size - 4 - 4 * i) & 15];
  tt_string_append_n(&b->body, text, 2 + 2 * (size_t)size);
}

// Halves up to 2 are exact in every float dtype but F8E8M0FNU; F32 and F64 hold thousandths only where they are eighths.
static bool has_short_decimal(tt_dtype dtype, double value) {
  if (dtype == TT_F8E8M0FNU || (value == 0 && signbit(value))) return false;
  bool wide = dtype == TT_F32 || dtype == TT_F64;
  double scale = wide ? 8 : 2, limit = wide ? 1e5 : 2;
  return fabs(value) <= limit && value * scale == floor(value * scale);
}

static void emit_decimal(tt_builder *b, double value) {
  if (value < 0) tt_emit(b, "-");
  int64_t thousandths = (int64_t)(fabs(value) * 1000);
  tt_emit_i64(b, thousandths / 1000);
  int fraction = (int)(thousandths % 1000);
  char digits[5] = {'.', (char)('0' + fraction / 100), (char)('0' + fraction / 10 % 10), (char)('0' + fraction % 10),
                    0};
  for (int last = 3; last > 1 && digits[last] == '0'; --last) digits[last] = 0;
  tt_emit(b, digits);
}

static void emit_float(tt_builder *b, tt_dtype dtype, double value) {
  if (has_short_decimal(dtype, value)) {
    emit_decimal(b, value);
    return;
  }
  unsigned char element[16];
  tt_dtype_encode(dtype, value, 0, 0, element);
  emit_bits(b, element, tt_dtype_size(dtype));
}

// C's conversion to the integer dtype, modulo 2^bits. A U64 above INT64_MAX comes as the int64_t of the same bits.
static void emit_integer(tt_builder *b, tt_dtype dtype, int64_t value) {
  int drop = 64 - tt_dtype_bits(dtype);
  uint64_t bits = (uint64_t)value << drop;
  if (tt_dtype_is_signed(dtype))
    tt_emit_i64(b, (int64_t)bits >> drop);
  else
    emit_u64(b, bits >> drop);
}

// Truncates toward zero and saturates at the limits of `dtype`; NaN becomes 0.
static int64_t integer_of_double(tt_dtype dtype, double value) {
  int bits = tt_dtype_bits(dtype);
  if (isnan(value)) return 0;
  if (!tt_dtype_is_signed(dtype)) {
    if (value <= 0) return 0;
    if (value >= ldexp(1, bits)) return (int64_t)(UINT64_MAX >> (64 - bits));
    return (int64_t)(uint64_t)value;
  }
  double limit = ldexp(1, bits - 1);
  if (value >= limit) return INT64_MAX >> (64 - bits);
  if (value <= -limit) return INT64_MIN >> (64 - bits);
  return (int64_t)value;
}

static void emit_element(tt_builder *b, tt_dtype dtype, double real, double imag) {
  switch (tt_dtype_category(dtype)) {
  case TT_CATEGORY_BOOL:
    tt_emit(b, real != 0 ? "true" : "false"); // NaN is true, as in C
    break;
  case TT_CATEGORY_INTEGER: emit_integer(b, dtype, integer_of_double(dtype, real)); break;
  case TT_CATEGORY_FLOAT: emit_float(b, dtype, real); break;
  case TT_CATEGORY_COMPLEX:
    tt_emit(b, "(");
    emit_float(b, tt_dtype_real(dtype), real);
    tt_emit(b, ", ");
    emit_float(b, tt_dtype_real(dtype), imag);
    tt_emit(b, ")");
    break;
  }
}

// torch makes a narrow float of an integer by way of float32.
static double double_of_integer(tt_dtype dtype, int64_t value) {
  tt_dtype real = tt_dtype_real(dtype);
  if (dtype == TT_BOOL) return value != 0;
  return real == TT_F64 ? (double)value : (double)(float)value;
}

static void emit_integer_element(tt_builder *b, tt_dtype dtype, int64_t value) {
  if (tt_dtype_is_integral(dtype))
    emit_integer(b, dtype, value);
  else
    emit_element(b, dtype, double_of_integer(dtype, value), 0);
}

// --- constants ----------------------------------------------------------------------------------------------------------------

static bool dtype_is_known(tt_builder *b, tt_dtype dtype) {
  if (b->failed) return false;
  if (dtype > TT_DTYPE_NONE && dtype < TT_DTYPE_COUNT) return true;
  tt_builder_fail(b, tt_error(TT_MISMATCH, "constant: dtype %d", (int)dtype));
  return false;
}

// Starts "%7 = stablehlo.constant dense<"; the element text and end_constant follow.
static tt_value *begin_constant(tt_builder *b, tt_dtype dtype, int rank, const int64_t *dims) {
  tt_value *result = tt_emit_result(b, "stablehlo.constant dense<", dtype, rank, dims);
  return result;
}

static tt_value *end_constant(tt_builder *b, tt_value *result) {
  tt_emit(b, "> : ");
  tt_emit_type(&b->body, result);
  tt_emit(b, "\n");
  return result;
}

static tt_value *constant(tt_builder *b, tt_dtype dtype, int rank, const int64_t *dims, double real, double imag) {
  if (!dtype_is_known(b, dtype)) return &tt_hlo_poison;
  tt_value *result = begin_constant(b, dtype, rank, dims);
  emit_element(b, dtype, real, imag);
  return end_constant(b, result);
}

tt_value *tt_hlo_constant(tt_builder *b, tt_dtype dtype, double value) { return constant(b, dtype, 0, NULL, value, 0); }

tt_value *tt_hlo_constant_i64(tt_builder *b, tt_dtype dtype, int64_t value) {
  if (!dtype_is_known(b, dtype)) return &tt_hlo_poison;
  tt_value *result = begin_constant(b, dtype, 0, NULL);
  emit_integer_element(b, dtype, value);
  return end_constant(b, result);
}

tt_value *tt_hlo_constant_complex(tt_builder *b, tt_dtype dtype, double real, double imag) {
  if (!dtype_is_known(b, dtype)) return &tt_hlo_poison;
  if (!tt_dtype_is_complex(dtype))
    return tt_builder_fail(b, tt_error(TT_MISMATCH, "constant_complex: dtype %s", tt_dtype_text(dtype)));
  return constant(b, dtype, 0, NULL, real, imag);
}

tt_value *tt_hlo_constant_like(tt_builder *b, const tt_value *x, double value) {
  if (b->failed) return &tt_hlo_poison;
  if (x == NULL) return tt_builder_fail(b, tt_internal_error("constant_like: operand is absent"));
  return constant(b, x->dtype, x->rank, x->dims, value, 0);
}

tt_value *tt_hlo_splat(tt_builder *b, tt_dtype dtype, int rank, const int64_t *dims, double value) {
  return constant(b, dtype, rank, dims, value, 0);
}

tt_value *tt_hlo_constant_vector(tt_builder *b, tt_dtype dtype, int count, const int64_t *values) {
  if (!dtype_is_known(b, dtype)) return &tt_hlo_poison;
  tt_value *result = begin_constant(b, dtype, 1, (int64_t[]){count});
  if (count > 0) tt_emit(b, "["); // an empty tensor prints as dense<>
  for (int i = 0; i < count; ++i) {
    if (i > 0) tt_emit(b, ", ");
    emit_integer_element(b, dtype, values[i]);
  }
  if (count > 0) tt_emit(b, "]");
  return end_constant(b, result);
}

// --- limits -------------------------------------------------------------------------------------------------------------------

// Bit patterns of the greatest and smallest values of the 8-bit floats; those without infinities end at a finite value.
static tt_value *f8_limit(tt_builder *b, tt_dtype dtype, bool greatest) {
  unsigned char bits = 0;
  switch (dtype) {
  case TT_F8E5M2: bits = greatest ? 0x7C : 0xFC; break;     // +-inf
  case TT_F8E4M3FN: bits = greatest ? 0x7E : 0xFE; break;   // +-448
  case TT_F8E5M2FNUZ:                                       // +-57344
  case TT_F8E4M3FNUZ: bits = greatest ? 0x7F : 0xFF; break; // +-240
  default: bits = greatest ? 0xFE : 0x00; break;            // F8E8M0FNU: 2^127, 2^-127
  }
  tt_value *result = begin_constant(b, dtype, 0, NULL);
  emit_bits(b, &bits, 1);
  return end_constant(b, result);
}

static tt_value *limit(tt_builder *b, tt_dtype dtype, bool greatest) {
  if (!dtype_is_known(b, dtype)) return &tt_hlo_poison;
  if (tt_dtype_is_complex(dtype))
    return tt_builder_fail(b, tt_error(TT_MISMATCH, "the complex dtype %s has no order", tt_dtype_text(dtype)));
  if (tt_hlo_is_f8(dtype)) return f8_limit(b, dtype, greatest);
  if (dtype == TT_BOOL) return tt_hlo_constant(b, dtype, greatest);
  return tt_hlo_constant(b, dtype, greatest ? HUGE_VAL : -HUGE_VAL); // integers saturate at their limits
}

tt_value *tt_hlo_max_value(tt_builder *b, tt_dtype dtype) { return limit(b, dtype, true); }
tt_value *tt_hlo_min_value(tt_builder *b, tt_dtype dtype) { return limit(b, dtype, false); }

// --- iota ---------------------------------------------------------------------------------------------------------------------

tt_value *tt_hlo_iota(tt_builder *b, tt_dtype dtype, int rank, const int64_t *dims, int dimension) {
  if (!dtype_is_known(b, dtype)) return &tt_hlo_poison;
  if (dtype == TT_BOOL || dimension < 0 || dimension >= rank)
    return tt_builder_fail(b, tt_error(TT_MISMATCH, "iota: %s%s along dimension %d", tt_dtype_text(dtype),
                                       tt_shape_text(&b->arena, rank, dims), dimension));
  tt_value *result = tt_emit_result(b, "stablehlo.iota dim = ", dtype, rank, dims);
  tt_emit_i64(b, dimension);
  tt_emit(b, " : ");
  tt_emit_type(&b->body, result);
  tt_emit(b, "\n");
  return result;
}
