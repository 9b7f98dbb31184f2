// config.c - see config.h.
//
// The configuration is set before the first program and read without a lock afterwards. `remote_lock` guards `remote`.
#include "cache/config.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/string.h"
#include "cache/entry.h"
#include "cache/internal.h"

static struct {
  tt_disk disk;
  char *folder; // NULL: off
  tt_cache_mode mode;
  const char *off_reason;
} config = {.off_reason = "not configured"};

static _Atomic(const char *) refusal; // of the plugin
static _Atomic int64_t pending_hits;
static _Atomic bool swept;
static _Atomic bool told[TT_CACHE_TROUBLE_COUNT];
static _Atomic(void (*)(const char *)) warner;

static pthread_mutex_t remote_lock = PTHREAD_MUTEX_INITIALIZER;
static tt_cache_remote remote;

// ---- configuration ---------------------------------------------------------------------------------------------------

static tt_status choose_folder(const char *folder, tt_string *out, const char **out_off_reason) {
  *out_off_reason = "";
  if (strcmp(folder, "off") == 0) {
    *out_off_reason = "TORCH_TPU_CACHE_DIR=off";
    return TT_SUCCESS;
  }
  if (folder[0]) {
    tt_string_append(out, folder);
    return tt_string_status(out);
  }
  TT_TRY(tt_disk_default_folder(out));
  if (!out->size) *out_off_reason = "neither XDG_CACHE_HOME nor HOME names a folder";
  return TT_SUCCESS;
}

tt_status tt_cache_configure(const tt_cache_config *wish) {
  tt_string folder = TT_STRING_INIT;
  const char *off_reason = "";
  tt_status status = choose_folder(wish->folder, &folder, &off_reason);
  if (!status && off_reason[0] && wish->mode == TT_CACHE_DUMP_ON_MISS)
    status =
        tt_error(TT_VALUE, "TORCH_TPU_CACHE_MODE=dump-on-miss needs a cache folder, but there is none: %s", off_reason);
  if (status) {
    tt_string_free(&folder);
    return status;
  }
  tt_free(config.folder);
  config.folder = folder.data;
  config.mode = wish->mode;
  config.off_reason = off_reason;
  config.disk = (tt_disk){config.folder, wish->limit, wish->wait_seconds, wish->touch_seconds};
  atomic_store(&refusal, NULL);
  atomic_store(&pending_hits, 0);
  atomic_store(&swept, false);
  if (!config.folder && strcmp(wish->folder, "off") != 0)
    tt_cache_warn(TT_CACHE_NO_FOLDER,
                  "the compile cache on disk is off: %s. TORCH_TPU_CACHE_DIR=FOLDER names one, TORCH_TPU_CACHE_DIR=off "
                  "silences this",
                  off_reason);
  return TT_SUCCESS;
}

const tt_disk *tt_cache_disk(void) { return config.folder ? &config.disk : NULL; }

tt_cache_mode tt_cache_get_mode(void) { return config.mode; }

const char *tt_cache_off_reason(void) {
  const char *reason = atomic_load(&refusal);
  return reason ? reason : config.off_reason;
}

void tt_cache_note_refusal(const char *reason) { atomic_store(&refusal, reason); }

void tt_cache_set_remote(const tt_cache_remote *wish) {
  pthread_mutex_lock(&remote_lock);
  remote = wish ? *wish : (tt_cache_remote){NULL, NULL};
  pthread_mutex_unlock(&remote_lock);
}

tt_cache_remote tt_cache_get_remote(void) {
  pthread_mutex_lock(&remote_lock);
  tt_cache_remote copy = remote;
  pthread_mutex_unlock(&remote_lock);
  return copy;
}

// ---- trouble ---------------------------------------------------------------------------------------------------------

void tt_cache_set_warner(void (*warn)(const char *message)) { atomic_store(&warner, warn); }

void tt_cache_warn(tt_cache_trouble trouble, const char *format, ...) {
  if (atomic_exchange(&told[trouble], true)) return;
  tt_string text = TT_STRING_INIT;
  tt_string_append(&text, "torch_tpu: ");
  va_list args;
  va_start(args, format);
  tt_string_vprintf(&text, format, args);
  va_end(args);
  tt_string_append(&text, ". (Told once per process; nothing stops for it.)");
  void (*warn)(const char *) = atomic_load(&warner);
  if (warn)
    warn(tt_string_text(&text));
  else
    fprintf(stderr, "%s\n", tt_string_text(&text));
  tt_string_free(&text);
}

void tt_cache_warn_of(tt_cache_trouble trouble, tt_status failure) {
  if (failure && tt_status_code(failure) != TT_OUT_OF_MEMORY)
    tt_cache_warn(trouble, "the compile cache %s: %s",
                  trouble == TT_CACHE_NOT_WRITTEN ? "cannot be written, so programs are compiled in every process"
                                                  : "has a bad entry, which is removed and compiled again",
                  tt_status_message(failure));
  tt_status_free(failure);
}

// ---- counts ----------------------------------------------------------------------------------------------------------

void tt_cache_count_hit(const tt_disk *disk) {
  enum { HITS_BETWEEN_WRITES = 256 };
  if (atomic_fetch_add(&pending_hits, 1) + 1 >= HITS_BETWEEN_WRITES)
    tt_disk_account(disk, 0, atomic_exchange(&pending_hits, 0));
}

void tt_cache_count_bytes(const tt_disk *disk, int64_t bytes) {
  tt_disk_account(disk, bytes, atomic_exchange(&pending_hits, 0));
}

void tt_cache_flush(void) {
  const tt_disk *disk = tt_cache_disk();
  if (disk && atomic_load(&pending_hits) > 0) tt_cache_count_bytes(disk, 0);
}

// ---- entries ---------------------------------------------------------------------------------------------------------

tt_status tt_cache_keep(const tt_disk *disk, const char *name, const void *bytes, size_t size) {
  if (!atomic_exchange(&swept, true)) tt_disk_sweep(disk);
  if ((int64_t)size > disk->limit) return TT_SUCCESS; // it would have to go at once
  TT_TRY(tt_disk_put(disk, "programs", name, bytes, size));
  tt_cache_count_bytes(disk, (int64_t)size);
  return TT_SUCCESS;
}

static void add_entry(void *user, int folder, const char *name, const struct stat *file) {
  (void)folder, (void)name;
  tt_cache_info *info = user;
  info->entries++;
  info->bytes += file->st_size;
}

tt_status tt_cache_get_info(tt_cache_info *out_info) {
  const tt_disk *disk = tt_cache_disk();
  tt_cache_info info = {.folder = disk ? disk->folder : "", .off_reason = tt_cache_off_reason()};
  if (disk) {
    tt_cache_flush();
    TT_TRY(tt_disk_each(disk, add_entry, &info));
    info.limit = disk->limit;
    info.hits = tt_disk_hits(disk);
  }
  *out_info = info;
  return TT_SUCCESS;
}

typedef struct visitor {
  void (*visit)(void *user, const tt_cache_item *item);
  void *user;
} visitor;

static void visit_entry(void *user, int folder, const char *name, const struct stat *file) {
  enum { HEAD_MAX = TT_ENTRY_FIXED_SIZE + TT_ENTRY_DESCRIPTION_MAX + TT_SHA256_SIZE };
  const visitor *v = user;
  char head[HEAD_MAX], description[TT_ENTRY_DESCRIPTION_MAX + 1];
  int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  ssize_t size = fd < 0 ? -1 : pread(fd, head, sizeof head, 0);
  if (fd >= 0) close(fd);
  tt_entry entry;
  if (size < 0 || tt_entry_read_head(head, (size_t)size, (size_t)file->st_size, &entry)) return;
  memcpy(description, entry.description, entry.description_size);
  description[entry.description_size] = '\0';
  v->visit(v->user, &(tt_cache_item){.name = name,
                                     .description = description,
                                     .bytes = file->st_size,
                                     .created = (double)entry.created,
                                     .used = (double)file->st_mtim.tv_sec,
                                     .compile_seconds = 1e-6 * (double)entry.compile_microseconds});
}

tt_status tt_cache_each(void (*visit)(void *user, const tt_cache_item *item), void *user) {
  const tt_disk *disk = tt_cache_disk();
  return disk ? tt_disk_each(disk, visit_entry, &(visitor){visit, user}) : TT_SUCCESS;
}

tt_status tt_cache_clear_folder(double older_than_seconds, int64_t *out_entries, int64_t *out_bytes) {
  const tt_disk *disk = tt_cache_disk();
  *out_entries = *out_bytes = 0;
  if (!disk) return TT_SUCCESS;
  tt_cache_flush();
  return tt_disk_clear(disk, older_than_seconds, out_entries, out_bytes);
}

tt_status tt_cache_import(const char *name, const void *bytes, size_t size, bool *out_kept) {
  const tt_disk *disk = tt_cache_disk();
  tt_entry entry;
  char text[TT_SHA256_TEXT_SIZE];
  *out_kept = false;
  if (!disk || tt_entry_read(bytes, size, NULL, &entry)) return TT_SUCCESS;
  tt_sha256_text(entry.key, text);
  if (strcmp(text, name) != 0) return TT_SUCCESS;
  TT_TRY(tt_cache_keep(disk, name, bytes, size));
  *out_kept = true;
  return TT_SUCCESS;
}
