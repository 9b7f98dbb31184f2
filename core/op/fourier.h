// fourier.h - Fourier transforms written as matrix products.
#ifndef TT_OP_FOURIER_H_
#define TT_OP_FOURIER_H_

#include "op/lowering.h"

// What stablehlo.fft of this type gives ("FFT", "IFFT", "RFFT", "IRFFT") over the last `count` dims of x, for a compiler whose
// fft does not know x's dtype. `last` is the length of the last dim in the real domain.
// Fails with TT_NOT_IMPLEMENTED where a length has a prime factor beyond 4096.
tt_value *tt_fourier_products(tt_builder *b, tt_value *x, const char *type, int count, int64_t last);

#endif // TT_OP_FOURIER_H_
