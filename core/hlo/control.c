// control.c - ops whose regions the caller writes, sort, while and case, and top_k, which is a sort to the plugins that know no better.
#include "hlo/internal.h"

static void results_like(tt_builder *b, int64_t id, int count, tt_value *const *xs, tt_value **out_results) {
  for (int i = 0; i < count; ++i)
    out_results[i] = tt_hlo_value(b, xs[i]->dtype, xs[i]->rank, xs[i]->dims, id, tt_hlo_result_sub(count, i));
}

// out_results may be the array of the operands: keep a copy. NULL on failure, with out_results poisoned.
static tt_value **copy_operands(tt_builder *b, const char *op, int count, tt_value *const *xs, tt_value **out_results) {
  if (count < 1) tt_builder_fail(b, tt_error(TT_MISMATCH, "%s: no operands", op));
  tt_value **copy = TT_HLO_READY_N(b, op, count, xs) ? tt_hlo_allocate(b, (size_t)count, sizeof *copy) : NULL;
  for (int i = 0; copy != NULL && i < count; ++i) copy[i] = xs[i];
  tt_hlo_poison_all(count, out_results);
  return copy;
}

void tt_hlo_sort(tt_builder *b, int count, tt_value *const *xs, int dim, bool stable, tt_body compare, void *user,
                 tt_value **out_results) {
  tt_value **operands = copy_operands(b, "sort", count, xs, out_results);
  if (operands == NULL) return;
  bool fits = dim >= 0 && dim < operands[0]->rank;
  for (int i = 1; i < count; ++i) fits &= tt_value_same_shape(operands[i], operands[0]);
  if (!fits) {
    TT_HLO_REFUSE_N(b, "sort", TT_HLO_TEXT(b, "wants one shape with dimension %d", dim), count, operands);
    return;
  }
  tt_value **likes = tt_hlo_allocate(b, 2 * (size_t)count, sizeof *likes);
  tt_value *boolean = tt_hlo_scalar_type(b, TT_BOOL);
  for (int i = 0; likes != NULL && i < count; ++i)
    likes[2 * i] = likes[2 * i + 1] = tt_hlo_scalar_type(b, operands[i]->dtype);
  if (b->failed) return;
  int64_t id = tt_emit_results(b, "\"stablehlo.sort\"", count);
  tt_emit_values(b, "(", count, operands);
  tt_emit(b, ") (");
  tt_emit_region(b, "sort", 2 * count, likes, 1, &boolean, compare, user);
  tt_emit(b, ") {dimension = ");
  tt_emit_i64(b, dim);
  tt_emit_bool(b, " : i64, is_stable = ", stable);
  tt_emit(b, "}");
  results_like(b, id, count, operands, out_results);
  tt_emit_signature_n(b, count, operands, count, out_results);
}

void tt_hlo_top_k(tt_builder *b, tt_value *x, int64_t k, tt_value **out_values, tt_value **out_indices) {
  *out_values = *out_indices = &tt_hlo_poison;
  if (!TT_HLO_READY(b, "top_k", x)) return;
  if (tt_dtype_is_complex(x->dtype) || x->rank < 1 || k < 1 || k > x->dims[x->rank - 1]) {
    TT_HLO_REFUSE(b, "top_k", TT_HLO_TEXT(b, "wants a real operand with at least %lld elements in a row", (long long)k),
                  x);
    return;
  }
  int64_t dims[TT_HLO_MAX_RANK];
  for (int i = 0; i < x->rank; ++i) dims[i] = i == x->rank - 1 ? k : x->dims[i];
  int64_t id = tt_emit_results(b, "chlo.top_k", 2);
  tt_emit_values(b, "(", 1, &x);
  tt_emit(b, ", k = ");
  tt_emit_i64(b, k);
  tt_emit(b, ") : ");
  tt_emit_type(&b->body, x);
  *out_values = tt_hlo_value(b, x->dtype, x->rank, dims, id, 0);
  *out_indices = tt_hlo_value(b, TT_S32, x->rank, dims, id, 1);
  tt_emit(b, " -> (");
  tt_emit_types(b, 2, (tt_value *[]){*out_values, *out_indices});
  tt_emit(b, ")\n");
}

void tt_hlo_while(tt_builder *b, int count, tt_value *const *initial, tt_body condition, tt_body body, void *user,
                  tt_value **out_results) {
  tt_value **operands = copy_operands(b, "while", count, initial, out_results);
  if (operands == NULL) return;
  tt_value *boolean = tt_hlo_scalar_type(b, TT_BOOL);
  int64_t id = tt_emit_results(b, "\"stablehlo.while\"", count);
  tt_emit_values(b, "(", count, operands);
  tt_emit(b, ") (");
  tt_emit_region(b, "while condition", count, operands, 1, &boolean, condition, user);
  tt_emit(b, ", ");
  tt_emit_region(b, "while body", count, operands, count, operands, body, user);
  tt_emit(b, ")");
  results_like(b, id, count, operands, out_results);
  tt_emit_signature_n(b, count, operands, count, out_results);
}

void tt_hlo_case(tt_builder *b, tt_value *index, int branch_count, tt_body body, void *const *users, int count,
                 tt_value *const *likes, tt_value **out_results) {
  tt_value **types = copy_operands(b, "case", count, likes, out_results);
  if (types == NULL || !TT_HLO_READY(b, "case", index)) return;
  if (index->dtype != TT_S32 || index->rank != 0 || branch_count < 1) {
    TT_HLO_REFUSE(b, "case", "wants an Int scalar and branches", index);
    return;
  }
  int64_t id = tt_emit_results(b, "\"stablehlo.case\"", count);
  tt_emit_values(b, "(", 1, &index);
  for (int i = 0; i < branch_count; ++i) {
    tt_emit(b, i == 0 ? ") (" : ", ");
    tt_emit_region(b, "case", 0, NULL, count, types, body, users[i]);
  }
  tt_emit(b, ")");
  results_like(b, id, count, types, out_results);
  tt_emit_signature_n(b, 1, &index, count, out_results);
}

// The state of the while is the operands and whether the body is still to run.
typedef struct when {
  tt_body body;
  void *user;
  int count;
} when;

static void when_is_open(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  (void)b;
  results[0] = state[((const when *)user)->count];
}

static void when_step(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  const when *w = user;
  w->body(b, state, results, w->user);
  results[w->count] = tt_hlo_constant(b, TT_BOOL, 0);
}

void tt_hlo_when(tt_builder *b, tt_value *condition, int count, tt_value *const *xs, tt_body body, void *user,
                 tt_value **out_results) {
  tt_value **operands = copy_operands(b, "when", count, xs, out_results);
  tt_value **state = operands ? tt_hlo_allocate(b, (size_t)count + 1, sizeof *state) : NULL;
  if (state == NULL) return;
  for (int i = 0; i < count; ++i) state[i] = operands[i];
  state[count] = condition;
  when w = {.body = body, .user = user, .count = count};
  tt_hlo_while(b, count + 1, state, when_is_open, when_step, &w, state);
  for (int i = 0; i < count; ++i) out_results[i] = state[i];
}
