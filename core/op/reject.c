// reject.c - distributions drawn by rejection or by search: poisson, binomial, gamma, dirichlet.
//
// Where the mean is below 10 a discrete distribution is inverted: one uniform number is compared with the running sum of the
// probabilities. Above, and for gamma, proposals are drawn for all elements in rounds until each has accepted one: Hoermann's
// transformed rejection (1993) and the method of Marsaglia and Tsang (2000). Log probabilities are written with Loader's
// deviance, which does not cancel in float32 where differences of lgamma would.
#include <math.h>

#include "op/random.h"
#include "op/transcendental.h"

enum {
  MOST_ROUNDS = 100, // of proposals; less than one in 10^40 is left then
  MOST_STEPS = 64,   // of an inversion: a mean below 10 never gives more
  MOST_VALUES = 8,   // that a loop carries
};

// --- formulas -----------------------------------------------------------------------------------------------------------------

static tt_value *times(tt_builder *b, tt_value *x, double c) {
  return tt_hlo_multiply(b, x, tt_hlo_constant_like(b, x, c));
}
static tt_value *plus(tt_builder *b, tt_value *x, double c) { return tt_hlo_add(b, x, tt_hlo_constant_like(b, x, c)); }
static tt_value *over(tt_builder *b, double c, tt_value *x) {
  return tt_hlo_divide(b, tt_hlo_constant_like(b, x, c), x);
}
static tt_value *minus(tt_builder *b, tt_value *x, tt_value *y) { return tt_hlo_subtract(b, x, y); }
static tt_value *is(tt_builder *b, tt_compare how, tt_value *x, double c) {
  return tt_hlo_compare(b, how, x, tt_hlo_constant_like(b, x, c));
}

static tt_value *at_least(tt_builder *b, tt_value *x, double c) {
  return tt_hlo_maximum(b, x, tt_hlo_constant_like(b, x, c));
}

// k log(k / mean) + mean - k, the deviance of k from its mean.
static tt_value *deviance(tt_builder *b, tt_value *k, tt_value *mean) {
  tt_value *x = tt_hlo_divide(b, minus(b, k, mean), mean);
  return tt_hlo_multiply(b, mean, minus(b, tt_hlo_multiply(b, plus(b, x, 1), tt_emit_log1p(b, x)), x));
}

// log(k! / (sqrt(2 pi k) (k / e)^k)) for k >= 1.
static tt_value *stirling_rest(tt_builder *b, tt_value *k) {
  tt_value *squared = tt_hlo_multiply(b, k, k);
  tt_value *series = plus(b, over(b, -1.0 / 360, squared), 1.0 / 12);
  series = tt_hlo_add(b, series, over(b, 1.0 / 1260, tt_hlo_multiply(b, squared, squared)));
  return tt_hlo_divide(b, series, k);
}

// log of e^-mean mean^k / k!, without its part for k = 0, which the caller chooses.
static tt_value *log_poisson(tt_builder *b, tt_value *k, tt_value *mean) {
  tt_value *positive = at_least(b, k, 1);
  tt_value *rest =
      tt_hlo_add(b, times(b, tt_hlo_log(b, times(b, positive, 2 * M_PI)), 0.5), stirling_rest(b, positive));
  tt_value *log_p = tt_hlo_negate(b, tt_hlo_add(b, rest, deviance(b, positive, mean)));
  return tt_hlo_select(b, is(b, TT_LT, k, 1), tt_hlo_negate(b, mean), log_p);
}

// --- rounds of proposals ----------------------------------------------------------------------------------------------------------

// Makes a proposal from uniform numbers in (0, 1] and the distribution's parameters: its value, and whether it is accepted.
typedef tt_value *(*proposal_fn)(tt_builder *b, tt_value *const *uniforms, tt_value *const *parameters,
                                 tt_value **out_accepted);

typedef struct rejection {
  proposal_fn propose;
  int uniforms, parameters; // how many of each
} rejection;

// Carried: the round, the random state, what is done, the values, the parameters.
enum { ROUND, STATE, DONE, VALUE, PARAMETERS };

static void not_done(tt_builder *b, tt_value *const *carried, tt_value **results, void *user) {
  (void)user;
  tt_value *all = tt_hlo_reduce(b, carried[DONE], TT_REDUCE_AND, 1, (int[]){0});
  results[0] = tt_hlo_and(b, tt_hlo_not(b, all), is(b, TT_LT, carried[ROUND], MOST_ROUNDS));
}

static void one_round(tt_builder *b, tt_value *const *carried, tt_value **results, void *user) {
  const rejection *r = user;
  tt_value *value = carried[VALUE], *uniforms[3], *accepted;
  bool wide = value->dtype == TT_F64;
  int64_t count = value->dims[0], dims[] = {r->uniforms, count};
  tt_value *bits = tt_hlo_rng_bits(b, carried[STATE], wide ? TT_U64 : TT_U32, 2, dims);
  for (int i = 0; i < r->uniforms; ++i) {
    tt_value *own = tt_hlo_squeeze_dim(b, tt_hlo_slice_dim(b, bits, 0, i, i + 1, 1), 0);
    uniforms[i] = tt_random_open_unit(b, own, value->dtype);
  }
  value = r->propose(b, uniforms, carried + PARAMETERS, &accepted);
  tt_value *drawn = tt_hlo_constant_vector(b, TT_U64, 2, (int64_t[]){0, r->uniforms * count * (wide ? 2 : 1)});
  results[ROUND] = plus(b, carried[ROUND], 1);
  results[STATE] = tt_hlo_add(b, carried[STATE], drawn);
  results[DONE] = tt_hlo_or(b, carried[DONE], accepted);
  results[VALUE] = tt_hlo_select(b, carried[DONE], carried[VALUE], value);
  for (int i = 0; i < r->parameters; ++i) results[PARAMETERS + i] = carried[PARAMETERS + i];
}

// Accepted values, in the shape of the parameters (rank 1, one dtype).
static tt_value *draw(tt_lowering *l, int generator_arg, rejection r, tt_value *const *parameters) {
  tt_builder *b = l->b;
  tt_value *initial[MOST_VALUES], *results[MOST_VALUES];
  int64_t words = r.uniforms * parameters[0]->dims[0] * (parameters[0]->dtype == TT_F64 ? 2 : 1);
  initial[ROUND] = tt_hlo_constant(b, TT_S32, 0);
  initial[STATE] = tt_random_state(l, generator_arg, words * MOST_ROUNDS);
  initial[DONE] = tt_hlo_splat(b, TT_BOOL, 1, parameters[0]->dims, 0);
  initial[VALUE] = tt_hlo_constant_like(b, parameters[0], 0);
  for (int i = 0; i < r.parameters; ++i) initial[PARAMETERS + i] = parameters[i];
  tt_hlo_while(b, PARAMETERS + r.parameters, initial, not_done, one_round, &r, results);
  return results[VALUE];
}

// --- inversion --------------------------------------------------------------------------------------------------------------------

// Steps through the probabilities p(0), p(1) ...: `next` gives p(k + 1) / p(k) from k and the parameters.
typedef tt_value *(*ratio_fn)(tt_builder *b, tt_value *k, tt_value *const *parameters);

typedef struct inversion {
  ratio_fn next;
  int parameters;
} inversion;

enum { STEP, UNIFORM, PROBABILITY, SUM, COUNT, INVERSION_PARAMETERS };

static void steps_left(tt_builder *b, tt_value *const *carried, tt_value **results, void *user) {
  (void)user;
  results[0] = is(b, TT_LT, carried[STEP], MOST_STEPS);
}

static void one_step(tt_builder *b, tt_value *const *carried, tt_value **results, void *user) {
  const inversion *v = user;
  tt_value *passed = tt_hlo_compare(b, TT_GT, carried[UNIFORM], carried[SUM]);
  tt_value *k = tt_hlo_broadcast_like(b, carried[STEP], carried[SUM]);
  tt_value *p = tt_hlo_multiply(b, carried[PROBABILITY], v->next(b, k, carried + INVERSION_PARAMETERS));
  results[STEP] = plus(b, carried[STEP], 1);
  results[UNIFORM] = carried[UNIFORM];
  results[PROBABILITY] = p;
  results[SUM] = tt_hlo_add(b, carried[SUM], p);
  results[COUNT] = tt_hlo_add(b, carried[COUNT], tt_hlo_convert(b, passed, carried[COUNT]->dtype));
  for (int i = 0; i < v->parameters; ++i) results[INVERSION_PARAMETERS + i] = carried[INVERSION_PARAMETERS + i];
}

// How many running sums a uniform number exceeds; `first` is p(0).
static tt_value *invert(tt_lowering *l, int generator_arg, inversion v, tt_value *first, tt_value *const *parameters) {
  tt_builder *b = l->b;
  tt_value *initial[MOST_VALUES], *results[MOST_VALUES];
  initial[STEP] = tt_hlo_constant(b, first->dtype, 0);
  initial[UNIFORM] = tt_random_uniform(l, generator_arg, first->dtype, 1, first->dims);
  initial[PROBABILITY] = initial[SUM] = first;
  initial[COUNT] = tt_hlo_constant_like(b, first, 0);
  for (int i = 0; i < v.parameters; ++i) initial[INVERSION_PARAMETERS + i] = parameters[i];
  tt_hlo_while(b, INVERSION_PARAMETERS + v.parameters, initial, steps_left, one_step, &v, results);
  return results[COUNT];
}

// The shape of Hoermann's hat, from its parameters a and b: where a point (u, v) of the square falls.
typedef struct hat {
  tt_value *us, *position; // 1/2 - |u|, (2a / us + b) u
  tt_value *height;        // a / us^2 + b
} hat;

static hat hat_at(tt_builder *b, tt_value *uniform, tt_value *a, tt_value *width) {
  tt_value *u = plus(b, uniform, -0.5);
  hat h = {.us = at_least(b, minus(b, tt_hlo_constant_like(b, u, 0.5), tt_hlo_abs(b, u)), 1e-12)};
  h.position = tt_hlo_multiply(b, tt_hlo_add(b, tt_hlo_divide(b, times(b, a, 2), h.us), width), u);
  h.height = tt_hlo_add(b, tt_hlo_divide(b, a, tt_hlo_multiply(b, h.us, h.us)), width);
  return h;
}

// In the square's middle nearly all points are accepted without a look at the probability.
static tt_value *accepted_at_once(tt_builder *b, const hat *h, tt_value *v, tt_value *limit) {
  return tt_hlo_and(b, is(b, TT_GE, h->us, 0.07), tt_hlo_compare(b, TT_LE, v, limit));
}

// --- poisson ----------------------------------------------------------------------------------------------------------------------

static tt_value *poisson_ratio(tt_builder *b, tt_value *k, tt_value *const *p) {
  return tt_hlo_divide(b, p[0], plus(b, k, 1));
}

static tt_value *propose_poisson(tt_builder *b, tt_value *const *uniforms, tt_value *const *p,
                                 tt_value **out_accepted) {
  tt_value *mean = p[0], *v = uniforms[1];
  tt_value *width = plus(b, times(b, tt_hlo_sqrt(b, mean), 2.53), 0.931),
           *a = plus(b, times(b, width, 0.02483), -0.059);
  tt_value *inverse_alpha = plus(b, over(b, 1.1328, plus(b, width, -3.4)), 1.1239);
  hat h = hat_at(b, uniforms[0], a, width);
  tt_value *k = tt_hlo_floor(b, plus(b, tt_hlo_add(b, h.position, mean), 0.43));
  tt_value *at_once = accepted_at_once(b, &h, v, plus(b, over(b, -3.6224, plus(b, width, -2)), 0.9277));
  tt_value *rejected =
      tt_hlo_or(b, is(b, TT_LT, k, 0), tt_hlo_and(b, is(b, TT_LT, h.us, 0.013), tt_hlo_compare(b, TT_GT, v, h.us)));
  tt_value *left = tt_hlo_log(b, tt_hlo_divide(b, tt_hlo_multiply(b, v, inverse_alpha), h.height));
  tt_value *below = tt_hlo_compare(b, TT_LE, left, log_poisson(b, at_least(b, k, 0), mean));
  *out_accepted = tt_hlo_or(b, at_once, tt_hlo_and(b, tt_hlo_not(b, rejected), below));
  return k;
}

static bool check_float_operand(tt_lowering *l, int arg, const char *kernel) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  if (t && tt_dtype_is_float(t->dtype)) return true;
  tt_fail(l, TT_NOT_IMPLEMENTED, "\"%s\" not implemented for '%s'", kernel, t ? tt_dtype_text(t->dtype) : "Undefined");
  return false;
}

static tt_value *flat_operand(tt_lowering *l, int arg, tt_dtype dtype) {
  tt_value *x = tt_operand_as(l, arg, dtype);
  return tt_hlo_reshape(l->b, x, 1, (int64_t[]){tt_value_count(x)});
}

static void set_like(tt_lowering *l, const tt_tensor *like, tt_value *x) {
  tt_set_result(l, 0, tt_hlo_convert(l->b, tt_hlo_reshape(l->b, x, like->rank, like->sizes), like->dtype));
}

void tt_lower_poisson(tt_lowering *l) {
  tt_builder *b = l->b;
  if (!check_float_operand(l, 0, "poisson_cpu")) return;
  const tt_tensor *self = tt_tensor_arg(l, 0);
  tt_value *mean = flat_operand(l, 0, tt_random_dtype(self->dtype));
  if (tt_value_count(mean) == 0) {
    set_like(l, self, mean);
    return;
  }
  tt_check_all(l, is(b, TT_GE, mean, 0), TT_INVALID_ARGUMENT, "invalid Poisson rate, expected rate to be non-negative");
  tt_value *few = tt_hlo_minimum(b, mean, tt_hlo_constant_like(b, mean, 10)), *many = at_least(b, mean, 10);
  tt_value *searched = invert(l, 1, (inversion){poisson_ratio, 1}, tt_hlo_exponential(b, tt_hlo_negate(b, few)), &few);
  tt_value *drawn = draw(l, 1, (rejection){propose_poisson, 2, 1}, &many);
  set_like(l, self, tt_hlo_select(b, is(b, TT_LT, mean, 10), searched, drawn));
}

// --- binomial ---------------------------------------------------------------------------------------------------------------------
// Parameters: the number of trials and the probability, at most 1/2.

static tt_value *binomial_ratio(tt_builder *b, tt_value *k, tt_value *const *p) {
  tt_value *odds = tt_hlo_divide(b, p[1], minus(b, tt_hlo_constant_like(b, p[1], 1), p[1]));
  return tt_hlo_multiply(b, tt_hlo_divide(b, at_least(b, minus(b, p[0], k), 0), plus(b, k, 1)), odds);
}

// log of the probability of k successes, 1 <= k < n, but for what does not depend on k.
static tt_value *log_binomial(tt_builder *b, tt_value *k, tt_value *const *p) {
  tt_value *one = tt_hlo_constant_like(b, k, 1), *rest = at_least(b, minus(b, p[0], k), 0.5);
  k = at_least(b, k, 0.5);
  tt_value *failures = tt_hlo_multiply(b, p[0], minus(b, one, p[1]));
  tt_value *deviances = tt_hlo_add(b, deviance(b, k, tt_hlo_multiply(b, p[0], p[1])), deviance(b, rest, failures));
  tt_value *logs = times(b, tt_hlo_log(b, tt_hlo_multiply(b, k, tt_hlo_divide(b, rest, p[0]))), 0.5);
  tt_value *rests = tt_hlo_add(b, stirling_rest(b, k), stirling_rest(b, rest));
  return tt_hlo_negate(b, tt_hlo_add(b, deviances, tt_hlo_add(b, logs, rests)));
}

static tt_value *propose_binomial(tt_builder *b, tt_value *const *uniforms, tt_value *const *p,
                                  tt_value **out_accepted) {
  tt_value *one = tt_hlo_constant_like(b, p[0], 1), *mean = tt_hlo_multiply(b, p[0], p[1]), *v = uniforms[1];
  tt_value *deviation = tt_hlo_sqrt(b, tt_hlo_multiply(b, mean, minus(b, one, p[1])));
  tt_value *width = plus(b, times(b, deviation, 2.53), 1.15);
  tt_value *a = plus(b, tt_hlo_add(b, times(b, width, 0.0248), times(b, p[1], 0.01)), -0.0873);
  tt_value *alpha = tt_hlo_multiply(b, plus(b, over(b, 5.1, width), 2.83), deviation);
  tt_value *mode = tt_hlo_floor(b, tt_hlo_multiply(b, plus(b, p[0], 1), p[1]));
  hat h = hat_at(b, uniforms[0], a, width);
  tt_value *k = tt_hlo_floor(b, plus(b, tt_hlo_add(b, h.position, mean), 0.5));
  tt_value *at_once = accepted_at_once(b, &h, v, plus(b, over(b, -4.2, width), 0.92));
  tt_value *possible = tt_hlo_and(b, is(b, TT_GE, k, 0), tt_hlo_compare(b, TT_LE, k, p[0]));
  tt_value *left = tt_hlo_log(b, tt_hlo_divide(b, tt_hlo_multiply(b, v, alpha), h.height));
  tt_value *right = minus(b, log_binomial(b, k, p), log_binomial(b, mode, p));
  *out_accepted = tt_hlo_or(b, at_once, tt_hlo_and(b, possible, tt_hlo_compare(b, TT_LE, left, right)));
  return k;
}

// The rarer of success and failure is counted. NaN parameters give NaN.
void tt_lower_binomial(tt_lowering *l) {
  tt_builder *b = l->b;
  const tt_tensor *self = tt_tensor_arg(l, 0);
  for (int i = 0; i < 2; ++i)
    if (!tt_dtype_is_float(tt_tensor_arg(l, i)->dtype))
      tt_fail(l, TT_VALUE, "binomial only supports floating-point dtypes for %s, got: %s", i == 0 ? "count" : "prob",
              tt_dtype_text(tt_tensor_arg(l, i)->dtype));
  if (tt_failed(l)) return;
  tt_dtype dtype = self->dtype, real = tt_random_dtype(dtype);
  tt_value *n = tt_operand_as(l, 0, real), *p = tt_operand_as(l, 1, real);
  tt_hlo_broadcast_both(b, &n, &p);
  if (tt_failed(l)) return;
  tt_value *shape = n;
  int64_t count = tt_value_count(n);
  n = tt_hlo_reshape(b, n, 1, &count);
  p = tt_hlo_reshape(b, p, 1, &count);
  tt_value *result = n;
  if (count > 0) {
    tt_value *one = tt_hlo_constant_like(b, p, 1), *zero = tt_hlo_constant_like(b, p, 0);
    tt_value *often = is(b, TT_GT, p, 0.5), *nan = tt_hlo_is_nan(b, tt_hlo_add(b, n, p));
    tt_value *trials = at_least(b, n, 0),
             *rare = tt_hlo_clamp(b, zero, tt_hlo_select(b, often, minus(b, one, p), p), one);
    tt_value *is_small = is(b, TT_LT, tt_hlo_multiply(b, trials, rare), 10);
    tt_value *small[] = {tt_hlo_select(b, is_small, trials, one), tt_hlo_select(b, is_small, rare, zero)};
    tt_value *large[] = {tt_hlo_select(b, is_small, tt_hlo_constant_like(b, n, 40), trials),
                         tt_hlo_select(b, is_small, tt_hlo_constant_like(b, p, 0.5), rare)};
    tt_value *none = tt_hlo_exponential(b, tt_hlo_multiply(b, small[0], tt_emit_log1p(b, tt_hlo_negate(b, small[1]))));
    tt_value *searched = invert(l, 2, (inversion){binomial_ratio, 2}, none, small);
    tt_value *drawn = draw(l, 2, (rejection){propose_binomial, 2, 2}, large);
    result = tt_hlo_select(b, is_small, tt_hlo_minimum(b, searched, trials), drawn);
    result = tt_hlo_select(b, often, minus(b, trials, result), result);
    result = tt_hlo_select(b, nan, tt_hlo_constant_like(b, n, NAN), result);
  }
  tt_set_result(l, 0, tt_hlo_convert(b, tt_hlo_reshape(b, result, shape->rank, shape->dims), dtype));
}

// --- gamma ------------------------------------------------------------------------------------------------------------------------

// log of a gamma variable with shape p[0] >= 1.
static tt_value *propose_log_gamma(tt_builder *b, tt_value *const *uniforms, tt_value *const *p,
                                   tt_value **out_accepted) {
  tt_value *d = plus(b, p[0], -1.0 / 3), *c = over(b, 1, tt_hlo_sqrt(b, times(b, d, 9)));
  tt_value *radius = tt_hlo_sqrt(b, times(b, tt_hlo_log(b, uniforms[0]), -2));
  tt_value *x = tt_hlo_multiply(b, radius, tt_hlo_cosine(b, times(b, uniforms[1], 2 * M_PI)));
  tt_value *root = plus(b, tt_hlo_multiply(b, c, x), 1), *positive = is(b, TT_GT, root, 0);
  tt_value *log_v = times(b, tt_hlo_log(b, at_least(b, root, 1e-30)), 3), *v = tt_hlo_exponential(b, log_v);
  tt_value *right = tt_hlo_add(b, times(b, tt_hlo_multiply(b, x, x), 0.5),
                               tt_hlo_multiply(b, d, tt_hlo_add(b, minus(b, tt_hlo_constant_like(b, v, 1), v), log_v)));
  *out_accepted = tt_hlo_and(b, positive, tt_hlo_compare(b, TT_LT, tt_hlo_log(b, uniforms[2]), right));
  return tt_hlo_add(b, tt_hlo_log(b, d), log_v);
}

// Logarithms of gamma variables, alpha of rank 1. Below 1 the shape is raised by 1 and the sample scaled by u^(1 / alpha): as
// logarithms, since such samples underflow.
static tt_value *log_gamma_samples(tt_lowering *l, int generator_arg, tt_value *alpha) {
  tt_builder *b = l->b;
  tt_value *low = is(b, TT_LT, alpha, 1), *raised = tt_hlo_select(b, low, plus(b, alpha, 1), alpha);
  tt_value *sample = draw(l, generator_arg, (rejection){propose_log_gamma, 3, 1}, &raised);
  tt_value *log_u = tt_hlo_negate(b, tt_random_exponential(l, generator_arg, alpha->dtype, 1, alpha->dims));
  return tt_hlo_select(b, low, tt_hlo_add(b, sample, tt_hlo_divide(b, log_u, alpha)), sample);
}

// The smallest normal number of a dtype: what torch gives for samples that underflow.
static double smallest(tt_dtype dtype) { return ldexp(1, dtype == TT_F64 ? -1022 : dtype == TT_F16 ? -14 : -126); }

void tt_lower_standard_gamma(tt_lowering *l) {
  tt_builder *b = l->b;
  if (!check_float_operand(l, 0, "gamma_cpu")) return;
  const tt_tensor *self = tt_tensor_arg(l, 0);
  tt_value *alpha = flat_operand(l, 0, tt_random_dtype(self->dtype));
  if (tt_value_count(alpha) > 0)
    alpha = at_least(b, tt_hlo_exponential(b, log_gamma_samples(l, 1, alpha)), smallest(self->dtype));
  set_like(l, self, alpha);
}

// Gamma variables over their sum, kept inside (0, 1).
void tt_lower_sample_dirichlet(tt_lowering *l) {
  tt_builder *b = l->b;
  if (!check_float_operand(l, 0, "dirichlet")) return;
  const tt_tensor *self = tt_tensor_arg(l, 0);
  tt_value *alpha = flat_operand(l, 0, tt_random_dtype(self->dtype));
  if (tt_value_count(alpha) == 0 || self->rank == 0) {
    set_like(l, self, tt_hlo_constant_like(b, alpha, 1));
    return;
  }
  int last = self->rank - 1, map[TT_RANDOM_MAX_DIMS];
  for (int i = 0; i < last; ++i) map[i] = i;
  tt_value *logs = tt_hlo_reshape(b, log_gamma_samples(l, 1, alpha), self->rank, self->sizes);
  tt_value *greatest =
      tt_hlo_broadcast_in_dim(b, tt_hlo_reduce(b, logs, TT_REDUCE_MAX, 1, &last), self->rank, self->sizes, map);
  tt_value *parts = tt_hlo_exponential(b, minus(b, logs, greatest));
  tt_value *sum =
      tt_hlo_broadcast_in_dim(b, tt_hlo_reduce(b, parts, TT_REDUCE_ADD, 1, &last), self->rank, self->sizes, map);
  double below_one = 1 - ldexp(1, self->dtype == TT_F64   ? -53
                                  : self->dtype == TT_F32 ? -24
                                  : self->dtype == TT_F16 ? -11
                                                          : -8);
  tt_value *x = at_least(b, tt_hlo_divide(b, parts, sum), smallest(self->dtype));
  set_like(l, self, tt_hlo_minimum(b, x, tt_hlo_constant_like(b, x, below_one)));
}
