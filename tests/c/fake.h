// fake.h - how tests reach fake_plugin.c, whose path is $TT_FAKE_PLUGIN.
#ifndef TT_TESTS_FAKE_H_
#define TT_TESTS_FAKE_H_

#include <dlfcn.h>
#include <stdlib.h>

#include "base/memory.h"
#include "fake_plugin.h"
#include "pjrt/client.h"
#include "runner.h"

static inline const char *fake_path(void) {
  const char *path = getenv("TT_FAKE_PLUGIN");
  CHECK(path != NULL);
  return path;
}

static inline fake_plugin *fake_control(void) {
  fake_plugin *fake = dlsym(dlopen(fake_path(), RTLD_NOW), "fake");
  CHECK(fake != NULL);
  return fake;
}

// Opens it; the plugin stays.
static inline tt_plugin *fake_open(void) {
  int64_t live = tt_memory_live_count();
  tt_plugin *plugin = NULL;
  CHECK_OK(tt_plugin_open_file(fake_path(), &plugin));
  test_keeps_blocks(tt_memory_live_count() - live);
  return plugin;
}

static inline tt_client *fake_client(int devices) {
  tt_client *client = NULL;
  CHECK_OK(tt_client_create(fake_open(), devices, &client));
  return client;
}

static inline const char *fake_function_name(int function) {
  static const char *const names[] = {
#define X(function, body, when) #function,
      FAKE_FUNCTIONS(X)
#undef X
          "PJRT_Error_Destroy",
      "PJRT_Error_Message",
  };
  return names[function];
}

// The n-th call of `function` from now fails with INTERNAL; n = 0: none does.
static inline void fake_fail_at(fake_plugin *fake, int function, int64_t n) {
  atomic_store(&fake->fault_function, function);
  atomic_store(&fake->fault_code, 13);
  atomic_store(&fake->fault_at, n);
}

#endif // TT_TESTS_FAKE_H_
