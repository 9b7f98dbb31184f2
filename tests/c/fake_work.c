// fake_work.c - the memory of the fake plugin, and the work on it, at once or later on a thread; see fake_internal.h.
//
// Work stands in a line in the order in which it was started; whoever takes a piece out runs it under the lock.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_internal.h"

// ---- memory

PJRT_Error *fake_memory_new(int64_t bytes, void *borrowed, memory **out) {
  int64_t limit = atomic_load(&fake.memory_limit);
  if (limit > 0 && atomic_load(&fake.live_bytes) + bytes > limit) {
    return fake_fail(PJRT_Error_Code_RESOURCE_EXHAUSTED, "Out of memory allocating %lld bytes.", (long long)bytes);
  }
  atomic_fetch_add(&fake.live_bytes, bytes);
  memory *m = fake_make(sizeof(memory));
  *m = (memory){.references = 1, .data = borrowed, .bytes = bytes, .borrowed = borrowed != NULL};
  if (borrowed == NULL && posix_memalign(&m->data, 64, (size_t)bytes + 1) != 0) abort();
  *out = m;
  return NULL;
}

memory *fake_memory_retain(memory *m) {
  m->references++;
  return m;
}

void fake_memory_release(memory *m) {
  if (m == NULL || --m->references > 0) return;
  atomic_fetch_sub(&fake.live_bytes, m->bytes);
  if (!m->borrowed) free(m->data);
  if (m->let_go != NULL) fake_moment_finish(m->let_go, NULL);
  fake_moment_release(m->let_go);
  free(m);
}

// ---- programs

void fake_loaded_release(loaded_program *p) {
  if (p == NULL || --p->references > 0) return;
  fake_program_free(p->program);
  free(p);
}

int fake_loaded_output_count(const loaded_program *p) { return p->program != NULL ? p->program->output_count : 3; }

fake_type fake_loaded_output_type(const loaded_program *p, int index) {
  return p->program != NULL ? p->program->outputs[index] : (fake_type){.element = {'f', 4}};
}

// ---- work

static work *line;
static bool is_held, has_thread;
static uint32_t shuffle_state = 1;

work *fake_work_new(int waits, int inputs, int outputs) {
  work *w = fake_make(sizeof(work));
  w->done = fake_moment_new();
  w->waits = fake_make(((size_t)waits + 1) * sizeof(moment *));
  w->inputs = fake_make(((size_t)inputs + 1) * sizeof(memory *));
  w->outputs = fake_make(((size_t)outputs + 1) * sizeof(memory *));
  w->elements = fake_make(((size_t)inputs + (size_t)outputs + 1) * sizeof(fake_element));
  w->taken = fake_make((size_t)inputs + 1);
  return w;
}

void fake_work_free(work *w) {
  for (int i = 0; i < w->wait_count; i++) fake_moment_release(w->waits[i]);
  for (int i = 0; i < w->input_count; i++) fake_memory_release(w->inputs[i]);
  for (int i = 0; i < w->output_count; i++) fake_memory_release(w->outputs[i]);
  fake_moment_release(w->done);
  fake_loaded_release(w->holder);
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
  double *x = fake_make(((size_t)w->input_count + 1) * sizeof(double)),
         *y = fake_make(FAKE_MAX_OUTPUTS * sizeof(double));
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
  for (int i = 0; i < w->wait_count && error == NULL; i++) error = fake_copy_error(w->waits[i]->error);
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
  fake_moment_finish(w->done, error);
  fake_work_free(w);
}

static void *work_later(void *user) {
  (void)user;
  pthread_mutex_lock(&fake_lock);
  for (;;) {
    if (is_held || choose() == NULL) {
      pthread_cond_wait(&fake_changed, &fake_lock);
      continue;
    }
    int delay = atomic_load(&fake.delay_us);
    if (delay > 0) {
      pthread_mutex_unlock(&fake_lock);
      usleep((useconds_t)delay);
      pthread_mutex_lock(&fake_lock);
    }
    work *w = is_held ? NULL : choose();
    if (w != NULL) run_work(w);
    fake_unlock_and_call();
    pthread_mutex_lock(&fake_lock);
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

void fake_work_submit(work *w) {
  work **at = &line;
  while (*at != NULL) at = &(*at)->next;
  *at = w;
  if (atomic_load(&fake.order) != FAKE_AT_ONCE || is_held) {
    start_thread();
    pthread_cond_broadcast(&fake_changed);
    return;
  }
  for (work *next; (next = choose()) != NULL;) run_work(next);
}

void fake_hold(bool held) {
  pthread_mutex_lock(&fake_lock);
  is_held = held;
  pthread_cond_broadcast(&fake_changed);
  pthread_mutex_unlock(&fake_lock);
}

void fake_wait_until_idle(void) {
  pthread_mutex_lock(&fake_lock);
  while (line != NULL) pthread_cond_wait(&fake_changed, &fake_lock);
  pthread_mutex_unlock(&fake_lock);
}
