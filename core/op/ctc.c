// ctc.c - connectionist temporal classification: _ctc_loss and its gradient.
//
// Graves et al., "Connectionist Temporal Classification" (ICML 2006), in logarithms. The labels of a sample are its targets with
// a blank before, between and behind: position s of the 2 S + 1 is a target where s is odd. alpha[t, s] is the log probability of
// all ways to be at s at time t, that of time t included; beta[t, s] of all ways from there to the end, that of t included.
// States are [n, positions], one step of a loop per time.
#include <math.h>

#include "op/axes.h"
#include "op/index.h"
#include "op/pointwise.h"
#include "op/transcendental.h"

typedef struct ctc {
  tt_builder *b;
  int64_t times, samples, classes, positions;
  tt_value *log_probs;               // [times, n, classes], in the dtype of computation
  tt_value *labels;                  // S32 [n, positions]
  tt_value *emitted;                 // log probability of each label: [times, n, positions]
  tt_value *times_of, *positions_of; // S32 [n]: how many of each count
  tt_value *may_skip;                // BOOL [n, positions]: may s be reached from s - 2?
} ctc;

// --- helpers ------------------------------------------------------------------------------------------------------------------

static tt_value *log_sum(tt_builder *b, tt_value *x, tt_value *y) {
  tt_value *most = tt_hlo_maximum(b, x, y), *least = tt_hlo_minimum(b, x, y);
  tt_value *sum = tt_hlo_add(b, most, tt_emit_log1p(b, tt_hlo_exponential(b, tt_hlo_subtract(b, least, most))));
  return tt_hlo_select(b, tt_compare_constant(b, TT_EQ, most, -INFINITY), most, sum); // -inf - -inf is no number
}

// x [n, positions] moved by `by` positions (to the right if positive), -inf coming in.
static tt_value *shift(tt_builder *b, tt_value *x, int64_t by) {
  tt_value *fill = tt_hlo_constant(b, x->dtype, -INFINITY);
  return tt_hlo_pad(b, x, fill, (int64_t[]){0, by}, (int64_t[]){0, -by}, (int64_t[]){0, 0});
}

static tt_value *as_rows(tt_builder *b, tt_value *x, const tt_value *like) { // [n] to like's [n, positions]
  return tt_hlo_broadcast_in_dim(b, x, 2, like->dims, (int[]){0});
}

static tt_value *position_numbers(const ctc *c) {
  return tt_hlo_iota(c->b, TT_S32, 2, (int64_t[]){c->samples, c->positions}, 1);
}

// Row `time` of x [times, n, positions].
static tt_value *row_at(tt_builder *b, tt_value *x, tt_value *time) {
  tt_value *zero = tt_hlo_constant_like(b, time, 0);
  tt_value *row = tt_hlo_dynamic_slice(b, x, (tt_value *[]){time, zero, zero}, (int64_t[]){1, x->dims[1], x->dims[2]});
  return tt_hlo_squeeze_dim(b, row, 0);
}

static tt_value *put_row(tt_builder *b, tt_value *x, tt_value *row, tt_value *time) {
  tt_value *zero = tt_hlo_constant_like(b, time, 0);
  return tt_hlo_dynamic_update_slice(b, x, tt_hlo_unsqueeze_dim(b, row, 0), (tt_value *[]){time, zero, zero});
}

// The element of x [n, positions] at each sample's `position` [n], -inf where that is negative.
static tt_value *pick(const ctc *c, tt_value *x, tt_value *position) {
  tt_builder *b = c->b;
  tt_value *here = tt_hlo_compare(b, TT_EQ, position_numbers(c), as_rows(b, position, x));
  return tt_hlo_reduce(b, tt_hlo_select(b, here, x, tt_hlo_constant_like(b, x, -INFINITY)), TT_REDUCE_MAX, 1,
                       (int[]){1});
}

// --- arguments ------------------------------------------------------------------------------------------------------------------

// targets, [n, S] or all in a row, with blanks: [n, positions].
static tt_value *read_labels(tt_lowering *l, const ctc *c, tt_value *targets, const int64_t *lengths, int64_t blank) {
  tt_builder *b = c->b;
  int64_t width = (c->positions - 1) / 2;
  tt_value *places = tt_hlo_iota(b, TT_S32, 2, (int64_t[]){c->samples, width}, 1);
  if (targets->rank == 1 && width > 0) {
    int64_t *starts = tt_arena_allocate(tt_builder_arena(b), (size_t)c->samples, sizeof *starts), at = 0;
    if (!starts) return places;
    for (int64_t i = 0; i < c->samples; at += lengths[i++]) starts[i] = at;
    tt_value *start = tt_hlo_constant_vector(b, TT_S32, (int)c->samples, starts);
    places = tt_hlo_add(b, places, as_rows(b, start, places));
    places = tt_hlo_minimum(b, places, tt_hlo_constant_like(b, places, (double)targets->dims[0] - 1));
    targets = tt_take_rows(b, targets, 0, places);
  } else if (width > 0) {
    targets = tt_hlo_slice_dim(b, targets, 1, 0, width, 1);
  } else {
    targets = tt_hlo_splat(b, targets->dtype, 2, (int64_t[]){c->samples, 0}, 0);
  }
  targets = tt_index_checked(l, targets, c->classes, false, TT_INVALID_ARGUMENT, "ctc_loss: a target is not a class");
  tt_value *fill = tt_hlo_constant_i64(b, TT_S32, blank);
  return tt_hlo_pad(b, tt_hlo_convert(b, targets, TT_S32), fill, (int64_t[]){0, 1}, (int64_t[]){0, 1},
                    (int64_t[]){0, 1});
}

static tt_value *lengths_vector(tt_builder *b, int64_t count, const int64_t *lengths, int64_t factor, int64_t offset) {
  int64_t *values = tt_arena_allocate(tt_builder_arena(b), (size_t)count + 1, sizeof *values);
  for (int64_t i = 0; values && i < count; ++i) values[i] = factor * lengths[i] + offset;
  return tt_hlo_constant_vector(b, TT_S32, values ? (int)count : 0, values);
}

static bool check(tt_lowering *l, const tt_value *log_probs, const tt_value *targets, const int64_t *in, int in_count,
                  const int64_t *out, int out_count, int64_t blank) {
  int64_t n = log_probs->rank == 3 ? log_probs->dims[1] : -1;
  if (log_probs->rank != 3)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Expected tensor to have 3 dimensions, but got %d (while checking arguments for ctc_loss)",
            log_probs->rank);
  else if (!tt_is_index_dtype(targets->dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "targets must be Long or Int, got %s", tt_dtype_text(targets->dtype));
  else if (blank < 0 || blank >= log_probs->dims[2])
    tt_fail(l, TT_INVALID_ARGUMENT, "blank must be in label range");
  else if (in_count != n)
    tt_fail(l, TT_INVALID_ARGUMENT, "input_lengths must be of size batch_size");
  else if (out_count != n)
    tt_fail(l, TT_INVALID_ARGUMENT, "target_lengths must be of size batch_size");
  else if (n == 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "ctc_loss: an empty batch");
  int64_t sum = 0, most = 0;
  for (int i = 0; !tt_failed(l) && i < n; ++i) {
    if (in[i] < 0 || in[i] > log_probs->dims[0])
      tt_fail(
          l, TT_INVALID_ARGUMENT,
          in[i] < 0
              ? "Expected input_lengths to have value at least 0, but got value %lld (while checking arguments for "
                "ctc_loss)"
              : "Expected input_lengths to have value at most %lld, but got value %lld (while checking arguments for "
                "ctc_loss)",
          (long long)(in[i] < 0 ? in[i] : log_probs->dims[0]), (long long)in[i]);
    else if (out[i] < 0)
      tt_fail(l, TT_INVALID_ARGUMENT,
              "Expected target_lengths to have value at least 0, but got value %lld (while checking "
              "arguments for ctc_loss)",
              (long long)out[i]);
    sum += out[i];
    most = out[i] > most ? out[i] : most;
  }
  if (!tt_failed(l) && targets->rank == 1 && targets->dims[0] != sum)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Expected tensor to have size %lld at dimension 0, but got size %lld for argument "
            "'targets' (while checking arguments for ctc_loss)",
            (long long)sum, (long long)targets->dims[0]);
  else if (!tt_failed(l) && targets->rank == 2 && (targets->dims[0] != n || targets->dims[1] < most))
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Expected tensor to have size at least %lld at dimension 1, but got size %lld for argument "
            "'targets' (while checking arguments for ctc_loss)",
            (long long)most, (long long)targets->dims[1]);
  else if (!tt_failed(l) && targets->rank != 1 && targets->rank != 2)
    tt_fail(l, TT_INVALID_ARGUMENT, "targets must have 1 or 2 dimensions, got %d", targets->rank);
  return !tt_failed(l);
}

// log_probs and what follows it are the arguments `first`, ...: targets, input_lengths, target_lengths; `blank` is one more.
static bool read_arguments(tt_lowering *l, int first, int blank_arg, ctc *c) {
  tt_builder *b = l->b;
  tt_value *log_probs = tt_operand(l, first), *targets = tt_operand(l, first + 1);
  int in_count, out_count;
  const int64_t *in = tt_ints(l, first + 2, &in_count), *out = tt_ints(l, first + 3, &out_count);
  int64_t blank = tt_int(l, blank_arg), most = 0;
  if (tt_failed(l) || !check(l, log_probs, targets, in, in_count, out, out_count, blank)) return false;
  for (int i = 0; i < out_count; ++i) most = out[i] > most ? out[i] : most;
  *c = (ctc){.b = b,
             .times = log_probs->dims[0],
             .samples = log_probs->dims[1],
             .classes = log_probs->dims[2],
             .positions = 2 * most + 1,
             .log_probs = tt_hlo_convert(b, log_probs, tt_compute_dtype(log_probs->dtype))};
  c->labels = read_labels(l, c, targets, out, blank);
  c->times_of = lengths_vector(b, in_count, in, 1, 0);
  c->positions_of = lengths_vector(b, out_count, out, 2, 1);
  if (tt_failed(l)) return false;
  tt_value *everywhere =
      tt_hlo_broadcast_in_dim(b, c->labels, 3, (int64_t[]){c->times, c->samples, c->positions}, (int[]){1, 2});
  tt_index_map map;
  tt_map_elements(&map, c->log_probs, 2, everywhere);
  c->emitted = c->times > 0 ? tt_index_read(b, c->log_probs, &map) : NULL;
  tt_value *numbers = position_numbers(c);
  tt_value *odd = tt_compare_constant(b, TT_NE, tt_hlo_remainder(b, numbers, tt_hlo_constant_like(b, numbers, 2)), 0);
  tt_value *before = tt_hlo_pad(b, c->labels, tt_hlo_constant_i64(b, TT_S32, -1), (int64_t[]){0, 2}, (int64_t[]){0, -2},
                                (int64_t[]){0, 0});
  c->may_skip = tt_hlo_and(b, tt_hlo_and(b, odd, tt_compare_constant(b, TT_GE, numbers, 2)),
                           tt_hlo_compare(b, TT_NE, c->labels, before));
  return !tt_failed(l);
}

// --- the two recursions ---------------------------------------------------------------------------------------------------------

// What the loops carry. `state` is the row of the time before (alpha) or after (beta); `lasting` [n] the samples' own ends.
enum { TIME, STATE, ROWS, EMITTED, SKIP, LASTS, FINAL, CARRIED };

static void times_left(tt_builder *b, tt_value *const *v, tt_value **results, void *user) {
  (void)user;
  results[0] = tt_hlo_compare(b, TT_LT, v[TIME], tt_hlo_constant_i64(b, TT_S32, v[ROWS]->dims[0]));
}

static void step_alpha(tt_builder *b, tt_value *const *v, tt_value **results, void *user) {
  (void)user;
  tt_value *state = v[STATE];
  tt_value *skipped = tt_hlo_select(b, v[SKIP], shift(b, state, 2), tt_hlo_constant_like(b, state, -INFINITY));
  tt_value *moved = log_sum(b, log_sum(b, state, shift(b, state, 1)), skipped);
  tt_value *next = tt_hlo_add(b, moved, row_at(b, v[EMITTED], v[TIME]));
  tt_value *counts = tt_hlo_compare(b, TT_LT, tt_hlo_broadcast_like(b, v[TIME], v[LASTS]), v[LASTS]);
  for (int i = 0; i < CARRIED; ++i) results[i] = v[i];
  results[TIME] = tt_hlo_add(b, v[TIME], tt_hlo_constant_like(b, v[TIME], 1));
  results[STATE] = tt_hlo_select(b, as_rows(b, counts, state), next, state); // at its end a sample stays as it is
  results[ROWS] = put_row(b, v[ROWS], results[STATE], v[TIME]);
}

static void times_before(tt_builder *b, tt_value *const *v, tt_value **results, void *user) {
  (void)user;
  results[0] = tt_hlo_compare(b, TT_GE, v[TIME], tt_hlo_constant_like(b, v[TIME], 0));
}

static void step_beta(tt_builder *b, tt_value *const *v, tt_value **results, void *user) {
  (void)user;
  tt_value *state = v[STATE], *none = tt_hlo_constant_like(b, state, -INFINITY);
  // s + 2 may be reached from s where it may skip.
  tt_value *skipped = shift(b, tt_hlo_select(b, v[SKIP], state, none), -2);
  tt_value *moved = log_sum(b, log_sum(b, state, shift(b, state, -1)), skipped);
  tt_value *one = tt_hlo_constant_like(b, v[LASTS], 1), *time = tt_hlo_broadcast_like(b, v[TIME], v[LASTS]);
  tt_value *is_last = tt_hlo_compare(b, TT_EQ, time, tt_hlo_subtract(b, v[LASTS], one));
  tt_value *counts = tt_hlo_compare(b, TT_LT, time, v[LASTS]);
  tt_value *from = tt_hlo_select(b, as_rows(b, is_last, state), v[FINAL], moved);
  tt_value *next = tt_hlo_add(b, from, row_at(b, v[EMITTED], v[TIME]));
  for (int i = 0; i < CARRIED; ++i) results[i] = v[i];
  results[TIME] = tt_hlo_subtract(b, v[TIME], tt_hlo_constant_like(b, v[TIME], 1));
  results[STATE] = tt_hlo_select(b, as_rows(b, counts, state), next, none);
  results[ROWS] = put_row(b, v[ROWS], results[STATE], v[TIME]);
}

// The positions at which a sample may begin (0 and 1) or end (its last two), as 0, and -inf elsewhere.
static tt_value *open_positions(const ctc *c, tt_value *low, tt_value *high) {
  tt_builder *b = c->b;
  tt_value *numbers = position_numbers(c);
  tt_value *open = tt_hlo_and(b, tt_hlo_compare(b, TT_GE, numbers, as_rows(b, low, numbers)),
                              tt_hlo_compare(b, TT_LT, numbers, as_rows(b, high, numbers)));
  tt_value *zeros = tt_hlo_splat(b, c->log_probs->dtype, 2, numbers->dims, 0);
  return tt_hlo_select(b, open, zeros, tt_hlo_constant_like(b, zeros, -INFINITY));
}

static tt_value *ends(const ctc *c) {
  tt_value *two = tt_hlo_constant_like(c->b, c->positions_of, 2);
  return open_positions(c, tt_hlo_subtract(c->b, c->positions_of, two), c->positions_of);
}

// [times, n, positions] of one recursion; *out_last gets its last state.
static tt_value *recur(const ctc *c, bool forward, tt_value **out_last) {
  tt_builder *b = c->b;
  int64_t dims[] = {c->times, c->samples, c->positions};
  tt_value *rows = tt_hlo_splat(b, c->log_probs->dtype, 3, dims, -INFINITY);
  tt_value *none = tt_hlo_splat(b, c->log_probs->dtype, 2, dims + 1, -INFINITY);
  tt_value *start = none;
  if (forward) {
    // As if it had been at a blank before the first time: from there, 0 and 1 are reached.
    tt_value *zero = tt_hlo_constant_like(b, c->positions_of, 0);
    tt_value *two = tt_hlo_minimum(b, tt_hlo_constant_like(b, zero, 2), c->positions_of);
    start = tt_hlo_add(b, open_positions(c, zero, two), row_at(b, c->emitted, tt_hlo_constant_i64(b, TT_S32, 0)));
    tt_value *counts = tt_compare_constant(b, TT_GT, c->times_of, 0);
    start = tt_hlo_select(b, as_rows(b, counts, start), start, none);
    rows = put_row(b, rows, start, tt_hlo_constant_i64(b, TT_S32, 0));
  }
  tt_value *carried[CARRIED] = {
      [TIME] = tt_hlo_constant_i64(b, TT_S32, forward ? 1 : c->times - 1),
      [STATE] = start,
      [ROWS] = rows,
      [EMITTED] = c->emitted,
      [SKIP] = c->may_skip,
      [LASTS] = c->times_of,
      [FINAL] = ends(c),
  };
  tt_hlo_while(b, CARRIED, carried, forward ? times_left : times_before, forward ? step_alpha : step_beta, NULL,
               carried);
  *out_last = carried[STATE];
  return carried[ROWS];
}

static tt_value *swap_first_two(tt_builder *b, tt_value *x) { return tt_hlo_transpose(b, x, (int[]){1, 0, 2}); }

// --- ops ------------------------------------------------------------------------------------------------------------------------

// _ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity) -> losses [n], log_alpha [n, times, positions]
void tt_lower_ctc_loss(tt_lowering *l) {
  tt_builder *b = l->b;
  ctc c;
  if (!read_arguments(l, 0, 4, &c)) return;
  tt_dtype dtype = tt_operand(l, 0)->dtype;
  int64_t dims[] = {c.samples, c.times, c.positions};
  tt_value *alpha = tt_hlo_splat(b, c.log_probs->dtype, 3, dims, 0), *last = NULL, *total;
  tt_value *is_empty = tt_compare_constant(b, TT_EQ, c.positions_of, 1);
  tt_value *zeros = tt_hlo_splat(b, c.log_probs->dtype, 1, dims, 0);
  tt_value *nothing = tt_hlo_select(b, is_empty, zeros, tt_hlo_constant_like(b, zeros, -INFINITY)); // of no time at all
  total = nothing;
  if (c.times > 0) {
    alpha = swap_first_two(b, recur(&c, true, &last));
    tt_value *end = tt_hlo_subtract(b, c.positions_of, tt_hlo_constant_like(b, c.positions_of, 1));
    tt_value *before = tt_hlo_subtract(b, end, tt_hlo_constant_like(b, end, 1));
    total = log_sum(b, pick(&c, last, end), pick(&c, last, before));
    total = tt_hlo_select(b, tt_compare_constant(b, TT_EQ, c.times_of, 0), nothing, total);
  }
  tt_set_result(l, 0, tt_hlo_convert(b, tt_hlo_negate(b, total), dtype));
  tt_set_result(l, 1, tt_hlo_convert(b, alpha, dtype));
}

// _ctc_loss_backward(grad, log_probs, targets, input_lengths, target_lengths, losses, log_alpha, blank, zero_infinity):
// grad * (exp(log_probs) - exp(log of the sum over the positions of a class of alpha * beta + loss - log_probs)).
void tt_lower_ctc_loss_backward(tt_lowering *l) {
  tt_builder *b = l->b;
  ctc c;
  if (!read_arguments(l, 1, 7, &c)) return;
  tt_dtype dtype = tt_operand(l, 1)->dtype, compute = c.log_probs->dtype;
  if (c.times == 0) {
    tt_set_result(l, 0, tt_operand(l, 1));
    return;
  }
  tt_value *grad = tt_operand_as(l, 0, compute), *losses = tt_operand_as(l, 5, compute), *last;
  tt_value *alpha = swap_first_two(b, tt_operand_as(l, 6, compute)), *beta = recur(&c, false, &last);
  tt_value *ways = tt_hlo_add(b, alpha, beta); // [times, n, positions]
  tt_value *most = tt_hlo_reduce(b, ways, TT_REDUCE_MAX, 1, (int[]){2});
  most = tt_select_constant(b, tt_compare_constant(b, TT_EQ, most, -INFINITY), 0, most);
  tt_value *shares = tt_hlo_exponential(b, tt_hlo_subtract(b, ways, tt_spread(b, most, ways, tt_axes_range(2, 3))));
  tt_value *zeros = tt_hlo_constant_like(b, c.log_probs, 0);
  tt_index_map map;
  tt_map_elements(&map, zeros, 2, tt_hlo_broadcast_in_dim(b, c.labels, 3, ways->dims, (int[]){1, 2}));
  tt_value *sums = tt_hlo_log(b, tt_index_write(b, zeros, &map, shares, TT_COMBINE_ADD)); // [times, n, classes]
  sums = tt_hlo_add(b, sums, tt_spread(b, most, sums, tt_axes_range(2, 3)));
  tt_value *loss = tt_hlo_broadcast_in_dim(b, losses, 3, sums->dims, (int[]){1});
  tt_value *expected = tt_hlo_exponential(b, tt_hlo_subtract(b, tt_hlo_add(b, sums, loss), c.log_probs));
  tt_value *difference = tt_hlo_subtract(b, tt_hlo_exponential(b, c.log_probs), expected);
  tt_value *result = tt_hlo_multiply(b, difference, tt_hlo_broadcast_in_dim(b, grad, 3, sums->dims, (int[]){1}));
  tt_value *time = tt_hlo_iota(b, TT_S32, 3, sums->dims, 0);
  tt_value *counts = tt_hlo_compare(b, TT_LT, time, tt_hlo_broadcast_in_dim(b, c.times_of, 3, sums->dims, (int[]){1}));
  if (tt_bool(l, 8)) counts = tt_hlo_and(b, counts, tt_hlo_not(b, tt_compare_constant(b, TT_EQ, loss, INFINITY)));
  tt_set_result(l, 0, tt_hlo_convert(b, tt_hlo_select(b, counts, result, zeros), dtype));
}
