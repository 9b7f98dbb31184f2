// distance.c - distances between rows: cdist, pdist, the matmul form of the Euclidean one, and cross products.
//
// A distance matrix is one fused subtraction and reduction over [..., rows, rows, columns], which XLA never stores.
#include <math.h>

#include "op/shape.h"

// x[..., r, c] with a new dim for the other rows, behind r (`first`) or in front of it, broadcast to `dims`.
static tt_value *spread(tt_builder *b, tt_value *x, bool first, int rank, const int64_t *dims) {
  return tt_hlo_broadcast_to(b, tt_hlo_unsqueeze_dim(b, x, first ? x->rank - 1 : x->rank - 2), rank, dims);
}

typedef struct pair { // two sets of rows and the shape [batch..., rows of x, rows of y, columns]
  tt_value *x, *y;
  int rank;
  int64_t dims[TT_INDEX_MAX_DIMS];
} pair;

static bool broadcast_batch(tt_lowering *l, pair *p) {
  int rx = p->x->rank - 2, ry = p->y->rank - 2, batch = rx > ry ? rx : ry;
  if (rx < 0 || ry < 0) {
    tt_fail(l, TT_MISMATCH, "rows of tensors of %d and %d dims", rx + 2, ry + 2);
    return false;
  }
  p->rank = batch + 3;
  for (int i = 0; i < batch; ++i) {
    int64_t a = i - (batch - rx) < 0 ? 1 : p->x->dims[i - (batch - rx)],
            c = i - (batch - ry) < 0 ? 1 : p->y->dims[i - (batch - ry)];
    if (a != c && a != 1 && c != 1) {
      tt_fail(l, TT_INVALID_ARGUMENT,
              "The size of tensor a (%lld) must match the size of tensor b (%lld) at non-singleton dimension %d",
              (long long)a, (long long)c, i);
      return false;
    }
    p->dims[i] = a == 1 ? c : a;
  }
  p->dims[batch] = p->x->dims[rx];
  p->dims[batch + 1] = p->y->dims[ry];
  p->dims[batch + 2] = p->x->dims[rx + 1];
  return true;
}

static tt_value *differences(tt_builder *b, const pair *p) {
  return tt_hlo_subtract(b, spread(b, p->x, true, p->rank, p->dims), spread(b, p->y, false, p->rank, p->dims));
}

static tt_value *power(tt_builder *b, tt_value *x, double exponent) {
  return tt_hlo_power(b, x, tt_hlo_constant_like(b, x, exponent));
}

// The p-norm over the last dim.
static tt_value *norm(tt_builder *b, tt_value *x, double p) {
  int last = x->rank - 1;
  tt_value *size = tt_hlo_abs(b, x);
  if (isinf(p)) { // of nothing, the distance is 0
    tt_value *greatest = tt_hlo_reduce(b, size, TT_REDUCE_MAX, 1, &last);
    return x->dims[last] > 0 ? greatest : tt_hlo_constant_like(b, greatest, 0);
  }
  if (p == 0)
    size = tt_hlo_convert(b, tt_hlo_compare(b, TT_NE, x, tt_hlo_constant_like(b, x, 0)), x->dtype);
  else if (p == 2)
    size = tt_hlo_multiply(b, x, x);
  else if (p != 1)
    size = power(b, size, p);
  tt_value *sum = tt_hlo_reduce(b, size, TT_REDUCE_ADD, 1, &last);
  if (p == 0 || p == 1) return sum;
  return p == 2 ? tt_hlo_sqrt(b, sum) : power(b, sum, 1 / p);
}

// d distance / d difference, times grad: `distance` and `grad` broadcast to `difference`. Where torch's kernels avoid 0 / 0,
// the gradient is 0.
static tt_value *norm_gradient(tt_builder *b, tt_value *difference, tt_value *grad, tt_value *distance, double p) {
  tt_value *zero = tt_hlo_constant_like(b, difference, 0), *size = tt_hlo_abs(b, difference),
           *sign = tt_hlo_sign(b, difference);
  if (p == 0) return zero;
  if (p == 1) return tt_hlo_multiply(b, grad, sign);
  if (isinf(p)) return tt_hlo_select(b, tt_hlo_compare(b, TT_EQ, size, distance), tt_hlo_multiply(b, grad, sign), zero);
  tt_value *flat = tt_hlo_compare(b, TT_EQ, distance, zero), *slope;
  if (p == 2) {
    slope = tt_hlo_divide(b, tt_hlo_multiply(b, grad, difference), distance);
  } else {
    // |d|^(p-1) sign(d) and, above 2, d |d|^(p-2), as torch writes them: they differ in how they overflow.
    tt_value *steep =
        p < 2 ? tt_hlo_multiply(b, sign, power(b, size, p - 1)) : tt_hlo_multiply(b, difference, power(b, size, p - 2));
    slope = tt_hlo_divide(b, tt_hlo_multiply(b, steep, grad), power(b, distance, p - 1));
  }
  if (p < 1) flat = tt_hlo_or(b, flat, tt_hlo_compare(b, TT_EQ, difference, zero));
  return tt_hlo_select(b, flat, zero, slope);
}

// --- cdist --------------------------------------------------------------------------------------------------------------------

static bool check_cdist(tt_lowering *l) {
  const tt_tensor *x = tt_tensor_arg(l, 0), *y = tt_tensor_arg(l, 1);
  if (!x || !y) return false;
  double p = tt_double(l, 2);
  int64_t mode = tt_int_or(l, 3, 0);
  if (x->rank < 2)
    tt_fail(l, TT_INVALID_ARGUMENT, "cdist only supports at least 2D tensors, X1 got: %dD", x->rank);
  else if (y->rank < 2)
    tt_fail(l, TT_INVALID_ARGUMENT, "cdist only supports at least 2D tensors, X2 got: %dD", y->rank);
  else if (x->sizes[x->rank - 1] != y->sizes[y->rank - 1])
    tt_fail(l, TT_INVALID_ARGUMENT, "X1 and X2 must have the same number of columns. X1: %lld X2: %lld",
            (long long)x->sizes[x->rank - 1], (long long)y->sizes[y->rank - 1]);
  else if (!tt_dtype_is_float(x->dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "cdist only supports floating-point dtypes, X1 got: %s", tt_dtype_text(x->dtype));
  else if (!tt_dtype_is_float(y->dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "cdist only supports floating-point dtypes, X2 got: %s", tt_dtype_text(y->dtype));
  else if (!(p >= 0))
    tt_fail(l, TT_INVALID_ARGUMENT, "cdist only supports non-negative p values");
  else if (mode < 0 || mode > 2)
    tt_fail(l, TT_INVALID_ARGUMENT, "possible modes: 0, 1, 2, but was: %lld", (long long)mode);
  else if (x->dtype != y->dtype)
    tt_fail(l, TT_INVALID_ARGUMENT, "expected scalar type %s but found %s", tt_dtype_text(x->dtype),
            tt_dtype_text(y->dtype));
  return !tt_failed(l);
}

void tt_lower_cdist_forward(tt_lowering *l) {
  if (!check_cdist(l)) return;
  tt_dtype dtype = tt_tensor_arg(l, 0)->dtype, compute = tt_compute_dtype(dtype);
  pair p = {.x = tt_operand_as(l, 0, compute), .y = tt_operand_as(l, 1, compute)};
  if (broadcast_batch(l, &p))
    tt_set_result(l, 0, tt_hlo_convert(l->b, norm(l->b, differences(l->b, &p), tt_double(l, 2)), dtype));
}

// The gradient of x's rows, [batch..., rows of x, columns]; torch sums over what broadcasting added.
static tt_value *rows_gradient(tt_builder *b, const pair *p, tt_value *grad, tt_value *distance, double exponent) {
  int other = p->rank - 2, map[TT_INDEX_MAX_DIMS];
  for (int i = 0; i < p->rank - 1; ++i) map[i] = i; // grad and distance lack the columns
  grad = tt_hlo_broadcast_in_dim(b, grad, p->rank, p->dims, map);
  distance = tt_hlo_broadcast_in_dim(b, distance, p->rank, p->dims, map);
  return tt_hlo_reduce(b, norm_gradient(b, differences(b, p), grad, distance, exponent), TT_REDUCE_ADD, 1, &other);
}

void tt_lower_cdist_backward(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_dtype dtype = tt_tensor_arg(l, 1)->dtype, compute = tt_compute_dtype(dtype);
  pair p = {.x = tt_operand_as(l, 1, compute), .y = tt_operand_as(l, 2, compute)};
  if (!broadcast_batch(l, &p)) return;
  int64_t count = 1;
  for (int i = 0; i < p.rank; ++i) count *= p.dims[i];
  tt_value *grad = tt_operand_as(l, 0, compute), *distance = tt_operand_as(l, 4, compute);
  tt_value *result =
      count > 0 ? rows_gradient(b, &p, grad, distance, tt_double(l, 3)) : tt_hlo_constant_like(b, p.x, 0);
  tt_set_result(l, 0, tt_hlo_convert(b, result, dtype));
}

// |x|^2 + |y|^2 - 2 x.y by one matmul. It cancels where rows are close, so it is made in full precision whatever the setting
// for other matmuls.
void tt_lower_euclidean_dist(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_dtype dtype = tt_tensor_arg(l, 0)->dtype, compute = tt_compute_dtype(dtype);
  pair p = {.x = tt_operand_as(l, 0, compute), .y = tt_operand_as(l, 1, compute)};
  if (!broadcast_batch(l, &p)) return;
  int batch = p.rank - 3, last = batch + 1, batch_dims[TT_INDEX_MAX_DIMS];
  int64_t square[TT_INDEX_MAX_DIMS], rows[TT_INDEX_MAX_DIMS];
  for (int i = 0; i < batch; ++i) {
    square[i] = rows[i] = p.dims[i];
    batch_dims[i] = i;
  }
  square[batch] = rows[batch] = p.dims[batch];
  square[last] = p.dims[batch + 1];
  rows[last] = p.dims[batch + 2];
  tt_value *x = tt_hlo_broadcast_to(b, p.x, last + 1, rows);
  rows[batch] = p.dims[batch + 1];
  tt_value *y = tt_hlo_broadcast_to(b, p.y, last + 1, rows);
  tt_value *xx = tt_hlo_reduce(b, tt_hlo_multiply(b, x, x), TT_REDUCE_ADD, 1, &last);
  tt_value *yy = tt_hlo_reduce(b, tt_hlo_multiply(b, y, y), TT_REDUCE_ADD, 1, &last);
  tt_dot numbers = {.batch_count = batch,
                    .lhs_batch = batch_dims,
                    .rhs_batch = batch_dims,
                    .contract_count = 1,
                    .lhs_contract = &last,
                    .rhs_contract = &last};
  tt_value *dots = tt_hlo_dot_general(b, x, y, &numbers, compute, TT_PRECISION_HIGHEST);
  tt_value *sums = tt_hlo_add(b, tt_hlo_broadcast_to(b, tt_hlo_unsqueeze_dim(b, xx, last), last + 1, square),
                              tt_hlo_broadcast_to(b, tt_hlo_unsqueeze_dim(b, yy, batch), last + 1, square));
  tt_value *squares = tt_hlo_subtract(b, sums, tt_hlo_multiply(b, dots, tt_hlo_constant_like(b, dots, 2)));
  squares = tt_hlo_maximum(b, squares, tt_hlo_constant_like(b, squares, 0));
  tt_set_result(l, 0, tt_hlo_convert(b, tt_hlo_sqrt(b, squares), dtype));
}

// --- pdist --------------------------------------------------------------------------------------------------------------------

void tt_lower_pdist_forward(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0), *i, *j;
  int64_t n = x->dims[0], count = n > 1 ? n * (n - 1) / 2 : 0;
  tt_value *none = tt_hlo_splat(b, x->dtype, 1, &count, 0);
  if (tt_value_count(x) == 0 || count == 0) { // rows without columns are all the same
    tt_set_result(l, 0, none);
    return;
  }
  tt_value *rows = tt_hlo_convert(b, x, tt_compute_dtype(x->dtype));
  tt_triangle_positions(b, n, n, 1, true, &i, &j);
  tt_value *difference = tt_hlo_subtract(b, tt_take_rows(b, rows, 0, i), tt_take_rows(b, rows, 0, j));
  tt_set_result(l, 0, tt_hlo_convert(b, norm(b, difference, tt_double(l, 1)), x->dtype));
}

// The condensed values of the pairs i < j as a symmetric [n, n] matrix with zeros on its diagonal.
static tt_value *square_form(tt_builder *b, tt_value *condensed, int64_t n) {
  int64_t dims[] = {n, n};
  tt_dtype dtype = n < 32768 ? TT_S32 : TT_S64; // the positions are computed as products of n
  tt_value *r = tt_hlo_iota(b, dtype, 2, dims, 0), *c = tt_hlo_iota(b, dtype, 2, dims, 1);
  tt_value *i = tt_hlo_minimum(b, r, c), *j = tt_hlo_maximum(b, r, c);
  // i * (2n - i - 1) / 2 + j - i - 1
  tt_value *begin = tt_hlo_multiply(b, i, tt_hlo_subtract(b, tt_hlo_constant_like(b, i, 2 * (double)n - 1), i));
  begin = tt_hlo_divide(b, begin, tt_hlo_constant_like(b, i, 2));
  tt_value *at = tt_hlo_add(b, begin, tt_hlo_subtract(b, tt_hlo_subtract(b, j, i), tt_hlo_constant_like(b, i, 1)));
  tt_value *full = tt_take_rows(b, condensed, 0, at);
  return tt_hlo_select(b, tt_hlo_compare(b, TT_EQ, r, c), tt_hlo_constant_like(b, full, 0), full);
}

void tt_lower_pdist_backward(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 1), *result = tt_hlo_constant_like(b, x, 0);
  tt_dtype compute = tt_compute_dtype(x->dtype);
  int64_t n = x->dims[0];
  if (n > 1 && tt_value_count(x) > 0) { // one row has no distances, and a gradient of 0
    tt_value *grad = square_form(b, tt_operand_as(l, 0, compute), n),
             *distance = square_form(b, tt_operand_as(l, 3, compute), n);
    tt_value *rows = tt_hlo_convert(b, x, compute);
    pair p = {.x = rows, .y = rows, .rank = 3, .dims = {n, n, x->dims[1]}};
    result = tt_hlo_convert(b, rows_gradient(b, &p, grad, distance, tt_double(l, 2)), x->dtype);
  }
  tt_set_result(l, 0, result);
}

// --- cross ----------------------------------------------------------------------------------------------------------------------

// The three elements of `dim` in the order start, start + 1, start + 2 (mod 3).
static tt_value *turned(tt_builder *b, tt_value *x, int dim, int start) {
  tt_value *parts[] = {tt_hlo_slice_dim(b, x, dim, start, 3, 1), tt_hlo_slice_dim(b, x, dim, 0, start, 1)};
  return tt_hlo_concatenate(b, 2, parts, dim);
}

void tt_lower_linalg_cross(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_dtype dtype = tt_output_dtype(l, 0, tt_promote(l, (int[]){0, 1}, 2)), compute = tt_compute_dtype(dtype);
  tt_value *x = tt_operand_as(l, 0, compute), *y = tt_operand_as(l, 1, compute);
  tt_hlo_broadcast_both(b, &x, &y);
  int dim = tt_wrap_dim(l, tt_int(l, 2), x->rank);
  if (tt_failed(l)) return;
  tt_value *plus = tt_hlo_multiply(b, turned(b, x, dim, 1), turned(b, y, dim, 2));
  tt_value *minus = tt_hlo_multiply(b, turned(b, x, dim, 2), turned(b, y, dim, 1));
  tt_set_result(l, 0, tt_hlo_convert(b, tt_hlo_subtract(b, plus, minus), dtype));
}
