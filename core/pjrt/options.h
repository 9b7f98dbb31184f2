// options.h - the compile options of a program, as a CompileOptionsProto. Shared by executable.c, which compiles for a client,
// and topology.c, which compiles for a TPU that is not there: both send a TPU compiler the same.
#ifndef TT_PJRT_OPTIONS_H_
#define TT_PJRT_OPTIONS_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/string.h"
#include "pjrt/api.h"
#include "pjrt/executable.h"

// Writes the options for a program, without the debug options in `refused`; *out_sent are those that it holds. `is_host`: for
// XLA CPU, which has more of them.
tt_status tt_options_write(bool is_host, const char *text, int64_t size, const tt_compile_options *options,
                           tt_option_set refused, tt_string *out, tt_option_set *out_sent);
// The option that `status` says the plugin does not know, 0 if it says something else.
tt_option_set tt_options_refused(tt_status status, tt_option_set sent);
bool tt_text_contains(const char *text, int64_t size, const char *word);

#endif // TT_PJRT_OPTIONS_H_
