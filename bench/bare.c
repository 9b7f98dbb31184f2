// bare.c - the floor under bench/eager.py: the same programs executed through PJRT alone, without torch.
//
//   bare PLUGIN.so CALLS ROUNDS
//
// Prints one line per program: its name and the median over rounds of the microseconds per execution (until the last has
// finished). Arguments are made once; results are freed at once, as a loop over `y = x + b` does.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pjrt/executable.h"

typedef struct program {
  const char *name, *text;
  int argument_count, rank;
  int64_t dims[2];
} program;

#define MAIN(arguments, result, body) "func.func @main(" arguments ") -> " result " {\n" body "}\n"

static const program programs[] = {
    {"add16",
     MAIN("%a: tensor<16xf32>, %b: tensor<16xf32>", "tensor<16xf32>",
          "%0 = stablehlo.add %a, %b : tensor<16xf32>\nreturn %0 : tensor<16xf32>\n"),
     2,
     1,
     {16}},
    {"transpose_add64",
     MAIN("%a: tensor<64x64xf32>, %b: tensor<64x64xf32>", "tensor<64x64xf32>",
          "%0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>\n"
          "%1 = stablehlo.add %0, %b : tensor<64x64xf32>\nreturn %1 : tensor<64x64xf32>\n"),
     2,
     2,
     {64, 64}},
    {"slice_add64",
     MAIN("%a: tensor<64x64xf32>", "tensor<32x64xf32>",
          "%0 = stablehlo.slice %a [1:33, 0:64] : (tensor<64x64xf32>) -> tensor<32x64xf32>\n"
          "%1 = stablehlo.add %0, %0 : tensor<32x64xf32>\nreturn %1 : tensor<32x64xf32>\n"),
     1,
     2,
     {64, 64}},
    {"sum16",
     MAIN("%a: tensor<16xf32>", "tensor<f32>",
          "%c = stablehlo.constant dense<0.0> : tensor<f32>\n"
          "%0 = stablehlo.reduce(%a init: %c) applies stablehlo.add across dimensions = [0] : (tensor<16xf32>, "
          "tensor<f32>)"
          " -> tensor<f32>\nreturn %0 : tensor<f32>\n"),
     1,
     1,
     {16}},
    {"mm64",
     MAIN("%a: tensor<64x64xf32>, %b: tensor<64x64xf32>", "tensor<64x64xf32>",
          "%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> "
          "tensor<64x64xf32>\nreturn %0 : tensor<64x64xf32>\n"),
     2,
     2,
     {64, 64}},
};

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void check(tt_status status) {
  if (!status) return;
  fprintf(stderr, "%s\n", tt_status_message(status));
  exit(1);
}

static double time_calls(tt_executable *executable, tt_device *device, tt_buffer **arguments, int count, int calls) {
  double begin = now_us();
  tt_buffer *last = NULL;
  for (int i = 0; i < calls; ++i) {
    void *output;
    check(tt_executable_execute(executable, device, arguments, count, NULL, &output, NULL));
    tt_buffer_release(last);
    check(tt_buffer_wrap(device, output, 64, NULL, &last));
  }
  check(tt_buffer_wait(last));
  tt_buffer_release(last);
  return (now_us() - begin) / calls;
}

static void measure(tt_client *client, const program *p, int calls, int rounds) {
  tt_device *device = tt_client_device(client, 0);
  tt_compile_options options = {.effort = TT_EFFORT_LEAST};
  tt_executable *executable;
  check(tt_executable_compile(client, p->text, (int64_t)strlen(p->text), &options, &executable));
  int64_t elements = p->dims[0] * (p->rank > 1 ? p->dims[1] : 1);
  float *data = calloc((size_t)elements, sizeof *data);
  double *times = calloc((size_t)rounds, sizeof *times);
  tt_buffer *arguments[2] = {NULL, NULL};
  for (int i = 0; i < p->argument_count; ++i)
    check(tt_buffer_from_host(device, data, TT_F32, p->rank, p->dims, TT_HOST_COPY, NULL, &arguments[i]));
  time_calls(executable, device, arguments, p->argument_count, calls);
  for (int r = 0; r < rounds; ++r) times[r] = time_calls(executable, device, arguments, p->argument_count, calls);
  qsort(times, (size_t)rounds, sizeof *times, compare);
  printf("%s %.3f\n", p->name, times[rounds / 2]);
  for (int i = 0; i < p->argument_count; ++i) tt_buffer_release(arguments[i]);
  tt_executable_release(executable);
  free(data);
  free(times);
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: bare PLUGIN.so CALLS ROUNDS\n");
    return 2;
  }
  tt_plugin *plugin;
  tt_client *client;
  check(tt_plugin_open_file(argv[1], &plugin));
  check(tt_client_create(plugin, 1, &client));
  for (size_t i = 0; i < sizeof programs / sizeof *programs; ++i)
    measure(client, &programs[i], atoi(argv[2]), atoi(argv[3]));
  tt_client_destroy(client);
  return 0;
}
