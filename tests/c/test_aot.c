// test_aot.c - core/pjrt's topologies and core/aot: compiling for devices that are not there (against fake_plugin.c, whose path
// is $TT_FAKE_PLUGIN), and collecting programs.
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "aot/aot.h"
#include "base/memory.h"
#include "fake.h"
#include "graph/storage.h"
#include "pjrt/topology.h"
#include "run/call.h"
#include "run/internal.h"
#include "runner.h"

// ---- compiling -------------------------------------------------------------------------------------------------------

static tt_status compile_fake(void *text) {
  tt_aot_report report;
  return tt_aot_compile(fake_path(), "v9:1x1", text, (int64_t)strlen(text), &report);
}

TEST(aot_report_is_what_the_compiler_says) {
  fake_open();
  fake_plugin *fake = fake_control();
  fake->optimal_seconds = 0.5F;
  tt_aot_report report;
  CHECK_OK(tt_aot_compile(fake_path(), "v9:1x1", "program", 7, &report));
  CHECK(report.optimal_seconds == 0.5);
  CHECK_INT(report.code_bytes, 1);
  CHECK_INT(report.argument_bytes, 2);
  CHECK_INT(report.output_bytes, 3);
  CHECK_INT(report.alias_bytes, 4);
  CHECK_INT(report.temporary_bytes, 5);
  fake->optimal_seconds = -1; // there is an op without an estimate
  CHECK_OK(tt_aot_compile(fake_path(), "v9:1x1", "program", 7, &report));
  CHECK(isnan(report.optimal_seconds));
  CHECK_INT(report.code_bytes, -1);
}

TEST(aot_compile_sends_a_tpu_its_options) {
  fake_open();
  fake_plugin *fake = fake_control();
  const char *sent = fake->options;
  CHECK_OK(compile_fake("program"));
  CHECK(strstr(sent, "xla_allow_excess_precision") != NULL && strstr(sent, "xla_cpu_") == NULL);
  fake->refused_option = "xla_allow_excess_precision";
  CHECK_OK(compile_fake("program"));
  CHECK(strstr(sent, "xla_allow_excess_precision") == NULL);
  fake->refused_option = ""; // cannot be left out
  CHECK_FAILS(compile_fake("program"), TT_PLUGIN, "No such compile option");
}

TEST(aot_failures_are_told) {
  tt_aot_report report;
  CHECK_FAILS(tt_aot_compile("/nowhere.so", "v9:1x1", "p", 1, &report), TT_UNAVAILABLE, "/nowhere.so");
  fake_open();
  CHECK_FAILS(tt_aot_compile(fake_path(), "v1", "p", 1, &report), TT_PLUGIN,
              "topology \"v1\": PJRT_TopologyDescription_Create: INVALID_ARGUMENT: no such topology");
  CHECK_FAILS(compile_fake("!3"), TT_PLUGIN, "PJRT_Compile: INVALID_ARGUMENT: as wished");
  CHECK_FAILS(compile_fake("!8"), TT_OUT_OF_MEMORY, "as wished");
  CHECK_FAILS(compile_fake("!12"), TT_NOT_IMPLEMENTED, "as wished");
}

TEST(topology_needs_a_plugin_that_compiles_for_it) {
  setenv("TT_FAKE_PLUGIN_FAULT", "topology", 1);
  tt_topology *topology = NULL;
  CHECK_FAILS(tt_topology_create(fake_open(), "v9:1x1", &topology), TT_UNAVAILABLE, "the plugin has no PJRT_Compile");
  tt_topology_destroy(NULL);
}

TEST(aot_compile_allocations_may_fail) {
  fake_open();
  test_each_allocation_failing(compile_fake, "program");
}

// ---- collecting ------------------------------------------------------------------------------------------------------

enum { TEXT_SIZE = 4096 };

// The number of files in `folder`; the last one's name and text.
static int read_folder(const char *folder, char *out_name, char *out_text) {
  int count = 0;
  DIR *dir = opendir(folder);
  CHECK(dir != NULL);
  for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    if (entry->d_name[0] == '.') continue;
    count++;
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    snprintf(out_name, 256, "%s", entry->d_name);
    FILE *file = fopen(path, "re");
    CHECK(file != NULL);
    out_text[fread(out_text, 1, TEXT_SIZE - 1, file)] = '\0';
    fclose(file);
    unlink(path);
  }
  closedir(dir);
  return count;
}

// x @ x for a float tensor of [n, n] without a value, which reads as zeros.
static tt_status multiply(tt_device *device, const tt_overload *overload, int64_t n) {
  tt_storage *storage = NULL;
  TT_TRY(tt_storage_create(device, n * n * 4, &storage));
  const int64_t sizes[] = {n, n}, strides[] = {n, 1};
  const tt_tensor x = {
      .storage = storage, .dtype = TT_F32, .rank = 2, .sizes = sizes, .strides = strides, .defined = true};
  const tt_tensor tensors[] = {x, x};
  const tt_arg args[] = {{.kind = TT_ARG_TENSOR, .u.slot = 0}, {.kind = TT_ARG_TENSOR, .u.slot = 1}};
  const tt_call call = {.overload = overload,
                        .args = args,
                        .arg_count = 2,
                        .tensors = tensors,
                        .tensor_count = 2,
                        .default_dtype = TT_F32,
                        .precision = TT_PRECISION_HIGH};
  tt_results results;
  bool miss;
  tt_status status = tt_call_run(&call, &results, &miss);
  if (!status) tt_storage_release(results.items[0].storage);
  tt_storage_release(storage);
  return status;
}

PLUGIN_TEST(collect_writes_each_program_once) {
  int64_t live = tt_memory_live_count();
  setenv("TORCH_TPU_PJRT_PLUGIN", test_plugin_path(), 1);
  CHECK_OK(tt_runtime_start());
  tt_device *device = NULL;
  CHECK_OK(tt_device_find(0, &device));
  char folder[] = "/tmp/tt_aot_XXXXXX", name[256], text[TEXT_SIZE];
  CHECK(mkdtemp(folder) != NULL);
  const tt_overload *mm = tt_overload_create(tt_op_find("mm"), "aten::mm", TT_FUNCTIONAL, false, 2, 1);

  CHECK_OK(multiply(device, mm, 2)); // not collecting yet
  CHECK_OK(tt_aot_collect(folder));
  CHECK_OK(multiply(device, mm, 2)); // has its plan
  CHECK_INT(read_folder(folder, name, text), 0);
  CHECK_OK(multiply(device, mm, 3));
  CHECK_INT(read_folder(folder, name, text), 1);
  CHECK(strncmp(name, "mm-", 3) == 0 && strstr(name, ".mlir") != NULL);
  const char *head = "// row: mm\n// call: aten::mm(Float [3, 3], Float [3, 3])\n// generations: 5 6 7\nmodule";
  CHECK(strncmp(text, head, strlen(head)) == 0);
  CHECK(strstr(text, "precision = [HIGH, HIGH]") != NULL); // a TPU's form, not the CPU's passes
  CHECK_OK(tt_aot_collect(NULL));
  CHECK_OK(multiply(device, mm, 4));
  CHECK_INT(read_folder(folder, name, text), 0);

  // Calls go on when nothing can be written; the end tells.
  CHECK(rmdir(folder) == 0);
  CHECK_OK(tt_aot_collect(folder));
  CHECK_OK(multiply(device, mm, 5));
  CHECK_FAILS(tt_aot_collect(NULL), TT_VALUE, "No such file or directory");
  CHECK_OK(tt_synchronize(0));
  test_keeps_blocks(tt_memory_live_count() - live); // plans and programs stay
}
