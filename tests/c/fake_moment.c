// fake_moment.c - moments of the fake plugin, and PJRT's events over them; see fake_internal.h.
#include <stdlib.h>

#include "fake_internal.h"

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;

typedef struct callback {
  struct callback *next;
  PJRT_Event_OnReadyCallback call;
  void *user;
} callback;

struct PJRT_Event {
  moment *moment;
};

moment *fake_moment_retain(moment *m) {
  m->references++;
  return m;
}

void fake_moment_release(moment *m) {
  if (m == NULL || --m->references > 0) return;
  if (m->error != NULL) fake_drop(m->error, FAKE_error);
  free(m);
}

moment *fake_moment_new(void) {
  moment *m = fake_make(sizeof(moment));
  m->references = 1;
  return m;
}

PJRT_Event *fake_event_new(moment *m) {
  PJRT_Event *event = FAKE_NEW(PJRT_Event, FAKE_event);
  event->moment = fake_moment_retain(m);
  return event;
}

// A callback whose moment has come.
typedef struct due {
  struct due *next;
  callback *callback;
  PJRT_Error *error;
} due;
static due *all_due; // newest first

void fake_moment_finish(moment *m, PJRT_Error *error) {
  m->done = true;
  m->error = error;
  while (m->callbacks != NULL) {
    callback *c = m->callbacks;
    m->callbacks = c->next;
    due *d = fake_make(sizeof(due));
    *d = (due){all_due, c, fake_copy_error(error)};
    all_due = d;
  }
  pthread_cond_broadcast(&fake_changed);
}

void fake_unlock_and_call(void) {
  due *list = all_due;
  all_due = NULL;
  pthread_mutex_unlock(&fake_lock);
  while (list != NULL) {
    due *d = list;
    list = d->next;
    d->callback->call(d->error, d->callback->user);
    free(d->callback);
    free(d);
  }
}

// ---- events

PJRT_Error *fake_event_destroy(PJRT_Event_Destroy_Args *args) {
  pthread_mutex_lock(&fake_lock);
  fake_moment_release(args->event->moment);
  pthread_mutex_unlock(&fake_lock);
  fake_drop(args->event, FAKE_event);
  return NULL;
}

PJRT_Error *fake_event_is_ready(PJRT_Event_IsReady_Args *args) {
  pthread_mutex_lock(&fake_lock);
  args->is_ready = args->event->moment->done;
  pthread_mutex_unlock(&fake_lock);
  return NULL;
}

PJRT_Error *fake_event_await(PJRT_Event_Await_Args *args) {
  pthread_mutex_lock(&fake_lock);
  while (!args->event->moment->done) pthread_cond_wait(&fake_changed, &fake_lock);
  PJRT_Error *error = fake_copy_error(args->event->moment->error);
  pthread_mutex_unlock(&fake_lock);
  return error;
}

PJRT_Error *fake_event_on_ready(PJRT_Event_OnReady_Args *args) {
  callback *c = fake_make(sizeof(callback));
  pthread_mutex_lock(&fake_lock);
  moment *m = args->event->moment;
  *c = (callback){m->callbacks, args->callback, args->user_arg};
  m->callbacks = c;
  if (m->done) {
    PJRT_Error *error = m->error;
    fake_moment_finish(m, error);
  }
  fake_unlock_and_call();
  return NULL;
}
