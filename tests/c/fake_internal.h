// fake_internal.h - what the files of the fake plugin share; see fake_plugin.h. None of it is seen outside the shared object.
//
// fake_plugin.c  the switches, errors and faults, and the table of functions
// fake_moment.c  moments, and PJRT's events over them
// fake_work.c    memory, and the work on it
// fake_client.c  PJRT's clients, devices, programs and topologies
// fake_buffer.c  PJRT's buffers: transfers, and programs that run on them
//
// `fake_lock` guards all objects: what is declared here below "moments" is called with it held. Callbacks are called without.
#ifndef TT_TESTS_FAKE_INTERNAL_H_
#define TT_TESTS_FAKE_INTERNAL_H_

#include <pjrt_c_api.h>
#include <pthread.h>

#include "fake_plugin.h"
#include "fake_program.h"

#define EXPORT __attribute__((visibility("default")))

extern EXPORT fake_plugin fake;

// ---- blocks and objects: fake_plugin.c

void *fake_make(size_t size) __attribute__((returns_nonnull));
// A new object, counted, and its end.
#define FAKE_NEW(type, kind) ((type *)(atomic_fetch_add(&fake.live[kind], 1), fake_make(sizeof(type))))
void fake_drop(void *object, fake_object kind);

// ---- errors and faults: fake_plugin.c

PJRT_Error *fake_fail(PJRT_Error_Code code, const char *format, ...)
    __attribute__((format(printf, 2, 3), returns_nonnull));
PJRT_Error *fake_copy_error(const PJRT_Error *error);  // NULL stays NULL
PJRT_Error *fake_late_failure(fake_function function); // what is to fail when it was started
bool fake_has_fault(const char *fault);                // of $TT_FAKE_PLUGIN_FAULT

// ---- moments, something that will be done: fake_moment.c

extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_changed; // a moment is done, or there is work
// Ends a section that holds the lock, and calls back what has become due in it.
void fake_unlock_and_call(void);

typedef struct moment {
  int references;
  bool done;
  PJRT_Error *error; // once done
  struct callback *callbacks;
} moment;

moment *fake_moment_new(void);
moment *fake_moment_retain(moment *m);
void fake_moment_release(moment *m); // NULL is fine, here and below
// Takes over `error`. The callbacks are fake_unlock_and_call's.
void fake_moment_finish(moment *m, PJRT_Error *error);
PJRT_Event *fake_event_new(moment *m);

// ---- memory: fake_work.c

typedef struct memory {
  int references;
  void *data;
  int64_t bytes;
  bool borrowed, read_only; // the host's
  moment *let_go;           // of borrowed memory; else NULL
} memory;

// `borrowed`: the host's; NULL: its own.
PJRT_Error *fake_memory_new(int64_t bytes, void *borrowed, memory **out);
memory *fake_memory_retain(memory *m);
void fake_memory_release(memory *m);

// ---- programs: fake_work.c

typedef struct loaded_program {
  int references;
  fake_program *program; // NULL: a text that is none
} loaded_program;

struct PJRT_LoadedExecutable {
  loaded_program *program;
};

void fake_loaded_release(loaded_program *p);
int fake_loaded_output_count(const loaded_program *p);
fake_type fake_loaded_output_type(const loaded_program *p, int index);

// ---- work: fake_work.c

// Reads `inputs` once `waits` are done, and writes either `outputs` or `to`.
typedef struct work {
  struct work *next;
  moment *done;
  moment **waits;
  memory **inputs, **outputs;
  int wait_count, input_count, output_count;
  fake_element *elements; // of the inputs, then of the outputs
  fake_program *program;  // borrowed from its executable, which `holder` keeps
  loaded_program *holder;
  bool *taken;      // inputs that the program takes over
  const void *from; // host memory to be copied, or
  void *to;         // to be filled
  PJRT_Error *wished;
} work;

work *fake_work_new(int waits, int inputs, int outputs); // with room for so many
void fake_work_free(work *w);
void fake_work_submit(work *w); // takes it over; puts it at the line's end
// These two are fake_plugin's own, called without the lock.
void fake_hold(bool held);
void fake_wait_until_idle(void);

// ---- the bodies of PJRT's functions, called without the lock

#define X(function, body, when) PJRT_Error *fake_##body(function##_Args *args);
FAKE_FUNCTIONS(X)
#undef X

#endif // TT_TESTS_FAKE_INTERNAL_H_
