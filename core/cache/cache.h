// cache.h - compiled programs by their text: the first tier of the compile cache.
//
// Two signatures that lower to the same StableHLO text share one executable. Any thread may call.
#ifndef TT_CACHE_CACHE_H_
#define TT_CACHE_CACHE_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "pjrt/executable.h"

// Finds the executable of `text` or compiles it. *out_executable holds one reference for the caller; *out_hit tells whether
// the compiler was spared.
tt_status tt_cache_get(tt_client *client, const char *text, int64_t size, const tt_compile_options *options,
                       tt_executable **out_executable, bool *out_hit);

// Forgets every program (those in use live on until they are released).
void tt_cache_clear(void);

// Code compiled for the host lies in memory mappings, about four a program, of which Linux gives a process a limited number
// (vm.max_map_count, 65,530 by default); beyond, the compiler aborts the process. True when three quarters are used, which is
// looked at once in a while: then it is time for tt_cache_clear.
bool tt_cache_mappings_run_out(tt_client *client);

#endif // TT_CACHE_CACHE_H_
