// status.h - how every fallible function of the core reports.
//
// A tt_status is NULL on success, so the fast path costs one test. A failed status is a heap object that owns its code and
// message; it gathers context on its way up (TT_TRY) and is freed once, by tt_status_free or by whoever reports it.
// Messages read like torch's own and carry the op, dtypes and shapes.
//
// Threads: a status belongs to one thread at a time.
#ifndef TT_BASE_STATUS_H_
#define TT_BASE_STATUS_H_

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// name, Python class that the bridge raises, meaning.
#define TT_CODES(X)                                                                                                     \
  X(OK, "", "success")                                                                                                  \
  X(INVALID_ARGUMENT, "RuntimeError", "the caller's tensors or arguments do not fit the op")                            \
  X(VALUE, "ValueError", "an argument has an impossible value")                                                         \
  X(TYPE, "TypeError", "an argument has the wrong type")                                                                \
  X(INDEX, "IndexError", "an index or dimension is out of range")                                                       \
  X(NOT_IMPLEMENTED, "NotImplementedError", "no lowering for this op, dtype or plugin")                                 \
  X(LINALG, "torch.linalg.LinAlgError", "a matrix that has no such factorization")                                      \
  X(MISMATCH, "RuntimeError", "operands that fit no program: the caller's, which nothing refused before")             \
  X(OUT_OF_MEMORY, "torch.OutOfMemoryError", "device or host memory is exhausted")                                      \
  X(UNAVAILABLE, "RuntimeError", "no plugin or no device")                                                              \
  X(FORBIDDEN, "RuntimeError", "a compile or a host wait where the user forbids it")                                    \
  X(PYTHON, "what Python raised", "a Python exception, kept by the bridge for this thread")                             \
  X(PLUGIN, "RuntimeError", "the PJRT plugin refused a call")                                                           \
  X(INTERNAL, "RuntimeError", "a fault of torch_tpu itself")

typedef enum tt_code {
#define X(name, python, text) TT_##name,
  TT_CODES(X)
#undef X
} tt_code;

typedef struct tt_status_body *tt_status; // NULL = success

#define TT_SUCCESS ((tt_status)NULL)

// Makes a failed status with a printf-style message. Never returns NULL: when memory is exhausted it returns a static
// status with code TT_OUT_OF_MEMORY, which tt_status_free leaves alone.
tt_status tt_error(tt_code code, const char *format, ...) __attribute__((format(printf, 2, 3), returns_nonnull));
tt_status tt_error_v(tt_code code, const char *format, va_list args) __attribute__((returns_nonnull));

// Puts "context: " before the message. Takes and returns ownership; NULL stays NULL.
tt_status tt_status_context(tt_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

tt_code tt_status_code(tt_status status);        // TT_OK for NULL
const char *tt_status_message(tt_status status); // "" for NULL; owned by the status
const char *tt_code_name(tt_code code);          // "INVALID_ARGUMENT"
const char *tt_code_python_class(tt_code code);  // "RuntimeError"
void tt_status_free(tt_status status);           // NULL is fine

// Statistics count the failures that the user hears of, while many a status is dropped on its way up: a later attempt gives
// the same failure, or an earlier one is told. So a status carries its counter, and whoever tells the user raises it.
#ifndef __cplusplus // which has no _Atomic
// `count`, which outlives the status, goes up by one when the user is told. A status has one counter: a second is ignored, as is
// one for NULL or for the static status.
void tt_status_count_when_told(tt_status status, _Atomic int64_t *count);
#endif
void tt_status_told(tt_status status); // right before tt_status_free; NULL is fine

// Keeps the first failure: returns `first` if it failed (freeing `second`), else `second`.
tt_status tt_status_join(tt_status first, tt_status second);

// Returns from the enclosing function with the failed status of `expr`.
#define TT_TRY(expr)                                                                                                    \
  do {                                                                                                                  \
    tt_status tt_try_status_ = (expr);                                                                                  \
    if (__builtin_expect(tt_try_status_ != NULL, 0)) return tt_try_status_;                                             \
  } while (0)

// The same, with context put before the message.
#define TT_TRY_CONTEXT(expr, ...)                                                                                       \
  do {                                                                                                                  \
    tt_status tt_try_status_ = (expr);                                                                                  \
    if (__builtin_expect(tt_try_status_ != NULL, 0)) return tt_status_context(tt_try_status_, __VA_ARGS__);             \
  } while (0)

// An internal fault: names the place and asks for a report. Use where a bug in torch_tpu is the only explanation.
#define tt_internal_error(...) tt_internal_error_at(__FILE__, __LINE__, __VA_ARGS__)
tt_status tt_internal_error_at(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif
#endif // TT_BASE_STATUS_H_
