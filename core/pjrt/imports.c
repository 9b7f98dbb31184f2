// imports.c - replaces functions that a loaded library imports.
//
// A library calls another's functions through slots in memory, which the dynamic linker fills by the library's relocation
// records. The records stay there with the symbols' names, so the slots can be found and filled anew. (System V ABI,
// chapters "Dynamic Linking" of the generic part and of the processors' supplements.)
#include "pjrt/imports.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
enum { CALL_SLOT = R_X86_64_JUMP_SLOT, DATA_SLOT = R_X86_64_GLOB_DAT };
#elif defined(__aarch64__)
enum { CALL_SLOT = R_AARCH64_JUMP_SLOT, DATA_SLOT = R_AARCH64_GLOB_DAT };
#else
enum { CALL_SLOT = -1, DATA_SLOT = -1 };
#endif

typedef struct library_view {
  uintptr_t base;
  const Elf64_Sym *symbols;
  const char *names;
  const Elf64_Rela *records[2]; // of calls, and of the rest
  size_t record_counts[2];
  uintptr_t sealed, sealed_end; // pages that the linker made read-only after it had filled them
} library_view;

// glibc adds the base to the addresses in the dynamic section; other linkers leave them as they are in the file.
static uintptr_t address(const library_view *view, uintptr_t value) {
  return value < view->base ? view->base + value : value;
}

static void read_dynamic_section(library_view *view, const Elf64_Dyn *entry) {
  for (; entry->d_tag != DT_NULL; ++entry) {
    uintptr_t value = (uintptr_t)entry->d_un.d_val;
    switch (entry->d_tag) {
    case DT_SYMTAB: view->symbols = (const Elf64_Sym *)address(view, value); break;
    case DT_STRTAB: view->names = (const char *)address(view, value); break;
    case DT_JMPREL: view->records[0] = (const Elf64_Rela *)address(view, value); break;
    case DT_PLTRELSZ: view->record_counts[0] = value / sizeof(Elf64_Rela); break;
    case DT_RELA: view->records[1] = (const Elf64_Rela *)address(view, value); break;
    case DT_RELASZ: view->record_counts[1] = value / sizeof(Elf64_Rela); break;
    default: break;
    }
  }
}

static int find_sealed_pages(struct dl_phdr_info *info, size_t size, void *user) {
  (void)size;
  library_view *view = user;
  if (info->dlpi_addr != view->base) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const Elf64_Phdr *header = &info->dlpi_phdr[i];
    if (header->p_type != PT_GNU_RELRO) continue;
    view->sealed = view->base + header->p_vaddr;
    view->sealed_end = view->sealed + header->p_memsz;
  }
  return 1;
}

static bool fill_slot(const library_view *view, void **slot, void *function) {
  uintptr_t page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
  void *page = (void *)((uintptr_t)slot / page_size * page_size);
  bool is_sealed = (uintptr_t)slot >= view->sealed && (uintptr_t)slot < view->sealed_end;
  if (is_sealed && mprotect(page, page_size, PROT_READ | PROT_WRITE) != 0) return false;
  *slot = function;
  if (is_sealed) mprotect(page, page_size, PROT_READ);
  return true;
}

// Fills all slots of one function. False if there is none or it cannot be written.
static bool replace(const library_view *view, const tt_import *import) {
  bool found = false;
  for (int part = 0; part < 2; ++part) {
    for (size_t i = 0; i < view->record_counts[part]; ++i) {
      const Elf64_Rela *record = &view->records[part][i];
      int type = (int)ELF64_R_TYPE(record->r_info);
      if (type != CALL_SLOT && type != DATA_SLOT) continue;
      const Elf64_Sym *symbol = &view->symbols[ELF64_R_SYM(record->r_info)];
      if (symbol->st_shndx != SHN_UNDEF || strcmp(view->names + symbol->st_name, import->name) != 0) continue;
      if (!fill_slot(view, (void **)(view->base + record->r_offset), import->replacement)) return false;
      found = true;
    }
  }
  return found;
}

size_t tt_imports_replace(void *library, const tt_import *imports, size_t count) {
  struct link_map *map = NULL;
  if (CALL_SLOT < 0 || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return 0;
  library_view view = {.base = map->l_addr};
  read_dynamic_section(&view, map->l_ld);
  if (view.symbols == NULL || view.names == NULL) return 0;
  dl_iterate_phdr(find_sealed_pages, &view);
  size_t replaced = 0;
  for (size_t i = 0; i < count; ++i) replaced += replace(&view, &imports[i]);
  return replaced;
}
