// special.c - special functions that neither StableHLO nor CHLO has.
//
// The coefficient tables are Chebyshev series of the functions named beside them, computed for this file with 40 digits; a
// float32 program takes only as many terms as float32 can see.
#include "op/axes.h"
#include "op/pointwise.h"

#include <math.h>

static const double i0e_near[] = {
    0.33839763720473804,    -0.3046826723431984,     0.17162090152220878,    -0.094901097048047644,
    0.049305284239670708,   -0.023737414805899469,   0.010546460394594998,   -0.0043243099950505759,
    0.0016394756169413358,  -0.00057637557453858237, 0.00018850288509584166, -5.7541950100821037e-5,
    1.6448448070728897e-5,  -4.4167383584587506e-6,  1.1173875391201037e-6,  -2.6707938539406117e-7,
    6.0469950225419189e-8,  -1.300025009986248e-8,   2.6598237246823867e-9,  -5.1897956016352629e-10,
    9.6758090353732369e-11, -1.7268262914415557e-11, 2.9550526631296398e-12, -4.8564467831119295e-13,
    7.6761854986049356e-14, -1.1685332877993452e-14, 1.715391285555133e-15,  -2.4312798465479547e-16,
    3.3307945188222381e-17, -4.4153416464793394e-18};
static const double i0e_far[] = {
    0.40224520550705442,     0.0033691164782556941,   6.889758346916824e-5,    2.8913705208347565e-6,
    2.0489185894690637e-7,   2.2666689904981781e-8,   3.3962320257083863e-9,   4.9406023882249696e-10,
    1.1889147107846438e-11,  -3.1499165279632414e-11, -1.3215811840447713e-11, -1.7941785315068061e-12,
    7.1801244513836662e-13,  3.8527783827421427e-13,  1.5400862175214098e-14,  -4.1505693472872221e-14,
    -9.5548466988283076e-15, 3.8116806693526224e-15,  1.7725601330565264e-15,  -3.4254856196772191e-16,
    -2.8276239805165835e-16, 3.4612228676974611e-17,  4.46562142029676e-17,    -4.8305044859441821e-18,
    -7.233180487874754e-18};
static const double erfcx_scaled[] = {
    1.1775789345674018,     -0.0045900545806464773,  -0.084249133366517916,   0.05920993999819189,
    -0.026658668435305752,  0.0090749976707052651,   -0.0024131635404176082,  0.00049077583652580863,
    -6.9169733025012063e-5, 4.1390279860730106e-6,   7.7403830661984913e-7,   -2.1886401049234426e-7,
    1.07649994656703e-8,    4.5219598112175019e-9,   -7.7544002088392879e-10, -6.3180883409501656e-11,
    2.8687950108964138e-11, 1.9455868547855396e-13,  -9.6546967446525719e-13, 3.2525482135274021e-14,
    3.3478120272746172e-14, -1.8645621222537636e-15, -1.2507944869347079e-15, 7.4182607797853232e-17,
    5.0681380991970501e-17};
static const double ndtri_tail[] = {1.0133003899183703,     0.091451315183533634,   -0.0002662612475383032,
                                    -0.0010327471132058402, 0.00051553933073589274, -0.00021650288495002327,
                                    8.6479447348289051e-5,  -3.4814492676256881e-5, 1.4549776366362404e-5,
                                    -6.3591785528588846e-6, 2.8932108874494412e-6,  -1.3599565042469249e-6,
                                    6.5632848930582533e-7,  -3.2378171840114328e-7, 1.6275671260108973e-7,
                                    -8.3157681096157031e-8, 4.3097115211239291e-8,  -2.2616289920301054e-8,
                                    1.2000113398305767e-8,  -6.4299073304050974e-9, 3.4755831956016672e-9};

// The series at u in [-1, 1] by Clenshaw's recurrence; `wide` terms for float64, `narrow` for float32.
static tt_value *chebyshev(tt_builder *b, tt_value *u, const double *coefficients, int wide, int narrow) {
  int count = u->dtype == TT_F64 ? wide : narrow;
  tt_value *twice = tt_hlo_add(b, u, u);
  tt_value *next = tt_hlo_constant_like(b, u, coefficients[count - 1]), *after = tt_hlo_constant_like(b, u, 0);
  for (int i = count - 2; i > 0; --i) {
    tt_value *term = tt_hlo_subtract(b, tt_hlo_multiply(b, twice, next), after);
    after = next;
    next = tt_add_constant(b, term, coefficients[i]);
  }
  return tt_add_constant(b, tt_hlo_subtract(b, tt_hlo_multiply(b, u, next), after), coefficients[0]);
}

// --- Bessel functions -----------------------------------------------------------------------------------------------------

// exp(-|x|) I0(x): one series up to |x| = 8, one in 1 / x beyond.
tt_value *tt_emit_i0e(tt_builder *b, tt_value *x) {
  tt_value *size = tt_hlo_abs(b, x);
  tt_value *is_near = tt_compare_constant(b, TT_LE, size, 8);
  tt_value *near = chebyshev(b, tt_add_constant(b, tt_multiply_constant(b, size, 0.25), -1), i0e_near, 30, 19);
  // Clamped, so that the side not taken stays finite.
  tt_value *far_size = tt_hlo_maximum(b, size, tt_hlo_constant_like(b, size, 8));
  tt_value *u = tt_add_constant(b, tt_hlo_divide(b, tt_hlo_constant_like(b, size, 16), far_size), -1);
  tt_value *far = tt_hlo_divide(b, chebyshev(b, u, i0e_far, 25, 7), tt_hlo_sqrt(b, far_size));
  return tt_hlo_select(b, is_near, near, far);
}

static tt_value *unscaled(tt_builder *b, tt_value *x, tt_value *scaled) {
  return tt_hlo_multiply(b, scaled, tt_hlo_exponential(b, tt_hlo_abs(b, x)));
}

tt_value *tt_emit_i0(tt_builder *b, tt_value *x) { return unscaled(b, x, tt_emit_i0e(b, x)); }
tt_value *tt_emit_i1(tt_builder *b, tt_value *x) { return unscaled(b, x, tt_hlo_bessel_i1e(b, x)); }

// --- the normal distribution ------------------------------------------------------------------------------------------------

// exp(x^2) erfc(x). For x >= 0 a series of (1 + 2x) erfcx(x) in (x - 3.75) / (x + 3.75); reflected below.
tt_value *tt_emit_erfcx(tt_builder *b, tt_value *x) {
  tt_value *size = tt_hlo_abs(b, x);
  tt_value *u = tt_hlo_divide(b, tt_add_constant(b, size, -3.75), tt_add_constant(b, size, 3.75));
  u = tt_select_constant(b, tt_hlo_is_inf(b, size), 1, u);
  tt_value *scaled = chebyshev(b, u, erfcx_scaled, 25, 14);
  tt_value *upper = tt_hlo_divide(b, scaled, tt_add_constant(b, tt_multiply_constant(b, size, 2), 1));
  tt_value *lower = tt_hlo_subtract(b, tt_multiply_constant(b, tt_hlo_exponential(b, tt_square(b, x)), 2), upper);
  return tt_hlo_select(b, tt_compare_constant(b, TT_LT, x, 0), lower, upper);
}

// log of the distribution function: from erfcx where that is tiny.
tt_value *tt_emit_log_ndtr(tt_builder *b, tt_value *x) {
  tt_value *t = tt_multiply_constant(b, x, M_SQRT1_2);
  tt_value *tail = tt_hlo_log(b, tt_multiply_constant(b, tt_emit_erfcx(b, tt_hlo_negate(b, t)), 0.5));
  tail = tt_hlo_subtract(b, tail, tt_square(b, t));
  tt_value *rest = tt_hlo_log_plus_one(b, tt_multiply_constant(b, tt_hlo_erfc(b, t), -0.5));
  return tt_hlo_select(b, tt_compare_constant(b, TT_LT, x, -1), tail, rest);
}

// For p <= exp(-2): -(z - log(z) / z - series(1 / z) / z) with z = sqrt(-2 log(p)), and in float64 a Newton step.
static tt_value *ndtri_of_tail(tt_builder *b, tt_value *p) {
  tt_value *z = tt_hlo_sqrt(b, tt_multiply_constant(b, tt_hlo_log(b, p), -2));
  tt_value *inverse = tt_reciprocal(b, z);
  double low = 1.0 / 39, high = 0.5;
  tt_value *u = tt_divide_constant(b, tt_add_constant(b, inverse, -(low + high) / 2), (high - low) / 2);
  tt_value *correction = tt_hlo_add(b, tt_hlo_log(b, z), chebyshev(b, u, ndtri_tail, 21, 21));
  tt_value *x = tt_hlo_subtract(b, tt_hlo_multiply(b, correction, inverse), z);
  if (p->dtype != TT_F64) return x;
  tt_value *reached = tt_multiply_constant(b, tt_hlo_erfc(b, tt_multiply_constant(b, x, -M_SQRT1_2)), 0.5);
  tt_value *density = tt_hlo_exponential(b, tt_multiply_constant(b, tt_square(b, x), -0.5));
  density = tt_multiply_constant(b, density, M_2_SQRTPI * M_SQRT1_2 / 2);
  // On the logarithm of p, since differences of such small numbers are denormal and flushed.
  tt_value *distance = tt_hlo_log(b, tt_hlo_divide(b, reached, p));
  return tt_hlo_subtract(b, x, tt_hlo_multiply(b, distance, tt_hlo_divide(b, reached, density)));
}

// Inverse of the distribution function: infinite at 0 and 1, NaN outside.
tt_value *tt_emit_ndtri(tt_builder *b, tt_value *p) {
  tt_value *upper = tt_compare_constant(b, TT_GT, p, 0.5);
  tt_value *side = tt_hlo_select(b, upper, tt_constant_minus(b, 1, p), p);
  double edge = exp(-2);
  tt_value *middle =
      tt_multiply_constant(b, tt_hlo_erf_inv(b, tt_add_constant(b, tt_multiply_constant(b, side, 2), -1)), M_SQRT2);
  // Kept inside (0, edge], so that the side not taken stays finite.
  tt_value *in_tail = tt_compare_constant(b, TT_LT, side, edge);
  tt_value *tail = ndtri_of_tail(b, tt_select_constant(b, tt_hlo_not(b, in_tail), edge, side));
  tt_value *x = tt_hlo_select(b, in_tail, tail, middle);
  x = tt_select_constant(b, tt_compare_constant(b, TT_EQ, side, 0), -HUGE_VAL, x);
  x = tt_hlo_select(b, upper, tt_hlo_negate(b, x), x);
  tt_value *valid = tt_hlo_and(b, tt_compare_constant(b, TT_GE, p, 0), tt_compare_constant(b, TT_LE, p, 1));
  return tt_hlo_select(b, valid, x, tt_hlo_constant_like(b, x, NAN));
}

// --- derivatives of log gamma ---------------------------------------------------------------------------------------------

// -inf and inf at 0 and -0, where CHLO gives NaN.
tt_value *tt_emit_digamma(tt_builder *b, tt_value *x) {
  tt_value *is_zero = tt_compare_constant(b, TT_EQ, x, 0);
  return tt_hlo_select(b, is_zero, tt_hlo_divide(b, tt_hlo_constant_like(b, x, -1), x), tt_hlo_digamma(b, x));
}

// One term of the series for the elements whose q is not positive yet: (x, q, sum) -> (x, q + 1, sum + q^-x).
static tt_value *zeta_is_open(tt_builder *b, tt_value *q) {
  // Far below 0, and at -inf, the series would not end.
  return tt_hlo_and(b, tt_compare_constant(b, TT_LT, q, 0), tt_compare_constant(b, TT_GT, q, -1e6));
}

static void zeta_condition(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)user;
  tt_value *open = zeta_is_open(b, state[1]);
  results[0] = tt_reduce(b, open, TT_REDUCE_OR, tt_axes_range(0, open->rank));
}

static void zeta_term(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)user;
  tt_value *x = state[0], *q = state[1], *open = zeta_is_open(b, q);
  results[0] = x;
  results[1] = tt_hlo_select(b, open, tt_add_constant(b, q, 1), q);
  results[2] = tt_hlo_select(b, open, tt_hlo_add(b, state[2], tt_hlo_power(b, q, tt_hlo_negate(b, x))), state[2]);
}

// Hurwitz' zeta function. CHLO's expansion is right for positive q only, so the terms before are summed here; x = 1 and whole
// q <= 0 are poles, as in torch.
tt_value *tt_emit_zeta(tt_builder *b, tt_value *x, tt_value *q) {
  tt_value *state[3];
  tt_hlo_while(b, 3, (tt_value *[]){x, q, tt_hlo_constant_like(b, q, 0)}, zeta_condition, zeta_term, NULL, state);
  tt_value *result = tt_hlo_add(b, state[2], tt_hlo_zeta(b, x, state[1]));
  tt_value *fraction_left = tt_hlo_compare(b, TT_NE, x, tt_hlo_floor(b, x));
  tt_value *low = tt_compare_constant(b, TT_LE, q, 0);
  tt_value *none = tt_hlo_or(b, tt_hlo_and(b, low, fraction_left), tt_compare_constant(b, TT_LT, x, 1));
  result = tt_select_constant(b, none, NAN, result);
  tt_value *pole = tt_hlo_and(b, low, tt_hlo_compare(b, TT_EQ, q, tt_hlo_floor(b, q)));
  pole = tt_hlo_and(b, pole, tt_compare_constant(b, TT_GT, x, 1));
  return tt_select_constant(b, tt_hlo_or(b, pole, tt_compare_constant(b, TT_EQ, x, 1)), HUGE_VAL, result);
}

// (n, x): the n-th derivative of digamma, (-1)^(n + 1) n! zeta(n + 1, x).
static tt_value *polygamma(tt_pointwise *p) {
  tt_builder *b = p->b;
  tt_value *x = p->x[0];
  int64_t n = tt_int(p->l, 0);
  if (n < 0) tt_fail(p->l, TT_INVALID_ARGUMENT, "polygamma(n, x) does not support negative n.");
  if (n <= 0) return tt_emit_digamma(b, x);
  tt_value *zeta = tt_emit_zeta(b, tt_hlo_constant_like(b, x, (double)n + 1), x);
  return tt_multiply_constant(b, zeta, (n % 2 == 0 ? -1 : 1) * tgamma((double)n + 1));
}
void tt_lower_polygamma(tt_lowering *l) { tt_pointwise_each(l, polygamma, 1, (int[]){1}); }
