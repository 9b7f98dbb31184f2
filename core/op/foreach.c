// foreach.c - ops on lists of tensors that are no elementwise formula per item: norms, maxima, copies.
//
// The elementwise ones need no code here: their rows name the formula, and the driver loops (op/pointwise.h).
#include "op/axes.h"
#include "op/pointwise.h"

#include <math.h>

// --- copies ---------------------------------------------------------------------------------------------------------------

void tt_lower_foreach_zero(tt_lowering *l) {
  int items = tt_pointwise_items(l);
  for (int i = 0; i < items; ++i) {
    const tt_tensor *self = tt_list_tensor(l, 0, i);
    tt_set_result(l, i, tt_hlo_splat(l->b, self->dtype, self->rank, self->sizes, 0));
  }
}

static bool broadcasts_to(const tt_tensor *from, const tt_tensor *to, int *out_dim) {
  for (int i = 0; i < from->rank; ++i) {
    *out_dim = to->rank - from->rank + i;
    if (*out_dim < 0) return false;
    if (from->sizes[i] != 1 && from->sizes[i] != to->sizes[*out_dim]) return false;
  }
  return true;
}

// (self, src, non_blocking): src in self's dtype and shape.
void tt_lower_foreach_copy(tt_lowering *l) {
  int items = tt_pointwise_items(l), dim = 0;
  for (int i = 0; i < items; ++i) {
    const tt_tensor *self = tt_list_tensor(l, 0, i), *source = tt_list_tensor(l, 1, i);
    if (!broadcasts_to(source, self, &dim)) {
      tt_fail(l, TT_INVALID_ARGUMENT,
              "The size of tensor a (%lld) must match the size of tensor b (%lld) at non-singleton dimension %d",
              dim < 0 ? 1 : (long long)self->sizes[dim],
              (long long)source->sizes[dim < 0 ? 0 : dim - self->rank + source->rank], dim < 0 ? 0 : dim);
      return;
    }
    tt_set_result(l, i, tt_hlo_broadcast_to(l->b, tt_list_operand_as(l, 1, i, self->dtype), self->rank, self->sizes));
  }
}

// --- norms ------------------------------------------------------------------------------------------------------------------

static bool is_empty(const tt_tensor *t) {
  for (int i = 0; i < t->rank; ++i)
    if (t->sizes[i] == 0) return true;
  return false;
}

// torch's linalg.vector_norm speaks for the items.
static bool check_norm(tt_lowering *l, const tt_tensor *t, double order, tt_dtype dtype) {
  bool real = !tt_dtype_is_complex(t->dtype);
  if (!tt_dtype_is_float(t->dtype) && real)
    tt_fail(l, TT_INVALID_ARGUMENT, "linalg.vector_norm: Expected a floating point or complex tensor as input. Got %s",
            tt_dtype_text(t->dtype));
  else if (!tt_dtype_is_float(dtype) && !tt_dtype_is_complex(dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "linalg.vector_norm: dtype should be floating point or complex, but got %s",
            tt_dtype_text(dtype));
  else if (real != !tt_dtype_is_complex(dtype))
    tt_fail(l, TT_INVALID_ARGUMENT, "linalg.vector_norm: dtype should be %s for %s inputs, but got %s",
            real ? "real" : "complex", real ? "real" : "complex", tt_dtype_text(dtype));
  else if (tt_dtype_promote(t->dtype, dtype) != dtype)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "linalg.vector_norm: the dtype of the input (%s) should be convertible without narrowing to the specified "
            "dtype (%s)",
            tt_dtype_text(t->dtype), tt_dtype_text(dtype));
  else if (is_empty(t) && isinf(order) && order > 0)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "_foreach_norm cannot compute the infinity norm on an empty tensor because the operation "
            "does not have an identity");
  else if (is_empty(t) && order < 0)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "linalg.vector_norm cannot compute the %g norm on an empty tensor because the operation "
            "does not have an identity",
            order);
  return !tt_failed(l);
}

// (self, ord, dtype): one number per tensor.
void tt_lower_foreach_norm(tt_lowering *l) {
  int items = tt_pointwise_items(l);
  double order = tt_double(l, 1);
  for (int i = 0; i < items; ++i) {
    const tt_tensor *self = tt_list_tensor(l, 0, i);
    tt_dtype dtype = tt_dtype_arg(l, 2, self->dtype);
    if (!check_norm(l, self, order, dtype)) return;
    tt_value *x = tt_list_operand_as(l, 0, i, tt_compute_dtype(dtype));
    tt_set_result(l, i,
                  tt_hlo_convert(l->b, tt_norm_over(l->b, x, order, tt_axes_range(0, x->rank)), tt_dtype_real(dtype)));
  }
}

// The greatest element of each tensor.
void tt_lower_foreach_max(tt_lowering *l) {
  int items = tt_pointwise_items(l);
  for (int i = 0; i < items; ++i) {
    const tt_tensor *self = tt_list_tensor(l, 0, i);
    if (is_empty(self))
      tt_fail(l, TT_INVALID_ARGUMENT,
              "_foreach_max cannot compute the maximum of an empty tensor; max over zero elements is undefined.");
    else if (tt_dtype_is_complex(self->dtype))
      tt_fail(l, TT_NOT_IMPLEMENTED, "\"max_all\" not implemented for '%s'", tt_dtype_text(self->dtype));
    if (tt_failed(l)) return;
    tt_reduction kind = self->dtype == TT_BOOL ? TT_REDUCE_OR : TT_REDUCE_MAX;
    tt_set_result(l, i, tt_reduce(l->b, tt_list_operand(l, 0, i), kind, tt_axes_range(0, self->rank)));
  }
}
