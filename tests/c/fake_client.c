// fake_client.c - PJRT's clients, devices, programs and topologies in the fake plugin; see fake_internal.h.
//
// A program is text that core/hlo wrote (fake_program.h); "!8" fails to compile with error code 8; any other text is a program
// with three results, of one float each.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_internal.h"

enum { MAX_DEVICES = 8 };

// ---- client and devices

struct PJRT_Device {
  int index;
};

struct PJRT_Client {
  int device_count;
};

static PJRT_Device device_objects[MAX_DEVICES];

PJRT_Error *fake_initialize(PJRT_Plugin_Initialize_Args *args) {
  (void)args;
  return fake_has_fault("initialize") ? fake_fail(PJRT_Error_Code_FAILED_PRECONDITION, "no luck today") : NULL;
}

PJRT_Error *fake_client_create(PJRT_Client_Create_Args *args) {
  fake.create_options = (int)args->num_options;
  int64_t count = args->num_options > 0 ? args->create_options[0].int64_value : 1;
  args->client = FAKE_NEW(PJRT_Client, FAKE_client);
  args->client->device_count = count < MAX_DEVICES ? (int)count : MAX_DEVICES;
  return NULL;
}

PJRT_Error *fake_client_destroy(PJRT_Client_Destroy_Args *args) {
  fake_drop(args->client, FAKE_client);
  return NULL;
}

// Texts of the plugin need not end with a null character.
PJRT_Error *fake_platform_name(PJRT_Client_PlatformName_Args *args) {
  static char text[32];
  snprintf(text, sizeof(text), "%s...", fake.platform);
  args->platform_name = text;
  args->platform_name_size = strlen(fake.platform);
  return NULL;
}

PJRT_Error *fake_platform_version(PJRT_Client_PlatformVersion_Args *args) {
  args->platform_version = "fake 1";
  args->platform_version_size = strlen("fake 1");
  return NULL;
}

PJRT_Error *fake_addressable_devices(PJRT_Client_AddressableDevices_Args *args) {
  static PJRT_Device *devices[MAX_DEVICES];
  for (int i = 0; i < MAX_DEVICES; i++) {
    device_objects[i].index = i;
    devices[i] = &device_objects[i];
  }
  args->addressable_devices = devices;
  args->num_addressable_devices = (size_t)args->client->device_count;
  return NULL;
}

PJRT_Error *fake_get_description(PJRT_Device_GetDescription_Args *args) {
  args->device_description = (PJRT_DeviceDescription *)args->device;
  return NULL;
}

PJRT_Error *fake_description_id(PJRT_DeviceDescription_Id_Args *args) {
  args->id = 2048 + ((const PJRT_Device *)args->device_description)->index;
  return NULL;
}

PJRT_Error *fake_description_kind(PJRT_DeviceDescription_Kind_Args *args) {
  args->device_kind = "TPU v5 lite";
  args->device_kind_size = strlen(args->device_kind);
  return NULL;
}

PJRT_Error *fake_memory_stats(PJRT_Device_MemoryStats_Args *args) {
  args->bytes_limit = 16911433728;
  args->bytes_limit_is_set = true;
  return NULL;
}

// ---- programs

struct PJRT_Executable {
  loaded_program *program;
};

static void note_options(const char *options, size_t size) {
  if (size >= sizeof(fake.options)) size = sizeof(fake.options) - 1;
  for (size_t i = 0; i < size; i++) fake.options[i] = options[i] >= ' ' && options[i] <= '~' ? options[i] : '.';
  fake.options[size] = '\0';
}

static loaded_program *load(const char *text, size_t size) {
  loaded_program *p = fake_make(sizeof(loaded_program));
  *p = (loaded_program){1, fake_program_read(text, size)};
  return p;
}

static PJRT_Error *compile(const PJRT_Program *program, const char *options, size_t options_size,
                           loaded_program **out) {
  atomic_fetch_add(&fake.compilations, 1);
  pthread_mutex_lock(&fake_lock); // compiler threads
  note_options(options, options_size);
  bool refused = fake.refused_option != NULL && strstr(fake.options, fake.refused_option) != NULL;
  pthread_mutex_unlock(&fake_lock);
  if (refused) return fake_fail(PJRT_Error_Code_INVALID_ARGUMENT, "No such compile option: '%s'", fake.refused_option);
  if (program->code[0] == '!') return fake_fail((PJRT_Error_Code)atoi(program->code + 1), "as wished\n\n");
  int delay = atomic_load(&fake.delay_us);
  if (delay > 0) usleep((useconds_t)delay);
  *out = load(program->code, program->code_size);
  return NULL;
}

static PJRT_LoadedExecutable *new_loaded(loaded_program *program) {
  PJRT_LoadedExecutable *loaded = FAKE_NEW(PJRT_LoadedExecutable, FAKE_loaded_executable);
  loaded->program = program;
  return loaded;
}

static PJRT_Executable *new_executable(loaded_program *program) {
  PJRT_Executable *executable = FAKE_NEW(PJRT_Executable, FAKE_executable);
  executable->program = program;
  return executable;
}

PJRT_Error *fake_client_compile(PJRT_Client_Compile_Args *args) {
  loaded_program *program = NULL;
  PJRT_Error *error = compile(args->program, args->compile_options, args->compile_options_size, &program);
  if (error == NULL) args->executable = new_loaded(program);
  return error;
}

PJRT_Error *fake_get_executable(PJRT_LoadedExecutable_GetExecutable_Args *args) {
  pthread_mutex_lock(&fake_lock);
  args->loaded_executable->program->references++;
  pthread_mutex_unlock(&fake_lock);
  args->executable = new_executable(args->loaded_executable->program);
  return NULL;
}

static void release_program_unlocked(loaded_program *program) {
  pthread_mutex_lock(&fake_lock);
  fake_loaded_release(program);
  pthread_mutex_unlock(&fake_lock);
}

PJRT_Error *fake_executable_destroy(PJRT_Executable_Destroy_Args *args) {
  release_program_unlocked(args->executable->program);
  fake_drop(args->executable, FAKE_executable);
  return NULL;
}

PJRT_Error *fake_loaded_destroy(PJRT_LoadedExecutable_Destroy_Args *args) {
  release_program_unlocked(args->executable->program);
  fake_drop(args->executable, FAKE_loaded_executable);
  return NULL;
}

PJRT_Error *fake_num_outputs(PJRT_Executable_NumOutputs_Args *args) {
  args->num_outputs = (size_t)fake_loaded_output_count(args->executable->program);
  return NULL;
}

PJRT_Error *fake_cost_analysis(PJRT_Executable_GetCostAnalysis_Args *args) {
  static PJRT_NamedValue properties[] = {
      {.name = "flops", .name_size = 5, .type = PJRT_NamedValue_kFloat, .float_value = 7, .value_size = 1},
      {.name = "optimal_seconds", .name_size = 15, .type = PJRT_NamedValue_kFloat, .value_size = 1},
  };
  properties[1].float_value = fake.optimal_seconds;
  args->properties = properties;
  args->num_properties = 2;
  return NULL;
}

PJRT_Error *fake_compiled_memory(PJRT_Executable_GetCompiledMemoryStats_Args *args) {
  if (fake.optimal_seconds < 0) return fake_fail(PJRT_Error_Code_UNIMPLEMENTED, "no statistics");
  args->generated_code_size_in_bytes = 1;
  args->argument_size_in_bytes = 2;
  args->output_size_in_bytes = 3;
  args->alias_size_in_bytes = 4;
  args->temp_size_in_bytes = 5;
  return NULL;
}

// A program as bytes: a mark and its text.
static const char mark[] = "fake:";

struct PJRT_SerializedExecutable {
  size_t size;
  char bytes[];
};

static void serialized_destroy(PJRT_SerializedExecutable *serialized) {
  fake_drop(serialized, FAKE_serialized_executable);
}

PJRT_Error *fake_serialize(PJRT_Executable_Serialize_Args *args) {
  const fake_program *p = args->executable->program->program;
  size_t size = sizeof(mark) - 1 + (p != NULL ? p->size : 0);
  PJRT_SerializedExecutable *serialized = fake_make(sizeof(*serialized) + size + 1);
  atomic_fetch_add(&fake.live[FAKE_serialized_executable], 1);
  serialized->size = size;
  snprintf(serialized->bytes, size + 1, "%s%s", mark, p != NULL ? p->text : "");
  args->serialized_bytes = serialized->bytes;
  args->serialized_bytes_size = size;
  args->serialized_executable = serialized;
  args->serialized_executable_deleter = serialized_destroy;
  return NULL;
}

PJRT_Error *fake_deserialize(PJRT_Executable_DeserializeAndLoad_Args *args) {
  size_t size = sizeof(mark) - 1;
  if (args->serialized_executable_size < size || memcmp(args->serialized_executable, mark, size) != 0) {
    return fake_fail(PJRT_Error_Code_INVALID_ARGUMENT, "not a program of the fake");
  }
  args->loaded_executable =
      new_loaded(load(args->serialized_executable + size, args->serialized_executable_size - size));
  return NULL;
}

// ---- topologies

// Only the topology "v9:1x1" is known.
PJRT_Error *fake_topology_create(PJRT_TopologyDescription_Create_Args *args) {
  if (args->topology_name_size != 6 || memcmp(args->topology_name, "v9:1x1", 6) != 0) {
    return fake_fail(PJRT_Error_Code_INVALID_ARGUMENT, "no such topology");
  }
  args->topology = (PJRT_TopologyDescription *)FAKE_NEW(int, FAKE_topology);
  return NULL;
}

PJRT_Error *fake_topology_destroy(PJRT_TopologyDescription_Destroy_Args *args) {
  fake_drop(args->topology, FAKE_topology);
  return NULL;
}

PJRT_Error *fake_topology_compile(PJRT_Compile_Args *args) {
  if (args->topology == NULL || args->client != NULL) return fake_fail(PJRT_Error_Code_INTERNAL, "a handle is wrong");
  loaded_program *program = NULL;
  PJRT_Error *error = compile(args->program, args->compile_options, args->compile_options_size, &program);
  if (error == NULL) args->executable = new_executable(program);
  return error;
}
