// pointwise.c - the driver of elementwise ops; see pointwise.h.
#include "op/pointwise.h"

#include <string.h>

static const int first_args[TT_POINTWISE_OPERANDS] = {0, 1, 2, 3, 4};

// --- lists ----------------------------------------------------------------------------------------------------------------

static bool is_number_list(const tt_arg *a) { return a->count > 0 && a->u.items[0].kind != TT_ARG_TENSOR; }

// Words of torch's check_foreach_api_restrictions.
static void check_list(tt_lowering *l, const tt_arg *a, int items) {
  if (a->count == items) return;
  if (is_number_list(a))
    tt_fail(l, TT_INVALID_ARGUMENT, "Tensor list must have same number of elements as scalar list.");
  else
    tt_fail(l, TT_INVALID_ARGUMENT, "Tensor lists must have the same number of tensors, got %d and %d", items,
            a->count);
}

// One tensor beside lists stands for a number.
static void check_beside_list(tt_lowering *l, int arg) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  if (!t || t->rank == 0) return;
  int64_t count = 1;
  for (int i = 0; i < t->rank; ++i) count *= t->sizes[i];
  tt_fail(l, TT_INVALID_ARGUMENT, "scalar tensor expected to be 0 dim but it has %d dimensions and %lld elements.",
          t->rank, (long long)count);
}

int tt_pointwise_items(tt_lowering *l) {
  int items = -1;
  for (int i = 0; i < l->arg_count; ++i) {
    const tt_arg *a = &l->args[i];
    if (a->kind != TT_ARG_LIST) continue;
    if (a->count == 0) tt_fail(l, TT_INVALID_ARGUMENT, "Tensor list must have at least one tensor.");
    if (items < 0) items = a->count;
    check_list(l, a, items);
  }
  if (items < 0) return 1;
  for (int i = 0; i < l->arg_count; ++i) check_beside_list(l, i);
  return tt_failed(l) ? 0 : items;
}

static tt_value *operand(tt_lowering *l, int arg, int item, tt_dtype dtype) {
  if (arg >= l->arg_count || l->args[arg].kind != TT_ARG_LIST) return tt_operand_as(l, arg, dtype);
  if (is_number_list(&l->args[arg])) return tt_list_number(l, arg, item, dtype);
  return tt_list_operand_as(l, arg, item, dtype);
}

static const tt_tensor *tensor_of(const tt_lowering *l, int arg, int item) {
  if (arg >= l->arg_count) return NULL;
  return l->args[arg].kind == TT_ARG_LIST ? tt_list_tensor(l, arg, item) : tt_tensor_arg(l, arg);
}

// --- operands -------------------------------------------------------------------------------------------------------------

// "floor_divide" of "floor_divide.Scalar".
static int base_name_length(const char *name) { return (int)strcspn(name, "."); }

static void check_dtype(tt_pointwise *p) {
  const char *name = p->l->op->name;
  uint32_t refused = TT_OP_NO_BOOL << tt_dtype_category(p->common);
  if (p->l->op->flags & refused)
    tt_fail(p->l, TT_NOT_IMPLEMENTED, "\"%.*s\" not implemented for '%s'", base_name_length(name), name,
            tt_dtype_text(p->common));
}

// Merges x's sizes into dims, aligned at the last dimension.
static void merge_shape(tt_pointwise *p, const tt_value *x, int rank, int64_t *dims) {
  for (int i = 0; i < x->rank; ++i) {
    int64_t *dim = &dims[rank - x->rank + i];
    if (*dim == 1) *dim = x->dims[i];
    if (x->dims[i] != 1 && x->dims[i] != *dim)
      tt_fail(p->l, TT_INVALID_ARGUMENT,
              "The size of tensor a (%lld) must match the size of tensor b (%lld) at non-singleton dimension %d",
              (long long)*dim, (long long)x->dims[i], rank - x->rank + i);
  }
}

static void broadcast(tt_pointwise *p) {
  int64_t dims[64]; // torch's own limit of dimensions
  int rank = 0;
  for (int i = 0; i < p->count; ++i) rank = p->x[i]->rank > rank ? p->x[i]->rank : rank;
  if (rank > 64) return;
  for (int i = 0; i < rank; ++i) dims[i] = 1;
  for (int i = 0; i < p->count; ++i) merge_shape(p, p->x[i], rank, dims);
  for (int i = 0; i < p->count; ++i) p->x[i] = tt_hlo_broadcast_to(p->b, p->x[i], rank, dims);
}

tt_pointwise tt_pointwise_begin(tt_lowering *l, int item, int count, const int *args) {
  uint32_t flags = l->op->flags;
  tt_pointwise p = {
      .l = l, .b = l->b, .item = item, .count = count, .arg_count = count, .args = args ? args : first_args};
  p.common = tt_promote_item(l, p.args, count, item);
  check_dtype(&p);
  if (tt_failed(l)) p.common = TT_F32; // harmless from here on
  if (flags & TT_OP_INT_TO_FLOAT) p.common = tt_float_dtype(l, p.common);
  p.compute = flags & TT_OP_NO_WIDEN ? p.common : tt_compute_dtype(p.common);
  for (int i = 0; i < count; ++i) {
    p.x[i] = tt_failed(l) ? tt_hlo_constant(l->b, p.compute, 0) : operand(l, p.args[i], item, p.compute);
    p.tensors[i] = tensor_of(l, p.args[i], item);
  }
  broadcast(&p);
  return p;
}

tt_value *tt_pointwise_append(tt_pointwise *p, int arg, tt_dtype dtype) {
  p->tensors[p->count] = tensor_of(p->l, arg, p->item);
  p->x[p->count++] = operand(p->l, arg, p->item, dtype);
  broadcast(p);
  return p->x[p->count - 1];
}

tt_value *tt_pointwise_number(tt_pointwise *p, int arg) {
  tt_require_item_fits(p->l, arg, p->item, p->compute);
  return tt_hlo_broadcast_like(p->b, operand(p->l, arg, p->item, p->compute), p->x[0]);
}

// --- results --------------------------------------------------------------------------------------------------------------

void tt_pointwise_set_as(tt_pointwise *p, int result, tt_value *value, tt_dtype dtype) {
  tt_lowering *l = p->l;
  tt_dtype declared = tt_output_dtype(l, result, dtype);
  if (!tt_dtype_can_cast(dtype, declared))
    tt_fail(l, TT_INVALID_ARGUMENT, "result type %s can't be cast to the desired output type %s", tt_dtype_text(dtype),
            tt_dtype_text(declared));
  tt_set_result(l, result, tt_hlo_convert(p->b, value, dtype));
  tt_set_order_of_iterator(l, result, p->count, p->tensors);
}

// Only an in-place call writes the tensor that it reads.
static bool writes_operand(const tt_pointwise *p, int result) {
  if (result >= p->l->output_count) return false;
  return &p->l->tensors[p->l->outputs[result]] == tensor_of(p->l, 0, p->item);
}

void tt_pointwise_set(tt_pointwise *p, int result, tt_value *value) {
  uint32_t flags = p->l->op->flags;
  tt_dtype dtype = p->common;
  if (flags & TT_OP_TO_BOOL) dtype = TT_BOOL;
  if (flags & TT_OP_COMPLEX_TO_REAL && tt_dtype_is_complex(dtype)) {
    if (writes_operand(p, result))
      tt_fail(p->l, TT_INVALID_ARGUMENT, "In-place abs is not supported for complex tensors."); // the only such op
    dtype = tt_dtype_real(dtype);
  }
  tt_pointwise_set_as(p, result, value, dtype);
}

// --- drivers --------------------------------------------------------------------------------------------------------------

void tt_pointwise_each(tt_lowering *l, tt_pointwise_fn formula, int count, const int *args) {
  int items = tt_pointwise_items(l);
  for (int i = 0; i < items && !tt_failed(l); ++i) {
    tt_pointwise p = tt_pointwise_begin(l, i, count, args);
    tt_pointwise_set(&p, i, formula(&p));
  }
}

static tt_value *unary_formula(tt_pointwise *p) { return p->l->op->emit.unary(p->b, p->x[0]); }
static tt_value *binary_formula(tt_pointwise *p) { return p->l->op->emit.binary(p->b, p->x[0], p->x[1]); }

void tt_lower_unary(tt_lowering *l) { tt_pointwise_each(l, unary_formula, 1, NULL); }
void tt_lower_binary(tt_lowering *l) { tt_pointwise_each(l, binary_formula, 2, NULL); }
