// config.h - what the compile cache is told from outside: folder, limits, mode, the remote store, and who hears of trouble.
//
// The one header of this folder that C++ may include. Before tt_cache_configure the cache keeps programs in memory alone.
#ifndef TT_CACHE_CONFIG_H_
#define TT_CACHE_CONFIG_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// In the order of the words of TORCH_TPU_CACHE_MODE.
typedef enum tt_cache_mode {
  TT_CACHE_NORMAL,
  TT_CACHE_ONLY,        // a program that is in no tier is an error that names it
  TT_CACHE_DUMP_ON_MISS // its text goes to FOLDER/misses, and it is compiled
} tt_cache_mode;

typedef struct tt_cache_config {
  const char *folder; // of the disk tier; copied. "off": none; "": $XDG_CACHE_HOME/torch_tpu, else ~/.cache/torch_tpu
  int64_t limit;      // bytes of entries, beyond which the least recently used go
  tt_cache_mode mode;
  double wait_seconds;  // how long to wait for another process that compiles the same program
  double touch_seconds; // a hit notes the time of use if the last note is older
} tt_cache_config;

// Once, before the first program; a later call replaces everything (tests do).
tt_status tt_cache_configure(const tt_cache_config *config);

// Trouble that a user should hear of and that stops nothing. Each kind is told once per process.
typedef enum tt_cache_trouble {
  TT_CACHE_NO_FOLDER,   // no HOME
  TT_CACHE_BAD_ENTRY,   // truncated, flipped, foreign or unreadable, or refused by the plugin; it is removed
  TT_CACHE_NOT_WRITTEN, // full or read-only disk
  TT_CACHE_BAD_REMOTE,  // the remote store gave an entry that is not sound
  TT_CACHE_TROUBLE_COUNT
} tt_cache_trouble;

// `warn` gets whole sentences, from any thread, without a lock held; NULL: a line on stderr.
void tt_cache_set_warner(void (*warn)(const char *message));

// The third tier. `name` is an entry's name, 64 hexadecimal digits. Both are called from any thread without a lock held.
typedef struct tt_cache_remote {
  // Calls accept(sink, bytes, size) once if the store has the entry. Blocks, so it must have a time limit of its own.
  void (*fetch)(const char *name, void (*accept)(void *sink, const void *bytes, size_t size), void *sink);
  // Takes a copy and returns at once.
  void (*store)(const char *name, const void *bytes, size_t size);
} tt_cache_remote;
void tt_cache_set_remote(const tt_cache_remote *remote); // copied; NULL: none

// --- looking into the disk tier; none of these needs a plugin ---------------------------------------------------------------

typedef struct tt_cache_info {
  const char *folder;     // "" when the tier is off; lives until the next tt_cache_configure
  const char *off_reason; // why it is off, "" when it is on
  int64_t entries, bytes, limit;
  int64_t hits; // by all processes since the folder was made or cleared
} tt_cache_info;
tt_status tt_cache_get_info(tt_cache_info *out_info);

typedef struct tt_cache_item {
  const char *name, *description; // they live during the visit
  int64_t bytes;
  double created, used;   // seconds since 1970
  double compile_seconds; // what the entry saves
} tt_cache_item;
// Visits every entry whose head is sound, in no order.
tt_status tt_cache_each(void (*visit)(void *user, const tt_cache_item *item), void *user);

// Removes the entries that were last used more than `older_than_seconds` ago; all, and the dumped programs, if negative.
tt_status tt_cache_clear_folder(double older_than_seconds, int64_t *out_entries, int64_t *out_bytes);

// Puts an entry from elsewhere into the folder; *out_kept tells whether it was sound and new.
tt_status tt_cache_import(const char *name, const void *bytes, size_t size, bool *out_kept);

// Writes counts that are still in memory. Call it before the process exits.
void tt_cache_flush(void);

#ifdef __cplusplus
}
#endif
#endif // TT_CACHE_CONFIG_H_
