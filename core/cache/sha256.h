// sha256.h - the hash that names programs and guards their files (FIPS 180-4).
#ifndef TT_CACHE_SHA256_H_
#define TT_CACHE_SHA256_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TT_SHA256_SIZE = 32, TT_SHA256_TEXT_SIZE = 65 };

// A hash in progress. Owned by one thread; holds no memory.
typedef struct tt_sha256 {
  uint32_t state[8];
  uint64_t size; // bytes so far
  uint8_t block[64];
} tt_sha256;

void tt_sha256_start(tt_sha256 *hash);
void tt_sha256_add(tt_sha256 *hash, const void *data, size_t size);
void tt_sha256_finish(tt_sha256 *hash, uint8_t out_digest[TT_SHA256_SIZE]);

// All of it at once.
void tt_sha256_of(const void *data, size_t size, uint8_t out_digest[TT_SHA256_SIZE]);
// The digest in lower-case hexadecimal digits, with a final NUL.
void tt_sha256_text(const uint8_t digest[TT_SHA256_SIZE], char out_text[TT_SHA256_TEXT_SIZE]);

// Tests only: whether to use the CPU's instructions for it, where it has them.
void tt_sha256_use_instructions(bool use);

#endif // TT_CACHE_SHA256_H_
