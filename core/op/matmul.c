// matmul.c - products of matrices and vectors. How float32 is multiplied is decided in precision.c.
//
// `linear`, `matmul`, `outer`, `einsum` and their like are composites of these in torch.
#include <string.h>

#include "op/lowering.h"
#include "op/transcendental.h"

static const char *text(const tt_tensor *t) { return tt_dtype_text(t->dtype); }

static const char *sizes_text(tt_lowering *l, const tt_tensor *t) {
  return tt_shape_text(tt_builder_arena(l->b), t->rank, t->sizes);
}

static void check_same_dtype(tt_lowering *l, const char *x_name, const tt_tensor *x, const char *y_name,
                             const tt_tensor *y) {
  if (x->dtype != y->dtype)
    tt_fail(l, TT_INVALID_ARGUMENT, "%s and %s must have the same dtype, but got %s and %s", x_name, y_name, text(x),
            text(y));
}

// Tensor.expand's check: may `t` be broadcast to these sizes?
static void check_expands(tt_lowering *l, const tt_tensor *t, int rank, const int64_t *sizes) {
  tt_arena *arena = tt_builder_arena(l->b);
  for (int i = 0; i < t->rank; ++i) {
    int64_t size = t->sizes[t->rank - 1 - i], target = i < rank ? sizes[rank - 1 - i] : 0;
    if (i < rank && (size == target || size == 1)) continue;
    tt_fail(
        l, TT_INVALID_ARGUMENT,
        "The expanded size of the tensor (%lld) must match the existing size (%lld) at non-singleton dimension %d.  "
        "Target sizes: %s.  Tensor sizes: %s",
        (long long)target, (long long)size, rank - 1 - i, tt_shape_text(arena, rank, sizes), sizes_text(l, t));
    return;
  }
}

// --- beta * self + alpha * product --------------------------------------------------------------------------------------

// `product` has the dtype to compute in. beta 0 drops self, NaN and all, as BLAS does.
static tt_value *scale_and_add(tt_lowering *l, int self, int beta, int alpha, tt_value *product) {
  tt_builder *b = l->b;
  if (!tt_number_is_one(l, alpha)) product = tt_mul(l, product, tt_fitting_operand_as(l, alpha, product->dtype));
  tt_value *added = tt_operand_as(l, self, product->dtype);
  if (!tt_number_is_one(l, beta)) {
    tt_value *factor = tt_fitting_operand_as(l, beta, product->dtype);
    tt_value *dropped = tt_hlo_compare(b, TT_EQ, factor, tt_hlo_constant(b, product->dtype, 0));
    added = tt_hlo_select(b, tt_hlo_broadcast_like(b, dropped, added), tt_hlo_constant_like(b, added, 0),
                          tt_mul(l, added, factor));
  }
  return tt_hlo_add(b, tt_hlo_broadcast_like(b, added, product), product);
}

static tt_value *matrix_product(tt_lowering *l, int left, int right, tt_dtype result) {
  tt_value *x = tt_operand(l, left), *y = tt_operand(l, right);
  return x->rank == 2 ? tt_matmul_2d(l, x, y, result) : tt_matmul_3d(l, x, y, result);
}

// --- mm, bmm, addmm, baddbmm ------------------------------------------------------------------------------------------------

// The `.dtype` overloads say in which dtype the result is wanted; torch has shape checks for them on CUDA only.
static tt_dtype out_dtype(tt_lowering *l, int left, int arg) {
  tt_dtype dtype = tt_tensor_arg(l, left)->dtype, wanted = tt_dtype_arg(l, arg, dtype);
  if (wanted != dtype && !(wanted == TT_F32 && (dtype == TT_F16 || dtype == TT_BF16)))
    tt_fail(l, TT_INVALID_ARGUMENT, "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs");
  return wanted;
}

static bool has_out_dtype(const tt_lowering *l) { return strchr(l->op->name, '.') != NULL; }

static void check_matrices(tt_lowering *l, const tt_tensor *x, const tt_tensor *y) {
  if (x->rank < 2 || x->rank != y->rank) {
    tt_fail(l, TT_INVALID_ARGUMENT, "batch1 and batch2 must be matrices, got %d-D and %d-D tensors", x->rank, y->rank);
  } else if (x->rank == 2 && x->sizes[1] != y->sizes[0]) {
    tt_fail(l, TT_INVALID_ARGUMENT, "mat1 and mat2 shapes cannot be multiplied (%lldx%lld and %lldx%lld)",
            (long long)x->sizes[0], (long long)x->sizes[1], (long long)y->sizes[0], (long long)y->sizes[1]);
  } else if (x->rank == 3 && (x->sizes[0] != y->sizes[0] || x->sizes[2] != y->sizes[1])) {
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Expected size for first two dimensions of batch2 tensor to be: [%lld, %lld] but got: [%lld, %lld].",
            (long long)x->sizes[0], (long long)x->sizes[2], (long long)y->sizes[0], (long long)y->sizes[1]);
  }
}

void tt_lower_mm(tt_lowering *l) {
  const tt_tensor *x = tt_tensor_arg(l, 0), *y = tt_tensor_arg(l, 1);
  check_matrices(l, x, y);
  if (x->dtype != y->dtype && x->rank == 2)
    tt_fail(l, TT_INVALID_ARGUMENT, "expected m1 and m2 to have the same dtype, but got: %s != %s",
            tt_dtype_type_name(x->dtype), tt_dtype_type_name(y->dtype));
  else if (x->dtype != y->dtype)
    tt_fail(l, TT_INVALID_ARGUMENT, "expected scalar type %s but found %s", text(x), text(y));
  if (tt_failed(l)) return;
  tt_set_result(l, 0, matrix_product(l, 0, 1, has_out_dtype(l) ? out_dtype(l, 0, 2) : x->dtype));
}

// self + mat1 @ mat2 of args 0, 1, 2, in the dtype to compute in; beta and alpha are args `beta` and `beta` + 1.
static tt_value *add_product(tt_lowering *l, int beta) {
  const tt_tensor *self = tt_tensor_arg(l, 0), *x = tt_tensor_arg(l, 1), *y = tt_tensor_arg(l, 2);
  check_matrices(l, x, y);
  if (x->rank == 2) {
    check_same_dtype(l, "mat1", x, "mat2", y);
    check_same_dtype(l, "self", self, "mat2", y);
  } else if (x->dtype != y->dtype || self->dtype != x->dtype) {
    tt_fail(l, TT_INVALID_ARGUMENT, "Input dtypes must be the same, got: input %s, batch1: %s, batch2: %s",
            tt_dtype_type_name(self->dtype), tt_dtype_type_name(x->dtype), tt_dtype_type_name(y->dtype));
  }
  if (tt_failed(l)) return tt_hlo_constant(l->b, TT_F32, 0);
  return scale_and_add(l, 0, beta, beta + 1, matrix_product(l, 1, 2, tt_compute_dtype(x->dtype)));
}

void tt_lower_addmm(tt_lowering *l) {
  tt_value *sum = add_product(l, has_out_dtype(l) ? 4 : 3);
  if (tt_failed(l)) return;
  tt_set_result(l, 0, tt_hlo_convert(l->b, sum, has_out_dtype(l) ? out_dtype(l, 1, 3) : tt_tensor_arg(l, 1)->dtype));
}

void tt_lower_addmm_activation(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *x = add_product(l, 3);
  if (tt_bool(l, 5)) { // x * Phi(x)
    tt_value *erf = tt_emit_erf(b, tt_mul(l, x, tt_hlo_constant(b, x->dtype, 0.70710678118654752440)));
    x = tt_mul(l, tt_mul(l, x, tt_hlo_constant(b, x->dtype, 0.5)), tt_add(l, erf, tt_hlo_constant(b, x->dtype, 1)));
  } else {
    x = tt_hlo_maximum(b, x, tt_hlo_constant_like(b, x, 0));
  }
  tt_set_result(l, 0, x);
}

// The batches are contracted together with the inner dimension, so their sum is never rounded in between.
void tt_lower_addbmm(tt_lowering *l) {
  const tt_tensor *self = tt_tensor_arg(l, 0), *x = tt_tensor_arg(l, 1), *y = tt_tensor_arg(l, 2);
  if (x->rank != 3 || y->rank != 3) {
    tt_fail(l, TT_INVALID_ARGUMENT, "%s must be a 3D tensor", x->rank != 3 ? "batch1" : "batch2");
    return;
  }
  if (x->sizes[0] != y->sizes[0])
    tt_fail(l, TT_INVALID_ARGUMENT, "batch1 and batch2 must have same number of batches, got %lld and %lld",
            (long long)x->sizes[0], (long long)y->sizes[0]);
  if (x->sizes[2] != y->sizes[1])
    tt_fail(l, TT_INVALID_ARGUMENT, "Incompatible matrix sizes for bmm (%lldx%lld and %lldx%lld)",
            (long long)x->sizes[1], (long long)x->sizes[2], (long long)y->sizes[1], (long long)y->sizes[2]);
  check_expands(l, self, 2, (int64_t[]){x->sizes[1], y->sizes[2]});
  check_same_dtype(l, "self", self, "mat2", y);
  check_same_dtype(l, "mat1", x, "mat2", y);
  if (tt_failed(l)) return;
  const tt_dot numbers = {.contract_count = 2, .lhs_contract = (int[]){0, 2}, .rhs_contract = (int[]){0, 1}};
  tt_value *product = tt_dot_product(l, tt_operand(l, 1), tt_operand(l, 2), &numbers, tt_compute_dtype(x->dtype));
  tt_set_result(l, 0, tt_hlo_convert(l->b, scale_and_add(l, 0, 3, 4, product), self->dtype));
}

// --- vectors ---------------------------------------------------------------------------------------------------------------

static tt_value *matrix_vector(tt_lowering *l, int matrix, int vector, tt_dtype result) {
  return tt_dot_product(l, tt_operand(l, matrix), tt_operand(l, vector),
                        &(tt_dot){.contract_count = 1, .lhs_contract = (int[]){1}, .rhs_contract = (int[]){0}}, result);
}

void tt_lower_addmv(tt_lowering *l) {
  tt_value *product = matrix_vector(l, 1, 2, tt_compute_dtype(tt_tensor_arg(l, 1)->dtype));
  tt_set_result(l, 0, scale_and_add(l, 0, 3, 4, product));
}

// torch makes mv out of addmv with the result in self's place, and words its errors so.
void tt_lower_mv(tt_lowering *l) {
  const tt_tensor *matrix = tt_tensor_arg(l, 0), *vector = tt_tensor_arg(l, 1);
  if (matrix->rank != 2 || vector->rank != 1)
    tt_fail(l, TT_INVALID_ARGUMENT, "vector + matrix @ vector expected, got 1, %d, %d", matrix->rank, vector->rank);
  else if (matrix->sizes[1] != vector->sizes[0])
    tt_fail(l, TT_INVALID_ARGUMENT, "size mismatch, got input (%lld), mat (%lldx%lld), vec (%lld)",
            (long long)matrix->sizes[0], (long long)matrix->sizes[0], (long long)matrix->sizes[1],
            (long long)vector->sizes[0]);
  else if (matrix->dtype != vector->dtype)
    tt_fail(l, TT_INVALID_ARGUMENT, "addmv input tensors must have the same dtype, but got %s, %s, and %s",
            text(vector), text(matrix), text(vector));
  if (tt_failed(l)) return;
  tt_set_result(l, 0, matrix_vector(l, 0, 1, vector->dtype));
}

static void lower_vector_product(tt_lowering *l, bool conjugate) {
  const tt_tensor *x = tt_tensor_arg(l, 0), *y = tt_tensor_arg(l, 1);
  if (x->rank != 1 || y->rank != 1)
    tt_fail(l, TT_INVALID_ARGUMENT, "1D tensors expected, but got %dD and %dD tensors", x->rank, y->rank);
  else if (x->dtype != y->dtype)
    tt_fail(l, TT_INVALID_ARGUMENT, "dot : expected both vectors to have same dtype, but found %s and %s", text(x),
            text(y));
  else if (x->sizes[0] != y->sizes[0])
    tt_fail(
        l, TT_INVALID_ARGUMENT,
        "inconsistent tensor size, expected tensor %s and src %s to have the same number of elements, but got %lld and "
        "%lld elements respectively",
        sizes_text(l, x), sizes_text(l, y), (long long)x->sizes[0], (long long)y->sizes[0]);
  if (tt_failed(l)) return;
  tt_value *left = tt_operand(l, 0);
  if (conjugate && tt_dtype_is_complex(x->dtype)) left = tt_hlo_conj(l->b, left);
  const int contract[] = {0};
  const tt_dot numbers = {.contract_count = 1, .lhs_contract = contract, .rhs_contract = contract};
  tt_set_result(l, 0, tt_dot_product(l, left, tt_operand(l, 1), &numbers, x->dtype));
}

void tt_lower_dot(tt_lowering *l) { lower_vector_product(l, false); }
void tt_lower_vdot(tt_lowering *l) { lower_vector_product(l, true); }

static void check_addr_number(tt_lowering *l, int arg, const char *name, tt_dtype dtype) {
  tt_dtype number = tt_number_dtype(l, arg);
  if (number == TT_BOOL && dtype != TT_BOOL)
    tt_fail(l, TT_INVALID_ARGUMENT, "Boolean %s only supported for Boolean results.", name);
  bool integral = dtype == TT_BOOL || tt_dtype_is_integral(dtype);
  if (integral && (tt_dtype_is_float(number) || tt_dtype_is_complex(number)))
    tt_fail(l, TT_INVALID_ARGUMENT, "For integral input tensors, argument %s must not be a floating point number.",
            name);
}

// An outer product is elementwise, so float32 is exact; for bool the sum is `or` and the product is `and`.
void tt_lower_addr(tt_lowering *l) {
  const tt_tensor *x = tt_tensor_arg(l, 1), *y = tt_tensor_arg(l, 2);
  if (x->rank != 1 || y->rank != 1) {
    tt_fail(l, TT_INVALID_ARGUMENT, "addr: Expected 1-D argument %s, but got %d-D", x->rank != 1 ? "vec1" : "vec2",
            x->rank != 1 ? x->rank : y->rank);
    return;
  }
  tt_dtype dtype = tt_promote(l, (int[]){0, 1, 2}, 3), compute = tt_compute_dtype(dtype);
  int64_t dims[] = {x->sizes[0], y->sizes[0]};
  check_expands(l, tt_tensor_arg(l, 0), 2, dims);
  check_addr_number(l, 3, "beta", dtype);
  check_addr_number(l, 4, "alpha", dtype);
  if (tt_failed(l)) return;
  tt_value *column = tt_hlo_broadcast_in_dim(l->b, tt_operand_as(l, 1, compute), 2, dims, (int[]){0});
  tt_value *row = tt_hlo_broadcast_in_dim(l->b, tt_operand_as(l, 2, compute), 2, dims, (int[]){1});
  tt_value *sum = scale_and_add(l, 0, 3, 4, tt_hlo_multiply(l->b, column, row));
  tt_set_result(l, 0, tt_hlo_convert(l->b, sum, dtype));
  tt_set_order_of_iterator(l, 0, 1, (const tt_tensor *[]){tt_tensor_arg(l, 0)});
}

// --- 8-bit operands -----------------------------------------------------------------------------------------------------------

void tt_lower_int_mm(tt_lowering *l) {
  const tt_tensor *x = tt_tensor_arg(l, 0), *y = tt_tensor_arg(l, 1);
  if (x->rank != 2 || y->rank != 2)
    tt_fail(l, TT_INVALID_ARGUMENT, "int_mm_out_cpu: Expected %s to be of dimension 2 but got %d",
            x->rank != 2 ? "self" : "mat2", x->rank != 2 ? x->rank : y->rank);
  else if (x->sizes[1] != y->sizes[0])
    tt_fail(l, TT_INVALID_ARGUMENT, "int_mm_out_cpu: self.size(1) needs to match mat2.size(0) but got %lld and %lld",
            (long long)x->sizes[1], (long long)y->sizes[0]);
  else if (x->dtype != TT_S8 && x->dtype != TT_U8)
    tt_fail(l, TT_INVALID_ARGUMENT, "int_mm_out_cpu: Expected self dtype to be int8 or uint8 but got %s",
            tt_dtype_type_name(x->dtype));
  else if (y->dtype != TT_S8)
    tt_fail(l, TT_INVALID_ARGUMENT, "int_mm_out_cpu: Expected mat2 dtype to be int8 but got %s",
            tt_dtype_type_name(y->dtype));
  if (tt_failed(l)) return;
  tt_set_result(l, 0, tt_matmul_2d(l, tt_operand(l, 0), tt_operand(l, 1), TT_S32));
}

static bool is_f8(const tt_tensor *t) { return tt_dtype_is_narrow_float(t->dtype) && tt_dtype_size(t->dtype) == 1; }

// Is the scale one number, or one per row (column) of a matrix [rows, columns]?
static bool is_scale(const tt_tensor *t, int64_t rows, int64_t columns) {
  int64_t count = 1;
  for (int i = 0; i < t->rank; ++i) count *= t->sizes[i];
  return t->dtype == TT_F32 && (count == 1 || (t->rank == 2 && t->sizes[0] == rows && t->sizes[1] == columns));
}

static tt_value *scale(tt_lowering *l, int arg, tt_value *x) {
  tt_value *factor = tt_operand_as(l, arg, TT_F32);
  return tt_mul(l, x, tt_value_count(factor) == 1 ? tt_hlo_reshape(l->b, factor, 0, NULL) : factor);
}

// (self, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum). Products of 8-bit floats are exact in float32.
void tt_lower_scaled_mm(tt_lowering *l) {
  const tt_tensor *x = tt_tensor_arg(l, 0), *y = tt_tensor_arg(l, 1);
  if (x->rank != 2 || y->rank != 2 || x->sizes[1] != y->sizes[0])
    tt_fail(l, TT_INVALID_ARGUMENT, "mat_a and mat_b shapes cannot be multiplied (%s and %s)", sizes_text(l, x),
            sizes_text(l, y));
  else if (!is_f8(x) || !is_f8(y) || !is_scale(tt_tensor_arg(l, 2), x->sizes[0], 1) ||
           !is_scale(tt_tensor_arg(l, 3), 1, y->sizes[1]))
    tt_fail(l, TT_VALUE,
            "Invalid scaling configuration.\n- For TensorWise scaling, a and b should be float8, scales should be "
            "float and "
            "singletons.\n- For RowWise scaling, a and b should be float8, scales should be float, scale_a should be "
            "(%lld, 1) "
            "and scale_b should be (1, %lld).",
            (long long)x->sizes[0], (long long)y->sizes[1]);
  if (tt_failed(l)) return;
  tt_dtype dtype = tt_dtype_arg(l, 6, x->dtype);
  tt_value *product = tt_matmul_2d(l, tt_operand(l, 0), tt_operand(l, 1), TT_F32);
  product = scale(l, 3, scale(l, 2, product));
  if (tt_has(l, 4)) product = tt_add(l, product, tt_operand_as(l, 4, TT_F32));
  if (tt_has(l, 5) && tt_has(l, 6) && tt_dtype_size(dtype) == 1)
    product = tt_div(l, product, tt_operand_as(l, 5, TT_F32));
  tt_set_result(l, 0, tt_hlo_convert(l->b, product, dtype));
}
