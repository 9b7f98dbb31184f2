// api.h - the PJRT C API as pjrt/ uses it. Nothing outside this folder includes this file or pjrt_c_api.h.
//
// Each call goes through TT_PJRT, which turns a PJRT_Error into a tt_status and frees it.
#ifndef TT_PJRT_API_H_
#define TT_PJRT_API_H_

#include <pjrt_c_api.h>
#include <stdint.h>

#include "base/status.h"
#include "pjrt/client.h"
#include "pjrt/plugin.h"

// Every function of PJRT_Api that the core calls; a plugin must have them all.
#define TT_PJRT_FUNCTIONS(X)                                                                                            \
  X(PJRT_Error_Destroy)                                                                                                 \
  X(PJRT_Error_Message)                                                                                                 \
  X(PJRT_Error_GetCode)                                                                                                 \
  X(PJRT_Plugin_Initialize)                                                                                             \
  X(PJRT_Event_Destroy)                                                                                                 \
  X(PJRT_Event_IsReady)                                                                                                 \
  X(PJRT_Event_Await)                                                                                                   \
  X(PJRT_Event_OnReady)                                                                                                 \
  X(PJRT_Client_Create)                                                                                                 \
  X(PJRT_Client_Destroy)                                                                                                \
  X(PJRT_Client_PlatformName)                                                                                           \
  X(PJRT_Client_PlatformVersion)                                                                                        \
  X(PJRT_Client_AddressableDevices)                                                                                     \
  X(PJRT_Client_Compile)                                                                                                \
  X(PJRT_Client_BufferFromHostBuffer)                                                                                   \
  X(PJRT_DeviceDescription_Id)                                                                                          \
  X(PJRT_DeviceDescription_Kind)                                                                                        \
  X(PJRT_Device_GetDescription)                                                                                         \
  X(PJRT_Device_MemoryStats)                                                                                            \
  X(PJRT_Executable_Destroy)                                                                                            \
  X(PJRT_Executable_NumOutputs)                                                                                         \
  X(PJRT_LoadedExecutable_Destroy)                                                                                      \
  X(PJRT_LoadedExecutable_GetExecutable)                                                                                \
  X(PJRT_LoadedExecutable_Execute)                                                                                      \
  X(PJRT_Buffer_Destroy)                                                                                                \
  X(PJRT_Buffer_Dimensions)                                                                                             \
  X(PJRT_Buffer_CopyToDevice)                                                                                           \
  X(PJRT_Buffer_ToHostBuffer)                                                                                           \
  X(PJRT_Buffer_ReadyEvent)                                                                                             \
  X(PJRT_Buffer_OpaqueDeviceMemoryDataPointer)

// Lives until the process ends.
struct tt_plugin {
  const PJRT_Api *api;
  void *library; // of dlopen
  char *path;
  bool is_libtpu;         // by its file name: known before anything is started
  struct tt_plugin *next; // in the list of plugin.c
};

// Compile options that not every plugin knows, see executable.c.
typedef uint32_t tt_option_set;

struct tt_client {
  tt_plugin *plugin;
  PJRT_Client *pjrt;
  char *platform, *platform_version;
  bool is_host;
  int device_count;
  tt_device *devices;
  _Atomic tt_option_set refused_options; // what this plugin answered "No such compile option" to
};

// The argument struct of `function`, zeroed but for its size and the fields given.
#define TT_PJRT_ARGS(function, ...)                                                                                     \
  (function##_Args) { .struct_size = function##_Args_STRUCT_SIZE, __VA_ARGS__ }

// A function of PJRT_Api by name and place.
typedef struct tt_plugin_function {
  const char *name;
  size_t offset;
} tt_plugin_function;
// TT_UNAVAILABLE naming the first of these that the plugin does not have. (plugin.c)
tt_status tt_plugin_check_functions(const PJRT_Api *api, const tt_plugin_function *functions, size_t count);

// StableHLO text as a program to compile. It is not written to; PJRT uses the struct for output too.
static inline PJRT_Program tt_pjrt_program(const char *text, int64_t size) {
  static const char format[] = "mlir";
  return (PJRT_Program){
      .struct_size = PJRT_Program_STRUCT_SIZE,
      .code = (char *)text,
      .code_size = (size_t)size,
      .format = format,
      .format_size = sizeof(format) - 1,
  };
}

// Calls plugin->api->function(args) and gives a tt_status.
#define TT_PJRT(plugin, function, args) tt_pjrt_status((plugin), #function, (plugin)->api->function(args))

// Takes over `error`, which is not NULL. RESOURCE_EXHAUSTED becomes TT_OUT_OF_MEMORY, UNIMPLEMENTED TT_NOT_IMPLEMENTED,
// all others TT_PLUGIN; the message is "function: CODE: text of the plugin".
tt_status tt_pjrt_error(const tt_plugin *plugin, const char *function, PJRT_Error *error);

static inline tt_status tt_pjrt_status(const tt_plugin *plugin, const char *function, PJRT_Error *error) {
  return __builtin_expect(error == NULL, 1) ? TT_SUCCESS : tt_pjrt_error(plugin, function, error);
}

// For calls that free something: there is nothing to be done about a failure.
static inline void tt_pjrt_ignore(const tt_plugin *plugin, PJRT_Error *error) {
  if (__builtin_expect(error == NULL, 1)) return;
  plugin->api->PJRT_Error_Destroy(&TT_PJRT_ARGS(PJRT_Error_Destroy, .error = error));
}

#endif // TT_PJRT_API_H_
