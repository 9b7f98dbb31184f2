// fake_plugin.c - a PJRT plugin for test_pjrt_fake.c that does what real ones do rarely: it is too old or incomplete,
// refuses compile options, fails with a chosen error code, and calls its platform "tpu". Built as a shared object.
//
// $TT_FAKE_PLUGIN_FAULT is read by GetPjrtApi: "null", "major", "minor", "short", "hole", "initialize" or "topology".
#include <pjrt_c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

// For the test to look at, through dlsym.
EXPORT int fake_compilations;
EXPORT const char *fake_refused_option; // answered with "No such compile option"; NULL for none
EXPORT char fake_options[4096];         // the last compile options, with '.' for what cannot be printed
EXPORT int fake_create_options;         // number of options of the last client
EXPORT float fake_optimal_seconds; // of every program compiled for a topology; negative: no memory statistics either

struct PJRT_Error {
  PJRT_Error_Code code;
  char message[256];
};

static PJRT_Error *fail(PJRT_Error_Code code, const char *format, const char *text) {
  PJRT_Error *error = calloc(1, sizeof(*error));
  if (error == NULL) abort();
  error->code = code;
  snprintf(error->message, sizeof(error->message), format, text);
  return error;
}

static void error_destroy(PJRT_Error_Destroy_Args *args) { free(args->error); }

static void error_message(PJRT_Error_Message_Args *args) {
  args->message = args->error->message;
  args->message_size = strlen(args->error->message);
}

static PJRT_Error *error_code(PJRT_Error_GetCode_Args *args) {
  args->code = args->error->code;
  return NULL;
}

static bool has_fault(const char *fault) {
  const char *value = getenv("TT_FAKE_PLUGIN_FAULT");
  return value != NULL && strcmp(value, fault) == 0;
}

static PJRT_Error *initialize(PJRT_Plugin_Initialize_Args *args) {
  (void)args;
  return has_fault("initialize") ? fail(PJRT_Error_Code_FAILED_PRECONDITION, "no %s today", "luck") : NULL;
}

// Clients, devices and so on are addresses of these: nothing is kept in them.
static char client_object, device_object, description_object, executable_object, buffer_object, topology_object;

static PJRT_Error *client_create(PJRT_Client_Create_Args *args) {
  fake_create_options = (int)args->num_options;
  args->client = (PJRT_Client *)&client_object;
  return NULL;
}

static PJRT_Error *client_destroy(PJRT_Client_Destroy_Args *args) {
  (void)args;
  return NULL;
}

static PJRT_Error *platform_name(PJRT_Client_PlatformName_Args *args) {
  args->platform_name = "tpu...";
  args->platform_name_size = 3;
  return NULL;
}

static PJRT_Error *platform_version(PJRT_Client_PlatformVersion_Args *args) {
  args->platform_version = "fake 1";
  args->platform_version_size = strlen("fake 1");
  return NULL;
}

static PJRT_Error *addressable_devices(PJRT_Client_AddressableDevices_Args *args) {
  static PJRT_Device *devices[1] = {(PJRT_Device *)&device_object};
  args->addressable_devices = devices;
  args->num_addressable_devices = 1;
  return NULL;
}

static PJRT_Error *get_description(PJRT_Device_GetDescription_Args *args) {
  args->device_description = (PJRT_DeviceDescription *)&description_object;
  return NULL;
}

static PJRT_Error *description_id(PJRT_DeviceDescription_Id_Args *args) {
  args->id = 2048;
  return NULL;
}

static PJRT_Error *description_kind(PJRT_DeviceDescription_Kind_Args *args) {
  args->device_kind = "TPU v5 lite";
  args->device_kind_size = strlen(args->device_kind);
  return NULL;
}

static PJRT_Error *memory_stats(PJRT_Device_MemoryStats_Args *args) {
  args->bytes_limit = 16911433728;
  args->bytes_limit_is_set = true;
  return NULL;
}

static void note_options(const char *options, size_t size) {
  if (size >= sizeof(fake_options)) size = sizeof(fake_options) - 1;
  for (size_t i = 0; i < size; i++) fake_options[i] = options[i] >= ' ' && options[i] <= '~' ? options[i] : '.';
  fake_options[size] = '\0';
}

// A program "!8" fails with error code 8, all others compile.
static PJRT_Error *compile(const PJRT_Program *program, const char *options, size_t options_size) {
  fake_compilations++;
  note_options(options, options_size);
  if (fake_refused_option != NULL && strstr(fake_options, fake_refused_option) != NULL) {
    return fail(PJRT_Error_Code_INVALID_ARGUMENT, "No such compile option: '%s'", fake_refused_option);
  }
  if (program->code[0] == '!') return fail((PJRT_Error_Code)atoi(program->code + 1), "as %s\n\n", "wished");
  return NULL;
}

static PJRT_Error *client_compile(PJRT_Client_Compile_Args *args) {
  args->executable = (PJRT_LoadedExecutable *)&executable_object;
  return compile(args->program, args->compile_options, args->compile_options_size);
}

// Only the topology "v9:1x1" is known.
static PJRT_Error *topology_create(PJRT_TopologyDescription_Create_Args *args) {
  if (args->topology_name_size != 6 || memcmp(args->topology_name, "v9:1x1", 6) != 0) {
    return fail(PJRT_Error_Code_INVALID_ARGUMENT, "no such %s", "topology");
  }
  args->topology = (PJRT_TopologyDescription *)&topology_object;
  return NULL;
}

static PJRT_Error *topology_destroy(PJRT_TopologyDescription_Destroy_Args *args) {
  (void)args;
  return NULL;
}

static PJRT_Error *topology_compile(PJRT_Compile_Args *args) {
  args->executable = (PJRT_Executable *)&executable_object;
  if (args->topology != (PJRT_TopologyDescription *)&topology_object || args->client != NULL) {
    return fail(PJRT_Error_Code_INTERNAL, "a %s is wrong", "handle");
  }
  return compile(args->program, args->compile_options, args->compile_options_size);
}

static PJRT_Error *cost_analysis(PJRT_Executable_GetCostAnalysis_Args *args) {
  static PJRT_NamedValue properties[] = {
      {.name = "flops", .name_size = 5, .type = PJRT_NamedValue_kFloat, .float_value = 7, .value_size = 1},
      {.name = "optimal_seconds", .name_size = 15, .type = PJRT_NamedValue_kFloat, .value_size = 1},
  };
  properties[1].float_value = fake_optimal_seconds;
  args->properties = properties;
  args->num_properties = 2;
  return NULL;
}

static PJRT_Error *compiled_memory(PJRT_Executable_GetCompiledMemoryStats_Args *args) {
  if (fake_optimal_seconds < 0) return fail(PJRT_Error_Code_UNIMPLEMENTED, "no %s", "statistics");
  args->generated_code_size_in_bytes = 1;
  args->argument_size_in_bytes = 2;
  args->output_size_in_bytes = 3;
  args->alias_size_in_bytes = 4;
  args->temp_size_in_bytes = 5;
  return NULL;
}

static PJRT_Error *get_executable(PJRT_LoadedExecutable_GetExecutable_Args *args) {
  args->executable = (PJRT_Executable *)&executable_object;
  return NULL;
}

static PJRT_Error *executable_destroy(PJRT_Executable_Destroy_Args *args) {
  (void)args;
  return NULL;
}

static PJRT_Error *loaded_destroy(PJRT_LoadedExecutable_Destroy_Args *args) {
  (void)args;
  return NULL;
}

static PJRT_Error *num_outputs(PJRT_Executable_NumOutputs_Args *args) {
  args->num_outputs = 3;
  return NULL;
}

static PJRT_Error *execute(PJRT_LoadedExecutable_Execute_Args *args) {
  (void)args;
  return fail(PJRT_Error_Code_RESOURCE_EXHAUSTED, "no %s left", "HBM");
}

static PJRT_Error *from_host(PJRT_Client_BufferFromHostBuffer_Args *args) {
  args->buffer = (PJRT_Buffer *)&buffer_object;
  args->done_with_host_buffer = NULL;
  return NULL;
}

static PJRT_Error *buffer_destroy(PJRT_Buffer_Destroy_Args *args) {
  (void)args;
  return NULL;
}

// For what the test does not reach: present, so that the plugin is complete.
static PJRT_Error *unexpected(void *args) {
  (void)args;
  return fail(PJRT_Error_Code_INTERNAL, "%s", "not in the fake");
}

EXPORT const PJRT_Api *GetPjrtApi(void) {
  static PJRT_Api api;
  api = (PJRT_Api){
      .struct_size = PJRT_Api_STRUCT_SIZE,
      .pjrt_api_version = {.struct_size = PJRT_Api_Version_STRUCT_SIZE,
                           .major_version = PJRT_API_MAJOR,
                           .minor_version = PJRT_API_MINOR},
      .PJRT_Error_Destroy = error_destroy,
      .PJRT_Error_Message = error_message,
      .PJRT_Error_GetCode = error_code,
      .PJRT_Plugin_Initialize = initialize,
      .PJRT_Client_Create = client_create,
      .PJRT_Client_Destroy = client_destroy,
      .PJRT_Client_PlatformName = platform_name,
      .PJRT_Client_PlatformVersion = platform_version,
      .PJRT_Client_AddressableDevices = addressable_devices,
      .PJRT_Client_Compile = client_compile,
      .PJRT_Client_BufferFromHostBuffer = from_host,
      .PJRT_DeviceDescription_Id = description_id,
      .PJRT_DeviceDescription_Kind = description_kind,
      .PJRT_Device_GetDescription = get_description,
      .PJRT_Device_MemoryStats = memory_stats,
      .PJRT_Executable_Destroy = executable_destroy,
      .PJRT_Executable_NumOutputs = num_outputs,
      .PJRT_LoadedExecutable_Destroy = loaded_destroy,
      .PJRT_LoadedExecutable_GetExecutable = get_executable,
      .PJRT_LoadedExecutable_Execute = execute,
      .PJRT_Buffer_Destroy = buffer_destroy,
      .PJRT_TopologyDescription_Create = topology_create,
      .PJRT_TopologyDescription_Destroy = topology_destroy,
      .PJRT_Compile = topology_compile,
      .PJRT_Executable_GetCostAnalysis = cost_analysis,
      .PJRT_Executable_GetCompiledMemoryStats = compiled_memory,
      .PJRT_Event_Destroy = (PJRT_Event_Destroy *)unexpected,
      .PJRT_Event_IsReady = (PJRT_Event_IsReady *)unexpected,
      .PJRT_Event_Await = (PJRT_Event_Await *)unexpected,
      .PJRT_Event_OnReady = (PJRT_Event_OnReady *)unexpected,
      .PJRT_Buffer_Dimensions = (PJRT_Buffer_Dimensions *)unexpected,
      .PJRT_Buffer_CopyToDevice = (PJRT_Buffer_CopyToDevice *)unexpected,
      .PJRT_Buffer_ToHostBuffer = (PJRT_Buffer_ToHostBuffer *)unexpected,
      .PJRT_Buffer_ReadyEvent = (PJRT_Buffer_ReadyEvent *)unexpected,
      .PJRT_Buffer_OpaqueDeviceMemoryDataPointer = (PJRT_Buffer_OpaqueDeviceMemoryDataPointer *)unexpected,
  };
  if (has_fault("null")) return NULL;
  if (has_fault("major")) api.pjrt_api_version.major_version++;
  if (has_fault("minor")) api.pjrt_api_version.minor_version = 56;
  if (has_fault("short")) api.struct_size = offsetof(PJRT_Api, PJRT_Buffer_ToHostBuffer);
  if (has_fault("topology")) api.PJRT_Compile = NULL;
  if (has_fault("hole")) api.PJRT_Event_OnReady = NULL;
  return &api;
}
