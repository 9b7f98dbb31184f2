// device.c - the current device, properties and memory of devices.
//
// The current device belongs to a thread.
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/pool.h"
#include "run/internal.h"
#include "run/scalar.h"
#include "run/staging.h"

static _Thread_local int current_device;

// ---- finding ---------------------------------------------------------------------------------------------------------

tt_status tt_device_check_index(int index) {
  if (__builtin_expect(index >= 0 && tt_runtime_started() && index < tt_client_device_count(tt_runtime_client()), 1)) {
    return TT_SUCCESS;
  }
  int count = tt_runtime_device_count();
  if (index >= 0 && index < count) return TT_SUCCESS;
  return tt_error(TT_INVALID_ARGUMENT, "TPU error: invalid device ordinal: %d, but there %s %d device%s", index,
                  count == 1 ? "is" : "are", count, count == 1 ? "" : "s");
}

tt_status tt_device_find(int index, tt_device **out_device) {
  TT_TRY(tt_runtime_start());
  TT_TRY(tt_device_check_index(index));
  *out_device = tt_client_device(tt_runtime_client(), index);
  return TT_SUCCESS;
}

int tt_current_device(void) { return current_device; }

tt_status tt_set_current_device(int index) {
  if (index == current_device) return TT_SUCCESS; // the device guard's usual case
  TT_TRY(tt_device_check_index(index));
  current_device = index;
  return TT_SUCCESS;
}

// ---- properties ------------------------------------------------------------------------------------------------------

int tt_tpu_generation(const char *kind, const char **out_name) {
  static const struct {
    const char *kind, *name;
    int generation;
  } known[] = {
      {"TPU v2", "TPU v2", 2},       {"TPU v3", "TPU v3", 3},   {"TPU v4", "TPU v4", 4},  {"TPU v4 lite", "TPU v4i", 4},
      {"TPU v5 lite", "TPU v5e", 5}, {"TPU v5e", "TPU v5e", 5}, {"TPU v5", "TPU v5p", 5}, {"TPU v5p", "TPU v5p", 5},
      {"TPU v6 lite", "TPU v6e", 6}, {"TPU v6e", "TPU v6e", 6}, {"TPU7x", "TPU v7x", 7},  {"TPU v7x", "TPU v7x", 7},
  };
  for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
    if (strcmp(kind, known[i].kind) != 0) continue;
    *out_name = known[i].name;
    return known[i].generation;
  }
  *out_name = kind;
  // A later one: the number behind "TPU", "TPU v".
  int generation = 0;
  if (sscanf(kind, "TPU v%d", &generation) == 1 || sscanf(kind, "TPU%d", &generation) == 1) return generation;
  return 0;
}

tt_status tt_device_get_properties(int index, tt_device_properties *out_properties) {
  tt_device *device = NULL;
  TT_TRY(tt_device_find(index, &device));
  const char *platform = tt_client_platform(tt_runtime_client());
  tt_device_properties properties = {.total_memory = device->memory_limit, .multi_processor_count = 1};
  const char *name = NULL;
  if (strcmp(platform, "tpu") == 0) {
    properties.generation = tt_tpu_generation(device->kind, &name);
    snprintf(properties.name, sizeof(properties.name), "%s", name);
  } else if (strcmp(platform, "cpu") == 0) {
    snprintf(properties.name, sizeof(properties.name), "virtual TPU (XLA CPU)");
  } else {
    snprintf(properties.name, sizeof(properties.name), "virtual TPU (%.100s)", platform);
  }
  snprintf(properties.platform, sizeof(properties.platform), "%s", platform);
  *out_properties = properties;
  return TT_SUCCESS;
}

// ---- memory ----------------------------------------------------------------------------------------------------------

static int64_t load(const _Atomic int64_t *number) { return atomic_load_explicit(number, memory_order_relaxed); }

tt_status tt_device_memory(int index, tt_memory_snapshot *out_snapshot) {
  tt_device *device = NULL;
  TT_TRY(tt_device_find(index, &device));
  const tt_memory_stats *stats = &device->memory;
  *out_snapshot = (tt_memory_snapshot){
      .current = load(&stats->current),
      .peak = load(&stats->peak),
      .reserved_peak = load(&stats->reserved_peak),
      .allocated = load(&stats->allocated),
      .freed = load(&stats->freed),
      .blocks_current = load(&stats->blocks_current),
      .blocks_peak = load(&stats->blocks_peak),
      .blocks_allocated = load(&stats->blocks_allocated),
      .blocks_freed = load(&stats->blocks_freed),
      .out_of_memory_count = load(&stats->out_of_memory_count),
      .limit = device->memory_limit,
  };
  return TT_SUCCESS;
}

tt_status tt_device_reset_peak_memory(int index) {
  tt_device *device = NULL;
  TT_TRY(tt_device_find(index, &device));
  tt_memory_reset_peak(device);
  return TT_SUCCESS;
}

tt_status tt_device_reset_accumulated_memory(int index) {
  tt_device *device = NULL;
  TT_TRY(tt_device_find(index, &device));
  tt_memory_reset_accumulated(device);
  return TT_SUCCESS;
}

tt_status tt_device_free_memory(int index, int64_t *out_free, int64_t *out_total) {
  tt_device *device = NULL;
  TT_TRY(tt_device_find(index, &device));
  int64_t left = device->memory_limit - load(&device->memory.current);
  *out_free = left > 0 ? left : 0;
  *out_total = device->memory_limit;
  return TT_SUCCESS;
}

tt_status tt_device_empty_cache(void) {
  if (!tt_runtime_started()) return TT_SUCCESS; // torch.cuda.empty_cache does not start CUDA either
  tt_scalar_clear();
  tt_staging_clear();
  tt_pool_trim();
  return TT_SUCCESS;
}
