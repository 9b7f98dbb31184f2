// dtype.h - the element types: one table for torch's, StableHLO's and PJRT's names of the same thing.
//
// torch's numbers are those of c10::ScalarType, PJRT's those of PJRT_Buffer_Type; both are checked by static assertions
// where those headers are known (bridge/, pjrt/).
#ifndef TT_BASE_DTYPE_H_
#define TT_BASE_DTYPE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Promotion category, in torch's order (c10/core/ScalarType.h, promoteTypes): bool < integer < float < complex.
typedef enum tt_category { TT_CATEGORY_BOOL, TT_CATEGORY_INTEGER, TT_CATEGORY_FLOAT, TT_CATEGORY_COMPLEX } tt_category;

// name, c10::ScalarType, torch's text, StableHLO's text, PJRT_Buffer_Type, bytes, category, signed
#define TT_DTYPES(X)                                                                                                    \
  X(BOOL, 11, "Bool", "i1", 1, 1, TT_CATEGORY_BOOL, false)                                                              \
  X(U8, 0, "Byte", "ui8", 6, 1, TT_CATEGORY_INTEGER, false)                                                             \
  X(S8, 1, "Char", "i8", 2, 1, TT_CATEGORY_INTEGER, true)                                                               \
  X(S16, 2, "Short", "i16", 3, 2, TT_CATEGORY_INTEGER, true)                                                            \
  X(S32, 3, "Int", "i32", 4, 4, TT_CATEGORY_INTEGER, true)                                                              \
  X(S64, 4, "Long", "i64", 5, 8, TT_CATEGORY_INTEGER, true)                                                             \
  X(U16, 27, "UInt16", "ui16", 7, 2, TT_CATEGORY_INTEGER, false)                                                        \
  X(U32, 28, "UInt32", "ui32", 8, 4, TT_CATEGORY_INTEGER, false)                                                        \
  X(U64, 29, "UInt64", "ui64", 9, 8, TT_CATEGORY_INTEGER, false)                                                        \
  X(F16, 5, "Half", "f16", 10, 2, TT_CATEGORY_FLOAT, true)                                                              \
  X(BF16, 15, "BFloat16", "bf16", 13, 2, TT_CATEGORY_FLOAT, true)                                                       \
  X(F32, 6, "Float", "f32", 11, 4, TT_CATEGORY_FLOAT, true)                                                             \
  X(F64, 7, "Double", "f64", 12, 8, TT_CATEGORY_FLOAT, true)                                                            \
  X(F8E5M2, 23, "Float8_e5m2", "f8E5M2", 16, 1, TT_CATEGORY_FLOAT, true)                                                \
  X(F8E4M3FN, 24, "Float8_e4m3fn", "f8E4M3FN", 17, 1, TT_CATEGORY_FLOAT, true)                                          \
  X(F8E5M2FNUZ, 25, "Float8_e5m2fnuz", "f8E5M2FNUZ", 19, 1, TT_CATEGORY_FLOAT, true)                                    \
  X(F8E4M3FNUZ, 26, "Float8_e4m3fnuz", "f8E4M3FNUZ", 20, 1, TT_CATEGORY_FLOAT, true)                                    \
  X(F8E8M0FNU, 44, "Float8_e8m0fnu", "f8E8M0FNU", 28, 1, TT_CATEGORY_FLOAT, false)                                      \
  X(C64, 9, "ComplexFloat", "complex<f32>", 14, 8, TT_CATEGORY_COMPLEX, true)                                           \
  X(C128, 10, "ComplexDouble", "complex<f64>", 15, 16, TT_CATEGORY_COMPLEX, true)

typedef enum tt_dtype {
  TT_DTYPE_NONE = 0, // absent: an optional dtype that was not given, or one that torch_tpu does not know
#define X(name, torch, text, hlo, pjrt, bytes, category, is_signed) TT_##name,
  TT_DTYPES(X)
#undef X
      TT_DTYPE_COUNT
} tt_dtype;

tt_dtype tt_dtype_from_torch(int scalar_type); // TT_DTYPE_NONE for an unknown one
int tt_dtype_torch(tt_dtype dtype);            // c10::ScalarType
int tt_dtype_pjrt(tt_dtype dtype);             // PJRT_Buffer_Type
const char *tt_dtype_text(tt_dtype dtype);     // torch's name, "Float"
const char *tt_dtype_hlo(tt_dtype dtype);      // "f32"
int tt_dtype_size(tt_dtype dtype);             // bytes of one element
int tt_dtype_bits(tt_dtype dtype);
tt_category tt_dtype_category(tt_dtype dtype);
bool tt_dtype_is_signed(tt_dtype dtype);
bool tt_dtype_is_float(tt_dtype dtype); // real floating point
bool tt_dtype_is_complex(tt_dtype dtype);
bool tt_dtype_is_integral(tt_dtype dtype);     // integer, without bool
bool tt_dtype_is_narrow_float(tt_dtype dtype); // f16, bf16, f8: sums of these accumulate in f32
bool tt_dtype_has_infinity(tt_dtype dtype);    // of a float: some of one byte have none
double tt_dtype_largest(tt_dtype dtype);       // the greatest finite number of a float
// The smallest and largest number of an integer or bool, within int64_t.
void tt_dtype_integer_limits(tt_dtype dtype, int64_t *out_low, int64_t *out_high);
// The C++ type in torch's error texts: as its sources write it, "uint8_t", and as its type ids print it, "unsigned char".
const char *tt_dtype_cpp(tt_dtype dtype);
const char *tt_dtype_type_name(tt_dtype dtype);
tt_dtype tt_dtype_real(tt_dtype dtype); // C64 -> F32, C128 -> F64, others unchanged
tt_dtype
tt_dtype_complex(tt_dtype dtype); // BF16, F32 -> C64, F64 -> C128; NONE for the others (F16 would need ComplexHalf)
// torch's promoteTypes: the smallest dtype that holds both (c10/core/ScalarType.cpp). TT_DTYPE_NONE where torch raises:
// float8 with anything else, uint16/32/64 with anything but themselves and real floats; and if either is TT_DTYPE_NONE.
tt_dtype tt_dtype_promote(tt_dtype a, tt_dtype b);
// torch's canCast: may a result of dtype `from` be written into `to` (no complex->real, float->int, number->bool)?
bool tt_dtype_can_cast(tt_dtype from, tt_dtype to);
// Writes `value` as one element of `dtype` to `out` (16 bytes are enough). Rounds to nearest even for floats; integers
// take `ivalue` instead, so that 64-bit integers stay exact; imag is used by complex types; a bool is true if any of the
// three is not zero. Narrow floats are made from the value rounded to f32, and f8E4M3FN saturates, both as in torch.
void tt_dtype_encode(tt_dtype dtype, double value, double imag, int64_t ivalue, void *out);

#ifdef __cplusplus
}
#endif
#endif // TT_BASE_DTYPE_H_
