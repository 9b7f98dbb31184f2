// disk.c - see disk.h.
#include "cache/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "cache/sha256.h"

static const char *const subs[] = {"programs", "plugins", "misses", "locks", "tmp"};

// ---- paths -----------------------------------------------------------------------------------------------------------

bool tt_disk_is_name(const char *name) {
  return strlen(name) == TT_SHA256_TEXT_SIZE - 1 && strspn(name, "0123456789abcdef") == TT_SHA256_TEXT_SIZE - 1;
}

static bool is_folder(const char *path) {
  struct stat file;
  return stat(path, &file) == 0 && S_ISDIR(file.st_mode);
}

tt_status tt_disk_default_folder(tt_string *out) {
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (cache && cache[0] == '/') // the specification says to ignore relative ones
    tt_string_printf(out, "%s/torch_tpu", cache);
  else if (home && home[0] == '/' && is_folder(home)) // service users have homes that do not exist: do not make them
    tt_string_printf(out, "%s/.cache/torch_tpu", home);
  return tt_string_status(out);
}

// FOLDER/sub/name; `name` may be NULL.
static tt_status path_of(const tt_disk *disk, const char *sub, const char *name, tt_string *out) {
  tt_string_printf(out, "%s/%s%s%s", disk->folder, sub, name ? "/" : "", name ? name : "");
  return tt_string_status(out);
}

// Makes the folder and those above it. Only the last is for the user alone: what lies above is not the cache's.
static void make_folder(char *path, mode_t mode) {
  for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    mkdir(path, 0777);
    *slash = '/';
  }
  mkdir(path, mode);
}

// A failure shows when the folder is used.
static void make_folders(const tt_disk *disk) {
  tt_string path = TT_STRING_INIT;
  tt_string_append(&path, disk->folder);
  if (!path.failed) make_folder(path.data, 0700);
  for (size_t i = 0; i < sizeof subs / sizeof *subs; ++i) {
    tt_string_clear(&path);
    tt_status status = path_of(disk, subs[i], NULL, &path);
    if (!status) mkdir(path.data, 0777);
    tt_status_free(status);
  }
  tt_string_free(&path);
}

// open() that makes the folders when they are missing.
static int open_in(const tt_disk *disk, const char *path, int flags) {
  int fd = open(path, flags | O_CLOEXEC, 0666);
  if (fd >= 0 || errno != ENOENT || !(flags & O_CREAT)) return fd;
  make_folders(disk);
  return open(path, flags | O_CLOEXEC, 0666);
}

static tt_status io_error(const char *what, const char *path) {
  return tt_error(TT_UNAVAILABLE, "%s %s: %s", what, path, strerror(errno));
}

static bool write_all(int fd, const void *data, size_t size) {
  for (const char *rest = data; size;) {
    ssize_t written = write(fd, rest, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    rest += written, size -= (size_t)written;
  }
  return true;
}

// ---- files -----------------------------------------------------------------------------------------------------------

static tt_status read_all(int fd, const char *path, tt_string *out) {
  char block[1 << 14];
  for (;;) {
    ssize_t size = read(fd, block, sizeof block);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return io_error("could not read", path);
    if (size == 0) return tt_string_status(out);
    tt_string_append_n(out, block, (size_t)size);
  }
}

static double seconds_of(struct timespec time) { return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec; }

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return seconds_of(time);
}

// The difference counts whichever way it goes: a time from before a clock was set back is not kept for ever.
static void note_use(const tt_disk *disk, int fd, const struct stat *file) {
  double age = now() - seconds_of(file->st_mtim);
  if (age >= -disk->touch_seconds && age <= disk->touch_seconds) return;
  const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
  // In a folder of another user it cannot be noted, which costs the entry its place in the order and no more.
  if (futimens(fd, times) != 0) return;
}

static tt_status get_open(const tt_disk *disk, int fd, const char *path, bool touch, tt_string *out) {
  struct stat file;
  if (fstat(fd, &file) != 0) return io_error("could not read", path);
  if (!S_ISREG(file.st_mode)) return tt_error(TT_UNAVAILABLE, "%s is not a file", path);
  if (file.st_size > disk->limit) return tt_error(TT_UNAVAILABLE, "%s is larger than the whole cache may be", path);
  TT_TRY(read_all(fd, path, out));
  if (touch) note_use(disk, fd, &file);
  return TT_SUCCESS;
}

tt_status tt_disk_get(const tt_disk *disk, const char *sub, const char *name, bool touch, tt_string *out,
                      bool *out_found) {
  tt_string path = TT_STRING_INIT;
  *out_found = false;
  tt_status status = path_of(disk, sub, name, &path);
  if (!status) {
    // O_NONBLOCK: a pipe of that name must not hold the process up.
    int fd = open(path.data, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) {
      *out_found = true;
      status = get_open(disk, fd, path.data, touch, out);
      close(fd);
    } else if (errno != ENOENT && errno != ENOTDIR) {
      *out_found = true;
      status = io_error("could not read", path.data);
    }
  }
  tt_string_free(&path);
  return status;
}

// Fills and renames the new file `temporary`, whose lock tells that its writer lives.
static bool put_open(int fd, const char *temporary, const char *path, const void *data, size_t size) {
  // Where there are no locks, a sweep cannot take any either and leaves the file alone.
  int locked = flock(fd, LOCK_EX | LOCK_NB);
  (void)locked;
  if (write_all(fd, data, size) && rename(temporary, path) == 0) return true;
  int reason = errno;
  unlink(temporary);
  errno = reason;
  return false;
}

// A name in tmp/ that no other writer has.
static tt_status temporary_path(const tt_disk *disk, tt_string *out) {
  static _Atomic uint64_t count = 0;
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, GRND_NONBLOCK) < 0) number = (uint64_t)getpid() << 32;
  number += atomic_fetch_add(&count, 1);
  tt_string_printf(out, "%s/tmp/%ld-%016llx", disk->folder, (long)getpid(), (unsigned long long)number);
  return tt_string_status(out);
}

static tt_status put(const tt_disk *disk, const char *path, const char *temporary, const void *data, size_t size) {
  bool done = false;
  // Once more if the file vanished: a sweep may come between its creation and its lock, a clearing at any time.
  for (int attempt = 0; !done && attempt < 2; ++attempt) {
    int fd = open_in(disk, temporary, O_WRONLY | O_CREAT | O_EXCL);
    if (fd < 0) break;
    done = put_open(fd, temporary, path, data, size);
    int reason = errno;
    close(fd);
    errno = reason;
    if (!done && reason != ENOENT) break;
  }
  return done ? TT_SUCCESS : io_error("could not write", path);
}

tt_status tt_disk_put(const tt_disk *disk, const char *sub, const char *name, const void *data, size_t size) {
  tt_string path = TT_STRING_INIT, temporary = TT_STRING_INIT;
  tt_status status = path_of(disk, sub, name, &path);
  if (!status) status = temporary_path(disk, &temporary);
  if (!status) status = put(disk, path.data, temporary.data, data, size);
  tt_string_free(&temporary);
  tt_string_free(&path);
  return status;
}

void tt_disk_remove(const tt_disk *disk, const char *sub, const char *name) {
  tt_string path = TT_STRING_INIT;
  tt_status status = path_of(disk, sub, name, &path);
  if (!status && unlink(path.data) != 0) rmdir(path.data); // someone may have made a folder of that name
  tt_status_free(status);
  tt_string_free(&path);
}

// ---- locks -----------------------------------------------------------------------------------------------------------

static double monotonic(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return seconds_of(time);
}

// Is the locked file still the one that has the name? Its holder removes the file before it lets go.
static bool still_named(int fd, const char *path) {
  struct stat held, named;
  return fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

static int lock_path(const tt_disk *disk, const char *path) {
  double deadline = monotonic() + disk->wait_seconds;
  long pause = 200000; // nanoseconds
  int fd = -1;
  for (;;) {
    if (fd < 0) fd = open_in(disk, path, O_RDWR | O_CREAT);
    if (fd < 0) return -1;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
      if (still_named(fd, path)) return fd;
      close(fd);
      fd = -1;
      continue;
    }
    if ((errno != EWOULDBLOCK && errno != EINTR) || monotonic() > deadline) break;
    nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
    if (pause < 20000000) pause *= 2;
  }
  close(fd);
  return -1;
}

int tt_disk_lock(const tt_disk *disk, const char *name) {
  tt_string path = TT_STRING_INIT;
  tt_status status = path_of(disk, "locks", name, &path);
  int lock = status ? -1 : lock_path(disk, path.data);
  tt_status_free(status);
  tt_string_free(&path);
  return lock;
}

// The lock belongs to the open file, which a child that was forked meanwhile shares: closing alone would not end it.
static void unlock(int fd) {
  flock(fd, LOCK_UN);
  close(fd);
}

void tt_disk_unlock(const tt_disk *disk, const char *name, int lock) {
  if (lock < 0) return;
  tt_disk_remove(disk, "locks", name);
  unlock(lock);
}

// opendir() with the descriptor; NULL with errno set where there is none.
static DIR *open_folder(const char *path, int *out_fd) {
  DIR *folder = opendir(path);
  *out_fd = folder ? dirfd(folder) : -1;
  if (folder && *out_fd < 0) {
    closedir(folder);
    errno = EBADF;
    return NULL;
  }
  return folder;
}

static void sweep_folder(const tt_disk *disk, const char *sub) {
  tt_string path = TT_STRING_INIT;
  tt_status status = path_of(disk, sub, NULL, &path);
  int at = -1;
  DIR *folder = status ? NULL : open_folder(path.data, &at);
  for (const struct dirent *file; folder && (file = readdir(folder));) {
    if (file->d_name[0] == '.') continue;
    int fd = openat(at, file->d_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(at, file->d_name, 0);
    unlock(fd);
  }
  if (folder) closedir(folder);
  tt_status_free(status);
  tt_string_free(&path);
}

void tt_disk_sweep(const tt_disk *disk) {
  sweep_folder(disk, "tmp");
  sweep_folder(disk, "locks");
}

// ---- all entries -----------------------------------------------------------------------------------------------------

tt_status tt_disk_each(const tt_disk *disk,
                       void (*visit)(void *user, int folder, const char *name, const struct stat *file), void *user) {
  tt_string path = TT_STRING_INIT;
  tt_status status = path_of(disk, "programs", NULL, &path);
  int at = -1;
  DIR *folder = status ? NULL : open_folder(path.data, &at);
  if (!status && !folder && errno != ENOENT) status = io_error("could not read", path.data);
  for (const struct dirent *entry; folder && (entry = readdir(folder));) {
    struct stat file;
    if (tt_disk_is_name(entry->d_name) && fstatat(at, entry->d_name, &file, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(file.st_mode))
      visit(user, at, entry->d_name, &file);
  }
  if (folder) closedir(folder);
  tt_string_free(&path);
  return status;
}

typedef struct found {
  struct timespec used;
  int64_t bytes;
  char name[TT_SHA256_TEXT_SIZE];
} found;

typedef struct inventory {
  const tt_disk *disk;
  struct timespec now;
  found *items;
  size_t count, capacity;
  int64_t bytes;
  bool failed;
} inventory;

// When the entry was used. A time that is still to come is from before the clock was set back: it becomes now, on disk too, so
// that the entry ages as others do. As it stands it would outlive all that are in use.
static struct timespec last_use(const inventory *all, int folder, const char *name, const struct stat *file) {
  if (seconds_of(file->st_mtim) - seconds_of(all->now) <= all->disk->touch_seconds) return file->st_mtim;
  const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
  // What cannot be noted, in a folder of another user, is found out again by the next scan.
  if (utimensat(folder, name, times, AT_SYMLINK_NOFOLLOW) != 0) return all->now;
  return all->now;
}

static void note_found(void *user, int folder, const char *name, const struct stat *file) {
  inventory *all = user;
  if (all->count == all->capacity && !all->failed) {
    size_t capacity = all->capacity ? 2 * all->capacity : 256;
    found *items = tt_realloc_array(all->items, capacity, sizeof *items);
    all->failed = !items;
    if (items) all->items = items, all->capacity = capacity;
  }
  all->bytes += file->st_size;
  if (all->failed) return;
  found *item = &all->items[all->count++];
  item->used = last_use(all, folder, name, file);
  item->bytes = file->st_size;
  memcpy(item->name, name, sizeof item->name);
}

static int by_use(const void *a, const void *b) {
  const found *x = a, *y = b;
  if (x->used.tv_sec != y->used.tv_sec) return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
  if (x->used.tv_nsec != y->used.tv_nsec) return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
  return strcmp(x->name, y->name);
}

// Returns the bytes that are left. Another process may remove the same files.
static int64_t evict(const tt_disk *disk) {
  inventory all = {.disk = disk};
  clock_gettime(CLOCK_REALTIME, &all.now);
  tt_status_free(tt_disk_each(disk, note_found, &all));
  if (all.bytes > disk->limit && !all.failed && all.count) {
    qsort(all.items, all.count, sizeof *all.items, by_use);
    for (size_t i = 0; i < all.count && all.bytes > disk->limit - disk->limit / 8; ++i) {
      tt_disk_remove(disk, "programs", all.items[i].name);
      all.bytes -= all.items[i].bytes;
    }
  }
  tt_free(all.items);
  return all.bytes;
}

// ---- counts ----------------------------------------------------------------------------------------------------------

typedef struct usage {
  int64_t bytes, hits; // bytes < 0: not known
} usage;

static usage read_usage(int fd) {
  char text[64] = "";
  long long bytes = -1, hits = 0;
  ssize_t size = pread(fd, text, sizeof text - 1, 0);
  if (size <= 0 || sscanf(text, "%lld %lld", &bytes, &hits) != 2 || bytes < 0 || hits < 0) return (usage){-1, 0};
  return (usage){bytes, hits};
}

static void write_usage(int fd, usage u) {
  char text[64];
  int size = snprintf(text, sizeof text, "%20lld %20lld\n", (long long)u.bytes, (long long)u.hits);
  // A count that is not written is counted anew by the next scan.
  if (pwrite(fd, text, (size_t)size, 0) != size && ftruncate(fd, 0) != 0) return;
}

// The file of the counts, locked; -1 if it cannot be had soon, since counts are not worth waiting for.
static int open_usage(const tt_disk *disk) {
  tt_string path = TT_STRING_INIT;
  tt_string_printf(&path, "%s/usage", disk->folder);
  int fd = path.failed ? -1 : open_in(disk, path.data, O_RDWR | O_CREAT);
  tt_string_free(&path);
  for (int i = 0; fd >= 0 && i < 50; ++i) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  if (fd >= 0) close(fd);
  return -1;
}

void tt_disk_account(const tt_disk *disk, int64_t bytes, int64_t hits) {
  int fd = open_usage(disk);
  if (fd < 0) return;
  usage u = read_usage(fd);
  u.hits += hits;
  if (u.bytes >= 0) u.bytes += bytes;
  if (u.bytes < 0 || u.bytes > disk->limit) u.bytes = evict(disk);
  write_usage(fd, u);
  unlock(fd);
}

int64_t tt_disk_hits(const tt_disk *disk) {
  tt_string text = TT_STRING_INIT;
  tt_string_printf(&text, "%s/usage", disk->folder);
  int fd = text.failed ? -1 : open(text.data, O_RDONLY | O_CLOEXEC);
  tt_string_free(&text);
  if (fd < 0) return 0;
  usage u = read_usage(fd);
  close(fd);
  return u.hits;
}

// ---- clearing --------------------------------------------------------------------------------------------------------

typedef struct clearing {
  double older_than, now;
  int64_t entries, bytes, left;
} clearing;

static void clear_entry(void *user, int folder, const char *name, const struct stat *file) {
  clearing *c = user;
  if ((c->older_than < 0 || c->now - seconds_of(file->st_mtim) > c->older_than) && unlinkat(folder, name, 0) == 0) {
    c->entries++;
    c->bytes += file->st_size;
  } else {
    c->left += file->st_size;
  }
}

static void clear_misses(const tt_disk *disk) {
  tt_string path = TT_STRING_INIT;
  tt_status status = path_of(disk, "misses", NULL, &path);
  int at = -1;
  DIR *folder = status ? NULL : open_folder(path.data, &at);
  for (const struct dirent *file; folder && (file = readdir(folder));)
    if (strstr(file->d_name, ".mlir")) unlinkat(at, file->d_name, 0);
  if (folder) closedir(folder);
  tt_status_free(status);
  tt_string_free(&path);
}

tt_status tt_disk_clear(const tt_disk *disk, double older_than, int64_t *out_entries, int64_t *out_bytes) {
  clearing c = {.older_than = older_than, .now = now()};
  tt_disk_sweep(disk);
  if (older_than < 0) clear_misses(disk);
  TT_TRY(tt_disk_each(disk, clear_entry, &c));
  *out_entries = c.entries;
  *out_bytes = c.bytes;
  int fd = is_folder(disk->folder) ? open_usage(disk) : -1;
  if (fd >= 0) {
    usage u = read_usage(fd);
    write_usage(fd, (usage){c.left, older_than < 0 ? 0 : u.hits});
    unlock(fd);
  }
  return TT_SUCCESS;
}
