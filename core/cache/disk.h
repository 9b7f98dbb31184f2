// disk.h - the folder of the disk tier, shared by all processes of a user.
//
//   programs/NAME   one entry (entry.h) each; the name is the key in hexadecimal digits, the time of change that of the last use
//   plugins/NAME    what is known of a plugin file (origin.h)
//   misses/NAME     texts of programs, for TT_CACHE_DUMP_ON_MISS
//   locks/NAME      exists while a process compiles that program, and is locked by it (flock)
//   tmp/NAME        a file being written, locked by its writer; it is renamed to its place when it is whole
//   usage           bytes of all entries, about, and hits
//
// A process may end at any moment: what it was writing stays in tmp/ unlocked, what it held in locks/ is unlocked, and the next
// process removes both. No clock is compared for that. A folder may vanish at any moment too, and is made again.
//
// Any thread may call. Failures are statuses (TT_UNAVAILABLE, TT_OUT_OF_MEMORY) for the caller to tell or to swallow.
#ifndef TT_CACHE_DISK_H_
#define TT_CACHE_DISK_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/status.h"
#include "base/string.h"

typedef struct tt_disk {
  const char *folder;
  int64_t limit; // bytes of programs/
  double wait_seconds, touch_seconds;
} tt_disk;

// The folder that the environment names; empty where there is none.
tt_status tt_disk_default_folder(tt_string *out);

// Appends the file's bytes; *out_found false and no failure where there is none. `touch`: note the use.
tt_status tt_disk_get(const tt_disk *disk, const char *sub, const char *name, bool touch, tt_string *out,
                      bool *out_found);
// Writes a file that is whole or not there, replacing an older one.
tt_status tt_disk_put(const tt_disk *disk, const char *sub, const char *name, const void *data, size_t size);
void tt_disk_remove(const tt_disk *disk, const char *sub, const char *name);

// Waits until no other process or thread holds the name, at most wait_seconds. Returns what tt_disk_unlock takes, -1 if the
// time is over or there are no locks here: then go on without.
int tt_disk_lock(const tt_disk *disk, const char *name);
void tt_disk_unlock(const tt_disk *disk, const char *name, int lock);

// Adds to the counts; if the entries have outgrown the limit, removes the least recently used until an eighth is free. The
// folder is read then only, so its cost spreads over the bytes of that eighth.
void tt_disk_account(const tt_disk *disk, int64_t bytes, int64_t hits);
int64_t tt_disk_hits(const tt_disk *disk);

// Removes what dead processes left in tmp/ and locks/.
void tt_disk_sweep(const tt_disk *disk);

// Visits each entry; `folder` is programs/ as a descriptor. A missing folder has none.
tt_status tt_disk_each(const tt_disk *disk,
                       void (*visit)(void *user, int folder, const char *name, const struct stat *file), void *user);
// Removes entries last used more than `older_than` seconds ago (negative: all, and misses/) and sets the counts right.
tt_status tt_disk_clear(const tt_disk *disk, double older_than, int64_t *out_entries, int64_t *out_bytes);

bool tt_disk_is_name(const char *name); // 64 lower-case hexadecimal digits

#endif // TT_CACHE_DISK_H_
