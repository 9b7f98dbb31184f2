// program.h - the program of a call or of a graph: its text, and its executable once that was asked for.
//
// A deferred call needs the text alone, since it runs as a part of its graph's program; so nothing is compiled before somebody
// asks. Compiling is in compile.c, on threads of its own where nobody waits for it yet. Reference-counted; any thread may ask.
#ifndef TT_RUN_PROGRAM_H_
#define TT_RUN_PROGRAM_H_

#include <stdatomic.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "hlo/builder.h"
#include "hlo/fragment.h"
#include "pjrt/executable.h"

typedef enum tt_compile_state { TT_COMPILE_IDLE, TT_COMPILE_QUEUED, TT_COMPILE_RUNNING } tt_compile_state;

// What the user hears of a program (run/trace.h): static texts or in its arena, NULL for what is unknown. Filled before others
// see the program.
typedef struct tt_program_note {
  const char *name;     // "mul", "graph of 12 calls (mul ... sum)"; never NULL
  const char *overload; // "aten::mul.out", of one call
  const char *operands; // "Float [2, 3], Float []", of one call
  const char *reason;   // why it is a new program
  const char *site;     // the line that made it
  uint64_t correlation; // of the thread that made it
} tt_program_note;

typedef struct tt_program {
  _Atomic int32_t references;
  tt_program_note note;
  tt_fragment fragment;
  const char *code; // StableHLO from outside, text or bytecode, instead of a fragment; NULL: none
  int64_t code_size;
  const int *aliases; // per parameter the output that may reuse its memory, -1 for none
  tt_target target;
  tt_compile_options options;
  _Atomic(tt_executable *) executable; // NULL: not compiled yet
  // Under the lock of compile.c.
  tt_compile_state state;
  struct tt_program *next; // in the line of those to be compiled
  tt_arena arena;          // owns the arrays
} tt_program;

// What suits a program of that many ops whose largest tensor has that many elements. `exact`: it has the ops of several calls,
// which must give the values that each gives alone.
tt_compile_options tt_program_options(int64_t ops, int64_t elements, bool exact);

// Takes the builder's program with these results. `aliases` has one entry per parameter. One reference, the caller's.
tt_status tt_program_create(tt_builder *b, int count, tt_value *const *results, const int *aliases,
                            const tt_compile_options *options, tt_program **out_program);
// A program from outside: a whole module as text or bytecode, copied, and its name. It is no part of larger programs.
tt_status tt_program_create_from(const char *name, const char *code, int64_t size, const tt_compile_options *options,
                                 tt_program **out_program);
tt_program *tt_program_retain(tt_program *program);
void tt_program_release(tt_program *program); // NULL is fine

// The whole module as the compiler gets it, appended to `out`.
tt_status tt_program_text(const tt_program *program, tt_string *out);
// Lets a thread compile it, if nobody did or does: tt_program_executable waits for it or, if it did not begin, compiles itself.
// A failure comes from there, too.
void tt_program_compile_soon(tt_program *program);
static inline bool tt_program_is_compiled(const tt_program *program) {
  return atomic_load_explicit(&program->executable, memory_order_acquire) != NULL;
}
// Compiles on the first call, counting a compile or a hit of one of the cache's tiers. *out_executable is borrowed from the program.
tt_status tt_program_executable(tt_program *program, tt_executable **out_executable);

// Stops the threads; waits for what they compile. Programs queued are left. For the process's end.
void tt_compile_stop(void);

#endif // TT_RUN_PROGRAM_H_
