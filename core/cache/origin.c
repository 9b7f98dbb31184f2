// origin.c - see origin.h.
//
// `lock` guards `known`.
#include "cache/origin.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "base/string.h"
#include "cache/entry.h"
#include "pjrt/executable.h"
#include "pjrt/plugin.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  const tt_client *client; // NULL: nothing is known
  uint8_t digest[TT_SHA256_SIZE];
  char *refusal; // NULL: none
} known;

// What is known of a plugin file.
typedef struct plugin_facts {
  char hash[TT_SHA256_TEXT_SIZE];
  tt_string refusal; // why it does not serialise; empty if it does
} plugin_facts;

// ---- the plugin file -------------------------------------------------------------------------------------------------

// Changes whenever the file does, but for what only a clock set back could hide; ctime cannot be set at will.
static void describe_file(const char *path, const struct stat *file, tt_string *out) {
  tt_string_printf(out, "torch_tpu plugin %d\n%s\n%lld %lld.%09ld %lld.%09ld %lld %lld\n", TT_ENTRY_VERSION, path,
                   (long long)file->st_size, (long long)file->st_mtim.tv_sec, file->st_mtim.tv_nsec,
                   (long long)file->st_ctim.tv_sec, file->st_ctim.tv_nsec, (long long)file->st_ino,
                   (long long)file->st_dev);
}

static bool hash_file(const char *path, char out_hash[TT_SHA256_TEXT_SIZE]) {
  FILE *file = fopen(path, "re");
  if (!file) return false;
  static char block[1 << 16]; // under `lock`
  tt_sha256 hash;
  uint8_t digest[TT_SHA256_SIZE];
  tt_sha256_start(&hash);
  while (!feof(file) && !ferror(file)) tt_sha256_add(&hash, block, fread(block, 1, sizeof block, file));
  bool whole = !ferror(file);
  fclose(file);
  tt_sha256_finish(&hash, digest);
  tt_sha256_text(digest, out_hash);
  return whole;
}

static const char probe_text[] = "module @probe {\n"
                                 "func.func public @main(%0: tensor<f32>) -> tensor<f32> {\n"
                                 "%1 = stablehlo.add %0, %0 : tensor<f32>\n"
                                 "return %1 : tensor<f32>\n"
                                 "}\n"
                                 "}\n";

// Compiles, writes and loads a small program. A failure is one of the plugin.
static tt_status probe(tt_client *client) {
  static const tt_compile_options options = {.effort = TT_EFFORT_LEAST};
  const int64_t size = sizeof probe_text - 1;
  tt_executable *compiled = NULL, *loaded = NULL;
  tt_string bytes = TT_STRING_INIT;
  tt_status status = tt_executable_compile(client, probe_text, size, &options, &compiled);
  if (!status) status = tt_executable_serialize(compiled, &bytes);
  if (!status) status = tt_executable_load(client, probe_text, size, bytes.data, bytes.size, &loaded);
  tt_executable_release(loaded);
  tt_executable_release(compiled);
  tt_string_free(&bytes);
  return status;
}

// A record is the description of the file, the hash, the refusal, and the hash of all that.
static bool read_record(const tt_string *record, const tt_string *description, plugin_facts *facts) {
  const size_t hash_size = TT_SHA256_TEXT_SIZE - 1;
  if (record->size < description->size + 2 * hash_size + 3) return false;
  if (memcmp(record->data, description->data, description->size) != 0) return false;
  size_t checked = record->size - hash_size - 1;
  uint8_t digest[TT_SHA256_SIZE];
  char check[TT_SHA256_TEXT_SIZE];
  tt_sha256_of(record->data, checked, digest);
  tt_sha256_text(digest, check);
  if (memcmp(check, record->data + checked, hash_size) != 0) return false;
  memcpy(facts->hash, record->data + description->size, hash_size);
  size_t refusal = description->size + hash_size + 1;
  tt_string_append_n(&facts->refusal, record->data + refusal, checked - 1 - refusal);
  return true;
}

static void write_record(const tt_disk *disk, const char *name, const tt_string *description,
                         const plugin_facts *facts) {
  tt_string record = TT_STRING_INIT;
  tt_string_printf(&record, "%s%s\n%s\n", tt_string_text(description), facts->hash, tt_string_text(&facts->refusal));
  uint8_t digest[TT_SHA256_SIZE];
  char check[TT_SHA256_TEXT_SIZE];
  tt_sha256_of(record.data, record.size, digest);
  tt_sha256_text(digest, check);
  tt_string_printf(&record, "%s\n", check);
  // Without a record the next process reads the file again.
  if (!record.failed) tt_status_free(tt_disk_put(disk, "plugins", name, record.data, record.size));
  tt_string_free(&record);
}

// Reads the plugin file and tries the plugin out.
static tt_status examine(const tt_disk *disk, tt_client *client, const char *path, const char *name,
                         const tt_string *description, plugin_facts *facts) {
  if (!hash_file(path, facts->hash)) {
    tt_string_printf(&facts->refusal, "%s cannot be read: %s", path, strerror(errno));
    return tt_string_status(&facts->refusal);
  }
  tt_status status = probe(client);
  if (tt_status_code(status) == TT_OUT_OF_MEMORY) return status;
  if (status) tt_string_printf(&facts->refusal, "the plugin cannot save programs: %s", tt_status_message(status));
  for (size_t i = 0; i < facts->refusal.size; ++i)
    if (facts->refusal.data[i] == '\n') facts->refusal.data[i] = ' ';
  tt_status_free(status);
  TT_TRY(tt_string_status(&facts->refusal));
  write_record(disk, name, description, facts);
  return TT_SUCCESS;
}

static tt_status find_facts(const tt_disk *disk, tt_client *client, plugin_facts *facts) {
  const char *path = tt_plugin_path(tt_client_plugin(client));
  struct stat file;
  if (stat(path, &file) != 0) {
    tt_string_printf(&facts->refusal, "%s cannot be read: %s", path, strerror(errno));
    return tt_string_status(&facts->refusal);
  }
  uint8_t digest[TT_SHA256_SIZE];
  char name[TT_SHA256_TEXT_SIZE];
  tt_sha256_of(path, strlen(path), digest);
  tt_sha256_text(digest, name);
  tt_string description = TT_STRING_INIT, record = TT_STRING_INIT;
  describe_file(path, &file, &description);
  tt_status status = tt_string_status(&description);
  bool found = false;
  // A record that cannot be read is made anew.
  if (!status) tt_status_free(tt_disk_get(disk, "plugins", name, false, &record, &found));
  if (!status && !(found && read_record(&record, &description, facts)))
    status = examine(disk, client, path, name, &description, facts);
  tt_string_free(&record);
  tt_string_free(&description);
  return status ? status : tt_string_status(&facts->refusal);
}

// ---- the rest --------------------------------------------------------------------------------------------------------

// The lines of /proc/cpuinfo that say which code runs here, for x86, Arm, RISC-V and POWER.
static bool names_the_cpu(const char *line) {
  static const char *const names[] = {
      "vendor_id",        "cpu family",  "model",    "flags", "Features", "CPU implementer",
      "CPU architecture", "CPU variant", "CPU part", "isa",   "uarch",    "cpu\t"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
    if (strncmp(line, names[i], strlen(names[i])) == 0) return true;
  return false;
}

// Of the first processor, and how many there are for this process, since loops are cut up by that. False if not known.
static bool add_cpu(tt_string *out) {
  FILE *file = fopen("/proc/cpuinfo", "re");
  if (!file) return false;
  char *line = NULL;
  size_t room = 0, before = out->size;
  while (getline(&line, &room, file) > 1)
    if (names_the_cpu(line)) tt_string_append(out, line);
  free(line);
  fclose(file);
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  int count = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : -1;
  bool any = out->size > before;
  tt_string_printf(out, "%d processors\n", count);
  return any;
}

static void add_variable(tt_string *out, const char *name) {
  const char *value = getenv(name);
  tt_string_printf(out, "%s=%s\n", name, value ? value : "");
}

static tt_status describe(tt_client *client, plugin_facts *facts, tt_string *out) {
  int major, minor;
  tt_plugin_version(tt_client_plugin(client), &major, &minor);
  tt_string_printf(out, "entries %d\nplugin %s\nPJRT %d.%d\n%s\n%s\n%d devices %s\n", TT_ENTRY_VERSION, facts->hash,
                   major, minor, tt_client_platform(client), tt_client_platform_version(client),
                   tt_client_device_count(client), tt_client_device(client, 0)->kind);
  add_variable(out, "XLA_FLAGS");
  add_variable(out, "LIBTPU_INIT_ARGS");
  if (tt_client_is_host(client) && !add_cpu(out))
    tt_string_append(&facts->refusal, "this CPU's features are not known");
  return tt_string_status(out);
}

// Under `lock`.
static tt_status find_out(const tt_disk *disk, tt_client *client) {
  plugin_facts facts = {.refusal = TT_STRING_INIT};
  tt_string text = TT_STRING_INIT;
  tt_status status = find_facts(disk, client, &facts);
  if (!status) status = describe(client, &facts, &text);
  if (!status) status = tt_string_status(&facts.refusal);
  tt_free(known.refusal);
  known.refusal = NULL;
  known.client = NULL;
  if (!status && facts.refusal.size > 0) {
    known.refusal = tt_strdup(facts.refusal.data);
    if (!known.refusal) status = tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted");
  }
  if (!status) {
    tt_sha256_of(text.data, text.size, known.digest);
    known.client = client;
  }
  tt_string_free(&text);
  tt_string_free(&facts.refusal);
  return status;
}

tt_status tt_origin_get(const tt_disk *disk, tt_client *client, uint8_t out_digest[TT_SHA256_SIZE],
                        const char **out_refusal) {
  tt_status status = TT_SUCCESS;
  pthread_mutex_lock(&lock);
  if (known.client != client) status = find_out(disk, client);
  if (!status) {
    memcpy(out_digest, known.digest, TT_SHA256_SIZE);
    *out_refusal = known.refusal;
  }
  pthread_mutex_unlock(&lock);
  return status;
}

void tt_origin_forget(void) {
  pthread_mutex_lock(&lock);
  tt_free(known.refusal);
  known.refusal = NULL;
  known.client = NULL;
  pthread_mutex_unlock(&lock);
}
