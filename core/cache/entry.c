// entry.c - see entry.h.
#include "cache/entry.h"

#include <string.h>

static const char magic[8] = {'t', 't', '-', 'p', 'r', 'o', 'g', '\n'};

enum {
  VERSION = 8,
  DESCRIPTION_SIZE = 12,
  PAYLOAD_SIZE = 16,
  CREATED = 24,
  MICROSECONDS = 32,
  KEY = 40,
  PAYLOAD_HASH = 72
};

static void store(uint8_t *bytes, uint64_t value, int size) {
  for (int i = 0; i < size; ++i, value >>= 8) bytes[i] = (uint8_t)value;
}

static uint64_t load(const uint8_t *bytes, int size) {
  uint64_t value = 0;
  for (int i = size - 1; i >= 0; --i) value = value << 8 | bytes[i];
  return value;
}

void tt_entry_write(const tt_entry *entry, tt_string *out) {
  size_t description_size =
      entry->description_size < TT_ENTRY_DESCRIPTION_MAX ? entry->description_size : TT_ENTRY_DESCRIPTION_MAX;
  uint8_t head[TT_ENTRY_FIXED_SIZE], digest[TT_SHA256_SIZE];
  memcpy(head, magic, sizeof magic);
  store(head + VERSION, TT_ENTRY_VERSION, 4);
  store(head + DESCRIPTION_SIZE, description_size, 4);
  store(head + PAYLOAD_SIZE, entry->payload_size, 8);
  store(head + CREATED, (uint64_t)entry->created, 8);
  store(head + MICROSECONDS, (uint64_t)entry->compile_microseconds, 8);
  memcpy(head + KEY, entry->key, TT_SHA256_SIZE);
  tt_sha256_of(entry->payload, entry->payload_size, head + PAYLOAD_HASH);
  tt_sha256 hash;
  tt_sha256_start(&hash);
  tt_sha256_add(&hash, head, sizeof head);
  tt_sha256_add(&hash, entry->description, description_size);
  tt_sha256_finish(&hash, digest);
  tt_string_append_n(out, (const char *)head, sizeof head);
  tt_string_append_n(out, entry->description, description_size);
  tt_string_append_n(out, (const char *)digest, sizeof digest);
  tt_string_append_n(out, entry->payload, entry->payload_size);
}

const char *tt_entry_read_head(const void *bytes, size_t size, size_t file_size, tt_entry *out_entry) {
  const uint8_t *head = bytes;
  if (size < sizeof magic) return "truncated";
  if (memcmp(head, magic, sizeof magic) != 0) return "not an entry of this cache";
  if (size < TT_ENTRY_FIXED_SIZE) return "truncated";
  if (load(head + VERSION, 4) != TT_ENTRY_VERSION) return "of another version";
  size_t description_size = load(head + DESCRIPTION_SIZE, 4);
  if (description_size > TT_ENTRY_DESCRIPTION_MAX) return "damaged";
  size_t hashed = TT_ENTRY_FIXED_SIZE + description_size, head_size = hashed + TT_SHA256_SIZE;
  if (size < head_size) return "truncated";
  uint8_t digest[TT_SHA256_SIZE];
  tt_sha256_of(head, hashed, digest);
  if (memcmp(digest, head + hashed, sizeof digest) != 0) return "damaged";
  uint64_t payload_size = load(head + PAYLOAD_SIZE, 8);
  if (file_size < head_size || file_size - head_size < payload_size) return "truncated";
  if (file_size - head_size > payload_size) return "longer than it should be";
  *out_entry = (tt_entry){.created = (int64_t)load(head + CREATED, 8),
                          .compile_microseconds = (int64_t)load(head + MICROSECONDS, 8),
                          .description = (const char *)head + TT_ENTRY_FIXED_SIZE,
                          .description_size = description_size,
                          .payload_size = payload_size};
  memcpy(out_entry->key, head + KEY, TT_SHA256_SIZE);
  return NULL;
}

const char *tt_entry_read(const void *bytes, size_t size, const uint8_t *key, tt_entry *out_entry) {
  tt_entry entry;
  const char *fault = tt_entry_read_head(bytes, size, size, &entry);
  if (fault) return fault;
  if (key && memcmp(entry.key, key, TT_SHA256_SIZE) != 0) return "of another program";
  const uint8_t *payload = (const uint8_t *)bytes + (size - entry.payload_size);
  uint8_t digest[TT_SHA256_SIZE];
  tt_sha256_of(payload, entry.payload_size, digest);
  if (memcmp(digest, (const uint8_t *)bytes + PAYLOAD_HASH, sizeof digest) != 0) return "damaged";
  entry.payload = payload;
  *out_entry = entry;
  return NULL;
}
