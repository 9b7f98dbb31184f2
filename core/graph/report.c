// report.c - what is said when device memory runs out: how much, and which tensors hold the rest.
//
// Any thread may call. A report copies what it needs under the locks and writes afterwards.
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "graph/internal.h"

enum { REPORT_LINES = 8 };

void tt_byte_size_append(tt_string *out, int64_t byte_size) {
  static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  // As torch does, a unit begins above 1024 of the one before: 1024.00 KiB, then 1.01 MiB.
  if (byte_size <= 1024) {
    tt_string_printf(out, "%lld bytes", (long long)byte_size);
    return;
  }
  double size = (double)byte_size / 1024;
  size_t unit = 0;
  for (; size > 1024 && unit + 1 < sizeof(units) / sizeof(units[0]); unit++) size /= 1024;
  tt_string_printf(out, "%.2f %s", size, units[unit]);
}

// ---- the largest live tensors ----------------------------------------------------------------------------------------

static int compare_kind(const void *a, const void *b) {
  const tt_live_storage *x = a, *y = b;
  if (x->layout != y->layout) return (uintptr_t)x->layout < (uintptr_t)y->layout ? -1 : 1;
  if (x->byte_size != y->byte_size) return x->byte_size < y->byte_size ? -1 : 1;
  if (x->recorded != y->recorded) return x->recorded ? 1 : -1;
  return strcmp(x->op_name, y->op_name);
}

static int compare_total(const void *a, const void *b) {
  double x = (double)((const tt_live_storage *)a)->byte_size * (double)((const tt_live_storage *)a)->count;
  double y = (double)((const tt_live_storage *)b)->byte_size * (double)((const tt_live_storage *)b)->count;
  return x > y ? -1 : x < y;
}

// Merges equal neighbours; returns how many are left.
static size_t merge_equal(tt_live_storage *items, size_t count) {
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    if (kept > 0 && compare_kind(&items[kept - 1], &items[i]) == 0) {
      items[kept - 1].count++;
    } else {
      items[kept++] = items[i];
    }
  }
  return kept;
}

static void append_line(tt_string *out, const tt_live_storage *item) {
  tt_string_append(out, "  ");
  tt_byte_size_append(out, item->byte_size * item->count);
  tt_string_append(out, "  ");
  if (item->count > 1) tt_string_printf(out, "%lld x ", (long long)item->count);
  if (item->layout == NULL) {
    tt_string_append(out, "uninitialised\n");
    return;
  }
  tt_string_printf(out, "%s [", tt_dtype_text(item->layout->dtype));
  for (int i = 0; i < item->layout->rank; i++) {
    if (i > 0) tt_string_append(out, ", ");
    tt_string_append_i64(out, item->layout->dims[i]);
  }
  tt_string_append(out, "]");
  if (item->recorded) tt_string_append(out, "  being recorded");
  if (item->op_name[0] != '\0') tt_string_printf(out, "  made by %s", item->op_name);
  tt_string_append(out, "\n");
}

void tt_storage_report(tt_device *device, int count, tt_string *out) {
  tt_live_storage *items = NULL;
  // Host memory may be as short as the device's: then there is no list.
  size_t item_count = tt_storage_collect_live(device, &items);
  if (item_count > 0) {
    qsort(items, item_count, sizeof(*items), compare_kind);
    item_count = merge_equal(items, item_count);
    qsort(items, item_count, sizeof(*items), compare_total);
  }
  for (size_t i = 0; i < item_count && i < (size_t)count; i++) append_line(out, &items[i]);
  tt_free(items);
}

// ---- out of memory ---------------------------------------------------------------------------------------------------

// "\nLargest live tensors:\n..." without a final newline; nothing if there are none.
static void append_largest(tt_string *out, tt_device *device) {
  tt_string lines = TT_STRING_INIT;
  tt_storage_report(device, REPORT_LINES, &lines);
  if (lines.size > 0 && !lines.failed) {
    tt_string_append(out, "Largest live tensors:\n");
    tt_string_append_n(out, lines.data, lines.size - 1);
  }
  tt_string_free(&lines);
}

static tt_status limit_error(tt_device *device, int64_t byte_size, int64_t current) {
  int64_t free_bytes = current < device->memory_limit ? device->memory_limit - current : 0;
  tt_string text = TT_STRING_INIT;
  tt_string_append(&text, "TPU out of memory. Tried to allocate ");
  tt_byte_size_append(&text, byte_size);
  tt_string_printf(&text, ". TPU %d has a total capacity of ", device->index);
  tt_byte_size_append(&text, device->memory_limit);
  tt_string_append(&text, " of which ");
  tt_byte_size_append(&text, free_bytes);
  tt_string_append(&text, " is free. Of the allocated memory ");
  tt_byte_size_append(&text, current);
  tt_string_append(&text, " is allocated by torch_tpu. ");
  append_largest(&text, device);
  while (text.size > 0 && text.data[text.size - 1] == ' ') text.data[--text.size] = '\0';
  tt_status status = tt_error(TT_OUT_OF_MEMORY, "%s", tt_string_text(&text));
  tt_string_free(&text);
  return tt_device_note(device, status);
}

tt_status tt_storage_check_limit(tt_device *device, int64_t byte_size) {
  int64_t current = atomic_load_explicit(&device->memory.current, memory_order_relaxed);
  // A limit of 0 is an unknown one.
  if (__builtin_expect(device->memory_limit <= 0 || byte_size <= device->memory_limit - current, 1)) return TT_SUCCESS;
  return limit_error(device, byte_size, current);
}

tt_status tt_storage_explain_out_of_memory(tt_device *device, tt_status status) {
  if (__builtin_expect(tt_status_code(status) != TT_OUT_OF_MEMORY, 1)) return status;
  if (strstr(tt_status_message(status), "Largest live tensors:") != NULL) return status;
  tt_string text = TT_STRING_INIT;
  append_largest(&text, device);
  if (text.size > 0 && !text.failed) {
    tt_status longer = tt_error(TT_OUT_OF_MEMORY, "%s\n%s", tt_status_message(status), tt_string_text(&text));
    tt_status_free(status);
    status = longer;
  }
  tt_string_free(&text);
  return tt_device_note(device, status);
}
