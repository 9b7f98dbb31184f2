// fake_plugin.c - see fake_plugin.h. Built as a shared object.
//
// $TT_FAKE_PLUGIN_FAULT is read by GetPjrtApi: "null", "major", "minor", "short", "hole", "initialize", "topology" or
// "serialize". A program is text that core/hlo wrote (fake_program.h); "!8" fails to compile with error code 8; any other text
// is a program with three results, of one float each.
//
// `lock` guards all objects. Work stands in a line in the order in which it was started; whoever takes a piece out runs it under
// the lock, and calls back without.
#include "fake_plugin.h"

#include <pjrt_c_api.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_program.h"

#define EXPORT __attribute__((visibility("default")))

enum { MAX_DEVICES = 8 };

static void hold(bool held);
static void wait_until_idle(void);
EXPORT fake_plugin fake = {.platform = "tpu",
                           .flag = true,
                           .fault_code = PJRT_Error_Code_INTERNAL,
                           .hold = hold,
                           .wait_until_idle = wait_until_idle};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

__attribute__((returns_nonnull)) static void *make(size_t size) {
  void *block = calloc(1, size);
  if (block == NULL) abort();
  return block;
}

// A new object, counted, and its end.
#define NEW(type, kind) ((type *)(atomic_fetch_add(&fake.live[kind], 1), make(sizeof(type))))
static void drop(void *object, fake_object kind) {
  atomic_fetch_sub(&fake.live[kind], 1);
  free(object);
}

// ---- errors ----------------------------------------------------------------------------------------------------------

struct PJRT_Error {
  PJRT_Error_Code code;
  char message[256];
};

__attribute__((format(printf, 2, 3), returns_nonnull)) static PJRT_Error *fail(PJRT_Error_Code code, const char *format,
                                                                               ...) {
  PJRT_Error *error = NEW(PJRT_Error, FAKE_error);
  error->code = code;
  va_list args;
  va_start(args, format);
  vsnprintf(error->message, sizeof(error->message), format, args);
  va_end(args);
  return error;
}

static void error_destroy(PJRT_Error_Destroy_Args *args) {
  atomic_fetch_add(&fake.calls[FAKE_PJRT_Error_Destroy], 1);
  drop(args->error, FAKE_error);
}

static void error_message(PJRT_Error_Message_Args *args) {
  atomic_fetch_add(&fake.calls[FAKE_PJRT_Error_Message], 1);
  args->message = args->error->message;
  args->message_size = strlen(args->error->message);
}

static PJRT_Error *error_code(PJRT_Error_GetCode_Args *args) {
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
  return fail((PJRT_Error_Code)atomic_load(&fake.fault_code), "as wished\n\n");
}

// ---- moments: something that will be done --------------------------------------------------------------------------------

typedef struct callback {
  struct callback *next;
  PJRT_Event_OnReadyCallback call;
  void *user;
} callback;

typedef struct moment {
  int references;
  bool done;
  PJRT_Error *error; // once done
  callback *callbacks;
} moment;

struct PJRT_Event {
  moment *moment;
};

static moment *retain_moment(moment *m) {
  m->references++;
  return m;
}

static void release_moment(moment *m) {
  if (m == NULL || --m->references > 0) return;
  if (m->error != NULL) drop(m->error, FAKE_error);
  free(m);
}

static moment *new_moment(void) {
  moment *m = make(sizeof(moment));
  m->references = 1;
  return m;
}

static PJRT_Event *new_event(moment *m) {
  PJRT_Event *event = NEW(PJRT_Event, FAKE_event);
  event->moment = retain_moment(m);
  return event;
}

static PJRT_Error *copy_error(const PJRT_Error *error) {
  return error != NULL ? fail(error->code, "%s", error->message) : NULL;
}

// A callback whose moment has come.
typedef struct due {
  struct due *next;
  callback *callback;
  PJRT_Error *error;
} due;
static due *all_due; // newest first

// Takes over `error`. The callbacks are the next call_due()'s, without the lock.
static void finish_moment(moment *m, PJRT_Error *error) {
  m->done = true;
  m->error = error;
  while (m->callbacks != NULL) {
    callback *c = m->callbacks;
    m->callbacks = c->next;
    due *d = make(sizeof(due));
    *d = (due){all_due, c, copy_error(error)};
    all_due = d;
  }
  pthread_cond_broadcast(&changed);
}

// Ends a section that holds the lock.
static void unlock_and_call(void) {
  due *list = all_due;
  all_due = NULL;
  pthread_mutex_unlock(&lock);
  while (list != NULL) {
    due *d = list;
    list = d->next;
    d->callback->call(d->error, d->callback->user);
    free(d->callback);
    free(d);
  }
}

static PJRT_Error *event_destroy(PJRT_Event_Destroy_Args *args) {
  pthread_mutex_lock(&lock);
  release_moment(args->event->moment);
  pthread_mutex_unlock(&lock);
  drop(args->event, FAKE_event);
  return NULL;
}

static PJRT_Error *event_is_ready(PJRT_Event_IsReady_Args *args) {
  pthread_mutex_lock(&lock);
  args->is_ready = args->event->moment->done;
  pthread_mutex_unlock(&lock);
  return NULL;
}

static PJRT_Error *event_await(PJRT_Event_Await_Args *args) {
  pthread_mutex_lock(&lock);
  while (!args->event->moment->done) pthread_cond_wait(&changed, &lock);
  PJRT_Error *error = copy_error(args->event->moment->error);
  pthread_mutex_unlock(&lock);
  return error;
}

static PJRT_Error *event_on_ready(PJRT_Event_OnReady_Args *args) {
  callback *c = make(sizeof(callback));
  pthread_mutex_lock(&lock);
  moment *m = args->event->moment;
  *c = (callback){m->callbacks, args->callback, args->user_arg};
  m->callbacks = c;
  if (m->done) {
    PJRT_Error *error = m->error;
    finish_moment(m, error);
  }
  unlock_and_call();
  return NULL;
}

// ---- memory ----------------------------------------------------------------------------------------------------------------

typedef struct memory {
  int references;
  void *data;
  int64_t bytes;
  bool borrowed, read_only; // the host's
  moment *let_go;           // of borrowed memory; else NULL
} memory;

// `borrowed`: the host's; NULL: its own.
static PJRT_Error *new_memory(int64_t bytes, void *borrowed, memory **out) {
  int64_t limit = atomic_load(&fake.memory_limit);
  if (limit > 0 && atomic_load(&fake.live_bytes) + bytes > limit) {
    return fail(PJRT_Error_Code_RESOURCE_EXHAUSTED, "Out of memory allocating %lld bytes.", (long long)bytes);
  }
  atomic_fetch_add(&fake.live_bytes, bytes);
  memory *m = make(sizeof(memory));
  *m = (memory){.references = 1, .data = borrowed, .bytes = bytes, .borrowed = borrowed != NULL};
  if (borrowed == NULL && posix_memalign(&m->data, 64, (size_t)bytes + 1) != 0) abort();
  *out = m;
  return NULL;
}

static memory *retain_memory(memory *m) {
  m->references++;
  return m;
}

static void release_memory(memory *m) {
  if (m == NULL || --m->references > 0) return;
  atomic_fetch_sub(&fake.live_bytes, m->bytes);
  if (!m->borrowed) free(m->data);
  if (m->let_go != NULL) finish_moment(m->let_go, NULL);
  release_moment(m->let_go);
  free(m);
}

// ---- work ------------------------------------------------------------------------------------------------------------------

// Reads `inputs` once `waits` are done, and writes either `outputs` or `to`.
typedef struct work {
  struct work *next;
  moment *done;
  moment **waits;
  memory **inputs, **outputs;
  int wait_count, input_count, output_count;
  fake_element *elements; // of the inputs, then of the outputs
  fake_program *program;  // borrowed from its executable, which `holder` keeps
  struct loaded_program *holder;
  bool *taken;      // inputs that the program takes over
  const void *from; // host memory to be copied, or
  void *to;         // to be filled
  PJRT_Error *wished;
} work;

typedef struct loaded_program {
  int references;
  fake_program *program; // NULL: a text that is none
} loaded_program;

static void release_program(loaded_program *p) {
  if (p == NULL || --p->references > 0) return;
  fake_program_free(p->program);
  free(p);
}

static work *line;
static bool is_held, has_thread;
static uint32_t shuffle_state = 1;

static work *new_work(int waits, int inputs, int outputs) {
  work *w = make(sizeof(work));
  w->done = new_moment();
  w->waits = make(((size_t)waits + 1) * sizeof(moment *));
  w->inputs = make(((size_t)inputs + 1) * sizeof(memory *));
  w->outputs = make(((size_t)outputs + 1) * sizeof(memory *));
  w->elements = make(((size_t)inputs + (size_t)outputs + 1) * sizeof(fake_element));
  w->taken = make((size_t)inputs + 1);
  return w;
}

static void free_work(work *w) {
  for (int i = 0; i < w->wait_count; i++) release_moment(w->waits[i]);
  for (int i = 0; i < w->input_count; i++) release_memory(w->inputs[i]);
  for (int i = 0; i < w->output_count; i++) release_memory(w->outputs[i]);
  release_moment(w->done);
  release_program(w->holder);
  free(w->waits);
  free(w->inputs);
  free(w->outputs);
  free(w->elements);
  free(w->taken);
  free(w);
}

static bool reads(const work *w, const memory *m) {
  for (int i = 0; i < w->input_count; i++)
    if (w->inputs[i] == m) return true;
  return false;
}

static bool is_runnable(const work *w) {
  for (int i = 0; i < w->wait_count; i++)
    if (!w->waits[i]->done) return false;
  for (const work *earlier = line; earlier != w; earlier = earlier->next)
    for (int i = 0; i < w->input_count; i++)
      if (w->taken[i] && reads(earlier, w->inputs[i])) return false;
  return true;
}

static work *choose(void) {
  work *chosen = NULL;
  int seen = 0, order = atomic_load(&fake.order);
  for (work *w = line; w != NULL; w = w->next) {
    if (!is_runnable(w)) continue;
    seen++;
    shuffle_state = shuffle_state * 1664525 + 1013904223;
    bool newer = order == FAKE_NEWEST_FIRST || (order == FAKE_SHUFFLED && (shuffle_state >> 8) % (uint32_t)seen == 0);
    if (chosen == NULL || newer) chosen = w;
  }
  return chosen;
}

static void compute(work *w) {
  double *x = make(((size_t)w->input_count + 1) * sizeof(double)), *y = make(FAKE_MAX_OUTPUTS * sizeof(double));
  for (int i = 0; i < w->input_count; i++)
    x[i] = w->inputs[i]->bytes > 0 ? fake_element_get(w->elements[i], w->inputs[i]->data) : 0;
  if (w->program != NULL) fake_program_evaluate(w->program, x, y);
  for (int i = 0; i < w->output_count; i++) {
    fake_element element = w->elements[w->input_count + i];
    double value = element.kind == 'p' ? (double)atomic_load(&fake.flag) : y[i];
    fake_element_fill(element, w->outputs[i]->data, w->outputs[i]->bytes, value);
  }
  free(x);
  free(y);
}

static void run_work(work *w) {
  PJRT_Error *error = w->wished;
  for (int i = 0; i < w->wait_count && error == NULL; i++) error = copy_error(w->waits[i]->error);
  if (error == NULL) {
    if (w->from != NULL) {
      memcpy(w->outputs[0]->data, w->from, (size_t)w->outputs[0]->bytes);
    } else if (w->to != NULL) {
      memcpy(w->to, w->inputs[0]->data, (size_t)w->inputs[0]->bytes);
    } else if (w->holder != NULL) {
      compute(w);
    } else {
      memcpy(w->outputs[0]->data, w->inputs[0]->data, (size_t)w->inputs[0]->bytes);
    }
  }
  work **at = &line;
  while (*at != w) at = &(*at)->next;
  *at = w->next;
  finish_moment(w->done, error);
  free_work(w);
}

static void *work_later(void *user) {
  (void)user;
  pthread_mutex_lock(&lock);
  for (;;) {
    if (is_held || choose() == NULL) {
      pthread_cond_wait(&changed, &lock);
      continue;
    }
    int delay = atomic_load(&fake.delay_us);
    if (delay > 0) {
      pthread_mutex_unlock(&lock);
      usleep((useconds_t)delay);
      pthread_mutex_lock(&lock);
    }
    work *w = is_held ? NULL : choose();
    if (w != NULL) run_work(w);
    unlock_and_call();
    pthread_mutex_lock(&lock);
  }
  return NULL;
}

static void start_thread(void) {
  pthread_t thread;
  if (has_thread) return;
  if (pthread_create(&thread, NULL, work_later, NULL) != 0) abort();
  pthread_detach(thread);
  has_thread = true;
}

// The line's end. Called with the lock held.
static void submit(work *w) {
  work **at = &line;
  while (*at != NULL) at = &(*at)->next;
  *at = w;
  if (atomic_load(&fake.order) != FAKE_AT_ONCE || is_held) {
    start_thread();
    pthread_cond_broadcast(&changed);
    return;
  }
  for (work *next; (next = choose()) != NULL;) run_work(next);
}

static void hold(bool held) {
  pthread_mutex_lock(&lock);
  is_held = held;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static void wait_until_idle(void) {
  pthread_mutex_lock(&lock);
  while (line != NULL) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

// What is to fail when it was started.
static PJRT_Error *late_failure(fake_function function) {
  return atomic_load(&fake.fault_comes_late) && fault_hits(function) ? wished_failure() : NULL;
}

// ---- client and devices --------------------------------------------------------------------------------------------------

struct PJRT_Device {
  int index;
};

struct PJRT_Client {
  int device_count;
};

static PJRT_Device device_objects[MAX_DEVICES];

static bool has_fault(const char *fault) {
  const char *value = getenv("TT_FAKE_PLUGIN_FAULT");
  return value != NULL && strcmp(value, fault) == 0;
}

static PJRT_Error *initialize(PJRT_Plugin_Initialize_Args *args) {
  (void)args;
  return has_fault("initialize") ? fail(PJRT_Error_Code_FAILED_PRECONDITION, "no luck today") : NULL;
}

static PJRT_Error *client_create(PJRT_Client_Create_Args *args) {
  fake.create_options = (int)args->num_options;
  int64_t count = args->num_options > 0 ? args->create_options[0].int64_value : 1;
  args->client = NEW(PJRT_Client, FAKE_client);
  args->client->device_count = count < MAX_DEVICES ? (int)count : MAX_DEVICES;
  return NULL;
}

static PJRT_Error *client_destroy(PJRT_Client_Destroy_Args *args) {
  drop(args->client, FAKE_client);
  return NULL;
}

// Texts of the plugin need not end with a null character.
static PJRT_Error *platform_name(PJRT_Client_PlatformName_Args *args) {
  static char text[32];
  snprintf(text, sizeof(text), "%s...", fake.platform);
  args->platform_name = text;
  args->platform_name_size = strlen(fake.platform);
  return NULL;
}

static PJRT_Error *platform_version(PJRT_Client_PlatformVersion_Args *args) {
  args->platform_version = "fake 1";
  args->platform_version_size = strlen("fake 1");
  return NULL;
}

static PJRT_Error *addressable_devices(PJRT_Client_AddressableDevices_Args *args) {
  static PJRT_Device *devices[MAX_DEVICES];
  for (int i = 0; i < MAX_DEVICES; i++) {
    device_objects[i].index = i;
    devices[i] = &device_objects[i];
  }
  args->addressable_devices = devices;
  args->num_addressable_devices = (size_t)args->client->device_count;
  return NULL;
}

static PJRT_Error *get_description(PJRT_Device_GetDescription_Args *args) {
  args->device_description = (PJRT_DeviceDescription *)args->device;
  return NULL;
}

static PJRT_Error *description_id(PJRT_DeviceDescription_Id_Args *args) {
  args->id = 2048 + ((const PJRT_Device *)args->device_description)->index;
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

// ---- programs --------------------------------------------------------------------------------------------------------------

struct PJRT_LoadedExecutable {
  loaded_program *program;
};

struct PJRT_Executable {
  loaded_program *program;
};

static int output_count(const loaded_program *p) { return p->program != NULL ? p->program->output_count : 3; }

static fake_type output_type(const loaded_program *p, int index) {
  return p->program != NULL ? p->program->outputs[index] : (fake_type){.element = {'f', 4}};
}

static void note_options(const char *options, size_t size) {
  if (size >= sizeof(fake.options)) size = sizeof(fake.options) - 1;
  for (size_t i = 0; i < size; i++) fake.options[i] = options[i] >= ' ' && options[i] <= '~' ? options[i] : '.';
  fake.options[size] = '\0';
}

static loaded_program *load(const char *text, size_t size) {
  loaded_program *p = make(sizeof(loaded_program));
  *p = (loaded_program){1, fake_program_read(text, size)};
  return p;
}

static PJRT_Error *compile(const PJRT_Program *program, const char *options, size_t options_size,
                           loaded_program **out) {
  atomic_fetch_add(&fake.compilations, 1);
  pthread_mutex_lock(&lock); // compiler threads
  note_options(options, options_size);
  bool refused = fake.refused_option != NULL && strstr(fake.options, fake.refused_option) != NULL;
  pthread_mutex_unlock(&lock);
  if (refused) return fail(PJRT_Error_Code_INVALID_ARGUMENT, "No such compile option: '%s'", fake.refused_option);
  if (program->code[0] == '!') return fail((PJRT_Error_Code)atoi(program->code + 1), "as wished\n\n");
  int delay = atomic_load(&fake.delay_us);
  if (delay > 0) usleep((useconds_t)delay);
  *out = load(program->code, program->code_size);
  return NULL;
}

static PJRT_LoadedExecutable *new_loaded(loaded_program *program) {
  PJRT_LoadedExecutable *loaded = NEW(PJRT_LoadedExecutable, FAKE_loaded_executable);
  loaded->program = program;
  return loaded;
}

static PJRT_Executable *new_executable(loaded_program *program) {
  PJRT_Executable *executable = NEW(PJRT_Executable, FAKE_executable);
  executable->program = program;
  return executable;
}

static PJRT_Error *client_compile(PJRT_Client_Compile_Args *args) {
  loaded_program *program = NULL;
  PJRT_Error *error = compile(args->program, args->compile_options, args->compile_options_size, &program);
  if (error == NULL) args->executable = new_loaded(program);
  return error;
}

static PJRT_Error *get_executable(PJRT_LoadedExecutable_GetExecutable_Args *args) {
  pthread_mutex_lock(&lock);
  args->loaded_executable->program->references++;
  pthread_mutex_unlock(&lock);
  args->executable = new_executable(args->loaded_executable->program);
  return NULL;
}

static void release_program_unlocked(loaded_program *program) {
  pthread_mutex_lock(&lock);
  release_program(program);
  pthread_mutex_unlock(&lock);
}

static PJRT_Error *executable_destroy(PJRT_Executable_Destroy_Args *args) {
  release_program_unlocked(args->executable->program);
  drop(args->executable, FAKE_executable);
  return NULL;
}

static PJRT_Error *loaded_destroy(PJRT_LoadedExecutable_Destroy_Args *args) {
  release_program_unlocked(args->executable->program);
  drop(args->executable, FAKE_loaded_executable);
  return NULL;
}

static PJRT_Error *num_outputs(PJRT_Executable_NumOutputs_Args *args) {
  args->num_outputs = (size_t)output_count(args->executable->program);
  return NULL;
}

static PJRT_Error *cost_analysis(PJRT_Executable_GetCostAnalysis_Args *args) {
  static PJRT_NamedValue properties[] = {
      {.name = "flops", .name_size = 5, .type = PJRT_NamedValue_kFloat, .float_value = 7, .value_size = 1},
      {.name = "optimal_seconds", .name_size = 15, .type = PJRT_NamedValue_kFloat, .value_size = 1},
  };
  properties[1].float_value = fake.optimal_seconds;
  args->properties = properties;
  args->num_properties = 2;
  return NULL;
}

static PJRT_Error *compiled_memory(PJRT_Executable_GetCompiledMemoryStats_Args *args) {
  if (fake.optimal_seconds < 0) return fail(PJRT_Error_Code_UNIMPLEMENTED, "no statistics");
  args->generated_code_size_in_bytes = 1;
  args->argument_size_in_bytes = 2;
  args->output_size_in_bytes = 3;
  args->alias_size_in_bytes = 4;
  args->temp_size_in_bytes = 5;
  return NULL;
}

// A program as bytes: a mark and its text.
static const char mark[] = "fake:";

struct PJRT_SerializedExecutable {
  size_t size;
  char bytes[];
};

static void serialized_destroy(PJRT_SerializedExecutable *serialized) { drop(serialized, FAKE_serialized_executable); }

static PJRT_Error *serialize(PJRT_Executable_Serialize_Args *args) {
  const fake_program *p = args->executable->program->program;
  size_t size = sizeof(mark) - 1 + (p != NULL ? p->size : 0);
  PJRT_SerializedExecutable *serialized = make(sizeof(*serialized) + size + 1);
  atomic_fetch_add(&fake.live[FAKE_serialized_executable], 1);
  serialized->size = size;
  snprintf(serialized->bytes, size + 1, "%s%s", mark, p != NULL ? p->text : "");
  args->serialized_bytes = serialized->bytes;
  args->serialized_bytes_size = size;
  args->serialized_executable = serialized;
  args->serialized_executable_deleter = serialized_destroy;
  return NULL;
}

static PJRT_Error *deserialize(PJRT_Executable_DeserializeAndLoad_Args *args) {
  size_t size = sizeof(mark) - 1;
  if (args->serialized_executable_size < size || memcmp(args->serialized_executable, mark, size) != 0) {
    return fail(PJRT_Error_Code_INVALID_ARGUMENT, "not a program of the fake");
  }
  args->loaded_executable =
      new_loaded(load(args->serialized_executable + size, args->serialized_executable_size - size));
  return NULL;
}

// ---- topologies ------------------------------------------------------------------------------------------------------------

// Only the topology "v9:1x1" is known.
static PJRT_Error *topology_create(PJRT_TopologyDescription_Create_Args *args) {
  if (args->topology_name_size != 6 || memcmp(args->topology_name, "v9:1x1", 6) != 0) {
    return fail(PJRT_Error_Code_INVALID_ARGUMENT, "no such topology");
  }
  args->topology = (PJRT_TopologyDescription *)NEW(int, FAKE_topology);
  return NULL;
}

static PJRT_Error *topology_destroy(PJRT_TopologyDescription_Destroy_Args *args) {
  drop(args->topology, FAKE_topology);
  return NULL;
}

static PJRT_Error *topology_compile(PJRT_Compile_Args *args) {
  if (args->topology == NULL || args->client != NULL) return fail(PJRT_Error_Code_INTERNAL, "a handle is wrong");
  loaded_program *program = NULL;
  PJRT_Error *error = compile(args->program, args->compile_options, args->compile_options_size, &program);
  if (error == NULL) args->executable = new_executable(program);
  return error;
}

// ---- buffers ---------------------------------------------------------------------------------------------------------------

struct PJRT_Buffer {
  fake_type type;
  memory *memory; // NULL once a program took it over
  moment *ready;
};

static PJRT_Buffer *new_buffer(fake_type type, memory *memory, moment *ready) {
  PJRT_Buffer *buffer = NEW(PJRT_Buffer, FAKE_buffer);
  *buffer = (PJRT_Buffer){type, retain_memory(memory), retain_moment(ready)};
  return buffer;
}

static PJRT_Error *gone(const PJRT_Buffer *buffer) {
  if (buffer->memory != NULL) return NULL;
  atomic_fetch_add(&fake.misuses, 1);
  return fail(PJRT_Error_Code_INVALID_ARGUMENT, "Buffer has been deleted or donated.");
}

static PJRT_Error *buffer_destroy(PJRT_Buffer_Destroy_Args *args) {
  pthread_mutex_lock(&lock);
  release_memory(args->buffer->memory);
  release_moment(args->buffer->ready);
  unlock_and_call();
  drop(args->buffer, FAKE_buffer);
  return NULL;
}

static PJRT_Error *buffer_dimensions(PJRT_Buffer_Dimensions_Args *args) {
  args->dims = args->buffer->type.dims;
  args->num_dims = (size_t)args->buffer->type.rank;
  return NULL;
}

static PJRT_Error *ready_event(PJRT_Buffer_ReadyEvent_Args *args) {
  pthread_mutex_lock(&lock);
  PJRT_Error *error = gone(args->buffer);
  if (error == NULL) args->event = new_event(args->buffer->ready);
  pthread_mutex_unlock(&lock);
  return error;
}

static PJRT_Error *data_pointer(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args *args) {
  pthread_mutex_lock(&lock);
  PJRT_Error *error = gone(args->buffer);
  if (error == NULL) args->device_memory_ptr = args->buffer->memory->data;
  pthread_mutex_unlock(&lock);
  return error;
}

static fake_element element_of(PJRT_Buffer_Type type) {
  switch (type) {
  case PJRT_Buffer_Type_PRED: return (fake_element){'p', 1};
  case PJRT_Buffer_Type_S8: return (fake_element){'i', 1};
  case PJRT_Buffer_Type_S16: return (fake_element){'i', 2};
  case PJRT_Buffer_Type_S32: return (fake_element){'i', 4};
  case PJRT_Buffer_Type_S64: return (fake_element){'i', 8};
  case PJRT_Buffer_Type_U8: return (fake_element){'u', 1};
  case PJRT_Buffer_Type_U16: return (fake_element){'u', 2};
  case PJRT_Buffer_Type_U32: return (fake_element){'u', 4};
  case PJRT_Buffer_Type_U64: return (fake_element){'u', 8};
  case PJRT_Buffer_Type_F16:
  case PJRT_Buffer_Type_BF16: return (fake_element){'h', 2};
  case PJRT_Buffer_Type_F32: return (fake_element){'f', 4};
  case PJRT_Buffer_Type_F64: return (fake_element){'f', 8};
  case PJRT_Buffer_Type_C64: return (fake_element){'c', 8};
  case PJRT_Buffer_Type_C128: return (fake_element){'c', 16};
  default: return (fake_element){'x', 1};
  }
}

// A new buffer that `w`, taken over, fills.
static PJRT_Error *start_filling(work *w, fake_type type, PJRT_Buffer **out) {
  memory *m = NULL;
  PJRT_Error *error = new_memory(fake_type_bytes(&type), NULL, &m);
  if (error != NULL) {
    free_work(w);
    return error;
  }
  w->outputs[w->output_count++] = m;
  *out = new_buffer(type, m, w->done);
  submit(w);
  return NULL;
}

// The buffer is the host's memory itself, until it is freed.
static PJRT_Error *borrow(const PJRT_Client_BufferFromHostBuffer_Args *args, fake_type type, PJRT_Buffer **out,
                          PJRT_Event **out_done) {
  memory *m = NULL;
  PJRT_Error *error = new_memory(fake_type_bytes(&type), (void *)args->data, &m);
  if (error != NULL) return error;
  m->read_only = args->host_buffer_semantics == PJRT_HostBufferSemantics_kImmutableZeroCopy;
  m->let_go = new_moment();
  *out_done = new_event(m->let_go);
  moment *ready = new_moment();
  finish_moment(ready, late_failure(FAKE_PJRT_Client_BufferFromHostBuffer));
  *out = new_buffer(type, m, ready);
  release_moment(ready);
  release_memory(m);
  return NULL;
}

static PJRT_Error *from_host(PJRT_Client_BufferFromHostBuffer_Args *args) {
  fake_type type = {.element = element_of(args->type), .rank = (int)args->num_dims};
  if (type.rank > FAKE_MAX_RANK) return fail(PJRT_Error_Code_UNIMPLEMENTED, "%d dimensions", type.rank);
  for (int i = 0; i < type.rank; i++) type.dims[i] = args->dims[i];
  PJRT_Error *error = NULL;
  PJRT_Event *done = NULL;
  pthread_mutex_lock(&lock);
  if (args->host_buffer_semantics == PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes) {
    work *w = new_work(0, 0, 1);
    w->from = args->data;
    w->wished = late_failure(FAKE_PJRT_Client_BufferFromHostBuffer);
    moment *finished = retain_moment(w->done);
    error = start_filling(w, type, &args->buffer);
    if (error == NULL && !fake.no_done_events) done = new_event(finished);
    release_moment(finished);
  } else if (args->host_buffer_semantics == PJRT_HostBufferSemantics_kImmutableOnlyDuringCall) {
    memory *m = NULL;
    error = new_memory(fake_type_bytes(&type), NULL, &m);
    if (error == NULL) {
      memcpy(m->data, args->data, (size_t)m->bytes);
      moment *ready = new_moment();
      finish_moment(ready, late_failure(FAKE_PJRT_Client_BufferFromHostBuffer));
      args->buffer = new_buffer(type, m, ready);
      if (!fake.no_done_events) done = new_event(ready);
      release_moment(ready);
      release_memory(m);
    }
  } else {
    error = borrow(args, type, &args->buffer, &done);
  }
  args->done_with_host_buffer = done;
  unlock_and_call();
  return error;
}

static void add_input(work *w, const PJRT_Buffer *buffer) {
  w->elements[w->input_count] = buffer->type.element;
  w->inputs[w->input_count++] = retain_memory(buffer->memory);
  w->waits[w->wait_count++] = retain_moment(buffer->ready);
}

static PJRT_Error *copy_to_device(PJRT_Buffer_CopyToDevice_Args *args) {
  pthread_mutex_lock(&lock);
  PJRT_Error *error = gone(args->buffer);
  if (error == NULL) {
    work *w = new_work(1, 1, 1);
    add_input(w, args->buffer);
    w->wished = late_failure(FAKE_PJRT_Buffer_CopyToDevice);
    error = start_filling(w, args->buffer->type, &args->dst_buffer);
  }
  unlock_and_call();
  return error;
}

static PJRT_Error *to_host(PJRT_Buffer_ToHostBuffer_Args *args) {
  pthread_mutex_lock(&lock);
  PJRT_Error *error = gone(args->src);
  if (error == NULL && (args->dst == NULL || args->dst_size < (size_t)args->src->memory->bytes)) {
    error = fail(PJRT_Error_Code_INVALID_ARGUMENT, "the host's memory is too small");
  }
  if (error == NULL) {
    work *w = new_work(1, 1, 0);
    add_input(w, args->src);
    w->to = args->dst;
    w->wished = late_failure(FAKE_PJRT_Buffer_ToHostBuffer);
    args->event = new_event(w->done);
    submit(w);
  }
  unlock_and_call();
  return error;
}

// ---- running ---------------------------------------------------------------------------------------------------------------

static bool is_kept(const PJRT_ExecuteOptions *options, size_t argument) {
  for (size_t i = 0; i < options->num_non_donatable_input_indices; i++)
    if ((size_t)options->non_donatable_input_indices[i] == argument) return true;
  return false;
}

// The output that takes the argument's memory, -1: none.
static int alias_of(const loaded_program *p, const PJRT_LoadedExecutable_Execute_Args *args, int argument) {
  const PJRT_Buffer *buffer = args->argument_lists[0][argument];
  if (p->program == NULL || is_kept(args->options, (size_t)argument)) return -1;
  return buffer->memory->read_only ? -1 : p->program->aliases[argument];
}

// Collects operands and makes results in `w`; nothing is taken over yet.
static PJRT_Error *prepare(work *w, const loaded_program *p, const PJRT_LoadedExecutable_Execute_Args *args) {
  int arguments = (int)args->num_args;
  PJRT_Error *error = NULL;
  if (p->program != NULL && p->program->argument_count != arguments) {
    return fail(PJRT_Error_Code_INVALID_ARGUMENT, "%d arguments for %d", arguments, p->program->argument_count);
  }
  for (int i = 0; i < arguments; i++) {
    error = gone(args->argument_lists[0][i]);
    if (error != NULL) return error;
    add_input(w, args->argument_lists[0][i]);
  }
  for (int i = 0; i < output_count(p); i++) {
    fake_type type = output_type(p, i);
    w->elements[arguments + i] = type.element;
    memory *m = NULL;
    for (int k = 0; k < arguments && m == NULL; k++) {
      if (alias_of(p, args, k) != i) continue;
      m = retain_memory(w->inputs[k]);
      w->taken[k] = true;
    }
    if (m == NULL) {
      error = new_memory(fake_type_bytes(&type), NULL, &m);
      if (error != NULL) return error;
    }
    w->outputs[w->output_count++] = m;
  }
  return NULL;
}

static PJRT_Error *execute(PJRT_LoadedExecutable_Execute_Args *args) {
  loaded_program *p = args->executable->program;
  pthread_mutex_lock(&lock);
  work *w = new_work((int)args->num_args, (int)args->num_args, output_count(p));
  PJRT_Error *error = prepare(w, p, args);
  if (error != NULL) {
    free_work(w);
  } else {
    p->references++;
    w->holder = p;
    w->program = p->program;
    w->wished = late_failure(FAKE_PJRT_LoadedExecutable_Execute);
    for (size_t i = 0; i < args->num_args; i++) {
      PJRT_Buffer *argument = args->argument_lists[0][i];
      if (!w->taken[i] || argument->memory == NULL) continue;
      release_memory(argument->memory);
      argument->memory = NULL;
    }
    for (int i = 0; i < w->output_count; i++)
      args->output_lists[0][i] = new_buffer(output_type(p, i), w->outputs[i], w->done);
    if (args->device_complete_events != NULL) args->device_complete_events[0] = new_event(w->done);
    submit(w);
  }
  unlock_and_call();
  return error;
}

// ---- the table -------------------------------------------------------------------------------------------------------------

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
    PJRT_Error *error = body(args);                                                                                     \
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
  if (has_fault("null")) return NULL;
  if (has_fault("major")) api.pjrt_api_version.major_version++;
  if (has_fault("minor")) api.pjrt_api_version.minor_version = 56;
  if (has_fault("short")) api.struct_size = offsetof(PJRT_Api, PJRT_Buffer_ToHostBuffer);
  if (has_fault("topology")) api.PJRT_Compile = NULL;
  if (has_fault("hole")) api.PJRT_Event_OnReady = NULL;
  if (has_fault("serialize")) api.PJRT_Executable_Serialize = NULL;
  return &api;
}
