// client.h - a PJRT client and its devices.
//
// One client per process, made on first use. Devices belong to the client and live as long as it does. Any thread may call.
#ifndef TT_PJRT_CLIENT_H_
#define TT_PJRT_CLIENT_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "pjrt/plugin.h"

typedef struct tt_client tt_client;

// Bytes and counts as torch's caching allocators report them; all are updated atomically.
typedef struct tt_memory_stats {
  _Atomic int64_t current, peak, allocated, freed; // bytes
  _Atomic int64_t reserved_peak;                   // bytes, with what programs needed for themselves while they ran
  _Atomic int64_t blocks_current, blocks_peak, blocks_allocated, blocks_freed; // counts
  _Atomic int64_t out_of_memory_count;                                         // failures that the user was told of
} tt_memory_stats;

typedef struct tt_device {
  tt_client *client;
  void *pjrt; // PJRT_Device *
  int index;  // 0 .. tt_client_device_count - 1, the index of torch.device("tpu:index")
  int64_t id; // PJRT's own id
  char *kind; // "cpu", "TPU v5 lite", ...
  tt_memory_stats memory;
  int64_t memory_limit; // bytes: from the plugin, else this machine's physical memory
} tt_device;

// `virtual_devices` > 0 asks a CPU plugin for that many devices (create option cpu_device_count); a TPU plugin ignores it.
tt_status tt_client_create(tt_plugin *plugin, int virtual_devices, tt_client **out_client);
// NULL is fine. Buffers, executables and failures for lack of memory, which the statistics may yet count, must be gone.
void tt_client_destroy(tt_client *client);

tt_plugin *tt_client_plugin(const tt_client *client);
int tt_client_device_count(const tt_client *client);
tt_device *tt_client_device(tt_client *client, int index);       // NULL when out of range
const char *tt_client_platform(const tt_client *client);         // "cpu", "tpu"
const char *tt_client_platform_version(const tt_client *client); // free text of the plugin
// True when device buffers are plain host memory that the process may read through tt_buffer_host_data.
bool tt_client_is_host(const tt_client *client);

// Accounting, called by buffer.c and by whoever holds device memory that has no buffer yet.
void tt_memory_add(tt_device *device, int64_t bytes);
void tt_memory_remove(tt_device *device, int64_t bytes);
// Memory in use for a moment, by a program while it runs: counts in the peak of what is reserved.
void tt_memory_use(tt_device *device, int64_t bytes);
void tt_memory_reset_peak(tt_device *device);
void tt_memory_reset_accumulated(tt_device *device);

// Returns `status`. If it means that memory ran out, the statistics count it once the user is told (tt_status_told).
static inline tt_status tt_device_note(tt_device *device, tt_status status) {
  if (__builtin_expect(status != NULL, 0) && tt_status_code(status) == TT_OUT_OF_MEMORY)
    tt_status_count_when_told(status, &device->memory.out_of_memory_count);
  return status;
}

#endif // TT_PJRT_CLIENT_H_
