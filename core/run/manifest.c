// manifest.c - see manifest.h. What it says is checked before it is used: a folder may come from anywhere.
#include "run/manifest.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"

enum { FORMAT_VERSION = 1 };

static tt_status out_of_memory(void) {
  return tt_error(TT_OUT_OF_MEMORY, "out of host memory while reading an exported program");
}

// --- files -----------------------------------------------------------------------------------------------------------------

static tt_status read_all(FILE *file, const char *path, tt_string *out) {
  char block[1 << 16];
  while (!feof(file) && !ferror(file)) tt_string_append_n(out, block, fread(block, 1, sizeof block, file));
  if (ferror(file)) return tt_error(TT_VALUE, "%s: %s", path, strerror(errno));
  return tt_string_status(out);
}

// `name` is a file of the folder itself.
static tt_status read_file(const char *folder, const char *name, tt_string *out) {
  if (strchr(name, '/')) return tt_error(TT_VALUE, "\"%s\" is not the name of a file in the folder", name);
  tt_string path = TT_STRING_INIT;
  tt_string_printf(&path, "%s/%s", folder, name);
  tt_status status = tt_string_status(&path);
  FILE *file = status ? NULL : fopen(tt_string_text(&path), "rb");
  if (!status && !file) status = tt_error(TT_VALUE, "%s: %s", tt_string_text(&path), strerror(errno));
  if (file) {
    status = read_all(file, tt_string_text(&path), out);
    fclose(file);
  }
  tt_string_free(&path);
  return status;
}

// --- values ----------------------------------------------------------------------------------------------------------------

static tt_status find_dtype(const char *text, tt_dtype *out_dtype) {
  for (int i = TT_DTYPE_NONE + 1; i < TT_DTYPE_COUNT; ++i) {
    *out_dtype = (tt_dtype)i;
    if (strcmp(tt_dtype_hlo(*out_dtype), text) == 0) return TT_SUCCESS;
  }
  return tt_error(TT_VALUE, "unknown dtype \"%s\"", text);
}

static tt_status find_code(const char *text, tt_code *out_code) {
#define X(name, python, meaning)                                                                                        \
  if (strcmp(#name, text) == 0) {                                                                                       \
    *out_code = TT_##name;                                                                                              \
    return TT_SUCCESS;                                                                                                  \
  }
  TT_CODES(X)
#undef X
  return tt_error(TT_VALUE, "unknown error \"%s\"", text);
}

static tt_status read_shape(const tt_json *json, tt_manifest_value *value) {
  const tt_json *shape;
  TT_TRY(tt_json_items(json, "shape", &shape));
  if (shape->count > TT_MAX_RANK) return tt_error(TT_VALUE, "more than %d dimensions", TT_MAX_RANK);
  int64_t dims[TT_MAX_RANK];
  int rank = 0;
  for (const tt_json *dim = shape->first; dim; dim = dim->next) {
    if (dim->kind != TT_JSON_NUMBER || !dim->is_integer || dim->integer < 0)
      return tt_error(TT_VALUE, "\"shape\" is not a list of sizes");
    dims[rank++] = dim->integer;
  }
  TT_TRY(tt_layout_intern(value->public.dtype, rank, dims, &value->layout));
  value->public.rank = rank;
  value->public.dims = value->layout->dims;
  value->public.byte_size = value->layout->byte_size;
  return TT_SUCCESS;
}

static tt_status read_value(const tt_json *json, tt_manifest_value *value) {
  const char *dtype;
  TT_TRY(tt_json_text(json, "kind", &value->public.kind));
  TT_TRY(tt_json_text(json, "name", &value->public.name));
  TT_TRY(tt_json_text(json, "dtype", &dtype));
  TT_TRY(find_dtype(dtype, &value->public.dtype));
  return read_shape(json, value);
}

static tt_status read_input(const tt_manifest *m, const tt_json *json, tt_manifest_value *value) {
  TT_TRY(read_value(json, value));
  if (strcmp(value->public.kind, "user_input") == 0) return TT_SUCCESS;
  int64_t offset, end;
  TT_TRY(tt_json_integer(json, "offset", &offset));
  if (!tt_add_i64(offset, value->layout->byte_size, &end) || end > (int64_t)m->weights.size)
    return tt_error(TT_VALUE, "\"%s\" lies outside of the weights", value->public.name);
  value->data = tt_string_text(&m->weights) + offset;
  return TT_SUCCESS;
}

static tt_status read_output(tt_manifest *m, const tt_json *json, tt_manifest_value *value) {
  TT_TRY(read_value(json, value));
  if (strcmp(value->public.kind, "check") != 0)
    return m->check_count ? tt_error(TT_VALUE, "an output behind the checks") : TT_SUCCESS;
  const char *code;
  TT_TRY(tt_json_text(json, "message", &value->message));
  TT_TRY(tt_json_text(json, "error", &code));
  if (value->public.dtype != TT_BOOL || value->public.rank != 0) return tt_error(TT_VALUE, "a check that is no i1");
  ++m->check_count;
  return find_code(code, &value->code);
}

// Reads the list `name` of inputs or outputs.
static tt_status read_values(tt_manifest *m, const tt_json *document, const char *name, tt_manifest_value **out_values,
                             int *out_count) {
  const tt_json *list;
  TT_TRY(tt_json_items(document, name, &list));
  *out_values = tt_arena_allocate(&m->arena, (size_t)list->count + 1, sizeof **out_values);
  if (!*out_values) return out_of_memory();
  *out_count = 0;
  bool are_inputs = strcmp(name, "inputs") == 0;
  for (const tt_json *item = list->first; item; item = item->next, ++*out_count) {
    tt_manifest_value *value = &(*out_values)[*out_count];
    TT_TRY_CONTEXT(are_inputs ? read_input(m, item, value) : read_output(m, item, value), "%s, entry %d", name,
                   *out_count);
  }
  return TT_SUCCESS;
}

// --- the document ------------------------------------------------------------------------------------------------------------

static tt_status check_format(const tt_json *document) {
  const char *format;
  int64_t version;
  TT_TRY(tt_json_text(document, "format", &format));
  TT_TRY(tt_json_integer(document, "version", &version));
  if (strcmp(format, "torch_tpu.export") != 0) return tt_error(TT_VALUE, "the format \"%s\" is another", format);
  if (version != FORMAT_VERSION)
    return tt_error(TT_VALUE, "version %lld of the format, this is for %d", (long long)version, FORMAT_VERSION);
  return TT_SUCCESS;
}

static tt_status read_document(const char *folder, const tt_json *document, tt_manifest *m) {
  const char *program, *weights;
  TT_TRY(check_format(document));
  TT_TRY(tt_json_text(document, "name", &m->name));
  TT_TRY(tt_json_text(tt_json_member(document, "program"), "file", &program));
  TT_TRY(tt_json_text(tt_json_member(document, "weights"), "file", &weights));
  const tt_json *exact = tt_json_member(document, "exact");
  m->exact = exact && exact->kind == TT_JSON_BOOL && exact->integer;
  TT_TRY(read_file(folder, program, &m->program));
  TT_TRY(read_file(folder, weights, &m->weights));
  m->code = tt_string_text(&m->program);
  m->code_size = (int64_t)m->program.size;
  TT_TRY(read_values(m, document, "inputs", &m->inputs, &m->input_count));
  return read_values(m, document, "outputs", &m->outputs, &m->output_count);
}

static tt_status read(const char *folder, tt_string *text, tt_manifest *m) {
  const tt_json *document;
  TT_TRY(read_file(folder, "manifest.json", text));
  tt_status status = tt_json_read(tt_string_text(text), text->size, &m->arena, &document);
  if (!status) status = read_document(folder, document, m);
  return tt_status_context(status, "%s/manifest.json", folder);
}

tt_status tt_manifest_read(const char *folder, tt_manifest *out_manifest) {
  *out_manifest = (tt_manifest){.arena = TT_ARENA_INIT, .program = TT_STRING_INIT, .weights = TT_STRING_INIT};
  tt_string text = TT_STRING_INIT;
  tt_status status = read(folder, &text, out_manifest);
  tt_string_free(&text);
  if (status) tt_manifest_free(out_manifest);
  return status;
}

void tt_manifest_free(tt_manifest *m) {
  tt_arena_clear(&m->arena);
  tt_string_free(&m->program);
  tt_string_free(&m->weights);
}
