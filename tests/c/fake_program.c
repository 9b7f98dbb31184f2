// fake_program.c - see fake_program.h. Reads the text that core/hlo writes: one op a line.
#include "fake_program.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- types -----------------------------------------------------------------------------------------------------------

int64_t fake_type_bytes(const fake_type *type) {
  int64_t bytes = type->element.bytes;
  for (int i = 0; i < type->rank; i++) bytes *= type->dims[i];
  return bytes;
}

static fake_element read_element(const char *at) {
  if (strncmp(at, "complex<f", 9) == 0) return (fake_element){'c', atoi(at + 9) / 4};
  if (strncmp(at, "i1>", 3) == 0) return (fake_element){'p', 1};
  if (strncmp(at, "f16", 3) == 0 || strncmp(at, "bf16", 4) == 0) return (fake_element){'h', 2};
  if (strncmp(at, "f8", 2) == 0) return (fake_element){'x', 1};
  if (at[0] == 'u') return (fake_element){'u', atoi(at + 2) / 8};
  return (fake_element){at[0], atoi(at + 1) / 8};
}

// Behind "tensor<".
static fake_type read_type(const char *at) {
  fake_type type = {.rank = 0};
  while (isdigit((unsigned char)*at) && type.rank < FAKE_MAX_RANK) {
    char *end;
    type.dims[type.rank++] = strtoll(at, &end, 10);
    at = end + 1; // the 'x'
  }
  type.element = read_element(at);
  return type;
}

double fake_element_get(fake_element element, const void *data) {
  union {
    float f;
    double d;
    int8_t i8;
    int16_t i16;
    int32_t i32;
    int64_t i64;
  } u = {.i64 = 0};
  if (element.kind == 'h' || element.kind == 'x') return 0;
  if (element.kind == 'c') element = (fake_element){'f', element.bytes / 2};
  memcpy(&u, data, (size_t)element.bytes);
  if (element.kind == 'f') return element.bytes == 4 ? (double)u.f : u.d;
  return (double)(element.bytes == 1 ? u.i8 : element.bytes == 2 ? u.i16 : element.bytes == 4 ? u.i32 : u.i64);
}

void fake_element_fill(fake_element element, void *data, int64_t bytes, double value) {
  char one[16] = {0};
  float single = (float)value;
  int64_t integer = (int64_t)value;
  fake_element part = element.kind == 'c' ? (fake_element){'f', element.bytes / 2} : element;
  if (part.kind == 'f' && part.bytes == 4)
    memcpy(one, &single, sizeof single);
  else if (part.kind == 'f')
    memcpy(one, &value, sizeof value);
  else if (part.kind != 'h' && part.kind != 'x')
    memcpy(one, &integer, (size_t)part.bytes); // little-endian, as everything that runs this
  for (int64_t i = 0; i + element.bytes <= bytes; i += element.bytes)
    memcpy((char *)data + i, one, (size_t)element.bytes);
}

// ---- the signature ---------------------------------------------------------------------------------------------------

// Copies a name, which begins behind '%'.
static size_t read_name(const char *at, char out[16]) {
  size_t size = 0;
  while (size < 15 && (isalnum((unsigned char)at[size]) || at[size] == '_' || at[size] == '#')) {
    out[size] = at[size];
    size++;
  }
  out[size] = '\0';
  return size;
}

static bool read_arguments(fake_program *p, const char *at, const char *end) {
  static const char alias[] = "tf.aliasing_output = ";
  while ((at = memchr(at, '%', (size_t)(end - at))) != NULL) {
    if (p->argument_count == FAKE_MAX_ARGUMENTS) return false;
    int i = p->argument_count++;
    at += 1 + read_name(at + 1, p->argument_names[i]);
    const char *next = memchr(at, '%', (size_t)(end - at));
    const char *found = memmem(at, (size_t)((next ? next : end) - at), alias, sizeof alias - 1);
    p->aliases[i] = found ? atoi(found + sizeof alias - 1) : -1;
  }
  return true;
}

static bool read_outputs(fake_program *p, const char *at, const char *end) {
  while ((at = memmem(at, (size_t)(end - at), "tensor<", 7)) != NULL) {
    if (p->output_count == FAKE_MAX_OUTPUTS) return false;
    at += 7;
    p->outputs[p->output_count++] = read_type(at);
  }
  return true;
}

fake_program *fake_program_read(const char *text, size_t size) {
  fake_program *p = calloc(1, sizeof *p);
  char *copy = p ? malloc(size + 1) : NULL;
  if (!copy) abort();
  memcpy(copy, text, size);
  copy[size] = '\0';
  p->text = copy;
  p->size = size;
  const char *open = strstr(copy, "@main("), *arrow = open ? strstr(open, ") -> ") : NULL;
  const char *brace = arrow ? strstr(arrow, "{\n") : NULL;
  if (brace && read_arguments(p, open, arrow) && read_outputs(p, arrow, brace)) return p;
  fake_program_free(p);
  return NULL;
}

void fake_program_free(fake_program *p) {
  if (!p) return;
  free(p->text);
  free(p);
}

// ---- its value -------------------------------------------------------------------------------------------------------

typedef struct named {
  char name[16];
  double value;
} named;

typedef struct values {
  named *items;
  int count, capacity;
} values;

static void set(values *all, const char *name, double value) {
  if (all->count == all->capacity) {
    all->capacity = all->capacity ? 2 * all->capacity : 64;
    named *items = realloc(all->items, (size_t)all->capacity * sizeof *items);
    if (!items) abort();
    all->items = items;
  }
  snprintf(all->items[all->count].name, sizeof all->items->name, "%s", name);
  all->items[all->count++].value = value;
}

static double get(const values *all, const char *name) {
  for (int i = all->count - 1; i >= 0; i--)
    if (strcmp(all->items[i].name, name) == 0) return all->items[i].value;
  return 0;
}

enum { MAX_OPERANDS = FAKE_MAX_OUTPUTS };

static int read_operands(const values *all, const char *at, const char *end, double out[MAX_OPERANDS]) {
  int count = 0;
  while (count < MAX_OPERANDS && (at = memchr(at, '%', (size_t)(end - at))) != NULL) {
    char name[16];
    at += 1 + read_name(at + 1, name);
    out[count++] = get(all, name);
  }
  return count;
}

static double apply(const char *op, const double *x) {
  size_t size = strcspn(op, " (\"");
#define IS(name) (size == sizeof(name) - 1 && memcmp(op, name, size) == 0)
  if (IS("add")) return x[0] + x[1];
  if (IS("subtract")) return x[0] - x[1];
  if (IS("multiply")) return x[0] * x[1];
  if (IS("divide")) return x[0] / x[1];
  if (IS("negate")) return -x[0];
  if (IS("constant")) {
    const char *dense = strstr(op, "dense<") + 6;
    return strncmp(dense, "true", 4) == 0 ? 1 : strtod(dense, NULL);
  }
#undef IS
  return x[0];
}

// "%4 = stablehlo.add %1, %2 : tensor<f32>", or "%4:2 = ..." whose results are then the operands.
static void run_line(values *all, const char *line, const char *end) {
  const char *op = memmem(line, (size_t)(end - line), "stablehlo.", 10);
  double operands[MAX_OPERANDS] = {0};
  char name[16], part[32];
  if (line[0] != '%' || !op) return;
  size_t size = read_name(line + 1, name);
  read_operands(all, op, end, operands);
  if (line[1 + size] != ':') return set(all, name, apply(op + 10, operands));
  int count = atoi(line + 2 + size);
  for (int i = 0; i < count && i < MAX_OPERANDS; i++) {
    snprintf(part, sizeof part, "%s#%d", name, i);
    set(all, part, operands[i]);
  }
}

void fake_program_evaluate(const fake_program *p, const double *arguments, double *outputs) {
  values all = {0};
  for (int i = 0; i < p->argument_count; i++) set(&all, p->argument_names[i], arguments[i]);
  double results[MAX_OPERANDS] = {0};
  for (const char *line = strstr(strstr(p->text, "@main("), "{\n") + 2; *line;) {
    line += strspn(line, " \t");
    const char *end = line + strcspn(line, "\n");
    if (strncmp(line, "return", 6) == 0) read_operands(&all, line, end, results);
    run_line(&all, line, end);
    line = *end ? end + 1 : end;
  }
  for (int i = 0; i < p->output_count; i++) outputs[i] = i < MAX_OPERANDS ? results[i] : 0;
  free(all.items);
}
