// grid.c - grid_sample: a picture read at the places that a grid names, and the gradients by picture and grid.
//
// A place is read as a weighted sum of taps: along each dimension 1 (nearest), 2 (linear) or 4 (cubic) neighbouring elements.
// The taps of all dimensions together stand side by side in one dimension, so that one gather reads them and one scatter
// writes the picture's gradient. Coordinates are in elements; grid coordinates go from -1 to 1.
#include "op/lowering.h"

enum { LINEAR, NEAREST, CUBIC };    // torch's numbers of interpolation modes
enum { ZEROS, BORDER, REFLECTION }; // and of padding modes
enum { MAX_SPATIAL = 3, MAX_TAPS = 4, MAX_ALL_TAPS = 16 };

// One tap along one dimension, each [n, places] in the dtype to compute in.
typedef struct tap {
  tt_value *index;  // of an element; meaningless where not `inside`
  tt_value *inside; // BOOL
  tt_value *weight;
  tt_value *derivative; // of the weight by the grid's coordinate
} tap;

typedef struct grid {
  tt_builder *b;
  int spatial, taps, padding, mode;
  bool align;
  int64_t n, places;
  const int64_t *size; // of the picture
  tap along[MAX_SPATIAL][MAX_TAPS];
} grid;

static tt_value *number(const grid *g, const tt_value *like, double value) {
  return tt_hlo_constant_like(g->b, like, value);
}
static tt_value *plus(const grid *g, tt_value *x, double y) { return tt_hlo_add(g->b, x, number(g, x, y)); }
static tt_value *times(const grid *g, tt_value *x, double y) { return tt_hlo_multiply(g->b, x, number(g, x, y)); }

static tt_value *select_zero(const grid *g, tt_value *keep, tt_value *x) {
  return tt_hlo_select(g->b, keep, x, number(g, x, 0));
}

// --- padding: each changes a coordinate, and its derivative by the grid's coordinate along ---------------------------------

typedef struct coordinate {
  tt_value *x, *slope;
} coordinate;

// Into [0, size - 1]; NaN becomes 0. Nothing moves at or beyond the border.
static coordinate clip(const grid *g, coordinate c, int64_t size) {
  double last = (double)(size - 1);
  tt_value *above = tt_hlo_compare(g->b, TT_GT, c.x, number(g, c.x, 0));
  tt_value *below = tt_hlo_compare(g->b, TT_LT, c.x, number(g, c.x, last));
  tt_value *x = tt_hlo_select(g->b, below, select_zero(g, above, c.x), number(g, c.x, size > 1 ? last : 0));
  x = select_zero(g, above, x);
  return (coordinate){x, select_zero(g, tt_hlo_and(g->b, above, below), c.slope)};
}

// Back and forth between low and low + span.
static coordinate reflect(const grid *g, coordinate c, double low, double span) {
  if (span == 0) return (coordinate){number(g, c.x, 0), number(g, c.x, 0)};
  tt_value *x = plus(g, c.x, -low), *negative = tt_hlo_compare(g->b, TT_LT, x, number(g, x, 0));
  x = tt_hlo_abs(g->b, x);
  tt_value *rest = tt_hlo_remainder(g->b, x, number(g, x, span));
  tt_value *flips = tt_hlo_floor(g->b, tt_hlo_divide(g->b, x, number(g, x, span)));
  tt_value *odd = tt_hlo_compare(g->b, TT_NE, tt_hlo_remainder(g->b, flips, number(g, x, 2)), number(g, x, 0));
  tt_value *back = tt_hlo_xor(g->b, odd, negative); // the direction of movement is turned round
  x = tt_hlo_select(g->b, odd, tt_hlo_subtract(g->b, number(g, x, span), rest), rest);
  return (coordinate){plus(g, x, low), tt_hlo_select(g->b, back, tt_hlo_negate(g->b, c.slope), c.slope)};
}

static coordinate pad(const grid *g, coordinate c, int64_t size) {
  if (g->padding == REFLECTION) c = g->align ? reflect(g, c, 0, (double)(size - 1)) : reflect(g, c, -0.5, (double)size);
  return g->padding == ZEROS ? c : clip(g, c, size);
}

// From a grid coordinate to elements.
static coordinate unnormalize(const grid *g, tt_value *x, int64_t size) {
  double slope = g->align ? (double)(size - 1) / 2 : (double)size / 2;
  tt_value *shifted = plus(g, x, 1);
  x = g->align ? times(g, shifted, slope) : times(g, plus(g, times(g, shifted, (double)size), -1), 0.5);
  return (coordinate){x, number(g, x, slope)};
}

// --- taps ------------------------------------------------------------------------------------------------------------------

// at: an integral coordinate.
static tap make_tap(const grid *g, tt_value *at, int64_t size, tt_value *weight, tt_value *derivative) {
  tt_value *from = tt_hlo_compare(g->b, TT_GE, at, number(g, at, 0));
  tt_value *to = tt_hlo_compare(g->b, TT_LT, at, number(g, at, (double)size));
  tt_value *inside = tt_hlo_and(g->b, from, to);
  return (tap){tt_hlo_convert(g->b, select_zero(g, inside, at), TT_S32), inside, weight, derivative};
}

// a x^3 + b x^2 + c x + d
static tt_value *polynomial(const grid *g, tt_value *x, double a, double b, double c, double d) {
  tt_value *y = plus(g, times(g, x, a), b);
  y = plus(g, tt_hlo_multiply(g->b, y, x), c);
  return plus(g, tt_hlo_multiply(g->b, y, x), d);
}

// The cubic convolution filter's two pieces with parameter -0.75: within 1, and from 1 to 2.
static tt_value *near_weight(const grid *g, tt_value *x) { return polynomial(g, x, 1.25, -2.25, 0, 1); }
static tt_value *far_weight(const grid *g, tt_value *x) { return polynomial(g, x, -0.75, 3.75, -6, 3); }
static tt_value *near_slope(const grid *g, tt_value *x) { return polynomial(g, x, 0, 3.75, -4.5, 0); }
static tt_value *far_slope(const grid *g, tt_value *x) { return polynomial(g, x, 0, -2.25, 7.5, -6); }

// Cubic taps are padded each by itself, where they stand; the weights go by the place before padding.
static void cubic_taps(const grid *g, coordinate c, int64_t size, tap *taps) {
  tt_value *low = tt_hlo_floor(g->b, c.x), *t = tt_hlo_subtract(g->b, c.x, low);
  for (int i = 0; i < 4; ++i) {
    bool is_near = i == 1 || i == 2;
    tt_value *distance = i < 2 ? plus(g, t, 1 - i) : plus(g, tt_hlo_negate(g->b, t), i - 1);
    tt_value *weight = is_near ? near_weight(g, distance) : far_weight(g, distance);
    tt_value *slope = is_near ? near_slope(g, distance) : far_slope(g, distance);
    if (i >= 2) slope = tt_hlo_negate(g->b, slope);
    coordinate at = pad(g, (coordinate){plus(g, low, i - 1), c.slope}, size);
    taps[i] = make_tap(g, at.x, size, weight, tt_hlo_multiply(g->b, slope, c.slope));
  }
}

static void make_taps(grid *g, tt_value *x, int dim) {
  int64_t size = g->size[dim];
  coordinate c = unnormalize(g, x, size);
  if (g->mode == CUBIC) {
    cubic_taps(g, c, size, g->along[dim]);
    return;
  }
  c = pad(g, c, size);
  if (g->mode == NEAREST) {
    tt_value *at = tt_hlo_round_nearest_even(g->b, c.x);
    g->along[dim][0] = make_tap(g, at, size, number(g, at, 1), number(g, at, 0));
    return;
  }
  tt_value *low = tt_hlo_floor(g->b, c.x), *t = tt_hlo_subtract(g->b, c.x, low);
  tt_value *rest = tt_hlo_subtract(g->b, number(g, t, 1), t);
  g->along[dim][0] = make_tap(g, low, size, rest, tt_hlo_negate(g->b, c.slope));
  g->along[dim][1] = make_tap(g, plus(g, low, 1), size, t, c.slope);
}

// Reads the op's arguments `x`, `x` + 1 (grid) and the three modes from `modes` on.
static bool read_grid(tt_lowering *l, int x, int modes, grid *g) {
  static const int taps[] = {2, 1, 4};
  const tt_tensor *picture = tt_tensor_arg(l, x), *t = tt_tensor_arg(l, x + 1);
  tt_arena *arena = tt_builder_arena(l->b);
  *g = (grid){.b = l->b,
              .spatial = picture->rank - 2,
              .size = picture->sizes + 2,
              .mode = (int)tt_int(l, modes),
              .padding = (int)tt_int(l, modes + 1),
              .align = tt_bool(l, modes + 2)};
  if (g->spatial < 2 || g->spatial > MAX_SPATIAL || t->rank != picture->rank || t->sizes[0] != picture->sizes[0])
    tt_fail(l, TT_INVALID_ARGUMENT,
            "grid_sampler(): expected grid and input to have same batch size, but got input with sizes %s and grid "
            "with sizes %s",
            tt_shape_text(arena, picture->rank, picture->sizes), tt_shape_text(arena, t->rank, t->sizes));
  else if (t->sizes[t->rank - 1] != g->spatial)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "grid_sampler(): expected grid to have size %d in last dimension, but got grid with sizes %s", g->spatial,
            tt_shape_text(arena, t->rank, t->sizes));
  else if (g->mode < LINEAR || g->mode > CUBIC || (g->mode == CUBIC && g->spatial != 2))
    tt_fail(l, TT_INVALID_ARGUMENT, "grid_sampler(): bicubic interpolation only supports 4D input");
  else if (t->dtype != picture->dtype)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "grid_sampler(): expected input and grid to have same dtype, but input has %s and grid has %s",
            tt_dtype_text(picture->dtype), tt_dtype_text(t->dtype));
  if (tt_failed(l)) return false;
  g->taps = taps[g->mode];
  g->n = t->sizes[0];
  g->places = 1;
  for (int i = 1; i <= g->spatial; ++i) g->places *= t->sizes[i];
  tt_value *all = tt_operand_as(l, x + 1, tt_compute_dtype(t->dtype));
  all = tt_hlo_reshape(g->b, all, 3, (int64_t[]){g->n, g->places, g->spatial});
  for (int i = 0; i < g->spatial; ++i) { // the grid's first coordinate is the picture's last dimension
    tt_value *x_i = tt_hlo_slice_dim(g->b, all, 2, g->spatial - 1 - i, g->spatial - i, 1);
    make_taps(g, tt_hlo_reshape(g->b, x_i, 2, (int64_t[]){g->n, g->places}), i);
  }
  return !tt_failed(l);
}

// --- all dimensions together -------------------------------------------------------------------------------------------------

static int all_taps(const grid *g) {
  int count = 1;
  for (int i = 0; i < g->spatial; ++i) count *= g->taps;
  return count;
}

static const tap *tap_of(const grid *g, int k, int dim) {
  for (int i = g->spatial - 1; i > dim; --i) k /= g->taps;
  return &g->along[dim][k % g->taps];
}

// [n, taps, places] out of one [n, places] for each combination of taps.
static tt_value *side_by_side(const grid *g, tt_value **each) {
  int count = all_taps(g);
  for (int k = 0; k < count; ++k) each[k] = tt_hlo_reshape(g->b, each[k], 3, (int64_t[]){g->n, 1, g->places});
  return tt_hlo_concatenate(g->b, count, each, 1);
}

// Flat positions in the picture; one past its end for a tap that is not inside, so that a scatter drops it.
static tt_value *flat_positions(const grid *g) {
  tt_value *each[MAX_ALL_TAPS];
  int64_t plane = 1;
  for (int i = 0; i < g->spatial; ++i) plane *= g->size[i];
  for (int k = 0; k < all_taps(g); ++k) {
    tt_value *at = NULL, *inside = NULL;
    for (int i = 0; i < g->spatial; ++i) {
      const tap *t = tap_of(g, k, i);
      at = at ? tt_hlo_add(g->b, times(g, at, (double)g->size[i]), t->index) : t->index;
      inside = inside ? tt_hlo_and(g->b, inside, t->inside) : t->inside;
    }
    each[k] = tt_hlo_select(g->b, inside, at, number(g, at, (double)plane));
  }
  return side_by_side(g, each);
}

// Products of the weights; with `derived` >= 0 that dimension's derivative instead of its weight.
static tt_value *all_weights(const grid *g, int derived) {
  tt_value *each[MAX_ALL_TAPS];
  for (int k = 0; k < all_taps(g); ++k) {
    each[k] = NULL;
    for (int i = 0; i < g->spatial; ++i) {
      const tap *t = tap_of(g, k, i);
      tt_value *factor = i == derived ? t->derivative : t->weight;
      each[k] = each[k] ? tt_hlo_multiply(g->b, each[k], factor) : factor;
    }
  }
  return side_by_side(g, each);
}

// [n, c, taps, places] of a picture [n, c, plane]; 0 outside.
static tt_value *read_taps(const grid *g, tt_value *picture, tt_value *at) {
  int64_t slice[] = {1, picture->dims[1], 1};
  const tt_gather numbers = {.offset_count = 1,
                             .offset_dims = (int[]){1},
                             .collapsed_count = 1,
                             .collapsed_dims = (int[]){2},
                             .batching_count = 1,
                             .operand_batching_dims = (int[]){0},
                             .index_batching_dims = (int[]){0},
                             .map_count = 1,
                             .start_index_map = (int[]){2},
                             .index_vector_dim = 3,
                             .slice_sizes = slice};
  tt_value *values = tt_hlo_gather(g->b, picture, at, &numbers);
  tt_value *inside = tt_hlo_compare(g->b, TT_LT, at, number(g, at, (double)picture->dims[2]));
  return select_zero(g, tt_hlo_broadcast_in_dim(g->b, inside, 4, values->dims, (int[]){0, 2, 3}), values);
}

// Adds updates [n, c, taps, places] into zeros [n, c, plane].
static tt_value *add_taps(const grid *g, tt_value *updates, tt_value *at, int64_t plane) {
  tt_value *zeros = tt_hlo_splat(g->b, updates->dtype, 3, (int64_t[]){g->n, updates->dims[1], plane}, 0);
  const tt_scatter numbers = {.window_count = 1,
                              .update_window_dims = (int[]){1},
                              .inserted_count = 1,
                              .inserted_window_dims = (int[]){2},
                              .batching_count = 1,
                              .input_batching_dims = (int[]){0},
                              .index_batching_dims = (int[]){0},
                              .map_count = 1,
                              .scatter_dims_to_operand_dims = (int[]){2},
                              .index_vector_dim = 3};
  return tt_hlo_scatter(g->b, zeros, at, updates, &numbers, TT_COMBINE_ADD);
}

static tt_value *flat_picture(tt_lowering *l, const grid *g, int arg) {
  tt_value *x = tt_operand(l, arg);
  int64_t plane = 1;
  for (int i = 0; i < g->spatial; ++i) plane *= g->size[i];
  x = tt_hlo_convert(l->b, x, tt_compute_dtype(x->dtype));
  return tt_hlo_reshape(l->b, x, 3, (int64_t[]){g->n, x->dims[1], plane});
}

// (input, grid, interpolation_mode, padding_mode, align_corners)
void tt_lower_grid_sampler(tt_lowering *l) {
  grid g;
  if (!read_grid(l, 0, 2, &g)) return;
  tt_builder *b = l->b;
  const tt_tensor *picture = tt_tensor_arg(l, 0), *t = tt_tensor_arg(l, 1);
  int64_t dims[MAX_SPATIAL + 2] = {g.n, picture->sizes[1]};
  for (int i = 0; i < g.spatial; ++i) dims[2 + i] = t->sizes[1 + i];
  tt_value *x = flat_picture(l, &g, 0);
  if (tt_value_count(x) == 0 || g.places == 0) {
    tt_set_result(l, 0, tt_hlo_splat(b, picture->dtype, g.spatial + 2, dims, 0));
    return;
  }
  tt_value *values = read_taps(&g, x, flat_positions(&g));
  tt_value *weights = tt_hlo_broadcast_in_dim(b, all_weights(&g, -1), 4, values->dims, (int[]){0, 2, 3});
  tt_value *y = tt_hlo_reduce(b, tt_hlo_multiply(b, values, weights), TT_REDUCE_ADD, 1, (int[]){2});
  tt_set_result(l, 0, tt_hlo_convert(b, tt_hlo_reshape(b, y, g.spatial + 2, dims), picture->dtype));
}

// The gradient by the grid's coordinates: what each tap adds to the result, summed over the channels, times the derivative of
// its weight.
static tt_value *grid_gradient(tt_lowering *l, const grid *g, tt_value *gradient, tt_value *at) {
  tt_builder *b = l->b;
  const tt_tensor *t = tt_tensor_arg(l, 2);
  tt_value *values = read_taps(g, flat_picture(l, g, 1), at), *each[MAX_SPATIAL];
  tt_value *wide = tt_hlo_broadcast_in_dim(b, gradient, 4, values->dims, (int[]){0, 1, 3});
  tt_value *shares = tt_hlo_reduce(b, tt_hlo_multiply(b, values, wide), TT_REDUCE_ADD, 1, (int[]){1});
  for (int i = 0; i < g->spatial; ++i) {
    tt_value *sum = tt_hlo_reduce(b, tt_hlo_multiply(b, shares, all_weights(g, i)), TT_REDUCE_ADD, 1, (int[]){1});
    each[g->spatial - 1 - i] = tt_hlo_reshape(b, sum, 3, (int64_t[]){g->n, g->places, 1});
  }
  tt_value *all = tt_hlo_concatenate(b, g->spatial, each, 2);
  return tt_hlo_convert(b, tt_hlo_reshape(b, all, t->rank, t->sizes), t->dtype);
}

// (grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask)
void tt_lower_grid_sampler_backward(tt_lowering *l) {
  grid g;
  int count;
  if (!read_grid(l, 1, 3, &g)) return;
  tt_builder *b = l->b;
  const int64_t *mask = tt_ints(l, 6, &count);
  const tt_tensor *picture = tt_tensor_arg(l, 1), *t = tt_tensor_arg(l, 2);
  int64_t channels = picture->sizes[1], plane = 1;
  for (int i = 0; i < g.spatial; ++i) plane *= g.size[i];
  tt_value *gradient = tt_operand_as(l, 0, tt_compute_dtype(picture->dtype));
  if (tt_value_count(gradient) == 0 || plane == 0) {
    if (mask[0]) tt_set_result(l, 0, tt_hlo_splat(b, picture->dtype, picture->rank, picture->sizes, 0));
    if (mask[1]) tt_set_result(l, 1, tt_hlo_splat(b, t->dtype, t->rank, t->sizes, 0));
    return;
  }
  gradient = tt_hlo_reshape(b, gradient, 3, (int64_t[]){g.n, channels, g.places});
  tt_value *at = flat_positions(&g);
  if (mask[0]) {
    const int64_t dims[] = {g.n, channels, all_taps(&g), g.places};
    tt_value *weights = tt_hlo_broadcast_in_dim(b, all_weights(&g, -1), 4, dims, (int[]){0, 2, 3});
    tt_value *wide = tt_hlo_broadcast_in_dim(b, gradient, 4, dims, (int[]){0, 1, 3});
    tt_value *x = add_taps(&g, tt_hlo_multiply(b, wide, weights), at, plane);
    tt_set_result(l, 0, tt_hlo_convert(b, tt_hlo_reshape(b, x, picture->rank, picture->sizes), picture->dtype));
  }
  if (mask[1]) tt_set_result(l, 1, grid_gradient(l, &g, gradient, at));
}
