// site.c - see site.h.
#include "run/site.h"

#include <stdatomic.h>
#include <stddef.h>

static _Atomic(char *(*)(uint64_t *)) site_hook;

void tt_set_site_hook(char *(*hook)(uint64_t *out_layer)) { atomic_store(&site_hook, hook); }

char *tt_call_site(uint64_t *out_layer) {
  char *(*hook)(uint64_t *) = atomic_load_explicit(&site_hook, memory_order_acquire);
  if (out_layer) *out_layer = 0;
  return hook ? hook(out_layer) : NULL;
}

char *tt_site(void) { return tt_call_site(NULL); }
