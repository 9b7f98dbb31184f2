// operand.c - operands read and results written through the views that tensors are of their storages. See lowering.h.
#include "base/memory.h"
#include "op/internal.h"
#include "op/lowering.h"

typedef struct digit_context {
  tt_lowering *l;
  int slot;
} digit_context;

static tt_value *slot_digit(void *user, const tt_digit *digit) {
  digit_context *c = user;
  return c->l->source.start(c->l->source.user, c->slot, digit);
}

// Between what is stored and what the tensor means, in either direction.
static tt_value *apply_bits(tt_lowering *l, const tt_tensor *t, tt_value *x) {
  if (t->conj) x = tt_hlo_conj(l->b, x);
  return t->negative ? tt_hlo_negate(l->b, x) : x;
}

tt_value *tt_lowering_read(tt_lowering *l, int slot) {
  if (l->operands[slot]) return l->operands[slot];
  const tt_tensor *t = &l->tensors[slot];
  tt_value *x;
  if (t->cpu_scalar) {
    x = l->source.cpu_scalar(l->source.user, slot, t->dtype);
  } else {
    x = tt_emit_reinterpret(l->b, l->source.base(l->source.user, slot), t->dtype);
    tt_view view;
    digit_context context = {l, slot};
    tt_view_match(x->rank, x->dims, t->rank, t->sizes, t->strides, t->offset, &view);
    if (!tt_builder_failed(l->b))
      x = apply_bits(l, t, tt_emit_view_read(l->b, x, &view, t->rank, t->sizes, t->strides, slot_digit, &context));
  }
  return l->operands[slot] = x;
}

bool tt_tensor_covers(const tt_tensor *t, int64_t byte_size) {
  int64_t count = 1;
  for (int i = 0; i < t->rank; ++i)
    if (!tt_mul_i64(count, t->sizes[i], &count)) return false;
  if (count == 0 || t->offset != 0 || count * tt_dtype_size(t->dtype) != byte_size) return false;
  // Dense and without overlap: the strides, taken from small to large, are the running products of the sizes.
  int64_t expected = 1;
  for (uint64_t seen = 0;;) {
    int next = -1;
    for (int i = 0; i < t->rank; ++i)
      if (!(seen >> i & 1) && t->sizes[i] != 1 && t->strides[i] == expected) next = i;
    if (next < 0) return expected == count;
    seen |= UINT64_C(1) << next;
    expected *= t->sizes[next];
  }
}

// A covering write: the tensor's dims in the order of its strides become the storage's new dims.
static tt_value *store_covering(tt_lowering *l, const tt_tensor *t, tt_value *value) {
  int *order = tt_lowering_array(l, t->rank, sizeof *order);
  if (!order) return value;
  // Size-1 dims stay where they are; the places of the others are filled by descending stride.
  int last = -1;
  for (int i = 0; i < t->rank; ++i) {
    order[i] = i;
    if (t->sizes[i] == 1) continue;
    int at = i;
    for (int before = last; before >= 0; --before) {
      if (t->sizes[before] == 1) continue;
      if (t->strides[order[before]] >= t->strides[i]) break;
      order[at] = order[before];
      at = before;
    }
    order[at] = i;
    last = i;
  }
  return tt_hlo_transpose(l->b, value, order);
}

tt_value *tt_lowering_store(tt_lowering *l, int slot, tt_value *value, tt_value *base, int64_t byte_size) {
  const tt_tensor *t = &l->tensors[slot];
  if (tt_builder_failed(l->b)) return value;
  bool same = value->rank == t->rank;
  for (int i = 0; same && i < t->rank; ++i) same = value->dims[i] == t->sizes[i];
  if (!same) {
    tt_arena *arena = tt_builder_arena(l->b);
    return tt_builder_fail(
        l->b, tt_error(TT_INVALID_ARGUMENT, "output with shape %s doesn't match the broadcast shape %s",
                       tt_shape_text(arena, t->rank, t->sizes), tt_shape_text(arena, value->rank, value->dims)));
  }
  value = apply_bits(l, t, tt_hlo_convert(l->b, value, t->dtype));
  if (tt_tensor_covers(t, byte_size)) return store_covering(l, t, value);
  if (!base) { // uninitialised so far: zeros
    int64_t count = byte_size / tt_dtype_size(t->dtype);
    base = tt_hlo_splat(l->b, t->dtype, 1, &count, 0);
  }
  tt_value *typed = tt_emit_reinterpret(l->b, base, t->dtype);
  tt_view view;
  tt_view_match(typed->rank, typed->dims, t->rank, t->sizes, t->strides, t->offset, &view);
  if (tt_builder_failed(l->b)) return value;
  digit_context context = {l, slot};
  tt_value *written = tt_emit_view_write(l->b, typed, value, &view, typed->rank, typed->dims, t->rank, t->sizes,
                                         t->strides, slot_digit, &context);
  return tt_emit_reinterpret_back(l->b, written, base->dtype, base->rank, base->dims);
}

const tt_tensor *tt_tensor_arg(const tt_lowering *l, int arg) {
  const tt_arg *a = tt_lowering_peek(l, arg);
  return a->kind == TT_ARG_TENSOR && l->tensors[a->u.slot].defined ? &l->tensors[a->u.slot] : NULL;
}

tt_value *tt_operand(tt_lowering *l, int arg) {
  const tt_arg *a = tt_lowering_arg(l, arg);
  if (a->kind == TT_ARG_TENSOR) return tt_lowering_read(l, a->u.slot);
  tt_lowering_wrong_kind(l, arg, "tensor");
  return tt_hlo_constant(l->b, TT_F32, 0);
}

static tt_value *slot_as(tt_lowering *l, int slot, tt_dtype dtype) {
  const tt_tensor *t = &l->tensors[slot];
  // Converted on the host from the double that it is, as torch does.
  if (t->cpu_scalar && dtype != t->dtype && dtype != TT_BOOL) return l->source.cpu_scalar(l->source.user, slot, dtype);
  return tt_hlo_convert(l->b, tt_lowering_read(l, slot), dtype);
}

tt_value *tt_operand_as(tt_lowering *l, int arg, tt_dtype dtype) {
  const tt_arg *a = tt_lowering_arg(l, arg);
  if (a->kind == TT_ARG_TENSOR) return slot_as(l, a->u.slot, dtype);
  return tt_number(l, arg, dtype);
}

int tt_list_count(const tt_lowering *l, int arg) {
  return tt_lowering_peek(l, arg)->kind == TT_ARG_LIST ? tt_lowering_peek(l, arg)->count : 0;
}

const tt_tensor *tt_list_tensor(const tt_lowering *l, int arg, int item) {
  const tt_arg *a = tt_lowering_peek(l, arg);
  if (a->kind != TT_ARG_LIST || item < 0 || item >= a->count || a->u.items[item].kind != TT_ARG_TENSOR) return NULL;
  const tt_tensor *t = &l->tensors[a->u.items[item].u.slot];
  return t->defined ? t : NULL;
}

bool tt_list_has(const tt_lowering *l, int arg, int item) { return tt_list_tensor(l, arg, item) != NULL; }

tt_value *tt_list_operand(tt_lowering *l, int arg, int item) {
  const tt_tensor *t = tt_list_tensor(l, arg, item);
  if (t) return tt_lowering_read(l, (int)(t - l->tensors));
  tt_lowering_wrong_kind(l, arg, "tensor list");
  return tt_hlo_constant(l->b, TT_F32, 0);
}

tt_value *tt_list_operand_as(tt_lowering *l, int arg, int item, tt_dtype dtype) {
  const tt_tensor *t = tt_list_tensor(l, arg, item);
  return t ? slot_as(l, (int)(t - l->tensors), dtype) : tt_list_operand(l, arg, item);
}
