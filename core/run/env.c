// env.c - reads the environment variables of the core, once.
//
// `lock` guards the reading; after `loaded` is set, `values` never changes.
#include "run/env.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static const tt_env_row rows[] = {
#define X(id, variable, form, otherwise, meaning) {variable, form, otherwise, meaning},
    TT_ENVIRONMENT(X)
#undef X
};

typedef struct env_value {
  char *text;     // a copy; NULL: unset or empty
  int64_t number; // of the text, or of the default if the text is faulty
  bool faulty;
} env_value;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool loaded;
static env_value values[TT_ENV_COUNT];

// The place of `text` among the words of "A|B|C".
static bool parse_word(const char *form, const char *text, int64_t *out_number) {
  size_t size = strlen(text);
  int64_t place = 0;
  for (const char *word = form;; place++) {
    size_t word_size = strcspn(word, "|");
    if (word_size == size && strncmp(word, text, size) == 0) {
      *out_number = place;
      return true;
    }
    if (word[word_size] == '\0') return false;
    word += word_size + 1;
  }
}

static bool parse_integer(const char *form, const char *text, int64_t *out_number) {
  long long low = 0, high = 0;
  if (sscanf(form, "%lld..%lld", &low, &high) != 2) return false;
  char *end = NULL;
  errno = 0;
  long long number = strtoll(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || number < low || number > high) return false;
  *out_number = number;
  return true;
}

static bool parse(const char *form, const char *text, int64_t *out_number) {
  *out_number = 0;
  if (strcmp(form, "text") == 0) return true;
  return strstr(form, "..") != NULL ? parse_integer(form, text, out_number) : parse_word(form, text, out_number);
}

// An empty value counts as unset, as in a shell's `VARIABLE= command`. False when memory for the copy is lacking.
static bool read_value(const tt_env_row *row, env_value *value) {
  const char *text = getenv(row->variable);
  parse(row->form, row->otherwise, &value->number);
  if (text == NULL || text[0] == '\0') return true;
  if (value->text == NULL) value->text = tt_strdup(text);
  if (value->text == NULL) return false;
  int64_t number = 0;
  value->faulty = !parse(row->form, text, &number);
  if (!value->faulty) value->number = number;
  return true;
}

// False as long as there is no memory for the texts; then the next question tries again.
static bool load(void) {
  if (atomic_load_explicit(&loaded, memory_order_acquire)) return true;
  pthread_mutex_lock(&lock);
  bool complete = true;
  if (!atomic_load_explicit(&loaded, memory_order_relaxed)) {
    for (int i = 0; i < TT_ENV_COUNT; i++) complete = read_value(&rows[i], &values[i]) && complete;
    if (complete) atomic_store_explicit(&loaded, true, memory_order_release);
  }
  pthread_mutex_unlock(&lock);
  return complete;
}

const tt_env_row *tt_env_at(tt_env variable) { return &rows[variable]; }

const char *tt_env_text(tt_env variable) {
  const env_value *value = &values[variable];
  return load() && value->text != NULL && !value->faulty ? value->text : rows[variable].otherwise;
}

int64_t tt_env_number(tt_env variable) {
  if (load()) return values[variable].number;
  int64_t number = 0;
  parse(rows[variable].form, rows[variable].otherwise, &number);
  return number;
}

tt_status tt_env_check(void) {
  if (!load()) return tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted");
  for (int i = 0; i < TT_ENV_COUNT; i++) {
    if (!values[i].faulty) continue;
    return tt_error(TT_VALUE, "environment variable %s is \"%s\", expected %s (default %s): %s", rows[i].variable,
                    values[i].text, rows[i].form, rows[i].otherwise, rows[i].meaning);
  }
  return TT_SUCCESS;
}
