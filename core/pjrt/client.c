// client.c - the PJRT client, its devices and their memory statistics.
#include "pjrt/client.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "pjrt/api.h"

static tt_status copy_text(const char *text, size_t size, char **out_text) {
  *out_text = tt_strndup(text, size);
  return *out_text != NULL ? TT_SUCCESS : tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted");
}

static tt_status create_pjrt_client(tt_client *client, int virtual_devices) {
  static const char name[] = "cpu_device_count";
  PJRT_NamedValue device_count = {
      .struct_size = PJRT_NamedValue_STRUCT_SIZE,
      .name = name,
      .name_size = sizeof(name) - 1,
      .type = PJRT_NamedValue_kInt64,
      .int64_value = virtual_devices,
      .value_size = 1,
  };
  bool wants_devices = virtual_devices > 0 && !client->plugin->is_libtpu;
  PJRT_Client_Create_Args args =
      TT_PJRT_ARGS(PJRT_Client_Create, .create_options = &device_count, .num_options = wants_devices ? 1 : 0);
  TT_TRY(TT_PJRT(client->plugin, PJRT_Client_Create, &args));
  client->pjrt = args.client;
  return TT_SUCCESS;
}

static tt_status read_platform(tt_client *client) {
  PJRT_Client_PlatformName_Args name = TT_PJRT_ARGS(PJRT_Client_PlatformName, .client = client->pjrt);
  TT_TRY(TT_PJRT(client->plugin, PJRT_Client_PlatformName, &name));
  TT_TRY(copy_text(name.platform_name, name.platform_name_size, &client->platform));

  PJRT_Client_PlatformVersion_Args version = TT_PJRT_ARGS(PJRT_Client_PlatformVersion, .client = client->pjrt);
  TT_TRY(TT_PJRT(client->plugin, PJRT_Client_PlatformVersion, &version));
  TT_TRY(copy_text(version.platform_version, version.platform_version_size, &client->platform_version));

  client->is_host = strcmp(client->platform, "cpu") == 0;
  return TT_SUCCESS;
}

static int64_t physical_memory(void) {
  long pages = sysconf(_SC_PHYS_PAGES), page_size = sysconf(_SC_PAGESIZE);
  int64_t bytes = 0;
  return tt_mul_i64(pages, page_size, &bytes) ? bytes : 0;
}

static int64_t read_memory_limit(const tt_client *client, PJRT_Device *pjrt) {
  PJRT_Device_MemoryStats_Args args = TT_PJRT_ARGS(PJRT_Device_MemoryStats, .device = pjrt);
  PJRT_Error *error = client->plugin->api->PJRT_Device_MemoryStats(&args);
  bool known = error == NULL && args.bytes_limit_is_set; // CPU plugins: UNIMPLEMENTED
  tt_pjrt_ignore(client->plugin, error);
  return known ? args.bytes_limit : physical_memory();
}

static tt_status read_device(tt_client *client, int index, PJRT_Device *pjrt) {
  tt_device *device = &client->devices[index];
  device->client = client;
  device->pjrt = pjrt;
  device->index = index;

  PJRT_Device_GetDescription_Args description = TT_PJRT_ARGS(PJRT_Device_GetDescription, .device = pjrt);
  TT_TRY(TT_PJRT(client->plugin, PJRT_Device_GetDescription, &description));
  PJRT_DeviceDescription_Id_Args id =
      TT_PJRT_ARGS(PJRT_DeviceDescription_Id, .device_description = description.device_description);
  TT_TRY(TT_PJRT(client->plugin, PJRT_DeviceDescription_Id, &id));
  device->id = id.id;
  PJRT_DeviceDescription_Kind_Args kind =
      TT_PJRT_ARGS(PJRT_DeviceDescription_Kind, .device_description = description.device_description);
  TT_TRY(TT_PJRT(client->plugin, PJRT_DeviceDescription_Kind, &kind));
  TT_TRY(copy_text(kind.device_kind, kind.device_kind_size, &device->kind));
  device->memory_limit = read_memory_limit(client, pjrt);
  return TT_SUCCESS;
}

static tt_status read_devices(tt_client *client) {
  PJRT_Client_AddressableDevices_Args args = TT_PJRT_ARGS(PJRT_Client_AddressableDevices, .client = client->pjrt);
  TT_TRY(TT_PJRT(client->plugin, PJRT_Client_AddressableDevices, &args));
  if (args.num_addressable_devices == 0 || args.num_addressable_devices > INT_MAX) {
    return tt_error(TT_UNAVAILABLE, "PJRT plugin %s: %zu devices", client->plugin->path, args.num_addressable_devices);
  }
  void *block = NULL;
  TT_TRY(tt_allocate(args.num_addressable_devices, sizeof(tt_device), &block));
  client->devices = block;
  client->device_count = (int)args.num_addressable_devices;
  for (int i = 0; i < client->device_count; i++) TT_TRY(read_device(client, i, args.addressable_devices[i]));
  return TT_SUCCESS;
}

static tt_status initialize(tt_client *client, int virtual_devices) {
  TT_TRY(create_pjrt_client(client, virtual_devices));
  TT_TRY(read_platform(client));
  return read_devices(client);
}

tt_status tt_client_create(tt_plugin *plugin, int virtual_devices, tt_client **out_client) {
  void *block = NULL;
  TT_TRY(tt_allocate(1, sizeof(tt_client), &block));
  tt_client *client = block;
  client->plugin = plugin;
  tt_status status = initialize(client, virtual_devices);
  if (status != NULL) {
    tt_client_destroy(client);
    return status;
  }
  *out_client = client;
  return TT_SUCCESS;
}

void tt_client_destroy(tt_client *client) {
  if (client == NULL) return;
  if (client->pjrt != NULL) {
    tt_pjrt_ignore(client->plugin, client->plugin->api->PJRT_Client_Destroy(
                                       &TT_PJRT_ARGS(PJRT_Client_Destroy, .client = client->pjrt)));
  }
  for (int i = 0; i < client->device_count; i++) tt_free(client->devices[i].kind);
  tt_free(client->devices);
  tt_free(client->platform);
  tt_free(client->platform_version);
  tt_free(client);
}

tt_plugin *tt_client_plugin(const tt_client *client) { return client->plugin; }

int tt_client_device_count(const tt_client *client) { return client->device_count; }

tt_device *tt_client_device(tt_client *client, int index) {
  return index >= 0 && index < client->device_count ? &client->devices[index] : NULL;
}

const char *tt_client_platform(const tt_client *client) { return client->platform; }

const char *tt_client_platform_version(const tt_client *client) { return client->platform_version; }

bool tt_client_is_host(const tt_client *client) { return client->is_host; }

// ---- memory statistics -----------------------------------------------------------------------------------------------
//
// Relaxed: each number is exact, and no other memory hangs on them.

static int64_t load(const _Atomic int64_t *number) { return atomic_load_explicit(number, memory_order_relaxed); }

static int64_t add(_Atomic int64_t *number, int64_t amount) {
  return atomic_fetch_add_explicit(number, amount, memory_order_relaxed) + amount;
}

static void raise_peak(_Atomic int64_t *peak, int64_t current) {
  int64_t seen = load(peak);
  while (seen < current &&
         !atomic_compare_exchange_weak_explicit(peak, &seen, current, memory_order_relaxed, memory_order_relaxed)) {}
}

void tt_memory_add(tt_device *device, int64_t bytes) {
  tt_memory_stats *stats = &device->memory;
  int64_t current = add(&stats->current, bytes);
  raise_peak(&stats->peak, current);
  raise_peak(&stats->reserved_peak, current);
  raise_peak(&stats->blocks_peak, add(&stats->blocks_current, 1));
  add(&stats->allocated, bytes);
  add(&stats->blocks_allocated, 1);
}

void tt_memory_remove(tt_device *device, int64_t bytes) {
  tt_memory_stats *stats = &device->memory;
  add(&stats->current, -bytes);
  add(&stats->blocks_current, -1);
  add(&stats->freed, bytes);
  add(&stats->blocks_freed, 1);
}

void tt_memory_use(tt_device *device, int64_t bytes) {
  tt_memory_stats *stats = &device->memory;
  raise_peak(&stats->reserved_peak, load(&stats->current) + bytes);
}

void tt_memory_reset_peak(tt_device *device) {
  tt_memory_stats *stats = &device->memory;
  atomic_store_explicit(&stats->peak, load(&stats->current), memory_order_relaxed);
  atomic_store_explicit(&stats->reserved_peak, load(&stats->current), memory_order_relaxed);
  atomic_store_explicit(&stats->blocks_peak, load(&stats->blocks_current), memory_order_relaxed);
}

void tt_memory_reset_accumulated(tt_device *device) {
  tt_memory_stats *stats = &device->memory;
  _Atomic int64_t *numbers[] = {&stats->allocated, &stats->freed, &stats->blocks_allocated, &stats->blocks_freed,
                                &stats->out_of_memory_count};
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
    atomic_store_explicit(numbers[i], 0, memory_order_relaxed);
  }
}
