// assert.c - conditions of the user's, checked when the program has run.
#include <pthread.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "op/lowering.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards `texts`
static tt_map texts = TT_MAP_INIT;                       // text -> its copy

// A copy that lives for ever, as messages of checks do: programs that fail say it. NULL when memory is exhausted.
static const char *keep(const char *text) {
  const size_t size = strlen(text) + 1;
  const uint64_t hash = tt_hash(text, size);
  pthread_mutex_lock(&lock);
  char *kept = tt_map_get(&texts, hash, text, size);
  if (!kept && (kept = tt_strdup(text)) != NULL) {
    void *old = NULL;
    tt_status status = tt_map_set(&texts, hash, text, size, kept, &old);
    if (status) {
      tt_status_free(status);
      tt_free(kept);
      kept = NULL;
    }
  }
  pthread_mutex_unlock(&lock);
  return kept;
}

// (self) and (self, assert_msg)
void tt_lower_assert_async(tt_lowering *l) {
  tt_value *x = tt_operand(l, 0);
  if (tt_failed(l)) return;
  if (tt_value_count(x) != 1) {
    tt_fail(l, TT_INVALID_ARGUMENT,
            tt_value_count(x) ? "Boolean value of Tensor with more than one value is ambiguous"
                              : "Boolean value of Tensor with no values is ambiguous");
    return;
  }
  const char *message = keep(
      l->arg_count > 1 && tt_has(l, 1) ? tt_text(l, 1) : "Expected Tensor with single nonzero value, but got zero");
  if (!message) {
    tt_builder_fail(l->b, tt_error(TT_OUT_OF_MEMORY, "out of host memory for the message of a check"));
    return;
  }
  tt_check_all(l, tt_hlo_convert(l->b, x, TT_BOOL), TT_INVALID_ARGUMENT, message);
}
