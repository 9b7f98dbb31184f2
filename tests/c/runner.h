// runner.h - a small test runner: each test runs in a process of its own, with a time limit.
//
// A test file defines tests with TEST or PLUGIN_TEST and is linked with runner.c; there is no other list. A failed check
// ends its test. What a test prints is shown only if it fails. At its end a test must have freed what it took from
// tt_malloc, but for what it announced by test_keeps_blocks.
#ifndef TT_TESTS_RUNNER_H_
#define TT_TESTS_RUNNER_H_

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"

typedef struct test_case {
  const char *name;
  void (*body)(void);
  bool per_plugin; // run once for each plugin in $TT_TEST_PLUGINS
  struct test_case *next;
} test_case;

void test_register(test_case *test);

#define TEST_DEFINE(name_, per_plugin_)                                                                                 \
  static void name_(void);                                                                                              \
  static test_case name_##_case = {#name_, name_, per_plugin_, NULL};                                                   \
  __attribute__((constructor)) static void name_##_register(void) { test_register(&name_##_case); }                     \
  static void name_(void)

#define TEST(name) TEST_DEFINE(name, false)
// The body finds the plugin's path in test_plugin_path().
#define PLUGIN_TEST(name) TEST_DEFINE(name, true)

const char *test_plugin_path(void);
// The test leaves this many blocks more behind on purpose.
void test_keeps_blocks(int64_t count);

// Ends the test as failed, with a printf-style reason.
_Noreturn void test_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

#define CHECK(condition)                                                                                                \
  do {                                                                                                                  \
    if (!(condition)) test_fail(__FILE__, __LINE__, "%s", #condition);                                                  \
  } while (0)

#define CHECK_INT(actual, expected)                                                                                     \
  do {                                                                                                                  \
    long long actual_ = (long long)(actual), expected_ = (long long)(expected);                                         \
    if (actual_ != expected_) test_fail(__FILE__, __LINE__, "%s is %lld, expected %lld", #actual, actual_, expected_);  \
  } while (0)

#define CHECK_TEXT(actual, expected)                                                                                    \
  do {                                                                                                                  \
    const char *actual_ = (actual), *expected_ = (expected);                                                            \
    if (strcmp(actual_, expected_) != 0)                                                                                \
      test_fail(__FILE__, __LINE__, "%s is \"%s\", expected \"%s\"", #actual, actual_, expected_);                      \
  } while (0)

#define CHECK_OK(expression) test_check_ok(__FILE__, __LINE__, #expression, (expression))
// The status must have this code and a message that contains `part`. Frees it.
#define CHECK_FAILS(expression, code, part) test_check_fails(__FILE__, __LINE__, #expression, (expression), (code), (part))

void test_check_ok(const char *file, int line, const char *expression, tt_status status);
void test_check_fails(const char *file, int line, const char *expression, tt_status status, tt_code code,
                      const char *part);

// Runs `scenario` with its first allocation failing, then its second, and so on until it makes no more; then the same with
// all later ones failing too. Each time it must succeed or report TT_OUT_OF_MEMORY, and leave no block behind.
void test_each_allocation_failing(tt_status (*scenario)(void *user), void *user);

#endif // TT_TESTS_RUNNER_H_
