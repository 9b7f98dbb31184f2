// string.c - the growing text buffer.
#include "base/string.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"

#define STRING_FIRST_CAPACITY ((size_t)64)

// Makes room for `extra` bytes and the final NUL. False once the string has failed.
static bool reserve(tt_string *s, size_t extra) {
  if (s->failed) return false;
  size_t needed;
  if (__builtin_add_overflow(s->size, extra, &needed) || __builtin_add_overflow(needed, 1, &needed)) {
    s->failed = true;
    return false;
  }
  if (needed <= s->capacity) return true;

  size_t capacity = s->capacity != 0 ? s->capacity : STRING_FIRST_CAPACITY;
  while (capacity < needed) capacity = capacity <= SIZE_MAX / 2 ? capacity * 2 : needed;
  char *data = tt_realloc(s->data, capacity);
  if (data == NULL) {
    s->failed = true;
    return false;
  }
  s->data = data;
  s->capacity = capacity;
  return true;
}

void tt_string_append_n(tt_string *s, const char *text, size_t size) {
  if (!reserve(s, size)) return;
  if (size != 0) memcpy(s->data + s->size, text, size);
  s->size += size;
  s->data[s->size] = '\0';
}

void tt_string_append(tt_string *s, const char *text) { tt_string_append_n(s, text, strlen(text)); }

void tt_string_append_i64(tt_string *s, int64_t value) {
  char digits[20]; // INT64_MIN has a sign and 19 digits
  char *first = digits + sizeof(digits);
  // The magnitude as unsigned, since INT64_MIN has no positive counterpart.
  uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
  do {
    *--first = (char)('0' + rest % 10);
    rest /= 10;
  } while (rest != 0);
  if (value < 0) *--first = '-';
  tt_string_append_n(s, first, (size_t)(digits + sizeof(digits) - first));
}

void tt_string_vprintf(tt_string *s, const char *format, va_list args) {
  if (s->failed) return;
  va_list again;
  va_copy(again, args);
  // Most pieces fit what is left; the length is then known from the one pass.
  size_t room = s->capacity - s->size;
  int size = vsnprintf(room != 0 ? s->data + s->size : NULL, room, format, args);
  if (size < 0) {
    s->failed = true;
  } else if ((size_t)size >= room) {
    if (reserve(s, (size_t)size)) {
      vsnprintf(s->data + s->size, (size_t)size + 1, format, again);
      s->size += (size_t)size;
    }
  } else {
    s->size += (size_t)size;
  }
  // A piece that did not fit may have left its beginning behind.
  if (s->failed && s->data != NULL) s->data[s->size] = '\0';
  va_end(again);
}

void tt_string_printf(tt_string *s, const char *format, ...) {
  va_list args;
  va_start(args, format);
  tt_string_vprintf(s, format, args);
  va_end(args);
}

const char *tt_string_text(const tt_string *s) { return s->data != NULL ? s->data : ""; }

tt_status tt_string_status(const tt_string *s) {
  if (!s->failed) return TT_SUCCESS;
  return tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted: could not extend a text of %zu bytes", s->size);
}

void tt_string_clear(tt_string *s) {
  s->size = 0;
  s->failed = false;
  if (s->data != NULL) s->data[0] = '\0';
}

void tt_string_free(tt_string *s) {
  tt_free(s->data);
  *s = TT_STRING_INIT;
}
