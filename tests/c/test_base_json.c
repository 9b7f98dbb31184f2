// test_base_json.c - core/base's reader of JSON.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/memory.h"
#include "runner.h"

static const tt_json *read(tt_arena *arena, const char *text) {
  const tt_json *document = NULL;
  CHECK_OK(tt_json_read(text, strlen(text), arena, &document));
  return document;
}

TEST(json_values) {
  tt_arena arena = TT_ARENA_INIT;
  const tt_json *json =
      read(&arena, " {\"a\": [1, -2.5e1, true, false, null], \"b\": {\"c\": \"d\"}, \"e\": [], \"f\": {}}\n");
  CHECK_INT(json->kind, TT_JSON_OBJECT);
  CHECK_INT(json->count, 4);
  const tt_json *list;
  CHECK_OK(tt_json_items(json, "a", &list));
  CHECK_INT(list->count, 5);
  const tt_json *item = list->first;
  CHECK(item->is_integer && item->integer == 1 && item->real == 1);
  item = item->next;
  CHECK(!item->is_integer && item->real == -25);
  item = item->next;
  CHECK(item->kind == TT_JSON_BOOL && item->integer == 1);
  item = item->next;
  CHECK(item->kind == TT_JSON_BOOL && item->integer == 0);
  CHECK_INT(item->next->kind, TT_JSON_NULL);
  CHECK(item->next->next == NULL);
  const char *text;
  CHECK_OK(tt_json_text(tt_json_member(json, "b"), "c", &text));
  CHECK_TEXT(text, "d");
  CHECK_INT(tt_json_member(json, "e")->count, 0);
  CHECK_INT(tt_json_member(json, "f")->count, 0);
  tt_arena_clear(&arena);
}

TEST(json_numbers_keep_64_bits) {
  tt_arena arena = TT_ARENA_INIT;
  const tt_json *json = read(&arena, "[9223372036854775807, -9223372036854775808, 9223372036854775808, 1e3]");
  CHECK(json->first->integer == INT64_MAX);
  CHECK(json->first->next->integer == INT64_MIN);
  CHECK(!json->first->next->next->is_integer && json->first->next->next->real == 9223372036854775808.0);
  CHECK(!json->first->next->next->next->is_integer);
  tt_arena_clear(&arena);
}

TEST(json_strings) {
  tt_arena arena = TT_ARENA_INIT;
  CHECK_TEXT(read(&arena, "\"a\\n\\t\\\"\\\\\\/\\b\\f\\r\"")->text, "a\n\t\"\\/\b\f\r");
  CHECK_TEXT(read(&arena, "\"\\u0041\\u00e9\\u20AC\\ud83d\\ude00\"")->text, "A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  CHECK_TEXT(read(&arena, "\"\xC3\xA9\"")->text, "\xC3\xA9");
  CHECK_TEXT(read(&arena, "\"\"")->text, "");
  tt_arena_clear(&arena);
}

TEST(json_faults_are_told_with_their_line) {
  static const struct {
    const char *text, *error;
  } faults[] = {
      {"", "line 1: neither a value"},
      {"{\n\n\"a\": nul}", "line 3: neither a value"},
      {"[1, 2", "an array or object without an end"},
      {"[1 2]", "an array or object without an end"},
      {"{\"a\" 1}", "a name without a value"},
      {"{1: 2}", "a member without a name"},
      {"[1,]", "neither a value"},
      {"\"a", "a string without an end"},
      {"\"a\\", "a string without an end"},
      {"\"\\x\"", "an unknown escape"},
      {"\"\\u12\"", "an unknown escape"},
      {"\"\\ud83d\"", "an unknown escape"},
      {"\"\\u0000\"", "an unknown escape"},
      {"\"a\nb\"", "a control character"},
      {"1 2", "something behind the document"},
      {"--1", "neither a value"},
      {"1.2.3", "neither a value"},
  };
  for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) {
    tt_arena arena = TT_ARENA_INIT;
    const tt_json *document;
    CHECK_FAILS(tt_json_read(faults[i].text, strlen(faults[i].text), &arena, &document), TT_VALUE, faults[i].error);
    tt_arena_clear(&arena);
  }
}

TEST(json_reads_no_further_than_its_size) {
  tt_arena arena = TT_ARENA_INIT;
  char *exact = malloc(2); // a sanitizer sees a byte beyond
  const tt_json *document;
  memcpy(exact, "12", 2);
  CHECK_OK(tt_json_read(exact, 2, &arena, &document));
  CHECK_INT(document->integer, 12);
  memcpy(exact, "\"\\", 2);
  CHECK_FAILS(tt_json_read(exact, 2, &arena, &document), TT_VALUE, "without an end");
  memcpy(exact, "tr", 2);
  CHECK_FAILS(tt_json_read(exact, 2, &arena, &document), TT_VALUE, "neither");
  memcpy(exact, "1\0", 2);
  CHECK_FAILS(tt_json_read(exact, 2, &arena, &document), TT_VALUE, "something behind");
  free(exact);
  tt_arena_clear(&arena);
}

TEST(json_depth_is_limited) {
  enum { DEPTH = 100000 };
  char *deep = malloc(DEPTH);
  memset(deep, '[', DEPTH);
  tt_arena arena = TT_ARENA_INIT;
  const tt_json *document;
  CHECK_FAILS(tt_json_read(deep, DEPTH, &arena, &document), TT_VALUE, "too many levels");
  free(deep);
  tt_arena_clear(&arena);
}

TEST(json_members_of_another_kind_are_missed) {
  tt_arena arena = TT_ARENA_INIT;
  const tt_json *json = read(&arena, "{\"a\": 1, \"b\": \"x\", \"c\": 1.5}");
  const char *text;
  int64_t integer;
  const tt_json *list;
  CHECK_FAILS(tt_json_text(json, "a", &text), TT_VALUE, "no text \"a\"");
  CHECK_FAILS(tt_json_integer(json, "c", &integer), TT_VALUE, "no integer \"c\"");
  CHECK_FAILS(tt_json_items(json, "b", &list), TT_VALUE, "no list \"b\"");
  CHECK_FAILS(tt_json_text(NULL, "a", &text), TT_VALUE, "no text \"a\"");
  CHECK(tt_json_member(json, "d") == NULL);
  CHECK_OK(tt_json_integer(json, "a", &integer));
  CHECK_INT(integer, 1);
  tt_arena_clear(&arena);
}

static tt_status read_and_clear(void *user) {
  tt_arena arena = TT_ARENA_INIT;
  const tt_json *document;
  tt_status status = tt_json_read(user, strlen(user), &arena, &document);
  tt_arena_clear(&arena);
  return status;
}

TEST(json_out_of_memory) {
  static char text[] = "{\"a\": [1, \"b\", {\"c\": null}], \"d\": \"a longer text than the others\"}";
  test_each_allocation_failing(read_and_clear, text);
}
