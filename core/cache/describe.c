// describe.c - see describe.h.
#include "cache/describe.h"

#include <string.h>

enum { OPS_MAX = 6, TENSORS_MAX = 6, NAME_MAX_SIZE = 24 };

typedef struct piece {
  const char *data;
  size_t size;
} piece;

static bool piece_is(piece p, const char *text) { return p.size == strlen(text) && memcmp(p.data, text, p.size) == 0; }

// The part of `text` behind the first `word`; no data if it is not there.
static piece after(piece text, const char *word) {
  const char *found = text.size ? memmem(text.data, text.size, word, strlen(word)) : NULL;
  if (!found) return (piece){NULL, 0};
  found += strlen(word);
  return (piece){found, text.size - (size_t)(found - text.data)};
}

static piece word_at(piece text) {
  size_t size = 0;
  while (size < text.size && size < NAME_MAX_SIZE &&
         ((text.data[size] >= 'a' && text.data[size] <= 'z') || text.data[size] == '_'))
    ++size;
  return (piece){text.data, size};
}

// Ops that move or make values say little of what a program is for.
static bool is_plumbing(piece op) {
  return piece_is(op, "constant") || piece_is(op, "broadcast_in_dim") || piece_is(op, "reshape") ||
         piece_is(op, "convert") || piece_is(op, "reduce_precision") || piece_is(op, "iota");
}

// Lists the different ops in order; returns how many there are in all, listed or not.
static int list_ops(piece text, bool plumbing, tt_string *out) {
  piece seen[OPS_MAX];
  int count = 0, listed = 0;
  for (piece rest = after(text, "= stablehlo."); rest.data; rest = after(rest, "= stablehlo.")) {
    piece op = word_at(rest);
    if (!op.size || (!plumbing && is_plumbing(op))) continue;
    ++count;
    bool known = false;
    for (int i = 0; i < listed && !known; ++i)
      known = seen[i].size == op.size && memcmp(seen[i].data, op.data, op.size) == 0;
    if (known || listed == OPS_MAX) continue;
    tt_string_append(out, listed ? ", " : "");
    tt_string_append_n(out, op.data, op.size);
    seen[listed++] = op;
  }
  if (count > OPS_MAX) tt_string_printf(out, ", in all %d ops", count);
  return count;
}

// "4x3xf32" as f32[4,3]. A dimension's x follows a digit or a question mark, that of "complex" does not.
static void put_tensor(piece type, tt_string *out) {
  size_t element = type.size;
  while (element > 0 && !(type.data[element - 1] == 'x' && element > 1 && !(type.data[element - 2] >= 'a')))
    element -= 1;
  tt_string_append_n(out, type.data + element, type.size - element);
  if (memchr(type.data, '<', type.size)) tt_string_append(out, ">"); // complex<f32>: its end was taken for the tensor's
  if (element < 2) return;
  tt_string_append(out, "[");
  for (size_t i = 0; i + 1 < element; ++i) tt_string_append_n(out, type.data[i] == 'x' ? "," : &type.data[i], 1);
  tt_string_append(out, "]");
}

static void list_tensors(piece text, tt_string *out) {
  int count = 0;
  tt_string_append(out, "(");
  for (piece rest = after(text, "tensor<"); rest.data; rest = after(rest, "tensor<"), ++count) {
    const char *end = memchr(rest.data, '>', rest.size);
    if (!end || count > TENSORS_MAX) continue;
    tt_string_append(out, count ? ", " : "");
    if (count < TENSORS_MAX)
      put_tensor((piece){rest.data, (size_t)(end - rest.data)}, out);
    else
      tt_string_append(out, "...");
  }
  tt_string_append(out, ")");
}

void tt_describe_program(const char *text, int64_t size, tt_string *out) {
  piece head = after((piece){text, (size_t)size}, "@main(");
  const char *end = head.data ? memmem(head.data, head.size, "{\n", 2) : NULL;
  piece body = {text, (size_t)size};
  if (end) {
    body = (piece){end, head.size - (size_t)(end - head.data)};
    head.size = (size_t)(end - head.data);
  }
  if (!list_ops(body, false, out) && !list_ops(body, true, out)) tt_string_append(out, "no ops");
  piece results = end ? after(head, ") -> ") : (piece){NULL, 0};
  if (!results.data) return;
  tt_string_append(out, " ");
  list_tensors((piece){head.data, (size_t)(results.data - head.data)}, out);
  tt_string_append(out, " -> ");
  list_tensors(results, out);
}
