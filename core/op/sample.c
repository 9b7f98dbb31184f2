// sample.c - random ops that take operands: dropout, rrelu, multinomial.
#include <math.h>

#include "op/index.h"
#include "op/random.h"

static tt_value *constant_like_bool(tt_builder *b, const tt_value *x, bool value) {
  return tt_hlo_splat(b, TT_BOOL, x->rank, x->dims, value);
}

// --- dropout ------------------------------------------------------------------------------------------------------------------

// Results: the input with a share p set to zero and the rest scaled up, and what was kept. F.dropout comes here on devices
// other than the CPU.
void tt_lower_native_dropout(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0);
  double p = tt_double(l, 1);
  bool train = tt_bool_or(l, 2, true);
  if (!train || tt_value_count(x) == 0) {
    tt_set_result(l, 0, x);
    tt_set_result(l, 1, constant_like_bool(b, x, true));
    for (int i = 0; i < 2; ++i) tt_set_order_like(l, i, 0);
    return;
  }
  if (!(p >= 0 && p <= 1)) tt_fail(l, TT_INVALID_ARGUMENT, "bernoulli_ expects p to be in [0, 1], but got p=%g", 1 - p);
  if (x->dtype == TT_BOOL || tt_dtype_is_integral(x->dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "result type %s can't be cast to the desired output type %s",
            tt_dtype_text(l->default_dtype), tt_dtype_text(x->dtype));
  if (tt_failed(l)) return;
  tt_value *kept = tt_random_bernoulli(l, -1, 1 - p, x->rank, x->dims);
  tt_value *wide = tt_hlo_convert(b, x, tt_compute_dtype(x->dtype));
  // Multiplied, not selected: infinities and NaN that are dropped stay NaN, as in torch.
  tt_value *scale =
      tt_hlo_select(b, kept, tt_hlo_constant_like(b, wide, p < 1 ? 1 / (1 - p) : 0), tt_hlo_constant_like(b, wide, 0));
  tt_set_result(l, 0, tt_hlo_convert(b, tt_hlo_multiply(b, wide, scale), x->dtype));
  tt_set_result(l, 1, kept);
  for (int i = 0; i < 2; ++i) tt_set_order_like(l, i, 0);
}

void tt_lower_native_dropout_backward(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_dtype dtype = tt_promote(l, (int[]){0, 2}, 2), compute = tt_compute_dtype(dtype);
  tt_value *grad = tt_operand_as(l, 0, compute), *mask = tt_operand_as(l, 1, compute);
  tt_set_result(l, 0, tt_hlo_convert(b, tt_mul(l, tt_mul(l, grad, mask), tt_number(l, 2, compute)), dtype));
  tt_set_order_of_iterator(l, 0, 2, (const tt_tensor *[]){tt_tensor_arg(l, 0), tt_tensor_arg(l, 1)});
}

// --- rrelu ----------------------------------------------------------------------------------------------------------------------

// Arguments: self, noise (written while training), lower, upper, training, generator. Not training, the slope is the middle.
void tt_lower_rrelu_with_noise(tt_lowering *l) {
  tt_builder *b = l->b;
  const tt_tensor *noise = tt_tensor_arg(l, 1);
  if (!noise) return;
  tt_value *x = tt_operand(l, 0), *wide = tt_hlo_convert(b, x, tt_compute_dtype(x->dtype)), *slope;
  bool same = noise->rank == x->rank;
  for (int i = 0; same && i < x->rank; ++i) same = noise->sizes[i] == x->dims[i];
  if (!same)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "noise tensor shape must match self tensor shape. Got self.shape = %s noise.shape = %s",
            tt_shape_text(tt_builder_arena(b), x->rank, x->dims),
            tt_shape_text(tt_builder_arena(b), noise->rank, noise->sizes));
  if (tt_failed(l)) return;
  tt_value *lower = tt_number(l, 2, wide->dtype), *upper = tt_number(l, 3, wide->dtype);
  tt_value *zero = tt_hlo_constant_like(b, wide, 0), *one = tt_hlo_constant_like(b, wide, 1);
  if (tt_bool_or(l, 4, false)) {
    tt_check_all(l, tt_hlo_compare(b, TT_LE, lower, upper), TT_INVALID_ARGUMENT,
                 "Expected from <= to to be true, but got false.");
    tt_value *unit = tt_random_uniform(l, 5, tt_random_dtype(x->dtype), x->rank, x->dims);
    slope = tt_add(l, tt_mul(l, unit, tt_hlo_subtract(b, upper, lower)), lower);
    // What is written is rounded first, so that the gradient sees the slopes that were used.
    slope = tt_hlo_select(b, tt_hlo_compare(b, TT_LE, wide, zero),
                          tt_hlo_convert(b, tt_hlo_convert(b, slope, x->dtype), wide->dtype), one);
    tt_write_operand(l, 1, tt_hlo_convert(b, slope, noise->dtype));
  } else {
    tt_value *middle = tt_hlo_multiply(b, tt_hlo_add(b, lower, upper), tt_hlo_constant_like(b, lower, 0.5));
    slope = tt_hlo_select(b, tt_hlo_compare(b, TT_LE, wide, zero), tt_hlo_broadcast_like(b, middle, wide), one);
  }
  tt_set_result(l, 0, tt_hlo_convert(b, tt_hlo_multiply(b, wide, slope), x->dtype));
  tt_set_order_like(l, 0, 0);
}

// Arguments: grad, self, noise, lower, upper, training, self_is_result. Where both slopes are nearly the same, noise plays no
// part (torch's own threshold).
void tt_lower_rrelu_with_noise_backward(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_dtype dtype = tt_promote(l, (int[]){0, 1}, 2), compute = tt_compute_dtype(dtype);
  tt_value *grad = tt_operand_as(l, 0, compute), *x = tt_operand_as(l, 1, compute);
  double lower = tt_double(l, 3), upper = tt_double(l, 4);
  if (tt_bool(l, 5) && upper - lower > 1e-6) {
    tt_set_result(l, 0, tt_hlo_convert(b, tt_mul(l, grad, tt_operand_as(l, 2, compute)), dtype));
    return;
  }
  tt_hlo_broadcast_both(b, &grad, &x);
  tt_value *below = tt_hlo_compare(b, TT_LE, x, tt_hlo_constant_like(b, x, 0));
  tt_value *scaled = tt_hlo_multiply(b, grad, tt_hlo_constant_like(b, grad, (lower + upper) / 2));
  tt_set_result(l, 0, tt_hlo_convert(b, tt_hlo_select(b, below, scaled, grad), dtype));
}

// --- multinomial ------------------------------------------------------------------------------------------------------------------

enum { MOST_CATEGORIES = 1 << 24 };

static bool check_multinomial(tt_lowering *l, const tt_tensor *p, int64_t count, bool replacement) {
  if (!tt_dtype_is_float(p->dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "multinomial only supports floating-point dtypes for input, got: %s",
            tt_dtype_text(p->dtype));
  else if (p->rank < 1 || p->rank > 2)
    tt_fail(l, TT_INVALID_ARGUMENT, "prob_dist must be 1 or 2 dim");
  else if (count <= 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "cannot sample n_sample <= 0 samples");
  else if (!replacement && count > p->sizes[p->rank - 1])
    tt_fail(l, TT_INVALID_ARGUMENT, "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  else if (p->sizes[p->rank - 1] > MOST_CATEGORIES)
    tt_fail(l, TT_INVALID_ARGUMENT, "number of categories cannot exceed 2^24");
  return !tt_failed(l);
}

static void check_probabilities(tt_lowering *l, tt_value *p) {
  tt_builder *b = l->b;
  tt_value *ok = tt_hlo_and(b, tt_hlo_is_finite(b, p), tt_hlo_compare(b, TT_GE, p, tt_hlo_constant_like(b, p, 0)));
  tt_check_all(l, ok, TT_INVALID_ARGUMENT, "probability tensor contains either `inf`, `nan` or element < 0");
  tt_value *sums = tt_hlo_reduce(b, p, TT_REDUCE_ADD, 1, (int[]){1});
  tt_check_all(l, tt_hlo_compare(b, TT_GT, sums, tt_hlo_constant_like(b, sums, 0)), TT_INVALID_ARGUMENT,
               "invalid multinomial distribution (sum of probabilities <= 0)");
}

static void key_greater(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  (void)user;
  results[0] = tt_hlo_compare(b, TT_GT, arguments[0], arguments[1]);
}

// The `count` greatest keys of each row, which are floats that are not negative: their columns, greatest first.
static tt_value *greatest_columns(tt_builder *b, tt_value *keys, int64_t count) {
  tt_value *columns = tt_hlo_iota(b, TT_S32, 2, keys->dims, 1), *pair[] = {keys, columns}, *sorted[2];
  if (count > 1 && count <= keys->dims[1] / 16) { // XLA makes a selection of this sort
    tt_hlo_sort(b, 2, pair, 1, true, key_greater, NULL, sorted);
    return tt_hlo_slice_dim(b, sorted[1], 1, 0, count, 1);
  }
  // Such floats are ordered as their bits are, so key and column go into one 64-bit integer: reduced or sorted several times
  // faster than a key with a payload.
  tt_value *bits = tt_hlo_convert(b, tt_hlo_bitcast_convert(b, keys, TT_U32, 2, keys->dims), TT_U64);
  bits = tt_hlo_shift_left(b, bits, tt_hlo_constant_like(b, bits, 32));
  tt_value *packed = tt_hlo_or(b, bits, tt_hlo_convert(b, columns, TT_U64));
  if (count == 1) {
    packed = tt_hlo_unsqueeze_dim(b, tt_hlo_reduce(b, packed, TT_REDUCE_MAX, 1, (int[]){1}), 1);
  } else {
    tt_hlo_sort(b, 1, &packed, 1, false, key_greater, NULL, sorted);
    packed = tt_hlo_slice_dim(b, sorted[0], 1, 0, count, 1);
  }
  return tt_hlo_and(b, packed, tt_hlo_constant_like(b, packed, (double)UINT32_MAX));
}

// The categories with the greatest p / exponential draw: a sample without replacement in the order of drawing (Gumbel's trick).
static tt_value *race(tt_lowering *l, tt_value *p, int64_t count) {
  tt_builder *b = l->b;
  tt_value *greatest = tt_hlo_reduce(b, p, TT_REDUCE_MAX, 1, (int[]){1}); // scaled by it, no key overflows
  p = tt_hlo_divide(b, p, tt_hlo_broadcast_in_dim(b, greatest, 2, p->dims, (int[]){0}));
  tt_value *keys = tt_hlo_divide(b, p, tt_random_exponential(l, 3, p->dtype, 2, p->dims));
  return greatest_columns(b, tt_hlo_convert(b, keys, TT_F32), count);
}

// How many entries of each row of `sorted` [m, n] are <= the thresholds [m, k]: [m, k].
static tt_value *count_below(tt_builder *b, tt_value *sorted, tt_value *thresholds) {
  int64_t dims[] = {sorted->dims[0], thresholds->dims[1], sorted->dims[1]};
  tt_value *x = tt_hlo_broadcast_in_dim(b, sorted, 3, dims, (int[]){0, 2});
  tt_value *t = tt_hlo_broadcast_in_dim(b, thresholds, 3, dims, (int[]){0, 1});
  return tt_hlo_reduce(b, tt_hlo_convert(b, tt_hlo_compare(b, TT_LE, x, t), TT_S32), TT_REDUCE_ADD, 1, (int[]){2});
}

// Independent draws: where a uniform number falls among the running sums. A category of probability 0 has no room there; the
// last one that has some takes what rounding carries beyond the total.
static tt_value *draws(tt_lowering *l, tt_value *p, int64_t count) {
  tt_builder *b = l->b;
  int64_t n = p->dims[1];
  tt_value *sums = tt_running_sum(b, p, 1), *total = tt_hlo_slice_dim(b, sums, 1, n - 1, n, 1);
  tt_value *unit = tt_random_uniform(l, 3, p->dtype, 2, (int64_t[]){p->dims[0], count});
  tt_value *at = count_below(b, sums, tt_hlo_multiply(b, unit, tt_hlo_broadcast_like(b, total, unit)));
  tt_value *short_of = tt_hlo_compare(b, TT_LT, sums, tt_hlo_broadcast_like(b, total, sums));
  tt_value *last = tt_hlo_reduce(b, tt_hlo_convert(b, short_of, TT_S32), TT_REDUCE_ADD, 1, (int[]){1});
  return tt_hlo_minimum(b, at, tt_hlo_broadcast_in_dim(b, last, 2, at->dims, (int[]){0}));
}

void tt_lower_multinomial(tt_lowering *l) {
  tt_builder *b = l->b;
  const tt_tensor *given = tt_tensor_arg(l, 0);
  int64_t count = tt_int(l, 1);
  bool replacement = tt_bool_or(l, 2, false), batched = given->rank == 2;
  if (!check_multinomial(l, given, count, replacement)) return;
  int64_t n = given->sizes[given->rank - 1], rows = batched ? given->sizes[0] : 1, dims[] = {rows, count};
  tt_value *none = tt_hlo_splat(b, TT_S64, batched ? 2 : 1, batched ? dims : dims + 1, 0);
  if (rows == 0 || n == 0) {
    if (n == 0 && rows > 0)
      tt_fail(l, TT_INVALID_ARGUMENT, "invalid multinomial distribution (sum of probabilities <= 0)");
    tt_set_result(l, 0, none);
    return;
  }
  tt_value *p = tt_hlo_reshape(b, tt_operand_as(l, 0, tt_compute_dtype(given->dtype)), 2, (int64_t[]){rows, n});
  check_probabilities(l, p);
  tt_value *samples = replacement && count > 1 ? draws(l, p, count) : race(l, p, count);
  tt_set_result(l, 0, tt_hlo_reshape(b, tt_hlo_convert(b, samples, TT_S64), none->rank, none->dims));
}
