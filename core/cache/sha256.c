// sha256.c - see sha256.h.
#include "cache/sha256.h"

#include <stdatomic.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

// The first 32 bits of the fractions of the cube roots of the first 64 primes.
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate_right(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

static uint32_t load_big_endian(const uint8_t *bytes) {
  uint32_t word;
  memcpy(&word, bytes, sizeof word);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  word = __builtin_bswap32(word);
#endif
  return word;
}

static void store_big_endian(uint8_t *bytes, uint64_t value, int size) {
  for (int i = size - 1; i >= 0; --i, value >>= 8) bytes[i] = (uint8_t)value;
}

static void mix_plain(uint32_t state[8], const uint8_t *block) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) w[i] = load_big_endian(block + 4 * i);
  for (int i = 16; i < 64; ++i) {
    uint32_t before = w[i - 15], last = w[i - 2];
    uint32_t s0 = rotate_right(before, 7) ^ rotate_right(before, 18) ^ before >> 3;
    uint32_t s1 = rotate_right(last, 17) ^ rotate_right(last, 19) ^ last >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
  uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
  for (int i = 0; i < 64; ++i) {
    uint32_t sum1 = rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25);
    uint32_t t1 = h + sum1 + ((e & f) ^ (~e & g)) + round_constants[i] + w[i];
    uint32_t sum0 = rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22);
    uint32_t t2 = sum0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1;
    d = c, c = b, b = a, a = t1 + t2;
  }
  const uint32_t mixed[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state[i] += mixed[i];
}

// ---- the instructions of x86 for it ------------------------------------------------------------------------------------
//
// Several times as fast, which matters for a plugin of 200 MB. They keep the state as ABEF and CDGH, two rounds each step.

#if defined(__x86_64__)
__attribute__((target("sha,sse4.1,ssse3"))) static void mix_fast(uint32_t state[8], const uint8_t *block) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i abef = _mm_set_epi32((int)state[0], (int)state[1], (int)state[4], (int)state[5]);
  __m128i cdgh = _mm_set_epi32((int)state[2], (int)state[3], (int)state[6], (int)state[7]);
  const __m128i abef_before = abef, cdgh_before = cdgh;
  __m128i w[4] = {abef, abef, abef, abef}; // the last sixteen words, oldest first; at first unused
  for (int i = 0; i < 16; ++i) {
    __m128i next;
    if (i < 4) {
      next = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(block + (size_t)16 * (size_t)i)), swap);
    } else {
      __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[0], w[1]), _mm_alignr_epi8(w[3], w[2], 4));
      next = _mm_sha256msg2_epu32(sum, w[3]);
    }
    w[0] = w[1], w[1] = w[2], w[2] = w[3], w[3] = next;
    __m128i added = _mm_add_epi32(next, _mm_loadu_si128((const __m128i *)(round_constants + (size_t)4 * (size_t)i)));
    cdgh = _mm_sha256rnds2_epu32(cdgh, abef, added);
    abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(added, 0x0e));
  }
  uint32_t out[8];
  _mm_storeu_si128((__m128i *)out, _mm_add_epi32(abef, abef_before));
  _mm_storeu_si128((__m128i *)(out + 4), _mm_add_epi32(cdgh, cdgh_before));
  // Lowest word first: F, E, B, A and H, G, D, C.
  const uint32_t mixed[8] = {out[3], out[2], out[7], out[6], out[1], out[0], out[5], out[4]};
  memcpy(state, mixed, sizeof mixed);
}

static bool has_instructions(void) {
  unsigned a, b, c, d;
  bool ssse3_sse41 = __get_cpuid(1, &a, &b, &c, &d) && (c >> 9 & 1) && (c >> 19 & 1);
  return ssse3_sse41 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
}
#else
static void mix_fast(uint32_t state[8], const uint8_t *block) { mix_plain(state, block); }
static bool has_instructions(void) { return false; }
#endif

static _Atomic int instructions = -1; // -1: not asked yet

void tt_sha256_use_instructions(bool use) { atomic_store(&instructions, use && has_instructions()); }

static void mix(uint32_t state[8], const uint8_t *block) {
  int use = atomic_load_explicit(&instructions, memory_order_relaxed);
  if (use < 0) {
    use = has_instructions();
    atomic_store(&instructions, use);
  }
  (use ? mix_fast : mix_plain)(state, block);
}

void tt_sha256_start(tt_sha256 *hash) {
  // The same of the square roots of the first eight primes.
  static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(hash->state, first, sizeof first);
  hash->size = 0;
}

void tt_sha256_add(tt_sha256 *hash, const void *data, size_t size) {
  if (!size) return;
  const uint8_t *bytes = data;
  size_t held = hash->size % sizeof hash->block;
  hash->size += size;
  if (held) {
    size_t part = sizeof hash->block - held < size ? sizeof hash->block - held : size;
    memcpy(hash->block + held, bytes, part);
    if (held + part < sizeof hash->block) return;
    mix(hash->state, hash->block);
    bytes += part, size -= part;
  }
  for (; size >= sizeof hash->block; bytes += sizeof hash->block, size -= sizeof hash->block) mix(hash->state, bytes);
  if (size) memcpy(hash->block, bytes, size);
}

void tt_sha256_finish(tt_sha256 *hash, uint8_t out_digest[TT_SHA256_SIZE]) {
  static const uint8_t padding[64] = {0x80};
  uint8_t bits[8];
  store_big_endian(bits, hash->size * 8, sizeof bits);
  // One set bit, zeros, and the length in the last eight bytes of a block.
  size_t held = hash->size % 64;
  tt_sha256_add(hash, padding, held < 56 ? 56 - held : 120 - held);
  tt_sha256_add(hash, bits, sizeof bits);
  for (int i = 0; i < 8; ++i) store_big_endian(out_digest + 4 * i, hash->state[i], 4);
}

void tt_sha256_of(const void *data, size_t size, uint8_t out_digest[TT_SHA256_SIZE]) {
  tt_sha256 hash;
  tt_sha256_start(&hash);
  tt_sha256_add(&hash, data, size);
  tt_sha256_finish(&hash, out_digest);
}

void tt_sha256_text(const uint8_t digest[TT_SHA256_SIZE], char out_text[TT_SHA256_TEXT_SIZE]) {
  for (int i = 0; i < TT_SHA256_SIZE; ++i) {
    out_text[2 * i] = "0123456789abcdef"[digest[i] >> 4];
    out_text[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
  }
  out_text[TT_SHA256_TEXT_SIZE - 1] = '\0';
}
