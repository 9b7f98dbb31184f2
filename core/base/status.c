// status.c - failed statuses: one heap block each, code and message together.
#include "base/status.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

struct tt_status_body {
  _Atomic int64_t *count; // of such failures, for when the user is told; NULL: none
  tt_code code;
  char message[];
};

// What is returned when there is no memory left to describe a failure with. Never freed. A struct of its own, since C
// gives a flexible array member static storage only as an extension.
static struct exhausted {
  _Atomic int64_t *count;
  tt_code code;
  char message[32];
} exhausted = {NULL, TT_OUT_OF_MEMORY, "host memory is exhausted"};

_Static_assert(offsetof(struct tt_status_body, code) == offsetof(struct exhausted, code) &&
                   offsetof(struct tt_status_body, message) == offsetof(struct exhausted, message),
               "exhausted stands in for a body");

static tt_status exhausted_status(void) { return (tt_status)&exhausted; }

static const struct {
  const char *name, *python;
} codes[] = {
#define X(name, python, text) {#name, python},
    TT_CODES(X)
#undef X
};

// A body whose message has room for `size` bytes and the final NUL; NULL when memory is exhausted.
static tt_status body_create(tt_code code, size_t size) {
  tt_status status = tt_malloc(sizeof(struct tt_status_body) + size + 1);
  if (status == NULL) return NULL;
  status->count = NULL;
  status->code = code;
  return status;
}

// The length of the formatted text, 0 if the format is faulty.
static size_t format_size(const char *format, va_list args) {
  va_list again;
  va_copy(again, args);
  int size = vsnprintf(NULL, 0, format, again);
  va_end(again);
  return size > 0 ? (size_t)size : 0;
}

tt_status tt_error_v(tt_code code, const char *format, va_list args) {
  size_t size = format_size(format, args);
  tt_status status = body_create(code, size);
  if (status == NULL) return exhausted_status();
  status->message[0] = '\0';
  vsnprintf(status->message, size + 1, format, args);
  return status;
}

tt_status tt_error(tt_code code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  tt_status status = tt_error_v(code, format, args);
  va_end(args);
  return status;
}

tt_status tt_internal_error_at(const char *file, int line, const char *format, ...) {
  va_list args;
  va_start(args, format);
  tt_status status = tt_error_v(TT_INTERNAL, format, args);
  va_end(args);
  const char *slash = strrchr(file, '/');
  return tt_status_context(status, "fault of torch_tpu at %s:%d, please report it", slash != NULL ? slash + 1 : file,
                           line);
}

tt_status tt_status_context(tt_status status, const char *format, ...) {
  if (status == NULL) return NULL;
  va_list args;
  va_start(args, format);
  size_t context_size = format_size(format, args);
  size_t message_size = strlen(status->message);
  tt_status longer = body_create(status->code, context_size + 2 + message_size);
  // Without memory for the context, the bare failure still says more than "out of memory".
  if (longer != NULL) {
    longer->count = status->count;
    longer->message[0] = '\0';
    vsnprintf(longer->message, context_size + 1, format, args);
    memcpy(longer->message + context_size, ": ", 2);
    memcpy(longer->message + context_size + 2, status->message, message_size + 1);
    tt_status_free(status);
    status = longer;
  }
  va_end(args);
  return status;
}

tt_code tt_status_code(tt_status status) { return status != NULL ? status->code : TT_OK; }

const char *tt_status_message(tt_status status) { return status != NULL ? status->message : ""; }

static bool is_code(tt_code code) { return (unsigned)code < sizeof(codes) / sizeof(codes[0]); }

const char *tt_code_name(tt_code code) { return is_code(code) ? codes[code].name : "UNKNOWN"; }

const char *tt_code_python_class(tt_code code) { return is_code(code) ? codes[code].python : "RuntimeError"; }

void tt_status_free(tt_status status) {
  if (status != exhausted_status()) tt_free(status);
}

void tt_status_count_when_told(tt_status status, _Atomic int64_t *count) {
  if (status == NULL || status == exhausted_status()) return; // all threads share the static one
  if (status->count == NULL) status->count = count;
}

void tt_status_told(tt_status status) {
  if (status != NULL && status->count != NULL) atomic_fetch_add_explicit(status->count, 1, memory_order_relaxed);
}

tt_status tt_status_join(tt_status first, tt_status second) {
  if (first == NULL) return second;
  tt_status_free(second);
  return first;
}
