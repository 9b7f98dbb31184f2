// lowering.c - what a lowering sees of its call: operands, arguments, dimensions, dtypes, results. See lowering.h.
#include "op/lowering.h"

#include <string.h>

#include "base/memory.h"

// --- arguments -----------------------------------------------------------------------------------------------------------

static const tt_arg none = {.kind = TT_ARG_NONE};

static const tt_arg *arg_at(tt_lowering *l, int arg) {
  if (arg >= 0 && arg < l->arg_count) return &l->args[arg];
  tt_builder_fail(l->b, tt_internal_error("%s has no argument %d", l->op->name, arg));
  return &none;
}

static const tt_arg *peek(const tt_lowering *l, int arg) {
  return arg >= 0 && arg < l->arg_count ? &l->args[arg] : &none;
}

// None, and a list that is too short or holds None, are the caller's.
static void wrong_kind(tt_lowering *l, int arg, const char *wanted) {
  if (peek(l, arg)->kind == TT_ARG_NONE || peek(l, arg)->kind == TT_ARG_LIST) {
    tt_builder_fail(l->b, tt_error(TT_MISMATCH, "argument %d, or an item of it, is no %s", arg, wanted));
    return;
  }
  tt_builder_fail(
      l->b, tt_internal_error("%s: argument %d is no %s (kind %d)", l->op->name, arg, wanted, (int)peek(l, arg)->kind));
}

bool tt_has(const tt_lowering *l, int arg) {
  const tt_arg *a = peek(l, arg);
  if (a->kind == TT_ARG_TENSOR) return l->tensors[a->u.slot].defined;
  return a->kind != TT_ARG_NONE;
}

static bool is_static(const tt_lowering *l, const tt_arg *a) {
  return !a->number || (l->op->flags & TT_OP_STATIC_NUMBERS);
}

int64_t tt_int(tt_lowering *l, int arg) {
  const tt_arg *a = arg_at(l, arg);
  if (!is_static(l, a)) {
    wrong_kind(l, arg, "static number: the row lacks TT_OP_STATIC_NUMBERS");
    return 0;
  }
  if (a->kind == TT_ARG_INT || a->kind == TT_ARG_BOOL) return a->u.integer;
  if (a->kind == TT_ARG_DOUBLE) return (int64_t)a->u.real;
  wrong_kind(l, arg, "int");
  return 0;
}

int64_t tt_int_or(tt_lowering *l, int arg, int64_t otherwise) { return tt_has(l, arg) ? tt_int(l, arg) : otherwise; }
bool tt_bool(tt_lowering *l, int arg) { return tt_int(l, arg) != 0; }
bool tt_bool_or(tt_lowering *l, int arg, bool otherwise) { return tt_has(l, arg) ? tt_bool(l, arg) : otherwise; }

tt_dtype tt_dtype_arg(tt_lowering *l, int arg, tt_dtype otherwise) {
  if (!tt_has(l, arg)) return otherwise;
  tt_dtype dtype = tt_dtype_from_torch((int)tt_int(l, arg));
  if (dtype == TT_DTYPE_NONE)
    tt_fail(l, TT_NOT_IMPLEMENTED, "dtype number %d is not supported on TPU", (int)tt_int(l, arg));
  return dtype;
}

const char *tt_text(tt_lowering *l, int arg) {
  const tt_arg *a = arg_at(l, arg);
  if (a->kind == TT_ARG_STRING) return a->u.string;
  if (a->kind != TT_ARG_NONE) wrong_kind(l, arg, "string");
  return "";
}

static double static_double(const tt_arg *a) { return a->kind == TT_ARG_DOUBLE ? a->u.real : (double)a->u.integer; }

double tt_double(tt_lowering *l, int arg) {
  const tt_arg *a = arg_at(l, arg);
  bool numeric = a->kind == TT_ARG_DOUBLE || a->kind == TT_ARG_INT || a->kind == TT_ARG_BOOL;
  if (numeric && is_static(l, a)) return static_double(a);
  wrong_kind(l, arg, "static number (does the row have TT_OP_STATIC_NUMBERS?)");
  return 0;
}

double tt_double_or(tt_lowering *l, int arg, double otherwise) {
  return tt_has(l, arg) ? tt_double(l, arg) : otherwise;
}

static void *arena_array(tt_lowering *l, int count, size_t size) {
  void *block = tt_arena_allocate(tt_builder_arena(l->b), (size_t)(count > 0 ? count : 1), size);
  if (!block) tt_builder_fail(l->b, tt_error(TT_OUT_OF_MEMORY, "out of host memory while lowering %s", l->op->name));
  return block;
}

const int64_t *tt_ints(tt_lowering *l, int arg, int *out_count) {
  const tt_arg *a = arg_at(l, arg);
  *out_count = 0;
  if (a->kind == TT_ARG_NONE) return NULL;
  bool one = a->kind == TT_ARG_INT;
  if (!one && a->kind != TT_ARG_LIST) {
    wrong_kind(l, arg, "int list");
    return NULL;
  }
  int count = one ? 1 : a->count;
  int64_t *values = arena_array(l, count, sizeof *values);
  if (!values) return NULL;
  for (int i = 0; i < count; ++i) values[i] = one ? a->u.integer : a->u.items[i].u.integer;
  *out_count = count;
  return values;
}

const double *tt_doubles(tt_lowering *l, int arg, int *out_count) {
  const tt_arg *a = arg_at(l, arg);
  *out_count = 0;
  if (a->kind == TT_ARG_NONE) return NULL;
  if (a->kind != TT_ARG_LIST || (a->count && !is_static(l, &a->u.items[0]))) {
    wrong_kind(l, arg, "static float list");
    return NULL;
  }
  double *values = arena_array(l, a->count, sizeof *values);
  if (!values) return NULL;
  for (int i = 0; i < a->count; ++i) values[i] = static_double(&a->u.items[i]);
  *out_count = a->count;
  return values;
}

static bool is_number_kind(tt_arg_kind kind) {
  return kind == TT_ARG_INT || kind == TT_ARG_BOOL || kind == TT_ARG_DOUBLE || kind == TT_ARG_COMPLEX;
}

// Runtime numbers are counted in argument order, lists flattened.
static void count_numbers(const tt_arg *args, int count, const tt_arg *until, int *io_count, bool *io_found) {
  for (int i = 0; i < count && !*io_found; ++i) {
    if (&args[i] == until) {
      *io_found = true;
      return;
    }
    if (args[i].kind == TT_ARG_LIST)
      count_numbers(args[i].u.items, args[i].count, until, io_count, io_found);
    else if (args[i].number && is_number_kind(args[i].kind))
      ++*io_count;
  }
}

int tt_count_numbers(const tt_arg *args, int count) {
  int numbers = 0;
  bool found = false;
  count_numbers(args, count, NULL, &numbers, &found);
  return numbers;
}

tt_value *tt_number_constant(tt_builder *b, const tt_arg *a, tt_dtype dtype) {
  if (a->kind == TT_ARG_COMPLEX)
    return tt_hlo_convert(b, tt_hlo_constant_complex(b, TT_C128, a->u.complex_number[0], a->u.complex_number[1]),
                          dtype);
  if (a->kind == TT_ARG_DOUBLE) return tt_hlo_constant(b, dtype, a->u.real);
  return tt_dtype_is_complex(dtype) ? tt_hlo_constant(b, dtype, (double)a->u.integer)
                                    : tt_hlo_constant_i64(b, dtype, a->u.integer);
}

static tt_value *number_value(tt_lowering *l, const tt_arg *a, int arg, tt_dtype dtype) {
  if (!is_number_kind(a->kind)) {
    wrong_kind(l, arg, "number");
    return tt_hlo_constant(l->b, dtype, 0);
  }
  if (!is_static(l, a)) {
    int number = 0;
    bool found = false;
    count_numbers(l->args, l->arg_count, a, &number, &found);
    return l->source.number(l->source.user, number, dtype);
  }
  return tt_number_constant(l->b, a, dtype);
}

tt_value *tt_number(tt_lowering *l, int arg, tt_dtype dtype) { return number_value(l, arg_at(l, arg), arg, dtype); }

tt_value *tt_list_number(tt_lowering *l, int arg, int item, tt_dtype dtype) {
  const tt_arg *a = arg_at(l, arg);
  if (a->kind == TT_ARG_LIST && item < a->count) return number_value(l, &a->u.items[item], arg, dtype);
  wrong_kind(l, arg, "number list");
  return tt_hlo_constant(l->b, dtype, 0);
}

bool tt_number_is_one(const tt_lowering *l, int arg) {
  const tt_arg *a = peek(l, arg);
  if (!is_static(l, a)) return false;
  return (a->kind == TT_ARG_INT && a->u.integer == 1) || (a->kind == TT_ARG_DOUBLE && a->u.real == 1);
}

static tt_dtype number_dtype(const tt_arg *a) {
  switch (a->kind) {
  case TT_ARG_BOOL: return TT_BOOL;
  case TT_ARG_INT: return TT_S64;
  case TT_ARG_DOUBLE: return TT_F64;
  case TT_ARG_COMPLEX: return TT_C128;
  default: return TT_DTYPE_NONE;
  }
}

tt_dtype tt_number_dtype(const tt_lowering *l, int arg) { return number_dtype(peek(l, arg)); }

// --- operands --------------------------------------------------------------------------------------------------------------

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
  int *order = arena_array(l, t->rank, sizeof *order);
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
  const tt_arg *a = peek(l, arg);
  return a->kind == TT_ARG_TENSOR && l->tensors[a->u.slot].defined ? &l->tensors[a->u.slot] : NULL;
}

tt_value *tt_operand(tt_lowering *l, int arg) {
  const tt_arg *a = arg_at(l, arg);
  if (a->kind == TT_ARG_TENSOR) return tt_lowering_read(l, a->u.slot);
  wrong_kind(l, arg, "tensor");
  return tt_hlo_constant(l->b, TT_F32, 0);
}

static tt_value *slot_as(tt_lowering *l, int slot, tt_dtype dtype) {
  const tt_tensor *t = &l->tensors[slot];
  // Converted on the host from the double that it is, as torch does.
  if (t->cpu_scalar && dtype != t->dtype && dtype != TT_BOOL) return l->source.cpu_scalar(l->source.user, slot, dtype);
  return tt_hlo_convert(l->b, tt_lowering_read(l, slot), dtype);
}

tt_value *tt_operand_as(tt_lowering *l, int arg, tt_dtype dtype) {
  const tt_arg *a = arg_at(l, arg);
  if (a->kind == TT_ARG_TENSOR) return slot_as(l, a->u.slot, dtype);
  return tt_number(l, arg, dtype);
}

int tt_list_count(const tt_lowering *l, int arg) { return peek(l, arg)->kind == TT_ARG_LIST ? peek(l, arg)->count : 0; }

const tt_tensor *tt_list_tensor(const tt_lowering *l, int arg, int item) {
  const tt_arg *a = peek(l, arg);
  if (a->kind != TT_ARG_LIST || item < 0 || item >= a->count || a->u.items[item].kind != TT_ARG_TENSOR) return NULL;
  const tt_tensor *t = &l->tensors[a->u.items[item].u.slot];
  return t->defined ? t : NULL;
}

bool tt_list_has(const tt_lowering *l, int arg, int item) { return tt_list_tensor(l, arg, item) != NULL; }

tt_value *tt_list_operand(tt_lowering *l, int arg, int item) {
  const tt_tensor *t = tt_list_tensor(l, arg, item);
  if (t) return tt_lowering_read(l, (int)(t - l->tensors));
  wrong_kind(l, arg, "tensor list");
  return tt_hlo_constant(l->b, TT_F32, 0);
}

tt_value *tt_list_operand_as(tt_lowering *l, int arg, int item, tt_dtype dtype) {
  const tt_tensor *t = tt_list_tensor(l, arg, item);
  return t ? slot_as(l, (int)(t - l->tensors), dtype) : tt_list_operand(l, arg, item);
}

// --- dimensions ------------------------------------------------------------------------------------------------------------

int tt_wrap_dim(tt_lowering *l, int64_t dim, int rank) {
  int limit = rank > 0 ? rank : 1;
  if (dim < -limit || dim >= limit) {
    tt_fail(l, TT_INDEX, "Dimension out of range (expected to be in range of [%d, %d], but got %lld)", -limit,
            limit - 1, (long long)dim);
    return 0;
  }
  return (int)(dim < 0 ? dim + limit : dim);
}

const int *tt_dims(tt_lowering *l, int arg, int rank, int *out_count) {
  int count;
  const int64_t *given = tt_has(l, arg) ? tt_ints(l, arg, &count) : NULL;
  bool all = !given || count == 0;
  int *dims = arena_array(l, rank, sizeof *dims);
  *out_count = 0;
  if (!dims) return NULL;
  uint64_t mask = 0;
  for (int i = 0; !all && i < count; ++i) {
    int dim = tt_wrap_dim(l, given[i], rank);
    if (mask >> dim & 1) tt_fail(l, TT_INVALID_ARGUMENT, "dim %d appears multiple times in the list of dims", dim);
    mask |= UINT64_C(1) << dim;
  }
  for (int i = 0; i < rank; ++i)
    if (all || (mask >> i & 1)) dims[(*out_count)++] = i;
  return dims;
}

// --- dtypes ----------------------------------------------------------------------------------------------------------------

// torch's ResultTypeState (ATen/native/TypeProperties.cpp): tensors with dimensions outrank 0-d ones, which outrank numbers.
typedef struct promotion {
  tt_dtype dim, zero, wrapped;
} promotion;

static tt_dtype promote_known(tt_dtype a, tt_dtype b) {
  if (a == TT_DTYPE_NONE) return b;
  return b == TT_DTYPE_NONE ? a : tt_dtype_promote(a, b);
}

static void promote_tensor(const tt_lowering *l, promotion *p, const tt_tensor *t) {
  tt_dtype dtype = t->dtype;
  if (t->wrapped_number) {
    if (tt_dtype_is_complex(dtype)) dtype = tt_dtype_complex(l->default_dtype);
    if (tt_dtype_is_float(dtype)) dtype = l->default_dtype;
    p->wrapped = promote_known(p->wrapped, dtype);
  } else if (t->rank > 0) {
    p->dim = promote_known(p->dim, dtype);
  } else {
    p->zero = promote_known(p->zero, dtype);
  }
}

static void promote_number(const tt_lowering *l, promotion *p, tt_dtype dtype) {
  if (dtype == TT_C128) dtype = tt_dtype_complex(l->default_dtype);
  if (dtype == TT_F64) dtype = l->default_dtype;
  p->wrapped = promote_known(p->wrapped, dtype);
}

static tt_dtype combine(tt_dtype higher, tt_dtype lower) {
  if (higher == TT_DTYPE_NONE) return lower;
  if (tt_dtype_is_complex(higher)) return higher;
  if (tt_dtype_is_float(higher)) {
    if (lower != TT_DTYPE_NONE && tt_dtype_is_complex(lower)) return tt_dtype_complex(higher);
    return higher;
  }
  if (lower == TT_DTYPE_NONE) return higher;
  if (higher == TT_BOOL || tt_dtype_is_float(lower) || tt_dtype_is_complex(lower)) return promote_known(higher, lower);
  return higher;
}

static tt_dtype promotion_result(tt_lowering *l, const promotion *p) {
  tt_dtype result = combine(p->dim, combine(p->zero, p->wrapped));
  if (result == TT_DTYPE_NONE) tt_builder_fail(l->b, tt_internal_error("%s: no dtype to promote to", l->op->name));
  return result;
}

tt_dtype tt_promote_item(tt_lowering *l, const int *args, int count, int item) {
  promotion p = {TT_DTYPE_NONE, TT_DTYPE_NONE, TT_DTYPE_NONE};
  for (int i = 0; i < count; ++i) {
    const tt_arg *a = peek(l, args[i]);
    if (a->kind == TT_ARG_LIST) a = item < a->count ? &a->u.items[item] : &none;
    if (a->kind == TT_ARG_TENSOR) {
      if (l->tensors[a->u.slot].defined) promote_tensor(l, &p, &l->tensors[a->u.slot]);
    } else if (a->kind != TT_ARG_NONE) {
      promote_number(l, &p, number_dtype(a));
    }
  }
  return promotion_result(l, &p);
}

tt_dtype tt_promote(tt_lowering *l, const int *args, int count) { return tt_promote_item(l, args, count, 0); }

tt_dtype tt_promote_list(tt_lowering *l, int arg) {
  promotion p = {TT_DTYPE_NONE, TT_DTYPE_NONE, TT_DTYPE_NONE};
  for (int i = 0; i < tt_list_count(l, arg); ++i) {
    const tt_tensor *t = tt_list_tensor(l, arg, i);
    if (t) promote_tensor(l, &p, t);
  }
  return promotion_result(l, &p);
}

tt_dtype tt_compute_dtype(tt_dtype dtype) { return tt_dtype_is_narrow_float(dtype) ? TT_F32 : dtype; }

tt_dtype tt_float_dtype(const tt_lowering *l, tt_dtype dtype) {
  return dtype == TT_BOOL || tt_dtype_is_integral(dtype) ? l->default_dtype : dtype;
}

tt_dtype tt_output_dtype(const tt_lowering *l, int result, tt_dtype otherwise) {
  return result < l->output_count ? l->tensors[l->outputs[result]].dtype : otherwise;
}

bool tt_output_shape(const tt_lowering *l, int result, int *out_rank, const int64_t **out_sizes) {
  if (result >= l->output_count) return false;
  *out_rank = l->tensors[l->outputs[result]].rank;
  *out_sizes = l->tensors[l->outputs[result]].sizes;
  return true;
}

// --- results ---------------------------------------------------------------------------------------------------------------

// Entry `index` of a growing array in the arena.
static tt_lowered *entry(tt_lowering *l, tt_lowered **items, int *count, int *capacity, int index) {
  if (index >= *capacity) {
    int grown = index < 8 ? 8 : 2 * index;
    tt_lowered *bigger = arena_array(l, grown, sizeof *bigger);
    if (!bigger) return NULL;
    if (*count) memcpy(bigger, *items, (size_t)*count * sizeof *bigger);
    *items = bigger;
    *capacity = grown;
  }
  if (index >= *count) *count = index + 1;
  return &(*items)[index];
}

void tt_set_result(tt_lowering *l, int result, tt_value *value) {
  tt_lowered *r = entry(l, &l->results, &l->result_count, &l->result_capacity, result);
  if (r) r->value = value;
}

void tt_set_channels_last(tt_lowering *l, int result, bool channels_last) {
  tt_lowered *r = entry(l, &l->results, &l->result_count, &l->result_capacity, result);
  if (r) r->channels_last = channels_last;
}

void tt_set_order(tt_lowering *l, int result, const int *order) {
  tt_lowered *r = entry(l, &l->results, &l->result_count, &l->result_capacity, result);
  if (r) r->order = order;
}

void tt_set_extents(tt_lowering *l, const tt_extent *extents, int count) {
  tt_builder *b = l->b;
  tt_value *rows[8];
  if (count > 8) tt_builder_fail(b, tt_internal_error("%s: %d results with extents", l->op->name, count));
  if (tt_failed(l)) return;
  for (int i = 0; i < count; ++i) {
    tt_value *size = extents[i].size ? tt_hlo_convert(b, extents[i].size, TT_S64) : tt_hlo_constant_i64(b, TT_S64, -1);
    tt_value *pair[] = {tt_hlo_constant_vector(b, TT_S64, 1, (int64_t[]){extents[i].dim}),
                        tt_hlo_reshape(b, size, 1, (int64_t[]){1})};
    rows[i] = tt_hlo_unsqueeze_dim(b, tt_hlo_concatenate(b, 2, pair, 0), 0);
  }
  tt_set_result(l, count, tt_hlo_concatenate(b, count, rows, 0));
}

void tt_set_order_like(tt_lowering *l, int result, int arg) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  tt_lowered *r = entry(l, &l->results, &l->result_count, &l->result_capacity, result);
  int *order = t ? arena_array(l, t->rank, sizeof *order) : NULL;
  if (!r || !order || !r->value || r->value->rank != t->rank) return;
  for (int i = 0; i < t->rank; ++i) { // insertion by descending stride; equal ones stay as they are
    int at = i;
    for (; at > 0 && t->strides[order[at - 1]] < t->strides[i]; --at) order[at] = order[at - 1];
    order[at] = i;
  }
  r->order = order;
}

void tt_write_operand(tt_lowering *l, int arg, tt_value *value) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  if (!t || t->cpu_scalar) {
    wrong_kind(l, arg, "device tensor to write");
    return;
  }
  tt_lowered *w = entry(l, &l->writes, &l->write_count, &l->write_capacity, l->write_count);
  if (!w) return;
  w->value = value;
  w->slot = (int)(t - l->tensors);
}

bool tt_is_channels_last(const tt_lowering *l, int arg) {
  const tt_tensor *t = tt_tensor_arg(l, arg);
  if (!t || (t->rank != 4 && t->rank != 5)) return false;
  // c10::is_channels_last_strides: strides ordered N, spatial..., C from large to small, with C innermost and not the
  // contiguous order.
  int64_t minimum = 0;
  if (t->strides[1] == 0) return false;
  int order[5] = {1};
  for (int i = 1; i < t->rank - 1; ++i) order[i] = t->rank - i; // W, H, (D)
  order[t->rank - 1] = 0;
  for (int i = 0; i < t->rank; ++i) {
    int d = order[i];
    if (t->sizes[d] == 0 || t->strides[d] < minimum) return false;
    if (d == 0 && minimum == t->strides[1]) return false;
    minimum = t->strides[d];
    if (t->sizes[d] > 1) minimum *= t->sizes[d];
  }
  return true;
}

void tt_fail(tt_lowering *l, tt_code code, const char *format, ...) {
  va_list list;
  va_start(list, format);
  tt_builder_fail(l->b, tt_error_v(code, format, list));
  va_end(list);
}

bool tt_failed(const tt_lowering *l) { return tt_builder_failed(l->b); }

// --- random numbers, checks --------------------------------------------------------------------------------------------------

tt_value *tt_random_bits(tt_lowering *l, int generator_arg, tt_dtype dtype, int rank, const int64_t *dims) {
  int64_t count = 1;
  for (int i = 0; i < rank; ++i) count *= dims[i];
  if (count == 0) return tt_hlo_splat(l->b, dtype, rank, dims, 0);
  const tt_arg *a = peek(l, generator_arg);
  tt_generator *generator = a->kind == TT_ARG_GENERATOR ? a->u.generator : NULL;
  tt_value *state = l->source.random_state(l->source.user, generator, count * (tt_dtype_size(dtype) / 4));
  return tt_hlo_rng_bits(l->b, state, dtype, rank, dims);
}

void tt_check_all(tt_lowering *l, tt_value *ok, tt_code code, const char *message) {
  if (tt_failed(l) || tt_value_count(ok) == 0) return;
  int *dims = arena_array(l, ok->rank, sizeof *dims);
  if (!dims) return;
  for (int i = 0; i < ok->rank; ++i) dims[i] = i;
  l->source.check(l->source.user, tt_hlo_reduce(l->b, ok, TT_REDUCE_AND, ok->rank, dims), code, message);
}

// --- shorthands --------------------------------------------------------------------------------------------------------------

tt_value *tt_add(tt_lowering *l, tt_value *x, tt_value *y) {
  tt_hlo_broadcast_both(l->b, &x, &y);
  return tt_hlo_add(l->b, x, y);
}

tt_value *tt_sub(tt_lowering *l, tt_value *x, tt_value *y) {
  tt_hlo_broadcast_both(l->b, &x, &y);
  return tt_hlo_subtract(l->b, x, y);
}

tt_value *tt_mul(tt_lowering *l, tt_value *x, tt_value *y) {
  tt_hlo_broadcast_both(l->b, &x, &y);
  return tt_hlo_multiply(l->b, x, y);
}

tt_value *tt_div(tt_lowering *l, tt_value *x, tt_value *y) {
  tt_hlo_broadcast_both(l->b, &x, &y);
  return tt_hlo_divide(l->b, x, y);
}
