// fourier.c - Fourier transforms written as matrix products; see fourier.h.
//
// A TPU's fft knows complex64 alone ("Unexpected operand type for FFT: c128", libtpu 0.0.52). A transform of length n = a m is
// one of length a over each of m interleaved parts, a turn of each element, and one of length m (Cooley and Tukey, "An algorithm
// for the machine calculation of complex Fourier series", 1965); one that is short or has no such factor is a product with the
// matrix of its waves.
#include "op/fourier.h"

#include <math.h>
#include <string.h>

#include "op/axes.h"

enum {
  SHORT = 64,    // up to this length the product costs less than another step
  LONGEST = 4096 // of a product: its matrix takes 256 MiB
};

// [rows, columns] of exp(sign 2 pi i row column / n). Row times column is reduced by n first, so that no angle is large.
static tt_value *waves(tt_builder *b, int64_t rows, int64_t columns, int64_t n, int sign) {
  int64_t dims[] = {rows, columns};
  tt_value *row = tt_hlo_iota(b, TT_S64, 2, dims, 0), *column = tt_hlo_iota(b, TT_S64, 2, dims, 1);
  tt_value *period = tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, TT_S64, n), row);
  tt_value *turns = tt_hlo_convert(b, tt_hlo_remainder(b, tt_hlo_multiply(b, row, column), period), TT_F64);
  tt_value *angle = tt_hlo_multiply(b, turns, tt_hlo_constant_like(b, turns, sign * 2 * M_PI / (double)n));
  return tt_hlo_complex(b, tt_hlo_cosine(b, angle), tt_hlo_sine(b, angle));
}

static tt_value *times_waves(tt_builder *b, tt_value *x, int64_t n, int sign) {
  const tt_dot numbers = {.contract_count = 1, .lhs_contract = (int[]){x->rank - 1}, .rhs_contract = (int[]){0}};
  return tt_hlo_dot_general(b, x, waves(b, n, n, n, sign), &numbers, x->dtype, TT_PRECISION_HIGHEST);
}

// The largest factor of n up to SHORT; n itself if there is none.
static int64_t short_factor(int64_t n) {
  for (int64_t a = n < SHORT ? n : SHORT; a > 1; --a)
    if (n % a == 0) return a;
  return n;
}

static tt_value *swap_last(tt_builder *b, tt_value *x) { return tt_hlo_transpose(b, x, (int[]){0, 2, 1}); }

// The sum over j of x[row, j] exp(sign 2 pi i j k / n), for x of [rows, n].
static tt_value *transform_rows(tt_builder *b, tt_value *x, int sign) {
  int64_t rows = x->dims[0], n = x->dims[1], a = short_factor(n), m = n / a;
  if (m == 1 && n > LONGEST) {
    return tt_builder_fail(b, tt_error(TT_NOT_IMPLEMENTED,
                                       "a float64 Fourier transform whose length has the prime factor %lld, on a TPU",
                                       (long long)n));
  }
  if (m == 1) return times_waves(b, x, n, sign);
  // Element j = j1 m + j2 becomes [j2, j1], and after the first product [j2, k1].
  tt_value *parts = swap_last(b, tt_hlo_reshape(b, x, 3, (int64_t[]){rows, a, m}));
  parts = times_waves(b, parts, a, sign);
  parts = tt_hlo_multiply(b, parts, tt_hlo_broadcast_like(b, waves(b, m, a, n, sign), parts));
  // Over j2, for each row and k1; what comes out is [k1, k2] of element k = k1 + a k2.
  parts = tt_hlo_reshape(b, swap_last(b, parts), 2, (int64_t[]){rows * a, m});
  parts = tt_hlo_reshape(b, transform_rows(b, parts, sign), 3, (int64_t[]){rows, a, m});
  return tt_hlo_reshape(b, swap_last(b, parts), 2, (int64_t[]){rows, n});
}

// Over one dim; the sum is divided by the dim's length when `sign` is positive (the inverse).
static tt_value *transform_dim(tt_builder *b, tt_value *x, int dim, int sign) {
  int order[TT_AXES_MAX];
  int64_t n = x->dims[dim];
  for (int i = 0; i < x->rank; ++i) order[i] = i;
  order[dim] = x->rank - 1;
  order[x->rank - 1] = dim;
  tt_value *moved = tt_hlo_transpose(b, x, order);
  tt_value *rows = tt_hlo_reshape(b, moved, 2, (int64_t[]){tt_value_count(x) / n, n});
  rows = transform_rows(b, rows, sign);
  if (sign > 0) rows = tt_hlo_multiply(b, rows, tt_hlo_constant_like(b, rows, 1 / (double)n));
  return tt_hlo_transpose(b, tt_hlo_reshape(b, rows, x->rank, moved->dims), order);
}

// The second half of the last dim, which a real transform leaves out: the conjugates of the first in reverse.
static tt_value *complete(tt_builder *b, tt_value *half, int64_t length) {
  int last = half->rank - 1;
  tt_value *rest = tt_hlo_slice_dim(b, half, last, 1, (length - 1) / 2 + 1, 1);
  rest = tt_hlo_conj(b, tt_hlo_reverse(b, rest, 1, &last));
  return tt_hlo_concatenate(b, 2, (tt_value *[]){half, rest}, last);
}

tt_value *tt_fourier_products(tt_builder *b, tt_value *x, const char *type, int count, int64_t last) {
  const bool to_real = strcmp(type, "IRFFT") == 0, from_real = strcmp(type, "RFFT") == 0;
  const int sign = to_real || strcmp(type, "IFFT") == 0 ? 1 : -1, end = x->rank - 1;
  x = tt_hlo_convert(b, x, tt_dtype_complex(x->dtype));
  for (int dim = x->rank - count; dim < end; ++dim) x = transform_dim(b, x, dim, sign);
  x = transform_dim(b, to_real ? complete(b, x, last) : x, end, sign);
  if (from_real) x = tt_hlo_slice_dim(b, x, end, 0, last / 2 + 1, 1);
  return to_real ? tt_hlo_real(b, x) : x;
}
