// random_integer.c - random integers and permutations.
#include "op/random.h"

#include <math.h>
#include <stdlib.h>

// --- integers ---------------------------------------------------------------------------------------------------------------------

// Bits of an integer that every value of a float dtype up to 2^digits holds exactly.
static int digits_of(tt_dtype dtype) {
  switch (dtype) {
  case TT_F64: return 53;
  case TT_F32: return 24;
  case TT_F16: return 11;
  case TT_BF16: return 8;
  default: return 63;
  }
}

// The integer x rounded to `digits` binary digits, to nearest even.
static int64_t rounded(int64_t x, int digits) {
  uint64_t size = x < 0 ? -(uint64_t)x : (uint64_t)x;
  int length = 64 - __builtin_clzll(size | 1);
  if (length <= digits) return x;
  uint64_t step = UINT64_C(1) << (length - digits), rest = size % step;
  size -= rest;
  if (rest > step / 2 || (rest == step / 2 && (size / step) % 2 != 0)) size += step;
  return x < 0 ? (int64_t)-size : (int64_t)size;
}

// The distance between neighbours of `x` in a float of `digits` binary digits.
static int64_t spacing(int64_t x, int digits) {
  int length = 64 - __builtin_clzll((uint64_t)llabs(x) | 1);
  return INT64_C(1) << (length > digits ? length - digits : 0);
}

typedef struct range { // of integers: [from, from + size), where a size of 0 is 2^64
  int64_t from;
  uint64_t size;
} range;

static void check_limits(tt_lowering *l, tt_dtype dtype, int64_t from, int64_t last) {
  int64_t low = INT64_MIN, high = INT64_MAX;
  if (dtype == TT_F16) {
    high = 65504;
    low = -high;
  } else if (!tt_dtype_is_float(dtype)) {
    tt_dtype_integer_limits(dtype, &low, &high);
  }
  if (from < low || from > high)
    tt_fail(l, TT_INVALID_ARGUMENT, "from is out of bounds for %s", tt_dtype_type_name(dtype));
  if (last < low || last > high)
    tt_fail(l, TT_INVALID_ARGUMENT, "to - 1 is out of bounds for %s", tt_dtype_type_name(dtype));
}

// [from, to). A float must not round a number below `to` up to it, so the ends move inwards to where they are exact.
static range bounded(tt_lowering *l, tt_dtype dtype, int64_t from, int64_t to) {
  if (from >= to)
    tt_fail(l, TT_INVALID_ARGUMENT, "random_ expects 'from' to be less than 'to', but got from=%lld >= to=%lld",
            (long long)from, (long long)to);
  if (!tt_failed(l) && tt_dtype_is_float(dtype)) {
    int digits = digits_of(dtype);
    if (rounded(from + 1, digits) < from) from = rounded(from + 1, digits) + spacing(from + 1, digits);
    if (rounded(to - 1, digits) >= to) to = rounded(to - 1, digits) - spacing(to - 1, digits);
    if (from >= to)
      tt_fail(l, TT_INVALID_ARGUMENT,
              "random_ expects 'from' casted to dtype to be less than 'to' casted to dtype, but got "
              "from=%lld >= to=%lld",
              (long long)from, (long long)to);
  }
  if (!tt_failed(l)) check_limits(l, dtype, from, to - 1);
  return (range){from, (uint64_t)to - (uint64_t)from};
}

// [from, the largest that the dtype counts up to].
static range unbounded(tt_lowering *l, tt_dtype dtype, int64_t from) {
  if (from == INT64_MIN) return (range){from, 0};
  int64_t low, last;
  if (tt_dtype_is_float(dtype))
    last = INT64_C(1) << digits_of(dtype);
  else
    tt_dtype_integer_limits(dtype, &low, &last);
  check_limits(l, dtype, from, last);
  return (range){from, (uint64_t)last - (uint64_t)from + 1};
}

// random() of a dtype: [0, largest], where floats count to 2^digits.
static range default_range(tt_dtype dtype) {
  int64_t low, last;
  if (tt_dtype_is_float(dtype))
    last = INT64_C(1) << digits_of(dtype);
  else
    tt_dtype_integer_limits(dtype, &low, &last);
  return (range){0, (uint64_t)last + 1};
}

// Draws 32 bits where the range allows it. The remainder is as uneven as torch's: by size / 2^32 at most.
static tt_value *draw_integers(tt_lowering *l, int generator_arg, const tt_random_target *self, range r) {
  tt_builder *b = l->b;
  bool wide = r.size == 0 || r.size > UINT64_C(1) << 32;
  tt_value *bits = tt_random_bits(l, generator_arg, wide ? TT_U64 : TT_U32, self->rank, self->dims);
  bool all = r.size == 0 || (!wide && r.size == UINT64_C(1) << 32);
  tt_value *size = tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, bits->dtype, (int64_t)(all ? 1 : r.size)), bits);
  tt_value *x = all ? bits : tt_hlo_remainder(b, bits, size);
  // Offsets are added modulo 2^bits, so any result that fits its dtype is right, and 32 bits do for most.
  bool narrow = !wide && r.from >= INT32_MIN && r.from <= INT32_MAX && r.size - 1 <= (uint64_t)(INT32_MAX - r.from);
  if (narrow)
    x = tt_hlo_bitcast_convert(b, x, TT_S32, x->rank, x->dims);
  else if (wide)
    x = tt_hlo_bitcast_convert(b, x, TT_S64, x->rank, x->dims);
  else
    x = tt_hlo_convert(b, x, TT_S64);
  return tt_hlo_add(b, x, tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, x->dtype, r.from), x));
}

static void fill_with_integers(tt_lowering *l, int generator_arg, const tt_random_target *self, range r) {
  if (!tt_failed(l)) tt_random_fill(l, self, draw_integers(l, generator_arg, self, r));
}

static bool check_integers(tt_lowering *l, const tt_random_target *self) {
  if (tt_dtype_is_complex(self->dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "check_random_bounds handles only integral, floating-point and boolean types");
  return !tt_failed(l);
}

void tt_lower_random(tt_lowering *l) {
  tt_random_target self = tt_random_target_of(l);
  if (tt_dtype_is_complex(self.dtype))
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"random_kernel_cpu\" not implemented for '%s'", tt_dtype_text(self.dtype));
  fill_with_integers(l, 1, &self, default_range(self.dtype));
}

void tt_lower_random_to(tt_lowering *l) {
  tt_random_target self = tt_random_target_of(l);
  if (check_integers(l, &self)) fill_with_integers(l, 2, &self, bounded(l, self.dtype, 0, tt_int(l, 1)));
}

void tt_lower_random_from(tt_lowering *l) {
  tt_random_target self = tt_random_target_of(l);
  if (!check_integers(l, &self)) return;
  int64_t from = tt_int(l, 1);
  range r = tt_has(l, 2) ? bounded(l, self.dtype, from, tt_int(l, 2)) : unbounded(l, self.dtype, from);
  fill_with_integers(l, 3, &self, r);
}

// --- permutations -----------------------------------------------------------------------------------------------------------------

static void key_less(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  (void)user;
  results[0] = tt_hlo_compare(b, TT_LT, arguments[0], arguments[1]);
}

// 0 ... n - 1 sorted by random keys. Each number is the low part of its own key: XLA CPU sorts one array of 64-bit integers four
// times as fast as keys with a payload. The random part has 40 bits for 16 million, so that equal ones, which would favour one
// order, hardly occur.
static tt_value *permutation(tt_lowering *l, int generator_arg, int64_t n) {
  tt_builder *b = l->b;
  int64_t low = (INT64_C(1) << (64 - __builtin_clzll((uint64_t)n | 1))) - 1; // the bits of n
  tt_value *bits = tt_random_bits(l, generator_arg, TT_U64, 1, &n), *keys, *sorted;
  tt_value *high = tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, TT_U64, ~low), bits);
  keys = tt_hlo_or(b, tt_hlo_and(b, bits, high), tt_hlo_iota(b, TT_U64, 1, &n, 0));
  tt_hlo_sort(b, 1, &keys, 0, false, key_less, NULL, &sorted);
  return tt_hlo_and(b, sorted, tt_hlo_not(b, high));
}

void tt_lower_randperm(tt_lowering *l) {
  tt_builder *b = l->b;
  int64_t n = tt_int(l, 0);
  tt_dtype dtype = tt_output_dtype(l, 0, TT_S64);
  int64_t largest = INT64_MAX, low;
  if (n < 0) tt_fail(l, TT_INVALID_ARGUMENT, "n must be non-negative, got %lld", (long long)n);
  if (dtype == TT_BOOL || tt_dtype_is_complex(dtype))
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"randperm\" not implemented for '%s'", tt_dtype_text(dtype));
  if (tt_dtype_is_float(dtype))
    largest = (INT64_C(1) << digits_of(dtype)) + 1;
  else
    tt_dtype_integer_limits(dtype, &low, &largest);
  if (n > largest)
    tt_fail(l, TT_INVALID_ARGUMENT, "n cannot be greater than %lld for %s type.", (long long)largest,
            tt_dtype_text(dtype));
  if (tt_failed(l)) return;
  tt_value *x = n > 1 ? permutation(l, 1, n) : tt_hlo_splat(b, TT_U64, 1, &n, 0);
  tt_set_result(l, 0, tt_hlo_convert(b, x, dtype));
}
