// options.c - see options.h.
//
// Written by hand in protobuf's wire format: CompileOptionsProto has the build options in field 3, the portable flag in 4
// and XLA's debug options in 7, a map from a name to an OptionOverrideProto.
#include "pjrt/options.h"

#include <string.h>

// Debug options that may be sent. An option's index is its bit in a tt_option_set.
//   FAST_MIN_MAX        min and max lose NaN with it, in reductions and larger programs
//   EXCESS_PRECISION    chains of bfloat16 ops keep float32 in between with it; eager torch rounds after each
//   DISABLE_PASSES      names of passes, separated by commas
//   OPTIMIZATION_LEVEL  of LLVM
//   FUSION_EMITTERS     whether code is made by way of MLIR
//   SPLIT_COUNT         into how many parts LLVM's work is cut for as many threads; each sets up a compiler of its own
//   YNN_FUSION          what goes to the YNNPACK library
#define OPTIONS(X)                                                                                                     \
  X(FAST_MIN_MAX, "xla_cpu_enable_fast_min_max")                                                                       \
  X(EXCESS_PRECISION, "xla_allow_excess_precision")                                                                    \
  X(DISABLE_PASSES, "xla_disable_hlo_passes")                                                                          \
  X(OPTIMIZATION_LEVEL, "xla_backend_optimization_level")                                                              \
  X(FUSION_EMITTERS, "xla_cpu_use_fusion_emitters")                                                                    \
  X(SPLIT_COUNT, "xla_cpu_parallel_codegen_split_count")                                                               \
  X(YNN_FUSION, "xla_cpu_experimental_ynn_fusion_type")

enum {
#define X(name, text) OPTION_INDEX_##name,
  OPTIONS(X)
#undef X
      OPTION_COUNT
};

static const char *const option_names[OPTION_COUNT] = {
#define X(name, text) [OPTION_INDEX_##name] = text,
    OPTIONS(X)
#undef X
};

// The fields of OptionOverrideProto.
enum { VALUE_STRING = 1, VALUE_BOOL = 2, VALUE_INT64 = 3 };

static void put_varint(tt_string *out, uint64_t value) {
  char bytes[10];
  size_t size = 0;
  for (; value >= 0x80; value >>= 7) bytes[size++] = (char)(value | 0x80);
  bytes[size++] = (char)value;
  tt_string_append_n(out, bytes, size);
}

static void put_number(tt_string *out, int field, int64_t value) {
  put_varint(out, (uint64_t)field << 3);
  put_varint(out, (uint64_t)value);
}

static void put_bytes(tt_string *out, int field, const char *data, size_t size) {
  put_varint(out, (uint64_t)field << 3 | 2);
  put_varint(out, size);
  tt_string_append_n(out, data, size);
}

// Appends a message that was written apart, since its size comes first, and empties it for the next.
static void put_message(tt_string *out, int field, tt_string *message) {
  put_bytes(out, field, tt_string_text(message), message->size);
  out->failed |= message->failed;
  tt_string_clear(message);
}

// The debug options being written: `entry` and `value` are scratch.
typedef struct option_writer {
  tt_string *out;
  tt_string entry, value;
  tt_option_set refused, sent;
} option_writer;

// Ends the option whose value was just written to w->value.
static void put_option(option_writer *w, int index) {
  put_bytes(&w->entry, 1, option_names[index], strlen(option_names[index]));
  put_message(&w->entry, 2, &w->value);
  put_message(w->out, 7, &w->entry);
  w->sent |= (tt_option_set)1 << index;
}

static void put_number_option(option_writer *w, int index, int kind, int64_t value) {
  if (w->refused >> index & 1) return;
  put_number(&w->value, kind, value);
  put_option(w, index);
}

static void put_text_option(option_writer *w, int index, const char *value) {
  if (w->refused >> index & 1) return;
  put_bytes(&w->value, VALUE_STRING, value, strlen(value));
  put_option(w, index);
}

bool tt_text_contains(const char *text, int64_t size, const char *word) {
  return memmem(text, (size_t)size, word, strlen(word)) != NULL;
}

static bool contains_any(const char *text, int64_t size, const char *const *words, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (tt_text_contains(text, size, words[i])) return true;
  }
  return false;
}

// Does some op take much longer per element than reading and writing it? (To tell whether all of something holds does not.)
static bool has_costly_ops(const char *text, int64_t size) {
  static const char *const words[] = {"applies stablehlo.add",
                                      "applies stablehlo.m",
                                      "cbrt",
                                      "chlo.",
                                      "convolution",
                                      "cosine",
                                      "exponential",
                                      "hlo.tan",
                                      "log",
                                      "power",
                                      "reduce_window",
                                      "reducer(",
                                      "rng",
                                      "scatter",
                                      "sine",
                                      "sort",
                                      "stablehlo.atan2",
                                      "while"};
  if (contains_any(text, size, words, sizeof words / sizeof *words)) return true;
  // A polynomial, as most elementary functions are written out.
  enum { PRODUCTS = 8 };
  const char *product = "stablehlo.multiply", *end = text + size, *at = text;
  int count = 0;
  while (count < PRODUCTS && (at = memmem(at, (size_t)(end - at), product, strlen(product))) != NULL) {
    ++count;
    ++at;
  }
  return count == PRODUCTS;
}

static bool has_gather(const char *text, int64_t size) { return tt_text_contains(text, size, "stablehlo.gather"); }

// Loops whose code LLVM's higher levels make faster whatever their size: a running sum takes half as long.
static bool has_own_loops(const char *text, int64_t size) {
  static const char *const words[] = {"convolution", "reduce_window", "rng", "scatter", "select_and", "sort", "while"};
  return contains_any(text, size, words, sizeof words / sizeof *words);
}

// Elementwise ops, copies and reads at indices alone (these with a check of the indices, a small reduction)?
static bool is_plain(const char *text, int64_t size) {
  static const char *const words[] = {"dot_general", "optimization_barrier"};
  if (has_own_loops(text, size) || contains_any(text, size, words, sizeof words / sizeof *words)) return false;
  return has_gather(text, size) || !tt_text_contains(text, size, "reduce");
}

// Does some transpose move the last dimension? "stablehlo.transpose %2, dims = [0, 2, 1, 3] : ..." does not.
static bool moves_last_dimension(const char *text, int64_t size) {
  static const char transpose[] = "stablehlo.transpose", dims[] = "dims = [";
  const char *end = text + size, *at = text;
  while ((at = memmem(at, (size_t)(end - at), transpose, sizeof transpose - 1)) != NULL) {
    at = memmem(at, (size_t)(end - at), dims, sizeof dims - 1);
    if (at == NULL) return true;
    int position = 0, dimension = 0;
    for (at += sizeof dims - 1; at < end && *at != ']'; ++at) {
      if (*at == ',') {
        ++position;
        dimension = 0;
      } else if (*at >= '0' && *at <= '9') {
        dimension = dimension * 10 + (*at - '0');
      }
    }
    if (dimension != position) return true;
  }
  return false;
}

// Does a parameter or a result have this element type? They are in the line of "func.func public @main(".
static bool signature_contains(const char *text, int64_t size, const char *type) {
  static const char main[] = "@main(";
  const char *begin = memmem(text, (size_t)size, main, sizeof main - 1);
  if (begin == NULL) return false;
  const char *end = memchr(begin, '\n', (size_t)(text + size - begin));
  return tt_text_contains(begin, (end != NULL ? end : text + size) - begin, type);
}

// XLA's code without MLIR gives the same bits, but for narrow floats: a copy of float8_e5m2fnuz rounds its smallest ones, and one
// of bfloat16 may make a signalling NaN a quiet one (API 0.106).
static bool is_exact_without_mlir(const char *text, int64_t size) {
  return !tt_text_contains(text, size, "f8E") && !signature_contains(text, size, "bf16");
}

// Is the code that XLA makes without MLIR as fast? Slower are copies along the last dimension, except
// those that lead to a matrix product, which a library makes; sums of exponentials; and results in an operand's memory, for LLVM
// does not learn that they overlap nowhere else.
static bool is_good_without_mlir(const char *text, int64_t size) {
  static const char *const words[] = {"alias", "concatenate", "donor", "erf", "hlo.tan", "reducer("};
  if (contains_any(text, size, words, sizeof words / sizeof *words)) return false;
  return tt_text_contains(text, size, "dot_general") || !moves_last_dimension(text, size);
}

// Are there reductions, all of which give the same in whatever order?
static bool reduces_in_any_order(const char *text, int64_t size) {
  static const char *const words[] = {"applies stablehlo.add", "applies stablehlo.mul", "reducer("};
  return tt_text_contains(text, size, "applies stablehlo.") &&
         !contains_any(text, size, words, sizeof words / sizeof *words);
}

// Is there an optimization barrier in the region of an op, as control flow has them?
static bool has_barrier_in_region(const char *text, int64_t size) {
  static const char opens[] = "({\n^bb0", closes[] = "\n})", barrier[] = "optimization_barrier";
  const char *end = text + size;
  int depth = 0;
  if (!tt_text_contains(text, size, barrier)) return false;
  for (const char *at = text; at < end; ++at) {
    size_t left = (size_t)(end - at);
    if (*at == '(' && left >= sizeof opens && memcmp(at, opens, sizeof opens - 1) == 0)
      ++depth;
    else if (*at == '\n' && left >= sizeof closes && memcmp(at, closes, sizeof closes - 1) == 0)
      --depth;
    else if (depth > 0 && *at == 'o' && left >= sizeof barrier && memcmp(at, barrier, sizeof barrier - 1) == 0)
      return true;
  }
  return false;
}

// The passes to leave out.
//   fusion-wrapper              a single op compiles faster without
//   algsimp                     without, the value of op after op stays what each op alone gives, e.g. (x + 1e8) - 1e8
//   cse_barrier_expander        takes optimization barriers out before most passes: without, calls of one graph that a barrier
//                               keeps apart stay apart until the code is made (API 0.106: a training step takes 0.8 of the
//                               processor time and two thirds of the memory), and so do a dot of bfloat16 and the transposes
//                               around it (op/precision.c). But a small loop is compiled as one kernel, which cannot have
//                               barriers ("Unhandled opcode for elemental IR emission: opt-barrier")
//   tree_reduction_rewriter     makes two loops of a reduction, which is better for sums but up to 5 times slower for extremes
//   cpu-parallel-task-assigner  gives half of a loop to another thread, whose start takes longer than a short loop
static void put_disabled_passes(option_writer *w, const char *text, int64_t size, tt_effort effort,
                                const tt_compile_options *options) {
  tt_string names = TT_STRING_INIT;
  if (effort != TT_EFFORT_FULL) tt_string_append(&names, ",fusion-wrapper");
  if (options->exact) tt_string_append(&names, ",algsimp");
  bool has_bf16_dots = tt_text_contains(text, size, "dot_general") && tt_text_contains(text, size, "bf16");
  if ((options->exact || has_bf16_dots) && !has_barrier_in_region(text, size))
    tt_string_append(&names, ",cse_barrier_expander");
  if (reduces_in_any_order(text, size)) tt_string_append(&names, ",tree_reduction_rewriter");
  if (options->short_loops && !has_costly_ops(text, size)) tt_string_append(&names, ",cpu-parallel-task-assigner");
  if (names.size > 0) put_text_option(w, OPTION_INDEX_DISABLE_PASSES, tt_string_text(&names) + 1);
  w->out->failed |= names.failed;
  tt_string_free(&names);
}

// CPU plugins hand large reductions to YNNPACK, whose min and max lose NaN whatever xla_cpu_enable_fast_min_max says (with API
// 0.106 from about 1,000 elements on: amax over [1000, 1000]; with 0.115 always). Its sums are good and fast, so only programs
// with a min or max do without. A plugin that does not know the option refuses it, and it is left out. Dots go to it one by one,
// as by default: LIBRARY_FUSION_TYPE_DOT, which joins dots, kills the process where a dot's result is both operands of
// another (API 0.106: a segmentation fault in xla::cpu::YnnMatcher::IsOpSupported). MLIR bytecode, which begins with these bytes,
// does not tell its ops.
static bool ynnpack_would_lose_nan(const char *text, int64_t size) {
  static const char bytecode[] = {'M', 'L', '\xEF', 'R'};
  if (size >= (int64_t)sizeof bytecode && memcmp(text, bytecode, sizeof bytecode) == 0) return true;
  return tt_text_contains(text, size, "stablehlo.maximum") || tt_text_contains(text, size, "stablehlo.minimum");
}

static void put_cpu_options(option_writer *w, const char *text, int64_t size) {
  put_number_option(w, OPTION_INDEX_FAST_MIN_MAX, VALUE_BOOL, false);
  if (ynnpack_would_lose_nan(text, size)) {
    put_text_option(w, OPTION_INDEX_YNN_FUSION, "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT");
  }
}

// For a program that is small, or whose loops are short: code that is as fast, in half to nine tenths of the time. Sums and
// extremes of long loops gain from LLVM's higher levels.
static void put_light_options(option_writer *w, const char *text, int64_t size, bool small, bool short_loops) {
  bool plain = short_loops && is_plain(text, size);
  bool loops = has_own_loops(text, size) || !(small || (short_loops && !tt_text_contains(text, size, "reduce")));
  if (!plain && loops) return;
  put_number_option(w, OPTION_INDEX_OPTIMIZATION_LEVEL, VALUE_INT64, 1);
  put_number_option(w, OPTION_INDEX_SPLIT_COUNT, VALUE_INT64, 1);
  if (is_exact_without_mlir(text, size) &&
      ((plain && has_gather(text, size)) || (!loops && is_good_without_mlir(text, size)))) {
    put_number_option(w, OPTION_INDEX_FUSION_EMITTERS, VALUE_BOOL, false);
  }
}

static void put_debug_options(option_writer *w, bool is_host, const char *text, int64_t size,
                              const tt_compile_options *options) {
  // A scatter outside a fusion is refused ("HLO opcode scatter is not supported by XLA:CPU ThunkEmitter").
  bool full = !is_host || tt_text_contains(text, size, "scatter");
  tt_effort effort = full ? TT_EFFORT_FULL : options->effort;
  if (is_host) put_cpu_options(w, text, size);
  put_number_option(w, OPTION_INDEX_EXCESS_PRECISION, VALUE_BOOL, false);
  put_disabled_passes(w, text, size, effort, options);
  if (effort == TT_EFFORT_LEAST) {
    put_number_option(w, OPTION_INDEX_OPTIMIZATION_LEVEL, VALUE_INT64, 0);
    put_number_option(w, OPTION_INDEX_SPLIT_COUNT, VALUE_INT64, 1);
    if (is_exact_without_mlir(text, size)) put_number_option(w, OPTION_INDEX_FUSION_EMITTERS, VALUE_BOOL, false);
  } else if (is_host && !options->exact) {
    put_light_options(w, text, size, effort == TT_EFFORT_LIGHT, options->short_loops);
  }
}

tt_status tt_options_write(bool is_host, const char *text, int64_t size, const tt_compile_options *options,
                           tt_option_set refused, tt_string *out, tt_option_set *out_sent) {
  option_writer w = {.out = out, .entry = TT_STRING_INIT, .value = TT_STRING_INIT, .refused = refused};
  put_number(&w.value, 1, -1); // device_ordinal: none, as the program is portable
  put_number(&w.value, 4, 1);  // num_replicas
  put_number(&w.value, 5, 1);  // num_partitions
  put_message(out, 3, &w.value);
  put_number(out, 4, true); // compile_portable_executable
  put_debug_options(&w, is_host, text, size, options);
  tt_string_free(&w.entry);
  tt_string_free(&w.value);
  *out_sent = w.sent;
  return tt_string_status(out);
}

tt_option_set tt_options_refused(tt_status status, tt_option_set sent) {
  const char *message = tt_status_message(status);
  if (strstr(message, "No such compile option") == NULL) return 0;
  for (int i = 0; i < OPTION_COUNT; i++) {
    if ((sent >> i & 1) && strstr(message, option_names[i]) != NULL) return (tt_option_set)1 << i;
  }
  return 0;
}
