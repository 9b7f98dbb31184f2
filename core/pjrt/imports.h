// imports.h - which functions of other libraries a loaded library calls.
#ifndef TT_PJRT_IMPORTS_H_
#define TT_PJRT_IMPORTS_H_

#include <stdbool.h>
#include <stddef.h>

// A function by its name as the linker knows it, and what to call instead.
typedef struct tt_import {
  const char *name;
  void *replacement; // a function of the same type
} tt_import;

// Makes the library that dlopen gave call the replacements wherever it calls these functions; other libraries are left as they
// are. Names that it does not import are skipped. Returns how many of them it imports, 0 also where the library's format is not
// known (ELF of 64 bits on x86-64 and aarch64 is). Call before other threads run in the library.
size_t tt_imports_replace(void *library, const tt_import *imports, size_t count);

#endif // TT_PJRT_IMPORTS_H_
