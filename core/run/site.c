// site.c - see site.h.
#include "run/site.h"

#include <stdatomic.h>
#include <stddef.h>

static _Atomic(char *(*)(void)) site_hook;

void tt_set_site_hook(char *(*hook)(void)) { atomic_store(&site_hook, hook); }

char *tt_site(void) {
  char *(*hook)(void) = atomic_load_explicit(&site_hook, memory_order_acquire);
  return hook ? hook() : NULL;
}
