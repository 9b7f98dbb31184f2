// cache.c - see cache.h.
#include "cache/cache.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "base/string.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards `programs`
static tt_map programs = TT_MAP_INIT;                    // options and text -> tt_executable, one reference each

static tt_status program_key(const char *text, int64_t size, const tt_compile_options *options, tt_string *out_key) {
  const char flags[] = {(char)options->effort, (char)options->short_loops, (char)options->exact};
  tt_string_append_n(out_key, flags, sizeof flags);
  tt_string_append_n(out_key, text, (size_t)size);
  return tt_string_status(out_key);
}

static tt_executable *find(uint64_t hash, const tt_string *key) {
  pthread_mutex_lock(&lock);
  tt_executable *found = tt_map_get(&programs, hash, key->data, key->size);
  if (found) tt_executable_retain(found);
  pthread_mutex_unlock(&lock);
  return found;
}

// Enters what was compiled; of two threads that compiled the same text the first wins.
static tt_status enter(uint64_t hash, const tt_string *key, tt_executable **io_executable) {
  tt_status status = TT_SUCCESS;
  pthread_mutex_lock(&lock);
  tt_executable *other = tt_map_get(&programs, hash, key->data, key->size);
  if (other) {
    tt_executable_release(*io_executable);
    *io_executable = tt_executable_retain(other);
  } else {
    status = tt_map_set(&programs, hash, key->data, key->size, *io_executable, NULL);
    if (!status) tt_executable_retain(*io_executable);
  }
  pthread_mutex_unlock(&lock);
  return status;
}

tt_status tt_cache_get(tt_client *client, const char *text, int64_t size, const tt_compile_options *options,
                       tt_executable **out_executable, bool *out_hit) {
  tt_string key = TT_STRING_INIT;
  tt_status status = program_key(text, size, options, &key);
  uint64_t hash = status ? 0 : tt_hash(key.data, key.size);
  tt_executable *executable = status ? NULL : find(hash, &key);
  *out_hit = executable != NULL;
  if (!status && !executable) {
    status = tt_executable_compile(client, text, size, options, &executable);
    if (!status) status = enter(hash, &key, &executable);
    if (status) {
      tt_executable_release(executable);
      executable = NULL;
    }
  }
  tt_string_free(&key);
  if (!status) *out_executable = executable;
  return status;
}

static int64_t count_lines(FILE *file) {
  char block[1 << 14];
  int64_t lines = 0;
  while (!feof(file) && !ferror(file)) {
    size_t size = fread(block, 1, sizeof block, file);
    for (size_t i = 0; i < size; ++i) lines += block[i] == '\n';
  }
  return lines;
}

bool tt_cache_mappings_run_out(tt_client *client) {
  enum { COMPILES_BETWEEN_LOOKS = 64 };
  static _Atomic int64_t compiles = 0;
  if (!tt_client_is_host(client) || atomic_fetch_add(&compiles, 1) % COMPILES_BETWEEN_LOOKS) return false;
  FILE *limit_file = fopen("/proc/sys/vm/max_map_count", "r"), *maps = fopen("/proc/self/maps", "r");
  long long limit = 0;
  bool known = limit_file && maps && fscanf(limit_file, "%lld", &limit) == 1;
  bool run_out = known && count_lines(maps) > limit / 4 * 3;
  if (limit_file) fclose(limit_file);
  if (maps) fclose(maps);
  return run_out;
}

static void release_entry(void *user, const tt_map_entry *entry) {
  (void)user;
  tt_executable_release(entry->value);
}

void tt_cache_clear(void) {
  pthread_mutex_lock(&lock);
  tt_map_each(&programs, release_entry, NULL);
  tt_map_free(&programs);
  pthread_mutex_unlock(&lock);
}
