// runtime.h - the process-wide state: plugin, client, current device, streams, waits, modes, counters.
//
// The runtime starts on first use of a device (tt_runtime_start); asking for the number of devices starts it too, except
// where noted. Any thread may call anything here. After a fork the child must not use it: every call fails.
#ifndef TT_RUN_RUNTIME_H_
#define TT_RUN_RUNTIME_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "op/arg.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- start ------------------------------------------------------------------------------------------------------------
// Folders in which pip may have put plugins (site-packages); copied. Call before the first start.
tt_status tt_runtime_set_search_dirs(const char *const *dirs, size_t count);
// Finds and loads the plugin and makes the client, once; later calls return the first result at once.
// TORCH_TPU_VIRTUAL_DEVICES (default 1) is the number of devices of a virtual TPU.
tt_status tt_runtime_start(void);
bool tt_runtime_started(void);
bool tt_runtime_in_bad_fork(void); // forked after the start
// A TPU is attached to this machine (no start, microseconds).
bool tt_runtime_tpu_attached(void);
// Number of devices. Without a start: TORCH_TPU_VIRTUAL_DEVICES where no TPU is attached and a plugin file exists; 0 if none.
int tt_runtime_device_count(void);
// "{...}" JSON: plugin path, version, platform, devices, every place probed and why it failed. Free with tt_text_free.
tt_status tt_runtime_info_json(char **out_text);
void tt_text_free(char *text);

// Configures the compile cache (cache/config.h) from the environment, once. The start does so too; it is for looking into the
// cache without a plugin. Errors: those of the start for faulty variables.
tt_status tt_runtime_configure_cache(void);
// Starts the runtime and finds out whether its plugin can keep programs on disk, for tt_cache_get_info.
tt_status tt_runtime_probe_cache(void);

// --- devices ------------------------------------------------------------------------------------------------------------
int tt_current_device(void);                // of this thread; 0 at first
tt_status tt_set_current_device(int index); // TT_INVALID_ARGUMENT "invalid device ordinal" as CUDA words it
typedef struct tt_device_properties {
  char name[128];    // "TPU v5e", "virtual TPU (XLA CPU)"
  char platform[32]; // "tpu", "cpu"
  int64_t total_memory;
  int generation;            // TPU generation, 0 for virtual
  int multi_processor_count; // cores per device: 1
} tt_device_properties;
tt_status tt_device_get_properties(int index, tt_device_properties *out_properties);

typedef struct tt_memory_snapshot { // bytes and counts, as torch's allocators report them
  int64_t current, peak, allocated, freed;
  int64_t reserved_peak; // with what programs needed while they ran
  int64_t blocks_current, blocks_peak, blocks_allocated, blocks_freed;
  int64_t out_of_memory_count, limit;
} tt_memory_snapshot;
tt_status tt_device_memory(int index, tt_memory_snapshot *out_snapshot);
tt_status tt_device_reset_peak_memory(int index);
tt_status tt_device_reset_accumulated_memory(int index);
tt_status tt_device_free_memory(int index, int64_t *out_free, int64_t *out_total);
tt_status tt_device_empty_cache(void); // scalar buffers, staging and pooled memory that nothing uses

// --- storages, as the bridge sees them ------------------------------------------------------------------------------------
// The bridge knows devices by number and storages as handles; graph/storage.h is for C alone. Each result of a call brings
// one reference; the deleter of its torch DataPtr gives it back.
tt_status tt_storage_create_on(int index, int64_t byte_size, tt_storage **out_storage); // tt_storage_create by index
void *tt_storage_address(const tt_storage *storage); // start of its reserved range; NULL for zero bytes
void tt_storage_release(tt_storage *storage);        // also in graph/storage.h
bool tt_storage_owns_address(const void *address, int *out_device_index); // also in graph/storage.h
tt_storage *tt_storage_at(const void *address, int64_t *out_byte_offset); // also in graph/storage.h

// --- waiting ------------------------------------------------------------------------------------------------------------
// All work of a device is one queue, so every stream waits for it whole. A program that failed since the last wait is
// reported here, once, naming its op; the bridge raises it.
tt_status tt_synchronize(int index);
bool tt_device_is_idle(int index); // query: does not block

// Writes what the compile cache has only counted so far, and waits for running programs, at most 5 seconds (a collective may wait for ever). Call it before the process exits: XLA's CPU
// plugins crash when a program still runs while static objects are destroyed. The bridge does so from Python's atexit; C's
// comes too late, since plugins make static objects, whose destructors then run first, as late as in the first execution.
void tt_runtime_settle(void);

// Streams: ids only; they order nothing, since the queue is one. id 0 is the default stream.
int64_t tt_stream_new(int index);
int64_t tt_stream_current(int index);              // of this thread
int64_t tt_stream_exchange(int index, int64_t id); // returns the old one

// A point in a device's queue. Created by the first record. Times are taken when the work before it has really finished.
typedef struct tt_point tt_point;
tt_status tt_point_create(int index, tt_point **out_point);
void tt_point_destroy(tt_point *point);
tt_status tt_point_record(tt_point *point, int index); // may be recorded again
bool tt_point_query(tt_point *point);                  // true before any record, as on CUDA
tt_status tt_point_wait(tt_point *point);
tt_status tt_point_elapsed_ms(tt_point *start, tt_point *end, double *out_ms); // both recorded and done

// --- modes ----------------------------------------------------------------------------------------------------------------
typedef enum tt_eager_mode { TT_DEFER_NEVER, TT_DEFER_NEVER_AND_LAUNCH_BLOCKING, TT_DEFER_AND_FUSE } tt_eager_mode;
// TORCH_TPU_LAUNCH_BLOCKING=1 starts in the blocking one, TORCH_TPU_DEFER_AND_FUSE=1 in the deferring one.
tt_eager_mode tt_get_eager_mode(void);
// Of the process. What was deferred runs first; its failure comes out here, and the mode is set all the same.
tt_status tt_set_eager_mode(tt_eager_mode mode);
// What is deferred and not run yet, as text; a tt_graph_format of run/graph.h says in which form, and `storage` (may be NULL)
// whose value's part. Free with tt_text_free.
tt_status tt_pending_graph(int index, tt_storage *storage, int format, char **out_text);
// Precision of float32 matmuls: -1 = follow torch.set_float32_matmul_precision, else a tt_precision. Of the process.
int tt_get_precision(void);
void tt_set_precision(int precision);
// What torch.set_float32_matmul_precision says now (a tt_precision); pushed by the bridge at each call.
typedef enum tt_fallback { TT_FALLBACK_ERROR, TT_FALLBACK_WARN, TT_FALLBACK_ALLOW } tt_fallback;
tt_fallback tt_get_fallback(void); // first value from TORCH_TPU_FALLBACK; warn by default
void tt_set_fallback(tt_fallback fallback);

// --- counters -------------------------------------------------------------------------------------------------------------
#define TT_COUNTERS(X)                                                                                                  \
  X(compiles, "programs given to the compiler")                                                                         \
  X(cache_hits, "programs found compiled: same text, other signature")                                                  \
  X(disk_hits, "programs loaded from the cache folder instead of compiled")                                             \
  X(remote_hits, "programs loaded from the remote cache instead of compiled")                                           \
  X(plan_hits, "calls whose signature was seen before")                                                                 \
  X(graph_hits, "graphs of deferred calls that were seen before")                                                       \
  X(executions, "programs run")                                                                                         \
  X(host_waits, "times the host waited for the device")                                                                 \
  X(bytes_to_device, "bytes copied from the host")                                                                      \
  X(bytes_from_device, "bytes copied to the host")
typedef enum tt_counter {
#define X(name, text) TT_COUNTER_##name,
  TT_COUNTERS(X)
#undef X
      TT_COUNTER_COUNT
} tt_counter;
void tt_counter_add(tt_counter counter, int64_t value);
int64_t tt_counter_get(tt_counter counter);
void tt_start_closed_graphs(
    void); // also in run/graph.h: what is in line for its programs counts before numbers are read
const char *tt_counter_name(tt_counter counter);
// Fallbacks to the CPU by op. visit is called for each.
void tt_count_fallback(const char *op);
void tt_each_fallback(void (*visit)(void *user, const char *op, int64_t count), void *user);
void tt_counters_reset(void);

#ifdef __cplusplus
}
#endif
#endif // TT_RUN_RUNTIME_H_
