// compile_cache.c - the compile cache as the environment wants it.
#include <pthread.h>

#include "cache/cache.h"
#include "cache/config.h"
#include "run/env.h"
#include "run/internal.h"

enum {
  // Longer than nearly every compilation; after that two processes compile the same program.
  WAIT_SECONDS = 120,
  // So that a program used all day costs its file a few changes a day, and eviction still sees who was used today.
  TOUCH_SECONDS = 600,
};

tt_status tt_runtime_configure_cache(void) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards `configured`
  static bool configured;
  pthread_mutex_lock(&lock);
  tt_status status = configured ? TT_SUCCESS : tt_env_check();
  if (!status && !configured) {
    status = tt_cache_configure(&(tt_cache_config){.folder = tt_env_text(TT_ENV_CACHE_DIR),
                                                   .limit = tt_env_number(TT_ENV_CACHE_LIMIT),
                                                   .mode = (tt_cache_mode)tt_env_number(TT_ENV_CACHE_MODE),
                                                   .wait_seconds = WAIT_SECONDS,
                                                   .touch_seconds = TOUCH_SECONDS});
    configured = status == NULL;
  }
  pthread_mutex_unlock(&lock);
  return status;
}

tt_status tt_runtime_probe_cache(void) {
  TT_TRY(tt_runtime_start());
  return tt_cache_probe(tt_runtime_client());
}
