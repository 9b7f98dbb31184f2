// recorder.c - see recorder.h.
#include "graph/recorder.h"

#include <string.h>

#include "base/memory.h"

static tt_status out_of_memory(void) {
  return tt_error(TT_OUT_OF_MEMORY, "out of host memory while recording a program");
}

tt_status tt_recorder_init(tt_recorder *r, const tt_target *target, bool single, const tt_tensor *slots,
                           int slot_count) {
  *r = (tt_recorder){.single = single, .slots = slots, .slot_count = slot_count};
  return tt_builder_create(target, &r->b);
}

void tt_recorder_free(tt_recorder *r) {
  for (int i = 0; i < r->record_count; ++i) tt_storage_release(r->records[i].storage);
  tt_free(r->records);
  tt_free(r->table);
  tt_free(r->inputs);
  tt_free(r->checks);
  tt_free(r->requirements);
  tt_free(r->captures);
  tt_builder_free(r->b);
  *r = (tt_recorder){0};
}

// --- records -----------------------------------------------------------------------------------------------------------

static size_t place(const tt_recorder *r, const tt_storage *storage) {
  size_t at = (size_t)(((uintptr_t)storage >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 24) & (size_t)(r->table_size - 1);
  while (r->table[at] && r->records[r->table[at] - 1].storage != storage) at = (at + 1) & (size_t)(r->table_size - 1);
  return at;
}

// Keeps the table at most half full. False when memory is exhausted.
static bool rehash(tt_recorder *r) {
  if (2 * (r->record_count + 1) <= r->table_size) return true;
  int size = r->table_size ? 2 * r->table_size : 32;
  int *table = tt_calloc((size_t)size, sizeof *table);
  if (!table) return false;
  tt_free(r->table);
  r->table = table;
  r->table_size = size;
  for (int i = 0; i < r->record_count; ++i) r->table[place(r, r->records[i].storage)] = i + 1;
  return true;
}

// The first slot of the call that has this storage.
static int slot_of(const tt_recorder *r, const tt_storage *storage) {
  for (int i = 0; i < r->slot_count; ++i)
    if (r->slots[i].storage == storage) return i;
  return -1;
}

tt_record *tt_recorder_find(tt_recorder *r, tt_storage *storage) {
  if (!rehash(r)) return NULL;
  size_t at = place(r, storage);
  if (r->table[at]) return &r->records[r->table[at] - 1];
  if (!tt_reserve((void **)&r->records, r->record_count, 1, &r->record_capacity, sizeof *r->records)) return NULL;
  r->records[r->record_count++] =
      (tt_record){.storage = tt_storage_retain(storage), .input = -1, .slot = slot_of(r, storage)};
  r->table[at] = r->record_count;
  return &r->records[r->record_count - 1];
}

static tt_status add_input(tt_recorder *r, const tt_input *input) {
  if (!tt_reserve((void **)&r->inputs, r->input_count, 1, &r->input_capacity, sizeof *r->inputs))
    return out_of_memory();
  r->inputs[r->input_count++] = *input;
  return TT_SUCCESS;
}

// A parameter of a region that stands for a value of the program around it.
static tt_status capture(tt_recorder *r, tt_capture outside, tt_dtype dtype, int rank, const int64_t *dims,
                         tt_value **out_parameter) {
  if (!tt_reserve((void **)&r->captures, r->capture_count, 1, &r->capture_capacity, sizeof *r->captures))
    return out_of_memory();
  r->captures[r->capture_count++] = outside;
  *out_parameter = tt_builder_parameter(r->b, dtype, rank, dims);
  return TT_SUCCESS;
}

bool tt_recorder_is_outside(const tt_recorder *r, const tt_storage *storage) {
  return r->outer && storage->number <= r->newest;
}

// A region reads a storage from outside as the program around it has it.
static tt_status capture_storage(tt_recorder *r, tt_record *record) {
  tt_value *outside;
  TT_TRY(tt_recorder_value(r->outer, record->storage, &outside, &record->layout));
  if (!outside) return TT_SUCCESS;
  const tt_capture captured = {outside, record->storage};
  return capture(r, captured, outside->dtype, outside->rank, outside->dims, &record->value);
}

tt_status tt_recorder_value(tt_recorder *r, tt_storage *storage, tt_value **out_value, const tt_layout **out_layout) {
  tt_record *record = tt_recorder_find(r, storage);
  if (!record) return out_of_memory();
  if (record->value || record->written) {
    // what the recording made of it
  } else if (tt_recorder_is_outside(r, storage)) {
    TT_TRY(capture_storage(r, record));
  } else if (!r->outer) {
    const tt_layout *layout = tt_storage_layout(storage);
    if (layout) {
      tt_input input = {
          .kind = TT_INPUT_STORAGE, .dtype = layout->dtype, .slot = record->slot, .storage = storage, .layout = layout};
      TT_TRY(add_input(r, &input));
      record->input = r->input_count - 1;
      record->layout = layout;
      record->value = tt_builder_parameter(r->b, layout->dtype, layout->rank, layout->dims);
    }
  }
  *out_value = record->value;
  *out_layout = record->layout;
  return TT_SUCCESS;
}

tt_status tt_recorder_add_fresh(tt_recorder *r, tt_storage *storage, const tt_recorded_result *result) {
  tt_record *record = tt_recorder_find(r, storage);
  if (!record) return out_of_memory();
  record->fresh = record->written = true;
  record->value = result->value;
  record->layout = result->layout;
  return TT_SUCCESS;
}

// --- arguments that are overwritten -----------------------------------------------------------------------------------------

tt_status tt_recorder_overwrite(tt_recorder *r, tt_storage *storage) {
  tt_record *record = tt_recorder_find(r, storage);
  if (!record) return out_of_memory();
  r->overwritten_count += !record->overwritten;
  record->overwritten = true;
  return TT_SUCCESS;
}

static tt_value *wait_for_reader(tt_recorder *r, tt_storage *storage, tt_value *value) {
  tt_record *record = tt_recorder_find(r, storage);
  if (!record || !record->reader || record->written) return value;
  tt_value *both[] = {value, record->reader}, *joined[2];
  tt_hlo_optimization_barrier_n(r->b, 2, both, joined);
  record->reader = NULL;
  return record->value = joined[0];
}

static void note_reader(tt_recorder *r, const tt_lowering *l) {
  tt_value *product = l->result_count > 0 ? l->results[0].value : NULL;
  if (r->overwritten_count == 0 || !product || !product->product) return;
  for (int i = 0; i < l->tensor_count; ++i) {
    tt_record *record = l->tensors[i].storage ? tt_recorder_find(r, l->tensors[i].storage) : NULL;
    if (record && record->overwritten && !record->written) record->reader = product;
  }
}

// --- the source of a lowering's values ------------------------------------------------------------------------------------

static tt_value *source_base(void *user, int slot) {
  tt_recorder *r = user;
  const tt_tensor *t = &r->tensors[slot];
  tt_value *value = NULL;
  const tt_layout *layout;
  tt_status status = tt_recorder_value(r, t->storage, &value, &layout);
  if (status) return tt_builder_fail(r->b, status);
  if (value) return r->overwritten_count > 0 ? wait_for_reader(r, t->storage, value) : value;
  // Uninitialised memory reads as zeros.
  int64_t count = t->storage->byte_size / tt_dtype_size(t->dtype);
  return tt_hlo_splat(r->b, t->dtype, 1, &count, 0);
}

static bool same_digit(const tt_digit *a, const tt_digit *b) {
  return a->divisor == b->divisor && a->modulus == b->modulus && a->inner_divisor == b->inner_divisor &&
         a->inner_modulus == b->inner_modulus;
}

// A rank-0 parameter, shared by equal inputs.
static tt_value *scalar_input(tt_recorder *r, const tt_input *input) {
  for (int i = 0; i < r->input_count; ++i) {
    const tt_input *other = &r->inputs[i];
    if (other->kind == input->kind && other->dtype == input->dtype && other->slot == input->slot &&
        other->number == input->number && same_digit(&other->digit, &input->digit))
      return other->value;
  }
  tt_status status = add_input(r, input);
  if (status) return tt_builder_fail(r->b, status);
  return r->inputs[r->input_count - 1].value = tt_builder_parameter(r->b, input->dtype, 0, NULL);
}

static const tt_arg *nth_number(const tt_arg *args, int count, int *io_left) {
  for (int i = 0; i < count; ++i) {
    const tt_arg *a = &args[i];
    if (a->kind == TT_ARG_LIST) {
      const tt_arg *found = nth_number(a->u.items, a->count, io_left);
      if (found) return found;
    } else if (a->number &&
               (a->kind == TT_ARG_INT || a->kind == TT_ARG_BOOL || a->kind == TT_ARG_DOUBLE ||
                a->kind == TT_ARG_COMPLEX) &&
               (*io_left)-- == 0) {
      return a;
    }
  }
  return NULL;
}

static tt_value *source_number(void *user, int number, tt_dtype dtype) {
  tt_recorder *r = user;
  if (!r->single) {
    int left = number;
    const tt_arg *a = nth_number(r->args, r->arg_count, &left);
    return a ? tt_number_constant(r->b, a, dtype) : tt_builder_fail(r->b, tt_internal_error("no number %d", number));
  }
  tt_input input = {.kind = TT_INPUT_NUMBER, .dtype = dtype, .slot = -1, .number = number};
  return scalar_input(r, &input);
}

static tt_value *source_cpu_scalar(void *user, int slot, tt_dtype dtype) {
  tt_recorder *r = user;
  if (!r->single) {
    const tt_tensor *t = &r->tensors[slot];
    if (tt_dtype_is_complex(t->dtype))
      return tt_hlo_convert(r->b, tt_hlo_constant_complex(r->b, TT_C128, t->real, t->imag), dtype);
    bool integral = t->dtype == TT_BOOL || tt_dtype_is_integral(t->dtype);
    return integral && !tt_dtype_is_complex(dtype)
               ? tt_hlo_constant_i64(r->b, dtype, t->integer)
               : tt_hlo_constant(r->b, dtype, integral ? (double)t->integer : t->real);
  }
  tt_input input = {.kind = TT_INPUT_CPU_SCALAR, .dtype = dtype, .slot = slot};
  return scalar_input(r, &input);
}

tt_status tt_recorder_scalar(tt_recorder *r, int slot, tt_recorded_result *out_result) {
  tt_dtype dtype = r->slots[slot].dtype;
  tt_input input = {.kind = TT_INPUT_CPU_SCALAR, .dtype = dtype, .slot = slot};
  *out_result = (tt_recorded_result){.value = scalar_input(r, &input), .dtype = dtype};
  TT_TRY(tt_builder_take_status(r->b));
  return tt_layout_intern(dtype, 0, NULL, &out_result->layout);
}

static tt_value *source_start(void *user, int slot, const tt_digit *digit) {
  tt_recorder *r = user;
  int64_t offset = r->tensors[slot].offset;
  if (!r->single)
    return digit ? tt_hlo_constant_i64(r->b, TT_S32, tt_digit_value(digit, offset))
                 : tt_hlo_constant_i64(r->b, TT_S64, offset);
  tt_input input = {.kind = digit ? TT_INPUT_DIGIT : TT_INPUT_OFFSET, .dtype = digit ? TT_S32 : TT_S64, .slot = slot};
  if (digit) input.digit = *digit;
  return scalar_input(r, &input);
}

tt_value *tt_recorder_random_state(tt_recorder *r, int64_t count) {
  int64_t two = 2;
  if (!r->random_state && r->outer) {
    tt_status status = capture(r, (tt_capture){0}, TT_U64, 1, &two, &r->random_state);
    if (status) return tt_builder_fail(r->b, status);
  } else if (!r->random_state) {
    tt_input input = {.kind = TT_INPUT_RANDOM, .dtype = TT_U64, .slot = -1};
    tt_status status = add_input(r, &input);
    if (status) return tt_builder_fail(r->b, status);
    r->random_state = tt_builder_parameter(r->b, TT_U64, 1, &two);
  }
  tt_value *state = r->random_state;
  if (r->random_count)
    state = tt_hlo_add(r->b, state, tt_hlo_constant_vector(r->b, TT_U64, 2, (int64_t[]){0, r->random_count}));
  r->random_count += (count + 3) / 4 * 4; // as tt_generator_advance rounds
  return state;
}

static tt_value *source_random_state(void *user, tt_generator *generator, int64_t count) {
  (void)generator; // the launch takes the call's generator
  return tt_recorder_random_state(user, count);
}

void tt_recorder_check(tt_recorder *r, tt_value *ok, tt_code code, const char *message) {
  if (!tt_reserve((void **)&r->checks, r->check_count, 1, &r->check_capacity, sizeof *r->checks)) {
    tt_builder_fail(r->b, out_of_memory());
    return;
  }
  r->checks[r->check_count++] = (tt_recorded_check){ok, code, message};
}

static void source_check(void *user, tt_value *ok, tt_code code, const char *message) {
  tt_recorder_check(user, ok, code, message);
}

// A program of many calls holds their numbers as constants.
static void source_require(void *user, const tt_requirement *requirement) {
  tt_recorder *r = user;
  if (!r->single) return;
  if (!tt_reserve((void **)&r->requirements, r->requirement_count, 1, &r->requirement_capacity,
                  sizeof *r->requirements)) {
    tt_builder_fail(r->b, out_of_memory());
    return;
  }
  r->requirements[r->requirement_count++] = *requirement;
}

static tt_source source_of(tt_recorder *r) {
  return (tt_source){source_base,         source_number, source_cpu_scalar, source_start,
                     source_random_state, source_check,  source_require,    r};
}

// --- lowering a call --------------------------------------------------------------------------------------------------------

static tt_status write_record(tt_record *record, tt_value *value) {
  TT_TRY(tt_layout_intern(value->dtype, value->rank, value->dims, &record->layout));
  record->value = value;
  record->written = true;
  return TT_SUCCESS;
}

tt_status tt_recorder_write(tt_recorder *r, tt_storage *storage, tt_value *value) {
  tt_record *record = tt_recorder_find(r, storage);
  return record ? write_record(record, value) : out_of_memory();
}

// Writes a lowered value through a slot into its storage's record.
static tt_status record_write(tt_recorder *r, tt_lowering *l, int slot, tt_value *value) {
  const tt_tensor *t = &l->tensors[slot];
  tt_value *base = NULL;
  const tt_layout *layout = NULL;
  if (!tt_tensor_covers(t, t->storage->byte_size)) TT_TRY(tt_recorder_value(r, t->storage, &base, &layout));
  tt_value *stored = tt_lowering_store(l, slot, value, base, t->storage->byte_size);
  if (tt_builder_failed(r->b) || !stored) return TT_SUCCESS; // reported by the caller; or nothing to write
  return tt_recorder_write(r, t->storage, stored);
}

// Logical sizes, strides and the physical value of a fresh result.
static tt_status fresh_result(tt_recorder *r, const tt_lowered *lowered, tt_recorded_result *out) {
  tt_value *x = lowered->value;
  *out = (tt_recorded_result){0};
  if (!x) return TT_SUCCESS;
  int rank = x->rank;
  int64_t *sizes = tt_arena_allocate(tt_builder_arena(r->b), (size_t)rank * 2 + 1, sizeof *sizes);
  if (!sizes) return out_of_memory();
  if (rank) memcpy(sizes, x->dims, (size_t)rank * sizeof *sizes);
  int channels_last[5];
  const int *order = lowered->order;
  if (!order && lowered->channels_last && (rank == 4 || rank == 5)) {
    for (int i = 0; i < rank; ++i) channels_last[i] = i == 0 ? 0 : i < rank - 1 ? i + 1 : 1;
    order = channels_last;
  }
  int64_t stride = 1, *strides = sizes + rank;
  for (int i = rank - 1; i >= 0; --i) {
    int d = order ? order[i] : i;
    strides[d] = stride;
    stride *= sizes[d] > 1 ? sizes[d] : 1;
  }
  if (order) x = tt_hlo_transpose(r->b, x, order);
  *out = (tt_recorded_result){x, x->dtype, rank, sizes, strides, NULL};
  if (tt_builder_failed(r->b)) return TT_SUCCESS;
  return tt_layout_intern(x->dtype, x->rank, x->dims, &out->layout);
}

static tt_status collect_results(tt_recorder *r, tt_lowering *l, const tt_recorded_call *call,
                                 tt_recorded_result **out_results, int *out_count) {
  int fresh = call->written_count ? 0 : l->result_count;
  tt_recorded_result *results = tt_arena_allocate(tt_builder_arena(r->b), (size_t)fresh + 1, sizeof *results);
  if (!results) return out_of_memory();
  if (call->written_count && l->result_count > call->written_count)
    return tt_internal_error("%s gave %d results for %d outputs", call->op->name, l->result_count, call->written_count);
  for (int i = 0; i < l->result_count && !tt_builder_failed(r->b); ++i) {
    if (!call->written_count)
      TT_TRY(fresh_result(r, &l->results[i], &results[i]));
    else if (l->results[i].value)
      TT_TRY(record_write(r, l, call->written[i], l->results[i].value));
  }
  for (int i = 0; i < l->write_count && !tt_builder_failed(r->b); ++i)
    TT_TRY(record_write(r, l, l->writes[i].slot, l->writes[i].value));
  *out_results = results;
  *out_count = fresh;
  return TT_SUCCESS;
}

// The call's tensors with ones around their sizes and strides, as values have them: see builder.h.
static tt_tensor *guard_tensors(tt_recorder *r, const tt_recorded_call *call) {
  tt_arena *arena = tt_builder_arena(r->b);
  tt_tensor *tensors = tt_arena_allocate(arena, (size_t)call->tensor_count + 1, sizeof *tensors);
  for (int i = 0; tensors && i < call->tensor_count; ++i) {
    tt_tensor *t = &tensors[i];
    *t = call->tensors[i];
    int64_t *sizes = tt_arena_allocate(arena, tt_guarded_size(t->rank), sizeof *sizes);
    int64_t *strides = tt_arena_allocate(arena, tt_guarded_size(t->rank), sizeof *strides);
    if (!sizes || !strides) return NULL;
    t->sizes = tt_guard_dims(sizes, t->rank, t->sizes);
    t->strides = tt_guard_dims(strides, t->rank, t->strides);
  }
  return tensors;
}

tt_status tt_recorder_lower(tt_recorder *r, const tt_recorded_call *call, tt_recorded_result **out_results,
                            int *out_count) {
  const tt_tensor *tensors = guard_tensors(r, call);
  if (!tensors) return out_of_memory();
  r->tensors = tensors;
  r->args = call->args;
  r->arg_count = call->arg_count;
  tt_lowering l = {
      .b = r->b,
      .op = call->op,
      .args = call->args,
      .arg_count = call->arg_count,
      .tensors = tensors,
      .tensor_count = call->tensor_count,
      .outputs = call->written,
      .output_count = call->written_count,
      .default_dtype = call->default_dtype,
      .precision = call->precision,
      .device_index = call->device_index,
      .source = source_of(r),
  };
  l.operands = tt_arena_allocate(tt_builder_arena(r->b), (size_t)call->tensor_count + 1, sizeof *l.operands);
  if (!l.operands) return out_of_memory();
  call->op->lower(&l);
  note_reader(r, &l);
  tt_status status = collect_results(r, &l, call, out_results, out_count);
  return tt_status_join(tt_builder_take_status(r->b), status);
}

tt_value *tt_recorder_operand(tt_recorder *r, const tt_tensor *tensor) {
  tt_value *operand = NULL;
  r->tensors = tensor;
  tt_lowering l = {.b = r->b, .tensors = tensor, .tensor_count = 1, .operands = &operand, .source = source_of(r)};
  return tt_lowering_read(&l, 0);
}

tt_status tt_recorder_result(tt_recorder *r, tt_value *value, tt_recorded_result *out_result) {
  TT_TRY(tt_builder_take_status(r->b));
  return fresh_result(r, &(tt_lowered){.value = value}, out_result);
}

tt_status tt_recorder_read(tt_recorder *r, const tt_tensor *tensor, tt_recorded_result *out_result) {
  tt_value *operand = NULL;
  r->tensors = tensor;
  tt_lowering l = {.b = r->b, .tensors = tensor, .tensor_count = 1, .operands = &operand, .source = source_of(r)};
  tt_value *value = tt_lowering_read(&l, 0);
  size_t bytes = (size_t)tensor->rank * sizeof *tensor->sizes;
  tt_tensor dense = *tensor;
  dense.offset = 0;
  if (tt_tensor_covers(&dense, tt_value_count(value) * tt_dtype_size(tensor->dtype))) {
    l.tensors = &dense;
    value = tt_lowering_store(&l, 0, value, NULL, tt_value_count(value) * tt_dtype_size(tensor->dtype));
    *out_result = (tt_recorded_result){.value = value, .dtype = tensor->dtype, .rank = tensor->rank};
    out_result->sizes = tt_arena_copy(tt_builder_arena(r->b), tensor->sizes, bytes);
    out_result->strides = tt_arena_copy(tt_builder_arena(r->b), tensor->strides, bytes);
    if (tensor->rank && (!out_result->sizes || !out_result->strides)) return out_of_memory();
    TT_TRY(tt_builder_take_status(r->b));
    return tt_layout_intern(value->dtype, value->rank, value->dims, &out_result->layout);
  }
  TT_TRY(tt_builder_take_status(r->b));
  return fresh_result(r, &(tt_lowered){.value = value}, out_result);
}
