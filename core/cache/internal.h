// internal.h - what config.c and cache.c share: the configuration in force, and telling the user.
#ifndef TT_CACHE_INTERNAL_H_
#define TT_CACHE_INTERNAL_H_

#include <stdbool.h>

#include "base/status.h"
#include "cache/config.h"
#include "cache/disk.h"

// NULL: the disk tier is off.
const tt_disk *tt_cache_disk(void);
tt_cache_mode tt_cache_get_mode(void);
const char *tt_cache_off_reason(void); // "" when it is on
// Notes that this process's plugin cannot keep programs; for tt_cache_get_info. Static text or text that lives for ever.
void tt_cache_note_refusal(const char *reason);
tt_cache_remote tt_cache_get_remote(void); // NULL functions: none

// Tells of trouble, unless that kind was told before.
void tt_cache_warn(tt_cache_trouble trouble, const char *format, ...) __attribute__((format(printf, 2, 3)));
// The same of a failure, which is freed; of NULL and of lack of memory nothing is said.
void tt_cache_warn_of(tt_cache_trouble trouble, tt_status failure);

// Counts a hit or the bytes of a new entry.
void tt_cache_count_hit(const tt_disk *disk);
void tt_cache_count_bytes(const tt_disk *disk, int64_t bytes);

// Writes an entry's bytes, tidying up first if it is this process's first.
tt_status tt_cache_keep(const tt_disk *disk, const char *name, const void *bytes, size_t size);

#endif // TT_CACHE_INTERNAL_H_
