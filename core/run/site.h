// site.h - the line of the user's program that is running, for messages.
#ifndef TT_RUN_SITE_H_
#define TT_RUN_SITE_H_

#ifdef __cplusplus
extern "C" {
#endif

// `hook` gives "file.py:12" in memory of tt_malloc, or NULL where there is no such line: on a thread that runs no Python, as
// autograd's. Any thread may call it, but without a lock: it may wait for Python's. Set once, by the bridge.
void tt_set_site_hook(char *(*hook)(void));
// What the hook gives now; free with tt_free. NULL without a hook.
char *tt_site(void);

#ifdef __cplusplus
}
#endif
#endif // TT_RUN_SITE_H_
