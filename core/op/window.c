// window.c - ops that write one value through a view of another: slice_scatter, select_scatter, diagonal_scatter, diag_embed,
// and the gradients of slice, select and diagonal, which write into zeros.
//
// Each is a strided window on a dense array, so the code that writes views (op/view.h) does the work; only the window differs.
#include "op/shape.h"

typedef struct window {
  int rank; // of the window
  int64_t sizes[TT_INDEX_MAX_DIMS], strides[TT_INDEX_MAX_DIMS], offset;
} window;

// The window that is all of an array with these dims.
static window whole(int rank, const int64_t *dims) {
  window w = {.rank = rank};
  for (int i = 0; i < rank; ++i) w.sizes[i] = dims[i];
  tt_row_major_strides(rank, dims, w.strides);
  return w;
}

typedef struct digit_context {
  tt_builder *b;
  int64_t offset;
} digit_context;

static tt_value *constant_digit(void *user, const tt_digit *digit) {
  digit_context *c = user;
  if (!digit) return tt_hlo_constant_i64(c->b, TT_S64, c->offset);
  return tt_hlo_constant_i64(c->b, TT_S32, tt_digit_value(digit, c->offset));
}

// base with `value` written through the window; value has the window's sizes.
static tt_value *write_window(tt_builder *b, tt_value *base, tt_value *value, const window *w) {
  tt_view view;
  digit_context context = {b, w->offset};
  tt_view_match(base->rank, base->dims, w->rank, w->sizes, w->strides, w->offset, &view);
  if (tt_builder_failed(b)) return value;
  return tt_emit_view_write(b, base, value, &view, base->rank, base->dims, w->rank, w->sizes, w->strides,
                            constant_digit, &context);
}

static void drop_dim(window *w, int dim) {
  --w->rank;
  for (int i = dim; i < w->rank; ++i) {
    w->sizes[i] = w->sizes[i + 1];
    w->strides[i] = w->strides[i + 1];
  }
}

// --- the three views --------------------------------------------------------------------------------------------------------------

static bool narrow_slice(tt_lowering *l, window *w, int64_t dim, int64_t start, int64_t end, int64_t step) {
  if (w->rank == 0)
    tt_fail(l, TT_INDEX, "slice() cannot be applied to a 0-dim tensor.");
  else if (step <= 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "slice step must be positive");
  int d = tt_wrap_dim(l, dim, w->rank);
  if (tt_failed(l)) return false;
  int64_t size = w->sizes[d];
  if (start < 0) start += size;
  if (end < 0) end += size;
  start = start < 0 ? 0 : start > size ? size : start;
  end = end < start ? start : end > size ? size : end;
  w->sizes[d] = (end - start + step - 1) / step;
  w->offset += w->sizes[d] > 0 ? start * w->strides[d] : 0;
  w->strides[d] *= step;
  return true;
}

static bool narrow_select(tt_lowering *l, window *w, int64_t dim, int64_t index) {
  if (w->rank == 0) tt_fail(l, TT_INDEX, "select() cannot be applied to a 0-dim tensor.");
  int d = tt_wrap_dim(l, dim, w->rank);
  if (tt_failed(l)) return false;
  int64_t size = w->sizes[d];
  if (index < -size || index >= size) {
    tt_fail(l, TT_INDEX, "select(): index %lld out of range for tensor of size %s at dimension %d", (long long)index,
            tt_shape_text(tt_builder_arena(l->b), w->rank, w->sizes), d);
    return false;
  }
  w->offset += (index < 0 ? index + size : index) * w->strides[d];
  drop_dim(w, d);
  return true;
}

static bool narrow_diagonal(tt_lowering *l, window *w, int64_t offset, int64_t dim1, int64_t dim2) {
  int d1 = tt_wrap_dim(l, dim1, w->rank), d2 = tt_wrap_dim(l, dim2, w->rank);
  if (!tt_failed(l) && d1 == d2)
    tt_fail(l, TT_INVALID_ARGUMENT, "diagonal dimensions cannot be identical %lld, %lld", (long long)dim1,
            (long long)dim2);
  if (tt_failed(l)) return false;
  int64_t rows = w->sizes[d1] + (offset < 0 ? offset : 0), columns = w->sizes[d2] - (offset > 0 ? offset : 0);
  int64_t size = rows < columns ? rows : columns, stride = w->strides[d1] + w->strides[d2];
  if (size > 0) w->offset += offset < 0 ? -offset * w->strides[d1] : offset * w->strides[d2];
  drop_dim(w, d1 > d2 ? d1 : d2);
  drop_dim(w, d1 > d2 ? d2 : d1);
  w->sizes[w->rank] = size > 0 ? size : 0;
  w->strides[w->rank++] = stride;
  return true;
}

// --- writing into self ------------------------------------------------------------------------------------------------------------

static void write_source(tt_lowering *l, const window *w) {
  tt_value *x = tt_operand(l, 0), *source = tt_operand_as(l, 1, x->dtype);
  bool same = source->rank == w->rank;
  for (int i = 0; same && i < w->rank; ++i) same = source->dims[i] == w->sizes[i];
  if (!same) {
    tt_arena *arena = tt_builder_arena(l->b);
    tt_fail(l, TT_INVALID_ARGUMENT,
            "expected src to have a size equal to the slice of self. src size = %s, slice size = %s",
            tt_shape_text(arena, source->rank, source->dims), tt_shape_text(arena, w->rank, w->sizes));
    return;
  }
  tt_set_result(l, 0, write_window(l->b, x, source, w));
  tt_set_order_like(l, 0, 0);
}

static window window_of_self(tt_lowering *l) {
  const tt_value *x = tt_operand(l, 0);
  return whole(x->rank, x->dims);
}

void tt_lower_slice_scatter(tt_lowering *l) {
  window w = window_of_self(l);
  if (narrow_slice(l, &w, tt_int(l, 2), tt_int_or(l, 3, 0), tt_int_or(l, 4, INT64_MAX), tt_int(l, 5)))
    write_source(l, &w);
}

void tt_lower_select_scatter(tt_lowering *l) {
  window w = window_of_self(l);
  if (narrow_select(l, &w, tt_int(l, 2), tt_int(l, 3))) write_source(l, &w);
}

void tt_lower_diagonal_scatter(tt_lowering *l) {
  window w = window_of_self(l);
  if (narrow_diagonal(l, &w, tt_int(l, 2), tt_int(l, 3), tt_int(l, 4))) write_source(l, &w);
}

// --- writing into zeros -------------------------------------------------------------------------------------------------------------

static void write_into_zeros(tt_lowering *l, int rank, const int64_t *dims, const window *w) {
  tt_value *grad = tt_operand(l, 0);
  tt_value *value = tt_hlo_broadcast_to(l->b, grad, w->rank, w->sizes); // as copy_ would
  tt_set_result(l, 0, write_window(l->b, tt_hlo_splat(l->b, grad->dtype, rank, dims, 0), value, w));
}

void tt_lower_slice_backward(tt_lowering *l) {
  int rank;
  const int64_t *dims = tt_ints(l, 1, &rank);
  window w = whole(rank, dims);
  if (narrow_slice(l, &w, tt_int(l, 2), tt_int(l, 3), tt_int(l, 4), tt_int(l, 5))) write_into_zeros(l, rank, dims, &w);
}

void tt_lower_select_backward(tt_lowering *l) {
  int rank;
  const int64_t *dims = tt_ints(l, 1, &rank);
  window w = whole(rank, dims);
  if (narrow_select(l, &w, tt_int(l, 2), tt_int(l, 3))) write_into_zeros(l, rank, dims, &w);
}

void tt_lower_diagonal_backward(tt_lowering *l) {
  int rank;
  const int64_t *dims = tt_ints(l, 1, &rank);
  window w = whole(rank, dims);
  if (narrow_diagonal(l, &w, tt_int(l, 2), tt_int(l, 3), tt_int(l, 4))) write_into_zeros(l, rank, dims, &w);
}

void tt_lower_diag_embed(tt_lowering *l) {
  tt_value *x = tt_operand(l, 0);
  int64_t offset = tt_int(l, 1), dims[TT_INDEX_MAX_DIMS] = {0};
  int rank = x->rank + 1, d1 = tt_wrap_dim(l, tt_int(l, 2), rank), d2 = tt_wrap_dim(l, tt_int(l, 3), rank);
  if (!tt_failed(l) && d1 == d2)
    tt_fail(l, TT_INVALID_ARGUMENT, "diagonal dimensions cannot be identical %lld, %lld", (long long)tt_int(l, 2),
            (long long)tt_int(l, 3));
  if (tt_failed(l)) return;
  int64_t size = x->dims[x->rank - 1] + llabs(offset);
  for (int i = 0, next = 0; i < rank; ++i) dims[i] = i == d1 || i == d2 ? size : x->dims[next++];
  window w = whole(rank, dims);
  if (narrow_diagonal(l, &w, offset, d1, d2)) write_into_zeros(l, rank, dims, &w);
}
