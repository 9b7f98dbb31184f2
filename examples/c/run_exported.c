// run_exported.c - runs a program that torch.tpu.export wrote: without Python, on any PJRT plugin.
//
//   make -C examples/c
//   TORCH_TPU_PJRT_PLUGIN=libpjrt_cpu.so examples/c/run_exported FOLDER OUTPUT_FOLDER INPUT...
//
// Each INPUT is a file of raw elements, little-endian and row by row, one for each of the program's user inputs in their order.
// Outputs are written the same way, to OUTPUT_FOLDER/NAME.bin, and described on stdout: name, dtype, sizes, file.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/exported.h"
#include "run/runtime.h"

enum { DEVICE = 0 };

// Ends the process with the failure, if it is one.
static void check(tt_status status, const char *what) {
  if (!status) return;
  fprintf(stderr, "run_exported: %s: %s\n", what, tt_status_message(status));
  exit(EXIT_FAILURE);
}

static void *allocate(int64_t size) {
  void *block = malloc(size ? (size_t)size : 1);
  if (block) return block;
  fprintf(stderr, "run_exported: out of memory\n");
  exit(EXIT_FAILURE);
}

// A tensor on the device that fills its storage.
static tt_tensor tensor_like(const tt_exported_value *value, tt_storage *storage, int64_t *strides) {
  int64_t stride = 1;
  for (int i = value->rank - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= value->dims[i];
  }
  return (tt_tensor){.storage = storage,
                     .dtype = value->dtype,
                     .rank = value->rank,
                     .sizes = value->dims,
                     .strides = strides,
                     .device_index = DEVICE,
                     .defined = true};
}

static void read_input(const char *path, const tt_exported_value *value, void *data) {
  FILE *file = fopen(path, "rb");
  size_t size = file ? fread(data, 1, (size_t)value->byte_size, file) : 0;
  if (file && size == (size_t)value->byte_size && fgetc(file) == EOF) {
    fclose(file);
    return;
  }
  fprintf(stderr, "run_exported: %s does not hold the %lld bytes of input \"%s\"\n", path, (long long)value->byte_size,
          value->name);
  exit(EXIT_FAILURE);
}

static tt_tensor upload(const char *path, const tt_exported_value *value, int64_t *strides) {
  void *data = allocate(value->byte_size);
  read_input(path, value, data);
  tt_storage *storage;
  check(tt_storage_create_on(DEVICE, value->byte_size, &storage), value->name);
  const tt_tensor tensor = tensor_like(value, storage, strides);
  check(tt_copy_from_host(&tensor, data, value->dtype, NULL, NULL), value->name);
  free(data);
  return tensor;
}

static void write_output(const char *folder, const tt_exported_value *value, tt_storage *storage) {
  char path[4096];
  int64_t strides[TT_MAX_RANK];
  const tt_tensor tensor = tensor_like(value, storage, strides);
  void *data = allocate(value->byte_size);
  check(tt_copy_to_host(&tensor, data, NULL, NULL), value->name);
  snprintf(path, sizeof path, "%s/%s.bin", folder, value->name);
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(data, 1, (size_t)value->byte_size, file) != (size_t)value->byte_size || fclose(file) != 0) {
    perror(path);
    exit(EXIT_FAILURE);
  }
  printf("%s %s [", value->name, tt_dtype_hlo(value->dtype));
  for (int i = 0; i < value->rank; ++i) printf("%s%lld", i ? ", " : "", (long long)value->dims[i]);
  printf("] %s\n", path);
  free(data);
}

static void run(tt_exported *program, const char *output_folder, char **input_paths) {
  int count = tt_exported_input_count(program);
  tt_tensor *inputs = allocate((int64_t)((size_t)count * sizeof *inputs));
  int64_t(*strides)[TT_MAX_RANK] = allocate((int64_t)((size_t)count * sizeof *strides));
  for (int i = 0; i < count; ++i) inputs[i] = upload(input_paths[i], tt_exported_input(program, i), strides[i]);
  tt_results results;
  check(tt_exported_run(program, inputs, count, &results), "run");
  for (int i = 0; i < count; ++i) tt_storage_release(inputs[i].storage);
  for (int i = 0; i < results.count; ++i) {
    write_output(output_folder, tt_exported_output(program, i), results.items[i].storage);
    tt_storage_release(results.items[i].storage);
  }
  tt_results_free(&results);
  check(tt_synchronize(DEVICE), "run"); // a failed check of the program, such as an index out of range
  free(strides);
  free(inputs);
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: run_exported FOLDER OUTPUT_FOLDER INPUT...\n");
    return EXIT_FAILURE;
  }
  tt_exported *program;
  check(tt_exported_load(argv[1], DEVICE, &program), argv[1]);
  if (argc - 3 != tt_exported_input_count(program)) {
    fprintf(stderr, "run_exported: %d inputs are needed:\n", tt_exported_input_count(program));
    for (int i = 0; i < tt_exported_input_count(program); ++i)
      fprintf(stderr, "  %s\n", tt_exported_input(program, i)->name);
    return EXIT_FAILURE;
  }
  run(program, argv[2], argv + 3);
  tt_exported_free(program);
  return EXIT_SUCCESS;
}
