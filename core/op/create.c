// create.c - tensors made from numbers: arange, range, linspace, logspace, eye, kaiser_window.
//
// The numbers travel at run time, so one program serves every start and step of a size. Values are formed as torch's CPU
// kernels form them: start + i * step in the dtype that sums of the output's dtype have there, linspace from both ends.
#include "op/lowering.h"

// The dtype in which CPU kernels form a sequence (at::acc_type): wider than the output's where there is one.
static tt_dtype sequence_dtype(tt_dtype dtype) {
  if (tt_dtype_is_integral(dtype) || dtype == TT_BOOL) return TT_S64;
  return dtype == TT_F32 ? TT_F64 : tt_dtype_is_narrow_float(dtype) ? TT_F32 : dtype;
}

// 0, 1, 2 ... in `dtype`, rank 1.
static tt_value *counted(tt_lowering *l, tt_dtype dtype, int64_t size) {
  tt_dtype whole = tt_dtype_is_integral(dtype) ? dtype : size < INT32_MAX ? TT_S32 : TT_S64;
  return tt_hlo_convert(l->b, tt_hlo_iota(l->b, whole, 1, &size, 0), dtype);
}

static tt_value *spread(tt_lowering *l, int arg, const tt_value *like) {
  return tt_hlo_broadcast_like(l->b, tt_number(l, arg, like->dtype), like);
}

// arange and range into an output that whoever calls has made: its size says where the sequence ends, whose end would
// otherwise have to be compiled in. torch fills an output of any shape in order.
void tt_lower_arange(tt_lowering *l) {
  tt_builder *b = l->b;
  int rank;
  const int64_t *sizes;
  if (!tt_output_shape(l, 0, &rank, &sizes)) {
    tt_fail(l, TT_INTERNAL, "the output is missing");
    return;
  }
  int64_t count = 1;
  for (int k = 0; k < rank; ++k) count *= sizes[k];
  tt_value *i = counted(l, sequence_dtype(tt_output_dtype(l, 0, l->default_dtype)), count);
  tt_value *x = tt_hlo_add(b, spread(l, 0, i), tt_hlo_multiply(b, i, spread(l, 2, i)));
  tt_set_result(l, 0, tt_hlo_reshape(b, x, rank, sizes));
}

// Integers are spaced in double.
static tt_dtype spacing_dtype(tt_dtype dtype) {
  return tt_dtype_is_integral(dtype) || dtype == TT_BOOL ? TT_F64 : tt_compute_dtype(dtype);
}

// `steps` numbers between two scalars of one dtype. The first half counts from the start, the second back from the end, so that
// both ends are exact.
tt_value *tt_spaced(tt_lowering *l, tt_value *start, tt_value *end, int64_t steps) {
  tt_builder *b = l->b;
  tt_value *i = counted(l, start->dtype, steps);
  start = tt_hlo_broadcast_like(b, start, i);
  end = tt_hlo_broadcast_like(b, end, i);
  if (steps < 2) return start;
  tt_value *step = tt_hlo_divide(b, tt_hlo_subtract(b, end, start), tt_hlo_constant_like(b, i, (double)(steps - 1)));
  tt_value *left = tt_hlo_subtract(b, tt_hlo_constant_like(b, i, (double)(steps - 1)), i);
  int64_t half = steps / 2;
  tt_value *whole = counted(l, steps < INT32_MAX ? TT_S32 : TT_S64, steps);
  tt_value *first_half = tt_hlo_compare(b, TT_LT, whole, tt_hlo_constant_like(b, whole, (double)half));
  tt_value *upward = tt_hlo_add(b, start, tt_hlo_multiply(b, step, i));
  tt_value *downward = tt_hlo_subtract(b, end, tt_hlo_multiply(b, step, left));
  return tt_hlo_select(b, first_half, upward, downward);
}

static tt_value *spaced(tt_lowering *l, tt_dtype dtype, int64_t steps) {
  return tt_spaced(l, tt_number(l, 0, dtype), tt_number(l, 1, dtype), steps);
}

// The result's dtype: the argument's, else the default one of start's and end's category.
static tt_dtype space_result(tt_lowering *l, int dtype_arg) {
  bool is_complex = tt_number_dtype(l, 0) == TT_C128 || tt_number_dtype(l, 1) == TT_C128;
  if (tt_int(l, 2) < 0) tt_fail(l, TT_INVALID_ARGUMENT, "number of steps must be non-negative");
  return tt_dtype_arg(l, dtype_arg, is_complex ? tt_dtype_complex(l->default_dtype) : l->default_dtype);
}

void tt_lower_linspace(tt_lowering *l) {
  tt_dtype dtype = space_result(l, 3);
  for (int end = 0; end < 2; ++end) tt_require_fits(l, end, dtype);
  if (!tt_failed(l)) tt_set_result(l, 0, tt_hlo_convert(l->b, spaced(l, spacing_dtype(dtype), tt_int(l, 2)), dtype));
}

void tt_lower_logspace(tt_lowering *l) {
  tt_dtype dtype = space_result(l, 4);
  if (tt_failed(l)) return;
  tt_value *exponent = spaced(l, spacing_dtype(dtype), tt_int(l, 2));
  tt_set_result(l, 0, tt_hlo_convert(l->b, tt_hlo_power(l->b, spread(l, 3, exponent), exponent), dtype));
}

static void ones_on_diagonal(tt_lowering *l, int64_t rows, int64_t columns, int dtype_arg) {
  tt_builder *b = l->b;
  if (rows < 0) tt_fail(l, TT_INVALID_ARGUMENT, "n must be greater or equal to 0, got %lld", (long long)rows);
  if (columns < 0) tt_fail(l, TT_INVALID_ARGUMENT, "m must be greater or equal to 0, got %lld", (long long)columns);
  if (tt_failed(l)) return;
  int64_t dims[] = {rows, columns};
  tt_dtype dtype = rows < INT32_MAX && columns < INT32_MAX ? TT_S32 : TT_S64;
  tt_value *on = tt_hlo_compare(b, TT_EQ, tt_hlo_iota(b, dtype, 2, dims, 0), tt_hlo_iota(b, dtype, 2, dims, 1));
  tt_set_result(l, 0, tt_hlo_convert(b, on, tt_dtype_arg(l, dtype_arg, l->default_dtype)));
}

void tt_lower_eye(tt_lowering *l) { ones_on_diagonal(l, tt_int(l, 0), tt_int(l, 0), 1); }
void tt_lower_eye_m(tt_lowering *l) { ones_on_diagonal(l, tt_int(l, 0), tt_int(l, 1), 2); }

// --- Kaiser window ------------------------------------------------------------------------------------------------------------
// torch's own composite calls a kernel that only its own devices have; the other windows are made of ops.

tt_value *tt_emit_i0(tt_builder *b, tt_value *x); // op/special.c

// i0(beta * sqrt(1 - (2i / (n - 1) - 1)^2)) / i0(beta) at i = 0 ... n - 1; a periodic window is the start of one longer by 1.
static tt_value *kaiser(tt_builder *b, tt_value *beta, int64_t size, bool periodic) {
  tt_value *i = tt_hlo_convert(b, tt_hlo_iota(b, TT_S32, 1, &size, 0), beta->dtype),
           *one = tt_hlo_constant_like(b, i, 1);
  if (size < 2) return one;
  tt_value *at = tt_hlo_multiply(b, i, tt_hlo_constant_like(b, i, 2 / (double)(periodic ? size : size - 1)));
  at = tt_hlo_subtract(b, at, one);
  tt_value *height = tt_hlo_sqrt(
      b, tt_hlo_maximum(b, tt_hlo_subtract(b, one, tt_hlo_multiply(b, at, at)), tt_hlo_constant_like(b, i, 0)));
  tt_value *window = tt_emit_i0(b, tt_hlo_multiply(b, height, tt_hlo_broadcast_like(b, beta, height)));
  return tt_hlo_divide(b, window, tt_hlo_broadcast_like(b, tt_emit_i0(b, beta), window));
}

static void lower_kaiser_window(tt_lowering *l, bool has_periodic, bool has_beta) {
  tt_builder *b = l->b;
  int64_t size = tt_int(l, 0);
  bool periodic = has_periodic ? tt_bool(l, 1) : true;
  tt_dtype dtype = tt_dtype_arg(l, 1 + has_periodic + has_beta, l->default_dtype), compute = tt_compute_dtype(dtype);
  if (!tt_dtype_is_float(dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "kaiser_window expects floating point dtypes, got: %s", tt_dtype_text(dtype));
  if (size < 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "kaiser_window requires non-negative window_length, got window_length=%lld",
            (long long)size);
  if (tt_failed(l)) return;
  tt_value *beta = has_beta ? tt_number(l, 2, compute) : tt_hlo_constant(b, compute, 12);
  tt_set_result(l, 0, tt_hlo_convert(b, kaiser(b, beta, size, periodic), dtype));
}

void tt_lower_kaiser_window(tt_lowering *l) { lower_kaiser_window(l, false, false); }
void tt_lower_kaiser_window_periodic(tt_lowering *l) { lower_kaiser_window(l, true, false); }
void tt_lower_kaiser_window_beta(tt_lowering *l) { lower_kaiser_window(l, true, true); }
