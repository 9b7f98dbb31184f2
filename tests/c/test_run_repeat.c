// test_run_repeat.c - run/repeat.h: where a loop's steps are cut.
#include <stdlib.h>

#include "base/memory.h"
#include "run/repeat.h"
#include "runner.h"

enum { WEIGHTS = 1000 }; // storages older than every loop

// A model of what a graph does: calls are noted, a graph is cut at a boundary or when it is long, and is then searched.
typedef struct loop {
  tt_repeat repeat;
  int pending, next_search;
  uint64_t newest;
  int lengths[4096], length_count; // of the graphs that ran
} loop;

static void cut(loop *l) {
  if (l->pending > 0) l->lengths[l->length_count++] = l->pending;
  l->pending = 0;
  l->next_search = 128;
}

static void start(loop *l) {
  *l = (loop){.newest = WEIGHTS};
  cut(l);
}

// `weight` is the old storage that the call reads, 0 for none.
static void call(loop *l, uint32_t symbol, int64_t alive, uint64_t weight) {
  if (l->pending >= l->next_search) {
    l->next_search = 2 * l->pending;
    tt_repeat_search(&l->repeat, l->pending / 2);
  }
  if (l->pending >= 1000) cut(l);
  const tt_noted_call noted = {symbol, alive, weight ? weight : l->newest, l->newest};
  ++l->newest;
  ++l->pending;
  if (tt_repeat_note(&l->repeat, &noted, l->pending)) cut(l);
}

static void host_waits(loop *l) {
  tt_repeat_disturb(&l->repeat);
  cut(l);
}

// A step of `calls` calls: memory grows to the middle and shrinks again, and each call reads a weight of its own.
static void step(loop *l, int calls) {
  for (int i = 0; i < calls; ++i) {
    int64_t distance = abs(2 * i - calls);
    call(l, (uint32_t)(i + 1), 1000000 - distance * 1000, (uint64_t)(i % WEIGHTS + 1));
  }
}

static void check_last(const loop *l, int count, int length) {
  CHECK(l->length_count >= count);
  for (int i = 1; i <= count; ++i) CHECK_INT(l->lengths[l->length_count - i], length);
}

TEST(repeat_cuts_where_a_step_begins) {
  loop l;
  start(&l);
  for (int i = 0; i < 40; ++i) step(&l, 90);
  check_last(&l, 30, 90);
  CHECK_INT(l.pending, 0); // the least is alive where the step begins
  tt_repeat_free(&l.repeat);
}

// A megabyte goes for good in the middle of a step.
TEST(repeat_is_not_misled_by_what_dies_once) {
  loop l;
  start(&l);
  int64_t garbage = 1 << 20;
  for (int i = 0; i < 30; ++i) {
    for (int k = 0; k < 90; ++k) {
      if (i == 1 && k == 36) garbage = 0; // in the period before the search at 128 calls
      call(&l, (uint32_t)(k + 1), garbage + 1000000 - abs(2 * k - 90) * 1000, (uint64_t)(k + 1));
    }
  }
  check_last(&l, 20, 90);
  tt_repeat_free(&l.repeat);
}

TEST(repeat_finds_steps_longer_than_a_graph) {
  loop l;
  start(&l);
  for (int i = 0; i < 12; ++i) step(&l, 2500);
  for (int i = 0; i < 4; ++i) {
    CHECK_INT(l.lengths[l.length_count - 1 - 3 * i], 500);
    CHECK_INT(l.lengths[l.length_count - 2 - 3 * i], 1000);
    CHECK_INT(l.lengths[l.length_count - 3 - 3 * i], 1000);
  }
  tt_repeat_free(&l.repeat);
}

TEST(repeat_goes_on_after_other_work) {
  loop l;
  start(&l);
  for (int i = 0; i < 20; ++i) step(&l, 200);
  for (int i = 0; i < 77; ++i) call(&l, 5000 + (uint32_t)i, 2000000, 3);
  for (int i = 0; i < 20; ++i) {
    step(&l, 200);
    if (i % 7 == 3) host_waits(&l);
  }
  check_last(&l, 2, 200);
  tt_repeat_free(&l.repeat);
}

TEST(repeat_takes_short_periods_together) {
  loop l;
  start(&l);
  for (int i = 0; i < 3000; ++i) call(&l, (uint32_t)(i % 3), 100, 7);
  CHECK(l.length_count > 10);
  CHECK(l.lengths[l.length_count - 1] >= 256 && l.lengths[l.length_count - 1] < 262);
  CHECK_INT(l.lengths[l.length_count - 1], l.lengths[l.length_count - 3]);
  tt_repeat_free(&l.repeat);
}

// Results that are kept make each period begin with more alive than the last.
TEST(repeat_takes_short_periods_together_while_memory_grows) {
  loop l;
  start(&l);
  for (int i = 0; i < 6000; ++i) call(&l, (uint32_t)(i % 11), 100 + i, (uint64_t)(i % 11 + 1));
  for (int i = 2; i < 12; ++i) CHECK_INT(l.lengths[l.length_count - i], l.lengths[l.length_count - 1]);
  tt_repeat_free(&l.repeat);
}

// 60 equal layers with weights of their own are no steps.
TEST(repeat_sees_layers_apart_from_steps) {
  loop l;
  start(&l);
  for (int s = 0; s < 10; ++s) {
    for (int i = 0; i < 600; ++i) call(&l, (uint32_t)(i % 10), 1000 + i, (uint64_t)(i + 1));
    for (int i = 0; i < 30; ++i) call(&l, 100 + (uint32_t)i, 900 - i, (uint64_t)(i + 1));
  }
  check_last(&l, 4, 630);
  tt_repeat_free(&l.repeat);
}

// Time steps that read the same weights look like steps until they break off often.
TEST(repeat_drops_what_is_only_a_part) {
  loop l;
  start(&l);
  for (int s = 0; s < 30; ++s) {
    for (int i = 0; i < 400; ++i) call(&l, (uint32_t)(i % 20), 1000 + i, (uint64_t)(i % 20 + 1));
    for (int i = 0; i < 90; ++i) call(&l, 100 + (uint32_t)i, 900 - i, (uint64_t)(i + 1));
  }
  int total = 0; // the last graphs make up whole steps
  for (int i = l.length_count - 1; i >= 0 && total < 490 * 3; --i) total += l.lengths[i];
  CHECK_INT(total, 490 * 3);
  tt_repeat_free(&l.repeat);
}

TEST(repeat_without_memory_notes_nothing) {
  loop l;
  start(&l);
  tt_memory_fail_at(1, true);
  for (int i = 0; i < 300; ++i) call(&l, 1, 1, 1);
  tt_memory_fail_at(0, false);
  CHECK_INT(l.repeat.count, 0);
}

TEST(repeat_in_noise_finds_nothing) {
  loop l;
  start(&l);
  srand(5);
  for (int i = 0; i < 20000; ++i) call(&l, (uint32_t)(rand() % 50), 1000, (uint64_t)(rand() % 900 + 1));
  for (int i = 0; i < l.length_count; ++i) CHECK_INT(l.lengths[i], 1000);
  tt_repeat_free(&l.repeat);
}
