// queue.c - the work in flight on each device, and what has failed of it.
//
// One queue per device, guarded by its lock. It owns the events of programs that run, in the order in which they were
// started, in a ring; entries leave at the front once they have finished. A thread that waits for an entry pins it, so that
// it can wait without the lock. Order of locks: a queue's, then those of graph/storage.c or of a mark.
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/memory.h"
#include "cache/config.h"
#include "graph/storage.h"
#include "run/graph.h"
#include "run/internal.h"
#include "run/program.h"
#include "run/site.h"
#include "run/trace.h"

enum { CAPACITY = 1024 };

typedef struct entry {
  tt_event event;      // of the program, or of the copy of `flag` to the host
  const char *op_name; // static, may be NULL
  tt_check check;      // if it is one: its flag, copied to `flag_value`, must be true
  uint8_t flag_value;
  int pins;      // threads that wait for `event` without the lock
  bool finished; // waited for, with this outcome:
  tt_status failure;
} entry;

typedef struct queue {
  pthread_mutex_t lock;
  pthread_cond_t unpinned; // a finished entry lost its last pin
  entry *ring;             // CAPACITY entries, made when the first program does not finish at once
  uint64_t first, next;    // entries first .. next - 1 are in flight, entry i in slot i % CAPACITY
  tt_status failure;       // pending
  // What lets the hot path go without the lock; written under it.
  _Atomic bool has_entries, has_failure;
} queue;

static queue queues[TT_MAX_DEVICES];
static pthread_once_t queues_once = PTHREAD_ONCE_INIT;

static void queues_initialize(void) {
  for (int i = 0; i < TT_MAX_DEVICES; i++) {
    pthread_mutex_init(&queues[i].lock, NULL);
    pthread_cond_init(&queues[i].unpinned, NULL);
  }
}

static queue *queue_of(const tt_device *device) {
  pthread_once(&queues_once, queues_initialize);
  return &queues[device->index];
}

static entry *entry_at(queue *q, uint64_t sequence) { return &q->ring[sequence % CAPACITY]; }

static bool flag_set(const _Atomic bool *flag) { return atomic_load_explicit(flag, memory_order_relaxed); }

// ---- failures --------------------------------------------------------------------------------------------------------

static tt_status name_op(tt_status status, const char *op_name) {
  return status != NULL && op_name != NULL ? tt_status_context(status, "%s", op_name) : status;
}

// Takes over `status`. The first failure stays pending; what follows is mostly its consequence.
static void note_failure(queue *q, tt_device *device, tt_status status) {
  if (__builtin_expect(status == NULL, 1)) return;
  if (q->failure == NULL) status = tt_storage_explain_out_of_memory(device, status);
  q->failure = tt_status_join(q->failure, status);
  atomic_store_explicit(&q->has_failure, true, memory_order_relaxed);
}

void tt_queue_note_failure(tt_device *device, tt_status failure) {
  if (failure == NULL) return;
  queue *q = queue_of(device);
  pthread_mutex_lock(&q->lock);
  note_failure(q, device, failure);
  pthread_mutex_unlock(&q->lock);
}

static tt_status take_failure(queue *q) {
  tt_status failure = q->failure;
  q->failure = NULL;
  atomic_store_explicit(&q->has_failure, false, memory_order_relaxed);
  return failure;
}

static tt_status check_failed(const tt_check *check) {
  tt_status status = check->site ? tt_error(check->code, "%s (called at %s)", check->message, check->site)
                                 : tt_error(check->code, "%s", check->message);
  return name_op(status, check->op_name);
}

static void check_free(tt_check *check) {
  tt_buffer_release(check->flag);
  tt_free(check->site);
  *check = (tt_check){0};
}

// The outcome of an entry whose event is ready. Leaves nothing in it.
static tt_status settle(entry *e) {
  tt_status status = e->finished ? e->failure : tt_event_wait(&e->event);
  e->failure = NULL;
  if (status == NULL && e->check.flag != NULL && e->flag_value == 0)
    status = check_failed(&e->check);
  else
    status = name_op(status, e->op_name);
  tt_event_release(&e->event);
  check_free(&e->check);
  return status;
}

// ---- the ring --------------------------------------------------------------------------------------------------------
//
// All of these are called with the lock held.

static bool entry_is_ready(const entry *e) { return e->finished || tt_event_is_ready(&e->event); }

// Lets finished entries go, from the front up to the first that runs or is pinned.
static void prune(queue *q, tt_device *device) {
  while (q->first != q->next) {
    entry *head = entry_at(q, q->first);
    if (head->pins > 0 || !entry_is_ready(head)) break;
    note_failure(q, device, settle(head));
    q->first++;
  }
  atomic_store_explicit(&q->has_entries, q->first != q->next, memory_order_relaxed);
}

// Waits for an entry without the lock, which other threads may use meanwhile.
static void wait_for_entry(queue *q, entry *e) {
  e->pins++;
  tt_event event = e->event; // the pin keeps it alive
  pthread_mutex_unlock(&q->lock);
  tt_status status = tt_event_wait(&event);
  pthread_mutex_lock(&q->lock);
  if (e->finished) {
    tt_status_free(status); // another waiter brought the same
  } else {
    e->finished = true;
    e->failure = status;
  }
  if (--e->pins == 0) pthread_cond_broadcast(&q->unpinned);
}

static void wait_for_head(queue *q) {
  entry *head = entry_at(q, q->first);
  if (head->finished) {
    // Only another thread's pin keeps it here.
    pthread_cond_wait(&q->unpinned, &q->lock);
  } else {
    wait_for_entry(q, head);
  }
}

// Notes the outcome of each check whose flag is there, wherever it stands: its copy to the host takes no time to speak of, and
// a program in front of it may.
static void settle_known_checks(queue *q, tt_device *device) {
  for (uint64_t i = q->first; i != q->next; i++) {
    entry *e = entry_at(q, i);
    if (e->check.flag == NULL || (!e->finished && !tt_buffer_is_ready(e->check.flag))) continue;
    if (!e->finished) wait_for_entry(q, e);
    if (e->pins > 0) continue; // that thread's business
    note_failure(q, device, settle(e));
    e->finished = true;
  }
}

// Waits until the entries before `end` have finished.
static void wait_until(queue *q, tt_device *device, uint64_t end) {
  for (;;) {
    prune(q, device);
    if (q->first >= end) return;
    wait_for_head(q);
  }
}

// Have the entries before `end` finished?
static bool passed(queue *q, tt_device *device, uint64_t end) {
  prune(q, device);
  for (uint64_t i = q->first; i < end; i++) {
    if (!entry_is_ready(entry_at(q, i))) return false;
  }
  return true;
}

// A free slot at the end; NULL when there is no memory for the ring.
static entry *new_entry(queue *q, tt_device *device) {
  if (q->ring == NULL) q->ring = tt_calloc(CAPACITY, sizeof(entry));
  if (q->ring == NULL) return NULL;
  prune(q, device);
  while (q->next - q->first == CAPACITY) wait_until(q, device, q->first + 1);
  return entry_at(q, q->next);
}

static void append_entry(queue *q) {
  q->next++;
  atomic_store_explicit(&q->has_entries, true, memory_order_relaxed);
}

// ---- programs and checks ---------------------------------------------------------------------------------------------

static void add_running(queue *q, tt_device *device, tt_event event, const char *op_name) {
  entry *e = new_entry(q, device);
  if (e == NULL) { // then the host waits for each program
    entry now = {.event = event, .op_name = op_name};
    note_failure(q, device, settle(&now));
    return;
  }
  *e = (entry){.event = event, .op_name = op_name};
  append_entry(q);
}

void tt_queue_add(tt_device *device, tt_event event, const char *op_name) {
  queue *q = queue_of(device);
  tt_status failure = TT_SUCCESS;
  bool ready = tt_event_is_ready(&event);
  if (ready) {
    failure = tt_event_wait(&event);
    tt_event_release(&event);
    if (failure == NULL && !flag_set(&q->has_entries)) return;
  }
  pthread_mutex_lock(&q->lock);
  if (!ready) {
    add_running(q, device, event, op_name);
  } else {
    prune(q, device); // older failures come first
    note_failure(q, device, name_op(failure, op_name));
  }
  pthread_mutex_unlock(&q->lock);
}

// Reads a flag that is ready, in place. `*out_known` false: it has to be copied to the host.
static tt_status read_flag_in_place(const tt_buffer *flag, bool *out_known, bool *out_value) {
  *out_known = false;
  if (!tt_client_is_host(flag->device->client) || !tt_buffer_is_ready(flag)) return TT_SUCCESS;
  TT_TRY(tt_buffer_wait(flag));
  void *data = NULL;
  TT_TRY(tt_buffer_host_data(flag, &data));
  *out_known = true;
  *out_value = *(const uint8_t *)data != 0;
  return TT_SUCCESS;
}

// Copies the flag to the host behind the program that computes it. Called with the lock held.
static void add_copy_of_flag(queue *q, tt_device *device, const tt_check *check) {
  entry now = {.pins = 0};
  entry *e = new_entry(q, device);
  bool wait = e == NULL;
  if (wait) e = &now;
  *e = (entry){.op_name = check->op_name, .check = *check};
  tt_status status = tt_buffer_to_host(check->flag, &e->flag_value, sizeof(e->flag_value), &e->event);
  if (status != NULL) {
    note_failure(q, device, status); // it has the op's name from the buffer
    check_free(&e->check);
  } else if (wait) {
    note_failure(q, device, settle(e));
  } else {
    append_entry(q);
  }
}

void tt_queue_add_check(tt_device *device, tt_check check, bool is_called_now) {
  queue *q = queue_of(device);
  bool known = false, value = false;
  tt_status status = read_flag_in_place(check.flag, &known, &value);
  if (known && value) {
    check_free(&check);
    return;
  }
  if (is_called_now) check.site = tt_site();
  pthread_mutex_lock(&q->lock);
  if (status == NULL && !known) {
    add_copy_of_flag(q, device, &check);
  } else {
    prune(q, device);
    note_failure(q, device,
                 status != NULL ? status : check_failed(&check)); // `status` has the op's name from the buffer
    check_free(&check);
  }
  pthread_mutex_unlock(&q->lock);
}

// ---- waiting ---------------------------------------------------------------------------------------------------------

tt_status tt_queue_wait(tt_device *device) {
  queue *q = queue_of(device);
  tt_counter_add(TT_COUNTER_host_waits, 1);
  pthread_mutex_lock(&q->lock);
  wait_until(q, device, q->next);
  tt_status failure = take_failure(q);
  pthread_mutex_unlock(&q->lock);
  return failure;
}

tt_status tt_queue_take_failure(tt_device *device) {
  queue *q = queue_of(device);
  if (!flag_set(&q->has_entries) && !flag_set(&q->has_failure)) return TT_SUCCESS;
  pthread_mutex_lock(&q->lock);
  prune(q, device);
  settle_known_checks(q, device);
  tt_status failure = take_failure(q);
  pthread_mutex_unlock(&q->lock);
  return failure;
}

bool tt_queue_is_idle(tt_device *device) {
  queue *q = queue_of(device);
  if (!flag_set(&q->has_entries)) return true;
  pthread_mutex_lock(&q->lock);
  bool idle = passed(q, device, q->next);
  pthread_mutex_unlock(&q->lock);
  return idle;
}

tt_status tt_synchronize(int index) {
  tt_device *device = NULL;
  TT_TRY(tt_device_find(index, &device));
  TT_TRY(tt_trace_check_wait("synchronize", NULL));
  tt_status status = tt_run_deferred(device);
  int64_t began = tt_trace_begin(TT_TRACE_wait);
  status = tt_status_join(status, tt_queue_wait(device));
  TT_TRACE_END(wait, began, .name = "synchronize", .device_index = index);
  return status;
}

bool tt_device_is_idle(int index) {
  if (!tt_runtime_started() || tt_runtime_in_bad_fork()) return true;
  tt_device *device = tt_client_device(tt_runtime_client(), index);
  return device == NULL || (tt_nothing_deferred(device) && tt_queue_is_idle(device));
}

void tt_runtime_settle(void) {
  enum { LIMIT_MS = 5000 };
  tt_cache_flush();
  if (!tt_runtime_started() || tt_runtime_in_bad_fork()) return;
  tt_compile_stop();
  int count = tt_client_device_count(tt_runtime_client());
  for (int i = 0, ms = 0; i < count && ms < LIMIT_MS;) {
    if (tt_queue_is_idle(tt_client_device(tt_runtime_client(), i))) {
      i++;
    } else {
      nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
      ms++;
    }
  }
}

// ---- marks -----------------------------------------------------------------------------------------------------------
//
// A mark counts the events that it still waits for; the plugin's callbacks take them off and note the time. Each callback
// holds a reference. Programs of one device may finish in any order, so the mark asks every event, not just the last.

struct tt_mark {
  _Atomic int32_t references;
  tt_device *device;
  uint64_t end;         // entries before it are the mark's
  pthread_mutex_t lock; // guards the rest
  pthread_cond_t done;
  int remaining;
  int64_t time_ns;
};

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static tt_status mark_create(tt_device *device, tt_mark **out_mark) {
  void *block = NULL;
  TT_TRY(tt_allocate(1, sizeof(tt_mark), &block));
  tt_mark *mark = block;
  atomic_init(&mark->references, 1);
  mark->device = device;
  mark->remaining = 1; // the creator's, until all callbacks are registered
  pthread_mutex_init(&mark->lock, NULL);
  pthread_cond_init(&mark->done, NULL);
  *out_mark = mark;
  return TT_SUCCESS;
}

tt_mark *tt_mark_retain(tt_mark *mark) {
  if (mark != NULL) atomic_fetch_add_explicit(&mark->references, 1, memory_order_relaxed);
  return mark;
}

void tt_mark_release(tt_mark *mark) {
  if (mark == NULL) return;
  if (atomic_fetch_sub_explicit(&mark->references, 1, memory_order_acq_rel) != 1) return;
  pthread_mutex_destroy(&mark->lock);
  pthread_cond_destroy(&mark->done);
  tt_free(mark);
}

static void mark_step(tt_mark *mark, int64_t time_ns) {
  pthread_mutex_lock(&mark->lock);
  if (time_ns > mark->time_ns) mark->time_ns = time_ns;
  if (--mark->remaining == 0) pthread_cond_broadcast(&mark->done);
  pthread_mutex_unlock(&mark->lock);
}

// On a thread of the plugin. The failure is the queue's to report.
static void mark_event_done(tt_status status, void *user) {
  tt_status_free(status);
  mark_step(user, now_ns());
  tt_mark_release(user);
}

static tt_status mark_follow(tt_mark *mark, const entry *e) {
  pthread_mutex_lock(&mark->lock);
  mark->remaining++;
  pthread_mutex_unlock(&mark->lock);
  tt_status status = tt_event_on_ready(&e->event, mark_event_done, tt_mark_retain(mark));
  if (status != NULL) { // no callback will come
    mark_step(mark, 0);
    tt_mark_release(mark);
  }
  return status;
}

tt_status tt_queue_mark(tt_device *device, tt_mark **out_mark) {
  queue *q = queue_of(device);
  tt_mark *mark = NULL;
  TT_TRY(mark_create(device, &mark));
  tt_status status = TT_SUCCESS;
  int64_t time_ns = 0;
  pthread_mutex_lock(&q->lock);
  prune(q, device);
  mark->end = q->next;
  if (q->first == q->next) time_ns = now_ns();
  for (uint64_t i = q->first; i < q->next && status == NULL; i++) status = mark_follow(mark, entry_at(q, i));
  pthread_mutex_unlock(&q->lock);
  mark_step(mark, time_ns);
  if (status != NULL) {
    tt_mark_release(mark);
    return status;
  }
  *out_mark = mark;
  return TT_SUCCESS;
}

void tt_mark_wait(tt_mark *mark) {
  pthread_mutex_lock(&mark->lock);
  while (mark->remaining > 0) pthread_cond_wait(&mark->done, &mark->lock);
  pthread_mutex_unlock(&mark->lock);
}

static bool mark_done_now(tt_mark *mark) {
  pthread_mutex_lock(&mark->lock);
  bool done = mark->remaining == 0;
  pthread_mutex_unlock(&mark->lock);
  return done;
}

bool tt_mark_is_done(tt_mark *mark) {
  if (mark_done_now(mark)) return true;
  // A waiter may wake before the plugin runs its callbacks: after a synchronize this must be true all the same.
  queue *q = queue_of(mark->device);
  pthread_mutex_lock(&q->lock);
  bool finished = passed(q, mark->device, mark->end);
  pthread_mutex_unlock(&q->lock);
  if (finished) tt_mark_wait(mark);
  return finished;
}

int64_t tt_mark_time_ns(tt_mark *mark) {
  pthread_mutex_lock(&mark->lock);
  int64_t time_ns = mark->time_ns;
  pthread_mutex_unlock(&mark->lock);
  return time_ns;
}
