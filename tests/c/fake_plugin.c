// fake_plugin.c - see fake_plugin.h: the switches, errors and faults, and the table of functions. Built as a shared object
// together with the files that fake_internal.h names.
//
// $TT_FAKE_PLUGIN_FAULT is read by GetPjrtApi: "null", "major", "minor", "short", "hole", "initialize", "topology" or
// "serialize".
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_internal.h"

EXPORT fake_plugin fake = {.platform = "tpu",
                           .flag = true,
                           .fault_code = PJRT_Error_Code_INTERNAL,
                           .hold = fake_hold,
                           .wait_until_idle = fake_wait_until_idle};

// ---- blocks and objects

void *fake_make(size_t size) {
  void *block = calloc(1, size);
  if (block == NULL) abort();
  return block;
}

void fake_drop(void *object, fake_object kind) {
  atomic_fetch_sub(&fake.live[kind], 1);
  free(object);
}

// ---- errors

struct PJRT_Error {
  PJRT_Error_Code code;
  char message[256];
};

PJRT_Error *fake_fail(PJRT_Error_Code code, const char *format, ...) {
  PJRT_Error *error = FAKE_NEW(PJRT_Error, FAKE_error);
  error->code = code;
  va_list args;
  va_start(args, format);
  vsnprintf(error->message, sizeof(error->message), format, args);
  va_end(args);
  return error;
}

static void error_destroy(PJRT_Error_Destroy_Args *args) {
  atomic_fetch_add(&fake.calls[FAKE_PJRT_Error_Destroy], 1);
  fake_drop(args->error, FAKE_error);
}

static void error_message(PJRT_Error_Message_Args *args) {
  atomic_fetch_add(&fake.calls[FAKE_PJRT_Error_Message], 1);
  args->message = args->error->message;
  args->message_size = strlen(args->error->message);
}

PJRT_Error *fake_error_code(PJRT_Error_GetCode_Args *args) {
  args->code = args->error->code;
  return NULL;
}

// Is this the call that is to fail?
static bool fault_hits(fake_function function) {
  if (atomic_load(&fake.fault_function) != (int)function || atomic_load(&fake.fault_at) == 0) return false;
  if (atomic_fetch_sub(&fake.fault_at, 1) != 1) return false;
  if (atomic_load(&fake.fault_stays)) atomic_store(&fake.fault_at, 1);
  atomic_fetch_add(&fake.failures[function], 1);
  return true;
}

static PJRT_Error *wished_failure(void) {
  return fake_fail((PJRT_Error_Code)atomic_load(&fake.fault_code), "as wished\n\n");
}

PJRT_Error *fake_copy_error(const PJRT_Error *error) {
  return error != NULL ? fake_fail(error->code, "%s", error->message) : NULL;
}

PJRT_Error *fake_late_failure(fake_function function) {
  return atomic_load(&fake.fault_comes_late) && fault_hits(function) ? wished_failure() : NULL;
}

// ---- the table

bool fake_has_fault(const char *fault) {
  const char *value = getenv("TT_FAKE_PLUGIN_FAULT");
  return value != NULL && strcmp(value, fault) == 0;
}

enum { BEFORE, BEHIND };

static bool fails_now(fake_function function) {
  static const fake_function late[] = {FAKE_PJRT_LoadedExecutable_Execute, FAKE_PJRT_Client_BufferFromHostBuffer,
                                       FAKE_PJRT_Buffer_CopyToDevice, FAKE_PJRT_Buffer_ToHostBuffer};
  for (size_t i = 0; atomic_load(&fake.fault_comes_late) && i < sizeof(late) / sizeof(late[0]); i++)
    if (late[i] == function) return false;
  return fault_hits(function);
}

#define X(function, body, when)                                                                                         \
  static PJRT_Error *entry_##function(function##_Args *args) {                                                          \
    atomic_fetch_add(&fake.calls[FAKE_##function], 1);                                                                  \
    if ((when) == BEFORE && fails_now(FAKE_##function)) return wished_failure();                                        \
    PJRT_Error *error = fake_##body(args);                                                                               \
    return error == NULL && (when) == BEHIND && fails_now(FAKE_##function) ? wished_failure() : error;                  \
  }
FAKE_FUNCTIONS(X)
#undef X

EXPORT const PJRT_Api *GetPjrtApi(void) {
  static PJRT_Api api;
  api = (PJRT_Api){.struct_size = PJRT_Api_STRUCT_SIZE,
                   .pjrt_api_version = {.struct_size = PJRT_Api_Version_STRUCT_SIZE,
                                        .major_version = PJRT_API_MAJOR,
                                        .minor_version = PJRT_API_MINOR},
                   .PJRT_Error_Destroy = error_destroy,
                   .PJRT_Error_Message = error_message,
#define X(function, body, when) .function = entry_##function,
                   FAKE_FUNCTIONS(X)
#undef X
  };
  if (fake_has_fault("null")) return NULL;
  if (fake_has_fault("major")) api.pjrt_api_version.major_version++;
  if (fake_has_fault("minor")) api.pjrt_api_version.minor_version = 56;
  if (fake_has_fault("short")) api.struct_size = offsetof(PJRT_Api, PJRT_Buffer_ToHostBuffer);
  if (fake_has_fault("topology")) api.PJRT_Compile = NULL;
  if (fake_has_fault("hole")) api.PJRT_Event_OnReady = NULL;
  if (fake_has_fault("serialize")) api.PJRT_Executable_Serialize = NULL;
  return &api;
}
