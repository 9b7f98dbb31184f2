// json.c - see json.h.
#include "base/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 }; // what is nested deeper is no document of ours, and would exhaust the stack

typedef struct reader {
  const char *begin, *at, *end;
  tt_arena *arena;
  int depth;
} reader;

static tt_status out_of_memory(void) { return tt_error(TT_OUT_OF_MEMORY, "out of host memory while reading JSON"); }

static tt_status refuse(const reader *r, const char *what) {
  int line = 1;
  for (const char *c = r->begin; c < r->at; ++c) line += *c == '\n';
  return tt_error(TT_VALUE, "line %d: %s", line, what);
}

static void skip_space(reader *r) {
  while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r')) ++r->at;
}

// Goes past `c` if it is next.
static bool take(reader *r, char c) {
  skip_space(r);
  if (r->at == r->end || *r->at != c) return false;
  ++r->at;
  return true;
}

static bool take_word(reader *r, const char *word) {
  size_t size = strlen(word);
  if ((size_t)(r->end - r->at) < size || memcmp(r->at, word, size) != 0) return false;
  r->at += size;
  return true;
}

// --- strings -----------------------------------------------------------------------------------------------------------------

static bool read_hex(reader *r, unsigned *out_unit) {
  if (r->end - r->at < 4) return false;
  *out_unit = 0;
  for (int i = 0; i < 4; ++i) {
    char c = *r->at++;
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
    if (digit < 0) return false;
    *out_unit = *out_unit * 16 + (unsigned)digit;
  }
  return true;
}

static char *put_utf8(char *out, unsigned point) {
  if (point < 0x80) {
    *out++ = (char)point;
  } else if (point < 0x800) {
    *out++ = (char)(0xC0 | point >> 6);
    *out++ = (char)(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    *out++ = (char)(0xE0 | point >> 12);
    *out++ = (char)(0x80 | (point >> 6 & 0x3F));
    *out++ = (char)(0x80 | (point & 0x3F));
  } else {
    *out++ = (char)(0xF0 | point >> 18);
    *out++ = (char)(0x80 | (point >> 12 & 0x3F));
    *out++ = (char)(0x80 | (point >> 6 & 0x3F));
    *out++ = (char)(0x80 | (point & 0x3F));
  }
  return out;
}

// What follows a backslash; NULL if it is nothing.
static char *read_escape(reader *r, char *out) {
  static const char NAMES[] = "\"\\/bfnrt", VALUES[] = "\"\\/\b\f\n\r\t";
  char c = r->at < r->end ? *r->at++ : '\0';
  const char *known = c ? strchr(NAMES, c) : NULL;
  if (known) {
    *out = VALUES[known - NAMES];
    return out + 1;
  }
  unsigned point, low;
  if (c != 'u' || !read_hex(r, &point)) return NULL;
  if (point >= 0xD800 && point < 0xDC00) { // the first half of a pair
    if (!take_word(r, "\\u") || !read_hex(r, &low) || low < 0xDC00 || low > 0xDFFF) return NULL;
    point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
  }
  return point ? put_utf8(out, point) : NULL; // C's strings hold no zero
}

static tt_status read_string(reader *r, const char **out_text) {
  const char *close = r->at; // the closing quote: escapes are no longer than what they stand for
  while (close < r->end && *close != '"') close += *close == '\\' && close + 1 < r->end ? 2 : 1;
  if (close >= r->end) return refuse(r, "a string without an end");
  char *text = tt_arena_allocate(r->arena, (size_t)(close - r->at) + 1, 1), *out = text;
  if (!text) return out_of_memory();
  while (*r->at != '"') {
    char c = *r->at++;
    if ((unsigned char)c < 0x20) return refuse(r, "a control character in a string");
    if (c != '\\')
      *out++ = c;
    else if (!(out = read_escape(r, out)))
      return refuse(r, "an unknown escape in a string");
  }
  ++r->at;
  *out_text = text;
  return TT_SUCCESS;
}

// --- values ------------------------------------------------------------------------------------------------------------------

static tt_status read_value(reader *r, tt_json **out_value);

static tt_status read_number(reader *r, tt_json *value) {
  char text[64];
  size_t size = 0;
  while (r->at + size < r->end && size < sizeof text - 1 && r->at[size] && strchr("+-0123456789.eE", r->at[size]))
    ++size;
  memcpy(text, r->at, size);
  text[size] = '\0';
  char *end;
  value->kind = TT_JSON_NUMBER;
  value->real = strtod(text, &end);
  if (size == 0 || *end) return refuse(r, "neither a value nor the end of one");
  errno = 0;
  value->integer = strtoll(text, &end, 10);
  value->is_integer = *end == '\0' && errno == 0;
  r->at += size;
  return TT_SUCCESS;
}

// An array or, with names, an object, whose opening bracket was taken.
static tt_status read_items(reader *r, tt_json *value, char close) {
  tt_json **at = &value->first;
  if (take(r, close)) return TT_SUCCESS;
  do {
    const char *name = NULL;
    if (close == '}') {
      if (!take(r, '"')) return refuse(r, "a member without a name");
      TT_TRY(read_string(r, &name));
      if (!take(r, ':')) return refuse(r, "a name without a value");
    }
    TT_TRY(read_value(r, at));
    (*at)->name = name;
    at = &(*at)->next;
    ++value->count;
  } while (take(r, ','));
  return take(r, close) ? TT_SUCCESS : refuse(r, "an array or object without an end");
}

static tt_status read_value(reader *r, tt_json **out_value) {
  tt_json *value = tt_arena_allocate(r->arena, 1, sizeof *value);
  if (!value) return out_of_memory();
  *out_value = value;
  if (take(r, '"')) {
    value->kind = TT_JSON_STRING;
    return read_string(r, &value->text);
  }
  bool is_object = take(r, '{');
  if (is_object || take(r, '[')) {
    if (++r->depth > MAX_DEPTH) return refuse(r, "too many levels");
    value->kind = is_object ? TT_JSON_OBJECT : TT_JSON_ARRAY;
    TT_TRY(read_items(r, value, is_object ? '}' : ']'));
    --r->depth;
    return TT_SUCCESS;
  }
  value->integer = take_word(r, "true");
  value->kind = TT_JSON_BOOL;
  if (value->integer || take_word(r, "false")) return TT_SUCCESS;
  value->kind = TT_JSON_NULL;
  return take_word(r, "null") ? TT_SUCCESS : read_number(r, value);
}

tt_status tt_json_read(const char *text, size_t size, tt_arena *arena, const tt_json **out_document) {
  reader r = {text, text, text + size, arena, 0};
  tt_json *document;
  TT_TRY(read_value(&r, &document));
  skip_space(&r);
  if (r.at != r.end) return refuse(&r, "something behind the document");
  *out_document = document;
  return TT_SUCCESS;
}

// --- looking -------------------------------------------------------------------------------------------------------------------

const tt_json *tt_json_member(const tt_json *object, const char *name) {
  if (!object || object->kind != TT_JSON_OBJECT) return NULL;
  const tt_json *member = object->first;
  while (member && strcmp(member->name, name) != 0) member = member->next;
  return member;
}

tt_status tt_json_text(const tt_json *object, const char *name, const char **out_text) {
  const tt_json *member = tt_json_member(object, name);
  if (!member || member->kind != TT_JSON_STRING) return tt_error(TT_VALUE, "no text \"%s\"", name);
  *out_text = member->text;
  return TT_SUCCESS;
}

tt_status tt_json_integer(const tt_json *object, const char *name, int64_t *out_integer) {
  const tt_json *member = tt_json_member(object, name);
  if (!member || member->kind != TT_JSON_NUMBER || !member->is_integer)
    return tt_error(TT_VALUE, "no integer \"%s\"", name);
  *out_integer = member->integer;
  return TT_SUCCESS;
}

tt_status tt_json_items(const tt_json *object, const char *name, const tt_json **out_array) {
  const tt_json *member = tt_json_member(object, name);
  if (!member || member->kind != TT_JSON_ARRAY) return tt_error(TT_VALUE, "no list \"%s\"", name);
  *out_array = member;
  return TT_SUCCESS;
}
