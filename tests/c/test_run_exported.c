// test_run_exported.c - core/run's exported programs: folders that are read, loaded and run.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/memory.h"
#include "run/exported.h"
#include "run/internal.h"
#include "run/manifest.h"
#include "runner.h"

static char folder[64];

static void write_file(const char *name, const void *data, size_t size) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "wb");
  CHECK(file != NULL && fwrite(data, 1, size, file) == size && fclose(file) == 0);
}

static void write_manifest(const char *text) { write_file("manifest.json", text, strlen(text)); }

#define MANIFEST(input, weight, output)                                                                                 \
  "{\"format\": \"torch_tpu.export\", \"version\": 1, \"name\": \"scaled\", \"exact\": true,\n"                         \
  " \"program\": {\"file\": \"program.mlir\"}, \"weights\": {\"file\": \"weights.bin\"},\n"                             \
  " \"inputs\": [{\"kind\": \"user_input\", \"name\": \"x\", \"dtype\": \"f32\", \"shape\": " input "},\n"              \
  "  {\"kind\": \"parameter\", \"name\": \"w\", \"dtype\": \"f32\", \"shape\": [3], " weight "}],\n"                    \
  " \"outputs\": [{\"kind\": \"user_output\", \"name\": \"y\", \"dtype\": \"f32\", \"shape\": [2, 3]}" output "]}"
#define CHECKED ", {\"kind\": \"check\", \"name\": \"ok\", \"dtype\": \"i1\", \"shape\": [], \"message\": \"not so\", \"error\": \"INDEX\"}"

// y = x * w, and whether the first element of w is 2.
static const char program[] =
    "module {\nfunc.func public @main(%0: tensor<2x3xf32>, %1: tensor<3xf32>) -> (tensor<2x3xf32>, tensor<i1>) {\n"
    "%2 = stablehlo.broadcast_in_dim %1, dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>\n"
    "%3 = stablehlo.multiply %0, %2 : tensor<2x3xf32>\n"
    "%4 = stablehlo.slice %1 [0:1] : (tensor<3xf32>) -> tensor<1xf32>\n"
    "%5 = stablehlo.reshape %4 : (tensor<1xf32>) -> tensor<f32>\n"
    "%6 = stablehlo.constant dense<2.0> : tensor<f32>\n"
    "%7 = stablehlo.compare EQ, %5, %6 : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
    "return %3, %7 : tensor<2x3xf32>, tensor<i1>\n}\n}\n";

static void make_folder(float first_weight) {
  if (!folder[0]) {
    strcpy(folder, "/tmp/torch_tpu_exported_XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
  }
  const float weights[4] = {7, first_weight, 3, 4};
  write_file("weights.bin", weights, sizeof weights);
  write_file("program.mlir", program, sizeof program - 1);
  write_manifest(MANIFEST("[2, 3]", "\"offset\": 4", CHECKED));
}

static void remove_folder(void) {
  static const char *const names[] = {"weights.bin", "program.mlir", "manifest.json"};
  char path[128];
  for (int i = 0; i < 3; ++i) {
    snprintf(path, sizeof path, "%s/%s", folder, names[i]);
    remove(path);
  }
  rmdir(folder);
}

static void start(void) {
  setenv("TORCH_TPU_PJRT_PLUGIN", test_plugin_path(), 1);
  setenv("TORCH_TPU_CACHE_DIR", "off", 1);
  CHECK_OK(tt_runtime_start());
}

static tt_status run_once(const float *x, float *y) {
  static const int64_t sizes[2] = {2, 3}, strides[2] = {3, 1};
  tt_exported *e = NULL;
  TT_TRY(tt_exported_load(folder, 0, &e));
  tt_tensor input = {.dtype = TT_F32, .rank = 2, .sizes = sizes, .strides = strides, .defined = true};
  tt_results results = {.items = results.inline_items};
  tt_status status = tt_storage_create_on(0, 24, &input.storage);
  if (!status) status = tt_copy_from_host(&input, x, TT_F32, NULL, NULL);
  if (!status) status = tt_exported_run(e, &input, 1, &results);
  if (!status) {
    tt_tensor output = input;
    output.storage = results.items[0].storage;
    status = tt_copy_to_host(&output, y, NULL, NULL);
    tt_storage_release(output.storage);
    tt_results_free(&results);
  }
  tt_storage_release(input.storage);
  tt_exported_free(e);
  return tt_status_join(status, tt_synchronize(0));
}

PLUGIN_TEST(exported_program_runs) {
  int64_t live = tt_memory_live_count();
  start();
  make_folder(2);
  const float x[6] = {1, 2, 3, 4, 5, 6};
  float y[6] = {0};
  CHECK_OK(run_once(x, y));
  const float expected[6] = {2, 6, 12, 8, 15, 24};
  for (int i = 0; i < 6; ++i) CHECK(y[i] == expected[i]);
  int64_t after_one = tt_memory_live_count();
  CHECK_OK(run_once(x, y));
  CHECK_INT(tt_memory_live_count(), after_one);
  make_folder(5);
  CHECK_FAILS(run_once(x, y), TT_INDEX, "exported program: not so");
  remove_folder();
  test_keeps_blocks(tt_memory_live_count() - live); // tables of layouts and programs
}

PLUGIN_TEST(exported_program_tells_its_values) {
  int64_t live = tt_memory_live_count();
  start();
  make_folder(2);
  tt_exported *e;
  CHECK_OK(tt_exported_load(folder, 0, &e));
  CHECK_INT(tt_exported_input_count(e), 1);
  CHECK_INT(tt_exported_output_count(e), 1);
  CHECK_TEXT(tt_exported_input(e, 0)->name, "x");
  CHECK_TEXT(tt_exported_output(e, 0)->kind, "user_output");
  CHECK_INT(tt_exported_output(e, 0)->byte_size, 24);
  CHECK(tt_exported_input(e, 1) == NULL && tt_exported_output(e, 1) == NULL && tt_exported_input(e, -1) == NULL);
  tt_results results;
  CHECK_FAILS(tt_exported_run(e, NULL, 0, &results), TT_INVALID_ARGUMENT, "scaled takes 1 inputs, but got 0");
  tt_exported_free(e);
  tt_exported_free(NULL);
  CHECK_FAILS(tt_exported_load(folder, 3, &e), TT_INVALID_ARGUMENT, "invalid device ordinal");
  remove_folder();
  test_keeps_blocks(tt_memory_live_count() - live);
}

TEST(manifest_faults) {
  static const struct {
    const char *text, *error;
  } faults[] = {
      {"[]", "no text \"format\""},
      {"{\"format\": \"other\", \"version\": 1}", "the format \"other\" is another"},
      {"{\"format\": \"torch_tpu.export\", \"version\": 9}", "version 9 of the format"},
      {MANIFEST("[2, -3]", "\"offset\": 4", ""), "inputs, entry 0: \"shape\" is not a list of sizes"},
      {MANIFEST("[2, 3]", "\"offset\": 5", ""), "entry 1: \"w\" lies outside of the weights"},
      {MANIFEST("[2, 3]", "\"offset\": -4", ""), "lies outside"},
      {MANIFEST("[2, 3]", "\"offset\": 9223372036854775807", ""), "lies outside"},
      {MANIFEST("[2, 3]", "\"bytes\": 4", ""), "no integer \"offset\""},
      {MANIFEST("[2, 3]", "\"offset\": 4",
                CHECKED CHECKED ", {\"kind\": \"user_output\", \"name\": \"z\", \"dtype\": \"f32\", \"shape\": []}"),
       "outputs, entry 3: an output behind the checks"},
      {MANIFEST("[2, 3]", "\"offset\": 4",
                ", {\"kind\": \"check\", \"name\": \"ok\", \"dtype\": \"f32\", \"shape\": [], \"message\": \"\", "
                "\"error\": \"INDEX\"}"),
       "a check that is no i1"},
  };
  make_folder(2);
  int64_t live = tt_memory_live_count();
  for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) {
    tt_manifest manifest;
    write_manifest(faults[i].text);
    CHECK_FAILS(tt_manifest_read(folder, &manifest), TT_VALUE, faults[i].error);
  }
  tt_manifest manifest;
  write_manifest(MANIFEST("[4611686018427387904, 4]", "\"offset\": 4", ""));
  CHECK_FAILS(tt_manifest_read(folder, &manifest), TT_INVALID_ARGUMENT, "does not fit 64 bits");
  remove_folder();
  test_keeps_blocks(tt_memory_live_count() - live); // layouts
}

static tt_status read_and_free(void *user) {
  (void)user;
  tt_manifest manifest;
  TT_TRY(tt_manifest_read(folder, &manifest));
  tt_manifest_free(&manifest);
  return TT_SUCCESS;
}

TEST(manifest_out_of_memory) {
  make_folder(2);
  int64_t live = tt_memory_live_count();
  CHECK_OK(read_and_free(NULL));
  test_keeps_blocks(tt_memory_live_count() - live); // layouts
  test_each_allocation_failing(read_and_free, NULL);
  remove_folder();
}
