// map.c - the hash map: open addressing, linear probing, at most three quarters full.
#include "base/map.h"

#include <stdbool.h>
#include <string.h>

#include "base/memory.h"

#define MAP_FIRST_CAPACITY ((size_t)16)

// Folds the 128-bit product: each input bit reaches the whole output (the mixing step of wyhash, public domain).
static uint64_t mix(uint64_t a, uint64_t b) {
  unsigned __int128 product = (unsigned __int128)a * b;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t load_u64(const unsigned char *data) {
  uint64_t value;
  memcpy(&value, data, sizeof(value));
  return value;
}

static uint64_t load_u32(const unsigned char *data) {
  uint32_t value;
  memcpy(&value, data, sizeof(value));
  return value;
}

uint64_t tt_hash(const void *data, size_t size) {
  static const uint64_t k0 = 0xa0761d6478bd642fu, k1 = 0xe7037ed1a0b428dbu, k2 = 0x8ebc6af09c88c6e3u;
  const unsigned char *p = data;
  uint64_t hash = k0 ^ size;
  size_t left = size;
  for (; left > 16; left -= 16, p += 16) hash = mix(load_u64(p) ^ k1, load_u64(p + 8) ^ hash);

  // The last 0 to 16 bytes as two words, which may overlap.
  uint64_t a = 0, b = 0;
  if (left >= 8) {
    a = load_u64(p);
    b = load_u64(p + left - 8);
  } else if (left >= 4) {
    a = load_u32(p);
    b = load_u32(p + left - 4);
  } else if (left > 0) {
    a = (uint64_t)p[0] << 16 | (uint64_t)p[left / 2] << 8 | p[left - 1];
  }
  return mix(k2 ^ size, mix(a ^ k1, b ^ hash));
}

static bool entry_matches(const tt_map_entry *entry, uint64_t hash, const void *key, size_t key_size) {
  if (entry->hash != hash || entry->key_size != key_size) return false;
  return key_size == 0 || memcmp(entry->key, key, key_size) == 0;
}

// The entry of the key, or the free slot where it belongs. The table must have a free slot.
static tt_map_entry *find_slot(tt_map_entry *entries, size_t capacity, uint64_t hash, const void *key,
                               size_t key_size) {
  size_t mask = capacity - 1;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    tt_map_entry *entry = &entries[i];
    if (entry->key == NULL || entry_matches(entry, hash, key, key_size)) return entry;
  }
}

void *tt_map_get(const tt_map *map, uint64_t hash, const void *key, size_t key_size) {
  if (map->count == 0) return NULL;
  return find_slot(map->entries, map->capacity, hash, key, key_size)->value;
}

static tt_status grow(tt_map *map) {
  size_t capacity = map->capacity != 0 ? map->capacity * 2 : MAP_FIRST_CAPACITY;
  void *block = NULL;
  TT_TRY(tt_allocate(capacity, sizeof(tt_map_entry), &block));
  tt_map_entry *entries = block;
  for (size_t i = 0; i < map->capacity; i++) {
    const tt_map_entry *old = &map->entries[i];
    if (old->key != NULL) *find_slot(entries, capacity, old->hash, old->key, old->key_size) = *old;
  }
  tt_free(map->entries);
  map->entries = entries;
  map->capacity = capacity;
  return TT_SUCCESS;
}

tt_status tt_map_set(tt_map *map, uint64_t hash, const void *key, size_t key_size, void *value, void **out_old) {
  if (value == NULL) return tt_internal_error("a map cannot hold NULL");
  if (map->count + 1 > map->capacity / 4 * 3) TT_TRY(grow(map));

  tt_map_entry *entry = find_slot(map->entries, map->capacity, hash, key, key_size);
  void *old = entry->value;
  if (entry->key == NULL) {
    void *copy = tt_malloc(key_size);
    if (copy == NULL) return tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted: a key of %zu bytes", key_size);
    if (key_size != 0) memcpy(copy, key, key_size);
    *entry = (tt_map_entry){.hash = hash, .key = copy, .key_size = key_size};
    map->count++;
  }
  entry->value = value;
  if (out_old != NULL) *out_old = old;
  return TT_SUCCESS;
}

void tt_map_each(const tt_map *map, void (*visit)(void *user, const tt_map_entry *entry), void *user) {
  for (size_t i = 0; i < map->capacity; i++) {
    if (map->entries[i].key != NULL) visit(user, &map->entries[i]);
  }
}

void tt_map_free(tt_map *map) {
  for (size_t i = 0; i < map->capacity; i++) tt_free(map->entries[i].key);
  tt_free(map->entries);
  *map = TT_MAP_INIT;
}
