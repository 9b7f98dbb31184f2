// cache.h - the compile cache: programs by everything that decides their code, in three tiers.
//
//   memory   in this process: two signatures that lower to the same StableHLO text share one executable
//   disk     across processes: what the plugin makes of an executable, in a folder (disk.h, entry.h)
//   remote   across machines: the same bytes in a store that somebody else reads and writes (config.h)
//
// A program is looked for in this order, and what a later tier has is put into the earlier ones. Whatever goes wrong below the
// first tier is told once (tt_cache_trouble) and the program is compiled: the cache is never the reason why a call fails, but
// in TT_CACHE_ONLY. Any thread may call.
#ifndef TT_CACHE_CACHE_H_
#define TT_CACHE_CACHE_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "pjrt/executable.h"

typedef enum tt_cache_source { TT_FROM_MEMORY, TT_FROM_DISK, TT_FROM_REMOTE, TT_FROM_COMPILER } tt_cache_source;

// Finds the executable of `text` or compiles it. *out_executable holds one reference for the caller; *out_source tells where
// it comes from. Errors: those of tt_executable_compile; TT_UNAVAILABLE naming the program where compiling is forbidden.
tt_status tt_cache_get(tt_client *client, const char *text, int64_t size, const tt_compile_options *options,
                       tt_executable **out_executable, tt_cache_source *out_source);

// Finds out whether programs of this client can be kept on disk, for tt_cache_get_info.
tt_status tt_cache_probe(tt_client *client);

// Forgets every program in memory (those in use live on until they are released).
void tt_cache_clear(void);

// Code compiled for the host lies in memory mappings, about four a program, of which Linux gives a process a limited number
// (vm.max_map_count, 65,530 by default); beyond, the compiler aborts the process. True when three quarters are used, which is
// looked at once in a while: then it is time for tt_cache_clear.
bool tt_cache_mappings_run_out(tt_client *client);

#endif // TT_CACHE_CACHE_H_
