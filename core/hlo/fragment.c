// fragment.c - see fragment.h.
#include "hlo/fragment.h"

#include <string.h>

#include "hlo/internal.h"

static tt_status out_of_memory(void) {
  return tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted while building a program");
}

static const tt_value *copy_values(tt_arena *arena, int count, tt_value *const *values) {
  tt_value *copy = tt_arena_allocate(arena, (size_t)count + 1, sizeof *copy);
  for (int i = 0; copy != NULL && i < count; ++i) {
    copy[i] = *values[i];
    if (values[i]->rank == 0) continue;
    copy[i].dims = tt_arena_copy(arena, values[i]->dims, (size_t)values[i]->rank * sizeof *values[i]->dims);
    if (copy[i].dims == NULL) return NULL;
  }
  return copy;
}

tt_status tt_fragment_take(tt_builder *b, int count, tt_value *const *results, tt_arena *arena,
                           tt_fragment *out_fragment) {
  TT_HLO_READY_N(b, "return", count, results);
  if (tt_builder_failed(b)) {
    tt_status status = tt_builder_take_status(b);
    return status != NULL ? status : tt_internal_error("the program's failure was taken out before");
  }
  *out_fragment = (tt_fragment){
      .body = tt_arena_copy(arena, tt_string_text(&b->body), b->body.size + 1),
      .size = b->body.size,
      .id_count = b->next_id,
      .op_count = b->op_count,
      .parameter_count = b->parameter_count,
      .result_count = count,
      .parameters = copy_values(arena, b->parameter_count, b->parameters),
      .results = copy_values(arena, count, results),
  };
  if (out_fragment->body == NULL || out_fragment->parameters == NULL || out_fragment->results == NULL)
    return out_of_memory();
  return TT_SUCCESS;
}

// What each parameter's id stands for; NULL for the ids of ops. NULL on failure.
static tt_value **match_operands(tt_builder *b, const tt_fragment *f, tt_value *const *operands) {
  if (!TT_HLO_READY_N(b, "inline", f->parameter_count, operands)) return NULL;
  tt_value **by_id = tt_hlo_allocate(b, (size_t)f->id_count + 1, sizeof *by_id);
  for (int i = 0; by_id != NULL && i < f->parameter_count; ++i) {
    if (!tt_hlo_same_type(&f->parameters[i], operands[i])) {
      TT_HLO_REFUSE(b, "inline", TT_HLO_TEXT(b, "parameter %d is of another type than its operand", i), operands[i]);
      return NULL;
    }
    by_id[f->parameters[i].id] = operands[i];
  }
  return by_id;
}

// Copies the text with its values renamed: those of ops by adding `base`.
static void append_renamed(tt_builder *b, const tt_fragment *f, tt_value *const *by_id, int64_t base) {
  const char *at = f->body, *end = f->body + f->size;
  bool quoted = false; // in a string, where % is a character
  while (at < end) {
    const char *next = at;
    while (next < end && (quoted || *next != '%')) quoted ^= *next++ == '"';
    tt_string_append_n(&b->body, at, (size_t)(next - at));
    if (next == end) return;
    int64_t id = 0;
    for (at = next + 1; at < end && *at >= '0' && *at <= '9'; ++at) id = 10 * id + (*at - '0');
    if (id < f->id_count && by_id[id] != NULL) {
      tt_emit_value(b, by_id[id]);
    } else {
      tt_string_append_n(&b->body, "%", 1);
      tt_string_append_i64(&b->body, base + id);
    }
  }
}

void tt_fragment_inline(tt_builder *b, const tt_fragment *f, tt_value *const *operands, tt_value **out_results) {
  tt_hlo_poison_all(f->result_count, out_results);
  tt_value **by_id = match_operands(b, f, operands);
  if (by_id == NULL) return;
  int64_t base = b->next_id;
  append_renamed(b, f, by_id, base);
  b->next_id += f->id_count;
  b->op_count += f->op_count;
  for (int i = 0; i < f->result_count; ++i) {
    const tt_value *r = &f->results[i];
    out_results[i] = by_id[r->id];
    if (out_results[i] != NULL) continue;
    out_results[i] = tt_hlo_value(b, r->dtype, r->rank, r->dims, base + r->id, r->sub);
    if (b->failed) continue;
    out_results[i]->transposed = r->transposed;
    out_results[i]->product = r->product;
  }
}
