// lowering.c - what a lowering asks of its call's arguments, how it draws random bits, checks and fails. See lowering.h.
#include "op/lowering.h"

#include "op/internal.h"

// --- failures and memory -------------------------------------------------------------------------------------------------------

void tt_fail(tt_lowering *l, tt_code code, const char *format, ...) {
  va_list list;
  va_start(list, format);
  tt_builder_fail(l->b, tt_error_v(code, format, list));
  va_end(list);
}

bool tt_failed(const tt_lowering *l) { return tt_builder_failed(l->b); }

void *tt_lowering_array(tt_lowering *l, int count, size_t size) {
  void *block = tt_arena_allocate(tt_builder_arena(l->b), (size_t)(count > 0 ? count : 1), size);
  if (!block) tt_builder_fail(l->b, tt_error(TT_OUT_OF_MEMORY, "out of host memory while lowering %s", l->op->name));
  return block;
}

// --- arguments -----------------------------------------------------------------------------------------------------------

static const tt_arg none = {.kind = TT_ARG_NONE};

const tt_arg *tt_lowering_arg(tt_lowering *l, int arg) {
  if (arg >= 0 && arg < l->arg_count) return &l->args[arg];
  tt_builder_fail(l->b, tt_internal_error("%s has no argument %d", l->op->name, arg));
  return &none;
}

const tt_arg *tt_lowering_peek(const tt_lowering *l, int arg) {
  return arg >= 0 && arg < l->arg_count ? &l->args[arg] : &none;
}

// None, and a list that is too short or holds None, are the caller's.
void tt_lowering_wrong_kind(tt_lowering *l, int arg, const char *wanted) {
  if (tt_lowering_peek(l, arg)->kind == TT_ARG_NONE || tt_lowering_peek(l, arg)->kind == TT_ARG_LIST) {
    tt_builder_fail(l->b, tt_error(TT_MISMATCH, "argument %d, or an item of it, is no %s", arg, wanted));
    return;
  }
  tt_builder_fail(l->b, tt_internal_error("%s: argument %d is no %s (kind %d)", l->op->name, arg, wanted,
                                          (int)tt_lowering_peek(l, arg)->kind));
}

bool tt_has(const tt_lowering *l, int arg) {
  const tt_arg *a = tt_lowering_peek(l, arg);
  if (a->kind == TT_ARG_TENSOR) return l->tensors[a->u.slot].defined;
  return a->kind != TT_ARG_NONE;
}

static bool is_static(const tt_lowering *l, const tt_arg *a) {
  return !a->number || (l->op->flags & TT_OP_STATIC_NUMBERS);
}

int64_t tt_int(tt_lowering *l, int arg) {
  const tt_arg *a = tt_lowering_arg(l, arg);
  if (!is_static(l, a)) {
    tt_lowering_wrong_kind(l, arg, "static number: the row lacks TT_OP_STATIC_NUMBERS");
    return 0;
  }
  if (a->kind == TT_ARG_INT || a->kind == TT_ARG_BOOL) return a->u.integer;
  if (a->kind == TT_ARG_DOUBLE) return (int64_t)a->u.real;
  tt_lowering_wrong_kind(l, arg, "int");
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
  const tt_arg *a = tt_lowering_arg(l, arg);
  if (a->kind == TT_ARG_STRING) return a->u.string;
  if (a->kind != TT_ARG_NONE) tt_lowering_wrong_kind(l, arg, "string");
  return "";
}

static double static_double(const tt_arg *a) { return a->kind == TT_ARG_DOUBLE ? a->u.real : (double)a->u.integer; }

double tt_double(tt_lowering *l, int arg) {
  const tt_arg *a = tt_lowering_arg(l, arg);
  bool numeric = a->kind == TT_ARG_DOUBLE || a->kind == TT_ARG_INT || a->kind == TT_ARG_BOOL;
  if (numeric && is_static(l, a)) return static_double(a);
  tt_lowering_wrong_kind(l, arg, "static number (does the row have TT_OP_STATIC_NUMBERS?)");
  return 0;
}

double tt_double_or(tt_lowering *l, int arg, double otherwise) {
  return tt_has(l, arg) ? tt_double(l, arg) : otherwise;
}

const int64_t *tt_ints(tt_lowering *l, int arg, int *out_count) {
  const tt_arg *a = tt_lowering_arg(l, arg);
  *out_count = 0;
  if (a->kind == TT_ARG_NONE) return NULL;
  bool one = a->kind == TT_ARG_INT;
  if (!one && a->kind != TT_ARG_LIST) {
    tt_lowering_wrong_kind(l, arg, "int list");
    return NULL;
  }
  int count = one ? 1 : a->count;
  int64_t *values = tt_lowering_array(l, count, sizeof *values);
  if (!values) return NULL;
  for (int i = 0; i < count; ++i) values[i] = one ? a->u.integer : a->u.items[i].u.integer;
  *out_count = count;
  return values;
}

const double *tt_doubles(tt_lowering *l, int arg, int *out_count) {
  const tt_arg *a = tt_lowering_arg(l, arg);
  *out_count = 0;
  if (a->kind == TT_ARG_NONE) return NULL;
  if (a->kind != TT_ARG_LIST || (a->count && !is_static(l, &a->u.items[0]))) {
    tt_lowering_wrong_kind(l, arg, "static float list");
    return NULL;
  }
  double *values = tt_lowering_array(l, a->count, sizeof *values);
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
    tt_lowering_wrong_kind(l, arg, "number");
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

tt_value *tt_number(tt_lowering *l, int arg, tt_dtype dtype) {
  return number_value(l, tt_lowering_arg(l, arg), arg, dtype);
}

tt_value *tt_list_number(tt_lowering *l, int arg, int item, tt_dtype dtype) {
  const tt_arg *a = tt_lowering_arg(l, arg);
  if (a->kind == TT_ARG_LIST && item < a->count) return number_value(l, &a->u.items[item], arg, dtype);
  tt_lowering_wrong_kind(l, arg, "number list");
  return tt_hlo_constant(l->b, dtype, 0);
}

bool tt_number_is_one(const tt_lowering *l, int arg) {
  const tt_arg *a = tt_lowering_peek(l, arg);
  if (!is_static(l, a)) return false;
  return (a->kind == TT_ARG_INT && a->u.integer == 1) || (a->kind == TT_ARG_DOUBLE && a->u.real == 1);
}

tt_dtype tt_arg_number_dtype(const tt_arg *a) {
  switch (a->kind) {
  case TT_ARG_BOOL: return TT_BOOL;
  case TT_ARG_INT: return TT_S64;
  case TT_ARG_DOUBLE: return TT_F64;
  case TT_ARG_COMPLEX: return TT_C128;
  default: return TT_DTYPE_NONE;
  }
}

tt_dtype tt_number_dtype(const tt_lowering *l, int arg) { return tt_arg_number_dtype(tt_lowering_peek(l, arg)); }

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
  int *dims = tt_lowering_array(l, rank, sizeof *dims);
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

// --- random numbers, checks --------------------------------------------------------------------------------------------------

tt_value *tt_random_bits(tt_lowering *l, int generator_arg, tt_dtype dtype, int rank, const int64_t *dims) {
  int64_t count = 1;
  for (int i = 0; i < rank; ++i) count *= dims[i];
  if (count == 0) return tt_hlo_splat(l->b, dtype, rank, dims, 0);
  const tt_arg *a = tt_lowering_peek(l, generator_arg);
  tt_generator *generator = a->kind == TT_ARG_GENERATOR ? a->u.generator : NULL;
  tt_value *state = l->source.random_state(l->source.user, generator, count * (tt_dtype_size(dtype) / 4));
  return tt_hlo_rng_bits(l->b, state, dtype, rank, dims);
}

void tt_check_all(tt_lowering *l, tt_value *ok, tt_code code, const char *message) {
  if (tt_failed(l) || tt_value_count(ok) == 0) return;
  int *dims = tt_lowering_array(l, ok->rank, sizeof *dims);
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
