// program.c - see program.h.
#include "run/program.h"

#include <string.h>

#include "base/memory.h"

enum {
  // Up to these sizes of a program and its largest tensor a shorter compile is worth more than a faster run.
  SMALL_PROGRAM_OPS = 60,
  LEAST_EFFORT_ELEMENTS = 1 << 10,
  LIGHT_EFFORT_ELEMENTS = 1 << 18,
  // Up to this size a loop of cheap ops takes about as long as waking another thread.
  SHORT_LOOP_ELEMENTS = 1 << 19,
};

static tt_status out_of_memory(void) { return tt_error(TT_OUT_OF_MEMORY, "out of host memory while making a program"); }

tt_compile_options tt_program_options(int64_t ops, int64_t elements, bool exact) {
  tt_compile_options options = {.short_loops = elements <= SHORT_LOOP_ELEMENTS, .exact = exact};
  if (ops > SMALL_PROGRAM_OPS) // where kernels repeat, the compiler finds it out
    options.effort = TT_EFFORT_FULL;
  else if (elements <= LEAST_EFFORT_ELEMENTS)
    options.effort = TT_EFFORT_LEAST;
  else
    options.effort = elements <= LIGHT_EFFORT_ELEMENTS ? TT_EFFORT_LIGHT : TT_EFFORT_FULL;
  return options;
}

tt_program *tt_program_retain(tt_program *program) {
  atomic_fetch_add_explicit(&program->references, 1, memory_order_relaxed);
  return program;
}

void tt_program_release(tt_program *program) {
  if (!program || atomic_fetch_sub_explicit(&program->references, 1, memory_order_acq_rel) != 1) return;
  tt_executable_release(atomic_load_explicit(&program->executable, memory_order_relaxed));
  tt_arena_clear(&program->arena);
  tt_free(program);
}

static tt_status new_program(const tt_compile_options *options, tt_program **out_program) {
  void *block;
  TT_TRY(tt_allocate(1, sizeof(tt_program), &block));
  tt_program *program = block;
  atomic_init(&program->references, 1);
  program->note.name = "a program";
  program->options = *options;
  *out_program = program;
  return TT_SUCCESS;
}

tt_status tt_program_create(tt_builder *b, int count, tt_value *const *results, const int *aliases,
                            const tt_compile_options *options, tt_program **out_program) {
  tt_program *program;
  TT_TRY(new_program(options, &program));
  program->target = *tt_builder_target(b);
  size_t parameters = (size_t)tt_builder_parameter_count(b);
  tt_status status = tt_fragment_take(b, count, results, &program->arena, &program->fragment);
  program->aliases = tt_arena_copy(&program->arena, aliases, parameters * sizeof *aliases);
  if (!status && parameters && !program->aliases) status = out_of_memory();
  if (status)
    tt_program_release(program);
  else
    *out_program = program;
  return status;
}

tt_status tt_program_create_from(const char *name, const char *code, int64_t size, const tt_compile_options *options,
                                 tt_program **out_program) {
  tt_program *program;
  TT_TRY(new_program(options, &program));
  program->note.name = tt_arena_format(&program->arena, "%s", name);
  program->code = tt_arena_copy(&program->arena, code, (size_t)size);
  program->code_size = size;
  if (!program->note.name || !program->code) {
    tt_program_release(program);
    return out_of_memory();
  }
  *out_program = program;
  return TT_SUCCESS;
}

static tt_status append_text(const tt_program *program, tt_builder *b, tt_string *out) {
  const tt_fragment *f = &program->fragment;
  tt_value **values =
      tt_arena_allocate(tt_builder_arena(b), (size_t)(f->parameter_count + f->result_count) + 1, sizeof *values);
  if (!values) return out_of_memory();
  tt_value **results = values + f->parameter_count;
  for (int i = 0; i < f->parameter_count; ++i) {
    const tt_value *p = &f->parameters[i];
    values[i] = tt_builder_parameter(b, p->dtype, p->rank, p->dims);
  }
  tt_fragment_inline(b, f, values, results);
  for (int i = 0; i < f->parameter_count; ++i)
    if (program->aliases[i] >= 0) tt_builder_alias(b, i, program->aliases[i]);
  const char *text;
  int64_t size;
  TT_TRY(tt_builder_finish(b, f->result_count, results, &text, &size));
  tt_string_append_n(out, text, (size_t)size);
  return tt_string_status(out);
}

tt_status tt_program_text(const tt_program *program, tt_string *out) {
  if (program->code) {
    tt_string_append_n(out, program->code, (size_t)program->code_size);
    return tt_string_status(out);
  }
  tt_builder *b;
  TT_TRY(tt_builder_create(&program->target, &b));
  tt_status status = append_text(program, b, out);
  tt_builder_free(b);
  return status;
}
