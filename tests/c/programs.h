// programs.h - small programs, and a started runtime to compile them: what tests of run/program.h and run/trace.h share.
#ifndef TT_TESTS_PROGRAMS_H_
#define TT_TESTS_PROGRAMS_H_

#include <stdlib.h>

#include "base/memory.h"
#include "run/internal.h"
#include "run/program.h"
#include "runner.h"

// Starts the runtime with the test's plugin.
static inline void start_runtime(void) {
  int64_t live = tt_memory_live_count();
  setenv("TORCH_TPU_PJRT_PLUGIN", test_plugin_path(), 1);
  CHECK_OK(tt_runtime_start());
  test_keeps_blocks(tt_memory_live_count() - live);
}

// x + number, four elements; `number` makes the text another. `alias` is the output that may take x's memory, or -1.
static inline tt_program *make_program(int number, int alias) {
  tt_builder *b;
  CHECK_OK(tt_builder_create(tt_runtime_target(), &b));
  int64_t four = 4;
  tt_value *x = tt_builder_parameter(b, TT_F32, 1, &four);
  tt_value *y = tt_hlo_add(b, x, tt_hlo_constant_like(b, x, number));
  const tt_compile_options options = tt_program_options(1, 4, false);
  tt_program *program;
  CHECK_OK(tt_program_create(b, 1, &y, &alias, &options, &program));
  tt_builder_free(b);
  program->note.name = "add";
  return program;
}

#endif // TT_TESTS_PROGRAMS_H_
