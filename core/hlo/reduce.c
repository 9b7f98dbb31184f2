// reduce.c - reductions over whole dimensions.
#include <string.h>

#include "hlo/internal.h"

// --- kinds --------------------------------------------------------------------------------------------------------------------

// "ordered" ones refuse complex numbers, "logical" ones take Bool and integers only.
static const struct {
  const char *op;
  bool ordered, logical;
} kinds[] = {
    [TT_REDUCE_ADD] = {"stablehlo.add", false, false},    [TT_REDUCE_MULTIPLY] = {"stablehlo.multiply", false, false},
    [TT_REDUCE_MAX] = {"stablehlo.maximum", true, false}, [TT_REDUCE_MIN] = {"stablehlo.minimum", true, false},
    [TT_REDUCE_AND] = {"stablehlo.and", false, true},     [TT_REDUCE_OR] = {"stablehlo.or", false, true},
};

const char *tt_hlo_reduction_op(tt_reduction kind) {
  return (int)kind >= 0 && kind <= TT_REDUCE_OR ? kinds[kind].op : NULL;
}

bool tt_hlo_reduction_fits(tt_reduction kind, tt_dtype dtype) {
  if (tt_hlo_reduction_op(kind) == NULL) return false;
  if (kinds[kind].logical) return dtype == TT_BOOL || tt_dtype_is_integral(dtype);
  return !(kinds[kind].ordered && tt_dtype_is_complex(dtype));
}

tt_value *tt_hlo_reduction_identity(tt_builder *b, tt_reduction kind, tt_dtype dtype) {
  if (b->failed) return &tt_hlo_poison;
  if (dtype <= TT_DTYPE_NONE || dtype >= TT_DTYPE_COUNT || !tt_hlo_reduction_fits(kind, dtype))
    return tt_builder_fail(b, tt_error(TT_MISMATCH, "reduction %d does not take %s", (int)kind, tt_dtype_text(dtype)));
  switch (kind) {
  case TT_REDUCE_ADD:
  case TT_REDUCE_OR: return tt_hlo_constant(b, dtype, 0);
  case TT_REDUCE_MULTIPLY: return tt_hlo_constant(b, dtype, 1);
  case TT_REDUCE_MAX: return tt_hlo_min_value(b, dtype);
  case TT_REDUCE_MIN: return tt_hlo_max_value(b, dtype);
  case TT_REDUCE_AND: return dtype == TT_BOOL ? tt_hlo_constant(b, dtype, 1) : tt_hlo_constant_i64(b, dtype, -1);
  }
  return &tt_hlo_poison; // unreachable: the kind was checked
}

// --- reduce -------------------------------------------------------------------------------------------------------------------

// dims without the reduced ones; returns the rank that is left.
static int kept_dims(const tt_value *x, int count, const int *dims, int64_t *kept) {
  uint64_t reduced = 0;
  for (int i = 0; i < count; ++i) reduced |= UINT64_C(1) << dims[i];
  int rank = 0;
  for (int i = 0; i < x->rank; ++i) {
    if ((reduced >> i & 1) == 0) kept[rank++] = x->dims[i];
  }
  return rank;
}

static tt_value *reduce(tt_builder *b, tt_value *x, tt_reduction kind, int count, const int *dims) {
  tt_value *operands[] = {x, tt_hlo_reduction_identity(b, kind, x->dtype)};
  int64_t kept[TT_HLO_MAX_RANK];
  int rank = kept_dims(x, count, dims, kept);
  tt_value *result = tt_emit_result(b, "stablehlo.reduce(", x->dtype, rank, kept);
  tt_emit_value(b, operands[0]);
  tt_emit(b, " init: ");
  tt_emit_value(b, operands[1]);
  tt_emit(b, ") applies ");
  tt_emit(b, tt_hlo_reduction_op(kind));
  tt_emit_ints(b, " across dimensions = ", count, dims);
  return tt_emit_signature(b, 2, operands, result);
}

tt_value *tt_hlo_reduce(tt_builder *b, tt_value *x, tt_reduction kind, int count, const int *dims) {
  if (!TT_HLO_READY(b, "reduce", x)) return &tt_hlo_poison;
  if (!tt_hlo_distinct_dims(x->rank, count, dims))
    return TT_HLO_REFUSE(b, "reduce", "a dimension is out of range or repeated", x);
  if (!tt_hlo_reduction_fits(kind, x->dtype))
    return TT_HLO_REFUSE(b, "reduce", "the reduction does not take this dtype", x);
  if (count == 0) return x;
  return reduce(b, x, kind, count, dims);
}

// Operands of a variadic reduction: xs, then the initial scalars. NULL on failure.
static tt_value **reduce_operands(tt_builder *b, const char *op, int count, tt_value *const *xs,
                                  tt_value *const *initial) {
  if (count < 1) tt_builder_fail(b, tt_error(TT_MISMATCH, "%s: no operands", op));
  if (!TT_HLO_READY_N(b, op, count, xs) || !TT_HLO_READY_N(b, op, count, initial)) return NULL;
  for (int i = 0; i < count; ++i) {
    if (initial[i]->rank == 0 && initial[i]->dtype == xs[i]->dtype && tt_value_same_shape(xs[i], xs[0])) continue;
    TT_HLO_REFUSE(b, op,
                  TT_HLO_TEXT(b, "operand %d: wants one shape for all and a scalar of its dtype to start with", i),
                  xs[0], xs[i], initial[i]);
    return NULL;
  }
  tt_value **operands = tt_hlo_allocate(b, 2 * (size_t)count, sizeof *operands);
  if (operands == NULL) return NULL;
  memcpy(operands, xs, (size_t)count * sizeof *operands);
  memcpy(operands + count, initial, (size_t)count * sizeof *operands);
  return operands;
}

// The region's arguments have the types of the initial scalars, twice.
static void emit_reducer(tt_builder *b, const char *op, int count, tt_value *const *initial, tt_body body, void *user) {
  tt_value **likes = tt_hlo_allocate(b, 2 * (size_t)count, sizeof *likes);
  if (likes == NULL) return;
  memcpy(likes, initial, (size_t)count * sizeof *likes);
  memcpy(likes + count, initial, (size_t)count * sizeof *likes);
  tt_emit_region(b, op, 2 * count, likes, count, initial, body, user);
}

void tt_hlo_reduce_with(tt_builder *b, int count, tt_value *const *xs, tt_value *const *initial, int dim_count,
                        const int *dims, tt_body body, void *user, tt_value **out_results) {
  tt_value **operands = reduce_operands(b, "reduce", count, xs, initial);
  tt_hlo_poison_all(count, out_results);
  if (operands == NULL) return;
  if (!tt_hlo_distinct_dims(operands[0]->rank, dim_count, dims)) {
    TT_HLO_REFUSE_N(b, "reduce", "a dimension is out of range or repeated", count, operands);
    return;
  }
  int64_t kept[TT_HLO_MAX_RANK], reduced[TT_HLO_MAX_RANK];
  int rank = kept_dims(operands[0], dim_count, dims, kept);
  for (int i = 0; i < dim_count; ++i) reduced[i] = dims[i];
  int64_t id = tt_emit_results(b, "\"stablehlo.reduce\"", count);
  tt_emit_values(b, "(", 2 * count, operands);
  tt_emit(b, ") (");
  emit_reducer(b, "reduce", count, operands + count, body, user);
  tt_emit_array(b, ") {dimensions = ", dim_count, reduced);
  tt_emit(b, "}");
  for (int i = 0; i < count; ++i)
    out_results[i] = tt_hlo_value(b, operands[i]->dtype, rank, kept, id, tt_hlo_result_sub(count, i));
  tt_emit_signature_n(b, 2 * count, operands, count, out_results);
}

// --- windows ------------------------------------------------------------------------------------------------------------------

// (n - 1) * dilation + 1, 0 for n == 0.
static bool dilate(int64_t n, int64_t dilation, int64_t *out) {
  if (n < 0 || dilation < 1) return false;
  *out = 0;
  return n == 0 || (!__builtin_mul_overflow(n - 1, dilation, out) && !__builtin_add_overflow(*out, 1, out));
}

int64_t tt_hlo_window_count(int64_t n, int64_t size, int64_t stride, int64_t low, int64_t high, int64_t base_dilation,
                            int64_t window_dilation) {
  int64_t base, window;
  if (size < 1 || stride < 1 || !dilate(n, base_dilation, &base) || !dilate(size, window_dilation, &window)) return -1;
  if (__builtin_add_overflow(base, low, &base) || __builtin_add_overflow(base, high, &base) || base < 0) return -1;
  return base < window ? 0 : (base - window) / stride + 1;
}

// A tt_window with its defaults filled in, and the shape of the result.
typedef struct window {
  int rank;
  int64_t size[TT_HLO_MAX_RANK], stride[TT_HLO_MAX_RANK], base_dilation[TT_HLO_MAX_RANK],
      window_dilation[TT_HLO_MAX_RANK];
  int64_t low[TT_HLO_MAX_RANK], high[TT_HLO_MAX_RANK], dims[TT_HLO_MAX_RANK];
} window;

static int64_t at(const int64_t *values, int i, int64_t otherwise) { return values == NULL ? otherwise : values[i]; }

static bool expand_window(const tt_value *x, const tt_window *w, window *out) {
  out->rank = x->rank;
  for (int i = 0; i < x->rank; ++i) {
    out->size[i] = at(w->size, i, 1);
    out->stride[i] = at(w->stride, i, 1);
    out->base_dilation[i] = at(w->base_dilation, i, 1);
    out->window_dilation[i] = at(w->window_dilation, i, 1);
    out->low[i] = at(w->pad_low, i, 0);
    out->high[i] = at(w->pad_high, i, 0);
    out->dims[i] = tt_hlo_window_count(x->dims[i], out->size[i], out->stride[i], out->low[i], out->high[i],
                                       out->base_dilation[i], out->window_dilation[i]);
    if (out->dims[i] < 0) return false;
  }
  return x->rank > 0;
}

static void emit_window(tt_builder *b, const window *w, bool with_dilation) {
  tt_emit_array(b, ") {window_dimensions = ", w->rank, w->size);
  tt_emit_array(b, ", window_strides = ", w->rank, w->stride);
  if (with_dilation) {
    tt_emit_array(b, ", base_dilations = ", w->rank, w->base_dilation);
    tt_emit_array(b, ", window_dilations = ", w->rank, w->window_dilation);
  }
  tt_emit(b, ", padding = dense<[");
  for (int i = 0; i < w->rank; ++i) tt_emit_i64s(b, i == 0 ? "" : ", ", 2, (int64_t[]){w->low[i], w->high[i]});
  tt_emit(b, "]> : tensor<");
  tt_emit_i64(b, w->rank);
  tt_emit(b, "x2xi64>}");
}

tt_value *tt_hlo_reduce_window(tt_builder *b, tt_value *x, tt_reduction kind, const tt_window *window) {
  if (!TT_HLO_READY(b, "reduce_window", x)) return &tt_hlo_poison;
  if (!tt_hlo_reduction_fits(kind, x->dtype))
    return TT_HLO_REFUSE(b, "reduce_window", "the reduction does not take this dtype", x);
  tt_value *initial = tt_hlo_reduction_identity(b, kind, x->dtype), *result;
  tt_hlo_reduce_window_with(b, 1, &x, &initial, window, tt_hlo_combine_body, (void *)tt_hlo_reduction_op(kind),
                            &result);
  return result;
}

void tt_hlo_reduce_window_with(tt_builder *b, int count, tt_value *const *xs, tt_value *const *initial,
                               const tt_window *numbers, tt_body body, void *user, tt_value **out_results) {
  tt_value **operands = reduce_operands(b, "reduce_window", count, xs, initial);
  tt_hlo_poison_all(count, out_results);
  if (operands == NULL) return;
  window w;
  if (!expand_window(operands[0], numbers, &w)) {
    TT_HLO_REFUSE_N(b, "reduce_window", "the window does not fit", count, operands);
    return;
  }
  int64_t id = tt_emit_results(b, "\"stablehlo.reduce_window\"", count);
  tt_emit_values(b, "(", 2 * count, operands);
  tt_emit(b, ") (");
  emit_reducer(b, "reduce_window", count, operands + count, body, user);
  emit_window(b, &w, true);
  for (int i = 0; i < count; ++i)
    out_results[i] = tt_hlo_value(b, operands[i]->dtype, w.rank, w.dims, id, tt_hlo_result_sub(count, i));
  tt_emit_signature_n(b, 2 * count, operands, count, out_results);
}

// The selected element stays while it is >= the next one, so the first of equal ones is chosen, as torch does. A NaN is never
// >= and loses to what follows it: the gradient of a window with a NaN goes to the greatest element behind the last NaN, or
// to the NaN itself where it comes last (torch sends it to the last NaN).
static void select_greatest(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  (void)user;
  results[0] = tt_hlo_compare(b, TT_GE, arguments[0], arguments[1]);
}

tt_value *tt_hlo_select_and_scatter_add(tt_builder *b, tt_value *x, tt_value *source, const tt_window *numbers) {
  if (!TT_HLO_READY(b, "select_and_scatter", x, source)) return &tt_hlo_poison;
  window w;
  bool fits = !tt_dtype_is_complex(x->dtype) && numbers->base_dilation == NULL && numbers->window_dilation == NULL &&
              expand_window(x, numbers, &w) && source->dtype == x->dtype && source->rank == w.rank &&
              tt_hlo_same_dims(w.rank, source->dims, w.dims);
  if (!fits)
    return TT_HLO_REFUSE(b, "select_and_scatter", "wants an undilated window whose result has the source's type", x,
                         source);
  tt_value *operands[] = {x, source, tt_hlo_constant(b, x->dtype, 0)};
  tt_value *scalar = tt_hlo_scalar_type(b, x->dtype), *boolean = tt_hlo_scalar_type(b, TT_BOOL);
  tt_value *result = tt_emit_result(b, "\"stablehlo.select_and_scatter\"", x->dtype, x->rank, x->dims);
  tt_emit_values(b, "(", 3, operands);
  tt_emit(b, ") (");
  tt_emit_region(b, "select_and_scatter", 2, (tt_value *[]){scalar, scalar}, 1, &boolean, select_greatest, NULL);
  tt_emit(b, ", ");
  tt_emit_region(b, "select_and_scatter", 2, (tt_value *[]){scalar, scalar}, 1, &scalar, tt_hlo_combine_body,
                 (void *)"stablehlo.add");
  emit_window(b, &w, false);
  return tt_emit_signature(b, 3, operands, result);
}
