// test_base.c - core/base: statuses, memory, arena, string, map, element types.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/string.h"
#include "runner.h"

// ---- status ----------------------------------------------------------------------------------------------------------

TEST(status_success_is_null) {
  CHECK_INT(tt_status_code(TT_SUCCESS), TT_OK);
  CHECK_TEXT(tt_status_message(TT_SUCCESS), "");
  tt_status_free(TT_SUCCESS);
  CHECK(tt_status_context(TT_SUCCESS, "add") == NULL);
}

TEST(status_carries_code_and_message) {
  tt_status status = tt_error(TT_INDEX, "dimension %d of %s", 3, "f32[2]");
  CHECK_INT(tt_status_code(status), TT_INDEX);
  CHECK_TEXT(tt_status_message(status), "dimension 3 of f32[2]");
  status = tt_status_context(status, "add(%d)", 7);
  status = tt_status_context(status, "outer");
  CHECK_INT(tt_status_code(status), TT_INDEX);
  CHECK_TEXT(tt_status_message(status), "outer: add(7): dimension 3 of f32[2]");
  tt_status_free(status);
}

TEST(status_join_keeps_the_first_failure) {
  tt_status first = tt_error(TT_VALUE, "first");
  CHECK(tt_status_join(first, tt_error(TT_TYPE, "second")) == first);
  CHECK(tt_status_join(first, NULL) == first);
  CHECK(tt_status_join(NULL, first) == first);
  CHECK(tt_status_join(NULL, NULL) == NULL);
  tt_status_free(first);
}

TEST(status_is_counted_when_it_is_told) {
  _Atomic int64_t count = 0, other = 0;
  tt_status status = tt_error(TT_VALUE, "told");
  tt_status_count_when_told(status, &count);
  tt_status_count_when_told(status, &other);
  status = tt_status_context(status, "add");
  tt_status dropped = tt_error(TT_VALUE, "dropped");
  tt_status_count_when_told(dropped, &count);
  status = tt_status_join(status, dropped);
  CHECK_INT(count, 0);
  tt_status_told(status);
  tt_status_free(status);
  CHECK_INT(count, 1);
  CHECK_INT(other, 0);
  tt_status_told(NULL);
  tt_status_count_when_told(NULL, &count);

  // The status that stands in for others when there is no memory is everybody's.
  tt_memory_fail_at(1, false);
  status = tt_error(TT_VALUE, "no room for this");
  tt_status_count_when_told(status, &count);
  tt_status_told(status);
  tt_status_free(status);
  CHECK_INT(count, 1);
}

static tt_status fails_below(bool fail) {
  TT_TRY_CONTEXT(fail ? tt_error(TT_TYPE, "wrong") : TT_SUCCESS, "level %d", 2);
  return TT_SUCCESS;
}

static tt_status fails_above(bool fail) {
  TT_TRY(fails_below(fail));
  return TT_SUCCESS;
}

TEST(status_try_returns_failures) {
  CHECK_OK(fails_above(false));
  CHECK_FAILS(fails_above(true), TT_TYPE, "level 2: wrong");
}

TEST(status_internal_names_the_place) {
  tt_status status = tt_internal_error("odd %s", "state");
  CHECK_INT(tt_status_code(status), TT_INTERNAL);
  CHECK(strstr(tt_status_message(status), "test_base.c:") != NULL);
  CHECK(strstr(tt_status_message(status), ": odd state") != NULL);
  tt_status_free(status);
}

TEST(status_codes_have_names_and_classes) {
  CHECK_TEXT(tt_code_name(TT_INVALID_ARGUMENT), "INVALID_ARGUMENT");
  CHECK_TEXT(tt_code_python_class(TT_OUT_OF_MEMORY), "torch.OutOfMemoryError");
  CHECK_TEXT(tt_code_python_class(TT_NOT_IMPLEMENTED), "NotImplementedError");
  CHECK_TEXT(tt_code_name((tt_code)1000), "UNKNOWN");
  CHECK_TEXT(tt_code_python_class((tt_code)-1), "RuntimeError");
}

TEST(status_without_memory) {
  tt_memory_fail_at(1, /*sticky=*/true);
  tt_status status = tt_error(TT_INDEX, "no room for this");
  CHECK_INT(tt_status_code(status), TT_OUT_OF_MEMORY);
  CHECK(strstr(tt_status_message(status), "exhausted") != NULL);
  CHECK(tt_status_context(status, "add") == status);
  tt_status_free(status);
  tt_memory_fail_at(0, false);

  // Without memory for the context, the failure itself stays.
  status = tt_error(TT_INDEX, "bare");
  tt_memory_fail_at(1, false);
  status = tt_status_context(status, "add");
  CHECK_INT(tt_status_code(status), TT_INDEX);
  CHECK_TEXT(tt_status_message(status), "bare");
  tt_status_free(status);

  // With memory again, the static status takes context like any other.
  tt_memory_fail_at(1, false);
  status = tt_status_context(tt_error(TT_INDEX, "x"), "add");
  CHECK_INT(tt_status_code(status), TT_OUT_OF_MEMORY);
  CHECK(strncmp(tt_status_message(status), "add: ", 5) == 0);
  tt_status_free(status);
}

static tt_status status_scenario(void *user) {
  (void)user;
  tt_status status = tt_status_context(tt_error(TT_OUT_OF_MEMORY, "%0100d", 1), "%0200d", 2);
  return tt_status_join(status, tt_internal_error("second"));
}

TEST(status_each_allocation_failing) {
  // The scenario always fails: the first run without a fault would be refused, so count its allocations by hand.
  for (int64_t n = 1; n <= 4; n++) {
    tt_memory_fail_at(n, n % 2 == 0);
    CHECK_FAILS(status_scenario(NULL), TT_OUT_OF_MEMORY, "");
    tt_memory_fail_at(0, false);
  }
}

// ---- memory ----------------------------------------------------------------------------------------------------------

TEST(memory_counts_blocks) {
  int64_t live = tt_memory_live_count(), allocated = tt_memory_allocation_count();
  void *a = tt_malloc(10), *b = tt_calloc(3, 5);
  CHECK_INT(tt_memory_live_count() - live, 2);
  a = tt_realloc(a, 1000);
  CHECK_INT(tt_memory_live_count() - live, 2);
  CHECK_INT(tt_memory_allocation_count() - allocated, 3);
  tt_free(a);
  tt_free(b);
  tt_free(NULL);
  CHECK_INT(tt_memory_live_count(), live);
}

TEST(memory_refuses_overflow) {
  CHECK(tt_realloc_array(NULL, SIZE_MAX / 2, 3) == NULL);
  CHECK(tt_calloc(SIZE_MAX / 2, 3) == NULL);
  void *block = NULL;
  CHECK_FAILS(tt_allocate(SIZE_MAX / 2, 3, &block), TT_OUT_OF_MEMORY, "could not allocate");
  CHECK(block == NULL);
}

TEST(memory_zero_size_is_a_block) {
  void *blocks[] = {tt_malloc(0), tt_calloc(0, 8), tt_calloc(8, 0), tt_realloc(NULL, 0), tt_realloc_array(NULL, 0, 4)};
  for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++) {
    CHECK(blocks[i] != NULL);
    tt_free(blocks[i]);
  }
}

TEST(memory_copies_text) {
  char *whole = tt_strdup("hello"), *part = tt_strndup("hello", 2), *longer = tt_strndup("hello", 100);
  CHECK_TEXT(whole, "hello");
  CHECK_TEXT(part, "he");
  CHECK_TEXT(longer, "hello");
  tt_free(whole);
  tt_free(part);
  tt_free(longer);
}

TEST(memory_checks_products_and_sums) {
  int64_t out = -7;
  CHECK(tt_mul_i64(3, 4, &out) && out == 12);
  CHECK(tt_mul_i64(INT64_MAX, 1, &out) && out == INT64_MAX);
  CHECK(tt_mul_i64(0, INT64_MAX, &out) && out == 0);
  CHECK(tt_add_i64(INT64_MAX, 0, &out) && out == INT64_MAX);
  out = 5;
  CHECK(!tt_mul_i64(INT64_MAX, 2, &out));
  CHECK(!tt_mul_i64(-1, 2, &out) && !tt_mul_i64(2, -1, &out));
  CHECK(!tt_add_i64(INT64_MAX, 1, &out) && !tt_add_i64(-1, 2, &out));
  CHECK_INT(out, 5);
}

TEST(memory_fails_at_the_nth) {
  tt_memory_fail_at(2, /*sticky=*/false);
  void *first = tt_malloc(1), *second = tt_malloc(1), *third = tt_malloc(1);
  CHECK(first != NULL && second == NULL && third != NULL);
  tt_memory_fail_at(1, /*sticky=*/true);
  CHECK(tt_malloc(1) == NULL && tt_calloc(1, 1) == NULL && tt_realloc(first, 100) == NULL && tt_strdup("x") == NULL);
  tt_memory_fail_at(0, false);
  tt_free(first);
  tt_free(third);
}

// ---- arena -----------------------------------------------------------------------------------------------------------

TEST(arena_blocks_are_aligned_zeroed_and_apart) {
  tt_arena arena = TT_ARENA_INIT;
  unsigned char *blocks[500];
  size_t sizes[500];
  for (size_t i = 0; i < 500; i++) {
    sizes[i] = (i * 37) % 900 + (i % 100 == 0 ? 300000 : 0);
    blocks[i] = tt_arena_allocate(&arena, sizes[i], 1);
    CHECK(blocks[i] != NULL && (uintptr_t)blocks[i] % 16 == 0);
    for (size_t j = 0; j < sizes[i]; j++) CHECK(blocks[i][j] == 0);
    memset(blocks[i], (int)(i % 255) + 1, sizes[i]);
  }
  for (size_t i = 0; i < 500; i++) {
    for (size_t j = 0; j < sizes[i]; j++) CHECK(blocks[i][j] == i % 255 + 1);
  }
  tt_arena_clear(&arena);
  CHECK(arena.chunks == NULL);
  CHECK(tt_arena_allocate(&arena, 1, 1) != NULL);
  tt_arena_clear(&arena);
}

TEST(arena_refuses_overflow) {
  tt_arena arena = TT_ARENA_INIT;
  CHECK(tt_arena_allocate(&arena, SIZE_MAX / 2, 3) == NULL);
  CHECK(tt_arena_allocate(&arena, SIZE_MAX - 4, 1) == NULL);
  CHECK(tt_arena_allocate(&arena, SIZE_MAX / 2, 1) == NULL);
  tt_arena_clear(&arena);
}

TEST(arena_formats_and_copies) {
  tt_arena arena = TT_ARENA_INIT;
  CHECK_TEXT(tt_arena_format(&arena, "%s has %d", "f32[2]", 8), "f32[2] has 8");
  int64_t dims[] = {2, 3, 5};
  int64_t *copy = tt_arena_copy(&arena, dims, sizeof(dims));
  CHECK(copy != dims && memcmp(copy, dims, sizeof(dims)) == 0);
  CHECK(tt_arena_copy(&arena, NULL, 0) != NULL);
  tt_arena_clear(&arena);
}

static tt_status arena_scenario(void *user) {
  (void)user;
  tt_arena arena = TT_ARENA_INIT;
  bool good = true;
  for (size_t i = 0; i < 40 && good; i++) good = tt_arena_allocate(&arena, i * 1000, 1) != NULL;
  good = good && tt_arena_format(&arena, "%05000d", 1) != NULL;
  tt_arena_clear(&arena);
  return good ? TT_SUCCESS : tt_error(TT_OUT_OF_MEMORY, "arena");
}

TEST(arena_each_allocation_failing) { test_each_allocation_failing(arena_scenario, NULL); }

// ---- string ----------------------------------------------------------------------------------------------------------

TEST(string_appends) {
  tt_string s = TT_STRING_INIT;
  CHECK_TEXT(tt_string_text(&s), "");
  tt_string_append(&s, "tensor<");
  tt_string_append_i64(&s, 16);
  tt_string_append_n(&s, "xf32>...", 5);
  tt_string_printf(&s, " %s=%d", "x", -3);
  CHECK_TEXT(tt_string_text(&s), "tensor<16xf32> x=-3");
  CHECK_INT(s.size, strlen(s.data));
  tt_string_clear(&s);
  CHECK_TEXT(tt_string_text(&s), "");
  tt_string_append(&s, "again");
  CHECK_TEXT(tt_string_text(&s), "again");
  CHECK_OK(tt_string_status(&s));
  tt_string_free(&s);
  CHECK(s.data == NULL && s.capacity == 0);
}

TEST(string_decimals) {
  const int64_t values[] = {0, 1, -1, 9, 10, -10, 1234567890123, INT64_MAX, INT64_MIN};
  for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
    char expected[32];
    snprintf(expected, sizeof(expected), "%lld", (long long)values[i]);
    tt_string s = TT_STRING_INIT;
    tt_string_append_i64(&s, values[i]);
    CHECK_TEXT(tt_string_text(&s), expected);
    tt_string_free(&s);
  }
}

TEST(string_grows) {
  tt_string s = TT_STRING_INIT;
  for (int i = 0; i < 2000; i++) tt_string_printf(&s, "%04d,", i);
  CHECK_INT(s.size, 10000);
  CHECK(strncmp(s.data + 5 * 1234, "1234,", 5) == 0);
  tt_string_printf(&s, "%020000d", 7);
  CHECK_INT(s.size, 30000);
  CHECK_INT(s.data[29999], '7');
  tt_string_free(&s);
}

TEST(string_failure_is_sticky) {
  tt_string s = TT_STRING_INIT;
  tt_string_append(&s, "kept");
  tt_memory_fail_at(1, false);
  tt_string_printf(&s, "%01000d", 1);
  tt_string_append(&s, "lost");
  CHECK_TEXT(tt_string_text(&s), "kept");
  CHECK_FAILS(tt_string_status(&s), TT_OUT_OF_MEMORY, "4 bytes");
  tt_string_clear(&s);
  tt_string_append(&s, "new");
  CHECK_OK(tt_string_status(&s));
  tt_string_free(&s);
}

static tt_status string_scenario(void *user) {
  (void)user;
  tt_string s = TT_STRING_INIT;
  for (int64_t i = 0; i < 300; i++) {
    tt_string_append(&s, "%v");
    tt_string_append_i64(&s, i * i * i);
    tt_string_printf(&s, " = %s : tensor<%dxf32>\n", "stablehlo.add", (int)i);
  }
  tt_status status = tt_string_status(&s);
  tt_string_free(&s);
  return status;
}

TEST(string_each_allocation_failing) { test_each_allocation_failing(string_scenario, NULL); }

// ---- map -------------------------------------------------------------------------------------------------------------

static void *map_get(const tt_map *map, const void *key, size_t size) {
  return tt_map_get(map, tt_hash(key, size), key, size);
}

static tt_status map_set(tt_map *map, const void *key, size_t size, void *value, void **out_old) {
  return tt_map_set(map, tt_hash(key, size), key, size, value, out_old);
}

TEST(map_of_few) {
  tt_map map = TT_MAP_INIT;
  int one = 1, two = 2;
  void *old = &one;
  CHECK(map_get(&map, "a", 1) == NULL);
  CHECK_OK(map_set(&map, "a", 1, &one, &old));
  CHECK(old == NULL);
  CHECK_OK(map_set(&map, "a", 1, &two, &old));
  CHECK(old == &one);
  CHECK_OK(map_set(&map, "", 0, &one, NULL)); // the empty key is a key
  CHECK_INT(map.count, 2);
  CHECK(map_get(&map, "a", 1) == &two && map_get(&map, "", 0) == &one && map_get(&map, "ab", 2) == NULL);
  CHECK_FAILS(map_set(&map, "b", 1, NULL, NULL), TT_INTERNAL, "NULL");
  tt_map_free(&map);
  CHECK(map.entries == NULL && map.count == 0);
}

TEST(map_tells_equal_hashes_apart) {
  tt_map map = TT_MAP_INIT;
  int values[100];
  for (int i = 0; i < 100; i++) CHECK_OK(tt_map_set(&map, 42, &i, sizeof(i), &values[i], NULL));
  for (int i = 0; i < 100; i++) CHECK(tt_map_get(&map, 42, &i, sizeof(i)) == &values[i]);
  int absent = 100;
  CHECK(tt_map_get(&map, 42, &absent, sizeof(absent)) == NULL);
  tt_map_free(&map);
}

enum { MANY = 100000 };

// The key of number i: 1 to 40 bytes.
static size_t make_key(uint64_t i, char *out) {
  static const char tail[] = "                             ";
  int size = snprintf(out, 64, "%llu%.*s", (unsigned long long)i, (int)(i % 30), tail);
  return (size_t)size;
}

static void count_visit(void *user, const tt_map_entry *entry) {
  unsigned char *seen = user;
  char text[64] = {0}; // keys are not terminated
  memcpy(text, entry->key, entry->key_size);
  seen[strtoul(text, NULL, 10)]++;
}

TEST(map_of_many_agrees_with_an_array) {
  tt_map map = TT_MAP_INIT;
  static char *reference[MANY];
  static char values[3 * MANY];
  static unsigned char seen[MANY];
  char key[64];
  uint64_t random = 1;
  for (int step = 0; step < 3 * MANY; step++) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    uint64_t i = (random >> 33) % MANY;
    size_t size = make_key(i, key);
    CHECK(map_get(&map, key, size) == reference[i]);
    void *old = NULL;
    CHECK_OK(map_set(&map, key, size, &values[step], &old));
    CHECK(old == reference[i]);
    reference[i] = &values[step];
  }
  size_t count = 0;
  for (uint64_t i = 0; i < MANY; i++) {
    size_t size = make_key(i, key);
    CHECK(map_get(&map, key, size) == reference[i]);
    count += reference[i] != NULL;
  }
  CHECK_INT(map.count, count);
  tt_map_each(&map, count_visit, seen);
  for (int i = 0; i < MANY; i++) CHECK_INT(seen[i], reference[i] != NULL);
  tt_map_free(&map);
}

static int compare_hashes(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

TEST(hash_spreads) {
  // Short keys that differ in few bits, as plan keys do: no collision, and the low bits are evenly used.
  static uint64_t hashes[MANY];
  static int buckets[256];
  for (int i = 0; i < MANY; i++) {
    int64_t key[6] = {1, i, 0, i / 7, 0, 3};
    hashes[i] = tt_hash(key, sizeof(key));
    buckets[hashes[i] & 255]++;
  }
  for (int i = 0; i < 256; i++) CHECK(buckets[i] > MANY / 256 / 2 && buckets[i] < MANY / 256 * 2);
  qsort(hashes, MANY, sizeof(hashes[0]), compare_hashes);
  for (int i = 1; i < MANY; i++) CHECK(hashes[i] != hashes[i - 1]);
  // A key that is a prefix of another, and zeros of different length.
  static const char zeros[64];
  for (size_t a = 0; a < 64; a++) {
    for (size_t b = a + 1; b < 64; b++) CHECK(tt_hash(zeros, a) != tt_hash(zeros, b));
  }
}

static tt_status map_scenario(void *user) {
  (void)user;
  tt_map map = TT_MAP_INIT;
  tt_status status = TT_SUCCESS;
  char key[64];
  int inserted = 0;
  for (; inserted < 60 && status == NULL; inserted++) {
    size_t size = make_key((uint64_t)inserted, key);
    status = map_set(&map, key, size, &map, NULL);
  }
  // What went in before the failure is still there.
  int expected = status == NULL ? inserted : inserted - 1;
  for (int i = 0; i < expected; i++) {
    size_t size = make_key((uint64_t)i, key);
    CHECK(map_get(&map, key, size) == &map);
  }
  CHECK_INT(map.count, expected);
  tt_map_free(&map);
  return status;
}

TEST(map_each_allocation_failing) { test_each_allocation_failing(map_scenario, NULL); }

// ---- dtype -----------------------------------------------------------------------------------------------------------

static const tt_dtype all_dtypes[] = {
#define X(name, torch, text, hlo, pjrt, bytes, category, is_signed) TT_##name,
    TT_DTYPES(X)
#undef X
};
enum { DTYPES = sizeof(all_dtypes) / sizeof(all_dtypes[0]) };

static const char *const dtype_names[TT_DTYPE_COUNT] = {[TT_DTYPE_NONE] = "-",
#define X(name, torch, text, hlo, pjrt, bytes, category, is_signed) [TT_##name] = #name,
                                                        TT_DTYPES(X)
#undef X
};

TEST(dtype_table) {
  for (int i = 0; i < DTYPES; i++) {
    tt_dtype dtype = all_dtypes[i];
    CHECK_INT(tt_dtype_from_torch(tt_dtype_torch(dtype)), dtype);
    CHECK(tt_dtype_size(dtype) >= 1 && tt_dtype_size(dtype) <= 16);
    CHECK_INT(tt_dtype_bits(dtype), 8 * tt_dtype_size(dtype));
  }
  CHECK_INT(tt_dtype_from_torch(12), TT_DTYPE_NONE); // QInt8
  CHECK_INT(tt_dtype_from_torch(-1), TT_DTYPE_NONE);
  CHECK_TEXT(tt_dtype_text(TT_BF16), "BFloat16");
  CHECK_TEXT(tt_dtype_hlo(TT_C64), "complex<f32>");
  CHECK_TEXT(tt_dtype_hlo(TT_DTYPE_NONE), "none");
  CHECK_INT(tt_dtype_size((tt_dtype)1000), 0);
  CHECK(tt_dtype_is_integral(TT_U64) && !tt_dtype_is_integral(TT_BOOL) && !tt_dtype_is_integral(TT_DTYPE_NONE));
  CHECK(tt_dtype_is_float(TT_F8E8M0FNU) && !tt_dtype_is_float(TT_C64) && tt_dtype_is_complex(TT_C128));
  CHECK(tt_dtype_is_narrow_float(TT_F16) && tt_dtype_is_narrow_float(TT_F8E5M2) && !tt_dtype_is_narrow_float(TT_F32));
  CHECK(tt_dtype_is_signed(TT_S8) && !tt_dtype_is_signed(TT_U8) && !tt_dtype_is_signed(TT_BOOL));
  CHECK_INT(tt_dtype_real(TT_C128), TT_F64);
  CHECK_INT(tt_dtype_real(TT_S32), TT_S32);
  CHECK_INT(tt_dtype_complex(TT_F32), TT_C64);
  CHECK_INT(tt_dtype_complex(TT_C128), TT_C128);
  CHECK_INT(tt_dtype_complex(TT_S32), TT_DTYPE_NONE);
}

// torch.promote_types of each pair, printed by torch 2.13 in the order of the table; "-" where it raises.
static const char *const torch_promotions[TT_DTYPE_COUNT] = {
    [TT_BOOL] = "BOOL U8 S8 S16 S32 S64 - - - F16 BF16 F32 F64 - - - - - C64 C128",
    [TT_U8] = "U8 U8 S16 S16 S32 S64 - - - F16 BF16 F32 F64 - - - - - C64 C128",
    [TT_S8] = "S8 S16 S8 S16 S32 S64 - - - F16 BF16 F32 F64 - - - - - C64 C128",
    [TT_S16] = "S16 S16 S16 S16 S32 S64 - - - F16 BF16 F32 F64 - - - - - C64 C128",
    [TT_S32] = "S32 S32 S32 S32 S32 S64 - - - F16 BF16 F32 F64 - - - - - C64 C128",
    [TT_S64] = "S64 S64 S64 S64 S64 S64 - - - F16 BF16 F32 F64 - - - - - C64 C128",
    [TT_U16] = "- - - - - - U16 - - F16 BF16 F32 F64 - - - - - - -",
    [TT_U32] = "- - - - - - - U32 - F16 BF16 F32 F64 - - - - - - -",
    [TT_U64] = "- - - - - - - - U64 F16 BF16 F32 F64 - - - - - - -",
    [TT_F16] = "F16 F16 F16 F16 F16 F16 F16 F16 F16 F16 F32 F32 F64 - - - - - C64 C128",
    [TT_BF16] = "BF16 BF16 BF16 BF16 BF16 BF16 BF16 BF16 BF16 F32 BF16 F32 F64 - - - - - C64 C128",
    [TT_F32] = "F32 F32 F32 F32 F32 F32 F32 F32 F32 F32 F32 F32 F64 - - - - - C64 C128",
    [TT_F64] = "F64 F64 F64 F64 F64 F64 F64 F64 F64 F64 F64 F64 F64 - - - - - C128 C128",
    [TT_F8E5M2] = "- - - - - - - - - - - - - F8E5M2 - - - - - -",
    [TT_F8E4M3FN] = "- - - - - - - - - - - - - - F8E4M3FN - - - - -",
    [TT_F8E5M2FNUZ] = "- - - - - - - - - - - - - - - F8E5M2FNUZ - - - -",
    [TT_F8E4M3FNUZ] = "- - - - - - - - - - - - - - - - F8E4M3FNUZ - - -",
    [TT_F8E8M0FNU] = "- - - - - - - - - - - - - - - - - F8E8M0FNU - -",
    [TT_C64] = "C64 C64 C64 C64 C64 C64 - - - C64 C64 C64 C128 - - - - - C64 C128",
    [TT_C128] = "C128 C128 C128 C128 C128 C128 - - - C128 C128 C128 C128 - - - - - C128 C128",
};

TEST(dtype_promotes_like_torch) {
  for (int i = 0; i < DTYPES; i++) {
    char row[512];
    snprintf(row, sizeof(row), "%s", torch_promotions[all_dtypes[i]]);
    char *rest = row;
    for (int j = 0; j < DTYPES; j++) {
      const char *expected = strsep(&rest, " "), *got = dtype_names[tt_dtype_promote(all_dtypes[i], all_dtypes[j])];
      if (strcmp(got, expected) != 0) {
        test_fail(__FILE__, __LINE__, "promote(%s, %s) is %s, torch has %s", dtype_names[all_dtypes[i]],
                  dtype_names[all_dtypes[j]], got, expected);
      }
    }
  }
  CHECK_INT(tt_dtype_promote(TT_F32, TT_DTYPE_NONE), TT_DTYPE_NONE);
}

// torch.can_cast from the row's dtype to each of the table.
static const char *const torch_casts[TT_DTYPE_COUNT] = {
    [TT_BOOL] = "11111111111111111111",       [TT_U8] = "01111111111111111111",
    [TT_S8] = "01111111111111111111",         [TT_S16] = "01111111111111111111",
    [TT_S32] = "01111111111111111111",        [TT_S64] = "01111111111111111111",
    [TT_U16] = "01111111111111111111",        [TT_U32] = "01111111111111111111",
    [TT_U64] = "01111111111111111111",        [TT_F16] = "00000000011111111111",
    [TT_BF16] = "00000000011111111111",       [TT_F32] = "00000000011111111111",
    [TT_F64] = "00000000011111111111",        [TT_F8E5M2] = "00000000011111111111",
    [TT_F8E4M3FN] = "00000000011111111111",   [TT_F8E5M2FNUZ] = "00000000011111111111",
    [TT_F8E4M3FNUZ] = "00000000011111111111", [TT_F8E8M0FNU] = "00000000011111111111",
    [TT_C64] = "00000000000000000011",        [TT_C128] = "00000000000000000011",
};

TEST(dtype_casts_like_torch) {
  for (int i = 0; i < DTYPES; i++) {
    for (int j = 0; j < DTYPES; j++) {
      CHECK_INT(tt_dtype_can_cast(all_dtypes[i], all_dtypes[j]), torch_casts[all_dtypes[i]][j] - '0');
    }
  }
}

static uint64_t encode(tt_dtype dtype, double value, int64_t ivalue) {
  uint64_t bits = 0;
  tt_dtype_encode(dtype, value, 0, ivalue, &bits);
  return bits;
}

TEST(dtype_encodes) {
  CHECK_INT(encode(TT_BOOL, 0, 0), 0);
  CHECK_INT(encode(TT_BOOL, 0.5, 0), 1);
  CHECK_INT(encode(TT_BOOL, 256, 256), 1);
  CHECK_INT(encode(TT_U8, 0, -1), 0xff);
  CHECK_INT(encode(TT_S16, 0, -2), 0xfffe);
  CHECK_INT(encode(TT_S64, 0, INT64_MIN), INT64_MIN);
  CHECK_INT(encode(TT_S64, 0, (INT64_C(1) << 53) + 1), (INT64_C(1) << 53) + 1);
  CHECK_INT(encode(TT_F32, 1.5, 0), 0x3fc00000);
  CHECK_INT(encode(TT_F64, -2, 0), (int64_t)0xc000000000000000u);
  CHECK_INT(encode(TT_F32, 1e300, 0), 0x7f800000);
  float c64[2];
  tt_dtype_encode(TT_C64, 1.5, -2.5, 0, c64);
  CHECK(c64[0] == 1.5f && c64[1] == -2.5f);
  double c128[2];
  tt_dtype_encode(TT_C128, 1.5, -2.5, 0, c128);
  CHECK(c128[0] == 1.5 && c128[1] == -2.5);
  unsigned char odd[17] = {0}; // need not be aligned
  tt_dtype_encode(TT_C128, 1.5, -2.5, 0, odd + 1);
  CHECK(memcmp(odd + 1, c128, 16) == 0);
}

// The bits of a float32 and what torch 2.13 makes of it, halfway cases and the edges of each format among them.
static const struct {
  uint32_t f32;
  uint16_t narrow[7]; // f16, bf16, f8e5m2, f8e4m3fn, f8e5m2fnuz, f8e4m3fnuz, f8e8m0fnu
} torch_narrow[] = {
    {0x00000000, {0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00}},
    {0x80000000, {0x8000, 0x8000, 0x80, 0x80, 0x00, 0x00, 0x00}},
    {0x3f800000, {0x3c00, 0x3f80, 0x3c, 0x38, 0x40, 0x40, 0x7f}},
    {0xbf800000, {0xbc00, 0xbf80, 0xbc, 0xb8, 0xc0, 0xc0, 0x7f}},
    {0x3f880000, {0x3c40, 0x3f88, 0x3c, 0x38, 0x40, 0x40, 0x7f}},
    {0x3f900000, {0x3c80, 0x3f90, 0x3c, 0x39, 0x40, 0x41, 0x7f}},
    {0x3fc00000, {0x3e00, 0x3fc0, 0x3e, 0x3c, 0x42, 0x44, 0x80}},
    {0x3f801000, {0x3c00, 0x3f80, 0x3c, 0x38, 0x40, 0x40, 0x7f}},
    {0x3f803000, {0x3c02, 0x3f80, 0x3c, 0x38, 0x40, 0x40, 0x7f}},
    {0x3f808000, {0x3c04, 0x3f80, 0x3c, 0x38, 0x40, 0x40, 0x7f}},
    {0x3f818000, {0x3c0c, 0x3f82, 0x3c, 0x38, 0x40, 0x40, 0x7f}},
    {0x42f60000, {0x57b0, 0x42f6, 0x58, 0x6f, 0x5c, 0x77, 0x86}},
    {0x43e00000, {0x5f00, 0x43e0, 0x5f, 0x7e, 0x63, 0x80, 0x88}},
    {0x43e80000, {0x5f40, 0x43e8, 0x5f, 0x7e, 0x63, 0x80, 0x88}},
    {0x43e80001, {0x5f40, 0x43e8, 0x5f, 0x7e, 0x63, 0x80, 0x88}},
    {0x43e7ffff, {0x5f40, 0x43e8, 0x5f, 0x7e, 0x63, 0x80, 0x88}},
    {0x43f00000, {0x5f80, 0x43f0, 0x60, 0x7e, 0x64, 0x80, 0x88}},
    {0x43700000, {0x5b80, 0x4370, 0x5c, 0x77, 0x60, 0x7f, 0x87}},
    {0x43780000, {0x5bc0, 0x4378, 0x5c, 0x78, 0x60, 0x80, 0x87}},
    {0x4377ffff, {0x5bc0, 0x4378, 0x5c, 0x77, 0x60, 0x7f, 0x87}},
    {0x477fe000, {0x7bff, 0x4780, 0x7c, 0x7e, 0x80, 0x80, 0x8f}},
    {0x477fefff, {0x7bff, 0x4780, 0x7c, 0x7e, 0x80, 0x80, 0x8f}},
    {0x477ff000, {0x7c00, 0x4780, 0x7c, 0x7e, 0x80, 0x80, 0x8f}},
    {0x47600000, {0x7b00, 0x4760, 0x7b, 0x7e, 0x7f, 0x80, 0x8f}},
    {0x47700000, {0x7b80, 0x4770, 0x7c, 0x7e, 0x80, 0x80, 0x8f}},
    {0x476fffff, {0x7b80, 0x4770, 0x7b, 0x7e, 0x7f, 0x80, 0x8f}},
    {0x7f7fffff, {0x7c00, 0x7f80, 0x7c, 0x7e, 0x80, 0x80, 0xff}},
    {0x7f7f8000, {0x7c00, 0x7f80, 0x7c, 0x7e, 0x80, 0x80, 0xff}},
    {0x7f7f7fff, {0x7c00, 0x7f7f, 0x7c, 0x7e, 0x80, 0x80, 0xff}},
    {0x7f800000, {0x7c00, 0x7f80, 0x7c, 0x7e, 0x80, 0x80, 0xff}},
    {0xff800000, {0xfc00, 0xff80, 0xfc, 0xfe, 0x80, 0x80, 0xff}},
    {0x7fc00000, {0x7e00, 0x7fc0, 0x7f, 0x7f, 0x80, 0x80, 0xff}},
    {0x38800000, {0x400, 0x3880, 0x04, 0x00, 0x08, 0x00, 0x71}},
    {0x387fc000, {0x3ff, 0x3880, 0x04, 0x00, 0x08, 0x00, 0x71}},
    {0x33800000, {0x01, 0x3380, 0x00, 0x00, 0x00, 0x00, 0x67}},
    {0x33000000, {0x00, 0x3300, 0x00, 0x00, 0x00, 0x00, 0x66}},
    {0x33000001, {0x01, 0x3300, 0x00, 0x00, 0x00, 0x00, 0x66}},
    {0x37800000, {0x100, 0x3780, 0x01, 0x00, 0x02, 0x00, 0x6f}},
    {0x37000000, {0x80, 0x3700, 0x00, 0x00, 0x01, 0x00, 0x6e}},
    {0x37000001, {0x80, 0x3700, 0x01, 0x00, 0x01, 0x00, 0x6e}},
    {0x3b000000, {0x1800, 0x3b00, 0x18, 0x01, 0x1c, 0x02, 0x76}},
    {0x3a800000, {0x1400, 0x3a80, 0x14, 0x00, 0x18, 0x01, 0x75}},
    {0x3a800001, {0x1400, 0x3a80, 0x14, 0x01, 0x18, 0x01, 0x75}},
    {0x3c800000, {0x2400, 0x3c80, 0x24, 0x08, 0x28, 0x10, 0x79}},
    {0x3c780000, {0x23c0, 0x3c78, 0x24, 0x08, 0x28, 0x10, 0x79}},
    {0x3c700000, {0x2380, 0x3c70, 0x24, 0x08, 0x28, 0x0f, 0x79}},
    {0xb7000000, {0x8080, 0xb700, 0x80, 0x80, 0x81, 0x00, 0x6e}},
    {0xbb000000, {0x9800, 0xbb00, 0x98, 0x81, 0x9c, 0x82, 0x76}},
    {0x00000001, {0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00}},
    {0x00008000, {0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00}},
    {0x00008001, {0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00}},
    {0x00400000, {0x00, 0x40, 0x00, 0x00, 0x00, 0x00, 0x00}},
    {0x00400001, {0x00, 0x40, 0x00, 0x00, 0x00, 0x00, 0x01}},
    {0x00600000, {0x00, 0x60, 0x00, 0x00, 0x00, 0x00, 0x01}},
    {0x00800000, {0x00, 0x80, 0x00, 0x00, 0x00, 0x00, 0x01}},
    {0x00c00000, {0x00, 0xc0, 0x00, 0x00, 0x00, 0x00, 0x02}},
    {0x80018000, {0x8000, 0x8002, 0x80, 0x80, 0x00, 0x00, 0x00}},
};

TEST(dtype_encodes_narrow_floats_like_torch) {
  static const tt_dtype order[7] = {TT_F16,        TT_BF16,       TT_F8E5M2,   TT_F8E4M3FN,
                                    TT_F8E5M2FNUZ, TT_F8E4M3FNUZ, TT_F8E8M0FNU};
  for (size_t i = 0; i < sizeof(torch_narrow) / sizeof(torch_narrow[0]); i++) {
    float value;
    memcpy(&value, &torch_narrow[i].f32, sizeof(value));
    for (int j = 0; j < 7; j++) {
      unsigned got = (unsigned)encode(order[j], (double)value, 0), expected = torch_narrow[i].narrow[j];
      if (got != expected) {
        test_fail(__FILE__, __LINE__, "0x%08x as %s is 0x%x, torch has 0x%x", torch_narrow[i].f32,
                  dtype_names[order[j]], got, expected);
      }
    }
  }
}
