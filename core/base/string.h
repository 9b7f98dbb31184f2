// string.h - a growing text buffer.
//
// Failure is sticky: after an allocation fails, appends do nothing and tt_string_status tells. Owned by one thread.
#ifndef TT_BASE_STRING_H_
#define TT_BASE_STRING_H_

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tt_string {
  char *data; // NUL-terminated once anything was appended; NULL before
  size_t size, capacity;
  bool failed;
} tt_string;

#define TT_STRING_INIT ((tt_string){NULL, 0, 0, false})

void tt_string_append(tt_string *s, const char *text);
void tt_string_append_n(tt_string *s, const char *text, size_t size);
void tt_string_append_i64(tt_string *s, int64_t value); // decimal; faster than the format below
void tt_string_printf(tt_string *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void tt_string_vprintf(tt_string *s, const char *format, va_list args);
const char *tt_string_text(const tt_string *s); // never NULL
tt_status tt_string_status(const tt_string *s); // TT_OUT_OF_MEMORY after a failed append
void tt_string_clear(tt_string *s);             // keeps the block, forgets a failure
void tt_string_free(tt_string *s);              // back to TT_STRING_INIT

#endif // TT_BASE_STRING_H_
