// random.c - generators: seed, offset and who shares them.
//
// Each generator's numbers are guarded by its own lock; the table of default generators by `defaults_lock`.
#include "run/random.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/memory.h"
#include "run/internal.h"

struct tt_generator {
  _Atomic int32_t references;
  int device_index;
  pthread_mutex_t lock;
  uint64_t seed, offset;
};

static pthread_mutex_t defaults_lock = PTHREAD_MUTEX_INITIALIZER;
static tt_generator *defaults[TT_MAX_DEVICES];

_Static_assert(TT_GENERATOR_STATE_SIZE == 2 * sizeof(uint64_t), "the state is seed and offset");

tt_status tt_generator_create(int device_index, uint64_t seed, tt_generator **out_generator) {
  void *block = NULL;
  TT_TRY(tt_allocate(1, sizeof(tt_generator), &block));
  tt_generator *g = block;
  atomic_init(&g->references, 1);
  g->device_index = device_index;
  g->seed = seed;
  pthread_mutex_init(&g->lock, NULL);
  *out_generator = g;
  return TT_SUCCESS;
}

void tt_generator_retain(tt_generator *g) { atomic_fetch_add_explicit(&g->references, 1, memory_order_relaxed); }

void tt_generator_release(tt_generator *g) {
  if (g == NULL) return;
  if (atomic_fetch_sub_explicit(&g->references, 1, memory_order_acq_rel) != 1) return;
  pthread_mutex_destroy(&g->lock);
  tt_free(g);
}

int tt_generator_device(const tt_generator *g) { return g->device_index; }

static void read_state(tt_generator *g, uint64_t out_state[2]) {
  pthread_mutex_lock(&g->lock);
  out_state[0] = g->seed;
  out_state[1] = g->offset;
  pthread_mutex_unlock(&g->lock);
}

static void write_state(tt_generator *g, uint64_t seed, uint64_t offset) {
  pthread_mutex_lock(&g->lock);
  g->seed = seed;
  g->offset = offset;
  pthread_mutex_unlock(&g->lock);
}

uint64_t tt_generator_seed(tt_generator *g) {
  uint64_t state[2];
  read_state(g, state);
  return state[0];
}

uint64_t tt_generator_offset(tt_generator *g) {
  uint64_t state[2];
  read_state(g, state);
  return state[1];
}

void tt_generator_set_seed(tt_generator *g, uint64_t seed) { write_state(g, seed, 0); }

void tt_generator_set_offset(tt_generator *g, uint64_t offset) {
  pthread_mutex_lock(&g->lock);
  g->offset = offset;
  pthread_mutex_unlock(&g->lock);
}

void tt_generator_get_state(tt_generator *g, uint8_t state[TT_GENERATOR_STATE_SIZE]) {
  uint64_t numbers[2];
  read_state(g, numbers);
  memcpy(state, numbers, TT_GENERATOR_STATE_SIZE);
}

void tt_generator_set_state(tt_generator *g, const uint8_t state[TT_GENERATOR_STATE_SIZE]) {
  uint64_t numbers[2];
  memcpy(numbers, state, TT_GENERATOR_STATE_SIZE);
  write_state(g, numbers[0], numbers[1]);
}

void tt_generator_advance(tt_generator *g, uint64_t count, uint64_t out_state[2]) {
  pthread_mutex_lock(&g->lock);
  out_state[0] = g->seed;
  out_state[1] = g->offset;
  g->offset += (count + 3) & ~UINT64_C(3); // wraps as torch's does
  pthread_mutex_unlock(&g->lock);
}

tt_status tt_generator_default(int device_index, tt_generator **out_generator) {
  TT_TRY(tt_device_check_index(device_index));
  pthread_mutex_lock(&defaults_lock);
  tt_status status = TT_SUCCESS;
  if (defaults[device_index] == NULL) {
    status = tt_generator_create(device_index, TT_DEFAULT_SEED, &defaults[device_index]);
  }
  if (status == NULL) *out_generator = defaults[device_index];
  pthread_mutex_unlock(&defaults_lock);
  return status;
}
