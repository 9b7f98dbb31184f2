// batch_norm.c - batch_norm in torch's many overloads, and its gradient.
//
// Statistics are taken over every dimension but the channels, in place: merging dimensions would copy. A channels-last input
// is taken in the order that it has in memory. All compute in float32 for narrower inputs, and the saved statistics stay in
// that dtype, as in CUDA.
//
// Running statistics are written though most schemas do not say so. momentum and eps travel at run time: with
// BatchNorm(momentum=None) the former changes from step to step.
#include "op/norm.h"

// Where an overload has its arguments after (input, weight?, bias?); -1: it has none.
typedef struct layout {
  int mean, variance, momentum, eps;
} layout;

typedef struct normalized {
  bool done; // false after a failure
  tt_value *out, *mean, *rstd;
  tt_value *running_mean, *running_variance; // updated; NULL where there are none
} normalized;

static tt_axes all_but_channels(const tt_value *x, bool last) {
  static const int dims[] = {0,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                             22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42,
                             43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
  if (last) return tt_axes_range(0, x->rank - 1);
  return (tt_axes){x->rank > 1 ? x->rank - 1 : 0, dims};
}

// --- checks ----------------------------------------------------------------------------------------------------------

static bool check_channels(tt_lowering *l, int arg, const char *name, int64_t channels) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  if (!t || (t->rank == 1 && t->sizes[0] == channels)) return true;
  int64_t count = 1;
  for (int i = 0; i < t->rank; ++i) count *= t->sizes[i];
  tt_fail(l, TT_INVALID_ARGUMENT, "%s should contain %lld elements not %lld", name, (long long)channels,
          (long long)count);
  return false;
}

static bool check_arguments(tt_lowering *l, const tt_value *input, const layout *at, bool training) {
  tt_wrap_dim(l, 1, input->rank);
  if (tt_failed(l)) return false;
  if (tt_value_count(input) == 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "input tensor must have at least one element, but got input_sizes = %s",
            tt_sizes_text(l, 0));
  else if (!training && !tt_has(l, at->mean))
    tt_fail(l, TT_INVALID_ARGUMENT, "running_mean must be defined in evaluation mode");
  else if (!training && !tt_has(l, at->variance))
    tt_fail(l, TT_INVALID_ARGUMENT, "running_var must be defined in evaluation mode");
  int64_t channels = input->dims[1];
  return !tt_failed(l) && check_channels(l, at->mean, "running_mean", channels) &&
         check_channels(l, at->variance, "running_var", channels) && check_channels(l, 1, "weight", channels) &&
         check_channels(l, 2, "bias", channels) && tt_check_norm_dtypes(l, "batch_norm", 0, 1, 2);
}

// --- forward ---------------------------------------------------------------------------------------------------------

// 1 / sqrt(variance + eps), but 0 where both are 0: a channel of equal elements gives the bias then, not NaN.
static tt_value *inverse_deviation(tt_builder *b, tt_value *variance, tt_value *eps) {
  tt_value *zero = tt_hlo_constant_like(b, variance, 0);
  tt_value *sum = tt_hlo_add(b, variance, tt_hlo_broadcast_like(b, eps, variance));
  return tt_hlo_select(b, tt_hlo_compare(b, TT_EQ, sum, zero), zero, tt_hlo_rsqrt(b, sum));
}

// momentum * new + (1 - momentum) * old, for a running statistic that is there.
static tt_value *updated(tt_lowering *l, const layout *at, int arg, tt_value *statistic) {
  if (!tt_has(l, arg)) return NULL;
  tt_value *momentum = tt_number(l, at->momentum, statistic->dtype);
  tt_value *rest = tt_hlo_subtract(l->b, tt_hlo_constant(l->b, statistic->dtype, 1), momentum);
  return tt_add(l, tt_mul(l, momentum, statistic), tt_mul(l, rest, tt_operand_as(l, arg, statistic->dtype)));
}

// Fills the statistics of the batch, and the running ones that they update.
static void take_statistics(tt_lowering *l, const layout *at, tt_value *x, tt_axes axes, tt_value *eps, normalized *n) {
  double size = (double)tt_axes_size(x, axes);
  tt_moments m = tt_moments_of(l->b, x, axes);
  n->mean = m.mean;
  n->rstd = inverse_deviation(l->b, tt_divide_by(l->b, m.squares, size), eps);
  n->running_mean = updated(l, at, at->mean, m.mean);
  n->running_variance = updated(l, at, at->variance, tt_divide_by(l->b, m.squares, size - 1));
}

static normalized normalize(tt_lowering *l, const layout *at, bool training) {
  tt_builder *b = l->b;
  normalized n = {0};
  tt_value *input = tt_operand(l, 0);
  if (tt_failed(l) || !check_arguments(l, input, at, training)) return n;
  bool last = tt_is_channels_last(l, 0);
  tt_value *arranged = tt_channels_to_end(b, input, last),
           *x = tt_hlo_convert(b, arranged, tt_compute_dtype(input->dtype));
  tt_value *eps = tt_number(l, at->eps, x->dtype);
  tt_axes axes = all_but_channels(x, last);
  if (training) {
    take_statistics(l, at, arranged, axes, eps, &n);
  } else {
    n.mean = tt_operand_as(l, at->mean, x->dtype);
    n.rstd = inverse_deviation(b, tt_operand_as(l, at->variance, x->dtype), eps);
  }
  tt_value *scale = tt_has(l, 1) ? tt_hlo_multiply(b, n.rstd, tt_operand_as(l, 1, x->dtype)) : n.rstd;
  n.out = tt_hlo_multiply(b, tt_hlo_subtract(b, x, tt_spread(b, n.mean, x, axes)), tt_spread(b, scale, x, axes));
  if (tt_has(l, 2)) n.out = tt_hlo_add(b, n.out, tt_spread(b, tt_operand_as(l, 2, x->dtype), x, axes));
  n.out = tt_channels_from_end(b, tt_hlo_convert(b, n.out, input->dtype), last);
  n.done = !tt_failed(l);
  return n;
}

// Results 0 to 2. Without training torch's CPU saves no statistics: they are empty.
static void set_normalized(tt_lowering *l, const normalized *n, bool save) {
  static const int64_t none = 0;
  tt_value *empty = save ? NULL : tt_hlo_splat(l->b, n->mean->dtype, 1, &none, 0);
  tt_set_result(l, 0, n->out);
  tt_set_channels_last(l, 0, tt_is_channels_last(l, 0));
  tt_set_result(l, 1, save ? n->mean : empty);
  tt_set_result(l, 2, save ? n->rstd : empty);
}

// The reserve that cuDNN wants from its forward; empty.
static void set_reserve(tt_lowering *l, int result) {
  static const int64_t none = 0;
  tt_set_result(l, result, tt_hlo_splat(l->b, TT_U8, 1, &none, 0));
}

static void write_running(tt_lowering *l, const layout *at, const normalized *n) {
  if (n->running_mean) tt_write_operand(l, at->mean, n->running_mean);
  if (n->running_variance) tt_write_operand(l, at->variance, n->running_variance);
}

// The running statistics as results `result` and `result + 1`, in their dtype.
static void set_running(tt_lowering *l, const layout *at, const normalized *n, int result) {
  tt_value *mean = tt_operand(l, at->mean), *variance = tt_operand(l, at->variance);
  tt_set_result(l, result, n->running_mean ? tt_hlo_convert(l->b, n->running_mean, mean->dtype) : mean);
  tt_set_result(l, result + 1,
                n->running_variance ? tt_hlo_convert(l->b, n->running_variance, variance->dtype) : variance);
}

// --- overloads: (input, weight?, bias?, ...) -------------------------------------------------------------------------

static const layout with_flag = {3, 4, 6, 7};       // running_mean, running_var, training, momentum, eps
static const layout without_flag = {3, 4, 5, 6};    // running_mean, running_var, momentum, eps
static const layout without_stats = {-1, -1, 4, 5}; // training, momentum, eps

// native_batch_norm and _native_batch_norm_legit
void tt_lower_native_batch_norm(tt_lowering *l) {
  bool training = tt_bool(l, 5);
  normalized n = normalize(l, &with_flag, training);
  if (!n.done) return;
  set_normalized(l, &n, training);
  write_running(l, &with_flag, &n);
}

void tt_lower_batch_norm_no_stats(tt_lowering *l) {
  normalized n = normalize(l, &without_stats, tt_bool(l, 3));
  if (n.done) set_normalized(l, &n, true);
}

// The functional ones occur in compiled graphs, where torch's shapes for devices other than the CPU hold: the running
// statistics serve as the saved ones in evaluation mode (torch/_decomp/decompositions.py, native_batch_norm_helper).
void tt_lower_batch_norm_functional(tt_lowering *l) {
  normalized n = normalize(l, &with_flag, tt_bool(l, 5));
  if (!n.done) return;
  set_normalized(l, &n, true);
  set_running(l, &with_flag, &n, 3);
}

void tt_lower_batch_norm_no_training(tt_lowering *l) {
  normalized n = normalize(l, &without_flag, false);
  if (n.done) set_normalized(l, &n, true);
}

void tt_lower_batch_norm_with_update(tt_lowering *l) {
  normalized n = normalize(l, &without_flag, true);
  if (!n.done) return;
  set_normalized(l, &n, true);
  set_reserve(l, 3);
  write_running(l, &without_flag, &n);
}

void tt_lower_batch_norm_with_update_functional(tt_lowering *l) {
  normalized n = normalize(l, &without_flag, true);
  if (!n.done) return;
  set_normalized(l, &n, true);
  set_reserve(l, 3);
  set_running(l, &without_flag, &n, 4);
}

void tt_lower_batch_norm_no_update(tt_lowering *l) {
  normalized n = normalize(l, &without_flag, false);
  if (!n.done) return;
  set_normalized(l, &n, false);
  set_reserve(l, 3);
}

// --- backward --------------------------------------------------------------------------------------------------------

// (grad_out, input, weight?, running_mean?, running_var?, save_mean?, save_invstd?, train, eps, output_mask, ...)
void tt_lower_batch_norm_backward(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *input = tt_operand(l, 1);
  tt_dtype wide = tt_compute_dtype(input->dtype), parameter = tt_arg_dtype(l, 2, input->dtype);
  bool train = tt_bool(l, 7), last = tt_is_channels_last(l, 1);
  tt_value *x = tt_channels_to_end(b, tt_hlo_convert(b, input, wide), last),
           *grad = tt_channels_to_end(b, tt_operand_as(l, 0, wide), last);
  tt_axes axes = all_but_channels(x, last);
  tt_value *mean = tt_operand_as(l, train ? 5 : 3, wide);
  tt_value *rstd =
      train ? tt_operand_as(l, 6, wide) : inverse_deviation(b, tt_operand_as(l, 4, wide), tt_number(l, 8, wide));
  tt_value *distance = tt_hlo_subtract(b, x, tt_spread(b, mean, x, axes));
  tt_value *slope = tt_hlo_multiply(b, tt_sum_computed(b, tt_hlo_multiply(b, grad, distance), axes), rstd);
  tt_value *sum = tt_sum(b, grad, axes);
  if (tt_wants(l, 9, 0)) {
    tt_value *scale = tt_has(l, 2) ? tt_hlo_multiply(b, rstd, tt_operand_as(l, 2, wide)) : rstd, *rest = grad;
    if (train) { // the batch's own statistics depend on x
      tt_value *along = tt_divide_by(b, tt_hlo_multiply(b, slope, rstd), (double)tt_axes_size(x, axes));
      rest = tt_hlo_subtract(b, rest, tt_spread(b, tt_divide_by(b, sum, (double)tt_axes_size(x, axes)), x, axes));
      rest = tt_hlo_subtract(b, rest, tt_hlo_multiply(b, distance, tt_spread(b, along, x, axes)));
    }
    tt_value *grad_input = tt_hlo_convert(b, tt_hlo_multiply(b, rest, tt_spread(b, scale, x, axes)), input->dtype);
    tt_set_result(l, 0, tt_channels_from_end(b, grad_input, last));
    tt_set_channels_last(l, 0, last);
  }
  if (tt_wants(l, 9, 1)) tt_set_result(l, 1, tt_hlo_convert(b, slope, parameter));
  if (tt_wants(l, 9, 2)) tt_set_result(l, 2, tt_hlo_convert(b, sum, parameter));
}
