// dtype.c - the table of element types, torch's promotion rules, and the encoding of constants.
#include "base/dtype.h"

#include <float.h>
#include <string.h>

static const struct {
  int torch, pjrt, size;
  tt_category category;
  bool is_signed;
  const char *text, *hlo;
} dtypes[TT_DTYPE_COUNT] = {[TT_DTYPE_NONE] = {.torch = -1, .text = "Undefined", .hlo = "none"},
#define X(name, torch_, text_, hlo_, pjrt_, bytes, category_, is_signed_)                                              \
  [TT_##name] = {.torch = torch_,                                                                                      \
                 .pjrt = pjrt_,                                                                                        \
                 .size = bytes,                                                                                        \
                 .category = category_,                                                                                \
                 .is_signed = is_signed_,                                                                              \
                 .text = text_,                                                                                        \
                 .hlo = hlo_},
                            TT_DTYPES(X)
#undef X
};

// An unknown dtype reads as TT_DTYPE_NONE, so that a wrong number never leaves the table.
static tt_dtype checked(tt_dtype dtype) { return (unsigned)dtype < TT_DTYPE_COUNT ? dtype : TT_DTYPE_NONE; }

tt_dtype tt_dtype_from_torch(int scalar_type) {
  switch (scalar_type) {
#define X(name, torch, text, hlo, pjrt, bytes, category, is_signed)                                                    \
  case torch: return TT_##name;
    TT_DTYPES(X)
#undef X
  default: return TT_DTYPE_NONE;
  }
}

int tt_dtype_torch(tt_dtype dtype) { return dtypes[checked(dtype)].torch; }

int tt_dtype_pjrt(tt_dtype dtype) { return dtypes[checked(dtype)].pjrt; }

const char *tt_dtype_text(tt_dtype dtype) { return dtypes[checked(dtype)].text; }

const char *tt_dtype_hlo(tt_dtype dtype) { return dtypes[checked(dtype)].hlo; }

int tt_dtype_size(tt_dtype dtype) { return dtypes[checked(dtype)].size; }

int tt_dtype_bits(tt_dtype dtype) { return tt_dtype_size(dtype) * 8; }

tt_category tt_dtype_category(tt_dtype dtype) { return dtypes[checked(dtype)].category; }

bool tt_dtype_is_signed(tt_dtype dtype) { return dtypes[checked(dtype)].is_signed; }

bool tt_dtype_is_float(tt_dtype dtype) { return tt_dtype_category(dtype) == TT_CATEGORY_FLOAT; }

bool tt_dtype_is_complex(tt_dtype dtype) { return tt_dtype_category(dtype) == TT_CATEGORY_COMPLEX; }

bool tt_dtype_is_integral(tt_dtype dtype) { return tt_dtype_category(dtype) == TT_CATEGORY_INTEGER; }

bool tt_dtype_is_narrow_float(tt_dtype dtype) { return tt_dtype_is_float(dtype) && tt_dtype_size(dtype) < 4; }

bool tt_dtype_has_infinity(tt_dtype dtype) {
  return dtype != TT_F8E4M3FN && dtype != TT_F8E5M2FNUZ && dtype != TT_F8E4M3FNUZ && dtype != TT_F8E8M0FNU;
}

double tt_dtype_largest(tt_dtype dtype) {
  switch (dtype) {
  case TT_F64: return DBL_MAX;
  case TT_BF16: return 0x1.FEp127;
  case TT_F16: return 0x1.FFCp15;
  case TT_F8E5M2:
  case TT_F8E5M2FNUZ: return 0x1.Cp15;
  case TT_F8E4M3FN: return 0x1.Cp8;
  case TT_F8E4M3FNUZ: return 0x1.Ep7;
  case TT_F8E8M0FNU: return 0x1p127;
  default: return FLT_MAX;
  }
}

void tt_dtype_integer_limits(tt_dtype dtype, int64_t *out_low, int64_t *out_high) {
  int bits = dtype == TT_BOOL ? 1 : tt_dtype_bits(dtype);
  bool is_signed = tt_dtype_is_signed(dtype);
  *out_low = is_signed ? INT64_MIN >> (64 - bits) : 0;
  *out_high = bits == 64 ? INT64_MAX : (INT64_C(1) << (bits - is_signed)) - 1;
}

static const struct {
  const char *cpp, *type_name; // NULL: the same
} cpp_names[TT_DTYPE_COUNT] = {
    [TT_DTYPE_NONE] = {"?", NULL},
    [TT_BOOL] = {"bool", NULL},
    [TT_U8] = {"uint8_t", "unsigned char"},
    [TT_S8] = {"int8_t", "signed char"},
    [TT_S16] = {"int16_t", "short int"},
    [TT_S32] = {"int", NULL},
    [TT_S64] = {"int64_t", "long int"},
    [TT_U16] = {"uint16_t", "short unsigned int"},
    [TT_U32] = {"uint32_t", "unsigned int"},
    [TT_U64] = {"uint64_t", "long unsigned int"},
    [TT_F16] = {"c10::Half", NULL},
    [TT_BF16] = {"c10::BFloat16", NULL},
    [TT_F32] = {"float", NULL},
    [TT_F64] = {"double", NULL},
    [TT_F8E5M2] = {"c10::Float8_e5m2", NULL},
    [TT_F8E4M3FN] = {"c10::Float8_e4m3fn", NULL},
    [TT_F8E5M2FNUZ] = {"c10::Float8_e5m2fnuz", NULL},
    [TT_F8E4M3FNUZ] = {"c10::Float8_e4m3fnuz", NULL},
    [TT_F8E8M0FNU] = {"c10::Float8_e8m0fnu", NULL},
    [TT_C64] = {"c10::complex<float>", NULL},
    [TT_C128] = {"c10::complex<double>", NULL},
};

const char *tt_dtype_cpp(tt_dtype dtype) { return cpp_names[checked(dtype)].cpp; }

const char *tt_dtype_type_name(tt_dtype dtype) {
  const char *name = cpp_names[checked(dtype)].type_name;
  return name ? name : tt_dtype_cpp(dtype);
}

tt_dtype tt_dtype_real(tt_dtype dtype) {
  switch (dtype) {
  case TT_C64: return TT_F32;
  case TT_C128: return TT_F64;
  default: return dtype;
  }
}

tt_dtype tt_dtype_complex(tt_dtype dtype) {
  switch (dtype) {
  case TT_BF16:
  case TT_F32:
  case TT_C64: return TT_C64;
  case TT_F64:
  case TT_C128: return TT_C128;
  default: return TT_DTYPE_NONE;
  }
}

static bool is_float8(tt_dtype dtype) { return tt_dtype_is_float(dtype) && tt_dtype_size(dtype) == 1; }

// The unsigned types that came late to torch ("barebones"): they promote with themselves and with floats only.
static bool is_barebones_unsigned(tt_dtype dtype) { return dtype == TT_U16 || dtype == TT_U32 || dtype == TT_U64; }

static tt_dtype promote_barebones(tt_dtype a, tt_dtype b) {
  if (tt_dtype_is_float(a)) return a;
  if (tt_dtype_is_float(b)) return b;
  return TT_DTYPE_NONE;
}

// Two different dtypes of one category, neither barebones nor float8.
static tt_dtype promote_within_category(tt_dtype a, tt_dtype b) {
  int size_a = tt_dtype_size(a), size_b = tt_dtype_size(b);
  if (size_a != size_b) return size_a > size_b ? a : b;
  // The only pairs of one size: neither holds the other.
  return tt_dtype_is_float(a) ? TT_F32 /* f16, bf16 */ : TT_S16 /* u8, s8 */;
}

tt_dtype tt_dtype_promote(tt_dtype a, tt_dtype b) {
  a = checked(a);
  b = checked(b);
  if (a == b) return a;
  if (a == TT_DTYPE_NONE || b == TT_DTYPE_NONE) return TT_DTYPE_NONE;
  if (is_float8(a) || is_float8(b)) return TT_DTYPE_NONE;
  if (is_barebones_unsigned(a) || is_barebones_unsigned(b)) return promote_barebones(a, b);

  tt_category category_a = tt_dtype_category(a), category_b = tt_dtype_category(b);
  if (category_a == category_b) return promote_within_category(a, b);
  tt_dtype higher = category_a > category_b ? a : b, lower = category_a > category_b ? b : a;
  if (higher == TT_C64 && lower == TT_F64) return TT_C128;
  return higher;
}

bool tt_dtype_can_cast(tt_dtype from, tt_dtype to) {
  if (tt_dtype_is_complex(from) && !tt_dtype_is_complex(to)) return false;
  if (tt_dtype_is_float(from) && tt_dtype_is_integral(to)) return false;
  if (from != TT_BOOL && to == TT_BOOL) return false;
  return true;
}

// A float format narrower than f32. Codes are the magnitude bits; the sign goes in front of them.
typedef struct narrow_format {
  int exponent_bits, mantissa_bits, bias;
  uint32_t limit;         // f32 bits: magnitudes from here on get the code `overflow`
  uint32_t overflow, nan; // codes
  bool has_signed_nan;
  bool is_fnuz; // finite, no negative zero: NaN is the code of minus zero
} narrow_format;

static const narrow_format format_f16 = {5, 10, 15, 0x47800000 /* 65536 */, 0x7c00, 0x7e00, true, false};
static const narrow_format format_bf16 = {8, 7, 127, 0x7f800000 /* inf */, 0x7f80, 0x7fc0, false, false};
static const narrow_format format_f8e5m2 = {5, 2, 15, 0x47800000 /* 65536 */, 0x7c, 0x7f, true, false};
// torch saturates this one, infinities included (c10::Float8_e4m3fn since 2.13).
static const narrow_format format_f8e4m3fn = {4, 3, 7, 0x43e00000 /* 448 */, 0x7e, 0x7f, true, false};
static const narrow_format format_f8e5m2fnuz = {5, 2, 16, 0x47800000 /* 65536 */, 0x80, 0x80, false, true};
static const narrow_format format_f8e4m3fnuz = {4, 3, 8, 0x43800000 /* 256 */, 0x80, 0x80, false, true};

static uint32_t f32_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// value / 2^shift, to nearest, ties to even. 0 < shift < 32.
static uint32_t shift_rounded(uint32_t value, int shift) {
  uint32_t odd = value >> shift & 1;
  return (value + (UINT32_C(1) << (shift - 1)) - 1 + odd) >> shift;
}

// The code of a magnitude below the format's limit. A carry out of the mantissa moves into the exponent, as it should.
static uint32_t narrow_magnitude(const narrow_format *format, uint32_t magnitude) {
  int exponent = (int)(magnitude >> 23), rebias = 127 - format->bias;
  int shift = 23 - format->mantissa_bits;
  if (exponent > rebias) return shift_rounded(magnitude - ((uint32_t)rebias << 23), shift);

  // Subnormal in the narrow format: the significand in units of its smallest number.
  uint32_t significand = magnitude & 0x7fffff;
  if (exponent != 0) significand |= 0x800000;
  shift += rebias + 1 - (exponent != 0 ? exponent : 1);
  return shift <= 25 ? shift_rounded(significand, shift) : 0;
}

static uint32_t narrow_encode(const narrow_format *format, float value) {
  uint32_t bits = f32_bits(value), magnitude = bits & 0x7fffffff;
  uint32_t sign = (bits >> 31) << (format->exponent_bits + format->mantissa_bits);
  if (magnitude > 0x7f800000) return format->nan | (format->has_signed_nan ? sign : 0);
  if (magnitude >= format->limit) return format->overflow | sign;
  uint32_t code = narrow_magnitude(format, magnitude);
  return code == 0 && format->is_fnuz ? 0 : code | sign;
}

// An exponent alone. As in torch: the sign is dropped, infinities are NaN, 0 becomes the smallest number, and ties go up
// except below the smallest normal f32.
static uint8_t f8e8m0fnu_encode(float value) {
  uint32_t bits = f32_bits(value), exponent = bits >> 23 & 0xff, mantissa = bits & 0x7fffff;
  if (exponent == 0xff) return 0xff;
  bool up = exponent > 0 ? mantissa >= 0x400000 : mantissa > 0x400000;
  return (uint8_t)(exponent + up);
}

// Stores x as one `type`; memcpy, since `out` need not be aligned.
#define STORE(type, x)                                                                                                 \
  do {                                                                                                                 \
    type stored_ = (type)(x);                                                                                          \
    memcpy(out, &stored_, sizeof(stored_));                                                                            \
  } while (0)

void tt_dtype_encode(tt_dtype dtype, double value, double imag, int64_t ivalue, void *out) {
  // torch rounds a double to float before it makes anything narrower of it, and so do we.
  float single = (float)value;
  switch (dtype) {
  case TT_BOOL: STORE(uint8_t, value != 0 || imag != 0 || ivalue != 0); break;
  case TT_U8:
  case TT_S8: STORE(uint8_t, ivalue); break;
  case TT_U16:
  case TT_S16: STORE(uint16_t, ivalue); break;
  case TT_U32:
  case TT_S32: STORE(uint32_t, ivalue); break;
  case TT_U64:
  case TT_S64: STORE(uint64_t, ivalue); break;
  case TT_F16: STORE(uint16_t, narrow_encode(&format_f16, single)); break;
  case TT_BF16: STORE(uint16_t, narrow_encode(&format_bf16, single)); break;
  case TT_F8E5M2: STORE(uint8_t, narrow_encode(&format_f8e5m2, single)); break;
  case TT_F8E4M3FN: STORE(uint8_t, narrow_encode(&format_f8e4m3fn, single)); break;
  case TT_F8E5M2FNUZ: STORE(uint8_t, narrow_encode(&format_f8e5m2fnuz, single)); break;
  case TT_F8E4M3FNUZ: STORE(uint8_t, narrow_encode(&format_f8e4m3fnuz, single)); break;
  case TT_F8E8M0FNU: STORE(uint8_t, f8e8m0fnu_encode(single)); break;
  case TT_F32: STORE(float, single); break;
  case TT_F64: STORE(double, value); break;
  case TT_C64: {
    float parts[2] = {single, (float)imag};
    memcpy(out, parts, sizeof(parts));
    break;
  }
  case TT_C128: {
    double parts[2] = {value, imag};
    memcpy(out, parts, sizeof(parts));
    break;
  }
  case TT_DTYPE_NONE:
  case TT_DTYPE_COUNT: break; // nothing to write
  }
}
