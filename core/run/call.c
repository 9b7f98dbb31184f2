// call.c - finding the plan of a call, or making it; see call.h.
#include "run/call.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "base/string.h"
#include "cache/cache.h"
#include "graph/recorder.h"
#include "graph/storage.h"
#include "run/graph.h"
#include "run/internal.h"
#include "run/key.h"
#include "run/plan.h"
#include "run/reason.h"
#include "run/record.h"
#include "run/trace.h"

static pthread_rwlock_t plans_lock = PTHREAD_RWLOCK_INITIALIZER; // guards `plans`
static tt_map plans = TT_MAP_INIT;                               // key words -> tt_plan, one reference each

// The plan of this thread's newest call: what the call returned points into it until the next. One reference.
static _Thread_local tt_plan *newest;

// An operand before its call: the tensor, whose sizes and strides are dead after the call, and the layout of its storage's value.
typedef struct operand {
  tt_tensor tensor;
  const tt_layout *layout; // NULL: uninitialised, or a CPU scalar
} operand;

// This thread's last plan of an out= variant and its operands, for tt_call_adopt.
static _Thread_local struct {
  tt_plan *plan; // one reference
  operand *operands;
  int count, capacity;
} last;

// --- overloads -------------------------------------------------------------------------------------------------------------

tt_overload *tt_overload_create(const tt_op *op, const char *name, tt_variant variant, bool structured, int arg_count,
                                int result_count) {
  static _Atomic int next_id = 1;
  tt_overload *overload = tt_calloc(1, sizeof *overload);
  char *copy = tt_strdup(name);
  if (!overload || !copy) {
    tt_free(overload);
    tt_free(copy);
    return NULL;
  }
  *overload = (tt_overload){.op = op,
                            .name = copy,
                            .id = atomic_fetch_add(&next_id, 1),
                            .variant = variant,
                            .structured = structured,
                            .arg_count = arg_count,
                            .result_count = result_count};
  return overload;
}

// --- the plan map ------------------------------------------------------------------------------------------------------------

static uint64_t key_hash(const tt_key *key) { return tt_hash(key->words, (size_t)key->count * sizeof *key->words); }

// Makes `holder` refer to `plan` (NULL: to none) and returns what it referred to, whose reference is the caller's now.
static tt_plan *exchange(tt_plan **holder, tt_plan *plan) {
  tt_plan *before = *holder;
  *holder = plan ? tt_plan_retain(plan) : NULL;
  return before;
}

// The plan becomes this thread's newest while the map cannot let go of it.
static tt_plan *find_plan(const tt_key *key, uint64_t hash) {
  tt_plan *before = NULL;
  pthread_rwlock_rdlock(&plans_lock);
  tt_plan *plan = tt_map_get(&plans, hash, key->words, (size_t)key->count * sizeof *key->words);
  if (plan && plan != newest) before = exchange(&newest, plan);
  pthread_rwlock_unlock(&plans_lock);
  tt_plan_release(before);
  return plan;
}

tt_status tt_plan_enter(const tt_key *key, tt_plan *plan) {
  pthread_rwlock_wrlock(&plans_lock);
  void *old = NULL;
  tt_status status = tt_map_set(&plans, key_hash(key), key->words, (size_t)key->count * sizeof *key->words, plan, &old);
  pthread_rwlock_unlock(&plans_lock);
  tt_plan_release(old); // another thread entered one meanwhile
  return status;
}

static void release_plan(void *user, const tt_map_entry *entry) {
  (void)user;
  tt_plan_release(entry->value);
}

void tt_plans_forget(void) {
  pthread_rwlock_wrlock(&plans_lock);
  tt_map forgotten = plans;
  plans = TT_MAP_INIT;
  pthread_rwlock_unlock(&plans_lock);
  tt_map_each(&forgotten, release_plan, NULL);
  tt_map_free(&forgotten);
  tt_graph_programs_forget();
  tt_reasons_forget();
  tt_cache_clear();
}

// --- making a plan -----------------------------------------------------------------------------------------------------------

void tt_describe_tensor(const tt_tensor *t, tt_string *out) {
  if (!t->defined) return tt_string_append(out, "undefined");
  tt_string_printf(out, "%s [", tt_dtype_text(t->dtype));
  for (int i = 0; i < t->rank; ++i) tt_string_printf(out, i ? ", %lld" : "%lld", (long long)t->sizes[i]);
  tt_string_append(out, t->cpu_scalar ? "] (CPU scalar)" : "]");
}

void tt_call_describe_operands(const tt_call *call, tt_string *out) {
  for (int i = 0; i < call->tensor_count && i < 8; ++i) {
    if (i) tt_string_append(out, ", ");
    tt_describe_tensor(&call->tensors[i], out);
  }
  if (call->tensor_count > 8) tt_string_append(out, ", ...");
}

// "add(Float [2, 3], Float [3])" for messages about programs.
void tt_call_describe(const tt_call *call, tt_string *out) {
  tt_string_printf(out, "%s(", call->overload->name);
  tt_call_describe_operands(call, out);
  tt_string_append(out, ")");
}

static tt_status with_signature(const tt_call *call, tt_status status) {
  tt_code code = tt_status_code(status);
  if (code != TT_PLUGIN && code != TT_INTERNAL && code != TT_MISMATCH) return status; // those that read as torch's do
  tt_string text = TT_STRING_INIT;
  tt_call_describe(call, &text);
  if (code == TT_MISMATCH) tt_string_append(&text, ": the arguments do not fit together");
  status = tt_status_context(status, "%s", tt_string_text(&text));
  tt_string_free(&text);
  return status;
}

tt_recorded_call tt_call_recorded(const tt_call *call) {
  return (tt_recorded_call){
      .op = call->overload->op,
      .args = call->args,
      .arg_count = call->arg_count,
      .tensors = call->tensors,
      .tensor_count = call->tensor_count,
      .written = call->written,
      .written_count = call->overload->variant == TT_FUNCTIONAL ? 0 : call->written_count,
      .default_dtype = call->default_dtype,
      .precision = (tt_precision)call->precision,
      .device_index = call->device_index,
  };
}

// A storage may have shrunk below its tensors (`untyped_storage().resize_(0)`); the text is that of torch's set_().
static tt_status check_storage(const tt_tensor *t) {
  int64_t last = t->offset;
  for (int i = 0; i < t->rank; ++i) {
    if (t->sizes[i] == 0) return TT_SUCCESS;
    last += (t->sizes[i] - 1) * t->strides[i];
  }
  const int64_t needed = (last + 1) * tt_dtype_size(t->dtype);
  if (needed <= t->storage->byte_size) return TT_SUCCESS;
  tt_string text = TT_STRING_INIT;
  for (int i = 0; i < t->rank; ++i) tt_string_printf(&text, i ? ", %lld" : "sizes [%lld", (long long)t->sizes[i]);
  for (int i = 0; i < t->rank; ++i)
    tt_string_printf(&text, i ? ", %lld" : "], strides [%lld", (long long)t->strides[i]);
  if (t->rank == 0) tt_string_append(&text, "sizes [], strides [");
  tt_status status =
      tt_error(TT_INVALID_ARGUMENT,
               "%s], storage offset %lld, and itemsize %d requiring a storage size of %lld are out of bounds "
               "for storage of size %lld",
               tt_string_text(&text), (long long)t->offset, (int)tt_dtype_size(t->dtype), (long long)needed,
               (long long)t->storage->byte_size);
  tt_string_free(&text);
  return status;
}

static tt_status check_storages(const tt_call *call) {
  for (int i = 0; i < call->tensor_count; ++i) {
    const tt_tensor *t = &call->tensors[i];
    if (!t->defined || t->cpu_scalar) continue;
    tt_status status = check_storage(t);
    if (status) return tt_status_context(status, "%s", call->overload->name);
  }
  return TT_SUCCESS;
}

static _Atomic(tt_lowering_observer) lowering_observer;

void tt_set_lowering_observer(tt_lowering_observer observer) { atomic_store(&lowering_observer, observer); }

void tt_tell_lowering_observer(const tt_call *call) {
  tt_lowering_observer observer = atomic_load_explicit(&lowering_observer, memory_order_relaxed);
  if (observer) observer(call);
}

tt_status tt_call_lower(const tt_call *call, const tt_target *target, tt_recorder *recorder,
                        tt_plan_request *out_request) {
  TT_TRY(tt_recorder_init(recorder, target, true, call->tensors, call->tensor_count));
  tt_recorded_call recorded = tt_call_recorded(call);
  tt_recorded_result *results = NULL;
  int count = 0;
  TT_TRY(tt_recorder_lower(recorder, &recorded, &results, &count));
  *out_request = (tt_plan_request){.op_name = call->overload->op->name, .results = results, .result_count = count};
  return TT_SUCCESS;
}

static tt_status make_plan(const tt_call *call, tt_plan **out_plan) {
  TT_TRY(check_storages(call));
  tt_recorder recorder;
  tt_plan_request request;
  tt_status status = tt_call_lower(call, tt_runtime_target(), &recorder, &request);
  if (!status) status = tt_plan_create(&recorder, &request, out_plan);
  tt_recorder_free(&recorder);
  if (status) return with_signature(call, status);
  status = tt_reason_note(call, *out_plan);
  if (!status && tt_get_eager_mode() == TT_DEFER_NEVER_AND_LAUNCH_BLOCKING) status = tt_plan_compile(*out_plan);
  if (status) {
    tt_plan_release(*out_plan);
    return with_signature(call, status);
  }
  tt_tell_lowering_observer(call);
  return TT_SUCCESS;
}

// --- adopting -----------------------------------------------------------------------------------------------------------------

static const tt_layout *layout_of(const tt_tensor *t) { return t->storage ? tt_storage_layout(t->storage) : NULL; }

static void remember(tt_plan *plan, const tt_call *call) {
  if (call->tensor_count > last.capacity) {
    operand *bigger = tt_realloc_array(last.operands, (size_t)call->tensor_count, sizeof *bigger);
    if (!bigger) {
      tt_plan_release(exchange(&last.plan, NULL));
      return;
    }
    last.operands = bigger;
    last.capacity = call->tensor_count;
  }
  for (int i = 0; i < call->tensor_count; ++i)
    last.operands[i] = (operand){call->tensors[i], layout_of(&call->tensors[i])};
  last.count = call->tensor_count;
  tt_plan_release(exchange(&last.plan, plan));
}

// The call is over, so a tensor that it wrote may have its storage's first value now, or one of another layout. The key that
// tt_call_adopt builds would then be the one of the next call, for which the plan was not made.
static bool same_operands(const tt_call *call) {
  if (!last.plan || last.count < call->tensor_count) return false;
  for (int i = 0; i < call->tensor_count; ++i) {
    const tt_tensor *a = &last.operands[i].tensor, *b = &call->tensors[i];
    if (a->storage != b->storage || a->dtype != b->dtype || a->rank != b->rank || a->offset != b->offset ||
        a->cpu_scalar != b->cpu_scalar || a->wrapped_number != b->wrapped_number || a->defined != b->defined ||
        last.operands[i].layout != layout_of(b))
      return false;
  }
  return true;
}

// Does the plan read the values that the operands have? Another thread may have given one a value of another layout.
static bool still_fits(const tt_plan *plan, const tt_call *call) {
  for (int i = 0; i < plan->input_count; ++i) {
    const tt_plan_input *in = &plan->inputs[i];
    if (in->kind == TT_INPUT_STORAGE && !in->constant &&
        tt_storage_layout(call->tensors[in->slot].storage) != in->layout)
      return false;
  }
  return true;
}

bool tt_call_adopt(const tt_call *call, const tt_tensor *results, int count) {
  bool in_place = call->overload->variant == TT_IN_PLACE;
  bool adopted = false;
  int outputs = in_place ? call->written_count : count;
  if (!tt_record_active() && same_operands(call) && last.count == call->tensor_count + outputs) {
    tt_plan *plan = tt_plan_adopt(last.plan, call->tensor_count, in_place ? call->written : NULL, results, outputs);
    tt_key key;
    tt_status status = plan ? tt_key_build(call, &key) : TT_SUCCESS;
    if (plan && !status) status = tt_plan_enter(&key, plan);
    if (plan) tt_key_free(&key);
    adopted = plan && !status;
    if (plan && !adopted) tt_plan_release(plan);
    tt_status_free(status);
  }
  tt_plan_release(exchange(&last.plan, NULL));
  return adopted;
}

// --- running --------------------------------------------------------------------------------------------------------------------

// Does the key still describe the call? Another thread may have given an operand a value of another layout.
static tt_status still_describes(const tt_key *key, const tt_call *call, bool *out_same) {
  tt_key now;
  tt_status status = tt_key_build(call, &now);
  if (!status)
    *out_same = now.count == key->count && memcmp(now.words, key->words, (size_t)key->count * sizeof *key->words) == 0;
  tt_key_free(&now);
  return status;
}

// Makes the plan of a call and enters it under its key. Other calls will find it there, so it must be of what the key says:
// what the lowering saw of the operands. *out_plan is NULL if that changed meanwhile.
static tt_status make_and_enter(const tt_call *call, const tt_key *key, tt_plan **out_plan) {
  tt_plan *plan;
  bool same = false;
  *out_plan = NULL;
  TT_TRY(make_plan(call, &plan));
  tt_status status = still_describes(key, call, &same);
  if (status || !same || !still_fits(plan, call)) {
    tt_plan_release(plan);
    return status;
  }
  tt_plan_release(exchange(&newest, plan));
  status = tt_plan_enter(key, plan);
  if (status)
    tt_plan_release(plan);
  else
    *out_plan = plan;
  return status;
}

// Finds the plan or makes it; NULL if the call's wrapper or decomposition has to.
static tt_status find_or_make_plan(const tt_call *call, tt_key *key, tt_plan **out_plan) {
  enum { ATTEMPTS = 16 };
  const tt_overload *overload = call->overload;
  for (int i = 0; i < ATTEMPTS; ++i) {
    if (i > 0) tt_key_free(key);
    TT_TRY(tt_key_build(call, key));
    *out_plan = find_plan(key, key_hash(key));
    if (__builtin_expect(*out_plan != NULL, 1)) {
      tt_counter_add(TT_COUNTER_plan_hits, 1);
      return TT_SUCCESS;
    }
    if (overload->structured || !overload->op) return TT_SUCCESS;
    TT_TRY(make_and_enter(call, key, out_plan));
    if (*out_plan) return TT_SUCCESS;
  }
  return tt_error(TT_INVALID_ARGUMENT, "%s: another thread changed an operand during the call", overload->name);
}

static tt_status run(const tt_call *call, tt_key *key, tt_results *out_results, bool *out_miss) {
  tt_plan *plan;
  TT_TRY(find_or_make_plan(call, key, &plan));
  const tt_overload *overload = call->overload;
  if (__builtin_expect(!plan, 0)) {
    *out_miss = true;
    return TT_SUCCESS;
  }
  if (overload->variant == TT_OUT) remember(plan, call);
  tt_eager_mode mode = tt_get_eager_mode();
  if (mode == TT_DEFER_AND_FUSE) return tt_defer(plan, call, key, true, out_results);
  bool waits = mode == TT_DEFER_NEVER && plan->program && !tt_program_is_compiled(plan->program);
  if (waits && tt_trace_forbids(TT_TRACE_compile)) {
    TT_TRY(tt_plan_compile(plan)); // which the compile cache may spare: if not, the error is this call's
    waits = false;
  }
  if (waits || tt_must_defer(plan, call)) return tt_defer(plan, call, key, false, out_results);
  return tt_plan_launch(plan, call, key, out_results);
}

tt_status tt_call_run(const tt_call *call, tt_results *out_results, bool *out_miss) {
  *out_miss = false;
  out_results->count = 0;
  out_results->items = out_results->inline_items;
  if (__builtin_expect(tt_record_active(), 0)) return tt_record_call(call, out_results, out_miss);
  TT_TRY(tt_runtime_start());
  tt_key key;
  tt_status status = run(call, &key, out_results, out_miss);
  tt_key_free(&key);
  return status;
}
