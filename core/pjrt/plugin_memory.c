// plugin_memory.c - a CPU plugin's large blocks come from the pool.
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "pjrt/api.h"
#include "pjrt/imports.h"
#include "pjrt/plugin.h"

// XLA's CPU client asks for aligned memory alone; what malloc gives stays with malloc.
static void *take(size_t alignment, size_t size) { return alignment <= TT_POOL_ALIGNMENT ? tt_pool_take(size) : NULL; }

static int pooled_posix_memalign(void **out_block, size_t alignment, size_t size) {
  void *block = take(alignment, size);
  if (block == NULL) return posix_memalign(out_block, alignment, size);
  *out_block = block;
  return 0;
}

static void *pooled_aligned_alloc(size_t alignment, size_t size) {
  void *block = take(alignment, size);
  return block != NULL ? block : aligned_alloc(alignment, size);
}

static void pooled_free(void *block) {
  if (tt_pool_owns(block))
    tt_pool_give(block);
  else
    free(block);
}

static void *pooled_realloc(void *block, size_t size) {
  if (!tt_pool_owns(block)) return realloc(block, size);
  void *moved = malloc(size);
  if (moved == NULL) return NULL;
  size_t former = tt_pool_size(block);
  memcpy(moved, block, size < former ? size : former);
  tt_pool_give(block);
  return moved;
}

bool tt_plugin_pool_memory(const tt_plugin *plugin) {
  // What frees comes first: blocks of the pool must never reach another free.
  const tt_import freeing[] = {{"free", (void *)pooled_free}, {"realloc", (void *)pooled_realloc}};
  const tt_import taking[] = {{"posix_memalign", (void *)pooled_posix_memalign},
                              {"aligned_alloc", (void *)pooled_aligned_alloc}};
  if (plugin->is_libtpu || !tt_pool_start()) return false;
  return tt_imports_replace(plugin->library, freeing, 2) > 0 && tt_imports_replace(plugin->library, taking, 2) > 0;
}
