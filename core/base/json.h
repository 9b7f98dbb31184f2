// json.h - reading JSON (RFC 8259): what the core takes from files that people and other programs write.
//
// A document is read whole into an arena, which owns all of it. Any thread may read different documents.
#ifndef TT_BASE_JSON_H_
#define TT_BASE_JSON_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

typedef enum tt_json_kind {
  TT_JSON_NULL,
  TT_JSON_BOOL,
  TT_JSON_NUMBER,
  TT_JSON_STRING,
  TT_JSON_ARRAY,
  TT_JSON_OBJECT
} tt_json_kind;

typedef struct tt_json {
  tt_json_kind kind;
  bool is_integer;       // of a NUMBER: `integer` is its value
  int64_t integer;       // of a BOOL: 0 or 1
  double real;           // of a NUMBER
  const char *text;      // of a STRING, in UTF-8
  const char *name;      // of a member of an object
  int count;             // of items
  struct tt_json *first; // item of an array or an object
  struct tt_json *next;  // in the same array or object
} tt_json;

// Reads `size` bytes. Errors: TT_VALUE with the line of what is wrong, TT_OUT_OF_MEMORY.
tt_status tt_json_read(const char *text, size_t size, tt_arena *arena, const tt_json **out_document);

// The member of an object; NULL if `object` is NULL, is none, or has no such member. Of two of a name the first.
const tt_json *tt_json_member(const tt_json *object, const char *name);
// The member's text or number; TT_VALUE if there is none or if it is of another kind.
tt_status tt_json_text(const tt_json *object, const char *name, const char **out_text);
tt_status tt_json_integer(const tt_json *object, const char *name, int64_t *out_integer);
tt_status tt_json_items(const tt_json *object, const char *name, const tt_json **out_array);

#endif // TT_BASE_JSON_H_
