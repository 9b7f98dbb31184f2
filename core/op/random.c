// random.c - filling with random numbers: uniform, normal, integers, coin flips, the distributions that follow from one draw,
// and permutations.
//
// Bits come from Threefry. Floats are computed in float32 (float64 for float64) and rounded once. Normal numbers are the quantile
// of a uniform number: half the time of the method of Box and Muller on XLA CPU, whose sine and cosine are not vectorised.
#include "op/random.h"

#include <math.h>
#include <stdlib.h>

// --- draws ------------------------------------------------------------------------------------------------------------------

tt_dtype tt_random_dtype(tt_dtype dtype) { return tt_dtype_real(dtype) == TT_F64 ? TT_F64 : TT_F32; }

static tt_value *constant_times(tt_builder *b, tt_value *x, double c) {
  return tt_hlo_multiply(b, x, tt_hlo_constant_like(b, x, c));
}
static tt_value *constant_plus(tt_builder *b, tt_value *x, double c) {
  return tt_hlo_add(b, x, tt_hlo_constant_like(b, x, c));
}
static tt_value *less_than(tt_builder *b, tt_value *x, double c) {
  return tt_hlo_compare(b, TT_LT, x, tt_hlo_constant_like(b, x, c));
}

static tt_value *bits_for(tt_lowering *l, int generator_arg, tt_dtype dtype, int rank, const int64_t *dims) {
  return tt_random_bits(l, generator_arg, dtype == TT_F64 ? TT_U64 : TT_U32, rank, dims);
}

// The high bits that a float holds exactly, in [0, 1).
static tt_value *unit_of_bits(tt_builder *b, tt_value *bits, tt_dtype dtype) {
  int low = dtype == TT_F64 ? 11 : 8, kept = dtype == TT_F64 ? 53 : 24;
  tt_value *high = tt_hlo_shift_right_logical(b, bits, tt_hlo_constant_like(b, bits, low));
  return constant_times(b, tt_hlo_convert(b, high, dtype), ldexp(1, -kept));
}

// All bits, rounded, in (0, 1].
tt_value *tt_random_open_unit(tt_builder *b, tt_value *bits, tt_dtype dtype) {
  int size = dtype == TT_F64 ? 64 : 32;
  return constant_plus(b, constant_times(b, tt_hlo_convert(b, bits, dtype), ldexp(1, -size)), ldexp(1, -size - 1));
}

tt_value *tt_random_uniform(tt_lowering *l, int generator_arg, tt_dtype dtype, int rank, const int64_t *dims) {
  return unit_of_bits(l->b, bits_for(l, generator_arg, dtype, rank, dims), dtype);
}

tt_value *tt_random_open_uniform(tt_lowering *l, int generator_arg, tt_dtype dtype, int rank, const int64_t *dims) {
  return tt_random_open_unit(l->b, bits_for(l, generator_arg, dtype, rank, dims), dtype);
}

tt_value *tt_random_state(tt_lowering *l, int generator_arg, int64_t count) {
  bool given = generator_arg >= 0 && generator_arg < l->arg_count && l->args[generator_arg].kind == TT_ARG_GENERATOR;
  return l->source.random_state(l->source.user, given ? l->args[generator_arg].u.generator : NULL, count);
}

// Coefficients of the quantile of the normal distribution at p <= 1/2, over 1 - 2p: polynomials in w - 2.5 up to w = 5 and
// in sqrt(w) - 3.5 beyond, with w = -log(4p(1 - p)). The form is Giles' (2010) for the inverse error function; fitted anew by
// least relative error (4e-7) so that it reaches to p = 2^-33.
enum { QUANTILE_TERMS = 9 };
static const double quantile_near[QUANTILE_TERMS] = {4.03542862e-08,  4.86103469e-07, -4.99056103e-06,
                                                     -6.21798767e-06, 0.000309150187, -0.00177301017,
                                                     -0.00590817095,  0.34880266,     2.12331357};
static const double quantile_far[QUANTILE_TERMS] = {-1.12595449e-05, -0.000251523184, 0.000826504246,
                                                    -0.00106772678,  0.00139228629,   -0.00286896593,
                                                    0.00467268276,   1.42462924,      4.71708757};

static tt_value *polynomial(tt_builder *b, tt_value *x, const double *coefficients, int count) {
  tt_value *sum = tt_hlo_constant_like(b, x, coefficients[0]);
  for (int i = 1; i < count; ++i) sum = constant_plus(b, tt_hlo_multiply(b, sum, x), coefficients[i]);
  return sum;
}

// Normal numbers from 32 bits each: the high one is the sign, the others are p in (0, 1/2], which keeps its resolution near 0,
// where the tails are: they reach to 6.3 deviations.
static tt_value *normal_of_bits(tt_builder *b, tt_value *bits) {
  tt_value *low = tt_hlo_and(b, bits, tt_hlo_constant_like(b, bits, 0x7FFFFFFF));
  tt_value *p = constant_times(b, constant_plus(b, tt_hlo_convert(b, low, TT_F32), 0.5), ldexp(1, -32));
  tt_value *rest = tt_hlo_subtract(b, tt_hlo_constant_like(b, p, 1), p), *x = tt_hlo_subtract(b, rest, p);
  tt_value *w = tt_hlo_negate(b, tt_hlo_log(b, constant_times(b, tt_hlo_multiply(b, p, rest), 4)));
  tt_value *near = polynomial(b, constant_plus(b, w, -2.5), quantile_near, QUANTILE_TERMS);
  tt_value *far = polynomial(b, constant_plus(b, tt_hlo_sqrt(b, w), -3.5), quantile_far, QUANTILE_TERMS);
  tt_value *size = tt_hlo_multiply(b, tt_hlo_select(b, less_than(b, w, 5), near, far), x);
  tt_value *negative = tt_hlo_compare(b, TT_NE, low, bits);
  return tt_hlo_select(b, negative, tt_hlo_negate(b, size), size);
}

tt_value *tt_random_normal(tt_lowering *l, int generator_arg, tt_dtype dtype, int rank, const int64_t *dims) {
  tt_builder *b = l->b;
  tt_value *bits = bits_for(l, generator_arg, dtype, rank, dims);
  if (dtype != TT_F64) return normal_of_bits(b, bits);
  // Odd multiples of 2^-53 in (-1, 1).
  tt_value *unit = constant_plus(b, constant_times(b, unit_of_bits(b, bits, dtype), 2), -1 + ldexp(1, -53));
  return constant_times(b, tt_hlo_erf_inv(b, unit), sqrt(2));
}

tt_value *tt_random_exponential(tt_lowering *l, int generator_arg, tt_dtype dtype, int rank, const int64_t *dims) {
  tt_value *x = tt_hlo_negate(l->b, tt_hlo_log(l->b, tt_random_open_uniform(l, generator_arg, dtype, rank, dims)));
  return tt_hlo_maximum(l->b, x, tt_hlo_constant_like(l->b, x, ldexp(1, dtype == TT_F64 ? -54 : -25)));
}

tt_value *tt_random_bernoulli(tt_lowering *l, int generator_arg, double p, int rank, const int64_t *dims) {
  tt_builder *b = l->b;
  double limit = ldexp(p, 32);
  tt_value *bits = tt_random_bits(l, generator_arg, TT_U32, rank, dims);
  if (limit >= ldexp(1, 32)) return tt_hlo_compare(b, TT_GE, bits, tt_hlo_constant_like(b, bits, 0)); // true
  return less_than(b, bits, nearbyint(limit));
}

// --- filling self -------------------------------------------------------------------------------------------------------------

typedef struct target {
  tt_dtype dtype; // of self
  tt_dtype real;  // in which to compute
  int rank;       // of the draws: a complex self has its two parts in one more dim
  int64_t dims[TT_RANDOM_MAX_DIMS];
} target;

static target target_of(tt_lowering *l) {
  const tt_tensor *t = tt_tensor_arg(l, 0);
  target self = {.dtype = t->dtype, .real = tt_random_dtype(t->dtype), .rank = t->rank};
  for (int i = 0; i < t->rank; ++i) self.dims[i] = t->sizes[i];
  if (tt_dtype_is_complex(t->dtype)) self.dims[self.rank++] = 2;
  return self;
}

static void fill(tt_lowering *l, const target *self, tt_value *x) {
  tt_builder *b = l->b;
  if (tt_dtype_is_complex(self->dtype)) {
    int last = self->rank - 1;
    tt_value *real = tt_hlo_squeeze_dim(b, tt_hlo_slice_dim(b, x, last, 0, 1, 1), last);
    x = tt_hlo_complex(b, real, tt_hlo_squeeze_dim(b, tt_hlo_slice_dim(b, x, last, 1, 2, 1), last));
  }
  tt_set_result(l, 0, tt_hlo_convert(b, x, self->dtype));
}

static bool check_float(tt_lowering *l, const target *self, bool complex_too, const char *kernel) {
  if (tt_dtype_is_float(self->dtype) || (complex_too && tt_dtype_is_complex(self->dtype))) return true;
  tt_fail(l, TT_NOT_IMPLEMENTED, "\"%s\" not implemented for '%s'", kernel, tt_dtype_text(self->dtype));
  return false;
}

// exponential_ and cauchy_ say it in their own words.
static bool check_continuous(tt_lowering *l, const target *self, const char *name) {
  if (tt_dtype_is_float(self->dtype)) return true;
  tt_fail(l, TT_INVALID_ARGUMENT,
          "%s distribution is a continuous probability distribution. dtype must be a floating point but you "
          "specified %s",
          name, tt_dtype_text(self->dtype));
  return false;
}

// A run-time number as a scalar, checked to compare so with a constant.
static tt_value *checked_number(tt_lowering *l, int arg, tt_dtype dtype, tt_compare direction, double limit,
                                const char *message) {
  tt_value *x = tt_number(l, arg, dtype);
  tt_check_all(l, tt_hlo_compare(l->b, direction, x, tt_hlo_constant_like(l->b, x, limit)), TT_INVALID_ARGUMENT,
               message);
  return x;
}

// Drops what a narrower float cannot hold, towards 0, so that numbers below 1 stay below 1.
static tt_value *truncate_to(tt_builder *b, tt_value *unit, tt_dtype dtype) {
  if (dtype != TT_BF16 && dtype != TT_F16) return unit;
  tt_value *bits = tt_hlo_bitcast_convert(b, unit, TT_U32, unit->rank, unit->dims);
  bits = tt_hlo_and(b, bits, tt_hlo_constant_like(b, bits, dtype == TT_BF16 ? 0xFFFF0000u : 0xFFFFE000u));
  return tt_hlo_bitcast_convert(b, bits, TT_F32, unit->rank, unit->dims);
}

void tt_lower_uniform(tt_lowering *l) {
  tt_builder *b = l->b;
  target self = target_of(l);
  if (!check_float(l, &self, true, "check_uniform_bounds")) return;
  tt_dtype narrow = tt_dtype_real(self.dtype);
  tt_value *from = tt_number(l, 1, self.real), *to = tt_number(l, 2, self.real), *range = tt_hlo_subtract(b, to, from);
  tt_check_all(l, tt_hlo_compare(b, TT_LE, from, to), TT_INVALID_ARGUMENT,
               "uniform_ expects to return a [from, to) range, but found from > to");
  tt_check_all(l, tt_hlo_is_finite(b, tt_hlo_convert(b, range, narrow)), TT_INVALID_ARGUMENT,
               "uniform_ expects to-from <= std::numeric_limits::max() of the dtype");
  tt_value *unit = truncate_to(b, tt_random_uniform(l, 3, self.real, self.rank, self.dims), narrow);
  tt_value *low = tt_hlo_broadcast_like(b, from, unit), *high = tt_hlo_broadcast_like(b, to, unit);
  tt_value *x = tt_hlo_add(b, tt_hlo_multiply(b, unit, tt_hlo_broadcast_like(b, range, unit)), low);
  // What rounding brings up to the open end goes to the closed one, as in torch.cuda.
  x = tt_hlo_convert(b, tt_hlo_convert(b, x, narrow), self.real);
  fill(l, &self, tt_hlo_select(b, tt_hlo_compare(b, TT_GE, x, high), low, x));
}

static const char negative_std[] = "normal expects std >= 0.0, but found std < 0";

void tt_lower_normal(tt_lowering *l) {
  target self = target_of(l);
  if (!check_float(l, &self, true, "normal_kernel_cpu")) return;
  tt_value *mean = tt_number(l, 1, self.real), *std = checked_number(l, 2, self.real, TT_GE, 0, negative_std);
  // The variance of a complex number is shared by its parts.
  if (tt_dtype_is_complex(self.dtype)) std = constant_times(l->b, std, sqrt(0.5));
  fill(l, &self, tt_add(l, tt_mul(l, tt_random_normal(l, 3, self.real, self.rank, self.dims), std), mean));
}

void tt_lower_log_normal(tt_lowering *l) {
  target self = target_of(l);
  if (!check_float(l, &self, false, "log_normal_cpu")) return;
  tt_value *mean = tt_number(l, 1, self.real);
  tt_value *std = checked_number(l, 2, self.real, TT_GT, 0, "log_normal_ expects std > 0.0, but found std <= 0");
  tt_value *x = tt_add(l, tt_mul(l, tt_random_normal(l, 3, self.real, self.rank, self.dims), std), mean);
  fill(l, &self, tt_hlo_exponential(l->b, x));
}

void tt_lower_exponential(tt_lowering *l) {
  target self = target_of(l);
  if (!check_continuous(l, &self, "Exponential")) return;
  tt_value *lambda =
      checked_number(l, 1, self.real, TT_GT, 0, "exponential_ expects lambda > 0.0, but found lambda <= 0");
  fill(l, &self, tt_div(l, tt_random_exponential(l, 2, self.real, self.rank, self.dims), lambda));
}

// median + sigma * tan(pi * (u - 1/2)). The sign is a bit of its own and the angle is measured from the pole, where the
// tangent's tails are, so that these keep their full resolution.
void tt_lower_cauchy(tt_lowering *l) {
  tt_builder *b = l->b;
  target self = target_of(l);
  if (!check_continuous(l, &self, "Cauchy")) return;
  tt_value *median = tt_number(l, 1, self.real);
  tt_value *sigma = checked_number(l, 2, self.real, TT_GT, 0, "cauchy_ expects sigma > 0.0, but found sigma <= 0");
  tt_value *bits = bits_for(l, 3, self.real, self.rank, self.dims), *one = tt_hlo_constant_like(b, bits, 1);
  tt_value *angle = constant_times(b, tt_random_open_unit(b, tt_hlo_shift_left(b, bits, one), self.real), M_PI / 2);
  tt_value *size = tt_hlo_divide(b, tt_hlo_cosine(b, angle), tt_hlo_sine(b, angle));
  tt_value *odd =
      tt_hlo_compare(b, TT_GE, bits, tt_hlo_constant_like(b, bits, ldexp(1, self.real == TT_F64 ? 63 : 31)));
  tt_value *x = tt_hlo_select(b, odd, tt_hlo_negate(b, size), size);
  fill(l, &self, tt_add(l, tt_mul(l, x, sigma), median));
}

// The number of the first success: ceil(log(u) / log(1 - p)). Integers are computed in double, as they may be large.
void tt_lower_geometric(tt_lowering *l) {
  tt_builder *b = l->b;
  target self = target_of(l);
  double p = tt_double(l, 1);
  if (!(p > 0 && p < 1)) tt_fail(l, TT_INVALID_ARGUMENT, "geometric_ expects p to be in (0, 1), but got p=%g", p);
  if (self.dtype == TT_BOOL || tt_dtype_is_complex(self.dtype))
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"geometric_cpu\" not implemented for '%s'", tt_dtype_text(self.dtype));
  if (tt_failed(l)) return;
  tt_dtype real = tt_dtype_is_integral(self.dtype) && tt_dtype_size(self.dtype) > 2 ? TT_F64 : self.real;
  tt_value *u = tt_random_open_uniform(l, 2, real, self.rank, self.dims);
  tt_value *count = tt_hlo_ceil(b, constant_times(b, tt_hlo_log(b, u), 1 / log1p(-p)));
  fill(l, &self, tt_hlo_maximum(b, count, tt_hlo_constant_like(b, count, 1)));
}

// --- coin flips -----------------------------------------------------------------------------------------------------------------

void tt_lower_bernoulli_float(tt_lowering *l) {
  target self = target_of(l);
  double p = tt_double(l, 1);
  if (!(p >= 0 && p <= 1)) tt_fail(l, TT_INVALID_ARGUMENT, "bernoulli_ expects p to be in [0, 1], but got p=%g", p);
  if (tt_dtype_is_complex(self.dtype))
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"bernoulli_scalar_cpu_\" not implemented for '%s'", tt_dtype_text(self.dtype));
  if (!tt_failed(l)) fill(l, &self, tt_random_bernoulli(l, 2, p, self.rank, self.dims));
}

// BOOL of the given shape, true with the probabilities in `p_arg`.
static tt_value *flips(tt_lowering *l, int p_arg, int generator_arg, int rank, const int64_t *dims) {
  tt_builder *b = l->b;
  tt_dtype real = tt_random_dtype(tt_tensor_arg(l, p_arg)->dtype);
  tt_value *p = tt_operand_as(l, p_arg, real);
  tt_value *ok = tt_hlo_and(b, tt_hlo_compare(b, TT_GE, p, tt_hlo_constant_like(b, p, 0)),
                            tt_hlo_compare(b, TT_LE, p, tt_hlo_constant_like(b, p, 1)));
  tt_check_all(l, ok, TT_INVALID_ARGUMENT, "Expected p_in >= 0 && p_in <= 1 to be true, but got false.");
  tt_value *u = tt_random_uniform(l, generator_arg, real, rank, dims);
  return tt_hlo_compare(b, TT_LT, u, tt_hlo_broadcast_to(b, p, rank, dims));
}

void tt_lower_bernoulli_tensor(tt_lowering *l) {
  target self = target_of(l);
  if (tt_dtype_is_complex(self.dtype)) {
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"bernoulli_tensor_cpu_self_\" not implemented for '%s'",
            tt_dtype_text(self.dtype));
    return;
  }
  fill(l, &self, flips(l, 1, 2, self.rank, self.dims));
}

void tt_lower_bernoulli(tt_lowering *l) {
  const tt_tensor *p = tt_tensor_arg(l, 0);
  if (!tt_dtype_is_float(p->dtype)) {
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"bernoulli_tensor_cpu_p_\" not implemented for '%s'", tt_dtype_text(p->dtype));
    return;
  }
  tt_set_result(l, 0, tt_hlo_convert(l->b, flips(l, 0, 1, p->rank, p->sizes), p->dtype));
}

// --- normal of tensors ------------------------------------------------------------------------------------------------------------

// mean + std * normal; each is a tensor or a number. The dtype is that of the mean if it is a tensor.
void tt_lower_normal_of_tensors(tt_lowering *l) {
  tt_builder *b = l->b;
  const tt_tensor *mean_tensor = tt_tensor_arg(l, 0), *std_tensor = tt_tensor_arg(l, 1);
  tt_dtype dtype = mean_tensor ? mean_tensor->dtype : std_tensor->dtype, real = tt_random_dtype(dtype);
  bool is_complex = tt_dtype_is_complex(dtype);
  if (!is_complex && !tt_dtype_is_float(dtype))
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"normal_kernel_cpu\" not implemented for '%s'", tt_dtype_text(dtype));
  if (std_tensor && tt_dtype_is_complex(std_tensor->dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "normal expects standard deviation to be non-complex");
  if (tt_failed(l)) return;
  tt_value *mean = tt_operand_as(l, 0, is_complex ? dtype : real), *std = tt_operand_as(l, 1, real);
  tt_check_all(l, tt_hlo_compare(b, TT_GE, std, tt_hlo_constant_like(b, std, 0)), TT_INVALID_ARGUMENT,
               std_tensor ? "normal expects all elements of std >= 0.0" : negative_std);
  tt_hlo_broadcast_both(b, &mean, &std);
  if (tt_failed(l)) return;
  tt_value *x = tt_random_normal(l, 2, real, std->rank, std->dims);
  if (is_complex) {
    tt_value *imag = constant_times(b, tt_random_normal(l, 2, real, std->rank, std->dims), sqrt(0.5));
    x = tt_hlo_complex(b, constant_times(b, x, sqrt(0.5)), imag);
    std = tt_hlo_convert(b, std, dtype);
  }
  tt_set_result(l, 0, tt_hlo_convert(b, tt_hlo_add(b, mean, tt_hlo_multiply(b, x, std)), dtype));
}

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

// Largest and smallest integer of a dtype, within int64_t.
static void integer_limits(tt_dtype dtype, int64_t *out_low, int64_t *out_high) {
  int bits = dtype == TT_BOOL ? 1 : tt_dtype_bits(dtype);
  bool is_signed = tt_dtype_is_signed(dtype);
  *out_low = is_signed ? INT64_MIN >> (64 - bits) : 0;
  *out_high = bits == 64 ? INT64_MAX : (INT64_C(1) << (bits - is_signed)) - 1;
}

static const char *c_name(tt_dtype dtype) { // as torch prints a caffe2::TypeMeta
  static const struct {
    tt_dtype dtype;
    const char *name;
  } names[] = {{TT_BOOL, "bool"},
               {TT_U8, "unsigned char"},
               {TT_S8, "signed char"},
               {TT_S16, "short int"},
               {TT_S32, "int"},
               {TT_S64, "long int"},
               {TT_U16, "short unsigned int"},
               {TT_U32, "unsigned int"},
               {TT_U64, "long unsigned int"},
               {TT_F16, "c10::Half"},
               {TT_BF16, "c10::BFloat16"},
               {TT_F32, "float"},
               {TT_F64, "double"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
    if (names[i].dtype == dtype) return names[i].name;
  return tt_dtype_text(dtype);
}

static void check_limits(tt_lowering *l, tt_dtype dtype, int64_t from, int64_t last) {
  int64_t low = INT64_MIN, high = INT64_MAX;
  if (dtype == TT_F16) {
    high = 65504;
    low = -high;
  } else if (!tt_dtype_is_float(dtype)) {
    integer_limits(dtype, &low, &high);
  }
  if (from < low || from > high) tt_fail(l, TT_INVALID_ARGUMENT, "from is out of bounds for %s", c_name(dtype));
  if (last < low || last > high) tt_fail(l, TT_INVALID_ARGUMENT, "to - 1 is out of bounds for %s", c_name(dtype));
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
    integer_limits(dtype, &low, &last);
  check_limits(l, dtype, from, last);
  return (range){from, (uint64_t)last - (uint64_t)from + 1};
}

// random() of a dtype: [0, largest], where floats count to 2^digits.
static range default_range(tt_dtype dtype) {
  int64_t low, last;
  if (tt_dtype_is_float(dtype))
    last = INT64_C(1) << digits_of(dtype);
  else
    integer_limits(dtype, &low, &last);
  return (range){0, (uint64_t)last + 1};
}

// Draws 32 bits where the range allows it. The remainder is as uneven as torch's: by size / 2^32 at most.
static tt_value *draw_integers(tt_lowering *l, int generator_arg, const target *self, range r) {
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

static void fill_with_integers(tt_lowering *l, int generator_arg, const target *self, range r) {
  if (!tt_failed(l)) fill(l, self, draw_integers(l, generator_arg, self, r));
}

static bool check_integers(tt_lowering *l, const target *self) {
  if (tt_dtype_is_complex(self->dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "check_random_bounds handles only integral, floating-point and boolean types");
  return !tt_failed(l);
}

void tt_lower_random(tt_lowering *l) {
  target self = target_of(l);
  if (check_integers(l, &self)) fill_with_integers(l, 1, &self, default_range(self.dtype));
}

void tt_lower_random_to(tt_lowering *l) {
  target self = target_of(l);
  if (check_integers(l, &self)) fill_with_integers(l, 2, &self, bounded(l, self.dtype, 0, tt_int(l, 1)));
}

void tt_lower_random_from(tt_lowering *l) {
  target self = target_of(l);
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
  if (dtype == TT_BOOL) tt_fail(l, TT_NOT_IMPLEMENTED, "\"randperm\" not implemented for '%s'", tt_dtype_text(dtype));
  if (tt_dtype_is_float(dtype))
    largest = (INT64_C(1) << digits_of(dtype)) + 1;
  else
    integer_limits(dtype, &low, &largest);
  if (n > largest)
    tt_fail(l, TT_INVALID_ARGUMENT, "n cannot be greater than %lld for %s type.", (long long)largest,
            tt_dtype_text(dtype));
  if (tt_failed(l)) return;
  tt_value *x = n > 1 ? permutation(l, 1, n) : tt_hlo_splat(b, TT_U64, 1, &n, 0);
  tt_set_result(l, 0, tt_hlo_convert(b, x, dtype));
}
