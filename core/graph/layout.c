// layout.c - the table of layouts.
//
// Owns every layout that was ever interned. Any thread may call; `lock` guards the table. Only plan misses come here.
#include <pthread.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "graph/storage.h"

enum { INLINE_RANK = 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tt_map layouts = TT_MAP_INIT; // {dtype, dims...} -> tt_layout

// Elements, bytes and torch's contiguous strides (a dimension of size 0 counts as 1) of `layout`, whose dims are set.
// As in torch, a size of 0 makes any other sizes possible.
static bool layout_measure(tt_layout *layout, int64_t *strides) {
  bool empty = false, overflow = false;
  for (int i = 0; i < layout->rank; i++) empty = empty || layout->dims[i] == 0;
  int64_t stride = 1;
  for (int i = layout->rank - 1; i >= 0; i--) {
    strides[i] = stride;
    int64_t dim = layout->dims[i] > 0 ? layout->dims[i] : 1;
    if (!tt_mul_i64(stride, dim, &stride)) {
      overflow = true;
      stride = 0;
    }
  }
  layout->count = empty ? 0 : stride;
  if (empty) return true;
  return !overflow && tt_mul_i64(stride, tt_dtype_size(layout->dtype), &layout->byte_size);
}

// One block: the layout, its dims, its strides.
static tt_status layout_create(tt_dtype dtype, int rank, const int64_t *dims, tt_layout **out_layout) {
  void *block = NULL;
  TT_TRY(tt_allocate(1, sizeof(tt_layout) + 2 * (size_t)rank * sizeof(int64_t), &block));
  tt_layout *layout = block;
  int64_t *copy = (int64_t *)(layout + 1);
  if (rank > 0) memcpy(copy, dims, (size_t)rank * sizeof(int64_t));
  layout->dtype = dtype;
  layout->rank = rank;
  layout->dims = copy;
  layout->strides = copy + rank;
  if (!layout_measure(layout, copy + rank)) {
    tt_free(layout);
    return tt_error(TT_INVALID_ARGUMENT, "the number of bytes of a tensor of %d dimensions does not fit 64 bits", rank);
  }
  *out_layout = layout;
  return TT_SUCCESS;
}

static tt_status intern_locked(const int64_t *key, size_t key_size, const tt_layout **out_layout) {
  uint64_t hash = tt_hash(key, key_size);
  tt_layout *layout = tt_map_get(&layouts, hash, key, key_size);
  if (layout == NULL) {
    int rank = (int)(key_size / sizeof(int64_t)) - 1;
    TT_TRY(layout_create((tt_dtype)key[0], rank, key + 1, &layout));
    tt_status status = tt_map_set(&layouts, hash, key, key_size, layout, NULL);
    if (status != NULL) {
      tt_free(layout);
      return status;
    }
  }
  *out_layout = layout;
  return TT_SUCCESS;
}

tt_status tt_layout_intern(tt_dtype dtype, int rank, const int64_t *dims, const tt_layout **out_layout) {
  if (dtype <= TT_DTYPE_NONE || dtype >= TT_DTYPE_COUNT) return tt_internal_error("a layout of dtype %d", (int)dtype);
  if (rank < 0) return tt_internal_error("a layout of rank %d", rank);
  for (int i = 0; i < rank; i++) {
    if (dims[i] < 0) {
      return tt_error(TT_INVALID_ARGUMENT, "size %lld of dimension %d is negative", (long long)dims[i], i);
    }
  }
  int64_t inline_key[1 + INLINE_RANK], *key = inline_key;
  size_t key_size = ((size_t)rank + 1) * sizeof(int64_t);
  if (rank > INLINE_RANK) {
    key = tt_malloc(key_size);
    if (key == NULL) return tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted");
  }
  key[0] = dtype;
  if (rank > 0) memcpy(key + 1, dims, (size_t)rank * sizeof(int64_t));

  pthread_mutex_lock(&lock);
  tt_status status = intern_locked(key, key_size, out_layout);
  pthread_mutex_unlock(&lock);
  if (key != inline_key) tt_free(key);
  return status;
}
