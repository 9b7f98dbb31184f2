// collect.c - writes down what calls would be on a TPU; see aot.h.
//
// `collection.lock` guards all of it and is held while a call is lowered and written: collecting is not made for speed.
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "aot/aot.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/string.h"
#include "run/internal.h"
#include "run/record.h"

static const int generations[] = {5, 6, 7};

static struct {
  pthread_mutex_t lock;
  char *folder;      // NULL: not collecting
  tt_status failure; // the first
} collection = {.lock = PTHREAD_MUTEX_INITIALIZER};

// --- one file ----------------------------------------------------------------------------------------------------------------

static tt_status file_error(const char *path) {
  return tt_error(TT_VALUE, "cannot write %s: %s", path, strerror(errno));
}

// Under another name first: a reader, or a process that dies, never leaves half a file.
static tt_status write_file(const char *path, const tt_string *content) {
  tt_string temporary = TT_STRING_INIT;
  tt_string_printf(&temporary, "%s.%ld", path, (long)getpid());
  tt_status status = tt_string_status(&temporary);
  FILE *file = status ? NULL : fopen(tt_string_text(&temporary), "we");
  if (!status && !file) status = file_error(path);
  if (file) {
    bool written = fwrite(tt_string_text(content), 1, content->size, file) == content->size;
    written = fclose(file) == 0 && written;
    if (!written || rename(tt_string_text(&temporary), path) != 0) status = file_error(path);
  }
  tt_string_free(&temporary);
  return status;
}

// What several generations have in common.
typedef struct entry {
  tt_string generations; // " 5 6 7"
  tt_string program;     // or the line "// error: ..."
} entry;

static tt_status write_entry(const tt_call *call, const entry *e) {
  if (e->program.size == 0) return TT_SUCCESS;
  uint64_t hash = tt_hash(e->program.data, e->program.size) ^ tt_hash(e->generations.data, e->generations.size);
  const char *row = call->overload->op->name;
  tt_string path = TT_STRING_INIT, content = TT_STRING_INIT;
  tt_string_printf(&path, "%s/%s-%016llx.mlir", collection.folder, row, (unsigned long long)hash);
  tt_status status = tt_string_status(&path);
  if (!status && access(tt_string_text(&path), F_OK) != 0) {
    tt_string_printf(&content, "// row: %s\n// call: ", row);
    tt_call_describe(call, &content);
    tt_string_printf(&content, "\n// generations:%s\n", tt_string_text(&e->generations));
    tt_string_append_n(&content, e->program.data, e->program.size);
    status = tt_string_status(&content);
    if (!status) status = write_file(tt_string_text(&path), &content);
  }
  tt_string_free(&path);
  tt_string_free(&content);
  return status;
}

// --- one call ----------------------------------------------------------------------------------------------------------------

// The call's program on a TPU of this generation, or the reason why there is none; empty when it needs none (a view).
static tt_status lower_for(const tt_call *call, int generation, tt_string *out_program) {
  tt_target target = tt_tpu_target(generation);
  tt_recorder recorder;
  tt_plan_request request;
  tt_plan *plan = NULL;
  tt_status status = tt_call_lower(call, &target, &recorder, &request);
  if (!status) status = tt_plan_create(&recorder, &request, &plan);
  if (!status && plan->program) status = tt_program_text(plan->program, out_program);
  if (!status) tt_plan_release(plan);
  tt_recorder_free(&recorder);
  if (status && tt_status_code(status) != TT_OUT_OF_MEMORY) {
    tt_string_printf(out_program, "// error: %s\n", tt_status_message(status));
    tt_status_free(status);
    status = TT_SUCCESS;
  }
  return tt_status_join(status, tt_string_status(out_program));
}

static bool same_text(const tt_string *a, const tt_string *b) {
  return a->size == b->size && (a->size == 0 || memcmp(a->data, b->data, a->size) == 0);
}

static tt_status collect_locked(const tt_call *call) {
  entry last = {TT_STRING_INIT, TT_STRING_INIT};
  tt_status status = TT_SUCCESS;
  for (size_t i = 0; i < sizeof generations / sizeof *generations && !status; ++i) {
    tt_string program = TT_STRING_INIT;
    status = lower_for(call, generations[i], &program);
    if (!status && !same_text(&program, &last.program)) {
      status = write_entry(call, &last);
      tt_string_clear(&last.generations);
    }
    tt_string_free(&last.program);
    last.program = program;
    tt_string_printf(&last.generations, " %d", generations[i]);
  }
  if (!status) status = write_entry(call, &last);
  tt_string_free(&last.generations);
  tt_string_free(&last.program);
  return status;
}

static void collect_call(const tt_call *call) {
  pthread_mutex_lock(&collection.lock);
  if (collection.folder) collection.failure = tt_status_join(collection.failure, collect_locked(call));
  pthread_mutex_unlock(&collection.lock);
}

tt_status tt_aot_collect(const char *folder) {
  char *copy = folder ? tt_strdup(folder) : NULL;
  if (folder && !copy) return tt_error(TT_OUT_OF_MEMORY, "host memory is exhausted");
  pthread_mutex_lock(&collection.lock);
  tt_free(collection.folder);
  collection.folder = copy;
  tt_status failure = collection.failure;
  collection.failure = TT_SUCCESS;
  pthread_mutex_unlock(&collection.lock);
  tt_set_lowering_observer(folder ? collect_call : NULL);
  return failure;
}
