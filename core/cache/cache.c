// cache.c - see cache.h.
#include "cache/cache.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/map.h"
#include "base/memory.h"
#include "base/string.h"
#include "cache/describe.h"
#include "cache/disk.h"
#include "cache/entry.h"
#include "cache/internal.h"
#include "cache/origin.h"

// A program that a thread is looking for below memory; on that thread's stack.
typedef struct flight {
  const tt_string *key;
  struct flight *next;
} flight;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards `programs` and `flights`
static pthread_cond_t landed = PTHREAD_COND_INITIALIZER;
static tt_map programs = TT_MAP_INIT; // options and text -> tt_executable, one reference each
static flight *flights;

static tt_status program_key(const char *text, int64_t size, const tt_compile_options *options, tt_string *out_key) {
  const char flags[] = {(char)options->effort, (char)options->short_loops, (char)options->exact};
  tt_string_append_n(out_key, flags, sizeof flags);
  tt_string_append_n(out_key, text, (size_t)size);
  return tt_string_status(out_key);
}

static bool is_in_flight(const tt_string *key) {
  for (const flight *f = flights; f; f = f->next)
    if (f->key->size == key->size && memcmp(f->key->data, key->data, key->size) == 0) return true;
  return false;
}

// The program in memory; where another thread is at it, waits for that. NULL: `own` is in flight now, and land must follow.
static tt_executable *find_or_take_off(uint64_t hash, flight *own) {
  const tt_string *key = own->key;
  pthread_mutex_lock(&lock);
  tt_executable *found;
  while (!(found = tt_map_get(&programs, hash, key->data, key->size)) && is_in_flight(key))
    pthread_cond_wait(&landed, &lock);
  if (found) {
    tt_executable_retain(found);
  } else {
    own->next = flights;
    flights = own;
  }
  pthread_mutex_unlock(&lock);
  return found;
}

// Enters what was found, unless it is NULL.
static tt_status land(uint64_t hash, flight *own, tt_executable *executable) {
  pthread_mutex_lock(&lock);
  flight **at = &flights;
  while (*at != own) at = &(*at)->next;
  *at = own->next;
  tt_status status =
      executable ? tt_map_set(&programs, hash, own->key->data, own->key->size, executable, NULL) : TT_SUCCESS;
  if (executable && !status) tt_executable_retain(executable);
  pthread_cond_broadcast(&landed);
  pthread_mutex_unlock(&lock);
  return status;
}

// ---- below memory ----------------------------------------------------------------------------------------------------

// A program that is not in memory.
typedef struct lookup {
  tt_client *client;
  const char *text;
  int64_t size;
  const tt_compile_options *options;
  const tt_disk *disk; // NULL: memory is the only tier
  uint8_t key[TT_SHA256_SIZE];
  char name[TT_SHA256_TEXT_SIZE]; // the key as text
} lookup;

// The tiers below memory need a plugin that serialises. A lookup without them has no key.
static tt_status start_lookup(lookup *l) {
  const tt_disk *disk = tt_cache_disk();
  if (!disk) return TT_SUCCESS;
  uint8_t origin[TT_SHA256_SIZE];
  const char *refusal = NULL;
  TT_TRY(tt_origin_get(disk, l->client, origin, &refusal));
  if (refusal) {
    tt_cache_note_refusal(refusal);
    return TT_SUCCESS;
  }
  tt_string options = TT_STRING_INIT;
  tt_status status = tt_executable_options(l->client, l->text, l->size, l->options, &options);
  if (!status) {
    tt_sha256 hash;
    uint64_t size = options.size; // tells where the options end and the text begins
    tt_sha256_start(&hash);
    tt_sha256_add(&hash, origin, sizeof origin);
    tt_sha256_add(&hash, &size, sizeof size);
    tt_sha256_add(&hash, options.data, options.size);
    tt_sha256_add(&hash, l->text, (size_t)l->size);
    tt_sha256_finish(&hash, l->key);
    tt_sha256_text(l->key, l->name);
    l->disk = disk;
  }
  tt_string_free(&options);
  return status;
}

// Checks and loads an entry's bytes. What is wrong with it is a failure.
static tt_status load_entry(const lookup *l, const tt_string *bytes, const char *place,
                            tt_executable **out_executable) {
  tt_entry entry;
  const char *fault = tt_entry_read(bytes->data, bytes->size, l->key, &entry);
  if (fault) return tt_error(TT_UNAVAILABLE, "%s/%s is %s", place, l->name, fault);
  tt_status status = tt_executable_load(l->client, l->text, l->size, entry.payload, entry.payload_size, out_executable);
  return tt_status_context(status, "%s/%s", place, l->name);
}

static tt_executable *from_disk(const lookup *l) {
  tt_string bytes = TT_STRING_INIT;
  tt_executable *executable = NULL;
  bool found = false;
  tt_status status = tt_disk_get(l->disk, "programs", l->name, /*touch=*/true, &bytes, &found);
  if (!status && found) status = load_entry(l, &bytes, l->disk->folder, &executable);
  tt_string_free(&bytes);
  if (status && tt_status_code(status) != TT_OUT_OF_MEMORY) tt_disk_remove(l->disk, "programs", l->name);
  tt_cache_warn_of(TT_CACHE_BAD_ENTRY, status);
  if (executable) tt_cache_count_hit(l->disk);
  return executable;
}

static void accept_bytes(void *sink, const void *bytes, size_t size) { tt_string_append_n(sink, bytes, size); }

// What it gives is trusted no more than a file is, and kept as one.
static tt_executable *from_remote(const lookup *l) {
  const tt_cache_remote remote = tt_cache_get_remote();
  if (!remote.fetch) return NULL;
  tt_string bytes = TT_STRING_INIT;
  tt_executable *executable = NULL;
  remote.fetch(l->name, accept_bytes, &bytes);
  if (bytes.size && !bytes.failed) {
    tt_status status = load_entry(l, &bytes, "TORCH_TPU_REMOTE_CACHE", &executable);
    if (status && tt_status_code(status) != TT_OUT_OF_MEMORY)
      tt_cache_warn(TT_CACHE_BAD_REMOTE, "the remote compile cache has a bad entry, which is compiled again: %s",
                    tt_status_message(status));
    tt_status_free(status);
  }
  if (executable) tt_cache_warn_of(TT_CACHE_NOT_WRITTEN, tt_cache_keep(l->disk, l->name, bytes.data, bytes.size));
  tt_string_free(&bytes);
  return executable;
}

static void dump(const lookup *l) {
  tt_string out = TT_STRING_INIT, name = TT_STRING_INIT;
  tt_string_append(&out, "// ");
  tt_describe_program(l->text, l->size, &out);
  tt_string_append(&out, "\n");
  tt_string_append_n(&out, l->text, (size_t)l->size);
  tt_string_printf(&name, "%s.mlir", l->name);
  if (!out.failed && !name.failed)
    tt_cache_warn_of(TT_CACHE_NOT_WRITTEN, tt_disk_put(l->disk, "misses", name.data, out.data, out.size));
  tt_string_free(&name);
  tt_string_free(&out);
}

static tt_status forbidden(const lookup *l) {
  tt_string description = TT_STRING_INIT;
  tt_describe_program(l->text, l->size, &description);
  tt_status status =
      l->disk ? tt_error(TT_UNAVAILABLE,
                         "TORCH_TPU_CACHE_MODE=cache-only, but the compile cache in %s has no program %s (key %s)",
                         l->disk->folder, tt_string_text(&description), l->name)
              : tt_error(TT_UNAVAILABLE,
                         "TORCH_TPU_CACHE_MODE=cache-only, but program %s is not compiled and the cache on "
                         "disk is off: %s",
                         tt_string_text(&description), tt_cache_off_reason());
  tt_string_free(&description);
  return status;
}

static int64_t microseconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

// The executable as an entry's bytes, none where this one cannot be serialised.
static void write_entry(const lookup *l, const tt_executable *executable, int64_t compile_microseconds,
                        tt_string *out) {
  tt_string payload = TT_STRING_INIT, description = TT_STRING_INIT;
  tt_status status = tt_executable_serialize(executable, &payload);
  tt_describe_program(l->text, l->size, &description);
  if (!status && payload.size && !description.failed) {
    tt_entry entry = {.created = (int64_t)time(NULL),
                      .compile_microseconds = compile_microseconds,
                      .description = tt_string_text(&description),
                      .description_size = description.size,
                      .payload = payload.data,
                      .payload_size = payload.size};
    memcpy(entry.key, l->key, sizeof entry.key);
    tt_entry_write(&entry, out);
  }
  tt_status_free(status); // the program runs all the same
  tt_string_free(&description);
  tt_string_free(&payload);
}

// While the lock of the name is held: what another process has just compiled, else the compiler's. The entry that came of it
// is left in `entry`, and in *kept what became of it on disk.
static tt_status compile_locked(const lookup *l, tt_string *entry, tt_executable **out_executable,
                                tt_cache_source *out_source, tt_status *kept) {
  bool others = false;
  tt_string bytes = TT_STRING_INIT;
  tt_status_free(tt_disk_get(l->disk, "programs", l->name, /*touch=*/false, &bytes, &others));
  tt_executable *executable = NULL;
  if (others) tt_status_free(load_entry(l, &bytes, l->disk->folder, &executable));
  tt_string_free(&bytes);
  *out_source = executable ? TT_FROM_DISK : TT_FROM_COMPILER;
  if (!executable) {
    int64_t begin = microseconds();
    TT_TRY(tt_executable_compile(l->client, l->text, l->size, l->options, &executable));
    write_entry(l, executable, microseconds() - begin, entry);
    if (entry->size && !entry->failed) *kept = tt_cache_keep(l->disk, l->name, entry->data, entry->size);
  }
  *out_executable = executable;
  return TT_SUCCESS;
}

static tt_status compile_and_keep(const lookup *l, tt_executable **out_executable, tt_cache_source *out_source) {
  tt_string entry = TT_STRING_INIT;
  tt_status kept = TT_SUCCESS;
  int lock_held = tt_disk_lock(l->disk, l->name);
  tt_status status = compile_locked(l, &entry, out_executable, out_source, &kept);
  tt_disk_unlock(l->disk, l->name, lock_held);
  // Python may be called from here on: nothing is held that another thread could wait for.
  tt_cache_warn_of(TT_CACHE_NOT_WRITTEN, kept);
  const tt_cache_remote remote = tt_cache_get_remote();
  if (remote.store && entry.size && !entry.failed) remote.store(l->name, entry.data, entry.size);
  if (!status && *out_source == TT_FROM_DISK) tt_cache_count_hit(l->disk);
  tt_string_free(&entry);
  return status;
}

static tt_status find_below(lookup *l, tt_executable **out_executable, tt_cache_source *out_source) {
  TT_TRY(start_lookup(l));
  if (l->disk && (*out_executable = from_disk(l))) {
    *out_source = TT_FROM_DISK;
    return TT_SUCCESS;
  }
  if (l->disk && (*out_executable = from_remote(l))) {
    *out_source = TT_FROM_REMOTE;
    return TT_SUCCESS;
  }
  if (tt_cache_get_mode() == TT_CACHE_ONLY) return forbidden(l);
  if (l->disk && tt_cache_get_mode() == TT_CACHE_DUMP_ON_MISS) dump(l);
  if (l->disk) return compile_and_keep(l, out_executable, out_source);
  *out_source = TT_FROM_COMPILER;
  return tt_executable_compile(l->client, l->text, l->size, l->options, out_executable);
}

tt_status tt_cache_get(tt_client *client, const char *text, int64_t size, const tt_compile_options *options,
                       tt_executable **out_executable, tt_cache_source *out_source) {
  tt_string key = TT_STRING_INIT;
  tt_status status = program_key(text, size, options, &key);
  uint64_t hash = status ? 0 : tt_hash(key.data, key.size);
  flight own = {&key, NULL};
  tt_executable *executable = status ? NULL : find_or_take_off(hash, &own);
  *out_source = TT_FROM_MEMORY;
  if (!status && !executable) {
    lookup l = {.client = client, .text = text, .size = size, .options = options};
    status = find_below(&l, &executable, out_source);
    status = tt_status_join(status, land(hash, &own, status ? NULL : executable));
    if (status) {
      tt_executable_release(executable);
      executable = NULL;
    }
  }
  tt_string_free(&key);
  if (!status) *out_executable = executable;
  return status;
}

tt_status tt_cache_probe(tt_client *client) {
  lookup l = {.client = client, .text = "", .options = &(tt_compile_options){0}};
  return start_lookup(&l);
}

// ---- memory ----------------------------------------------------------------------------------------------------------

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
