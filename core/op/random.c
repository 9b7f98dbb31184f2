// random.c - filling with random numbers: uniform, normal, coin flips, the distributions that follow from one draw.
//
// Bits come from Threefry. Floats are computed in float32 (float64 for float64) and rounded once. Normal numbers are the quantile
// of a uniform number: half the time of the method of Box and Muller on XLA CPU, whose sine and cosine are not vectorised.
#include "op/random.h"

#include <math.h>

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
  // CHLO's, though it is 36 ulp off at the ends: what mends that takes longer still.
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

tt_random_target tt_random_target_of(tt_lowering *l) {
  const tt_tensor *t = tt_tensor_arg(l, 0);
  tt_random_target self = {.dtype = t->dtype, .real = tt_random_dtype(t->dtype), .rank = t->rank};
  for (int i = 0; i < t->rank; ++i) self.dims[i] = t->sizes[i];
  if (tt_dtype_is_complex(t->dtype)) self.dims[self.rank++] = 2;
  return self;
}

void tt_random_fill(tt_lowering *l, const tt_random_target *self, tt_value *x) {
  tt_builder *b = l->b;
  if (tt_dtype_is_complex(self->dtype)) {
    int last = self->rank - 1;
    tt_value *real = tt_hlo_squeeze_dim(b, tt_hlo_slice_dim(b, x, last, 0, 1, 1), last);
    x = tt_hlo_complex(b, real, tt_hlo_squeeze_dim(b, tt_hlo_slice_dim(b, x, last, 1, 2, 1), last));
  }
  tt_set_result(l, 0, tt_hlo_convert(b, x, self->dtype));
}

static bool check_float(tt_lowering *l, const tt_random_target *self, bool complex_too, const char *kernel) {
  if (tt_dtype_is_float(self->dtype) || (complex_too && tt_dtype_is_complex(self->dtype))) return true;
  tt_fail(l, TT_NOT_IMPLEMENTED, "\"%s\" not implemented for '%s'", kernel, tt_dtype_text(self->dtype));
  return false;
}

// exponential_ and cauchy_ say it in their own words.
static bool check_continuous(tt_lowering *l, const tt_random_target *self, const char *name, const char *dtype) {
  if (tt_dtype_is_float(self->dtype)) return true;
  tt_fail(l, TT_INVALID_ARGUMENT,
          "%s distribution is a continuous probability distribution. dtype must be a floating point but you "
          "specified %s",
          name, dtype);
  return false;
}

// --- what torch says of numbers -------------------------------------------------------------------------------------------------

static tt_status check_std(const tt_arg *number, tt_dtype dtype) {
  (void)dtype;
  double std = tt_real_number(number);
  return std >= 0 ? TT_SUCCESS : tt_error(TT_INVALID_ARGUMENT, "normal expects std >= 0.0, but found std %g", std);
}

static tt_status check_positive(const char *op, const char *name, const char *as, double x) {
  if (x > 0) return TT_SUCCESS;
  return tt_error(TT_INVALID_ARGUMENT, "%s expects %s > 0.0, but found %s=%g", op, name, as, x);
}

static tt_status check_log_normal(const tt_arg *number, tt_dtype dtype) {
  (void)dtype;
  return check_positive("log_normal_", "std", "std", tt_real_number(number));
}

static tt_status check_lambda(const tt_arg *number, tt_dtype dtype) {
  (void)dtype;
  return check_positive("exponential_", "lambda", "lambda", tt_real_number(number));
}

static tt_status check_sigma(const tt_arg *number, tt_dtype dtype) {
  (void)dtype;
  return check_positive("cauchy_", "sigma", "sigma", tt_real_number(number));
}

static tt_status check_bound(const char *name, double x, tt_dtype dtype) {
  double most = tt_dtype_largest(dtype);
  if (x >= -most && x <= most) return TT_SUCCESS;
  return tt_error(TT_INVALID_ARGUMENT, "%s is out of bounds for %s", name, tt_dtype_type_name(dtype));
}

static tt_status check_uniform(const tt_arg *number, tt_dtype dtype) {
  double from = tt_real_number(number), to = tt_real_number(number + 1);
  TT_TRY(check_bound("from", from, dtype));
  TT_TRY(check_bound("to", to, dtype));
  if (from > to)
    return tt_error(TT_INVALID_ARGUMENT, "uniform_ expects to return a [from, to) range, but found from=%g > to=%g",
                    from, to);
  if (to - from > tt_dtype_largest(dtype))
    return tt_error(TT_INVALID_ARGUMENT,
                    "uniform_ expects to-from <= std::numeric_limits<%s>::max(), but found to=%g and from=%g which "
                    "result in to-from to exceed the limit",
                    tt_dtype_text(dtype), to, from);
  return TT_SUCCESS;
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
  tt_random_target self = tt_random_target_of(l);
  if (!check_float(l, &self, true, "check_uniform_bounds")) return;
  tt_dtype narrow = tt_dtype_real(self.dtype);
  tt_value *from = tt_number(l, 1, self.real), *to = tt_number(l, 2, self.real), *range = tt_hlo_subtract(b, to, from);
  tt_require(l, check_uniform, 1, narrow);
  tt_value *unit = truncate_to(b, tt_random_uniform(l, 3, self.real, self.rank, self.dims), narrow);
  tt_value *low = tt_hlo_broadcast_like(b, from, unit), *high = tt_hlo_broadcast_like(b, to, unit);
  tt_value *x = tt_hlo_add(b, tt_hlo_multiply(b, unit, tt_hlo_broadcast_like(b, range, unit)), low);
  // What rounding brings up to the open end goes to the closed one, as in torch.cuda.
  x = tt_hlo_convert(b, tt_hlo_convert(b, x, narrow), self.real);
  tt_random_fill(l, &self, tt_hlo_select(b, tt_hlo_compare(b, TT_GE, x, high), low, x));
}

void tt_lower_normal(tt_lowering *l) {
  tt_random_target self = tt_random_target_of(l);
  if (!check_float(l, &self, true, "normal_kernel_cpu")) return;
  tt_require(l, check_std, 2, self.real);
  tt_value *mean = tt_number(l, 1, self.real), *std = tt_number(l, 2, self.real);
  // The variance of a complex number is shared by its parts.
  if (tt_dtype_is_complex(self.dtype)) std = constant_times(l->b, std, sqrt(0.5));
  tt_random_fill(l, &self, tt_add(l, tt_mul(l, tt_random_normal(l, 3, self.real, self.rank, self.dims), std), mean));
}

void tt_lower_log_normal(tt_lowering *l) {
  tt_random_target self = tt_random_target_of(l);
  if (!check_float(l, &self, false, "log_normal_cpu")) return;
  tt_require(l, check_log_normal, 2, self.real);
  tt_value *mean = tt_number(l, 1, self.real), *std = tt_number(l, 2, self.real);
  tt_value *x = tt_add(l, tt_mul(l, tt_random_normal(l, 3, self.real, self.rank, self.dims), std), mean);
  tt_random_fill(l, &self, tt_hlo_exponential(l->b, x));
}

void tt_lower_exponential(tt_lowering *l) {
  tt_random_target self = tt_random_target_of(l);
  if (!check_continuous(l, &self, "Exponential", tt_dtype_text(self.dtype))) return;
  tt_require(l, check_lambda, 1, self.real);
  tt_value *lambda = tt_number(l, 1, self.real);
  tt_random_fill(l, &self, tt_div(l, tt_random_exponential(l, 2, self.real, self.rank, self.dims), lambda));
}

// median + sigma * tan(pi * (u - 1/2)). The sign is a bit of its own and the angle is measured from the pole, where the
// tangent's tails are, so that these keep their full resolution.
void tt_lower_cauchy(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_random_target self = tt_random_target_of(l);
  if (!check_continuous(l, &self, "Cauchy", tt_dtype_type_name(self.dtype))) return;
  tt_require(l, check_sigma, 2, self.real);
  tt_value *median = tt_number(l, 1, self.real), *sigma = tt_number(l, 2, self.real);
  tt_value *bits = bits_for(l, 3, self.real, self.rank, self.dims), *one = tt_hlo_constant_like(b, bits, 1);
  tt_value *angle = constant_times(b, tt_random_open_unit(b, tt_hlo_shift_left(b, bits, one), self.real), M_PI / 2);
  tt_value *size = tt_hlo_divide(b, tt_hlo_cosine(b, angle), tt_hlo_sine(b, angle));
  tt_value *odd =
      tt_hlo_compare(b, TT_GE, bits, tt_hlo_constant_like(b, bits, ldexp(1, self.real == TT_F64 ? 63 : 31)));
  tt_value *x = tt_hlo_select(b, odd, tt_hlo_negate(b, size), size);
  tt_random_fill(l, &self, tt_add(l, tt_mul(l, x, sigma), median));
}

// The number of the first success: ceil(log(u) / log(1 - p)). Integers are computed in double, as they may be large.
void tt_lower_geometric(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_random_target self = tt_random_target_of(l);
  double p = tt_double(l, 1);
  if (!(p > 0 && p < 1)) tt_fail(l, TT_INVALID_ARGUMENT, "geometric_ expects p to be in (0, 1), but got p=%g", p);
  if (self.dtype == TT_BOOL || tt_dtype_is_complex(self.dtype))
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"geometric_cpu\" not implemented for '%s'", tt_dtype_text(self.dtype));
  if (tt_failed(l)) return;
  tt_dtype real = tt_dtype_is_integral(self.dtype) && tt_dtype_size(self.dtype) > 2 ? TT_F64 : self.real;
  tt_value *u = tt_random_open_uniform(l, 2, real, self.rank, self.dims);
  tt_value *count = tt_hlo_ceil(b, constant_times(b, tt_hlo_log(b, u), 1 / log1p(-p)));
  tt_random_fill(l, &self, tt_hlo_maximum(b, count, tt_hlo_constant_like(b, count, 1)));
}

// --- coin flips -----------------------------------------------------------------------------------------------------------------

void tt_lower_bernoulli_float(tt_lowering *l) {
  tt_random_target self = tt_random_target_of(l);
  double p = tt_double(l, 1);
  if (!(p >= 0 && p <= 1)) tt_fail(l, TT_INVALID_ARGUMENT, "bernoulli_ expects p to be in [0, 1], but got p=%g", p);
  if (tt_dtype_is_complex(self.dtype))
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"bernoulli_scalar_cpu_\" not implemented for '%s'", tt_dtype_text(self.dtype));
  if (!tt_failed(l)) tt_random_fill(l, &self, tt_random_bernoulli(l, 2, p, self.rank, self.dims));
}

// BOOL of the given shape, true with the probabilities in `p_arg`.
static tt_value *flips(tt_lowering *l, int p_arg, int generator_arg, int rank, const int64_t *dims) {
  tt_builder *b = l->b;
  tt_dtype real = tt_random_dtype(tt_tensor_arg(l, p_arg)->dtype);
  tt_value *p = tt_operand_as(l, p_arg, real);
  tt_value *ok = tt_hlo_and(b, tt_hlo_compare(b, TT_GE, p, tt_hlo_constant_like(b, p, 0)),
                            tt_hlo_compare(b, TT_LE, p, tt_hlo_constant_like(b, p, 1)));
  tt_check_all(l, ok, TT_INVALID_ARGUMENT,
               "Expected p_in >= 0 && p_in <= 1 to be true, but got false.  (Could this error message be improved?  If "
               "so, please report an enhancement request to PyTorch.)");
  tt_value *u = tt_random_uniform(l, generator_arg, real, rank, dims);
  return tt_hlo_compare(b, TT_LT, u, tt_hlo_broadcast_to(b, p, rank, dims));
}

void tt_lower_bernoulli_tensor(tt_lowering *l) {
  tt_random_target self = tt_random_target_of(l);
  tt_dtype p = tt_tensor_arg(l, 1)->dtype;
  if (tt_dtype_is_complex(self.dtype))
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"bernoulli_tensor_cpu_self_\" not implemented for '%s'",
            tt_dtype_text(self.dtype));
  else if (!tt_dtype_is_float(p))
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"bernoulli_tensor_cpu_p_\" not implemented for '%s'", tt_dtype_text(p));
  if (!tt_failed(l)) tt_random_fill(l, &self, flips(l, 1, 2, self.rank, self.dims));
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
  if (std_tensor)
    tt_check_all(l, tt_hlo_compare(b, TT_GE, std, tt_hlo_constant_like(b, std, 0)), TT_INVALID_ARGUMENT,
                 "normal expects all elements of std >= 0.0");
  else
    tt_require(l, check_std, 1, real);
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
