// test_cache.c - core/cache: the hash, entries, the folder, and the tiers on every real plugin.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "cache/cache.h"
#include "cache/config.h"
#include "cache/describe.h"
#include "cache/disk.h"
#include "cache/entry.h"
#include "cache/origin.h"
#include "cache/sha256.h"
#include "pjrt/buffer.h"
#include "runner.h"

// ---- helpers ---------------------------------------------------------------------------------------------------------

enum { PATH_SIZE = 512 };

// A folder of this test's own.
static const char *make_folder(void) {
  static char folder[] = "/tmp/tt-cache-test-XXXXXX";
  CHECK(mkdtemp(folder) != NULL);
  return folder;
}

static void remove_tree(const char *path) {
  DIR *folder = opendir(path);
  for (const struct dirent *file; folder && (file = readdir(folder));) {
    if (strcmp(file->d_name, ".") == 0 || strcmp(file->d_name, "..") == 0) continue;
    char inner[PATH_SIZE];
    snprintf(inner, sizeof inner, "%s/%s", path, file->d_name);
    remove_tree(inner);
  }
  if (folder) closedir(folder);
  remove(path);
}

static int count_files(const char *folder, const char *sub) {
  char path[PATH_SIZE];
  snprintf(path, sizeof path, "%s/%s", folder, sub);
  DIR *opened = opendir(path);
  int count = 0;
  for (const struct dirent *file; opened && (file = readdir(opened));) count += file->d_name[0] != '.';
  if (opened) closedir(opened);
  return count;
}

static _Atomic int warnings;
static char last_warning[1024];

static void note_warning(const char *message) {
  warnings++;
  snprintf(last_warning, sizeof last_warning, "%s", message);
}

static const tt_disk default_disk = {.limit = 1 << 20, .wait_seconds = 30, .touch_seconds = 600};

static tt_disk disk_in(const char *folder) {
  tt_disk disk = default_disk;
  disk.folder = folder;
  return disk;
}

static void configure_with(const char *folder, tt_cache_mode mode, int64_t limit) {
  int64_t live = tt_memory_live_count();
  CHECK_OK(tt_cache_configure(
      &(tt_cache_config){.folder = folder, .limit = limit, .mode = mode, .wait_seconds = 30, .touch_seconds = 600}));
  tt_cache_set_warner(note_warning);
  test_keeps_blocks(tt_memory_live_count() - live);
}

static void configure(const char *folder) { configure_with(folder, TT_CACHE_NORMAL, (int64_t)1 << 30); }

static tt_client *create_client(void) {
  int64_t live = tt_memory_live_count();
  tt_plugin *plugin = NULL;
  tt_client *client = NULL;
  CHECK_OK(tt_plugin_open_file(test_plugin_path(), &plugin));
  test_keeps_blocks(tt_memory_live_count() - live);
  CHECK_OK(tt_client_create(plugin, 1, &client));
  return client;
}

static const char add_text[] = "module @add {\n"
                               "func.func public @main(%0: tensor<4xf32>, %1: tensor<4xf32>) -> (tensor<4xf32>) {\n"
                               "%2 = stablehlo.add %0, %1 : tensor<4xf32>\n"
                               "return %2 : tensor<4xf32>\n"
                               "}\n"
                               "}\n";

// add_text with another constant each, so another program each.
static const char *numbered_text(int number) {
  static char text[512];
  snprintf(text, sizeof text,
           "module @numbered {\n"
           "func.func public @main(%%0: tensor<4xf32>) -> (tensor<4xf32>) {\n"
           "%%1 = stablehlo.constant dense<%d.0> : tensor<4xf32>\n"
           "%%2 = stablehlo.add %%0, %%1 : tensor<4xf32>\n"
           "return %%2 : tensor<4xf32>\n"
           "}\n"
           "}\n",
           number);
  return text;
}

static const tt_compile_options options = {.effort = TT_EFFORT_LEAST};

// As a new process would find it: nothing in memory.
static tt_cache_source get(tt_client *client, const char *text, tt_executable **out_executable) {
  tt_cache_clear();
  tt_cache_source source = TT_FROM_MEMORY;
  CHECK_OK(tt_cache_get(client, text, (int64_t)strlen(text), &options, out_executable, &source));
  return source;
}

static tt_cache_source source_of(tt_client *client, const char *text) {
  tt_executable *executable = NULL;
  tt_cache_source source = get(client, text, &executable);
  tt_executable_release(executable);
  tt_cache_clear();
  return source;
}

// Adds 1, 2, 3, 4 to itself.
static void check_adds(tt_client *client, tt_executable *executable) {
  const float data[4] = {1, 2, 3, 4};
  float sums[4];
  const int64_t count = 4;
  tt_device *device = tt_client_device(client, 0);
  tt_buffer *argument = NULL, *result = NULL;
  void *output = NULL;
  tt_event done = {NULL, NULL};
  CHECK_OK(tt_buffer_from_host(device, data, TT_F32, 1, &count, TT_HOST_COPY, NULL, &argument));
  tt_buffer *arguments[] = {argument, argument};
  CHECK_OK(tt_executable_execute(executable, device, arguments, 2, NULL, &output, NULL));
  CHECK_OK(tt_buffer_wrap(device, output, sizeof sums, "test", &result));
  CHECK_OK(tt_buffer_to_host(result, sums, sizeof sums, &done));
  CHECK_OK(tt_event_wait(&done));
  tt_event_release(&done);
  for (int i = 0; i < 4; ++i) CHECK(sums[i] == 2 * data[i]);
  tt_buffer_release(argument);
  tt_buffer_release(result);
}

// The one entry in programs/.
static void only_entry(const char *folder, char out_path[PATH_SIZE]) {
  char programs[PATH_SIZE];
  snprintf(programs, sizeof programs, "%s/programs", folder);
  DIR *opened = opendir(programs);
  CHECK(opened != NULL);
  int count = 0;
  for (const struct dirent *file; (file = readdir(opened));) {
    if (file->d_name[0] == '.') continue;
    CHECK(tt_disk_is_name(file->d_name));
    snprintf(out_path, PATH_SIZE, "%s/programs/%s", folder, file->d_name);
    ++count;
  }
  closedir(opened);
  CHECK_INT(count, 1);
}

static size_t read_file(const char *path, char *data, size_t room) {
  FILE *file = fopen(path, "re");
  CHECK(file != NULL);
  size_t size = fread(data, 1, room, file);
  fclose(file);
  CHECK(size < room);
  return size;
}

static void write_file(const char *path, const void *data, size_t size) {
  FILE *file = fopen(path, "we");
  CHECK(file != NULL && fwrite(data, 1, size, file) == size);
  fclose(file);
}

// ---- hash ------------------------------------------------------------------------------------------------------------

static void check_hash(const void *data, size_t size, const char *expected) {
  uint8_t digest[TT_SHA256_SIZE];
  char text[TT_SHA256_TEXT_SIZE];
  tt_sha256_of(data, size, digest);
  tt_sha256_text(digest, text);
  CHECK_TEXT(text, expected);
}

// The examples of NIST for SHA-256, and a million times "a".
static void check_published_values(void) {
  check_hash(NULL, 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  check_hash("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const char *two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  check_hash(two_blocks, strlen(two_blocks), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  const char *longer =
      "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrs"
      "mnopqrstnopqrstu";
  check_hash(longer, strlen(longer), "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  char *million = tt_malloc(1000000);
  memset(million, 'a', 1000000);
  check_hash(million, 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  tt_free(million);
}

TEST(cache_sha256_gives_the_published_values) {
  check_published_values();
  tt_sha256_use_instructions(false);
  check_published_values();
}

TEST(cache_sha256_in_pieces_is_that_of_the_whole) {
  uint8_t data[300], whole[TT_SHA256_SIZE], pieces[TT_SHA256_SIZE];
  for (size_t i = 0; i < sizeof data; ++i) data[i] = (uint8_t)(i * 7);
  for (size_t size = 0; size <= sizeof data; ++size) {
    tt_sha256_of(data, size, whole);
    for (size_t step = 1; step <= 130; step += 43) {
      tt_sha256 hash;
      tt_sha256_start(&hash);
      for (size_t i = 0; i < size; i += step) tt_sha256_add(&hash, data + i, size - i < step ? size - i : step);
      tt_sha256_finish(&hash, pieces);
      CHECK(memcmp(whole, pieces, sizeof whole) == 0);
    }
  }
}

// ---- entries ---------------------------------------------------------------------------------------------------------

static tt_entry sample_entry(void) {
  tt_entry entry = {.created = 1700000000,
                    .compile_microseconds = 12345,
                    .description = "add (f32[4]) -> (f32[4])",
                    .description_size = 24,
                    .payload = "the code",
                    .payload_size = 8};
  memset(entry.key, 7, sizeof entry.key);
  return entry;
}

TEST(cache_entry_comes_back) {
  tt_entry entry = sample_entry(), read;
  tt_string bytes = TT_STRING_INIT;
  tt_entry_write(&entry, &bytes);
  CHECK(tt_entry_read(bytes.data, bytes.size, entry.key, &read) == NULL);
  CHECK_INT(read.created, 1700000000);
  CHECK_INT(read.compile_microseconds, 12345);
  CHECK(read.description_size == 24 && memcmp(read.description, entry.description, 24) == 0);
  CHECK(read.payload_size == 8 && memcmp(read.payload, "the code", 8) == 0);
  uint8_t other[TT_SHA256_SIZE] = {0};
  CHECK_TEXT(tt_entry_read(bytes.data, bytes.size, other, &read), "of another program");
  tt_string_free(&bytes);
}

TEST(cache_entry_shows_every_truncation_and_every_changed_byte) {
  tt_entry entry = sample_entry(), read;
  tt_string bytes = TT_STRING_INIT;
  tt_entry_write(&entry, &bytes);
  for (size_t size = 0; size < bytes.size; ++size) CHECK(tt_entry_read(bytes.data, size, entry.key, &read) != NULL);
  for (size_t i = 0; i < bytes.size; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes.data[i] = (char)(bytes.data[i] ^ 1 << bit);
      CHECK(tt_entry_read(bytes.data, bytes.size, NULL, &read) != NULL);
      bytes.data[i] = (char)(bytes.data[i] ^ 1 << bit);
    }
  }
  tt_string_append(&bytes, "x");
  CHECK_TEXT(tt_entry_read(bytes.data, bytes.size, entry.key, &read), "longer than it should be");
  bytes.data[8]++;
  CHECK_TEXT(tt_entry_read(bytes.data, bytes.size, entry.key, &read), "of another version");
  CHECK_TEXT(tt_entry_read("something else entirely", 23, entry.key, &read), "not an entry of this cache");
  tt_string_free(&bytes);
}

TEST(cache_entry_with_a_long_description_is_cut) {
  char text[3000];
  memset(text, 'x', sizeof text);
  tt_entry entry = sample_entry(), read;
  entry.description = text;
  entry.description_size = sizeof text;
  tt_string bytes = TT_STRING_INIT;
  tt_entry_write(&entry, &bytes);
  CHECK(tt_entry_read(bytes.data, bytes.size, NULL, &read) == NULL);
  CHECK_INT(read.description_size, TT_ENTRY_DESCRIPTION_MAX);
  tt_string_free(&bytes);
}

static void check_description(const char *text, const char *expected) {
  tt_string out = TT_STRING_INIT;
  tt_describe_program(text, (int64_t)strlen(text), &out);
  CHECK_TEXT(tt_string_text(&out), expected);
  tt_string_free(&out);
}

TEST(cache_describe_names_ops_and_tensors) {
  check_description(add_text, "add (f32[4], f32[4]) -> (f32[4])");
  check_description("module @m {\n"
                    "func.func public @main(%0: tensor<2x?xcomplex<f32>>, %1: tensor<f64>) -> tensor<2xi1> {\n"
                    "%2 = stablehlo.constant dense<1.0> : tensor<f64>\n"
                    "%3:2 = stablehlo.sort %0, %1\n"
                    "%4 = stablehlo.sort %0, %1\n"
                    "}\n",
                    "sort (complex<f32>[2,?], f64) -> (i1[2])");
  check_description("func.func public @main() -> tensor<i32> {\n%0 = stablehlo.iota dim = 0 : tensor<i32>\n",
                    "iota () -> (i32)");
  check_description("garbage", "no ops");
  check_description("", "no ops");
}

// ---- the folder ------------------------------------------------------------------------------------------------------

static const char *name_of(int number) {
  static _Thread_local char names[8][TT_SHA256_TEXT_SIZE];
  char *name = names[number % 8];
  snprintf(name, TT_SHA256_TEXT_SIZE, "%064x", number);
  return name;
}

static void put_bytes(const tt_disk *disk, int number, size_t size) {
  char data[4096];
  memset(data, 'd', sizeof data);
  CHECK(size <= sizeof data);
  CHECK_OK(tt_disk_put(disk, "programs", name_of(number), data, size));
}

static bool has(const tt_disk *disk, int number) {
  tt_string bytes = TT_STRING_INIT;
  bool found = false;
  CHECK_OK(tt_disk_get(disk, "programs", name_of(number), false, &bytes, &found));
  tt_string_free(&bytes);
  return found;
}

static void set_use(const tt_disk *disk, int number, time_t seconds) {
  char path[PATH_SIZE];
  snprintf(path, sizeof path, "%s/programs/%s", disk->folder, name_of(number));
  const struct timespec times[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
  CHECK(utimensat(AT_FDCWD, path, times, 0) == 0);
}

static time_t use_of(const tt_disk *disk, int number) {
  char path[PATH_SIZE];
  snprintf(path, sizeof path, "%s/programs/%s", disk->folder, name_of(number));
  struct stat file;
  CHECK(stat(path, &file) == 0);
  return file.st_mtim.tv_sec;
}

TEST(cache_disk_default_folder_follows_the_environment) {
  tt_string folder = TT_STRING_INIT;
  setenv("XDG_CACHE_HOME", "/somewhere", 1);
  CHECK_OK(tt_disk_default_folder(&folder));
  CHECK_TEXT(tt_string_text(&folder), "/somewhere/torch_tpu");
  tt_string_clear(&folder);
  setenv("XDG_CACHE_HOME", "relative", 1);
  setenv("HOME", "/tmp", 1);
  CHECK_OK(tt_disk_default_folder(&folder));
  CHECK_TEXT(tt_string_text(&folder), "/tmp/.cache/torch_tpu");
  tt_string_clear(&folder);
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/nonexistent", 1); // a service user's: not to be made
  CHECK_OK(tt_disk_default_folder(&folder));
  CHECK_INT(folder.size, 0);
  unsetenv("HOME");
  CHECK_OK(tt_disk_default_folder(&folder));
  CHECK_INT(folder.size, 0);
  tt_string_free(&folder);
}

TEST(cache_disk_makes_its_folders) {
  const char *folder = make_folder();
  char deep[PATH_SIZE];
  snprintf(deep, sizeof deep, "%s/a/b/c", folder);
  tt_disk disk = disk_in(deep);
  CHECK(!has(&disk, 1));
  put_bytes(&disk, 1, 10);
  CHECK(has(&disk, 1));
  struct stat file;
  CHECK(stat(deep, &file) == 0 && (file.st_mode & 0777) == 0700);
  remove_tree(deep); // as a user may at any time
  put_bytes(&disk, 2, 10);
  CHECK(has(&disk, 2) && !has(&disk, 1));
  remove_tree(folder);
}

TEST(cache_disk_evicts_what_was_used_least_recently) {
  tt_disk disk = disk_in(make_folder());
  disk.limit = 4000;
  const time_t used[] = {500, 100, 400, 200, 300};
  for (int i = 0; i < 4; ++i) {
    put_bytes(&disk, i, 1000);
    set_use(&disk, i, used[i]);
    tt_disk_account(&disk, 1000, 0);
  }
  for (int i = 0; i < 4; ++i) CHECK(has(&disk, i)); // 4000 bytes are not too many
  put_bytes(&disk, 4, 1000);
  set_use(&disk, 4, used[4]);
  tt_disk_account(&disk, 1000, 0);
  // Down to seven eighths of the limit: the two oldest go.
  CHECK(!has(&disk, 1) && !has(&disk, 3));
  CHECK(has(&disk, 0) && has(&disk, 2) && has(&disk, 4));
  remove_tree(disk.folder);
}

// Entries from before the clock was set back have times that are still to come: they are neither the first to go, since they
// may be in use, nor kept for ever.
TEST(cache_disk_evicts_when_the_clock_was_set_back) {
  tt_disk disk = disk_in(make_folder());
  disk.limit = 4000;
  time_t now = time(NULL);
  const time_t used[] = {now + 500000000, now - 2000, now + 100000, now - 1000};
  for (int i = 0; i < 4; ++i) {
    put_bytes(&disk, i, 1000);
    set_use(&disk, i, used[i]);
  }
  put_bytes(&disk, 4, 1000);
  tt_disk_account(&disk, 5000, 0); // scans
  CHECK(!has(&disk, 1) && !has(&disk, 3));
  CHECK(has(&disk, 0) && has(&disk, 2) && has(&disk, 4));
  CHECK(use_of(&disk, 0) <= time(NULL) && use_of(&disk, 2) <= time(NULL));
  // From then on they age as others do.
  for (int i = 5; i < 7; ++i) {
    put_bytes(&disk, i, 1000);
    set_use(&disk, i, now + 60); // used later than the scan, by little
  }
  set_use(&disk, 4, now + 60);
  tt_disk_account(&disk, 2000, 0);
  CHECK(!has(&disk, 0) && !has(&disk, 2));
  CHECK(has(&disk, 4) && has(&disk, 5) && has(&disk, 6));
  remove_tree(disk.folder);
}

// Times at both ends of what a file can have: nothing overflows, loops or hangs.
TEST(cache_disk_bears_any_time) {
  tt_disk disk = disk_in(make_folder());
  const time_t times[] = {INT64_MIN, -((int64_t)1 << 31), -1, 0, INT32_MAX, (int64_t)1 << 33, INT64_MAX};
  enum { COUNT = sizeof times / sizeof *times };
  disk.limit = 500 * COUNT;
  tt_string bytes = TT_STRING_INIT;
  bool found = false;
  for (int i = 0; i < COUNT; ++i) {
    put_bytes(&disk, i, 1000);
    set_use(&disk, i, times[i]); // the file system may keep it within its own bounds
    CHECK_OK(tt_disk_get(&disk, "programs", name_of(i), i % 2 == 0, &bytes, &found));
    CHECK(found);
  }
  tt_disk_account(&disk, 1000 * COUNT, 0);
  int64_t entries = 0, size = 0;
  CHECK(count_files(disk.folder, "programs") <= COUNT / 2);
  CHECK_OK(tt_disk_clear(&disk, 0, &entries, &size));
  tt_string_free(&bytes);
  remove_tree(disk.folder);
}

TEST(cache_disk_counts_survive_damage) {
  tt_disk disk = disk_in(make_folder());
  disk.limit = 2500;
  char path[PATH_SIZE];
  snprintf(path, sizeof path, "%s/usage", disk.folder);
  tt_disk_account(&disk, 0, 5);
  tt_disk_account(&disk, 0, 2);
  CHECK_INT(tt_disk_hits(&disk), 7);
  for (int i = 0; i < 3; ++i) put_bytes(&disk, i, 1000), set_use(&disk, i, i + 1);
  write_file(path, "rubbish", 7); // then the folder is counted
  tt_disk_account(&disk, 0, 1);
  CHECK(!has(&disk, 0) && has(&disk, 1) && has(&disk, 2));
  CHECK_INT(tt_disk_hits(&disk), 1);
  write_file(path, "-5 -5", 5);
  tt_disk_account(&disk, 0, 1);
  CHECK_INT(tt_disk_hits(&disk), 1);
  CHECK(has(&disk, 1) && has(&disk, 2));
  remove_tree(disk.folder);
}

TEST(cache_disk_notes_use_now_and_then) {
  tt_disk disk = disk_in(make_folder());
  put_bytes(&disk, 1, 10);
  time_t now = time(NULL);
  tt_string bytes = TT_STRING_INIT;
  bool found;
  set_use(&disk, 1, now - 100); // noted a short while ago
  CHECK_OK(tt_disk_get(&disk, "programs", name_of(1), true, &bytes, &found));
  CHECK_INT(use_of(&disk, 1), now - 100);
  set_use(&disk, 1, now - 1000);
  CHECK_OK(tt_disk_get(&disk, "programs", name_of(1), false, &bytes, &found));
  CHECK_INT(use_of(&disk, 1), now - 1000);
  CHECK_OK(tt_disk_get(&disk, "programs", name_of(1), true, &bytes, &found));
  CHECK(use_of(&disk, 1) >= now);
  set_use(&disk, 1, now + 100000); // the clock was set back since
  CHECK_OK(tt_disk_get(&disk, "programs", name_of(1), true, &bytes, &found));
  CHECK(use_of(&disk, 1) <= time(NULL));
  tt_string_free(&bytes);
  remove_tree(disk.folder);
}

TEST(cache_disk_clears_by_age) {
  tt_disk disk = disk_in(make_folder());
  for (int i = 0; i < 3; ++i) put_bytes(&disk, i, 100);
  set_use(&disk, 1, time(NULL) - 7200);
  int64_t entries = 0, bytes = 0;
  CHECK_OK(tt_disk_clear(&disk, 3600, &entries, &bytes));
  CHECK(entries == 1 && bytes == 100 && !has(&disk, 1) && has(&disk, 0));
  CHECK_OK(tt_disk_put(&disk, "misses", "a.mlir", "x", 1));
  CHECK_OK(tt_disk_clear(&disk, -1, &entries, &bytes));
  CHECK(entries == 2 && bytes == 200);
  CHECK_INT(count_files(disk.folder, "programs") + count_files(disk.folder, "misses"), 0);
  remove_tree(disk.folder);
  CHECK_OK(tt_disk_clear(&disk, -1, &entries, &bytes));
  CHECK_INT(entries, 0);
}

// A process that is killed while it writes, as often as it takes to meet every moment.
TEST(cache_disk_survives_writers_that_are_killed) {
  tt_disk disk = disk_in(make_folder());
  disk.limit = (int64_t)1 << 30;
  enum { SIZE = 1 << 16 };
  char *data = tt_malloc(SIZE);
  memset(data, 'k', SIZE);
  tt_entry entry = sample_entry(), read;
  entry.payload = data;
  entry.payload_size = SIZE;
  tt_string bytes = TT_STRING_INIT;
  tt_entry_write(&entry, &bytes);
  for (int i = 0; i < 40; ++i) {
    pid_t child = fork();
    if (child == 0) {
      for (;;) {
        int lock = tt_disk_lock(&disk, name_of(1));
        tt_status_free(tt_disk_put(&disk, "programs", name_of(2), bytes.data, bytes.size));
        tt_disk_unlock(&disk, name_of(1), lock);
      }
    }
    nanosleep(&(struct timespec){.tv_nsec = 1000000 + 37000 * i}, NULL);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    tt_string found = TT_STRING_INIT;
    bool there = false;
    CHECK_OK(tt_disk_get(&disk, "programs", name_of(2), false, &found, &there));
    if (there) CHECK(tt_entry_read(found.data, found.size, entry.key, &read) == NULL);
    tt_string_free(&found);
    int lock = tt_disk_lock(&disk, name_of(1)); // the dead hold none
    CHECK(lock >= 0);
    tt_disk_unlock(&disk, name_of(1), lock);
  }
  // Certainly something is left of a writer that died in the midst, and nothing after a sweep.
  char path[PATH_SIZE];
  snprintf(path, sizeof path, "%s/tmp/1-dead", disk.folder);
  write_file(path, "half", 4);
  tt_disk_sweep(&disk);
  CHECK_INT(count_files(disk.folder, "tmp") + count_files(disk.folder, "locks"), 0);
  tt_string_free(&bytes);
  tt_free(data);
  remove_tree(disk.folder);
}

TEST(cache_disk_sweep_spares_the_living) {
  tt_disk disk = disk_in(make_folder());
  int lock = tt_disk_lock(&disk, name_of(1));
  char path[PATH_SIZE];
  snprintf(path, sizeof path, "%s/tmp/1-alive", disk.folder);
  int writer = open(path, O_RDWR | O_CREAT, 0600);
  CHECK(lock >= 0 && writer >= 0 && flock(writer, LOCK_EX) == 0);
  tt_disk_sweep(&disk);
  CHECK_INT(count_files(disk.folder, "tmp"), 1);
  CHECK_INT(count_files(disk.folder, "locks"), 1);
  disk.wait_seconds = 0.01;
  CHECK_INT(tt_disk_lock(&disk, name_of(1)), -1); // the time is over
  tt_disk_unlock(&disk, name_of(1), lock);
  lock = tt_disk_lock(&disk, name_of(1));
  CHECK(lock >= 0);
  tt_disk_unlock(&disk, name_of(1), lock);
  close(writer);
  remove_tree(disk.folder);
}

typedef struct contest {
  const tt_disk *disk;
  _Atomic int inside, most, done;
} contest;

static void *contend(void *user) {
  contest *c = user;
  for (int i = 0; i < 50; ++i) {
    int lock = tt_disk_lock(c->disk, name_of(3));
    CHECK(lock >= 0);
    int inside = ++c->inside;
    if (inside > c->most) c->most = inside;
    c->inside--;
    tt_disk_unlock(c->disk, name_of(3), lock);
    c->done++;
  }
  return NULL;
}

TEST(cache_disk_lock_lets_one_in) {
  tt_disk disk = disk_in(make_folder());
  contest c = {.disk = &disk};
  pthread_t threads[4];
  for (int i = 0; i < 4; ++i) CHECK(pthread_create(&threads[i], NULL, contend, &c) == 0);
  for (int i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
  CHECK_INT(c.done, 200);
  CHECK_INT(c.most, 1);
  remove_tree(disk.folder);
}

// ---- the tiers -------------------------------------------------------------------------------------------------------

PLUGIN_TEST(cache_finds_on_disk_what_was_compiled) {
  const char *folder = make_folder();
  tt_client *client = create_client();
  configure(folder);
  int64_t live = tt_memory_live_count();
  tt_executable *executable = NULL;
  CHECK_INT(get(client, add_text, &executable), TT_FROM_COMPILER);
  check_adds(client, executable);
  tt_executable_release(executable);
  tt_cache_info info;
  CHECK_OK(tt_cache_get_info(&info));
  CHECK_TEXT(info.off_reason, ""); // all three CPU plugins serialise
  CHECK_INT(info.entries, 1);
  CHECK_INT(get(client, add_text, &executable), TT_FROM_DISK);
  check_adds(client, executable);
  tt_cache_source source;
  tt_executable *again = NULL;
  CHECK_OK(tt_cache_get(client, add_text, sizeof add_text - 1, &options, &again, &source));
  CHECK(source == TT_FROM_MEMORY && again == executable);
  tt_executable_release(again);
  tt_executable_release(executable);
  // Other options or another text are another program.
  tt_compile_options others = options;
  others.exact = true;
  CHECK_OK(tt_cache_get(client, add_text, sizeof add_text - 1, &others, &executable, &source));
  CHECK_INT(source, TT_FROM_COMPILER);
  tt_executable_release(executable);
  CHECK_INT(source_of(client, numbered_text(1)), TT_FROM_COMPILER);
  CHECK_INT(source_of(client, numbered_text(2)), TT_FROM_COMPILER);
  CHECK_INT(source_of(client, numbered_text(1)), TT_FROM_DISK);
  tt_cache_flush();
  CHECK_OK(tt_cache_get_info(&info));
  CHECK_INT(info.entries, 4);
  CHECK_INT(info.hits, 2);
  CHECK_INT(warnings, 0);
  tt_cache_clear();
  tt_origin_forget();
  CHECK_INT(tt_memory_live_count(), live);
  tt_client_destroy(client);
  remove_tree(folder);
}

PLUGIN_TEST(cache_key_holds_what_decides_the_code) {
  const char *folder = make_folder();
  tt_client *client = create_client();
  configure(folder);
  unsetenv("XLA_FLAGS");
  CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  setenv("LIBTPU_INIT_ARGS", "--something", 1);
  tt_origin_forget();
  CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  unsetenv("LIBTPU_INIT_ARGS");
  tt_origin_forget();
  CHECK_INT(source_of(client, add_text), TT_FROM_DISK);
  CHECK_INT(count_files(folder, "plugins"), 1);
  // The record of the plugin file: a damaged one is made anew, to the same end.
  char path[PATH_SIZE], record[4096], digest_text[TT_SHA256_TEXT_SIZE];
  uint8_t digest[TT_SHA256_SIZE];
  tt_sha256_of(test_plugin_path(), strlen(test_plugin_path()), digest);
  tt_sha256_text(digest, digest_text);
  snprintf(path, sizeof path, "%s/plugins/%s", folder, digest_text);
  size_t size = read_file(path, record, sizeof record);
  record[size / 2] ^= 1;
  write_file(path, record, size);
  tt_origin_forget();
  CHECK_INT(source_of(client, add_text), TT_FROM_DISK);
  tt_origin_forget();
  tt_client_destroy(client);
  remove_tree(folder);
}

PLUGIN_TEST(cache_replaces_bad_entries_and_tells_once) {
  const char *folder = make_folder();
  tt_client *client = create_client();
  configure(folder);
  CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  char path[PATH_SIZE];
  static char sound[1 << 18], bad[1 << 18];
  only_entry(folder, path);
  size_t size = read_file(path, sound, sizeof sound);
  // A byte of each part of the head and some of the payload.
  const size_t places[] = {0, 7, 8, 12, 16, 24, 32, 40, 72, 104, 110, 140, 180, size / 2, size - 1};
  for (size_t i = 0; i < sizeof places / sizeof *places; ++i) {
    memcpy(bad, sound, size);
    bad[places[i]] ^= 0x10;
    write_file(path, bad, size);
    CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
    CHECK_INT(source_of(client, add_text), TT_FROM_DISK);
  }
  const size_t lengths[] = {0, 1, 8, 50, 104, 120, 170, size / 2, size - 1};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; ++i) {
    write_file(path, sound, lengths[i]);
    CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
    CHECK_INT(source_of(client, add_text), TT_FROM_DISK);
  }
  CHECK_INT(warnings, 1);
  CHECK(strstr(last_warning, "bad entry") != NULL && strstr(last_warning, folder) != NULL);
  // Not files.
  CHECK(remove(path) == 0 && mkdir(path, 0700) == 0);
  CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  CHECK_INT(source_of(client, add_text), TT_FROM_DISK);
  CHECK(remove(path) == 0 && mkfifo(path, 0600) == 0);
  CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  CHECK_INT(source_of(client, add_text), TT_FROM_DISK);
  CHECK_INT(warnings, 1);
  tt_origin_forget();
  tt_client_destroy(client);
  remove_tree(folder);
}

// The checksums are right, but the plugin does not take it.
PLUGIN_TEST(cache_survives_payloads_that_the_plugin_refuses) {
  const char *folder = make_folder();
  tt_client *client = create_client();
  configure(folder);
  CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  char path[PATH_SIZE];
  static char data[1 << 18];
  only_entry(folder, path);
  size_t size = read_file(path, data, sizeof data);
  tt_entry entry;
  CHECK(tt_entry_read(data, size, NULL, &entry) == NULL);
  entry.payload_size /= 2;
  tt_string bytes = TT_STRING_INIT;
  tt_entry_write(&entry, &bytes);
  write_file(path, bytes.data, bytes.size);
  CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  CHECK_INT(source_of(client, add_text), TT_FROM_DISK);
  CHECK_INT(warnings, 1);
  tt_string_free(&bytes);
  tt_origin_forget();
  tt_client_destroy(client);
  remove_tree(folder);
}

// A folder that cannot be made or written stands for read-only and full disks: root may write where permissions forbid it.
PLUGIN_TEST(cache_goes_on_where_it_cannot_write) {
  const char *folder = make_folder();
  char file[PATH_SIZE], inside[PATH_SIZE];
  snprintf(file, sizeof file, "%s/file", folder);
  snprintf(inside, sizeof inside, "%s/file/cache", folder);
  write_file(file, "", 0);
  tt_client *client = create_client();
  configure(inside);
  for (int i = 0; i < 3; ++i) CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  CHECK_INT(warnings, 1);
  CHECK(strstr(last_warning, "cannot be written") != NULL);
  tt_origin_forget();
  configure("/proc/torch_tpu");
  for (int i = 0; i < 3; ++i) CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  tt_origin_forget();
  configure("/dev/full/torch_tpu");
  CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  CHECK_INT(warnings, 1);
  tt_origin_forget();
  tt_client_destroy(client);
  remove_tree(folder);
}

// Files that may only be so long: what a full disk does to a write.
PLUGIN_TEST(cache_goes_on_where_writes_fail_midway) {
  const char *folder = make_folder();
  tt_client *client = create_client();
  configure(folder);
  CHECK_OK(tt_cache_probe(client));
  signal(SIGXFSZ, SIG_IGN);
  struct rlimit before, small;
  CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
  small = before;
  small.rlim_cur = 1000;
  CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
  CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK_INT(warnings, 1);
  CHECK_INT(count_files(folder, "programs") + count_files(folder, "tmp") + count_files(folder, "locks"), 0);
  CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  CHECK_INT(source_of(client, add_text), TT_FROM_DISK);
  tt_origin_forget();
  tt_client_destroy(client);
  remove_tree(folder);
}

PLUGIN_TEST(cache_without_a_home_is_off) {
  unsetenv("HOME");
  unsetenv("XDG_CACHE_HOME");
  tt_cache_set_warner(note_warning);
  tt_client *client = create_client();
  configure("");
  configure("");
  CHECK_INT(warnings, 1);
  CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  tt_cache_info info;
  CHECK_OK(tt_cache_get_info(&info));
  CHECK_TEXT(info.folder, "");
  CHECK_TEXT(info.off_reason, "neither XDG_CACHE_HOME nor HOME names a folder");
  configure("off");
  CHECK_OK(tt_cache_get_info(&info));
  CHECK_TEXT(info.off_reason, "TORCH_TPU_CACHE_DIR=off");
  CHECK_INT(warnings, 1);
  tt_client_destroy(client);
}

PLUGIN_TEST(cache_modes) {
  const char *folder = make_folder();
  tt_client *client = create_client();
  configure(folder);
  CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  configure_with(folder, TT_CACHE_ONLY, 1 << 30);
  CHECK_INT(source_of(client, add_text), TT_FROM_DISK);
  tt_executable *executable = NULL;
  tt_cache_source source;
  const char *text = numbered_text(5);
  CHECK_FAILS(tt_cache_get(client, text, (int64_t)strlen(text), &options, &executable, &source), TT_UNAVAILABLE,
              "has no program add (f32[4]) -> (f32[4]) (key ");
  CHECK_INT(count_files(folder, "misses"), 0);
  configure_with(folder, TT_CACHE_DUMP_ON_MISS, 1 << 30);
  CHECK_INT(source_of(client, add_text), TT_FROM_DISK);
  CHECK_INT(count_files(folder, "misses"), 0);
  CHECK_INT(source_of(client, text), TT_FROM_COMPILER);
  CHECK_INT(source_of(client, text), TT_FROM_DISK);
  CHECK_INT(count_files(folder, "misses"), 1);
  CHECK_FAILS(tt_cache_configure(&(tt_cache_config){.folder = "off", .mode = TT_CACHE_DUMP_ON_MISS}), TT_VALUE,
              "needs a cache folder");
  configure_with("off", TT_CACHE_ONLY, 1 << 30);
  CHECK_FAILS(tt_cache_get(client, text, (int64_t)strlen(text), &options, &executable, &source), TT_UNAVAILABLE,
              "the cache on disk is off: TORCH_TPU_CACHE_DIR=off");
  tt_origin_forget();
  tt_client_destroy(client);
  remove_tree(folder);
}

PLUGIN_TEST(cache_keeps_to_its_limit) {
  const char *folder = make_folder();
  tt_client *client = create_client();
  configure(folder);
  CHECK_INT(source_of(client, numbered_text(20)), TT_FROM_COMPILER);
  tt_cache_info info;
  CHECK_OK(tt_cache_get_info(&info));
  int64_t limit = 5 * info.bytes;
  configure_with(folder, TT_CACHE_NORMAL, limit);
  for (int i = 1; i < 12; ++i) {
    CHECK_INT(source_of(client, numbered_text(i)), TT_FROM_COMPILER);
    CHECK_OK(tt_cache_get_info(&info));
    CHECK(info.bytes <= limit && info.entries >= (i < 3 ? i + 1 : 3));
  }
  CHECK_INT(source_of(client, numbered_text(11)), TT_FROM_DISK);
  configure_with(folder, TT_CACHE_NORMAL, 100); // no entry fits: none is written, and those there are too large to read
  CHECK_INT(source_of(client, numbered_text(50)), TT_FROM_COMPILER);
  CHECK_INT(source_of(client, numbered_text(50)), TT_FROM_COMPILER);
  CHECK_INT(warnings, 0);
  tt_origin_forget();
  tt_client_destroy(client);
  remove_tree(folder);
}

// ---- several at once -------------------------------------------------------------------------------------------------

// A plugin's client does not survive a fork, so each process makes its own; the exit status is the source.
static pid_t start_process(const char *folder, int number) {
  pid_t child = fork();
  if (child != 0) return child;
  configure(folder);
  tt_client *client = create_client();
  _exit((int)source_of(client, numbered_text(number)));
}

static int end_of(pid_t child) {
  int state = -1;
  CHECK(waitpid(child, &state, 0) == child && WIFEXITED(state));
  return WEXITSTATUS(state);
}

PLUGIN_TEST(cache_compiles_once_for_several_processes) {
  const char *folder = make_folder();
  pid_t children[3];
  for (int i = 0; i < 3; ++i) children[i] = start_process(folder, 77);
  int compiled = 0;
  for (int i = 0; i < 3; ++i) {
    int source = end_of(children[i]);
    CHECK(source == TT_FROM_COMPILER || source == TT_FROM_DISK);
    compiled += source == TT_FROM_COMPILER;
  }
  CHECK_INT(compiled, 1);
  CHECK_INT(count_files(folder, "programs"), 1);
  CHECK_INT(count_files(folder, "locks") + count_files(folder, "tmp"), 0);
  remove_tree(folder);
}

// Who holds the lock and dies leaves the program to the others.
PLUGIN_TEST(cache_takes_over_from_a_process_that_was_killed) {
  const char *folder = make_folder();
  char name[PATH_SIZE], path[PATH_SIZE + 8];
  CHECK_INT(end_of(start_process(folder, 78)), TT_FROM_COMPILER);
  only_entry(folder, path);
  snprintf(name, sizeof name, "%s", strrchr(path, '/') + 1);
  CHECK(remove(path) == 0);
  int ready[2];
  CHECK(pipe(ready) == 0);
  pid_t holder = fork();
  if (holder == 0) {
    tt_disk disk = disk_in(folder);
    int lock = tt_disk_lock(&disk, name);
    char byte = lock >= 0;
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte = 0;
  CHECK(read(ready[0], &byte, 1) == 1 && byte == 1);
  pid_t waiting = start_process(folder, 78);
  nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
  CHECK_INT(waitpid(waiting, NULL, WNOHANG), 0); // it waits, whatever is slow about its start
  kill(holder, SIGKILL);
  waitpid(holder, NULL, 0);
  CHECK_INT(end_of(waiting), TT_FROM_COMPILER);
  CHECK_INT(end_of(start_process(folder, 78)), TT_FROM_DISK);
  close(ready[0]);
  close(ready[1]);
  remove_tree(folder);
}

typedef struct worker {
  tt_client *client;
  char text[512];
} worker;

static void *work(void *user) {
  worker *w = user;
  for (int i = 0; i < 20; ++i) {
    tt_executable *executable = NULL;
    tt_cache_source source;
    CHECK_OK(tt_cache_get(w->client, w->text, (int64_t)strlen(w->text), &options, &executable, &source));
    tt_executable_release(executable);
    if (i % 3 == 0) tt_cache_clear();
  }
  return NULL;
}

PLUGIN_TEST(cache_serves_threads) {
  const char *folder = make_folder();
  tt_client *client = create_client();
  configure_with(folder, TT_CACHE_NORMAL, 12000); // so that entries are evicted while others read them
  static worker workers[4];
  pthread_t threads[4];
  for (int i = 0; i < 4; ++i) {
    workers[i].client = client;
    snprintf(workers[i].text, sizeof workers[i].text, "%s", numbered_text(i % 3));
    CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
  }
  for (int i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
  CHECK_INT(warnings, 0);
  tt_cache_clear();
  tt_origin_forget();
  tt_client_destroy(client);
  remove_tree(folder);
}

// ---- the remote tier -------------------------------------------------------------------------------------------------

static struct {
  char name[TT_SHA256_TEXT_SIZE];
  char bytes[1 << 18];
  size_t size;
  int fetched, stored;
} store;

static void fetch_entry(const char *name, void (*accept)(void *sink, const void *bytes, size_t size), void *sink) {
  store.fetched++;
  if (store.size && strcmp(name, store.name) == 0) accept(sink, store.bytes, store.size);
}

static void store_entry(const char *name, const void *bytes, size_t size) {
  store.stored++;
  CHECK(size <= sizeof store.bytes);
  snprintf(store.name, sizeof store.name, "%s", name);
  memcpy(store.bytes, bytes, size);
  store.size = size;
}

PLUGIN_TEST(cache_reads_and_writes_a_remote_store) {
  const char *folder = make_folder();
  char path[PATH_SIZE];
  tt_client *client = create_client();
  configure(folder);
  tt_cache_set_remote(&(tt_cache_remote){fetch_entry, store_entry});
  CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  CHECK(store.fetched == 1 && store.stored == 1);
  only_entry(folder, path);
  CHECK_INT(source_of(client, add_text), TT_FROM_DISK); // the nearer tier comes first
  CHECK_INT(store.fetched, 1);
  CHECK(remove(path) == 0);
  tt_executable *executable = NULL;
  CHECK_INT(get(client, add_text, &executable), TT_FROM_REMOTE);
  check_adds(client, executable);
  tt_executable_release(executable);
  CHECK_INT(source_of(client, add_text), TT_FROM_DISK); // it was kept
  CHECK_INT(store.stored, 1);                           // and not sent back
  // What it gives is checked.
  CHECK(remove(path) == 0);
  store.bytes[store.size - 1] ^= 1;
  CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  CHECK_INT(warnings, 1);
  CHECK(strstr(last_warning, "remote compile cache has a bad entry") != NULL);
  CHECK_INT(store.stored, 2); // the sound one replaces it
  CHECK(remove(path) == 0);
  configure_with(folder, TT_CACHE_ONLY, 1 << 30);
  CHECK_INT(source_of(client, add_text), TT_FROM_REMOTE);
  // By hand.
  bool kept = false;
  CHECK(remove(path) == 0);
  CHECK_OK(tt_cache_import(store.name, store.bytes, store.size, &kept));
  CHECK(kept);
  CHECK_INT(source_of(client, add_text), TT_FROM_DISK);
  CHECK_OK(tt_cache_import(name_of(1), store.bytes, store.size, &kept));
  CHECK(!kept); // not the name of that program
  store.bytes[50] ^= 1;
  CHECK_OK(tt_cache_import(store.name, store.bytes, store.size, &kept));
  CHECK(!kept);
  tt_cache_set_remote(NULL);
  tt_origin_forget();
  tt_client_destroy(client);
  remove_tree(folder);
}

typedef struct listing {
  int count;
  char description[256];
  double compile_seconds, used;
} listing;

static void list_entry(void *user, const tt_cache_item *item) {
  listing *l = user;
  l->count++;
  l->compile_seconds = item->compile_seconds;
  l->used = item->used;
  snprintf(l->description, sizeof l->description, "%s", item->description);
}

PLUGIN_TEST(cache_lists_its_entries) {
  const char *folder = make_folder();
  tt_client *client = create_client();
  configure(folder);
  double before = (double)time(NULL);
  CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  listing l = {0};
  CHECK_OK(tt_cache_each(list_entry, &l));
  CHECK_INT(l.count, 1);
  CHECK_TEXT(l.description, "add (f32[4], f32[4]) -> (f32[4])");
  CHECK(l.compile_seconds > 0 && l.used >= before);
  int64_t entries = 0, bytes = 0;
  CHECK_OK(tt_cache_clear_folder(-1, &entries, &bytes));
  CHECK(entries == 1 && bytes > 0);
  CHECK_INT(source_of(client, add_text), TT_FROM_COMPILER);
  tt_origin_forget();
  tt_client_destroy(client);
  remove_tree(folder);
}

// ---- failing allocations ---------------------------------------------------------------------------------------------

static tt_status get_once(void *user) {
  tt_executable *executable = NULL;
  tt_cache_source source;
  tt_cache_clear();
  tt_status status = tt_cache_get(user, add_text, sizeof add_text - 1, &options, &executable, &source);
  if (!status) tt_executable_release(executable);
  tt_cache_clear();
  return status;
}

static tt_status get_from_disk(void *user) { return get_once(user); }

static tt_status get_compiled(void *user) {
  int64_t entries, bytes;
  tt_status_free(tt_cache_clear_folder(-1, &entries, &bytes));
  return get_once(user);
}

static tt_status find_origin(void *user) {
  tt_origin_forget();
  tt_status status = get_once(user);
  tt_origin_forget();
  return status;
}

PLUGIN_TEST(cache_allocations_may_fail) {
  const char *folder = make_folder();
  tt_client *client = create_client();
  configure(folder);
  CHECK_OK(tt_cache_probe(client));
  test_each_allocation_failing(get_compiled, client);
  CHECK_INT(source_of(client, add_text) == TT_FROM_MEMORY, 0);
  test_each_allocation_failing(get_from_disk, client);
  test_each_allocation_failing(find_origin, client);
  CHECK_INT(source_of(client, add_text), TT_FROM_DISK); // no entry was taken for a bad one
  CHECK_INT(warnings, 0);
  tt_origin_forget();
  tt_client_destroy(client);
  remove_tree(folder);
}

// ---- a plugin that cannot ------------------------------------------------------------------------------------------------

TEST(cache_is_off_for_a_plugin_that_does_not_serialise) {
  const char *path = getenv("TT_FAKE_PLUGIN"), *folder = make_folder();
  int64_t live = tt_memory_live_count();
  tt_plugin *plugin = NULL;
  tt_client *client = NULL;
  setenv("TT_FAKE_PLUGIN_FAULT", "serialize", 1);
  CHECK_OK(tt_plugin_open_file(path, &plugin));
  test_keeps_blocks(tt_memory_live_count() - live);
  CHECK_OK(tt_client_create(plugin, 0, &client));
  configure(folder);
  CHECK_INT(source_of(client, "program"), TT_FROM_COMPILER);
  CHECK_INT(source_of(client, "program"), TT_FROM_COMPILER);
  CHECK_INT(count_files(folder, "programs"), 0);
  CHECK_INT(warnings, 0);
  tt_cache_info info;
  CHECK_OK(tt_cache_get_info(&info));
  CHECK(strstr(info.off_reason, "the plugin has no PJRT_Executable_Serialize") != NULL);
  // Known from the record next time.
  tt_origin_forget();
  configure(folder);
  CHECK_OK(tt_cache_probe(client));
  CHECK_OK(tt_cache_get_info(&info));
  CHECK(strstr(info.off_reason, "the plugin has no PJRT_Executable_Serialize") != NULL);
  tt_origin_forget();
  tt_client_destroy(client);
  remove_tree(folder);
}
