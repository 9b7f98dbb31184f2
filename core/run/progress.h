// progress.h - telling the user that a compilation takes long.
//
// A thread of its own, started with the first compilation if somebody wants to know, looks after those that run and calls the
// hook when one is older than the delay, once a second after that, and at its end. Compilations that are shorter are never told.
#ifndef TT_RUN_PROGRESS_H_
#define TT_RUN_PROGRESS_H_

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// `id` tells compilations apart. Called on the watching thread, without a lock.
typedef void (*tt_progress_hook)(uint64_t id, const char *program, double seconds, bool done);
// Before the first compilation; not called under TORCH_TPU_PROGRESS=0. delay_ms is 2000 but in tests.
void tt_set_progress_hook(tt_progress_hook hook, int64_t delay_ms);

// Around a compilation. NULL when nobody wants to know or memory is lacking. "name(operands)" is copied.
void *tt_progress_begin(const char *name, const char *operands);
void tt_progress_end(void *progress); // NULL is fine

// Ends the thread; nothing is told after it. Before the process exits, without a lock that the hook needs.
void tt_progress_stop(void);

#ifdef __cplusplus
}
#endif
#endif // TT_RUN_PROGRESS_H_
