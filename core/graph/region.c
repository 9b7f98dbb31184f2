// region.c - see region.h.
#include "graph/region.h"

#include <string.h>

static tt_status out_of_memory(void) {
  return tt_error(TT_OUT_OF_MEMORY, "out of host memory while recording a program");
}

// --- recording one ----------------------------------------------------------------------------------------------------------

tt_status tt_region_init(tt_recorder *r, tt_recorder *outer) {
  TT_TRY(tt_recorder_init(r, tt_builder_target(outer->b), false, NULL, 0));
  r->outer = outer;
  r->newest = tt_storage_newest();
  return TT_SUCCESS;
}

tt_status tt_region_argument(tt_recorder *r, tt_dtype dtype, int rank, const int64_t *sizes,
                             tt_recorded_result *out_argument) {
  return tt_recorder_result(r, tt_builder_parameter(r->b, dtype, rank, sizes), out_argument);
}

// Checks of one kind are one result. Returns how many are left.
static int join_checks(tt_recorder *r) {
  int count = 0;
  for (int i = 0; i < r->check_count; ++i) {
    tt_recorded_check *check = &r->checks[i];
    int same = 0;
    while (same < count && (r->checks[same].code != check->code || r->checks[same].message != check->message)) ++same;
    if (same == count)
      r->checks[count++] = *check;
    else
      r->checks[same].ok = tt_hlo_and(r->b, r->checks[same].ok, check->ok);
  }
  return r->check_count = count;
}

// The new value of a storage from outside, in the type of the old one, so that a loop can carry it.
static tt_status end_write(tt_recorder *r, const tt_record *record, tt_region_write *out, tt_value **out_value) {
  const tt_layout *layout;
  *out = (tt_region_write){.storage = record->storage};
  TT_TRY(tt_recorder_value(r->outer, record->storage, &out->before, &layout));
  tt_value *now = record->value;
  if (!out->before || now->dtype != out->before->dtype || tt_value_count(now) != tt_value_count(out->before))
    return tt_error(TT_NOT_IMPLEMENTED,
                    "a loop or branch gives a tensor from outside its first value or another dtype");
  *out_value = tt_hlo_reshape(r->b, now, out->before->rank, out->before->dims);
  return TT_SUCCESS;
}

static tt_status end_writes(tt_recorder *r, tt_region *region, tt_value **values) {
  tt_region_write *writes =
      tt_arena_allocate(tt_builder_arena(r->outer->b), (size_t)r->record_count + 1, sizeof *writes);
  if (!writes) return out_of_memory();
  for (int i = 0; i < r->record_count; ++i) {
    const tt_record *record = &r->records[i];
    if (!record->written || !tt_recorder_is_outside(r, record->storage)) continue;
    TT_TRY(end_write(r, record, &writes[region->write_count], &values[region->write_count]));
    ++region->write_count;
  }
  region->writes = writes;
  return TT_SUCCESS;
}

// The results, writes and checks of the region.
static tt_status end_values(tt_recorder *r, const tt_tensor *results, int count, tt_region *region,
                            tt_value ***out_values) {
  region->result_count = count;
  region->check_count = join_checks(r);
  size_t most = (size_t)(count + r->record_count + region->check_count) + 1;
  tt_value **values = tt_arena_allocate(tt_builder_arena(r->b), most, sizeof *values);
  if (!values) return out_of_memory();
  for (int i = 0; i < count; ++i) values[i] = tt_recorder_operand(r, &results[i]);
  TT_TRY(tt_builder_take_status(r->b));
  TT_TRY(end_writes(r, region, values + count));
  for (int i = 0; i < region->check_count; ++i) values[count + region->write_count + i] = r->checks[i].ok;
  *out_values = values;
  return TT_SUCCESS;
}

tt_status tt_region_take(tt_recorder *r, const tt_tensor *results, int count, tt_region **out_region) {
  tt_arena *arena = tt_builder_arena(r->outer->b);
  tt_region *region = tt_arena_allocate(arena, 1, sizeof *region);
  tt_value **values = NULL;
  if (!region) return out_of_memory();
  TT_TRY(end_values(r, results, count, region, &values));
  TT_TRY(tt_fragment_take(r->b, count + region->write_count + region->check_count, values, arena, &region->fragment));
  region->argument_count = region->fragment.parameter_count - r->capture_count;
  region->capture_count = r->capture_count;
  region->is_random = r->random_state != NULL;
  region->random_count = r->random_count;
  tt_capture *captures = tt_arena_allocate(arena, (size_t)r->capture_count + 1, sizeof *captures);
  tt_recorded_check *kinds = tt_arena_allocate(arena, (size_t)region->check_count + 1, sizeof *kinds);
  if (!captures || !kinds) return out_of_memory();
  if (r->capture_count) memcpy(captures, r->captures, (size_t)r->capture_count * sizeof *captures);
  if (region->check_count) memcpy(kinds, r->checks, (size_t)region->check_count * sizeof *kinds);
  region->captures = captures;
  region->checks = kinds;
  *out_region = region;
  return TT_SUCCESS;
}

// --- the state of a loop ------------------------------------------------------------------------------------------------------

// What a loop carries: [counter] carried, writes, checks, [ys, xs], captures. Values of the program before the loop at first.
typedef struct loop {
  const tt_region *condition, *body; // no condition: a scan
  int64_t length;                    // of a scan
  int carried_count, xs_count, ys_count;
  int carried, writes, checks, ys, xs; // where they start
  int *condition_captures, *body_captures;
  int random; // where the random state is
  tt_value **state;
  int count;
} loop;

static void append(loop *l, int count, tt_value *const *values) {
  for (int i = 0; i < count; ++i) l->state[l->count++] = values[i];
}

// Appends a value that does not change in the loop, unless it is there. Returns where.
static int append_invariant(loop *l, tt_value *value) {
  for (int i = l->xs; i < l->count; ++i)
    if (l->state[i] == value) return i;
  append(l, 1, &value);
  return l->count - 1;
}

// The number of the storage among those that the region writes; their count if it does not.
static int find_write(const tt_region *region, const tt_storage *storage) {
  int i = 0;
  while (i < region->write_count && region->writes[i].storage != storage) ++i;
  return i;
}

static int *append_captures(tt_recorder *r, loop *l, const tt_region *region, tt_value *random) {
  int *at = tt_arena_allocate(tt_builder_arena(r->b), (size_t)region->capture_count + 1, sizeof *at);
  for (int i = 0; at && i < region->capture_count; ++i) {
    const tt_capture *c = &region->captures[i];
    int write = find_write(l->body, c->storage);
    if (!c->value)
      at[i] = l->random = append_invariant(l, random);
    else
      at[i] = write < l->body->write_count ? l->writes + write : append_invariant(l, c->value);
  }
  return at;
}

static bool allocate_state(tt_recorder *r, loop *l) {
  int most = 1 + l->carried_count + l->body->write_count + l->body->check_count + l->ys_count + l->xs_count +
             l->body->capture_count + (l->condition ? l->condition->capture_count : 0);
  l->state = tt_arena_allocate(tt_builder_arena(r->b), (size_t)most, sizeof *l->state);
  return l->state != NULL;
}

// What changes from step to step besides what the caller carries.
static void append_writes_and_checks(tt_builder *b, loop *l) {
  l->writes = l->count;
  for (int i = 0; i < l->body->write_count; ++i) append(l, 1, &l->body->writes[i].before);
  l->checks = l->count;
  for (int i = 0; i < l->body->check_count; ++i) append(l, 1, (tt_value *[]){tt_hlo_constant(b, TT_BOOL, 1)});
}

// Inlines a region; `captures` says where in `state` its captures are. Returns its results; NULL if the builder failed.
static tt_value **inline_region(tt_builder *b, const tt_region *region, tt_value *const *arguments,
                                tt_value *const *state, const int *captures) {
  tt_arena *arena = tt_builder_arena(b);
  const tt_fragment *f = &region->fragment;
  tt_value **operands = tt_arena_allocate(arena, (size_t)f->parameter_count + 1, sizeof *operands);
  tt_value **results = tt_arena_allocate(arena, (size_t)f->result_count + 1, sizeof *results);
  if (!operands || !results) {
    tt_builder_fail(b, out_of_memory());
    return NULL;
  }
  for (int i = 0; i < region->argument_count; ++i) operands[i] = arguments[i];
  for (int i = 0; i < region->capture_count; ++i) operands[region->argument_count + i] = state[captures[i]];
  tt_fragment_inline(b, f, operands, results);
  return tt_builder_failed(b) ? NULL : results;
}

// The next state: carried values, writes and checks from the body's results, the rest as it was.
static void next_state(tt_builder *b, const loop *l, tt_value *const *state, tt_value *const *given, tt_value **next) {
  for (int i = 0; i < l->count; ++i) next[i] = state[i];
  for (int i = 0; i < l->carried_count; ++i) next[l->carried + i] = given[i];
  tt_value *const *writes = given + l->body->result_count, *const *checks = writes + l->body->write_count;
  for (int i = 0; i < l->body->write_count; ++i) next[l->writes + i] = writes[i];
  for (int i = 0; i < l->body->check_count; ++i) next[l->checks + i] = tt_hlo_and(b, state[l->checks + i], checks[i]);
}

// The writes and checks of the body are those of the program around the loop.
static tt_status give_writes_and_checks(tt_recorder *r, const loop *l) {
  TT_TRY(tt_builder_take_status(r->b));
  for (int i = 0; i < l->body->write_count; ++i)
    TT_TRY(tt_recorder_write(r, l->body->writes[i].storage, l->state[l->writes + i]));
  for (int i = 0; i < l->body->check_count; ++i)
    tt_recorder_check(r, l->state[l->checks + i], l->body->checks[i].code, l->body->checks[i].message);
  return tt_builder_take_status(r->b);
}

// --- while --------------------------------------------------------------------------------------------------------------------

static void while_condition(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  const loop *l = user;
  tt_value **given = inline_region(b, l->condition, state, state, l->condition_captures);
  if (given) results[0] = given[0];
}

static void while_body(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  const loop *l = user;
  tt_value **given = inline_region(b, l->body, state, state, l->body_captures);
  if (given) next_state(b, l, state, given, results);
}

static tt_status check_while(const tt_region *condition, const tt_region *body, int count) {
  if (condition->is_random || body->is_random)
    return tt_error(TT_NOT_IMPLEMENTED, "random numbers in a loop whose length is not known");
  if (condition->check_count || condition->write_count)
    return tt_error(TT_NOT_IMPLEMENTED, "values are checked or tensors written in the condition of a loop");
  if (condition->argument_count != count || body->argument_count != count || body->result_count != count ||
      condition->result_count != 1)
    return tt_error(TT_INVALID_ARGUMENT, "while_loop: the body must give as many values as are carried, and the "
                                         "condition one");
  return TT_SUCCESS;
}

tt_status tt_region_while(tt_recorder *r, const tt_region *condition, const tt_region *body, int count,
                          tt_value *const *carried, tt_value ***out_results) {
  TT_TRY(tt_builder_take_status(r->b)); // of an operand
  TT_TRY(check_while(condition, body, count));
  loop l = {.condition = condition, .body = body, .carried_count = count};
  if (!allocate_state(r, &l)) return out_of_memory();
  append(&l, count, carried);
  append_writes_and_checks(r->b, &l);
  l.xs = l.count;
  l.condition_captures = append_captures(r, &l, condition, NULL);
  l.body_captures = append_captures(r, &l, body, NULL);
  if (!l.condition_captures || !l.body_captures) return out_of_memory();
  tt_hlo_while(r->b, l.count, l.state, while_condition, while_body, &l, l.state);
  *out_results = l.state;
  return give_writes_and_checks(r, &l);
}

// --- case ---------------------------------------------------------------------------------------------------------------------

// What the branches of a case write, each storage once.
typedef struct writes {
  tt_region_write *items;
  int count;
} writes;

// A branch as the body of its region: what only others write stays, and their checks hold.
typedef struct branch {
  const tt_region *region;
  tt_value **captures; // with the random state
  const writes *writes;
  int check_count; // of all branches
  int first_check; // its own among them
} branch;

static void branch_body(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  (void)arguments;
  const branch *br = user;
  const tt_region *region = br->region;
  tt_value **given = tt_arena_allocate(tt_builder_arena(b), (size_t)region->fragment.result_count + 1, sizeof *given);
  if (!given) {
    tt_builder_fail(b, out_of_memory());
    return;
  }
  tt_fragment_inline(b, &region->fragment, br->captures, given);
  for (int i = 0; i < region->result_count; ++i) *results++ = given[i];
  for (int i = 0; i < br->writes->count; ++i) {
    int own = find_write(region, br->writes->items[i].storage);
    *results++ = own < region->write_count ? given[region->result_count + own] : br->writes->items[i].before;
  }
  const int first = region->result_count + region->write_count - br->first_check;
  for (int i = 0; i < br->check_count; ++i) {
    bool own = i >= br->first_check && i < br->first_check + region->check_count;
    *results++ = own ? given[first + i] : tt_hlo_constant(b, TT_BOOL, 1);
  }
}

static tt_status join_writes(tt_recorder *r, int count, tt_region *const *regions, writes *out) {
  int most = 0;
  for (int i = 0; i < count; ++i) most += regions[i]->write_count;
  *out = (writes){.items = tt_arena_allocate(tt_builder_arena(r->b), (size_t)most + 1, sizeof *out->items)};
  if (!out->items) return out_of_memory();
  for (int i = 0; i < count; ++i)
    for (int k = 0; k < regions[i]->write_count; ++k) {
      int same = 0;
      while (same < out->count && out->items[same].storage != regions[i]->writes[k].storage) ++same;
      if (same == out->count) out->items[out->count++] = regions[i]->writes[k];
    }
  return TT_SUCCESS;
}

static bool same_types(const tt_region *a, const tt_region *b) {
  if (a->result_count != b->result_count) return false;
  for (int i = 0; i < a->result_count; ++i) {
    const tt_value *x = &a->fragment.results[i], *y = &b->fragment.results[i];
    if (x->dtype != y->dtype || !tt_value_same_shape(x, y)) return false;
  }
  return true;
}

// Each branch is run at most once, so all may draw from the same numbers.
static tt_status make_branches(tt_recorder *r, int count, tt_region *const *regions, const writes *writes,
                               branch *branches, void **users) {
  int64_t draws = 0;
  bool is_random = false;
  int checks = 0;
  for (int i = 0; i < count; ++i) {
    if (regions[i]->argument_count || !same_types(regions[i], regions[0]))
      return tt_error(TT_INVALID_ARGUMENT, "cond: the branches must give the same number of tensors, of the same "
                                           "sizes and dtypes");
    branches[i] = (branch){.region = regions[i], .writes = writes, .first_check = checks};
    users[i] = &branches[i];
    checks += regions[i]->check_count;
    is_random |= regions[i]->is_random;
    if (regions[i]->random_count > draws) draws = regions[i]->random_count;
  }
  tt_value *random = is_random ? tt_recorder_random_state(r, draws) : NULL;
  for (int i = 0; i < count; ++i) {
    branches[i].check_count = checks;
    size_t size = (size_t)regions[i]->capture_count + 1;
    branches[i].captures = tt_arena_allocate(tt_builder_arena(r->b), size, sizeof(tt_value *));
    if (!branches[i].captures) return out_of_memory();
    for (int k = 0; k < regions[i]->capture_count; ++k)
      branches[i].captures[k] = regions[i]->captures[k].value ? regions[i]->captures[k].value : random;
  }
  return TT_SUCCESS;
}

// The types of what a case gives: results, writes, checks.
static tt_value **types_of(tt_recorder *r, const branch *first) {
  int results = first->region->result_count, all = results + first->writes->count + first->check_count;
  tt_value **likes = tt_arena_allocate(tt_builder_arena(r->b), (size_t)all + 1, sizeof *likes);
  tt_value *ok = tt_hlo_constant(r->b, TT_BOOL, 1);
  for (int i = 0; likes && i < all; ++i) likes[i] = ok;
  for (int i = 0; likes && i < results; ++i) likes[i] = (tt_value *)&first->region->fragment.results[i];
  for (int i = 0; likes && i < first->writes->count; ++i) likes[results + i] = first->writes->items[i].before;
  return likes;
}

tt_status tt_region_case(tt_recorder *r, tt_value *index, int count, tt_region *const *regions,
                         tt_value ***out_results) {
  TT_TRY(tt_builder_take_status(r->b)); // of the index
  tt_arena *arena = tt_builder_arena(r->b);
  branch *branches = tt_arena_allocate(arena, (size_t)count + 1, sizeof *branches);
  void **users = tt_arena_allocate(arena, (size_t)count + 1, sizeof *users);
  writes writes;
  if (!branches || !users) return out_of_memory();
  TT_TRY(join_writes(r, count, regions, &writes));
  TT_TRY(make_branches(r, count, regions, &writes, branches, users));
  int first_write = regions[0]->result_count, first_check = first_write + writes.count;
  tt_value **values = types_of(r, &branches[0]);
  if (!values) return out_of_memory();
  tt_hlo_case(r->b, tt_hlo_convert(r->b, index, TT_S32), count, branch_body, users,
              first_check + branches[0].check_count, values, values);
  TT_TRY(tt_builder_take_status(r->b));
  for (int i = 0; i < writes.count; ++i) TT_TRY(tt_recorder_write(r, writes.items[i].storage, values[first_write + i]));
  for (int i = 0; i < count; ++i)
    for (int k = 0; k < regions[i]->check_count; ++k) {
      const tt_recorded_check *check = &regions[i]->checks[k];
      tt_recorder_check(r, values[first_check + branches[i].first_check + k], check->code, check->message);
    }
  *out_results = values;
  return tt_builder_take_status(r->b);
}

// --- scan ---------------------------------------------------------------------------------------------------------------------

// The place of element i in the first dimension of x.
static tt_value *const *starts_at(tt_builder *b, tt_value *i, const tt_value *x) {
  tt_value **starts = tt_arena_allocate(tt_builder_arena(b), (size_t)x->rank, sizeof *starts);
  tt_value *zero = tt_hlo_constant(b, i->dtype, 0);
  for (int d = 0; starts && d < x->rank; ++d) starts[d] = d == 0 ? i : zero;
  if (!starts) tt_builder_fail(b, out_of_memory());
  return starts;
}

static tt_value *element(tt_builder *b, tt_value *x, tt_value *i) {
  int64_t *sizes = tt_arena_copy(tt_builder_arena(b), x->dims, (size_t)x->rank * sizeof *sizes);
  tt_value *const *starts = starts_at(b, i, x);
  if (!sizes || !starts) return tt_builder_fail(b, out_of_memory());
  sizes[0] = 1;
  return tt_hlo_squeeze_dim(b, tt_hlo_dynamic_slice(b, x, starts, sizes), 0);
}

// The state from which step i draws, each in its own part of the loop's numbers.
static tt_value *random_state_of(tt_builder *b, const loop *l, tt_value *state, tt_value *i) {
  tt_value *step = tt_hlo_constant_vector(b, TT_U64, 2, (int64_t[]){0, l->body->random_count});
  tt_value *number = tt_hlo_broadcast_like(b, tt_hlo_convert(b, i, TT_U64), step);
  return tt_hlo_add(b, state, tt_hlo_multiply(b, number, step));
}

static void scan_condition(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  const loop *l = user;
  results[0] = tt_hlo_compare(b, TT_LT, state[0], tt_hlo_constant_i64(b, state[0]->dtype, l->length));
}

static void scan_body(tt_builder *b, tt_value *const *state, tt_value **results, void *user) {
  const loop *l = user;
  tt_arena *arena = tt_builder_arena(b);
  tt_value **arguments = tt_arena_allocate(arena, (size_t)l->body->argument_count + 1, sizeof *arguments);
  tt_value **outside = tt_arena_copy(arena, state, (size_t)l->count * sizeof *outside);
  if (!arguments || !outside) {
    tt_builder_fail(b, out_of_memory());
    return;
  }
  for (int k = 0; k < l->carried_count; ++k) arguments[k] = state[l->carried + k];
  for (int k = 0; k < l->xs_count; ++k) arguments[l->carried_count + k] = element(b, state[l->xs + k], state[0]);
  if (l->random) outside[l->random] = random_state_of(b, l, state[l->random], state[0]);
  tt_value **given = inline_region(b, l->body, arguments, outside, l->body_captures);
  if (!given) return;
  next_state(b, l, state, given, results);
  for (int k = 0; k < l->ys_count; ++k) {
    tt_value *all = state[l->ys + k], *y = given[l->carried_count + k];
    tt_value *const *starts = starts_at(b, state[0], all);
    if (starts) results[l->ys + k] = tt_hlo_dynamic_update_slice(b, all, tt_hlo_unsqueeze_dim(b, y, 0), starts);
  }
  results[0] = tt_hlo_add(b, state[0], tt_hlo_constant(b, state[0]->dtype, 1));
}

// Room for all y[i].
static tt_value *room_for(tt_builder *b, const tt_value *y, int64_t length) {
  int64_t *dims = tt_arena_allocate(tt_builder_arena(b), (size_t)y->rank + 1, sizeof *dims);
  if (!dims) return tt_builder_fail(b, out_of_memory());
  dims[0] = length;
  if (y->rank) memcpy(dims + 1, y->dims, (size_t)y->rank * sizeof *dims);
  return tt_hlo_splat(b, y->dtype, y->rank + 1, dims, 0);
}

static tt_status check_scan(const loop *l, tt_value *const *xs) {
  bool fits = l->body->argument_count == l->carried_count + l->xs_count && l->ys_count >= 0 && l->length >= 0 &&
              l->length <= INT32_MAX;
  for (int i = 0; fits && i < l->xs_count; ++i) fits = xs[i]->rank > 0 && xs[i]->dims[0] == l->length;
  return fits ? TT_SUCCESS
              : tt_error(TT_INVALID_ARGUMENT, "scan: what the body takes and gives does not fit what is scanned");
}

tt_status tt_region_scan(tt_recorder *r, const tt_region *body, int64_t length, int carried_count,
                         tt_value *const *carried, int xs_count, tt_value *const *xs, tt_value ***out_results) {
  loop l = {.body = body,
            .length = length,
            .carried_count = carried_count,
            .xs_count = xs_count,
            .ys_count = body->result_count - carried_count};
  TT_TRY(tt_builder_take_status(r->b)); // of an operand
  TT_TRY(check_scan(&l, xs));
  if (!allocate_state(r, &l)) return out_of_memory();
  append(&l, 1, (tt_value *[]){tt_hlo_constant(r->b, TT_S32, 0)});
  l.carried = l.count;
  append(&l, carried_count, carried);
  append_writes_and_checks(r->b, &l);
  l.ys = l.count;
  for (int i = 0; i < l.ys_count; ++i)
    append(&l, 1, (tt_value *[]){room_for(r->b, &body->fragment.results[carried_count + i], length)});
  l.xs = l.count;
  append(&l, xs_count, xs);
  tt_value *random = body->is_random ? tt_recorder_random_state(r, body->random_count * length) : NULL;
  l.body_captures = append_captures(r, &l, body, random);
  if (!l.body_captures) return out_of_memory();
  tt_hlo_while(r->b, l.count, l.state, scan_condition, scan_body, &l, l.state);
  TT_TRY(give_writes_and_checks(r, &l));
  for (int i = 0; i < l.ys_count; ++i) l.state[l.carried + carried_count + i] = l.state[l.ys + i];
  *out_results = l.state + l.carried;
  return TT_SUCCESS;
}
