// segment.c - reductions over runs of elements that lie side by side: segment_reduce and its gradient.
//
// Segments are given by their lengths [batch..., segments] or by where they begin and end, offsets [batch..., segments + 1].
// data [batch..., n, rest...] becomes [batch..., segments, rest...].
#include <math.h>
#include <string.h>

#include "op/index.h"
#include "op/order.h"
#include "op/pointwise.h"

typedef struct segments {
  int batch_rank;
  int64_t batches, count, n;
  tt_value *lengths; // [batches * count], S64
  tt_value *of; // [batches * n]: the segment of each element, counted through the batches; batches * count for none
} segments;

static tt_value *flatten(tt_builder *b, tt_value *x, int64_t rows) {
  return tt_hlo_reshape(b, x, 2, (int64_t[]){rows, rows > 0 ? tt_value_count(x) / rows : 0});
}

// Which arguments hold lengths and offsets is told by their numbers. False after a failure.
static bool read_segments(tt_lowering *l, const tt_value *data, int lengths_arg, int offsets_arg, bool checked,
                          segments *s) {
  tt_builder *b = l->b;
  bool by_lengths = tt_has(l, lengths_arg);
  if (!by_lengths && !tt_has(l, offsets_arg))
    tt_fail(l, TT_INVALID_ARGUMENT, "segment_reduce(): Either lengths or offsets must be defined.");
  if (tt_failed(l)) return false;
  tt_value *given = tt_operand(l, by_lengths ? lengths_arg : offsets_arg);
  if (given->rank < 1 || data->rank < given->rank)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "segment_reduce(): Expected data to have at least as many dimensions as its segments");
  if (tt_failed(l)) return false;
  s->batch_rank = given->rank - 1;
  s->n = data->dims[s->batch_rank];
  s->batches = 1;
  for (int i = 0; i < s->batch_rank; ++i) s->batches *= data->dims[i];
  int64_t given_size = given->dims[given->rank - 1];
  s->count = by_lengths ? given_size : given_size - 1;
  tt_value *rows = tt_hlo_convert(b, tt_hlo_reshape(b, given, 2, (int64_t[]){s->batches, given_size}), TT_S64), *ends;
  if (by_lengths) {
    ends = tt_running_sum(b, rows, 1);
    s->lengths = tt_hlo_reshape(b, rows, 1, (int64_t[]){s->batches * s->count});
    if (checked && s->count > 0 && s->batches > 0) {
      tt_value *total = tt_hlo_slice_dim(b, ends, 1, s->count - 1, s->count, 1);
      tt_check_all(l, tt_compare_constant(b, TT_GE, rows, 0), TT_INVALID_ARGUMENT, "lengths contains negative value!");
      tt_check_all(l, tt_compare_constant(b, TT_EQ, total, (double)s->n), TT_INVALID_ARGUMENT,
                   "Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when !unsafe.");
    }
  } else {
    ends = tt_hlo_slice_dim(b, rows, 1, 1, given_size, 1);
    tt_value *starts = tt_hlo_slice_dim(b, rows, 1, 0, s->count, 1);
    s->lengths = tt_hlo_reshape(b, tt_hlo_subtract(b, ends, starts), 1, (int64_t[]){s->batches * s->count});
  }
  int64_t all = s->batches * s->n;
  tt_value *element = tt_hlo_iota(b, TT_S64, 2, (int64_t[]){s->batches, s->n}, 1);
  tt_value *batch = tt_hlo_reshape(b, tt_hlo_iota(b, TT_S64, 2, (int64_t[]){s->batches, s->n}, 0), 1, &all);
  tt_value *within =
      tt_search_rows(b, tt_flat(b, ends), tt_hlo_reshape(b, element, 1, &all), s->batches, s->count, true);
  within = tt_hlo_convert(b, within, TT_S64);
  tt_value *of = tt_hlo_add(b, tt_multiply_constant(b, batch, (double)s->count), within);
  of = tt_select_constant(b, tt_compare_constant(b, TT_GE, within, (double)s->count), (double)(s->batches * s->count),
                          of);
  if (!by_lengths && s->count > 0 && all > 0) { // what lies before the first segment belongs to none
    tt_value *first = tt_hlo_slice_dim(b, rows, 1, 0, 1, 1);
    tt_value *outside = tt_hlo_compare(b, TT_LT, element, tt_hlo_broadcast_to(b, first, 2, element->dims));
    of = tt_select_constant(b, tt_hlo_reshape(b, outside, 1, &all), (double)(s->batches * s->count), of);
  }
  s->of = tt_hlo_convert(b, of, tt_index_dtype(s->batches * s->count));
  return !tt_failed(l);
}

// [batches * count, width] of one value per segment, and back.
static tt_value *per_segment(tt_builder *b, tt_value *x, int64_t width) {
  return tt_hlo_broadcast_in_dim(b, x, 2, (int64_t[]){x->dims[0], width}, (int[]){0});
}

static tt_value *combine(tt_builder *b, const segments *s, tt_value *start, tt_value *rows, tt_combine how) {
  tt_index_map map;
  tt_map_rows(&map, start, 0, s->of);
  return tt_index_write(b, start, &map, rows, how);
}

// The value of each element's segment; anything where it belongs to none.
static tt_value *spread(tt_builder *b, const segments *s, tt_value *x) {
  tt_value *last = tt_hlo_constant_like(b, s->of, (double)(s->batches * s->count) - 1);
  return tt_take_rows(b, x, 0, tt_hlo_minimum(b, s->of, last));
}

// segment_reduce(data, reduce, lengths?, indices?, offsets?, axis, unsafe, initial?)
void tt_lower_segment_reduce(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *data = tt_operand(l, 0);
  const char *reduce = tt_text(l, 1);
  segments s;
  if (!read_segments(l, data, 2, 4, !tt_bool(l, 6), &s)) return;
  bool is_max = strcmp(reduce, "max") == 0, is_min = strcmp(reduce, "min") == 0, is_mean = strcmp(reduce, "mean") == 0,
       is_product = strcmp(reduce, "prod") == 0, has_initial = tt_has(l, 7);
  int64_t dims[TT_AXES_MAX];
  for (int i = 0; i < data->rank; ++i) dims[i] = i == s.batch_rank ? s.count : data->dims[i];
  tt_value *rows = flatten(b, data, s.batches * s.n);
  rows = tt_hlo_convert(b, rows, tt_compute_dtype(data->dtype));
  int64_t shape[] = {s.batches * s.count, rows->dims[1]};
  if (shape[0] == 0 || shape[1] == 0) {
    tt_set_result(l, 0, tt_hlo_splat(b, data->dtype, data->rank, dims, 0));
    return;
  }
  double initial = has_initial ? tt_double(l, 7) : is_max ? -INFINITY : is_min ? INFINITY : is_product;
  tt_value *start = tt_hlo_splat(b, rows->dtype, 2, shape, initial);
  tt_combine how = is_max       ? TT_COMBINE_MAX
                   : is_min     ? TT_COMBINE_MIN
                   : is_product ? TT_COMBINE_MULTIPLY
                                : TT_COMBINE_ADD;
  tt_value *result = combine(b, &s, start, rows, how);
  if (is_mean) {
    tt_value *lengths = per_segment(b, tt_hlo_convert(b, s.lengths, rows->dtype), shape[1]);
    tt_value *is_empty = tt_compare_constant(b, TT_EQ, lengths, 0);
    tt_value *mean = tt_hlo_divide(b, result, lengths);
    result = tt_hlo_select(b, is_empty, has_initial ? result : tt_hlo_constant_like(b, result, NAN), mean);
  }
  tt_set_result(l, 0, tt_hlo_reshape(b, tt_hlo_convert(b, result, data->dtype), data->rank, dims));
}

// The gradient of a product: grad * the product of the others. Where one element is 0, only that has a gradient; where more
// are, none has.
static tt_value *product_grad(tt_builder *b, const segments *s, tt_value *grad, tt_value *rows, double initial) {
  tt_value *is_zero = tt_compare_constant(b, TT_EQ, rows, 0);
  tt_value *zeros = tt_hlo_constant_like(b, grad, 0);
  tt_value *count = combine(b, s, zeros, tt_hlo_convert(b, is_zero, rows->dtype), TT_COMBINE_ADD);
  tt_value *others = tt_select_constant(b, is_zero, 1, rows);
  tt_value *product = combine(b, s, tt_hlo_constant_like(b, grad, initial), others, TT_COMBINE_MULTIPLY);
  tt_value *from_others = tt_hlo_multiply(b, spread(b, s, grad), tt_hlo_divide(b, spread(b, s, product), others));
  tt_value *zeros_here = spread(b, s, count);
  tt_value *counts = tt_hlo_or(b, tt_compare_constant(b, TT_EQ, zeros_here, 0),
                               tt_hlo_and(b, is_zero, tt_compare_constant(b, TT_EQ, zeros_here, 1)));
  return tt_hlo_select(b, counts, from_others, tt_hlo_constant_like(b, rows, 0));
}

// _segment_reduce_backward(grad, output, data, reduce, lengths?, offsets?, axis, initial?)
void tt_lower_segment_reduce_backward(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *data = tt_operand(l, 2);
  const char *reduce = tt_text(l, 3);
  segments s;
  if (!read_segments(l, data, 4, 5, false, &s)) return;
  if (tt_value_count(data) == 0 || s.count == 0) {
    tt_set_result(l, 0, tt_hlo_constant_like(b, data, 0));
    return;
  }
  tt_dtype compute = tt_compute_dtype(data->dtype);
  tt_value *rows = tt_hlo_convert(b, flatten(b, data, s.batches * s.n), compute);
  tt_value *grad = tt_hlo_convert(b, flatten(b, tt_operand(l, 0), s.batches * s.count), compute);
  tt_value *result;
  if (strcmp(reduce, "prod") == 0) {
    result = product_grad(b, &s, grad, rows, tt_has(l, 7) ? tt_double(l, 7) : 1);
  } else if (strcmp(reduce, "max") == 0 || strcmp(reduce, "min") == 0) { // shared among those that are the extreme
    tt_value *output = tt_hlo_convert(b, flatten(b, tt_operand(l, 1), s.batches * s.count), compute);
    tt_value *chosen = tt_hlo_or(b, tt_hlo_compare(b, TT_EQ, rows, spread(b, &s, output)), tt_hlo_is_nan(b, rows));
    tt_value *count =
        combine(b, &s, tt_hlo_constant_like(b, grad, 0), tt_hlo_convert(b, chosen, compute), TT_COMBINE_ADD);
    tt_value *share = tt_hlo_divide(b, spread(b, &s, grad), spread(b, &s, count));
    result = tt_hlo_select(b, chosen, share, tt_hlo_constant_like(b, share, 0));
  } else {
    if (strcmp(reduce, "mean") == 0)
      grad = tt_hlo_divide(b, grad, per_segment(b, tt_hlo_convert(b, s.lengths, compute), grad->dims[1]));
    result = spread(b, &s, grad);
  }
  tt_value *inside = tt_compare_constant(b, TT_LT, s.of, (double)(s.batches * s.count));
  result = tt_hlo_select(b, per_segment(b, inside, rows->dims[1]), result, tt_hlo_constant_like(b, result, 0));
  tt_set_result(l, 0, tt_hlo_reshape(b, tt_hlo_convert(b, result, data->dtype), data->rank, data->dims));
}
