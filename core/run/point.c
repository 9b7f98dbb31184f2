// point.c - points in a device's queue: what torch calls events.
//
// A point holds the mark of its last record, guarded by its lock; any thread may record, ask or wait.
#include <pthread.h>

#include "base/memory.h"
#include "run/graph.h"
#include "run/internal.h"
#include "run/trace.h"

struct tt_point {
  pthread_mutex_t lock;
  tt_mark *mark;     // NULL: never recorded
  tt_device *device; // of the mark
};

tt_status tt_point_create(int index, tt_point **out_point) {
  (void)index; // each record names its device
  void *block = NULL;
  TT_TRY(tt_allocate(1, sizeof(tt_point), &block));
  tt_point *point = block;
  pthread_mutex_init(&point->lock, NULL);
  *out_point = point;
  return TT_SUCCESS;
}

void tt_point_destroy(tt_point *point) {
  if (point == NULL) return;
  tt_mark_release(point->mark);
  pthread_mutex_destroy(&point->lock);
  tt_free(point);
}

tt_status tt_point_record(tt_point *point, int index) {
  tt_device *device = NULL;
  TT_TRY(tt_device_find(index, &device));
  TT_TRY(tt_run_deferred(device)); // what was deferred lies before the point
  tt_mark *mark = NULL;
  TT_TRY(tt_queue_mark(device, &mark));
  pthread_mutex_lock(&point->lock);
  tt_mark *old = point->mark;
  point->mark = mark;
  point->device = device;
  pthread_mutex_unlock(&point->lock);
  tt_mark_release(old);
  return TT_SUCCESS;
}

// The mark with a reference for the caller; NULL when never recorded.
static tt_mark *current_mark(tt_point *point, tt_device **out_device) {
  pthread_mutex_lock(&point->lock);
  tt_mark *mark = tt_mark_retain(point->mark);
  *out_device = point->device;
  pthread_mutex_unlock(&point->lock);
  return mark;
}

bool tt_point_query(tt_point *point) {
  tt_device *device = NULL;
  tt_mark *mark = current_mark(point, &device);
  bool done = mark == NULL || tt_mark_is_done(mark);
  tt_mark_release(mark);
  return done;
}

tt_status tt_point_wait(tt_point *point) {
  tt_device *device = NULL;
  TT_TRY(tt_trace_check_wait("event", NULL));
  tt_mark *mark = current_mark(point, &device);
  if (mark == NULL) return TT_SUCCESS;
  tt_counter_add(TT_COUNTER_host_waits, 1);
  int64_t began = tt_trace_begin(TT_TRACE_wait);
  tt_mark_wait(mark);
  TT_TRACE_END(wait, began, .name = "event", .device_index = device->index);
  tt_mark_release(mark);
  return tt_queue_take_failure(device);
}

// The texts and their classes are torch's (c10/cuda/CUDAEvent.h).
static tt_status measure(tt_mark *start, tt_mark *end, double *out_ms) {
  if (start == NULL || end == NULL) {
    return tt_error(TT_VALUE, "Both events must be recorded before calculating elapsed time.");
  }
  if (!tt_mark_is_done(start) || !tt_mark_is_done(end)) {
    return tt_error(TT_INVALID_ARGUMENT, "Both events must be completed before calculating elapsed time.");
  }
  *out_ms = (double)(tt_mark_time_ns(end) - tt_mark_time_ns(start)) / 1e6;
  return TT_SUCCESS;
}

tt_status tt_point_elapsed_ms(tt_point *start, tt_point *end, double *out_ms) {
  tt_device *device = NULL;
  tt_mark *start_mark = current_mark(start, &device), *end_mark = current_mark(end, &device);
  tt_status status = measure(start_mark, end_mark, out_ms);
  tt_mark_release(start_mark);
  tt_mark_release(end_mark);
  return status;
}
