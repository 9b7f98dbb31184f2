// transcendental.h - elementary functions, right to one or two ulp, as parts of other formulas.
//
// XLA's own float32 forms are up to 5 ulp off. These are written out for float32; float64 and complex numbers go XLA's way where
// that is good enough.
#ifndef TT_OP_TRANSCENDENTAL_H_
#define TT_OP_TRANSCENDENTAL_H_

#include "hlo/builder.h"

// factor exp(x + rest) 2^shift of float32, to 0.6 ulp where factor is NULL, which stands for 1, and without overflow before the
// result's. The rest is at most 1 / 8, or NULL for none.
tt_value *tt_exp_of_sum(tt_builder *b, tt_value *x, tt_value *rest, tt_value *factor, int shift);
// log(x). Where out_rest is given, a float32 result is right to twice its digits together with *out_rest; alone to 0.6 ulp.
// Otherwise, and for what is no normal number, the rest is 0.
tt_value *tt_log_in_parts(tt_builder *b, tt_value *x, tt_value **out_rest);
// `otherwise`, but formula(x) worked out in float64 and rounded for elements `where` a BOOL is true. Costs little where
// it is nowhere (tt_hlo_when). Float32 x.
tt_value *tt_wide_where(tt_builder *b, tt_value *where, tt_value *x, tt_value *(*formula)(tt_builder *, tt_value *),
                        tt_value *otherwise);

// size >= 0 with the sign bit of x, float32.
tt_value *tt_with_sign_of(tt_builder *b, tt_value *size, tt_value *x);

tt_value *tt_emit_expm1(tt_builder *b, tt_value *x);
tt_value *tt_emit_log1p(tt_builder *b, tt_value *x);
tt_value *tt_emit_tanh(tt_builder *b, tt_value *x);
// The error functions, in special.c.
tt_value *tt_emit_erf(tt_builder *b, tt_value *x);
tt_value *tt_emit_erfc(tt_builder *b, tt_value *x);
tt_value *tt_emit_erfinv(tt_builder *b, tt_value *x);

#endif // TT_OP_TRANSCENDENTAL_H_
