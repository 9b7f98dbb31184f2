// fake_program.h - as much of StableHLO as fake_plugin.c needs: the signature of a program, and what it gives for tensors whose
// elements are all the same, so that one number stands for a tensor.
#ifndef TT_TESTS_FAKE_PROGRAM_H_
#define TT_TESTS_FAKE_PROGRAM_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_MAX_RANK = 16, FAKE_MAX_ARGUMENTS = 512, FAKE_MAX_OUTPUTS = 512 };

// 'f' float, 'h' bfloat16 or half, 'i' integer, 'u' unsigned, 'p' predicate, 'c' complex, 'x' another of one byte.
typedef struct fake_element {
  char kind;
  int bytes;
} fake_element;

typedef struct fake_type {
  fake_element element;
  int rank;
  int64_t dims[FAKE_MAX_RANK];
} fake_type;

int64_t fake_type_bytes(const fake_type *type);

typedef struct fake_program {
  char *text;
  size_t size;
  int argument_count, output_count;
  char argument_names[FAKE_MAX_ARGUMENTS][16];
  int aliases[FAKE_MAX_ARGUMENTS]; // the output that may take the argument's memory, -1: none
  fake_type outputs[FAKE_MAX_OUTPUTS];
} fake_program;

// NULL where the text has no function @main that it understands.
fake_program *fake_program_read(const char *text, size_t size);
void fake_program_free(fake_program *program);
// Knows the elementwise arithmetic; of other ops the result is the first operand.
void fake_program_evaluate(const fake_program *program, const double *arguments, double *outputs);

double fake_element_get(fake_element element, const void *data);
void fake_element_fill(fake_element element, void *data, int64_t bytes, double value);

#endif // TT_TESTS_FAKE_PROGRAM_H_
