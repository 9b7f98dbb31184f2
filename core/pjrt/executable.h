// executable.h - a program compiled and loaded.
//
// Portable: compiled once, run on any device of the client (compile_portable_executable). Reference-counted; any thread.
#ifndef TT_PJRT_EXECUTABLE_H_
#define TT_PJRT_EXECUTABLE_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/string.h"
#include "pjrt/buffer.h"
#include "pjrt/client.h"
#include "pjrt/event.h"

typedef struct tt_executable {
  _Atomic int32_t references;
  tt_client *client;
  void *pjrt; // PJRT_LoadedExecutable *
  int output_count;
  int64_t temporary_bytes; // memory that it needs while it runs, besides arguments and results; 0 where unknown
  bool may_donate;         // some argument is marked tf.aliasing_output or jax.buffer_donor
} tt_executable;

// How much a CPU compiler may do; a TPU's always does all. A single op compiles in about a third of the time with the least
// effort and two thirds with light effort. The least leaves loops unvectorised, so it is for small tensors.
typedef enum tt_effort { TT_EFFORT_FULL, TT_EFFORT_LIGHT, TT_EFFORT_LEAST } tt_effort;

// What may differ between two compilations of one text. Part of every cache key.
typedef struct tt_compile_options {
  tt_effort effort;
  bool
      short_loops; // no tensor is large enough for a second thread to pay, unless what is done to each element is costly
  bool exact;      // keep op-by-op values: no algebraic simplification across ops
} tt_compile_options;

// Compiles StableHLO text of `size` bytes. Options that the plugin does not know are probed once and then left out.
// Errors: TT_PLUGIN with the compiler's message (the caller adds op and shapes), TT_OUT_OF_MEMORY.
tt_status tt_executable_compile(tt_client *client, const char *text, int64_t size, const tt_compile_options *options,
                                tt_executable **out_executable);

// The options that tt_executable_compile would send if the plugin refused none, appended to `out`: with the plugin they decide
// what is sent, so they may stand in a key before anything was compiled.
tt_status tt_executable_options(const tt_client *client, const char *text, int64_t size,
                                const tt_compile_options *options, tt_string *out);

// The compiled program as bytes, appended to `out`, for the same plugin on the same kind of machine.
// Errors: TT_UNAVAILABLE or TT_NOT_IMPLEMENTED where the plugin cannot, TT_PLUGIN, TT_OUT_OF_MEMORY.
tt_status tt_executable_serialize(const tt_executable *executable, tt_string *out);
// Loads such bytes, which may be damaged but not forged: plugins check little. `text` is the program's.
// Errors: as above; TT_PLUGIN for bytes that the plugin refuses.
tt_status tt_executable_load(tt_client *client, const char *text, int64_t size, const void *bytes, size_t byte_size,
                             tt_executable **out_executable);

// Whoever wants to know of each compilation, and may refuse it: begin() comes before the compiler gets the program, and its
// failure is that of the compilation; end() after it, on the same thread, with what became of it (borrowed). Set once, NULL for
// nobody; lives for ever.
typedef struct tt_compile_observer {
  tt_status (*begin)(void);
  void (*end)(tt_status status);
} tt_compile_observer;
void tt_executable_observe_compiles(const tt_compile_observer *observer);

tt_executable *tt_executable_retain(tt_executable *executable);
void tt_executable_release(tt_executable *executable); // NULL is fine

// Starts the program on `device`. `arguments` are borrowed. Bit i of `keep` (count / 64 + 1 words, NULL = all kept) set
// means that argument i must survive even if the program could reuse its memory; a clear bit lets a donated argument go:
// the caller must not use that tt_buffer afterwards except to release it.
// `out_pjrt` gets output_count PJRT_Buffer pointers to be wrapped by tt_buffer_wrap. *out_done (may be NULL) is ready
// when the program has run; its failure is also that of each output.
tt_status tt_executable_execute(tt_executable *executable, tt_device *device, tt_buffer *const *arguments, int count,
                                const uint64_t *keep, void **out_pjrt, tt_event *out_done);

#endif // TT_PJRT_EXECUTABLE_H_
