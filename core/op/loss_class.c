// loss_class.c - losses whose target is a class: negative log likelihood and the margin losses.
//
// Predictions are [N, C, spatial...] (or [C], which counts as [1, C]), targets [N, spatial...]. The backwards compare a class
// iota with the target instead of scattering: one pass that fuses, on any target.
#include "op/axes.h"
#include "op/index.h"
#include "op/pointwise.h"

enum { REDUCE_NONE, REDUCE_MEAN, REDUCE_SUM };

static bool is_target_dtype(tt_dtype dtype) { return dtype == TT_S64 || dtype == TT_U8; }

static bool check_target_dtype(tt_lowering *l, int arg) {
  tt_dtype dtype = tt_tensor_arg(l, arg)->dtype;
  if (!is_target_dtype(dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "expected target dtype to be Long or Byte, but got %s", tt_dtype_text(dtype));
  return is_target_dtype(dtype);
}

static tt_value *sum_all(tt_builder *b, tt_value *x) { return tt_sum(b, x, tt_axes_range(0, x->rank)); }

static tt_value *zero_unless(tt_builder *b, tt_value *predicate, tt_value *x) {
  return tt_hlo_select(b, predicate, x, tt_hlo_constant_like(b, x, 0));
}

// x with a batch dimension of 1 in front of a single sample, which may be a single class.
static tt_value *as_batch(tt_builder *b, tt_value *x) {
  if (x->rank == 0) x = tt_hlo_unsqueeze_dim(b, x, 0);
  return x->rank == 1 ? tt_hlo_unsqueeze_dim(b, x, 0) : x;
}

// One prediction per target: x[n, target[n, ...], ...].
static tt_value *pick_class(tt_builder *b, tt_value *x, tt_value *target) {
  tt_index_map map;
  tt_map_elements(&map, x, 1, tt_hlo_unsqueeze_dim(b, target, 1));
  return tt_hlo_squeeze_dim(b, tt_index_read(b, x, &map), 1);
}

// BOOL of x's shape: is this the target's class?
static tt_value *is_class(tt_builder *b, tt_value *x, tt_value *target) {
  tt_value *class_number = tt_hlo_iota(b, target->dtype, x->rank, x->dims, 1);
  return tt_hlo_compare(b, TT_EQ, class_number, tt_hlo_broadcast_like(b, tt_hlo_unsqueeze_dim(b, target, 1), x));
}

// --- negative log likelihood --------------------------------------------------------------------------------------------------

typedef struct nll {
  tt_lowering *l;
  tt_builder *b;
  tt_dtype dtype, compute;
  tt_value *x;      // [N, C, ...]
  tt_value *target; // [N, ...], S32 where that is enough, in range; 0 where it is ignored
  tt_value *used;   // BOOL [N, ...]: false where the target is ignore_index
  tt_value *weight; // [N, ...]: of the target's class, 0 where ignored
  int64_t reduction;
} nll;

// `self` is the argument of the predictions; target, weight, reduction and ignore_index follow it.
static nll nll_begin(tt_lowering *l, int self, bool checked) {
  tt_builder *b = l->b;
  nll n = {.l = l, .b = b, .dtype = tt_tensor_arg(l, self)->dtype, .reduction = tt_int(l, self + 3)};
  n.compute = tt_compute_dtype(n.dtype);
  n.x = as_batch(b, tt_operand_as(l, self, n.compute));
  tt_value *target = tt_operand_as(l, self + 1, TT_S64);
  if (n.x->rank == 2) target = tt_hlo_reshape(b, target, 1, (int64_t[]){n.x->dims[0]});
  tt_value *ignored = tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, TT_S64, tt_int(l, self + 4)), target);
  n.used = tt_hlo_compare(b, TT_NE, target, ignored);
  target = zero_unless(b, n.used, target);
  int64_t classes = n.x->dims[1];
  n.target = checked ? tt_index_checked(l, target, classes, false, TT_INDEX, "Target is out of bounds.")
                     : tt_hlo_convert(b, target, tt_index_dtype(classes));
  n.weight = tt_hlo_splat(b, n.compute, n.target->rank, n.target->dims, 1);
  if (tt_has(l, self + 2)) n.weight = tt_take_rows(b, tt_operand_as(l, self + 2, n.compute), 0, n.target);
  n.weight = zero_unless(b, n.used, n.weight);
  return n;
}

static void nll_set(nll *n, int result, tt_value *value) {
  tt_set_result(n->l, result, tt_hlo_convert(n->b, value, n->dtype));
}

// Results: the loss and the sum of weights, which the mean divides by (0 where torch does not form it).
static void lower_nll_forward(tt_lowering *l) {
  nll n = nll_begin(l, 0, true);
  tt_builder *b = n.b;
  bool single = tt_tensor_arg(l, 0)->rank == 1;
  tt_value *picked = tt_hlo_multiply(b, tt_hlo_negate(b, pick_class(b, n.x, n.target)), n.weight);
  tt_value *loss = zero_unless(b, n.used, picked); // an ignored prediction may be infinite
  if (n.reduction == REDUCE_NONE && !single) {
    nll_set(&n, 0, loss);
    nll_set(&n, 1, tt_hlo_constant(b, n.compute, 0));
    return;
  }
  tt_value *total = sum_all(b, n.weight);
  loss = sum_all(b, loss);
  nll_set(&n, 0, n.reduction == REDUCE_MEAN ? tt_hlo_divide(b, loss, total) : loss);
  nll_set(&n, 1, total);
}

// (gradient, self, target, weight, reduction, ignore_index, total_weight)
static void lower_nll_backward(tt_lowering *l) {
  nll n = nll_begin(l, 1, false);
  tt_builder *b = n.b;
  tt_value *gradient = tt_operand_as(l, 0, n.compute);
  if (n.reduction == REDUCE_MEAN)
    gradient = tt_hlo_divide(b, tt_hlo_reshape(b, gradient, 0, NULL),
                             tt_hlo_reshape(b, tt_operand_as(l, 6, n.compute), 0, NULL));
  bool whole = n.reduction != REDUCE_NONE || tt_tensor_arg(l, 1)->rank == 1;
  if (whole) gradient = tt_hlo_broadcast_like(b, tt_hlo_reshape(b, gradient, 0, NULL), n.weight);
  tt_value *value = zero_unless(b, n.used, tt_hlo_multiply(b, tt_hlo_negate(b, gradient), n.weight));
  value = tt_hlo_broadcast_like(b, tt_hlo_unsqueeze_dim(b, value, 1), n.x);
  tt_value *result = zero_unless(b, is_class(b, n.x, n.target), value);
  const tt_tensor *self = tt_tensor_arg(l, 1);
  nll_set(&n, 0, tt_hlo_reshape(b, result, self->rank, self->sizes));
}

// torch checks one by one; only images come here unchecked, since nll_loss_forward is structured.
void tt_lower_nll_loss_forward(tt_lowering *l) {
  if (check_target_dtype(l, 1)) lower_nll_forward(l);
}
void tt_lower_nll_loss_backward(tt_lowering *l) { lower_nll_backward(l); }

static const char *sizes_text(tt_lowering *l, const tt_tensor *t) {
  return tt_shape_text(tt_builder_arena(l->b), t->rank, t->sizes);
}

// `self`: argument of the predictions. Words of torch's LossNLL2d.
static bool check_nll2d(tt_lowering *l, int self) {
  const tt_tensor *x = tt_tensor_arg(l, self), *target = tt_tensor_arg(l, self + 1),
                  *weight = tt_tensor_arg(l, self + 2);
  int64_t classes = x->rank > 1 ? x->sizes[1] : 0;
  if (target->rank != 3)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "only batches of spatial targets supported (3D tensors) but got targets of dimension: %d", target->rank);
  else if (x->rank != 4)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "only batches of spatial inputs supported (4D tensors), but got input of dimension: %d", x->rank);
  else if (x->sizes[0] != target->sizes[0] || x->sizes[2] != target->sizes[1] || x->sizes[3] != target->sizes[2])
    tt_fail(l, TT_INVALID_ARGUMENT, "size mismatch (got input: %s , target: %s", sizes_text(l, x),
            sizes_text(l, target));
  else if (weight && (weight->rank != 1 || weight->sizes[0] != classes))
    tt_fail(l, TT_INVALID_ARGUMENT, "weight tensor should be defined either for all or no classes");
  return !tt_failed(l) && check_target_dtype(l, self + 1);
}

void tt_lower_nll_loss2d_forward(tt_lowering *l) {
  if (check_nll2d(l, 0)) lower_nll_forward(l);
}

static int64_t element_count(const tt_tensor *t) {
  int64_t count = 1;
  for (int i = 0; i < t->rank; ++i) count *= t->sizes[i];
  return count;
}

void tt_lower_nll_loss2d_backward(tt_lowering *l) {
  if (!check_nll2d(l, 1)) return;
  const tt_tensor *gradient = tt_tensor_arg(l, 0), *total = tt_tensor_arg(l, 6);
  bool none = tt_int(l, 4) == REDUCE_NONE;
  if (element_count(total) != 1)
    tt_fail(l, TT_INVALID_ARGUMENT, "expected total_weight to be a single element tensor, got: %s (%lld elements)",
            sizes_text(l, total), (long long)element_count(total));
  else if (none && gradient->rank != 3)
    tt_fail(l, TT_INVALID_ARGUMENT, "grad_output must have same dimension as target (3) but got dimension: %s",
            sizes_text(l, gradient));
  else if (!none && element_count(gradient) != 1)
    tt_fail(l, TT_INVALID_ARGUMENT, "Expected a single element grad_output tensor, but got: %s",
            sizes_text(l, gradient));
  else
    lower_nll_backward(l);
}

// --- margin losses --------------------------------------------------------------------------------------------------------------------

// [N, C] or [C] with C > 0, or one number; N may be 0.
static bool check_margin_input(tt_lowering *l, const tt_tensor *x) {
  bool fits = x->rank == 0 || (x->rank == 1 && x->sizes[0] > 0) || (x->rank == 2 && x->sizes[1] > 0);
  if (!fits)
    tt_fail(l, TT_INVALID_ARGUMENT, "Expected non-empty vector or matrix with optional 0-dim batch size, but got: %s",
            sizes_text(l, x));
  return fits;
}

typedef struct margin {
  tt_lowering *l;
  tt_builder *b;
  tt_dtype dtype, compute;
  tt_value *x;       // [N, C]
  tt_value *target;  // [N], or [N, C] for several labels
  tt_value *weight;  // [N]
  tt_value *excess;  // [N, C]: margin - x[target] + x
  tt_value *counted; // BOOL [N, C]: classes that the loss sees, other than the target and in excess
  bool square;
  int64_t reduction;
} margin;

static bool check_multi_margin(tt_lowering *l, int self) {
  const tt_tensor *x = tt_tensor_arg(l, self), *target = tt_tensor_arg(l, self + 1),
                  *weight = tt_tensor_arg(l, self + 4);
  double p = tt_double(l, self + 2);
  int64_t samples = x->rank == 2 ? x->sizes[0] : 1;
  if (p != 1 && p != 2) tt_fail(l, TT_INVALID_ARGUMENT, "only p == 1 and p == 2 supported");
  if (tt_failed(l) || !check_margin_input(l, x)) return false;
  if (target->rank > 1 || element_count(target) != samples)
    tt_fail(
        l, TT_INVALID_ARGUMENT,
        "multi_margin_loss: target tensor should be 1-D with size equal to the number of input samples (batch size). "
        "Expected target size [%lld], but got %s. Input has shape %s.",
        (long long)samples, sizes_text(l, target), sizes_text(l, x));
  int64_t classes = x->rank == 0 ? 1 : x->sizes[x->rank - 1];
  if (!tt_failed(l) && weight && (weight->rank != 1 || weight->sizes[0] != classes))
    tt_fail(l, TT_INVALID_ARGUMENT, "inconsistent weight size, expected %lld but got %s", (long long)classes,
            sizes_text(l, weight));
  return !tt_failed(l);
}

static tt_value *over_classes(tt_builder *b, tt_value *per_sample, tt_value *x) {
  return tt_hlo_broadcast_like(b, tt_hlo_unsqueeze_dim(b, per_sample, 1), x);
}

// (self, target, p, margin, weight, reduction) from argument `self` on.
static margin multi_margin_begin(tt_lowering *l, int self) {
  tt_builder *b = l->b;
  margin m = {.l = l,
              .b = b,
              .dtype = tt_tensor_arg(l, self)->dtype,
              .square = tt_double(l, self + 2) == 2,
              .reduction = tt_int(l, self + 5)};
  m.compute = tt_compute_dtype(m.dtype);
  m.x = as_batch(b, tt_operand_as(l, self, m.compute));
  tt_value *target = tt_hlo_reshape(b, tt_operand_as(l, self + 1, TT_S64), 1, (int64_t[]){m.x->dims[0]});
  m.target = tt_index_checked(l, target, m.x->dims[1], false, TT_INVALID_ARGUMENT, "target out of range");
  m.weight = tt_hlo_splat(b, m.compute, 1, m.target->dims, 1);
  if (tt_has(l, self + 4)) m.weight = tt_take_rows(b, tt_operand_as(l, self + 4, m.compute), 0, m.target);
  tt_value *reach = tt_hlo_subtract(b, tt_hlo_broadcast_like(b, tt_number(l, self + 3, m.compute), m.target),
                                    pick_class(b, m.x, m.target));
  m.excess = tt_hlo_add(b, m.x, over_classes(b, reach, m.x));
  tt_value *other = tt_hlo_not(b, is_class(b, m.x, m.target));
  m.counted = tt_hlo_and(b, other, tt_compare_constant(b, TT_GT, m.excess, 0));
  return m;
}

// Sums per sample to the result that the reduction asks for; `none` is the target's shape.
static void margin_set_loss(margin *m, tt_value *per_sample, int rank, const int64_t *none) {
  tt_builder *b = m->b;
  tt_value *loss = per_sample;
  if (m->reduction == REDUCE_NONE) loss = tt_hlo_reshape(b, loss, rank, none);
  if (m->reduction == REDUCE_MEAN) loss = tt_average(b, loss, tt_axes_range(0, 1));
  if (m->reduction == REDUCE_SUM) loss = sum_all(b, loss);
  tt_set_result(m->l, 0, tt_hlo_convert(b, loss, m->dtype));
}

// The incoming gradient per sample, with the mean's and the classes' divisors.
static tt_value *margin_gradient(margin *m) {
  tt_builder *b = m->b;
  int64_t samples = m->x->dims[0];
  tt_value *gradient = tt_operand_as(m->l, 0, m->compute);
  if (m->reduction != REDUCE_NONE) gradient = tt_hlo_reshape(b, gradient, 0, NULL);
  if (gradient->rank == 0) gradient = tt_hlo_broadcast_to(b, gradient, 1, (int64_t[]){samples});
  double divisor = (double)m->x->dims[1] * (m->reduction == REDUCE_MEAN ? (double)samples : 1);
  return tt_divide_constant(b, gradient, divisor);
}

static void margin_set_gradient(margin *m, tt_value *gradient, const tt_tensor *self) {
  tt_set_result(m->l, 0, tt_hlo_convert(m->b, tt_hlo_reshape(m->b, gradient, self->rank, self->sizes), m->dtype));
}

void tt_lower_multi_margin_loss(tt_lowering *l) {
  if (!check_multi_margin(l, 0)) return;
  margin m = multi_margin_begin(l, 0);
  tt_builder *b = m.b;
  tt_value *loss = zero_unless(b, m.counted, m.square ? tt_square(b, m.excess) : m.excess);
  loss = tt_divide_constant(b, tt_sum(b, loss, tt_axes_range(1, 2)), (double)m.x->dims[1]);
  const tt_tensor *target = tt_tensor_arg(l, 1);
  margin_set_loss(&m, tt_hlo_multiply(b, loss, m.weight), target->rank, target->sizes);
}

void tt_lower_multi_margin_loss_backward(tt_lowering *l) {
  if (!check_multi_margin(l, 1)) return;
  margin m = multi_margin_begin(l, 1);
  tt_builder *b = m.b;
  tt_value *slope = m.square ? tt_multiply_constant(b, m.excess, 2) : tt_hlo_constant_like(b, m.excess, 1);
  tt_value *scale = over_classes(b, tt_hlo_multiply(b, margin_gradient(&m), m.weight), m.x);
  tt_value *others = zero_unless(b, m.counted, tt_hlo_multiply(b, slope, scale));
  tt_value *own = tt_hlo_negate(b, over_classes(b, tt_sum(b, others, tt_axes_range(1, 2)), m.x));
  margin_set_gradient(&m, tt_hlo_select(b, is_class(b, m.x, m.target), own, others), tt_tensor_arg(l, 1));
}

// --- several labels per sample: targets [N, C], ended by the first negative one ------------------------------------------------------

static bool check_multilabel(tt_lowering *l, int self) {
  const tt_tensor *x = tt_tensor_arg(l, self), *target = tt_tensor_arg(l, self + 1);
  if (!check_margin_input(l, x)) return false;
  bool fits = target->rank == x->rank;
  for (int i = 0; fits && i < x->rank; ++i) fits = target->sizes[i] == x->sizes[i];
  if (!fits)
    tt_fail(l, TT_INVALID_ARGUMENT, "inconsistent target size: %s for input of size: %s", sizes_text(l, target),
            sizes_text(l, x));
  return fits;
}

typedef struct labels {
  tt_value *valid; // BOOL [N, K]: before the first negative one
  tt_value *hits;  // BOOL [N, K, C]: valid label k is class c
  tt_value *over;  // [N, K, C]: 1 - x[label k] + x[c] where it counts, else 0
  tt_value *counted;
} labels;

// A value [N, K] (or [N, C] with at = 1) over [N, K, C].
static tt_value *over_pairs(tt_builder *b, tt_value *x, int at, int64_t count) {
  int64_t dims[3] = {x->dims[0], x->dims[1], x->dims[1]};
  dims[at] = count;
  return tt_hlo_broadcast_to(b, tt_hlo_unsqueeze_dim(b, x, at), 3, dims);
}

static margin multilabel_begin(tt_lowering *l, int self, int64_t reduction, labels *out) {
  tt_builder *b = l->b;
  margin m = {.l = l, .b = b, .dtype = tt_tensor_arg(l, self)->dtype, .reduction = reduction};
  m.compute = tt_compute_dtype(m.dtype);
  m.x = as_batch(b, tt_operand_as(l, self, m.compute));
  int64_t classes = m.x->dims[1];
  tt_value *target = as_batch(b, tt_operand_as(l, self + 1, TT_S64));
  tt_value *place = tt_hlo_iota(b, TT_S32, 2, target->dims, 1);
  tt_value *ends = tt_hlo_select(b, tt_compare_constant(b, TT_LT, target, 0), place,
                                 tt_hlo_constant_like(b, place, (double)classes));
  tt_value *end = tt_reduce(b, ends, TT_REDUCE_MIN, tt_axes_range(1, 2));
  out->valid = tt_hlo_compare(b, TT_LT, place, over_classes(b, end, place));
  m.target = tt_index_checked(l, zero_unless(b, out->valid, target), classes, false, TT_INVALID_ARGUMENT,
                              "argument #2 'target' is out of range");
  tt_value *labels = over_pairs(b, m.target, 2, classes);
  tt_value *class_number = tt_hlo_iota(b, labels->dtype, 3, labels->dims, 2);
  tt_value *valid = over_pairs(b, out->valid, 2, classes);
  out->hits = tt_hlo_and(b, valid, tt_hlo_compare(b, TT_EQ, labels, class_number));
  // Scores of the labels, by the same comparison: a sum over one hit.
  tt_value *scores = over_pairs(b, m.x, 1, classes);
  tt_value *label_score = tt_sum(b, zero_unless(b, out->hits, scores), tt_axes_range(2, 3));
  tt_value *is_label = tt_reduce(b, out->hits, TT_REDUCE_OR, tt_axes_range(1, 2));
  tt_value *excess = tt_hlo_subtract(b, tt_add_constant(b, scores, 1), over_pairs(b, label_score, 2, classes));
  tt_value *wrong = tt_hlo_and(b, valid, tt_hlo_not(b, over_pairs(b, is_label, 1, classes)));
  out->counted = tt_hlo_and(b, wrong, tt_compare_constant(b, TT_GT, excess, 0));
  out->over = zero_unless(b, out->counted, excess);
  return m;
}

void tt_lower_multilabel_margin_loss_forward(tt_lowering *l) {
  if (!check_multilabel(l, 0)) return;
  labels found;
  margin m = multilabel_begin(l, 0, tt_int(l, 2), &found);
  tt_builder *b = m.b;
  const tt_tensor *self = tt_tensor_arg(l, 0);
  tt_value *loss = tt_divide_constant(b, tt_sum(b, found.over, tt_axes_range(1, 3)), (double)m.x->dims[1]);
  margin_set_loss(&m, loss, self->rank == 2 ? 1 : 0, m.x->dims);
  tt_value *is_label = tt_reduce(b, found.hits, TT_REDUCE_OR, tt_axes_range(1, 2));
  tt_set_result(l, 1, tt_hlo_convert(b, tt_hlo_reshape(b, is_label, self->rank, self->sizes), m.dtype));
}

// (gradient, self, target, reduction, is_target)
void tt_lower_multilabel_margin_loss_backward(tt_lowering *l) {
  if (!check_multilabel(l, 1)) return;
  labels found;
  margin m = multilabel_begin(l, 1, tt_int(l, 3), &found);
  tt_builder *b = m.b;
  tt_value *counts = tt_hlo_convert(b, found.counted, m.compute);
  tt_value *per_class = tt_sum(b, counts, tt_axes_range(1, 2));
  tt_value *per_label = over_pairs(b, tt_sum(b, counts, tt_axes_range(2, 3)), 2, m.x->dims[1]);
  tt_value *of_labels = tt_sum(b, zero_unless(b, found.hits, per_label), tt_axes_range(1, 2));
  tt_value *slope = tt_hlo_subtract(b, per_class, of_labels);
  margin_set_gradient(&m, tt_hlo_multiply(b, slope, over_classes(b, margin_gradient(&m), m.x)), tt_tensor_arg(l, 1));
}
