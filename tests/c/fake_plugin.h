// fake_plugin.h - the switches and counts of the fake plugin, a PJRT plugin that does on demand what real ones do rarely: it
// fails at the n-th call of a function, finishes late and in another order, and runs out of memory.
//
// Tests find the struct by dlsym as "fake" (fake_control in fake.h). Switches are set while nothing is under way.
#ifndef TT_TESTS_FAKE_PLUGIN_H_
#define TT_TESTS_FAKE_PLUGIN_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// PJRT function, its body (fake_BODY in fake_internal.h), and whether a wished failure comes before the body, which is then
// not run, or behind it: what frees something does so all the same, and who awaits something hears of the failure when it is
// there.
#define FAKE_FUNCTIONS(X)                                                                                               \
  X(PJRT_Error_GetCode, error_code, BEFORE)                                                                             \
  X(PJRT_Plugin_Initialize, initialize, BEFORE)                                                                         \
  X(PJRT_Event_Destroy, event_destroy, BEHIND)                                                                          \
  X(PJRT_Event_IsReady, event_is_ready, BEFORE)                                                                         \
  X(PJRT_Event_Await, event_await, BEHIND)                                                                              \
  X(PJRT_Event_OnReady, event_on_ready, BEFORE)                                                                         \
  X(PJRT_Client_Create, client_create, BEFORE)                                                                          \
  X(PJRT_Client_Destroy, client_destroy, BEHIND)                                                                        \
  X(PJRT_Client_PlatformName, platform_name, BEFORE)                                                                    \
  X(PJRT_Client_PlatformVersion, platform_version, BEFORE)                                                              \
  X(PJRT_Client_AddressableDevices, addressable_devices, BEFORE)                                                        \
  X(PJRT_Client_Compile, client_compile, BEFORE)                                                                        \
  X(PJRT_Client_BufferFromHostBuffer, from_host, BEFORE)                                                                \
  X(PJRT_DeviceDescription_Id, description_id, BEFORE)                                                                  \
  X(PJRT_DeviceDescription_Kind, description_kind, BEFORE)                                                              \
  X(PJRT_Device_GetDescription, get_description, BEFORE)                                                                \
  X(PJRT_Device_MemoryStats, memory_stats, BEFORE)                                                                      \
  X(PJRT_Executable_Destroy, executable_destroy, BEHIND)                                                                \
  X(PJRT_Executable_NumOutputs, num_outputs, BEFORE)                                                                    \
  X(PJRT_Executable_GetCostAnalysis, cost_analysis, BEFORE)                                                             \
  X(PJRT_Executable_GetCompiledMemoryStats, compiled_memory, BEFORE)                                                    \
  X(PJRT_Executable_Serialize, serialize, BEFORE)                                                                       \
  X(PJRT_Executable_DeserializeAndLoad, deserialize, BEFORE)                                                            \
  X(PJRT_LoadedExecutable_Destroy, loaded_destroy, BEHIND)                                                              \
  X(PJRT_LoadedExecutable_GetExecutable, get_executable, BEFORE)                                                        \
  X(PJRT_LoadedExecutable_Execute, execute, BEFORE)                                                                     \
  X(PJRT_Buffer_Destroy, buffer_destroy, BEHIND)                                                                        \
  X(PJRT_Buffer_Dimensions, buffer_dimensions, BEFORE)                                                                  \
  X(PJRT_Buffer_CopyToDevice, copy_to_device, BEFORE)                                                                   \
  X(PJRT_Buffer_ToHostBuffer, to_host, BEFORE)                                                                          \
  X(PJRT_Buffer_ReadyEvent, ready_event, BEFORE)                                                                        \
  X(PJRT_Buffer_OpaqueDeviceMemoryDataPointer, data_pointer, BEFORE)                                                    \
  X(PJRT_TopologyDescription_Create, topology_create, BEFORE)                                                           \
  X(PJRT_TopologyDescription_Destroy, topology_destroy, BEHIND)                                                         \
  X(PJRT_Compile, topology_compile, BEFORE)

typedef enum fake_function {
#define X(function, body, when) FAKE_##function,
  FAKE_FUNCTIONS(X)
#undef X
  // These two cannot fail.
  FAKE_PJRT_Error_Destroy,
  FAKE_PJRT_Error_Message,
  FAKE_FUNCTION_COUNT
} fake_function;

// What the plugin gives out and wants back.
#define FAKE_OBJECTS(X)                                                                                                 \
  X(client) X(buffer) X(event) X(loaded_executable) X(executable) X(error) X(topology) X(serialized_executable)
typedef enum fake_object {
#define X(name) FAKE_##name,
  FAKE_OBJECTS(X)
#undef X
      FAKE_OBJECT_COUNT
} fake_object;

// When work that was started finishes: before the call that starts it returns, or later, one piece after the other, on a thread
// of the plugin. Whatever the order, a piece comes after those whose results it reads or whose operands it overwrites.
typedef enum fake_order { FAKE_AT_ONCE, FAKE_IN_ORDER, FAKE_NEWEST_FIRST, FAKE_SHUFFLED } fake_order;

typedef struct fake_plugin {
  // --- switches
  const char *platform;         // "tpu"; "cpu": its memory is the host's
  const char *refused_option;   // a compile option that is answered with "No such compile option"; NULL: none
  float optimal_seconds;        // of every program compiled for a topology; negative: no memory statistics either
  bool no_done_events;          // a transfer from the host gives no event
  _Atomic int order;            // a fake_order
  _Atomic int delay_us;         // of each piece of work on the plugin's thread
  _Atomic int64_t memory_limit; // bytes; a buffer beyond fails with RESOURCE_EXHAUSTED. 0: none
  _Atomic bool flag;            // the elements of BOOL results; true at first
  // The n-th call of `function` from now fails with `code`. 0: none.
  _Atomic int fault_function, fault_code;
  _Atomic int64_t fault_at;
  _Atomic bool fault_stays;      // and so do all calls after it
  _Atomic bool fault_comes_late; // of work: the call succeeds, and what it started fails
  // Nothing finishes on the plugin's thread from hold(true) to hold(false).
  void (*hold)(bool held);
  void (*wait_until_idle)(void);

  // --- what happened
  _Atomic int64_t calls[FAKE_FUNCTION_COUNT], failures[FAKE_FUNCTION_COUNT];
  _Atomic int64_t live[FAKE_OBJECT_COUNT];
  _Atomic int64_t live_bytes; // in buffers, and in work that reads or writes them
  _Atomic int64_t misuses;    // uses of a buffer that a program took over
  _Atomic int compilations;
  int create_options; // number of options of the last client
  char options[4096]; // the last compile options, with '.' for what cannot be printed
} fake_plugin;

#endif // TT_TESTS_FAKE_PLUGIN_H_
