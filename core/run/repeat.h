// repeat.h - finds where a sequence of calls begins again: the steps of a training or inference loop.
//
// A graph that is cut wherever it happens to be long enough has other calls each time, and each cut is a program to compile. So
// when a graph has become too long, the calls noted so far are searched for their longest repetition. Its boundary, the
// place in the period where the least memory is alive, is remembered by the calls in front of it, and from then on graphs end
// there, whatever ran in between. A loop thus settles on a few programs without being told where its steps are.
//
// A loop uses the same old tensors again, its weights above all; the layers of a model look alike but use each its own. That
// tells steps from layers. A repetition may still turn out to be a part of a larger one, as the time steps of a recurrent network are: when
// its period breaks off again and again, its boundary is dropped, and the next search finds the larger one.
//
// Owned by the graph whose calls it sees; its lock covers it.
#ifndef TT_RUN_REPEAT_H_
#define TT_RUN_REPEAT_H_

#include <stdbool.h>
#include <stdint.h>

enum {
  TT_REPEAT_HISTORY = 1 << 16, // calls that are remembered: periods of up to half of it are found
  TT_REPEAT_WINDOW = 64,       // calls by which a boundary is known again
  TT_REPEAT_BOUNDARIES = 32,   // of different loops
};

typedef struct tt_boundary {
  uint64_t hash; // of the window in front of it; 0: none
  int64_t period;
  uint64_t last_seen; // number of the call before it
  int broken;         // how often the period broke off
} tt_boundary;

typedef struct tt_noted_call {
  uint32_t symbol; // what distinguishes it: its plan
  int64_t alive;   // bytes alive before it
  // Numbers of storages in the order of their creation: the oldest that it reads (0: none), the newest that existed.
  uint64_t oldest, newest;
} tt_noted_call;

typedef struct tt_repeat {
  tt_noted_call *calls;       // ring of TT_REPEAT_HISTORY; NULL before the first call
  uint64_t count;             // calls noted
  uint64_t hash;              // of the last TT_REPEAT_WINDOW symbols
  uint64_t power;             // of the hash's base, for the symbol that leaves the window
  uint64_t undisturbed_since; // number of the first call after the last tt_repeat_disturb
  tt_boundary boundaries[TT_REPEAT_BOUNDARIES];
} tt_repeat;

// Notes a call. True when a boundary lies behind it; `pending` is the number of calls that would then run, this one included:
// periods of a few calls are taken together. Where host memory is exhausted nothing is noted.
bool tt_repeat_note(tt_repeat *r, const tt_noted_call *call, int pending);
// The host waited: what comes need not continue the period.
void tt_repeat_disturb(tt_repeat *r);
// Looks for a repetition that ends with the newest call, at least `least` calls long, and remembers its boundary. Takes some
// nanoseconds per call of the history. Returns whether there is one; a loop that is in step keeps the boundary it has.
bool tt_repeat_search(tt_repeat *r, int64_t least);
void tt_repeat_free(tt_repeat *r);

#endif // TT_RUN_REPEAT_H_
