// event.h - a PJRT event: something that will be done, or will have failed.
#ifndef TT_PJRT_EVENT_H_
#define TT_PJRT_EVENT_H_

#include <stdbool.h>

#include "base/status.h"
#include "pjrt/plugin.h"

// Owned by one holder. A null event (pjrt == NULL) is ready and good.
typedef struct tt_event {
  tt_plugin *plugin;
  void *pjrt; // PJRT_Event *
} tt_event;

bool tt_event_is_ready(const tt_event *event);
// Blocks until done; the failure of what it stands for, if any. May be called again.
tt_status tt_event_wait(const tt_event *event);
// Calls done(status, user) once, on a thread of the plugin or at once on this one; the callback owns `status`.
tt_status tt_event_on_ready(const tt_event *event, void (*done)(tt_status status, void *user), void *user);
void tt_event_release(tt_event *event); // leaves a null event

#endif // TT_PJRT_EVENT_H_
