// deferred.h - the part of graph.h that the bridge sees.
#ifndef TT_RUN_DEFERRED_H_
#define TT_RUN_DEFERRED_H_

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// Starts all that the devices have deferred, compiling what is not compiled yet. The first failure of these calls.
tt_status tt_run_all_deferred(void);

#ifdef __cplusplus
}
#endif
#endif // TT_RUN_DEFERRED_H_
