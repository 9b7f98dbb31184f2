// scan.c - running reductions along one dimension: cumsum, cumprod, logcumsumexp, cummax, cummin.
//
// A short dimension is one reduce_window whose window reaches back to the start. A long one is cut into blocks: each block is
// scanned, then the blocks' totals (by the same function), and what came before a block is combined into it. That costs
// O(n * block) instead of the O(n^2) of one window, adds in a better order than one after the other, and on XLA's CPU is
// as fast as the rewriting of reduce_window along the last dimension and 4 to 10 times faster along any other. Sums along the
// last dimension do still better there with blocks multiplied by a triangle of ones.
#include "op/axes.h"
#include "op/shape.h"
#include "op/transcendental.h"

// An associative combination of two values, earlier one first. `combine` is elementwise and also works on whole arrays.
typedef struct monoid {
  tt_body combine;
  void *user;
  tt_value *identity; // scalar
  bool costly;        // worth combining whole arrays, which become vector instructions, where a window goes one by one
} monoid;

static tt_value *combine(tt_builder *b, const monoid *m, tt_value *earlier, tt_value *later) {
  tt_value *result;
  m->combine(b, (tt_value *[]){earlier, later}, &result, m->user);
  return result;
}

// --- the scan --------------------------------------------------------------------------------------------------------

// A TPU's vectors have 128 lanes; XLA's CPU does best with short windows, and with few steps.
static int64_t block_size(tt_builder *b, const monoid *m) {
  if (tt_builder_target(b)->is_tpu) return 128;
  return m->costly ? 8 : 16;
}

static tt_value *scan_window(tt_builder *b, tt_value *x, int dim, const monoid *m) {
  int64_t size[TT_AXES_MAX], low[TT_AXES_MAX];
  for (int i = 0; i < x->rank; ++i) {
    size[i] = i == dim ? x->dims[i] : 1;
    low[i] = size[i] - 1;
  }
  tt_value *result;
  tt_hlo_reduce_window_with(b, 1, &x, &m->identity, &(tt_window){.size = size, .pad_low = low}, m->combine, m->user,
                            &result);
  return result;
}

// Adds `low` and `high` elements of the identity at the ends of dim; negative counts crop.
static tt_value *pad(tt_builder *b, tt_value *x, int dim, int64_t low, int64_t high, const monoid *m) {
  return tt_pad_dim(b, x, m->identity, dim, low, high, 0);
}

// Each element combined with the one 1, 2, 4, ... before it: log2(n) steps over the whole array.
static tt_value *scan_steps(tt_builder *b, tt_value *x, int dim, const monoid *m) {
  for (int64_t step = 1; step < x->dims[dim] && !tt_builder_failed(b); step *= 2)
    x = combine(b, m, pad(b, x, dim, step, -step, m), x);
  return x;
}

static tt_value *scan_short(tt_builder *b, tt_value *x, int dim, const monoid *m) {
  return m->costly ? scan_steps(b, x, dim, m) : scan_window(b, x, dim, m);
}

// [..., n, ...] to [..., n / block, block, ...]
static tt_value *split(tt_builder *b, tt_value *x, int dim, int64_t block) {
  int64_t dims[TT_AXES_MAX + 1];
  for (int i = 0; i < x->rank; ++i) dims[i < dim ? i : i + 1] = x->dims[i];
  dims[dim] = x->dims[dim] / block;
  dims[dim + 1] = block;
  return tt_hlo_reshape(b, x, x->rank + 1, dims);
}

static tt_value *scan(tt_builder *b, tt_value *x, int dim, const monoid *m);

// The scan of x, given that of its blocks, [..., n / block, block, ...] with the last block filled up; *out_totals are the
// blocks' own.
static tt_value *join_blocks(tt_builder *b, tt_value *x, tt_value *inside, int dim, const monoid *m,
                             tt_value **out_totals) {
  *out_totals = x;
  if (tt_builder_failed(b)) return x;
  int64_t n = x->dims[dim], blocks = inside->dims[dim], block = inside->dims[dim + 1], dims[TT_AXES_MAX];
  for (int i = 0; i < x->rank; ++i) dims[i] = i == dim ? blocks * block : x->dims[i];
  tt_value *totals = tt_hlo_squeeze_dim(b, tt_hlo_slice_dim(b, inside, dim + 1, block - 1, block, 1), dim + 1);
  tt_value *before = pad(b, scan(b, totals, dim, m), dim, 1, -1, m); // the blocks before each
  *out_totals = totals;
  before = tt_spread(b, before, inside, tt_axes_range(dim + 1, dim + 2));
  tt_value *result = tt_hlo_reshape(b, combine(b, m, before, inside), x->rank, dims);
  return tt_hlo_slice_dim(b, result, dim, 0, n, 1);
}

// x in blocks, the last one filled up.
static tt_value *blocks_of(tt_builder *b, tt_value *x, int dim, int64_t block, const monoid *m) {
  int64_t n = x->dims[dim], whole = (n + block - 1) / block * block;
  return split(b, pad(b, x, dim, 0, whole - n, m), dim, block);
}

static tt_value *scan(tt_builder *b, tt_value *x, int dim, const monoid *m) {
  if (tt_builder_failed(b) || x->rank == 0 || x->dims[dim] <= 1) return x;
  int64_t block = block_size(b, m);
  if (x->dims[dim] <= 2 * block || x->rank == TT_AXES_MAX) return scan_short(b, x, dim, m);
  tt_value *totals, *inside = scan_short(b, blocks_of(b, x, dim, block, m), dim + 1, m);
  return join_blocks(b, x, inside, dim, m, &totals);
}

// --- sums and products -----------------------------------------------------------------------------------------------

static monoid monoid_of(tt_builder *b, tt_reduction kind, tt_dtype dtype) {
  static const char *const ops[] = {[TT_REDUCE_ADD] = "stablehlo.add",
                                    [TT_REDUCE_MULTIPLY] = "stablehlo.multiply",
                                    [TT_REDUCE_MAX] = "stablehlo.maximum",
                                    [TT_REDUCE_MIN] = "stablehlo.minimum"};
  return (monoid){tt_hlo_combine_body, (void *)ops[kind], tt_hlo_reduction_identity(b, kind, dtype), false};
}

static tt_value *scan_in_windows(tt_builder *b, tt_value *x, tt_reduction kind, int dim) {
  monoid m = monoid_of(b, kind, x->dtype);
  return scan(b, x, dim, &m);
}

enum { TRIANGLE = 64, TRIANGLE_ELEMENTS = 1 << 18 };

static bool wants_triangle(tt_builder *b, const tt_value *x, tt_reduction kind, int dim) {
  return tt_builder_target(b)->scan_by_dots && kind == TT_REDUCE_ADD && (x->dtype == TT_F32 || x->dtype == TT_F64) &&
         dim == x->rank - 1 && x->rank < TT_AXES_MAX && x->dims[dim] >= 2 * TRIANGLE &&
         tt_value_count(x) >= TRIANGLE_ELEMENTS;
}

// The running sums of each block, [..., TRIANGLE]: a product with ones on and above the diagonal.
static tt_value *multiply_triangle(tt_builder *b, tt_value *blocks) {
  const int64_t dims[] = {TRIANGLE, TRIANGLE};
  tt_value *row = tt_hlo_iota(b, TT_S32, 2, dims, 0), *column = tt_hlo_iota(b, TT_S32, 2, dims, 1);
  tt_value *ones = tt_hlo_convert(b, tt_hlo_compare(b, TT_LE, row, column), blocks->dtype);
  const int last = blocks->rank - 1;
  const tt_dot numbers = {.contract_count = 1, .lhs_contract = &last, .rhs_contract = (int[]){0}};
  return tt_hlo_dot_general(b, blocks, ones, &numbers, blocks->dtype, TT_PRECISION_HIGHEST);
}

// Carried: whether to go on, x, the result.
static void is_wanted(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  (void)b, (void)user;
  results[0] = arguments[0];
}

static void scan_again(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  (void)user;
  results[0] = tt_hlo_constant(b, TT_BOOL, 0);
  results[1] = arguments[1];
  results[2] = scan_in_windows(b, arguments[1], TT_REDUCE_ADD, arguments[1]->rank - 1);
}

// An infinity or NaN times one of the triangle's zeros is NaN where it should not be seen yet. It makes its block's total
// NaN or infinite; then, and where finite elements overflow, the sums are formed once more in windows.
static tt_value *scan_by_triangle(tt_builder *b, tt_value *x) {
  int dim = x->rank - 1;
  monoid m = monoid_of(b, TT_REDUCE_ADD, x->dtype);
  tt_value *totals, *inside = multiply_triangle(b, blocks_of(b, x, dim, TRIANGLE, &m));
  tt_value *result = join_blocks(b, x, inside, dim, &m, &totals);
  tt_axes all = tt_axes_range(0, totals->rank);
  tt_value *finite = tt_reduce(b, tt_hlo_is_finite(b, totals), TT_REDUCE_AND, all);
  tt_value *carried[] = {tt_hlo_not(b, finite), x, result};
  tt_hlo_while(b, 3, carried, is_wanted, scan_again, NULL, carried);
  return carried[2];
}

tt_value *tt_scan(tt_builder *b, tt_value *x, tt_reduction kind, int dim) {
  return wants_triangle(b, x, kind, dim) ? scan_by_triangle(b, x) : scan_in_windows(b, x, kind, dim);
}

// (self, dim, dtype?): the declared output has the dtype already.
static void lower_running(tt_lowering *l, tt_reduction kind) {
  tt_value *x = tt_operand(l, 0);
  int dim = tt_wrap_dim(l, tt_int(l, 1), x->rank);
  tt_dtype dtype = tt_dtype_arg(l, 2, tt_output_dtype(l, 0, x->dtype));
  if (dtype == TT_BOOL)
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"%s_out_cpu\" not implemented for 'Bool'",
            kind == TT_REDUCE_ADD ? "cumsum" : "cumprod");
  if (tt_failed(l)) return;
  x = tt_hlo_convert(l->b, tt_hlo_convert(l->b, x, dtype), tt_compute_dtype(dtype));
  tt_set_result(l, 0, tt_hlo_convert(l->b, tt_scan(l->b, x, kind, dim), dtype));
}

void tt_lower_cumsum(tt_lowering *l) { lower_running(l, TT_REDUCE_ADD); }
void tt_lower_cumprod(tt_lowering *l) { lower_running(l, TT_REDUCE_MULTIPLY); }

// --- logcumsumexp ----------------------------------------------------------------------------------------------------

// log(exp(x) + exp(y)). An infinite or NaN greater one is the result: inf - inf would be NaN.
static void log_add_exp(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  (void)user;
  tt_value *x = arguments[0], *y = arguments[1];
  tt_value *first = tt_hlo_compare(b, TT_GE, tt_hlo_real(b, x), tt_hlo_real(b, y));
  if (tt_dtype_is_float(x->dtype)) first = tt_hlo_or(b, first, tt_hlo_is_nan(b, x));
  tt_value *greater = tt_hlo_select(b, first, x, y), *less = tt_hlo_select(b, first, y, x);
  tt_value *sum = tt_emit_log1p(b, tt_hlo_exponential(b, tt_hlo_subtract(b, less, greater)));
  sum = tt_hlo_add(b, greater, sum);
  results[0] = tt_hlo_select(b, tt_hlo_is_finite(b, greater), sum, greater);
}

void tt_lower_logcumsumexp(tt_lowering *l) {
  tt_value *x = tt_operand(l, 0);
  int dim = tt_wrap_dim(l, tt_int(l, 1), x->rank);
  tt_dtype dtype = x->dtype;
  if (tt_dtype_category(dtype) <= TT_CATEGORY_INTEGER)
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"logcumsumexp\" not implemented for '%s'", tt_dtype_text(dtype));
  if (tt_failed(l)) return;
  x = tt_hlo_convert(l->b, x, tt_compute_dtype(dtype));
  monoid m = {log_add_exp, NULL, tt_hlo_constant(l->b, x->dtype, -__builtin_inf()), tt_dtype_is_float(dtype)};
  tt_set_result(l, 0, tt_hlo_convert(l->b, scan(l->b, x, dim, &m), dtype));
}

// --- running extremes ------------------------------------------------------------------------------------------------

typedef struct extremes {
  tt_value *values, *indices; // NULL after a failure
} extremes;

// The index is that of the latest element that equals the running extreme: the running maximum of the positions that do.
static extremes running_extremes(tt_lowering *l, tt_reduction kind, int dim_arg) {
  tt_value *x = tt_operand(l, 0);
  int dim = tt_wrap_dim(l, tt_int(l, dim_arg), x->rank);
  tt_dtype dtype = x->dtype;
  if (tt_dtype_is_complex(dtype))
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"cummax and cummin\" not implemented for '%s'", tt_dtype_text(dtype));
  if (tt_failed(l)) return (extremes){NULL, NULL};
  if (x->rank == 0) return (extremes){x, tt_hlo_constant_i64(l->b, TT_S64, 0)};
  x = tt_computed_once(l->b, tt_hlo_convert(l->b, x, dtype == TT_BOOL ? TT_U8 : tt_compute_dtype(dtype)));
  tt_value *values = tt_scan(l->b, x, kind, dim);
  tt_value *position = tt_hlo_iota(l->b, tt_position_dtype(x->dims[dim]), x->rank, x->dims, dim);
  position = tt_hlo_select(l->b, tt_is_extreme(l->b, x, values), position, tt_hlo_constant_like(l->b, position, 0));
  return (extremes){tt_hlo_convert(l->b, values, dtype),
                    tt_hlo_convert(l->b, tt_scan(l->b, position, TT_REDUCE_MAX, dim), TT_S64)};
}

// (self, dim) -> (values, indices)
static void set_running_extremes(tt_lowering *l, tt_reduction kind) {
  extremes e = running_extremes(l, kind, 1);
  if (e.values == NULL) return;
  tt_set_result(l, 0, e.values);
  tt_set_result(l, 1, e.indices);
}

void tt_lower_cummax(tt_lowering *l) { set_running_extremes(l, TT_REDUCE_MAX); }
void tt_lower_cummin(tt_lowering *l) { set_running_extremes(l, TT_REDUCE_MIN); }

// (self, values, indices, dim) writes the middle two: what torch's out= variants call.
static void write_running_extremes(tt_lowering *l, tt_reduction kind) {
  extremes e = running_extremes(l, kind, 3);
  if (e.values == NULL) return;
  tt_write_operand(l, 1, e.values);
  tt_write_operand(l, 2, e.indices);
}

void tt_lower_cummax_helper(tt_lowering *l) { write_running_extremes(l, TT_REDUCE_MAX); }
void tt_lower_cummin_helper(tt_lowering *l) { write_running_extremes(l, TT_REDUCE_MIN); }
