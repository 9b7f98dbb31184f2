// internal.h - what the files of run/ share: the started client, and the queue of work in flight.
#ifndef TT_RUN_INTERNAL_H_
#define TT_RUN_INTERNAL_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "graph/address.h"
#include "hlo/builder.h"
#include "pjrt/buffer.h"
#include "pjrt/client.h"
#include "pjrt/event.h"
#include "run/runtime.h"

// --- runtime.c ----------------------------------------------------------------------------------------------------------
// The first two only after tt_runtime_start succeeded.
tt_client *tt_runtime_client(void);
const tt_target *tt_runtime_target(void);
// The target that a TPU of this generation is.
tt_target tt_tpu_target(int generation);

// --- device.c -----------------------------------------------------------------------------------------------------------
// TT_INVALID_ARGUMENT "invalid device ordinal" unless 0 <= index < tt_runtime_device_count().
tt_status tt_device_check_index(int index);
// Starts the runtime and gives the device.
tt_status tt_device_find(int index, tt_device **out_device);
// What the name of a TPU's kind says: generation (5 for "TPU v5 lite", 0 if it is none) and common name ("TPU v5e"). The
// name is static or `kind` itself.
int tt_tpu_generation(const char *kind, const char **out_name);

// --- copy.c -------------------------------------------------------------------------------------------------------------
// *out_storage is a new storage that holds `tensor`'s elements row-major in a layout of its sizes; the caller's reference.
tt_status tt_copy_densely(const tt_tensor *tensor, tt_storage **out_storage);

// --- queue.c ------------------------------------------------------------------------------------------------------------
// Remembers an execution in flight; takes over `event`. `op_name` is static text or NULL. A finished event costs a few
// nanoseconds and no memory; its failure becomes the device's pending failure. Beyond 1024 executions in flight the call
// waits for the oldest.
void tt_queue_add(tt_device *device, tt_event event, const char *op_name);
// What a program found out about its operands, e.g. that all indices are in range.
typedef struct tt_check {
  tt_buffer *flag;     // BOOL scalar that must come out true
  const char *op_name; // static
  tt_code code;        // of the failure "op_name: message (called at site)"
  const char *message; // static
  char *site;          // of tt_malloc, see run/site.h; NULL: unknown
} tt_check;
// Takes over the check's flag and site. `is_called_now`: the call is being made by this thread, which is asked for its line if
// that is needed. Call after tt_queue_add of the program that computes the flag, so that its own failure is the first.
void tt_queue_add_check(tt_device *device, tt_check check, bool is_called_now);
// Waits for all that was in flight at the call; returns the pending failure, which is then no longer pending. Counts a host
// wait.
tt_status tt_queue_wait(tt_device *device);
// The pending failure as far as it is known without waiting for a program: of all that have finished, and of their checks.
// It is then no longer pending.
tt_status tt_queue_take_failure(tt_device *device);
// Waits for a buffer on behalf of the host, counted and traced under the name `what`; the failure of an earlier program of the
// device comes first. (copy.c)
tt_status tt_wait_for_buffer(const tt_buffer *buffer, const char *what);
// Makes `failure`, taken over, the pending one unless there is one. NULL is fine.
void tt_queue_note_failure(tt_device *device, tt_status failure);
bool tt_queue_is_idle(tt_device *device);

// A mark is the moment when all that is in flight now has finished. Reference-counted: tt_queue_mark gives one.
typedef struct tt_mark tt_mark;
tt_status tt_queue_mark(tt_device *device, tt_mark **out_mark);
tt_mark *tt_mark_retain(tt_mark *mark); // NULL is fine, here and below
void tt_mark_release(tt_mark *mark);
// Has everything finished? Never blocks for more than the time in which the plugin tells of what has finished.
bool tt_mark_is_done(tt_mark *mark);
void tt_mark_wait(tt_mark *mark);
int64_t tt_mark_time_ns(tt_mark *mark); // CLOCK_MONOTONIC of the last of it; once done

#endif // TT_RUN_INTERNAL_H_
