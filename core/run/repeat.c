// repeat.c - see repeat.h.
#include "run/repeat.h"

#include <string.h>

#include "base/memory.h"

enum {
  FEW_CALLS = 16,      // a shorter period is no step of its own:
  GROUPED_CALLS = 256, // as many calls of it run together
  BROKEN_OFTEN = 2,
};

#define HASH_BASE UINT64_C(0x9E3779B97F4A7C15)

static const tt_noted_call *call_at(const tt_repeat *r, uint64_t number) {
  return &r->calls[number % TT_REPEAT_HISTORY];
}
static uint32_t symbol_at(const tt_repeat *r, uint64_t number) { return call_at(r, number)->symbol; }

static bool prepare(tt_repeat *r) {
  if (r->calls) return true;
  r->calls = tt_malloc(TT_REPEAT_HISTORY * sizeof *r->calls);
  if (!r->calls) return false;
  r->power = 1;
  for (int i = 0; i < TT_REPEAT_WINDOW; ++i) r->power *= HASH_BASE;
  return true;
}

void tt_repeat_free(tt_repeat *r) {
  tt_free(r->calls);
  *r = (tt_repeat){0};
}

// Symbols are spread, so that small ones fill the hash too.
static uint64_t spread(uint32_t symbol) { return (symbol + UINT64_C(1)) * UINT64_C(0xD6E8FEB86659FD93); }

static void push(tt_repeat *r, const tt_noted_call *call) {
  r->hash = r->hash * HASH_BASE + spread(call->symbol);
  if (r->count >= TT_REPEAT_WINDOW) r->hash -= r->power * spread(symbol_at(r, r->count - TT_REPEAT_WINDOW));
  r->calls[r->count % TT_REPEAT_HISTORY] = *call;
  ++r->count;
}

// --- boundaries --------------------------------------------------------------------------------------------------------------

static tt_boundary *find_boundary(tt_repeat *r, uint64_t hash) {
  for (int i = 0; i < TT_REPEAT_BOUNDARIES; ++i)
    if (r->boundaries[i].hash == hash) return &r->boundaries[i];
  return NULL;
}

static void remember(tt_repeat *r, uint64_t hash, int64_t period, uint64_t last_call) {
  if (find_boundary(r, hash)) return;
  tt_boundary *oldest = &r->boundaries[0];
  for (int i = 1; i < TT_REPEAT_BOUNDARIES; ++i)
    if (r->boundaries[i].last_seen < oldest->last_seen) oldest = &r->boundaries[i];
  *oldest = (tt_boundary){hash, period, last_call, 0};
}

// Did something else come between this boundary and the last, though the host did not wait?
static bool broke_off(const tt_repeat *r, const tt_boundary *b) {
  return b->last_seen >= r->undisturbed_since && r->count - 1 - b->last_seen > (uint64_t)b->period * 3 / 2;
}

bool tt_repeat_note(tt_repeat *r, const tt_noted_call *call, int pending) {
  if (!prepare(r)) return false;
  push(r, call);
  tt_boundary *b = r->count >= TT_REPEAT_WINDOW && r->hash ? find_boundary(r, r->hash) : NULL;
  if (!b) return false;
  if (broke_off(r, b) && ++b->broken >= BROKEN_OFTEN) {
    *b = (tt_boundary){0};
    return false;
  }
  b->last_seen = r->count - 1;
  return b->period >= FEW_CALLS || pending >= GROUPED_CALLS;
}

void tt_repeat_disturb(tt_repeat *r) { r->undisturbed_since = r->count; }

// --- searching -----------------------------------------------------------------------------------------------------------------

// The longest suffix of the last n calls that is two periods long or more: its length and period. `border` is room for n
// numbers: border[i] is the length of the longest proper prefix of the first i + 1 calls, backwards, that is also their suffix.
static int64_t longest_repetition(const tt_repeat *r, int64_t n, int32_t *border, int64_t *out_period) {
  const uint64_t last = r->count - 1;
  int64_t longest = 0;
  border[0] = 0;
  for (int64_t i = 1; i < n; ++i) {
    int64_t k = border[i - 1];
    uint32_t symbol = symbol_at(r, last - (uint64_t)i);
    while (k > 0 && symbol != symbol_at(r, last - (uint64_t)k)) k = border[k - 1];
    if (symbol == symbol_at(r, last - (uint64_t)k)) ++k;
    border[i] = (int32_t)k;
    int64_t length = i + 1, period = length - k;
    if (length < 2 * period) continue;
    longest = length;
    *out_period = period;
  }
  return longest;
}

static uint64_t window_hash(const tt_repeat *r, uint64_t last_call) {
  uint64_t hash = 0;
  for (int i = TT_REPEAT_WINDOW - 1; i >= 0; --i)
    hash = hash * HASH_BASE + spread(symbol_at(r, last_call - (uint64_t)i));
  return hash;
}

// Do the newest period's calls read the same old storages as those of the period before? Old: there before that.
static bool reads_the_same(const tt_repeat *r, int64_t period) {
  int64_t same = 0, other = 0;
  for (int64_t i = 0; i < period; ++i) {
    const tt_noted_call *now = call_at(r, r->count - 1 - (uint64_t)i);
    const tt_noted_call *before = call_at(r, r->count - 1 - (uint64_t)(i + period));
    if (now->oldest == 0 || now->oldest > before->newest) continue;
    if (now->oldest == before->oldest)
      ++same;
    else
      ++other;
  }
  return same >= other;
}

static int64_t drift(const tt_repeat *r, uint64_t last_call, int64_t period) {
  int64_t change = call_at(r, last_call)->alive - call_at(r, last_call - (uint64_t)period)->alive;
  return change < 0 ? -change : change;
}

// Of the newest period's calls, the one before which the least is alive, the newest of these. Something that came or went for
// good meanwhile, garbage of Python's that was collected, would mislead: then the period before is looked at.
static uint64_t best_boundary(const tt_repeat *r, int64_t n, int64_t period) {
  uint64_t last = r->count - 1, back = 0;
  if (2 * period < n && drift(r, last - (uint64_t)period, period) < drift(r, last, period)) back = (uint64_t)period;
  uint64_t best = last;
  for (int64_t i = 1; i < period; ++i) {
    uint64_t number = last - (uint64_t)i;
    if (call_at(r, number - back)->alive < call_at(r, best - back)->alive) best = number;
  }
  return best;
}

// Has a boundary been seen within its period?
static bool is_in_step(const tt_repeat *r) {
  for (int i = 0; i < TT_REPEAT_BOUNDARIES; ++i) {
    const tt_boundary *b = &r->boundaries[i];
    if (b->hash && r->count - 1 - b->last_seen < (uint64_t)b->period) return true;
  }
  return false;
}

bool tt_repeat_search(tt_repeat *r, int64_t least) {
  if (is_in_step(r)) return true;
  int64_t n = r->count < TT_REPEAT_HISTORY ? (int64_t)r->count : TT_REPEAT_HISTORY;
  if (n < 2 * TT_REPEAT_WINDOW) return false;
  int32_t *border = tt_malloc((size_t)n * sizeof *border);
  if (!border) return false;
  int64_t period = 0, length = longest_repetition(r, n, border, &period);
  tt_free(border);
  if (length == 0 || length < least || !reads_the_same(r, period)) return false;
  uint64_t call = best_boundary(r, n, period) - 1;
  if (r->count - call + TT_REPEAT_WINDOW > (uint64_t)n) return false; // its window is not known
  remember(r, window_hash(r, call), period, call);
  return true;
}
