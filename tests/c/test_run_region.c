// test_run_region.c - control flow in a recorded program: regions, the ops that run them, what they refuse, allocations failing.
#include "fake_calls.h"
#include "programs.h"

enum { STEPS = 3 };

static const int64_t all_sizes[] = {STEPS, ELEMENTS}, all_strides[] = {ELEMENTS, 1};

// A carried value and what is scanned, of `device`, and the calls that are recorded.
typedef struct world {
  overloads ops;
  tt_overload *program;
  tensor carried, scanned, count;
} world;

static tt_tensor whole(const tensor *t) {
  tt_tensor view = view_of(t);
  view.rank = 2;
  view.sizes = all_sizes;
  view.strides = all_strides;
  return view;
}

static tensor take(tt_results *results, int i) {
  tensor t = {results->items[i].storage, results->items[i].dtype};
  results->items[i].storage = NULL;
  return t;
}

static void drop(tt_results *results) {
  for (int i = 0; i < results->count; ++i) tt_storage_release(results->items[i].storage);
  tt_results_free(results);
}

// Records carried + x and (carried + x) * carried as a region of a scan.
static tt_status record_step(const world *w, tt_region **out_region) {
  const tt_tensor likes[] = {view_of(&w->carried), view_of(&w->carried)};
  tt_results arguments;
  TT_TRY(tt_region_begin(0, likes, 2, &arguments));
  tensor carried = take(&arguments, 0), x = take(&arguments, 1), sum = {0}, product = {0};
  drop(&arguments);
  tt_status status = add(w->ops.add, &carried, &x, 1, &sum);
  if (!status) status = multiply(w->ops.mul, &sum, &carried, &product);
  if (!status) status = tt_region_end((tt_tensor[]){view_of(&sum), view_of(&product)}, 2, out_region);
  tensor *all[] = {&carried, &x, &sum, &product};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) tensor_free(all[i]);
  if (status) tt_region_abort();
  return status;
}

static tt_call call_of(const world *w, const tt_tensor *tensors, int count) {
  static const tt_arg args[] = {{.kind = TT_ARG_TENSOR, .u.slot = 0}, {.kind = TT_ARG_TENSOR, .u.slot = 1}};
  return (tt_call){.overload = w->program,
                   .args = args,
                   .arg_count = count,
                   .tensors = tensors,
                   .tensor_count = count,
                   .default_dtype = TT_F32,
                   .precision = TT_PRECISION_HIGHEST};
}

static tt_status record_scan(const world *w, const tt_call *call) {
  TT_TRY(tt_record_begin(call));
  tt_region *region;
  tt_results results = {.items = NULL};
  tt_status status = record_step(w, &region);
  if (!status) status = tt_record_scan(0, region, STEPS, &call->tensors[0], 1, &call->tensors[1], 1, &results);
  tt_tensor given[2];
  if (!status) {
    tensor last = {results.items[0].storage, TT_F32}, every = {results.items[1].storage, TT_F32};
    given[0] = view_of(&last);
    given[1] = whole(&every);
    status = tt_record_end(call, given, 2);
    drop(&results);
  }
  if (status) tt_record_abort();
  return status;
}

static world make_world(overloads ops, tt_overload *program) {
  world w = {.ops = ops, .program = program};
  CHECK_OK(make_tensor(0, TT_F32, 2, &w.carried));
  CHECK_OK(tt_storage_create_on(0, (int64_t)(STEPS * ELEMENTS * sizeof(float)), &w.scanned.storage));
  w.scanned.dtype = TT_F32;
  float data[STEPS * ELEMENTS];
  for (int i = 0; i < STEPS * ELEMENTS; ++i) data[i] = (float)(i / ELEMENTS + 1);
  tt_tensor view = whole(&w.scanned);
  CHECK_OK(tt_copy_from_host(&view, data, TT_F32, NULL, NULL));
  return w;
}

static void free_world(world *w) {
  tensor_free(&w->carried);
  tensor_free(&w->scanned);
}

static tt_overload *new_program(void) {
  int64_t live = tt_memory_live_count();
  tt_overload *program = tt_overload_create(NULL, "program", TT_FUNCTIONAL, false, 2, 2);
  test_keeps_blocks(tt_memory_live_count() - live);
  return program;
}

static overloads new_overloads(void) {
  int64_t live = tt_memory_live_count();
  overloads all = {
      .add = tt_overload_create(tt_op_find("add.Tensor"), "aten::add.Tensor", TT_FUNCTIONAL, false, 3, 1),
      .add_in_place = tt_overload_create(tt_op_find("add.Tensor"), "aten::add_.Tensor", TT_IN_PLACE, false, 3, 1),
      .mul = tt_overload_create(tt_op_find("mul.Tensor"), "aten::mul.Tensor", TT_FUNCTIONAL, false, 2, 1),
  };
  test_keeps_blocks(tt_memory_live_count() - live);
  return all;
}

// 2, then 2 + 1, 3 + 2, 5 + 3.
PLUGIN_TEST(region_scan_runs_its_body_for_each_element) {
  start_runtime();
  overloads ops = new_overloads();
  tt_overload *program = new_program();
  int64_t live = tt_memory_live_count();
  world w = make_world(ops, program);
  const tt_tensor tensors[] = {view_of(&w.carried), whole(&w.scanned)};
  tt_call call = call_of(&w, tensors, 2);
  CHECK_OK(record_scan(&w, &call));
  tt_results results;
  bool miss;
  CHECK_OK(tt_call_run(&call, &results, &miss));
  CHECK(!miss);
  tensor last = take(&results, 0), every = take(&results, 1);
  drop(&results);
  check_value(&last, 8);
  float data[STEPS * ELEMENTS];
  tt_tensor view = whole(&every);
  CHECK_OK(tt_copy_to_host(&view, data, NULL, NULL));
  const float expected[STEPS] = {3 * 2, 5 * 3, 8 * 5};
  for (int i = 0; i < STEPS * ELEMENTS; ++i) CHECK(data[i] == expected[i / ELEMENTS]);
  tensor_free(&last);
  tensor_free(&every);
  free_world(&w);
  CHECK_OK(tt_synchronize(0));
  tt_plans_forget();
  test_keeps_blocks(tt_memory_live_count() - live); // layouts, and what the first of all calls makes
}

static tt_status scan_scenario(void *user) {
  const world *w = user;
  const tt_tensor tensors[] = {view_of(&w->carried), whole(&w->scanned)};
  tt_call call = call_of(w, tensors, 2);
  tt_status status = record_scan(w, &call);
  CHECK(!tt_record_active());
  tt_plans_forget();
  return status;
}

TEST(region_each_allocation_failing) {
  overloads ops = start_fake("cpu", "1");
  tt_overload *program = new_program();
  int64_t live = tt_memory_live_count();
  world w = make_world(ops, program);
  CHECK_OK(scan_scenario(&w));
  test_each_allocation_failing(scan_scenario, &w);
  free_world(&w);
  CHECK_OK(tt_synchronize(0));
  test_keeps_blocks(tt_memory_live_count() - live); // layouts, which stay
}

TEST(region_misuse_is_an_error) {
  overloads ops = start_fake("cpu", "1");
  tt_overload *program = new_program();
  int64_t live = tt_memory_live_count();
  world w = make_world(ops, program);
  const tt_tensor tensors[] = {view_of(&w.carried), whole(&w.scanned)};
  tt_call call = call_of(&w, tensors, 2);
  tt_results results;
  tt_region *region, *empty;
  CHECK_FAILS(tt_region_begin(0, tensors, 1, &results), TT_INTERNAL, "outside of a recording");
  CHECK_OK(tt_record_begin(&call));
  CHECK_FAILS(tt_region_end(tensors, 1, &region), TT_INTERNAL, "a region that never began");
  CHECK_OK(record_step(&w, &region));
  CHECK_FAILS(tt_record_scan(0, region, STEPS + 1, tensors, 1, tensors + 1, 1, &results), TT_INVALID_ARGUMENT,
              "scan: ");
  CHECK_FAILS(tt_record_while(0, region, region, tensors, 1, &results), TT_INVALID_ARGUMENT, "while_loop: ");
  CHECK_OK(tt_region_begin(0, tensors, 0, &results));
  CHECK_OK(add(w.ops.add_in_place, &w.carried, &w.carried, 1, NULL)); // a write of what is outside
  CHECK_OK(tt_region_end(tensors, 1, &empty));
  CHECK_FAILS(tt_record_case(tensors, (tt_region *[]){empty, region}, 2, &results), TT_INVALID_ARGUMENT, "cond: ");
  CHECK_FAILS(tt_record_while(0, empty, empty, tensors, 0, &results), TT_NOT_IMPLEMENTED,
              "tensors written in the condition");
  CHECK_OK(tt_region_begin(0, tensors, 1, &results)); // left open: the recording ends it
  drop(&results);
  tt_record_abort();
  CHECK(!tt_record_active());
  free_world(&w);
  CHECK_OK(tt_synchronize(0));
  test_keeps_blocks(tt_memory_live_count() - live); // layouts, which stay
}
