// cache.cpp - the compile cache as Python sees it: its warnings, its remote store, and looking into its folder.
#include <atomic>
#include <mutex>
#include <optional>
#include <typeinfo>

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "cache.h"
#include "cache/config.h"
#include "run/runtime.h"
#include "status.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

// torch takes warnings to Python where it has called C++ itself. What is said elsewhere, by a thread that compiles above all,
// waits for the next call.
std::mutex late_lock;
std::vector<std::string> late;
std::atomic<bool> has_late = false;

void warn(const char *message) {
  if (typeid(*c10::WarningUtils::get_warning_handler()) != typeid(c10::WarningHandler)) {
    TORCH_WARN(message);
    return;
  }
  const std::lock_guard hold(late_lock);
  late.emplace_back(message);
  has_late = true;
}

// --- the remote store ------------------------------------------------------------------------------------------------
// Python objects, under the GIL. The core calls from any thread, with or without it.
PyObject *fetch_hook = nullptr, *store_hook = nullptr;

// Python has its own say on what goes wrong and raises nothing; what it raises all the same must not get into C.
template <typename Body>
void with_python(const Body &body) {
  if (Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire locked;
  try {
    body();
  } catch (py::error_already_set &error) {
    error.discard_as_unraisable("torch_tpu's remote cache");
  }
}

void fetch(const char *name, void (*accept)(void *sink, const void *bytes, size_t size), void *sink) {
  with_python([&] {
    if (fetch_hook == nullptr) return;
    const py::object found = py::handle(fetch_hook)(name);
    if (found.is_none()) return;
    char *bytes = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(found.ptr(), &bytes, &size) != 0) throw py::error_already_set();
    accept(sink, bytes, static_cast<size_t>(size));
  });
}

void store(const char *name, const void *bytes, size_t size) {
  with_python([&] {
    const py::handle hook = store_hook;
    if (hook) hook(name, py::bytes(static_cast<const char *>(bytes), size));
  });
}

PyObject *hook_or_null(const py::object &hook) { return hook.is_none() ? nullptr : py::object(hook).release().ptr(); }

void set_remote(const py::object &fetcher, const py::object &storer) {
  PyObject *const old[] = {fetch_hook, store_hook};
  fetch_hook = hook_or_null(fetcher);
  store_hook = hook_or_null(storer);
  const tt_cache_remote remote = {fetch, store};
  tt_cache_set_remote(fetch_hook != nullptr ? &remote : nullptr);
  for (PyObject *hook : old) Py_XDECREF(hook);
}

// --- the folder ------------------------------------------------------------------------------------------------------
py::dict info() {
  tt_cache_info info;
  TT_CHECK(tt_cache_get_info(&info));
  py::dict result;
#define X(field) result[#field] = info.field;
  X(folder)
  X(off_reason)
  X(entries)
  X(bytes)
  X(limit)
  X(hits)
#undef X
  return result;
}

py::list entries() {
  py::list result;
  const auto add = [](void *user, const tt_cache_item *item) {
    py::dict entry;
#define X(field) entry[#field] = item->field;
    X(name)
    X(description)
    X(bytes)
    X(created)
    X(used)
    X(compile_seconds)
#undef X
    static_cast<py::list *>(user)->append(entry);
  };
  TT_CHECK(tt_cache_each(add, &result));
  return result;
}

std::pair<int64_t, int64_t> clear(std::optional<double> older_than) {
  int64_t entries = 0, bytes = 0;
  TT_CHECK(tt_cache_clear_folder(older_than.value_or(-1), &entries, &bytes));
  return {entries, bytes};
}

bool import_entry(const std::string &name, const py::bytes &bytes) {
  const std::string_view view = bytes;
  bool kept = false;
  TT_CHECK(tt_cache_import(name.c_str(), view.data(), view.size(), &kept));
  return kept;
}

} // namespace

static std::vector<std::string> take_late() {
  std::vector<std::string> messages;
  if (!has_late.load(std::memory_order_relaxed)) [[likely]]
    return messages;
  const std::lock_guard hold(late_lock);
  messages.swap(late);
  has_late = false;
  return messages;
}

void warn_late() {
  for (const auto &message : take_late()) TORCH_WARN(message);
}

void warn_late_in_python() {
  for (const auto &message : take_late())
    if (PyErr_WarnEx(PyExc_UserWarning, message.c_str(), 1) != 0) throw py::error_already_set();
}

void define_cache(py::module_ &m) {
  tt_cache_set_warner(warn);
  m.def("_cache_configure", [] { TT_CHECK(tt_runtime_configure_cache()); });
  m.def("_cache_probe", [] { TT_CHECK(tt_runtime_probe_cache()); }, py::call_guard<py::gil_scoped_release>());
  m.def("_cache_info", &info);
  m.def("_cache_entries", &entries);
  m.def("_cache_clear", &clear);
  m.def("_cache_import", &import_entry);
  m.def("_cache_set_remote", &set_remote);
}

} // namespace torch_tpu
