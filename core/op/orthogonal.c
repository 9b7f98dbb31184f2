// orthogonal.c - orthogonal polynomials of degree n at x, by their three-term recurrences (DLMF 18.9).
//
// The degree is a tensor, another one for each element, so one loop runs up to the greatest degree and each element keeps what
// it had at its own: one program serves all degrees. Choices that show are torch's: degrees are truncated to integers, 0 below
// degree 0 and for a degree that is no number, the closed trigonometric form of Chebyshev polynomials inside the interval for
// higher degrees, NaN for Hermite polynomials above a limit, and an end to the loop once an element is NaN.
#include "op/axes.h"
#include "op/pointwise.h"

#include <math.h>

typedef enum recurrence { CHEBYSHEV, HERMITE_H, HERMITE_HE, LAGUERRE, LEGENDRE } recurrence;

// What the loop carries: the number of the step (a scalar), the polynomials before and now, x and the degree.
enum { STEP, BEFORE, NOW, POINT, DEGREE, CARRIED };

static tt_value *twice(tt_builder *b, tt_value *x) { return tt_hlo_add(b, x, x); }

// Which elements still need step k -> k + 1, from degree k to the next.
static tt_value *open_elements(tt_builder *b, tt_value *const *state, tt_value *k) {
  tt_value *below = tt_hlo_compare(b, TT_LT, k, state[DEGREE]);
  return tt_hlo_and(b, below, tt_hlo_not(b, tt_hlo_is_nan(b, state[NOW])));
}

static tt_value *step_like(tt_builder *b, tt_value *const *state) {
  return tt_hlo_broadcast_like(b, tt_hlo_convert(b, state[STEP], state[NOW]->dtype), state[NOW]);
}

static void any_open(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)user;
  tt_value *open = open_elements(b, state, step_like(b, state));
  results[0] = tt_reduce(b, open, TT_REDUCE_OR, tt_axes_range(0, open->rank));
}

// The polynomial of degree k + 1 from those of degrees k and k - 1.
static tt_value *following(tt_builder *b, recurrence kind, tt_value *x, tt_value *now, tt_value *before, tt_value *k) {
  tt_value *one = tt_hlo_constant_like(b, x, 1), *factor;
  switch (kind) {
  case CHEBYSHEV: return tt_hlo_subtract(b, tt_hlo_multiply(b, twice(b, x), now), before);
  case HERMITE_H:
    return tt_hlo_subtract(b, tt_hlo_multiply(b, twice(b, x), now), tt_hlo_multiply(b, twice(b, k), before));
  case HERMITE_HE: return tt_hlo_subtract(b, tt_hlo_multiply(b, x, now), tt_hlo_multiply(b, k, before));
  case LAGUERRE: factor = tt_hlo_add(b, twice(b, k), tt_hlo_subtract(b, one, x)); break;
  default: factor = tt_hlo_multiply(b, tt_hlo_add(b, twice(b, k), one), x); break;
  }
  tt_value *sum = tt_hlo_subtract(b, tt_hlo_multiply(b, factor, now), tt_hlo_multiply(b, k, before));
  return tt_hlo_divide(b, sum, tt_hlo_add(b, k, one));
}

static void advance(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  const recurrence *kind = user;
  tt_value *k = step_like(b, state), *open = open_elements(b, state, k);
  tt_value *next = following(b, *kind, state[POINT], state[NOW], state[BEFORE], k);
  results[STEP] = tt_hlo_add(b, state[STEP], tt_hlo_constant_i64(b, TT_S64, 1));
  results[BEFORE] = tt_hlo_select(b, open, state[NOW], state[BEFORE]);
  results[NOW] = tt_hlo_select(b, open, next, state[NOW]);
  results[POINT] = state[POINT];
  results[DEGREE] = state[DEGREE];
}

// The polynomial of degree `degree` (whole) from `first`, that of degree 1; those of degree 0 are 1. No more than degree 1
// where `closed`: those elements are found without the loop.
static tt_value *climb(tt_builder *b, recurrence kind, tt_value *x, tt_value *degree, tt_value *first,
                       tt_value *closed) {
  tt_value *one = tt_hlo_constant_like(b, x, 1);
  tt_value *state[CARRIED] = {tt_hlo_constant_i64(b, TT_S64, 1), one, first, x,
                              tt_select_constant(b, closed, 0, degree)};
  tt_hlo_while(b, CARRIED, state, any_open, advance, &kind, state);
  return tt_hlo_select(b, tt_compare_constant(b, TT_EQ, degree, 0), one, state[NOW]);
}

// n towards zero, -1 where that is no int64.
static tt_value *whole_degree(tt_builder *b, tt_value *n) {
  tt_value *fits = tt_compare_constant(b, TT_LT, tt_hlo_abs(b, n), 0x1p63);
  return tt_hlo_select(b, fits, tt_emit_trunc(b, n), tt_hlo_constant_like(b, n, -1));
}

static tt_value *is_even(tt_builder *b, tt_value *degree) {
  tt_value *half = tt_multiply_constant(b, degree, 0.5);
  return tt_hlo_compare(b, TT_EQ, half, tt_hlo_floor(b, half));
}

static tt_value *zero_below(tt_builder *b, tt_value *degree, tt_value *result) {
  return tt_select_constant(b, tt_compare_constant(b, TT_LT, degree, 0), 0, result);
}

// --- Chebyshev polynomials --------------------------------------------------------------------------------------------------

typedef struct chebyshev {
  char kind;    // 't', 'u', 'v' or 'w'
  bool shifted; // in 2x - 1
  int low;      // the last degree that always goes by the recurrence
} chebyshev;

// |value|, its sign that of (-1)^degree.
static tt_value *alternating(tt_builder *b, tt_value *even, tt_value *value) {
  return tt_hlo_select(b, even, value, tt_hlo_negate(b, value));
}

// The trigonometric form for |y| < 1, y = cos(angle). At angles that round to a pole, torch takes the limit there.
static tt_value *trigonometric(tt_builder *b, const chebyshev *c, tt_value *y, tt_value *n, tt_value *even) {
  tt_value *angle = tt_hlo_acos(b, y), *half = tt_multiply_constant(b, angle, 0.5);
  tt_value *between = tt_hlo_multiply(b, tt_add_constant(b, n, 0.5), angle);
  tt_value *after = tt_add_constant(b, n, 1), *most = tt_add_constant(b, twice(b, n), 1);
  tt_value *regular, *one = tt_hlo_constant_like(b, y, 1);
  switch (c->kind) {
  case 't': return tt_hlo_cosine(b, tt_hlo_multiply(b, n, angle));
  case 'u': {
    tt_value *sine = tt_hlo_sine(b, angle), *multiple = tt_hlo_multiply(b, after, angle);
    tt_value *limit = tt_hlo_divide(b, tt_hlo_multiply(b, after, tt_hlo_cosine(b, multiple)), y);
    regular = tt_compare_constant(b, TT_NE, sine, 0);
    return tt_hlo_select(b, regular, tt_hlo_divide(b, tt_hlo_sine(b, multiple), sine), limit);
  }
  case 'v':
    regular = tt_compare_constant(b, TT_NE, tt_hlo_sine(b, half), 1);
    return tt_hlo_select(b, regular, tt_hlo_divide(b, tt_hlo_cosine(b, between), tt_hlo_cosine(b, half)),
                         alternating(b, even, most));
  default: {
    tt_value *limit = alternating(b, even, one);
    if (!c->shifted) limit = tt_hlo_select(b, tt_compare_constant(b, TT_GT, y, 0), most, limit);
    regular = tt_compare_constant(b, TT_NE, tt_hlo_cosine(b, half), 1);
    return tt_hlo_select(b, regular, tt_hlo_divide(b, tt_hlo_sine(b, between), tt_hlo_sine(b, half)), limit);
  }
  }
}

static tt_value *emit_chebyshev(tt_builder *b, const chebyshev *c, tt_value *x, tt_value *n) {
  n = whole_degree(b, n);
  tt_value *y = c->shifted ? tt_add_constant(b, twice(b, x), -1) : x;
  tt_value *even = is_even(b, n), *one = tt_hlo_constant_like(b, x, 1);
  tt_value *most = tt_add_constant(b, twice(b, n), 1), *after = tt_add_constant(b, n, 1);

  tt_value *first = c->kind == 't'   ? y
                    : c->kind == 'u' ? twice(b, y)
                                     : tt_add_constant(b, twice(b, y), c->kind == 'v' ? -1 : 1);
  tt_value *inside = tt_compare_constant(b, TT_LT, tt_hlo_abs(b, y), 1);
  tt_value *closed = tt_hlo_and(b, inside, tt_compare_constant(b, TT_GT, n, c->low));
  // At the ends of the interval the values are known; where only rounding put y there, torch still goes by the recurrence.
  tt_value *right = tt_compare_constant(b, TT_EQ, x, 1), *left = tt_compare_constant(b, TT_EQ, x, c->shifted ? 0 : -1);
  tt_value *ends = tt_hlo_or(b, right, left);

  tt_value *result = climb(b, CHEBYSHEV, y, n, first, tt_hlo_or(b, closed, ends));
  result = tt_hlo_select(b, closed, trigonometric(b, c, y, n, even), result);
  tt_value *at_right = c->kind == 'u' ? after : c->kind == 'w' ? most : one;
  tt_value *at_left = c->kind == 'u' ? after : c->kind == 'v' ? most : one;
  result = tt_hlo_select(b, right, at_right, result);
  result = tt_hlo_select(b, left, alternating(b, even, at_left), result);
  return zero_below(b, n, result);
}

#define CHEBYSHEV_OP(name, kind, shifted, low)                                                                          \
  tt_value *tt_emit_##name(tt_builder *b, tt_value *x, tt_value *n) {                                                    \
    return emit_chebyshev(b, &(chebyshev){kind, shifted, low}, x, n);                                                    \
  }
CHEBYSHEV_OP(chebyshev_t, 't', false, 6)
CHEBYSHEV_OP(chebyshev_u, 'u', false, 8)
CHEBYSHEV_OP(chebyshev_v, 'v', false, 8)
CHEBYSHEV_OP(chebyshev_w, 'w', false, 8)
CHEBYSHEV_OP(shifted_chebyshev_t, 't', true, 6)
CHEBYSHEV_OP(shifted_chebyshev_u, 'u', true, 6)
CHEBYSHEV_OP(shifted_chebyshev_v, 'v', true, 6)
CHEBYSHEV_OP(shifted_chebyshev_w, 'w', true, 4)

// --- Hermite, Laguerre, Legendre --------------------------------------------------------------------------------------------

static tt_value *hermite(tt_builder *b, recurrence kind, tt_value *x, tt_value *n) {
  n = whole_degree(b, n);
  tt_value *too_high = tt_compare_constant(b, TT_GT, n, x->dtype == TT_F64 ? 512 : 128);
  tt_value *result = climb(b, kind, x, n, kind == HERMITE_H ? twice(b, x) : x, too_high);
  return zero_below(b, n, tt_select_constant(b, too_high, NAN, result));
}

tt_value *tt_emit_hermite_h(tt_builder *b, tt_value *x, tt_value *n) { return hermite(b, HERMITE_H, x, n); }
tt_value *tt_emit_hermite_he(tt_builder *b, tt_value *x, tt_value *n) { return hermite(b, HERMITE_HE, x, n); }

tt_value *tt_emit_laguerre_l(tt_builder *b, tt_value *x, tt_value *n) {
  n = whole_degree(b, n);
  tt_value *at_zero = tt_compare_constant(b, TT_EQ, x, 0);
  tt_value *result = climb(b, LAGUERRE, x, n, tt_constant_minus(b, 1, x), at_zero);
  return zero_below(b, n, tt_select_constant(b, at_zero, 1, result));
}

tt_value *tt_emit_legendre_p(tt_builder *b, tt_value *x, tt_value *n) {
  n = whole_degree(b, n);
  tt_value *right = tt_compare_constant(b, TT_EQ, x, 1), *left = tt_compare_constant(b, TT_EQ, x, -1);
  tt_value *result = climb(b, LEGENDRE, x, n, x, tt_hlo_or(b, right, left));
  result = tt_select_constant(b, right, 1, result);
  result = tt_hlo_select(b, left, alternating(b, is_even(b, n), tt_hlo_constant_like(b, x, 1)), result);
  return zero_below(b, n, result);
}
