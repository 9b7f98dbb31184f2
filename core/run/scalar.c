// scalar.c - see scalar.h.
#include "run/scalar.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/map.h"

enum {
  TABLE_SIZE = 4096, // a power of two; at most as many 4- to 16-byte buffers
  ON_TRIAL = 128,    // new numbers that may stay so long
};

typedef struct entry {
  tt_buffer *buffer; // NULL = free
  tt_dtype dtype;
  uint8_t bytes[16];
  bool stays;
  uint64_t arrival; // it was the so-manieth new number
} entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards what follows
static entry table[TABLE_SIZE];
static uint64_t arrivals;
static int on_trial[ON_TRIAL]; // places of the newest, by arrival

tt_scalar tt_scalar_of_arg(const tt_arg *arg) {
  switch (arg->kind) {
  case TT_ARG_DOUBLE: return (tt_scalar){false, 0, arg->u.real, 0};
  case TT_ARG_COMPLEX: return (tt_scalar){false, 0, arg->u.complex_number[0], arg->u.complex_number[1]};
  default: return (tt_scalar){true, arg->u.integer, (double)arg->u.integer, 0};
  }
}

tt_scalar tt_scalar_of_tensor(const tt_tensor *tensor) {
  if (tensor->dtype == TT_BOOL || tt_dtype_is_integral(tensor->dtype))
    return (tt_scalar){true, tensor->integer, (double)tensor->integer, 0};
  return (tt_scalar){false, 0, tensor->real, tensor->imag};
}

// A float going into an integer dtype: truncated and kept in range, NaN becomes 0 (C leaves these undefined).
static int64_t truncate_double(double value) {
  if (isnan(value)) return 0;
  if (value >= 9223372036854775807.0) return INT64_MAX;
  if (value <= -9223372036854775808.0) return INT64_MIN;
  return (int64_t)value;
}

static void encode(tt_dtype dtype, const tt_scalar *value, uint8_t bytes[16]) {
  int64_t integer = value->is_integer ? value->integer : truncate_double(value->real);
  if (dtype == TT_BOOL) integer = value->is_integer ? value->integer != 0 : value->real != 0 || value->imag != 0;
  memset(bytes, 0, 16);
  tt_dtype_encode(dtype, value->real, value->imag, integer, bytes);
}

// A number of one step, say a corrected learning rate, is asked for once or for each parameter, and then never again; others
// come in every step. Which it is shows when others have arrived meanwhile.
static void note_use(entry *e) {
  if (arrivals - e->arrival >= ON_TRIAL / 2) e->stays = true;
}

// Puts a new number into its place. Returns what was there, and in *out_failed what came once and whose time is over.
static tt_buffer *arrive(entry *e, tt_buffer *buffer, tt_dtype dtype, const uint8_t bytes[16], tt_buffer **out_failed) {
  tt_buffer *old = e->buffer;
  *e = (entry){.buffer = tt_buffer_retain(buffer), .dtype = dtype, .arrival = ++arrivals};
  memcpy(e->bytes, bytes, 16);
  int *place = &on_trial[arrivals % ON_TRIAL];
  entry *oldest = &table[*place];
  *out_failed = NULL;
  if (oldest->arrival + ON_TRIAL == arrivals && !oldest->stays) {
    *out_failed = oldest->buffer;
    oldest->buffer = NULL;
  }
  *place = (int)(e - table);
  return old;
}

tt_status tt_scalar_buffer(tt_device *device, tt_dtype dtype, const tt_scalar *value, tt_buffer **out_buffer) {
  struct {
    uint64_t device, dtype;
    uint8_t bytes[16];
  } key = {(uint64_t)device->index, (uint64_t)dtype, {0}};
  encode(dtype, value, key.bytes);
  entry *e = &table[tt_hash(&key, sizeof key) & (TABLE_SIZE - 1)];

  pthread_mutex_lock(&lock);
  bool hit = e->buffer && e->dtype == dtype && e->buffer->device == device && memcmp(e->bytes, key.bytes, 16) == 0;
  if (hit) {
    *out_buffer = tt_buffer_retain(e->buffer);
    note_use(e);
  }
  pthread_mutex_unlock(&lock);
  if (hit) return TT_SUCCESS;

  tt_buffer *buffer, *failed;
  TT_TRY(tt_buffer_from_host(device, key.bytes, dtype, 0, NULL, TT_HOST_COPY, NULL, &buffer));
  pthread_mutex_lock(&lock);
  tt_buffer *old = arrive(e, buffer, dtype, key.bytes, &failed);
  pthread_mutex_unlock(&lock);
  tt_buffer_release(old);
  tt_buffer_release(failed);
  *out_buffer = buffer;
  return TT_SUCCESS;
}

void tt_scalar_clear(void) {
  for (int i = 0; i < TABLE_SIZE; ++i) {
    pthread_mutex_lock(&lock);
    tt_buffer *old = table[i].buffer;
    table[i].buffer = NULL;
    pthread_mutex_unlock(&lock);
    tt_buffer_release(old);
  }
}
