// key.c - see key.h. The hot path of every call: no allocation for calls of ordinary size.
#include "run/key.h"

#include <string.h>

#include "base/memory.h"
#include "graph/storage.h"
#include "op/view.h"

static tt_status out_of_memory(void) { return tt_error(TT_OUT_OF_MEMORY, "out of host memory while preparing a call"); }

static tt_status reserve(tt_key *key, int more) {
  if (key->count + more <= key->capacity) return TT_SUCCESS;
  int capacity = 2 * (key->count + more);
  uint64_t *words =
      tt_realloc_array(key->words == key->inline_words ? NULL : key->words, (size_t)capacity, sizeof *words);
  if (!words) return out_of_memory();
  if (key->words == key->inline_words) memcpy(words, key->words, (size_t)key->count * sizeof *words);
  key->words = words;
  key->capacity = capacity;
  return TT_SUCCESS;
}

static inline void put(tt_key *key, uint64_t word) { key->words[key->count++] = word; }

static inline void put_double(tt_key *key, double value) { memcpy(&key->words[key->count++], &value, sizeof value); }

static void put_all(tt_key *key, int count, const int64_t *values) {
  if (count) memcpy(key->words + key->count, values, (size_t)count * sizeof *values);
  key->count += count;
}

static tt_status add_number(tt_key *key, const tt_arg *arg) {
  if (key->number_count == key->number_capacity) {
    int capacity = 2 * key->number_capacity;
    bool is_inline = key->numbers == key->inline_numbers;
    const tt_arg **numbers = tt_realloc_array(is_inline ? NULL : key->numbers, (size_t)capacity, sizeof *numbers);
    if (!numbers) return out_of_memory();
    if (is_inline) memcpy(numbers, key->numbers, (size_t)key->number_count * sizeof *numbers);
    key->numbers = numbers;
    key->number_capacity = capacity;
  }
  key->numbers[key->number_count++] = arg;
  return TT_SUCCESS;
}

static bool numbers_are_static(const tt_overload *overload) {
  return !overload->op || (overload->op->flags & TT_OP_STATIC_NUMBERS);
}

static tt_status put_string(tt_key *key, const char *text) {
  size_t size = strlen(text), words = (size + 7) / 8;
  TT_TRY(reserve(key, (int)words + 1));
  put(key, size);
  if (words) key->words[key->count + (int)words - 1] = 0;
  memcpy(key->words + key->count, text, size);
  key->count += (int)words;
  return TT_SUCCESS;
}

static tt_status put_args(tt_key *key, const tt_arg *args, int count, bool static_numbers) {
  TT_TRY(reserve(key, 4 * count));
  for (int i = 0; i < count; ++i) {
    const tt_arg *a = &args[i];
    bool number = a->number && (a->kind == TT_ARG_INT || a->kind == TT_ARG_BOOL || a->kind == TT_ARG_DOUBLE ||
                                a->kind == TT_ARG_COMPLEX);
    if (number) TT_TRY(add_number(key, a));
    put(key, (uint64_t)a->kind | (uint64_t)number << 8);
    if (number && !static_numbers) continue; // travels at run time; its kind decides promotion
    switch (a->kind) {
    case TT_ARG_INT:
    case TT_ARG_BOOL: put(key, (uint64_t)a->u.integer); break;
    case TT_ARG_DOUBLE: put_double(key, a->u.real); break;
    case TT_ARG_COMPLEX:
      put_double(key, a->u.complex_number[0]);
      put_double(key, a->u.complex_number[1]);
      break;
    case TT_ARG_STRING: TT_TRY(put_string(key, a->u.string)); break;
    case TT_ARG_LIST:
      put(key, (uint64_t)a->count);
      TT_TRY(put_args(key, a->u.items, a->count, static_numbers));
      break;
    default: break;
    }
    TT_TRY(reserve(key, 4 * (count - i)));
  }
  return TT_SUCCESS;
}

// Is the tensor its storage's whole value in order? Decided without a full match.
static inline bool is_whole(const tt_tensor *t, const tt_layout *layout) {
  if (t->offset != 0 || t->rank != layout->rank || t->dtype != layout->dtype) return false;
  for (int i = 0; i < t->rank; ++i)
    if (t->sizes[i] != layout->dims[i] || (t->sizes[i] != 1 && t->strides[i] != layout->strides[i])) return false;
  return true;
}

static tt_status put_window(tt_key *key, const tt_tensor *t, const tt_layout *layout) {
  TT_TRY(reserve(key, 2 * t->rank + 3 * TT_VIEW_MAX_DIMS + 8));
  put_all(key, t->rank, t->sizes);
  put_all(key, t->rank, t->strides);
  if (!layout) return TT_SUCCESS;
  int rank;
  int64_t small[TT_VIEW_MAX_DIMS + 1], *dims = small;
  if (layout->rank >= TT_VIEW_MAX_DIMS) {
    dims = tt_malloc(((size_t)layout->rank + 1) * sizeof *dims);
    if (!dims) return out_of_memory();
  }
  if (tt_reinterpret_dims(layout->dtype, layout->rank, layout->dims, t->dtype, &rank, dims)) {
    tt_view view;
    tt_view_match(rank, dims, t->rank, t->sizes, t->strides, t->offset, &view);
    put(key, (uint64_t)view.kind | (uint64_t)view.base_rank << 8 | (uint64_t)view.rank << 16);
    if (view.kind == TT_VIEW_STRIDED) {
      put_all(key, view.base_rank, view.base);
      put_all(key, view.rank, view.extent);
    }
  }
  if (dims != small) tt_free(dims);
  return TT_SUCCESS;
}

// Values that a recorded decomposition has compiled in, since its inner calls see them as they are.
static tt_status put_recorded(tt_key *key, const tt_tensor *t) {
  TT_TRY(reserve(key, 4));
  put_all(key, 2, (int64_t[]){t->offset, t->integer});
  put_double(key, t->real);
  put_double(key, t->imag);
  return TT_SUCCESS;
}

static tt_status put_slot(tt_key *key, const tt_tensor *t, int group) {
  TT_TRY(reserve(key, 4));
  uint64_t word = (uint64_t)t->dtype | (uint64_t)t->rank << 8 | (uint64_t)t->wrapped_number << 16 |
                  (uint64_t)t->cpu_scalar << 17 | (uint64_t)t->defined << 18 | (uint64_t)t->conj << 21 |
                  (uint64_t)t->negative << 22 | (uint64_t)group << 32;
  if (!t->defined || t->cpu_scalar) {
    put(key, word);
    return TT_SUCCESS;
  }
  const tt_layout *layout = tt_storage_layout(t->storage);
  if (layout && is_whole(t, layout)) {
    put(key, word | UINT64_C(1) << 19);
    put(key, (uint64_t)(uintptr_t)layout);
    return TT_SUCCESS;
  }
  put(key, word | (uint64_t)(t->offset != 0) << 20);
  put(key, (uint64_t)(uintptr_t)layout);
  put(key, (uint64_t)t->storage->byte_size);
  return put_window(key, t, layout);
}

// group[i] = the first slot that has slot i's storage.
static void find_groups_quadratic(const tt_call *call, int *group) {
  for (int i = 0; i < call->tensor_count; ++i) {
    group[i] = i;
    if (!call->tensors[i].storage) continue;
    for (int k = 0; k < i; ++k)
      if (call->tensors[k].storage == call->tensors[i].storage) {
        group[i] = k;
        break;
      }
  }
}

static tt_status find_groups_hashed(const tt_call *call, int *group) {
  size_t capacity = 64;
  while (capacity < 2 * (size_t)call->tensor_count) capacity *= 2;
  int *table = tt_calloc(capacity, sizeof *table); // slot + 1
  if (!table) return out_of_memory();
  for (int i = 0; i < call->tensor_count; ++i) {
    group[i] = i;
    const tt_storage *storage = call->tensors[i].storage;
    if (!storage) continue;
    size_t at = ((uintptr_t)storage >> 5) * UINT64_C(0x9E3779B97F4A7C15) >> 20 & (capacity - 1);
    while (table[at] && call->tensors[table[at] - 1].storage != storage) at = (at + 1) & (capacity - 1);
    if (table[at])
      group[i] = table[at] - 1;
    else
      table[at] = i + 1;
  }
  tt_free(table);
  return TT_SUCCESS;
}

static tt_status find_groups(const tt_call *call, tt_key *key) {
  if (call->tensor_count > TT_KEY_INLINE_SLOTS) {
    key->group = tt_malloc((size_t)call->tensor_count * sizeof *key->group);
    if (!key->group) {
      key->group = key->inline_group;
      return out_of_memory();
    }
    return find_groups_hashed(call, key->group);
  }
  find_groups_quadratic(call, key->group);
  return TT_SUCCESS;
}

tt_status tt_key_build(const tt_call *call, tt_key *key) {
  key->words = key->inline_words;
  key->count = 0;
  key->capacity = TT_KEY_INLINE_WORDS;
  key->group = key->inline_group;
  key->numbers = key->inline_numbers;
  key->number_count = 0;
  key->number_capacity = TT_KEY_INLINE_NUMBERS;
  TT_TRY(find_groups(call, key));
  put(key, (uint64_t)call->overload->id | (uint64_t)call->precision << 32 | (uint64_t)call->default_dtype << 40);
  TT_TRY(put_args(key, call->args, call->arg_count, numbers_are_static(call->overload)));
  for (int i = 0; i < call->tensor_count; ++i) {
    TT_TRY(put_slot(key, &call->tensors[i], key->group[i]));
    if (call->overload->op) continue;
    if (!call->tensors[i].cpu_scalar || !call->overload->scalars_are_inputs)
      TT_TRY(put_recorded(key, &call->tensors[i]));
  }
  return TT_SUCCESS;
}

void tt_key_free(tt_key *key) {
  if (key->words != key->inline_words) tt_free(key->words);
  if (key->group != key->inline_group) tt_free(key->group);
  if (key->numbers != key->inline_numbers) tt_free(key->numbers);
}
