// test_op.c - core/op and core/graph: views matched and emitted, arguments, promotion, and golden programs by family.
//
// Programs are recorded from calls on storages that hold nodes, so nothing here needs a plugin.
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "graph/recorder.h"
#include "op/lowering.h"
#include "op/view.h"
#include "runner.h"

#define DIMS(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__}

// --- views ------------------------------------------------------------------------------------------------------------------

// Checks a match against the definition: walking the split dims in sorted order must visit the window's own positions.
static void check_view(int base_rank, const int64_t *base, int rank, const int64_t *sizes, const int64_t *strides,
                       int64_t offset, tt_view_kind expected) {
  tt_view v;
  tt_view_match(base_rank, base, rank, sizes, strides, offset, &v);
  CHECK_INT(v.kind, expected);
  if (v.kind != TT_VIEW_STRIDED) return;
  // Position of the slice's first element and the step of each split dim, in the padded, merged base.
  int64_t step[TT_VIEW_MAX_DIMS], padded_step = 1;
  for (int i = v.rank - 1; i >= 0; --i) {
    step[i] = padded_step;
    padded_step *= v.extent[i];
  }
  int64_t count = 1, index[TT_VIEW_MAX_DIMS] = {0};
  for (int i = 0; i < v.active_count; ++i) count *= sizes[v.active[i]];
  for (int64_t n = 0; n < count; ++n) {
    int64_t wanted = offset, left = n;
    for (int i = v.active_count - 1; i >= 0; --i) {
      wanted += left % sizes[v.active[i]] * strides[v.active[i]];
      left /= sizes[v.active[i]];
    }
    int64_t padded = 0;
    for (int i = 0; i < v.rank; ++i) padded += (tt_digit_value(&v.digit[i], offset) + index[i]) * step[i];
    // Take the padding out again: digits in base, position in the merged array without it.
    int64_t flat = 0, scale = 1;
    for (int i = v.base_rank - 1; i >= 0; --i) {
      int64_t extent = v.base[i] + v.pad[i];
      CHECK(padded % extent < v.base[i]);
      flat += padded % extent * scale;
      padded /= extent;
      scale *= v.base[i];
    }
    CHECK_INT(flat, wanted);
    for (int i = v.rank - 1; i >= 0 && ++index[i] == v.size[i]; --i) index[i] = 0;
  }
}

TEST(op_view_kinds) {
  check_view(DIMS(4, 6), DIMS(4, 6), (int64_t[]){6, 1}, 0, TT_VIEW_WHOLE);
  check_view(DIMS(4, 6), DIMS(6, 4), (int64_t[]){1, 6}, 0, TT_VIEW_STRIDED);  // transpose
  check_view(DIMS(4, 6), DIMS(2, 3), (int64_t[]){6, 1}, 8, TT_VIEW_STRIDED);  // slice
  check_view(DIMS(4, 6), DIMS(2, 2), (int64_t[]){12, 3}, 1, TT_VIEW_STRIDED); // steps
  check_view(DIMS(10), DIMS(3), (int64_t[]){3}, 1, TT_VIEW_STRIDED);          // a step that does not divide
  check_view(DIMS(4, 6), DIMS(24), (int64_t[]){1}, 0, TT_VIEW_STRIDED);       // flatten
  check_view(DIMS(4, 6), DIMS(20), (int64_t[]){1}, 3, TT_VIEW_STRIDED);       // a flat range over rows
  check_view(DIMS(4, 6), DIMS(4), (int64_t[]){7}, 0, TT_VIEW_STRIDED);        // diagonal
  check_view(DIMS(4, 6), DIMS(3, 4), (int64_t[]){0, 6}, 2, TT_VIEW_STRIDED);  // expand
  check_view(DIMS(24), DIMS(2, 3, 4), (int64_t[]){12, 4, 1}, 0, TT_VIEW_STRIDED);
  check_view(DIMS(10), DIMS(4, 3), (int64_t[]){2, 1}, 0, TT_VIEW_GATHER); // overlapping windows
  check_view(DIMS(4, 6), DIMS(0, 6), (int64_t[]){6, 1}, 0, TT_VIEW_EMPTY);
  check_view(0, NULL, DIMS(1, 1), (int64_t[]){1, 1}, 0, TT_VIEW_STRIDED); // a scalar as [1, 1]
}

TEST(op_view_random_windows) {
  uint64_t state = 12345;
  for (int round = 0; round < 20000; ++round) {
    int64_t base[4], sizes[4], strides[4], count = 1, furthest = 0;
    int base_rank, rank;
    // xorshift: the same windows on every run
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    uint64_t bits = state;
    base_rank = (int)(bits % 4) + 1;
    for (int i = 0; i < base_rank; ++i) count *= base[i] = (int64_t)(bits >> (3 * i + 2)) % 6 + 1;
    rank = (int)(bits >> 20) % 3 + 1;
    for (int i = 0; i < rank; ++i) {
      sizes[i] = (int64_t)(bits >> (22 + 3 * i)) % 5 + 1;
      strides[i] = (int64_t)(bits >> (32 + 4 * i)) % 13;
      furthest += (sizes[i] - 1) * strides[i];
    }
    if (furthest >= count) continue;
    int64_t offset = (int64_t)(bits >> 48) % (count - furthest);
    tt_view v;
    tt_view_match(base_rank, base, rank, sizes, strides, offset, &v);
    check_view(base_rank, base, rank, sizes, strides, offset, v.kind);
  }
}

TEST(op_reinterpreted_dims) {
  int rank;
  int64_t dims[8];
  CHECK(tt_reinterpret_dims(TT_F32, DIMS(2, 3), TT_S16, &rank, dims));
  CHECK(rank == 3 && dims[2] == 2);
  CHECK(tt_reinterpret_dims(TT_F32, DIMS(2, 4), TT_F64, &rank, dims));
  CHECK(rank == 2 && dims[1] == 2);
  CHECK(tt_reinterpret_dims(TT_F32, DIMS(4, 3), TT_F64, &rank, dims));
  CHECK(rank == 1 && dims[0] == 6);
  CHECK(tt_reinterpret_dims(TT_C64, DIMS(5), TT_F32, &rank, dims));
  CHECK(rank == 2 && dims[1] == 2);
  CHECK(tt_reinterpret_dims(TT_F32, DIMS(5, 2), TT_C64, &rank, dims));
  CHECK(rank == 1 && dims[0] == 5);
  CHECK(!tt_reinterpret_dims(TT_U8, DIMS(3), TT_S16, &rank, dims));
}

// --- golden programs -----------------------------------------------------------------------------------------------------------

enum { MAX_SLOTS = 6 };

typedef struct scene {
  tt_device device;
  tt_storage *storages[MAX_SLOTS];
  tt_tensor tensors[MAX_SLOTS];
  int count;
} scene;

// A contiguous tensor on a storage of its own, whose value is a node.
static tt_arg add_tensor(scene *s, tt_dtype dtype, int rank, const int64_t *dims) {
  static tt_value node;
  const tt_layout *layout;
  CHECK_OK(tt_layout_intern(dtype, rank, dims, &layout));
  CHECK_OK(tt_storage_create(&s->device, layout->byte_size, &s->storages[s->count]));
  CHECK_OK(tt_storage_write_node(s->storages[s->count], NULL, &node, layout));
  s->tensors[s->count] = (tt_tensor){.storage = s->storages[s->count],
                                     .dtype = dtype,
                                     .rank = rank,
                                     .sizes = layout->dims,
                                     .strides = layout->strides,
                                     .defined = true};
  return (tt_arg){.kind = TT_ARG_TENSOR, .u.slot = s->count++};
}

static tt_status record(scene *s, const char *name, const tt_arg *args, int count, const int *written,
                        int written_count, char *out_text, size_t size) {
  tt_target target = {0};
  tt_recorder r;
  const tt_op *op = tt_op_find(name);
  CHECK(op != NULL);
  tt_status status = tt_recorder_init(&r, &target, true, s->tensors, s->count);
  tt_recorded_call call = {op,      args,          count,  s->tensors,          s->count,
                           written, written_count, TT_F32, TT_PRECISION_MEDIUM, 0};
  tt_recorded_result *results = NULL;
  int result_count = 0;
  if (!status) status = tt_recorder_lower(&r, &call, &results, &result_count);
  if (!status) {
    tt_value *values[4];
    int outputs = 0;
    for (int i = 0; i < result_count; ++i) values[outputs++] = results[i].value;
    for (int i = 0; i < r.record_count; ++i)
      if (r.records[i].written) values[outputs++] = r.records[i].value;
    const char *text;
    int64_t length;
    status = tt_builder_finish(r.b, outputs, values, &text, &length);
    if (!status) snprintf(out_text, size, "%s", text);
  }
  tt_recorder_free(&r);
  return status;
}

static void free_scene(scene *s) {
  for (int i = 0; i < s->count; ++i) tt_storage_release(s->storages[i]);
}

// Interned layouts live for ever: every test here leaves its own behind.
static void check_golden(scene *s, const char *name, const tt_arg *args, int count, const int *written,
                         int written_count, const char *body) {
  char text[8192];
  CHECK_OK(record(s, name, args, count, written, written_count, text, sizeof text));
  if (!strstr(text, body)) {
    fprintf(stderr, "%s\nlacks\n%s\n", text, body);
    test_fail(__FILE__, __LINE__, "golden program of %s", name);
  }
  free_scene(s);
  test_keeps_blocks(tt_memory_live_count());
}

static scene new_scene(void) { return (scene){.device = {.memory_limit = INT64_MAX}}; }

TEST(op_golden_add_with_alpha) {
  scene s = new_scene();
  tt_arg args[3] = {add_tensor(&s, TT_F32, DIMS(2, 3)),
                    add_tensor(&s, TT_F32, DIMS(3)),
                    {.kind = TT_ARG_INT, .number = true, .u.integer = 2}};
  check_golden(&s, "add.Tensor", args, 3, NULL, 0, "stablehlo.add");
}

TEST(op_golden_in_place_through_a_slice) {
  scene s = new_scene();
  tt_arg args[2] = {add_tensor(&s, TT_F32, DIMS(4, 6)), add_tensor(&s, TT_F32, DIMS(2, 6))};
  const int64_t sizes[2] = {2, 6};
  s.tensors[0].sizes = sizes;
  s.tensors[0].offset = 6;
  check_golden(
      &s, "mul.Tensor", args, 2, (int[]){0}, 1,
      "func.func public @main(%0: tensor<4x6xf32>, %1: tensor<i32>, %4: tensor<2x6xf32>) -> (tensor<4x6xf32>)");
}

TEST(op_golden_sum) {
  scene s = new_scene();
  tt_arg dims[1] = {{.kind = TT_ARG_INT, .u.integer = -1}};
  tt_arg args[4] = {add_tensor(&s, TT_BF16, DIMS(4, 6)),
                    {.kind = TT_ARG_LIST, .count = 1, .u.items = dims},
                    {.kind = TT_ARG_BOOL},
                    {.kind = TT_ARG_NONE}};
  check_golden(&s, "sum.dim_IntList", args, 4, NULL, 0, "applies stablehlo.add across dimensions = [1]");
}

TEST(op_golden_mm_rounds_operands_to_bfloat16) {
  scene s = new_scene();
  tt_arg args[2] = {add_tensor(&s, TT_F32, DIMS(4, 6)), add_tensor(&s, TT_F32, DIMS(6, 5))};
  check_golden(&s, "mm", args, 2, NULL, 0, "stablehlo.reduce_precision %0, format = e8m7");
}

TEST(op_golden_embedding) {
  scene s = new_scene();
  tt_arg args[5] = {add_tensor(&s, TT_F32, DIMS(10, 4)),
                    add_tensor(&s, TT_S64, DIMS(3)),
                    {.kind = TT_ARG_INT, .u.integer = -1},
                    {.kind = TT_ARG_BOOL},
                    {.kind = TT_ARG_BOOL}};
  check_golden(&s, "embedding", args, 5, NULL, 0, "stablehlo.gather");
}

// A weight that is read by two products and then updated, as in a training step.
static int barriers_of_a_step(bool is_overwritten) {
  scene s = new_scene();
  tt_arg args[] = {add_tensor(&s, TT_F32, DIMS(4, 4)), add_tensor(&s, TT_F32, DIMS(4, 4))};
  tt_target target = {0};
  tt_recorder r;
  CHECK_OK(tt_recorder_init(&r, &target, false, s.tensors, s.count));
  if (is_overwritten) CHECK_OK(tt_recorder_overwrite(&r, s.storages[1]));
  tt_recorded_call call = {.op = tt_op_find("mm"),
                           .args = args,
                           .arg_count = 2,
                           .tensors = s.tensors,
                           .tensor_count = s.count,
                           .default_dtype = TT_F32,
                           .precision = TT_PRECISION_HIGHEST};
  tt_recorded_result *results;
  tt_value *values[3];
  int count;
  for (int i = 0; i < 3; ++i) {
    if (i == 2) call.op = tt_op_find("mul.Tensor");
    CHECK_OK(tt_recorder_lower(&r, &call, &results, &count));
    values[i] = results[0].value;
  }
  const char *text;
  int64_t length;
  CHECK_OK(tt_builder_finish(r.b, 3, values, &text, &length));
  int found = 0;
  for (const char *at = text; (at = strstr(at, "optimization_barrier")) != NULL; ++at) ++found;
  tt_recorder_free(&r);
  free_scene(&s);
  return found;
}

TEST(op_reads_of_an_overwritten_argument_wait_for_products) {
  CHECK_INT(barriers_of_a_step(false), 0);
  CHECK_INT(barriers_of_a_step(true), 2);
  test_keeps_blocks(tt_memory_live_count());
}

TEST(op_wrong_argument_is_an_internal_fault) {
  scene s = new_scene();
  tt_arg args[4] = {add_tensor(&s, TT_F32, DIMS(4, 6)),
                    {.kind = TT_ARG_NONE},
                    {.kind = TT_ARG_STRING, .u.string = "x"},
                    {.kind = TT_ARG_NONE}};
  char text[256];
  CHECK_FAILS(record(&s, "sum.dim_IntList", args, 4, NULL, 0, text, sizeof text), TT_INTERNAL, "sum.dim_IntList");
  free_scene(&s);
  test_keeps_blocks(tt_memory_live_count());
}

typedef struct failing_record {
  scene *s;
  const tt_arg *args;
} failing_record;

static tt_status record_add(void *user) {
  failing_record *f = user;
  char text[8192];
  return record(f->s, "add.Tensor", f->args, 3, (int[]){0}, 1, text, sizeof text);
}

TEST(graph_recording_survives_each_failing_allocation) {
  scene s = new_scene();
  tt_arg args[3] = {add_tensor(&s, TT_F32, DIMS(4, 6)),
                    add_tensor(&s, TT_F32, DIMS(6)),
                    {.kind = TT_ARG_INT, .number = true, .u.integer = 2}};
  failing_record f = {&s, args};
  CHECK_OK(record_add(&f)); // interns its layouts
  test_each_allocation_failing(record_add, &f);
  free_scene(&s);
  test_keeps_blocks(tt_memory_live_count());
}
