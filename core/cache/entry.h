// entry.h - the form of a cached program as bytes: the same in a file and in a remote store.
//
// All numbers are little-endian:
//
//   bytes   what
//   0..7    "tt-prog\n"
//   8..11   format version
//   12..15  size of the description
//   16..23  size of the payload
//   24..31  created, seconds since 1970
//   32..39  microseconds that the compilation took
//   40..71  key: SHA-256 of everything that decides the code (origin.h)
//   72..103 SHA-256 of the payload
//   then    the description: text for people
//   then    SHA-256 of all before it
//   then    the payload: what the plugin made of the executable
//
// So a change of any byte shows, and the head can be read and trusted without the payload.
#ifndef TT_CACHE_ENTRY_H_
#define TT_CACHE_ENTRY_H_

#include <stddef.h>
#include <stdint.h>

#include "base/string.h"
#include "cache/sha256.h"

// Changes with the layout above and with anything else that makes old entries useless; part of every key.
#define TT_ENTRY_VERSION 1

enum { TT_ENTRY_FIXED_SIZE = 104, TT_ENTRY_DESCRIPTION_MAX = 1024 };

typedef struct tt_entry {
  uint8_t key[TT_SHA256_SIZE];
  int64_t created, compile_microseconds;
  const char *description; // without a final NUL; beyond the maximum it is cut
  size_t description_size;
  const void *payload;
  size_t payload_size;
} tt_entry;

void tt_entry_write(const tt_entry *entry, tt_string *out);

// Reads what tt_entry_write wrote; the pointers go into `bytes`. Returns what is wrong with it, as a word or two for a
// message, NULL if it is sound. `key`: the entry must be of this program; NULL: of any.
const char *tt_entry_read(const void *bytes, size_t size, const uint8_t *key, tt_entry *out_entry);
// The same of the head alone: `size` bytes are there, of a file of `file_size`. The payload's pointer is NULL.
const char *tt_entry_read_head(const void *bytes, size_t size, size_t file_size, tt_entry *out_entry);

#endif // TT_CACHE_ENTRY_H_
