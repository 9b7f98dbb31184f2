// builder.c - the builder's life, its failure, parameters, and the module text.
#include "hlo/builder.h"

#include <string.h>

#include "base/memory.h"
#include "hlo/internal.h"

// --- poison -------------------------------------------------------------------------------------------------------------

#define TT_ONES_8 1, 1, 1, 1, 1, 1, 1, 1
#define TT_ONES_64 TT_ONES_8, TT_ONES_8, TT_ONES_8, TT_ONES_8, TT_ONES_8, TT_ONES_8, TT_ONES_8, TT_ONES_8
static const int64_t poison_dims[2 * TT_HLO_MAX_RANK] = {TT_ONES_64, TT_ONES_64};
tt_value tt_hlo_poison = {.dtype = TT_F32, .rank = 0, .dims = poison_dims + TT_HLO_MAX_RANK, .id = 0, .sub = -1};

void tt_hlo_poison_all(int count, tt_value **results) {
  for (int i = 0; i < count; ++i) results[i] = &tt_hlo_poison;
}

// --- life ---------------------------------------------------------------------------------------------------------------

tt_status tt_builder_create(const tt_target *target, tt_builder **out_builder) {
  void *block;
  TT_TRY(tt_allocate(1, sizeof(tt_builder), &block));
  tt_builder *b = block;
  if (target != NULL) b->target = *target;
  b->arena = TT_ARENA_INIT;
  b->body = TT_STRING_INIT;
  b->module = TT_STRING_INIT;
  *out_builder = b;
  return TT_SUCCESS;
}

void tt_builder_free(tt_builder *b) {
  if (b == NULL) return;
  tt_status_free(b->status);
  tt_string_free(&b->body);
  tt_string_free(&b->module);
  tt_arena_clear(&b->arena);
  tt_free(b->parameters);
  tt_free(b->aliases);
  tt_free(b);
}

tt_arena *tt_builder_arena(tt_builder *b) { return &b->arena; }

const tt_target *tt_builder_target(const tt_builder *b) { return &b->target; }

int64_t tt_builder_op_count(const tt_builder *b) { return b->op_count; }

// --- failure ------------------------------------------------------------------------------------------------------------

tt_value *tt_builder_fail(tt_builder *b, tt_status status) {
  if (status == NULL) status = tt_internal_error("tt_builder_fail was given success");
  if (b->failed) {
    tt_status_free(status);
  } else {
    b->status = status;
    b->failed = true;
  }
  return &tt_hlo_poison;
}

bool tt_builder_failed(const tt_builder *b) { return b->failed || b->body.failed; }

tt_status tt_builder_take_status(tt_builder *b) {
  if (!b->failed && b->body.failed) tt_builder_fail(b, tt_string_status(&b->body));
  tt_status status = b->status;
  b->status = NULL;
  return status;
}

bool tt_hlo_ready_at(tt_builder *b, const char *file, int line, const char *op, int count, tt_value *const *operands) {
  if (b->failed) return false;
  for (int i = 0; i < count; ++i) {
    if (__builtin_expect(operands[i] != NULL, 1)) continue;
    const char *slash = strrchr(file, '/');
    tt_builder_fail(b, tt_error(TT_MISMATCH, "%s: operand %d of %d is absent (%s:%d)", op, i, count,
                                slash != NULL ? slash + 1 : file, line));
    return false;
  }
  return true;
}

tt_value *tt_hlo_refuse_at(tt_builder *b, const char *file, int line, const char *op, const char *reason, int count,
                           tt_value *const *operands) {
  if (b->failed) return &tt_hlo_poison;
  tt_string text = TT_STRING_INIT;
  for (int i = 0; i < count; ++i) {
    tt_string_append(&text, i == 0 ? ", got " : ", ");
    tt_string_append(&text, operands[i] == NULL ? "nothing" : tt_hlo_value_text(b, operands[i]));
  }
  const char *slash = strrchr(file, '/');
  tt_status status = tt_error(TT_MISMATCH, "%s: %s%s (%s:%d)", op, reason == NULL ? "operands do not fit" : reason,
                              tt_string_text(&text), slash != NULL ? slash + 1 : file, line);
  tt_string_free(&text);
  return tt_builder_fail(b, status);
}

void *tt_hlo_allocate(tt_builder *b, size_t count, size_t size) {
  void *block = tt_arena_allocate(&b->arena, count, size);
  if (block == NULL)
    tt_builder_fail(b, tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted while building a program"));
  return block;
}

// --- dims ---------------------------------------------------------------------------------------------------------------

const int64_t *tt_guard_dims(int64_t *block, int rank, const int64_t *dims) {
  for (int i = 0; i < TT_DIMS_GUARD; ++i) block[i] = block[TT_DIMS_GUARD + rank + i] = 1;
  if (rank > 0) memcpy(block + TT_DIMS_GUARD, dims, (size_t)rank * sizeof *dims);
  return block + TT_DIMS_GUARD;
}

// --- values -------------------------------------------------------------------------------------------------------------

int64_t tt_hlo_next_id(tt_builder *b) { return b->next_id++; }

tt_value *tt_hlo_value(tt_builder *b, tt_dtype dtype, int rank, const int64_t *dims, int64_t id, int sub) {
  if (b->failed) return &tt_hlo_poison;
  if (b->body.failed) return tt_builder_fail(b, tt_string_status(&b->body));
  if (dtype <= TT_DTYPE_NONE || dtype >= TT_DTYPE_COUNT)
    return tt_builder_fail(b, tt_internal_error("a value of dtype %d", (int)dtype));
  if (rank < 0 || rank > TT_HLO_MAX_RANK)
    return tt_builder_fail(
        b, tt_error(TT_NOT_IMPLEMENTED, "a tensor of %d dimensions; at most %d are supported", rank, TT_HLO_MAX_RANK));
  int64_t bytes = tt_dtype_size(dtype);
  bool fits = true;
  for (int i = 0; i < rank; ++i) {
    if (dims[i] < 0 || (dims[i] != 0 && !tt_mul_i64(bytes, dims[i], &bytes))) fits = false;
  }
  if (!fits)
    return tt_builder_fail(b, tt_error(TT_MISMATCH, "%s%s is negative or too large", tt_dtype_text(dtype),
                                       tt_shape_text(&b->arena, rank, dims)));
  // The dims stand right behind the value: one block instead of two.
  tt_value *x = tt_hlo_allocate(b, 1, sizeof(tt_value) + tt_guarded_size(rank) * sizeof(int64_t));
  if (x == NULL) return &tt_hlo_poison;
  *x = (tt_value){
      .dtype = dtype, .rank = rank, .dims = tt_guard_dims((int64_t *)(x + 1), rank, dims), .id = id, .sub = sub};
  return x;
}

int64_t tt_value_count(const tt_value *x) {
  int64_t count = 1;
  for (int i = 0; i < x->rank; ++i) {
    if (x->dims[i] == 0) return 0;
    count *= x->dims[i]; // tt_hlo_value made sure that it fits
  }
  return count;
}

bool tt_hlo_same_dims(int rank, const int64_t *x, const int64_t *y) {
  for (int i = 0; i < rank; ++i) {
    if (x[i] != y[i]) return false;
  }
  return true;
}

bool tt_value_same_shape(const tt_value *x, const tt_value *y) {
  return x->rank == y->rank && tt_hlo_same_dims(x->rank, x->dims, y->dims);
}

bool tt_hlo_same_type(const tt_value *x, const tt_value *y) {
  return x->dtype == y->dtype && tt_value_same_shape(x, y);
}

bool tt_hlo_is_f8(tt_dtype dtype) { return tt_dtype_is_float(dtype) && tt_dtype_size(dtype) == 1; }

bool tt_hlo_distinct_dims(int rank, int count, const int *dims) {
  uint64_t seen = 0;
  for (int i = 0; i < count; ++i) {
    if (dims[i] < 0 || dims[i] >= rank || (seen >> dims[i] & 1) != 0) return false;
    seen |= UINT64_C(1) << dims[i];
  }
  return true;
}

const char *tt_shape_text(tt_arena *arena, int rank, const int64_t *dims) {
  tt_string text = TT_STRING_INIT;
  tt_string_append(&text, "[");
  for (int i = 0; i < rank; ++i) {
    if (i > 0) tt_string_append(&text, ", ");
    tt_string_append_i64(&text, dims[i]);
  }
  tt_string_append(&text, "]");
  const char *copy = text.failed ? NULL : tt_arena_copy(arena, tt_string_text(&text), text.size + 1);
  tt_string_free(&text);
  return copy == NULL ? "[?]" : copy;
}

const char *tt_hlo_value_text(tt_builder *b, const tt_value *x) {
  const char *text =
      tt_arena_format(&b->arena, "%s%s", tt_dtype_text(x->dtype), tt_shape_text(&b->arena, x->rank, x->dims));
  return text == NULL ? "?" : text;
}

// --- parameters -----------------------------------------------------------------------------------------------------------

static bool reserve_parameter(tt_builder *b) {
  if (b->parameter_count < b->parameter_capacity) return true;
  int capacity = b->parameter_capacity == 0 ? 16 : 2 * b->parameter_capacity;
  tt_value **parameters = tt_realloc_array(b->parameters, (size_t)capacity, sizeof *parameters);
  if (parameters != NULL) b->parameters = parameters;
  int *aliases = parameters == NULL ? NULL : tt_realloc_array(b->aliases, (size_t)capacity, sizeof *aliases);
  if (aliases == NULL) {
    tt_builder_fail(b, tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted while building a program"));
    return false;
  }
  b->aliases = aliases;
  b->parameter_capacity = capacity;
  return true;
}

tt_value *tt_builder_parameter(tt_builder *b, tt_dtype dtype, int rank, const int64_t *dims) {
  if (b->failed || !reserve_parameter(b)) return &tt_hlo_poison;
  tt_value *x = tt_hlo_value(b, dtype, rank, dims, tt_hlo_next_id(b), -1);
  if (b->failed) return x;
  b->parameters[b->parameter_count] = x;
  b->aliases[b->parameter_count] = -1;
  ++b->parameter_count;
  return x;
}

int tt_builder_parameter_count(const tt_builder *b) { return b->parameter_count; }

void tt_builder_alias(tt_builder *b, int parameter, int output) {
  if (b->failed) return;
  bool fits = parameter >= 0 && parameter < b->parameter_count && output >= 0 && b->aliases[parameter] < 0;
  for (int i = 0; fits && i < b->parameter_count; ++i) fits = b->aliases[i] != output;
  if (!fits) {
    tt_builder_fail(
        b, tt_internal_error("alias of parameter %d and output %d: one is out of range or taken", parameter, output));
    return;
  }
  b->aliases[parameter] = output;
}

// --- module text ----------------------------------------------------------------------------------------------------------

static void check_aliases(tt_builder *b, int count, tt_value *const *results) {
  for (int i = 0; i < b->parameter_count && !b->failed; ++i) {
    int output = b->aliases[i];
    if (output < 0) continue;
    if (output >= count)
      tt_builder_fail(b, tt_internal_error("parameter %d is aliased to output %d of %d", i, output, count));
    else if (!tt_hlo_same_type(b->parameters[i], results[output]))
      TT_HLO_REFUSE(b, "alias", "parameter and output differ in type", b->parameters[i], results[output]);
  }
}

static void append_types(tt_string *text, int count, tt_value *const *xs) {
  for (int i = 0; i < count; ++i) {
    if (i > 0) tt_string_append(text, ", ");
    tt_emit_type(text, xs[i]);
  }
}

static void append_parameters(tt_builder *b, tt_string *text) {
  for (int i = 0; i < b->parameter_count; ++i) {
    tt_string_append(text, i == 0 ? "%" : ", %");
    tt_string_append_i64(text, b->parameters[i]->id);
    tt_string_append(text, ": ");
    tt_emit_type(text, b->parameters[i]);
    if (b->aliases[i] < 0) continue;
    tt_string_append(text, " {tf.aliasing_output = ");
    tt_string_append_i64(text, b->aliases[i]);
    tt_string_append(text, " : i32}");
  }
}

static void append_return(tt_string *text, int count, tt_value *const *results) {
  tt_string_append(text, "return");
  for (int i = 0; i < count; ++i) {
    tt_string_append(text, i == 0 ? " %" : ", %");
    tt_string_append_i64(text, results[i]->id);
    if (results[i]->sub < 0) continue;
    tt_string_append(text, "#");
    tt_string_append_i64(text, results[i]->sub);
  }
  if (count > 0) tt_string_append(text, " : ");
  append_types(text, count, results);
  tt_string_append(text, "\n");
}

tt_status tt_builder_finish(tt_builder *b, int count, tt_value *const *results, const char **out_text,
                            int64_t *out_size) {
  if (TT_HLO_READY_N(b, "return", count, results)) check_aliases(b, count, results);
  if (tt_builder_failed(b)) {
    tt_status status = tt_builder_take_status(b);
    return status != NULL ? status : tt_internal_error("the program's failure was taken out before");
  }
  tt_string *text = &b->module;
  tt_string_clear(text);
  tt_string_append(text, "module @torch_tpu {\nfunc.func public @main(");
  append_parameters(b, text);
  tt_string_append(text, ") -> (");
  append_types(text, count, results);
  tt_string_append(text, ") {\n");
  tt_string_append_n(text, tt_string_text(&b->body), b->body.size);
  append_return(text, count, results);
  tt_string_append(text, "}\n}\n");
  TT_TRY(tt_string_status(text));
  *out_text = tt_string_text(text);
  *out_size = (int64_t)text->size;
  return TT_SUCCESS;
}
