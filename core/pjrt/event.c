// event.c - PJRT events.
#include "pjrt/event.h"

#include "base/memory.h"
#include "pjrt/api.h"

bool tt_event_is_ready(const tt_event *event) {
  if (event->pjrt == NULL) return true;
  PJRT_Event_IsReady_Args args = TT_PJRT_ARGS(PJRT_Event_IsReady, .event = event->pjrt);
  PJRT_Error *error = event->plugin->api->PJRT_Event_IsReady(&args);
  bool failed = error != NULL;
  tt_pjrt_ignore(event->plugin, error);
  return failed || args.is_ready; // a wait will tell why
}

tt_status tt_event_wait(const tt_event *event) {
  if (event->pjrt == NULL) return TT_SUCCESS;
  return TT_PJRT(event->plugin, PJRT_Event_Await, &TT_PJRT_ARGS(PJRT_Event_Await, .event = event->pjrt));
}

// What the plugin carries to on_ready, which frees it.
typedef struct callback {
  const tt_plugin *plugin;
  void (*done)(tt_status status, void *user);
  void *user;
} callback;

static void on_ready(PJRT_Error *error, void *user) {
  callback call = *(callback *)user;
  tt_free(user);
  call.done(tt_pjrt_status(call.plugin, "PJRT_Event_OnReady", error), call.user);
}

tt_status tt_event_on_ready(const tt_event *event, void (*done)(tt_status status, void *user), void *user) {
  if (event->pjrt == NULL) {
    done(TT_SUCCESS, user);
    return TT_SUCCESS;
  }
  void *block = NULL;
  TT_TRY(tt_allocate(1, sizeof(callback), &block));
  *(callback *)block = (callback){event->plugin, done, user};
  tt_status status =
      TT_PJRT(event->plugin, PJRT_Event_OnReady,
              &TT_PJRT_ARGS(PJRT_Event_OnReady, .event = event->pjrt, .callback = on_ready, .user_arg = block));
  if (status != NULL) tt_free(block);
  return status;
}

void tt_event_release(tt_event *event) {
  if (event->pjrt == NULL) return;
  tt_pjrt_ignore(event->plugin,
                 event->plugin->api->PJRT_Event_Destroy(&TT_PJRT_ARGS(PJRT_Event_Destroy, .event = event->pjrt)));
  event->pjrt = NULL;
}
