// gamma.h - what the incomplete gamma functions (gamma.c) and their derivatives (gamma_grad.c) share. All are elementwise.
#ifndef TT_OP_GAMMA_H_
#define TT_OP_GAMMA_H_

#include "hlo/builder.h"

enum { TT_GAMMA_STEPS = 2000 }; // no loop makes more

// Half the distance from 1 to the next number of x's dtype.
double tt_half_epsilon(const tt_value *x);

// Scalar step counters of loops (S32): is one left, the next one, its number in the shape and dtype of `like`.
tt_value *tt_step_is_left(tt_builder *b, tt_value *step);
tt_value *tt_step_next(tt_builder *b, tt_value *step);
tt_value *tt_step_like(tt_builder *b, tt_value *step, const tt_value *like);
tt_value *tt_any(tt_builder *b, tt_value *x); // of all elements, a scalar

// Where P's power series is the better one: x below a, or below 1.1 where Q's terms would cancel.
tt_value *tt_gamma_is_lower(tt_builder *b, tt_value *a, tt_value *x);

// Temme's form for large a (above 200, for float32 above 30) and x within 30 % of a, DLMF 8.12. With mu = (x - a) / a:
typedef struct tt_temme {
  tt_value *holds; // BOOL: where it may be used
  tt_value *mu;
  tt_value *drop;  // a (mu - log(1 + mu)), everywhere
  tt_value *eta;   // the root of 2 drop / a with mu's sign
  tt_value *sum;   // of c_k(eta) a^-k
  tt_value *slope; // of k c_k(eta) a^-k
} tt_temme;
tt_temme tt_temme_at(tt_builder *b, tt_value *a, tt_value *x);

// gamma(a) over Stirling's sqrt(2 pi / a) (a / e)^a, for a >= 1.25.
tt_value *tt_stirling_rest(tt_builder *b, tt_value *a);

#endif // TT_OP_GAMMA_H_
