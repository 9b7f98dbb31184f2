// map.h - a hash map from byte strings to pointers.
//
// Open addressing, linear probing, power-of-two size. Keys are copied in. No locking: the owner's lock covers it.
#ifndef TT_BASE_MAP_H_
#define TT_BASE_MAP_H_

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tt_map_entry {
  uint64_t hash;
  void *key; // NULL = free slot
  size_t key_size;
  void *value;
} tt_map_entry;

typedef struct tt_map {
  tt_map_entry *entries;
  size_t capacity, count;
} tt_map;

#define TT_MAP_INIT ((tt_map){NULL, 0, 0})

// 64-bit hash of `size` bytes; not for hostile input and not stable across versions.
uint64_t tt_hash(const void *data, size_t size);

// The value, or NULL. `hash` is tt_hash of the key.
void *tt_map_get(const tt_map *map, uint64_t hash, const void *key, size_t key_size);
// Inserts or replaces; *out_old (may be NULL) gets the replaced value or NULL. `value` must not be NULL.
tt_status tt_map_set(tt_map *map, uint64_t hash, const void *key, size_t key_size, void *value, void **out_old);
// Calls visit for each entry in no particular order.
void tt_map_each(const tt_map *map, void (*visit)(void *user, const tt_map_entry *entry), void *user);
// Frees keys and table; the values are the caller's.
void tt_map_free(tt_map *map);

#endif // TT_BASE_MAP_H_
