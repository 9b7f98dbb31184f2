// trace.h - what happens between a call and its result, as events: compiles, hits of the compile cache, executions, transfers, host
// waits and fallbacks to the CPU.
//
// Whoever wants to know listens: the log on stderr (tt_trace_set_log) and any number of collectors (torch.tpu.explain,
// torch.profiler). While nobody does, an event costs one relaxed load. Compiles and host waits can also be forbidden for a while.
//
// Threads: any thread may call anything. An event is told on the thread where it happens or, for an execution, on the
// plugin's thread that saw its end. Its line (run/site.h) takes Python's lock, so code that runs programs with a lock held
// brackets that with tt_trace_hold and tt_trace_let_go, and the line is asked for before or after.
#ifndef TT_RUN_TRACE_H_
#define TT_RUN_TRACE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// name (a word of TORCH_TPU_LOG), meaning.
#define TT_TRACE_KINDS(X)                                                                                               \
  X(compile, "a program was given to the compiler")                                                                     \
  X(cache, "a program was found compiled")                                                                              \
  X(execute, "a program ran on a device")                                                                               \
  X(transfer, "bytes went to a device, from one, or between two")                                                       \
  X(wait, "the host waited for a device")                                                                               \
  X(fallback, "an op ran on the CPU")
typedef enum tt_trace_kind {
#define X(name, text) TT_TRACE_##name,
  TT_TRACE_KINDS(X)
#undef X
      TT_TRACE_KIND_COUNT
} tt_trace_kind;
const char *tt_trace_kind_name(tt_trace_kind kind);
#define TT_TRACE_BIT(kind) (1u << (kind))
#define TT_TRACE_ALL (TT_TRACE_BIT(TT_TRACE_KIND_COUNT) - 1)

typedef struct tt_trace_event {
  tt_trace_kind kind;
  const char *name;         // of the op, the program or the kind of wait: "aten::mul.out", "graph of 12 calls", "item"
  const char *operands;     // "Float [2, 3], Float []"; NULL: not told
  const char *detail;       // compile: its reason; cache: the tier; else NULL
  const char *site;         // "file.py:12"; NULL: unknown or not asked for
  const char *fallback;     // the op during whose fallback it happened; NULL: none
  int64_t begin_ns, end_ns; // CLOCK_MONOTONIC
  int64_t bytes;
  uint64_t correlation; // tt_trace_set_correlation of the thread that caused it
  int thread;           // its number in the system, of the thread that caused it
  int device_index;
} tt_trace_event;

// --- the log ------------------------------------------------------------------------------------------------------------
// Which kinds are written to stderr, a line each: a list with commas, "all", or NULL or "" for none. TORCH_TPU_LOG gives the first
// value at the start of the runtime. TT_VALUE naming the word that is no kind; nothing changes then.
tt_status tt_trace_set_log(const char *kinds);

// --- collectors ---------------------------------------------------------------------------------------------------------
typedef struct tt_trace_collector tt_trace_collector;
// Begins to keep the events of `kinds` (TT_TRACE_BIT of each); those of `site_kinds` with their lines.
tt_status tt_trace_collect(unsigned kinds, unsigned site_kinds, tt_trace_collector **out_collector);
// Ends it. With `settle` the executions that were started before are waited for, a second at most, since their events come at
// their end.
void tt_trace_collector_stop(tt_trace_collector *collector, bool settle);
// After the end: its events in the order in which they were told; how many got lost for lack of memory.
const tt_trace_event *tt_trace_collector_events(const tt_trace_collector *collector, size_t *out_count);
int64_t tt_trace_collector_lost(const tt_trace_collector *collector);
void tt_trace_collector_free(tt_trace_collector *collector); // after the end; NULL is fine

// A number that this thread's events carry from now on: what the caller wants to find them by.
void tt_trace_set_correlation(uint64_t correlation);

// --- forbidding -----------------------------------------------------------------------------------------------------------
// Of the process, and counted: `kind` (TT_TRACE_compile or TT_TRACE_wait) is forbidden from the first true until as many false.
// What is forbidden fails with TT_FORBIDDEN before anything has changed.
void tt_trace_forbid(tt_trace_kind kind, bool forbid);

// --- fallbacks ------------------------------------------------------------------------------------------------------------
// Around an op that runs on the CPU. `op` must live until the end. Nested ones are fine.
typedef struct tt_fallback_scope {
  const char *op, *outer;
  int64_t begin_ns;
} tt_fallback_scope;
void tt_fallback_begin(const char *op, tt_fallback_scope *out_scope);
void tt_fallback_end(const tt_fallback_scope *scope);

// --- what the bridge gives --------------------------------------------------------------------------------------------------
// Lets Python hear a warning about the line `site`: a call site needs many programs. Called without a lock on the thread of the
// call, whose failure its own becomes (a warning may be an error). Set once.
typedef tt_status (*tt_warning_hook)(const char *site, const char *warning);
void tt_set_warning_hook(tt_warning_hook hook);

#ifdef __cplusplus
}
#else

// --- for the core -----------------------------------------------------------------------------------------------------------
#include <stdatomic.h>

#include "pjrt/client.h"
#include "pjrt/event.h"

struct tt_program;

extern _Atomic unsigned tt_trace_wanted; // bits of the kinds that somebody listens to

int64_t tt_trace_now(void);

// The time if somebody listens to this kind, else 0; for tt_trace_end.
static inline int64_t tt_trace_begin(tt_trace_kind kind) {
  unsigned wanted = atomic_load_explicit(&tt_trace_wanted, memory_order_relaxed);
  return __builtin_expect(wanted >> kind & 1, 0) ? tt_trace_now() : 0;
}
// Tells the event, which ends now. Fills in what is known here: end, thread, fallback and, where they are missing, correlation and
// line. A compile or a hit comes with its line: it may happen on a thread that has none.
void tt_trace_tell(const tt_trace_event *event);
#define TT_TRACE_END(kind_, begin_, ...)                                                                                \
  do {                                                                                                                  \
    if (__builtin_expect((begin_) != 0, 0))                                                                             \
      tt_trace_tell(&(tt_trace_event){.kind = TT_TRACE_##kind_, .begin_ns = (begin_), __VA_ARGS__});                    \
  } while (0)
// Tells of an execution when `done` is ready, which stays the caller's. Nothing for begin_ns 0.
void tt_trace_execution(const tt_event *done, int64_t begin_ns, const tt_device *device, const char *name);

// From tt_trace_hold to tt_trace_let_go this thread holds a lock with which Python's lock must not be taken. Both are called
// without it. tt_trace_let_go passes `status` on, or the failure of what was put off until then.
void tt_trace_hold(void);
tt_status tt_trace_let_go(tt_status status);
bool tt_trace_is_held(void);
uint64_t tt_trace_correlation(void); // as this thread set it
// This thread's line: the one noted by tt_trace_hold, else tt_site. Free with tt_free.
char *tt_trace_site(void);

// TT_FORBIDDEN if host waits are forbidden: `what` names this one, `operands` (may be NULL) what is waited for.
tt_status tt_trace_check_wait(const char *what, const char *operands);
// Is a compile forbidden, and which words does that give? Without a lock that Python may wait for.
bool tt_trace_forbids(tt_trace_kind kind);
tt_status tt_trace_forbidden(tt_trace_kind kind, const char *name, const char *operands, const char *detail);

// Reads TORCH_TPU_LOG and starts to watch the compiler. Once, by the runtime's start.
tt_status tt_trace_start(void);

// Around the search for `program`'s executable: what is compiled between is this program.
void tt_trace_enter_program(const struct tt_program *program);
// `tier`: where the executable was found, NULL if it was compiled or there is none.
void tt_trace_leave_program(const char *tier);
#endif

#endif // TT_RUN_TRACE_H_
