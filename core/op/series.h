// series.h - Chebyshev series of special functions, and polynomials for float32.
//
// The tables are computed by build_tools/series.py, which also says what each one is; see series_tables.c.
#ifndef TT_OP_SERIES_H_
#define TT_OP_SERIES_H_

#include "hlo/builder.h"

typedef struct tt_series {
  double low, high;    // the interval of the argument
  int wide, narrow;    // how many terms float64 takes, and float32, which sees fewer
  const double *terms; // coefficients of T_0, T_1, ...
} tt_series;

// The series at t, by Clenshaw's recurrence. Outside of its interval it is finite garbage where t is not too far away: clamp t
// where the other side of a select is taken.
tt_value *tt_series_at(tt_builder *b, const tt_series *series, tt_value *t);

typedef struct tt_polynomial {
  double center;
  int count;
  const double *terms; // coefficients of (t - center)^0, ^1, ...
} tt_polynomial;

// The polynomial at a float32 t, by Horner's rule: half the operations of a series. Outside of its interval it is finite garbage
// where t is not too far away.
tt_value *tt_polynomial_at(tt_builder *b, const tt_polynomial *polynomial, tt_value *t);

extern const tt_series tt_series_i0e_near, tt_series_i0e_far;
extern const tt_series tt_series_j0_near, tt_series_j1_near, tt_series_y0_near, tt_series_y1_near;
extern const tt_series tt_series_hankel_p0, tt_series_hankel_q0, tt_series_hankel_p1, tt_series_hankel_q1;
extern const tt_series tt_series_i0_small, tt_series_i1_small;
extern const tt_series tt_series_k0_near, tt_series_k1_near, tt_series_k0_far, tt_series_k1_far;
extern const tt_series tt_series_airy_middle, tt_series_airy_decay, tt_series_airy_sine, tt_series_airy_cosine;
extern const tt_series tt_series_log_gamma, tt_series_stirling, tt_series_digamma_near, tt_series_digamma_far;
extern const tt_series tt_series_temme0, tt_series_temme1, tt_series_temme2, tt_series_temme3, tt_series_temme4,
    tt_series_temme5, tt_series_temme6;
extern const tt_series tt_series_erfcx_scaled, tt_series_ndtri_tail;
extern const tt_polynomial tt_polynomial_exp_rest, tt_polynomial_log_rest, tt_polynomial_log2_rest,
    tt_polynomial_log10_rest, tt_polynomial_atanh_rest;
extern const tt_polynomial tt_polynomial_erf_near, tt_polynomial_erf_far, tt_polynomial_erfinv_near,
    tt_polynomial_erfcx_near, tt_polynomial_erfcx_far, tt_polynomial_log_gamma_quotient;

#endif // TT_OP_SERIES_H_
