// runner.c - runs the tests of tests/c, see runner.h.
//
//   run [PART]    the tests whose name contains PART, or all
//
// Prints "ok NAME" or "FAILED NAME" and why, and at the end "N passed, N failed". Exits with 1 if any failed.
// TT_TEST_SECONDS sets the time limit of a test.
#include "runner.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"

#define DEFAULT_SECONDS 60

static test_case *first_test, **last_link = &first_test;

// Of the test that runs in this process.
static const char *plugin_path;
static int64_t kept_blocks;

void test_register(test_case *test) {
  *last_link = test;
  last_link = &test->next;
}

const char *test_plugin_path(void) { return plugin_path; }

void test_keeps_blocks(int64_t count) { kept_blocks += count; }

void test_fail(const char *file, int line, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fprintf(stderr, "%s:%d: ", file, line);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  fflush(NULL);
  _exit(1); // not exit: the plugin's threads may still be at work
}

void test_check_ok(const char *file, int line, const char *expression, tt_status status) {
  if (status == NULL) return;
  test_fail(file, line, "%s failed: %s: %s", expression, tt_code_name(tt_status_code(status)),
            tt_status_message(status));
}

void test_check_fails(const char *file, int line, const char *expression, tt_status status, tt_code code,
                      const char *part) {
  if (status == NULL) test_fail(file, line, "%s succeeded, expected %s", expression, tt_code_name(code));
  if (tt_status_code(status) != code || strstr(tt_status_message(status), part) == NULL) {
    test_fail(file, line, "%s gave %s: %s; expected %s with \"%s\"", expression, tt_code_name(tt_status_code(status)),
              tt_status_message(status), tt_code_name(code), part);
  }
  tt_status_free(status);
}

static void fail_each(tt_status (*scenario)(void *user), void *user, bool sticky) {
  for (int64_t n = 1;; n++) {
    int64_t live = tt_memory_live_count(), before = tt_memory_allocation_count();
    tt_memory_fail_at(n, sticky);
    tt_status status = scenario(user);
    tt_memory_fail_at(0, false);
    bool reached = tt_memory_allocation_count() - before >= n;
    if (status != NULL && (!reached || tt_status_code(status) != TT_OUT_OF_MEMORY)) {
      test_fail(__FILE__, __LINE__, "allocation %lld failing gave %s: %s", (long long)n,
                tt_code_name(tt_status_code(status)), tt_status_message(status));
    }
    tt_status_free(status);
    if (tt_memory_live_count() != live) {
      test_fail(__FILE__, __LINE__, "allocation %lld failing left %lld blocks behind", (long long)n,
                (long long)(tt_memory_live_count() - live));
    }
    if (!reached) return;
  }
}

void test_each_allocation_failing(tt_status (*scenario)(void *user), void *user) {
  fail_each(scenario, user, /*sticky=*/false);
  fail_each(scenario, user, /*sticky=*/true);
}

// ---- processes -------------------------------------------------------------------------------------------------------

static unsigned time_limit(void) {
  const char *text = getenv("TT_TEST_SECONDS");
  int seconds = text != NULL ? atoi(text) : 0;
  return seconds > 0 ? (unsigned)seconds : DEFAULT_SECONDS;
}

// The child process: all output to `log`, killed by SIGALRM when the time is up.
_Noreturn static void run_here(const test_case *test, const char *plugin, FILE *log) {
  dup2(fileno(log), STDOUT_FILENO);
  dup2(fileno(log), STDERR_FILENO);
  alarm(time_limit());
  plugin_path = plugin;
  int64_t live = tt_memory_live_count();
  test->body();
  int64_t left = tt_memory_live_count() - live - kept_blocks;
  if (left != 0) test_fail(__FILE__, __LINE__, "%lld blocks too many are still allocated", (long long)left);
  fflush(NULL);
  // Through exit, so that sanitizers report what they found.
  exit(0);
}

static void print_log(FILE *log) {
  char block[4096];
  size_t size;
  rewind(log);
  while ((size = fread(block, 1, sizeof(block), log)) > 0) fwrite(block, 1, size, stdout);
}

static void describe_end(int state) {
  if (WIFSIGNALED(state) && WTERMSIG(state) == SIGALRM) {
    printf("  did not end within %u s\n", time_limit());
  } else if (WIFSIGNALED(state)) {
    printf("  killed by signal %d (%s)\n", WTERMSIG(state), strsignal(WTERMSIG(state)));
  } else {
    printf("  exit status %d\n", WEXITSTATUS(state));
  }
}

static bool run_test(const test_case *test, const char *plugin) {
  char name[512];
  const char *slash = plugin != NULL ? strrchr(plugin, '/') : NULL;
  snprintf(name, sizeof(name), plugin != NULL ? "%s [%s]" : "%s", test->name, slash != NULL ? slash + 1 : plugin);

  FILE *log = tmpfile();
  if (log == NULL) {
    printf("FAILED %s\n  no file for its output: %s\n", name, strerror(errno));
    return false;
  }
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) run_here(test, plugin, log);
  int state = -1;
  while (child > 0 && waitpid(child, &state, 0) < 0 && errno == EINTR) {}
  clock_gettime(CLOCK_MONOTONIC, &end);
  bool passed = WIFEXITED(state) && WEXITSTATUS(state) == 0;
  double seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
  printf("%s %s (%.2f s)\n", passed ? "ok" : "FAILED", name, seconds);
  if (!passed) {
    print_log(log);
    describe_end(state);
  }
  fclose(log);
  fflush(stdout);
  return passed;
}

// Runs the test for each plugin of the list "a.so:b.so"; counts up *passed or *failed. False if the list is empty.
static bool run_for_plugins(const test_case *test, const char *list, int *passed, int *failed) {
  char *copy = strdup(list), *rest = copy;
  bool any = false;
  for (const char *path; copy != NULL && (path = strsep(&rest, ":")) != NULL;) {
    if (path[0] == '\0') continue;
    any = true;
    ++*(run_test(test, path) ? passed : failed);
  }
  free(copy);
  return any;
}

int main(int argc, char **argv) {
  const char *part = argc > 1 ? argv[1] : "";
  // The user's compile cache is no business of the tests, and what it holds must not change them.
  setenv("TORCH_TPU_CACHE_DIR", "off", 1);
  const char *plugins = getenv("TT_TEST_PLUGINS");
  int passed = 0, failed = 0, skipped = 0;
  for (const test_case *test = first_test; test != NULL; test = test->next) {
    if (strstr(test->name, part) == NULL) continue;
    if (!test->per_plugin) {
      ++*(run_test(test, NULL) ? &passed : &failed);
    } else if (!run_for_plugins(test, plugins != NULL ? plugins : "", &passed, &failed)) {
      skipped++;
    }
  }
  if (skipped > 0) printf("%d skipped: TT_TEST_PLUGINS names no plugin\n", skipped);
  printf("%d passed, %d failed\n", passed, failed);
  return failed > 0 ? 1 : 0;
}
