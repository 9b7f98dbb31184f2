// env.h - the environment variables of the core, in one table.
//
// Values are read once, at the first question; a later setenv changes nothing. A value that does not fit its form counts as
// unset and makes tt_env_check fail, which tt_runtime_start reports. Any thread may call.
#ifndef TT_RUN_ENV_H_
#define TT_RUN_ENV_H_

#include <stdint.h>

#include "base/status.h"

// id, variable, form, default, meaning. Forms: "text"; "LOW..HIGH" for an integer; "A|B|C" for one of these words, whose
// number is its place.
#define TT_ENVIRONMENT(X)                                                                                               \
  X(PJRT_PLUGIN, "TORCH_TPU_PJRT_PLUGIN", "text", "",                                                                   \
    "the PJRT plugin to load, and no other; unset: libtpu where a TPU is attached, else a CPU plugin that pip installed") \
  X(VIRTUAL_DEVICES, "TORCH_TPU_VIRTUAL_DEVICES", "1..256", "1", "number of devices of a virtual TPU")                  \
  X(LAUNCH_BLOCKING, "TORCH_TPU_LAUNCH_BLOCKING", "0|1", "0",                                                           \
    "1: start in EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING, which waits for every op, so that errors name the right line") \
  X(DEFER_AND_FUSE, "TORCH_TPU_DEFER_AND_FUSE", "0|1", "0",                                                             \
    "1: start in EagerMode.DEFER_AND_FUSE, which records ops and runs them together when a value is needed")             \
  X(FALLBACK, "TORCH_TPU_FALLBACK", "error|warn|allow", "warn",                                                         \
    "what happens at an op that only the CPU can run: an error, one warning per op, or nothing")                        \
  X(LOG, "TORCH_TPU_LOG", "text", "",                                                                                   \
    "kinds of events that are written to stderr with their Python line, a list of compile, cache, execute, transfer, wait, " \
    "fallback, or all")                                                                                                 \
  X(PROGRESS, "TORCH_TPU_PROGRESS", "0|1", "1", "1: a compilation that takes longer than two seconds says so on stderr")  \
  X(MEMORY_POOL, "TORCH_TPU_MEMORY_POOL", "0|1", "1",                                                                   \
    "1: a virtual TPU keeps the memory of freed tensors for the next ones until torch.tpu.empty_cache()")               \
  X(CACHE_DIR, "TORCH_TPU_CACHE_DIR", "text", "",                                                                       \
    "folder of compiled programs, \"off\" for none; unset: $XDG_CACHE_HOME/torch_tpu, else ~/.cache/torch_tpu")          \
  X(CACHE_LIMIT, "TORCH_TPU_CACHE_LIMIT", "0..9007199254740992", "4294967296",                                          \
    "bytes of compiled programs in that folder, beyond which the least recently used are removed")                      \
  X(CACHE_MODE, "TORCH_TPU_CACHE_MODE", "normal|cache-only|dump-on-miss", "normal",                                     \
    "cache-only: a program that is not in the cache is an error; dump-on-miss: its text goes to misses/ in the folder")  \
  X(REMOTE_CACHE, "TORCH_TPU_REMOTE_CACHE", "text", "",                                                                 \
    "an fsspec URL (gs://, s3://, http://, file://) of compiled programs that machines share")                          \
  X(REMOTE_TIMEOUT, "TORCH_TPU_REMOTE_TIMEOUT", "1..3600", "10", "seconds after which the remote cache is given up")    \
  X(TARGET_GENERATION, "TORCH_TPU_TARGET_GENERATION", "0..99", "0",                                                     \
    "write programs as for a TPU of this generation though the device is virtual: for tests of what only a TPU gets")

typedef enum tt_env {
#define X(id, variable, form, otherwise, meaning) TT_ENV_##id,
  TT_ENVIRONMENT(X)
#undef X
      TT_ENV_COUNT
} tt_env;

typedef struct tt_env_row {
  const char *variable, *form, *otherwise, *meaning;
} tt_env_row;
const tt_env_row *tt_env_at(tt_env variable);

// The value as text, the default if unset or faulty. Lives for ever.
const char *tt_env_text(tt_env variable);
// The integer, or the place of the word. 0 for a form "text".
int64_t tt_env_number(tt_env variable);
// TT_VALUE naming the first variable whose value does not fit its form, or TT_OUT_OF_MEMORY.
tt_status tt_env_check(void);

#endif // TT_RUN_ENV_H_
