// mode.c - eager mode, matmul precision and fallback policy.
//
// All belong to the process: autograd runs backward passes on threads of its own, which must see what the user set.
#include <stdatomic.h>

#include "run/env.h"
#include "run/graph.h"
#include "run/runtime.h"

enum { UNSET = -1 };

static _Atomic int eager_mode = UNSET;
static _Atomic int precision = -1; // -1: follow torch.set_float32_matmul_precision
static _Atomic int fallback = UNSET;

tt_eager_mode tt_get_eager_mode(void) {
  if (__builtin_expect(eager_mode == UNSET, 0)) {
    eager_mode = tt_env_number(TT_ENV_LAUNCH_BLOCKING) != 0  ? TT_DEFER_NEVER_AND_LAUNCH_BLOCKING
                 : tt_env_number(TT_ENV_DEFER_AND_FUSE) != 0 ? TT_DEFER_AND_FUSE
                                                             : TT_DEFER_NEVER;
  }
  return (tt_eager_mode)eager_mode;
}

tt_status tt_set_eager_mode(tt_eager_mode mode) {
  if (mode != TT_DEFER_NEVER && mode != TT_DEFER_NEVER_AND_LAUNCH_BLOCKING && mode != TT_DEFER_AND_FUSE) {
    return tt_error(TT_VALUE, "there is no eager mode %d", (int)mode);
  }
  eager_mode = mode;
  return mode == TT_DEFER_AND_FUSE ? TT_SUCCESS : tt_run_all_deferred();
}

int tt_get_precision(void) { return precision; }

void tt_set_precision(int value) { precision = value; }

// The words of TORCH_TPU_FALLBACK stand in the order of the enum.
_Static_assert(TT_FALLBACK_ERROR == 0 && TT_FALLBACK_WARN == 1 && TT_FALLBACK_ALLOW == 2, "see run/env.h");

tt_fallback tt_get_fallback(void) {
  int policy = atomic_load_explicit(&fallback, memory_order_relaxed);
  return (tt_fallback)(policy != UNSET ? policy : (int)tt_env_number(TT_ENV_FALLBACK));
}

void tt_set_fallback(tt_fallback policy) { atomic_store_explicit(&fallback, (int)policy, memory_order_relaxed); }
