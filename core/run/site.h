// site.h - the line of the user's program that is running, for messages.
#ifndef TT_RUN_SITE_H_
#define TT_RUN_SITE_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// `hook` gives "file.py:12" in memory of tt_malloc, or NULL where there is no such line: on a thread that runs no Python, as
// autograd's. If out_layer is not NULL it is asked for the layer too: a number that is the same for the same innermost nn.Module
// whose code in torch leads from the line to the call, 0 if there is none; and it gives no line for calls that torch makes for
// many tensors in turn, as its optimizers do. Any thread may call it, but without a lock: it may wait for Python's. Set once, by
// the bridge.
void tt_set_site_hook(char *(*hook)(uint64_t *out_layer));
// What the hook gives now; free with tt_free. NULL without a hook.
char *tt_site(void);
// The same for a call whose programs are counted; *out_layer is 0 without a hook.
char *tt_call_site(uint64_t *out_layer);

#ifdef __cplusplus
}
#endif
#endif // TT_RUN_SITE_H_
