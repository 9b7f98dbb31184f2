// diagnostics.cpp - Python's side of events (run/trace.h), warnings of recompilation and progress.
#include "diagnostics.h"

#include <memory>
#include <string>

#include <pybind11/stl.h>

#include "register.h"
#include "run/deferred.h"
#include "run/progress.h"
#include "run/trace.h"
#include "status.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

// The callables of torch_tpu.tpu.diagnostics; kept for ever.
PyObject *recompilation_warning = nullptr; // the category
PyObject *progress_callback = nullptr;     // (id, program, seconds, done)

// --- warnings -----------------------------------------------------------------------------------------------------------

// "file.py:12" apart.
std::pair<std::string, int> split_site(const std::string &site) {
  const size_t colon = site.rfind(':');
  return {site.substr(0, colon), colon == std::string::npos ? 0 : std::atoi(site.c_str() + colon + 1)};
}

tt_status warn(const char *site, const char *warning) {
  if (!Py_IsInitialized() || _Py_IsFinalizing()) return TT_SUCCESS;
  const py::gil_scoped_acquire locked;
  if (PyErr_Occurred() != nullptr || recompilation_warning == nullptr) return TT_SUCCESS;
  const auto [file, line] = split_site(site);
  const int failed = PyErr_WarnExplicit(recompilation_warning, warning, file.c_str(), line, nullptr, nullptr);
  return failed == 0 ? TT_SUCCESS : keep_python_error();
}

// --- progress -----------------------------------------------------------------------------------------------------------

void report_progress(uint64_t id, const char *program, double seconds, bool done) {
  if (!Py_IsInitialized() || _Py_IsFinalizing()) return;
  const py::gil_scoped_acquire locked;
  try {
    const py::handle callback = progress_callback;
    callback(id, program, seconds, done);
  } catch (py::error_already_set &error) {
    error.discard_as_unraisable("torch_tpu's progress line");
  }
}

void set_progress_callback(const py::object &callback, int64_t delay_ms) {
  progress_callback = callback.inc_ref().ptr();
  tt_set_progress_hook(report_progress, delay_ms);
}

// --- events -------------------------------------------------------------------------------------------------------------

py::object text(const char *value) { return value == nullptr ? py::object(py::none()) : py::object(py::str(value)); }

using Collector = std::unique_ptr<tt_trace_collector, void (*)(tt_trace_collector *)>;

py::capsule collect() {
  tt_trace_collector *collector = nullptr;
  const unsigned all = TT_TRACE_ALL & ~TT_TRACE_BIT(TT_TRACE_execute); // those are counted
  TT_CHECK(tt_trace_collect(all, all, &collector));
  return py::capsule(collector);
}

// The events since `collect`, each a tuple in the order of torch_tpu.tpu.diagnostics.Event.
py::list stop(const py::capsule &handle) {
  auto *collector = handle.get_pointer<tt_trace_collector>();
  const Collector owner(collector, tt_trace_collector_free);
  {
    const py::gil_scoped_release unlocked;
    tt_trace_collector_stop(collector, /*settle=*/false);
  }
  size_t count = 0;
  const tt_trace_event *events = tt_trace_collector_events(collector, &count);
  py::list result;
  for (size_t i = 0; i < count; ++i) {
    const tt_trace_event &e = events[i];
    result.append(py::make_tuple(tt_trace_kind_name(e.kind), e.name, text(e.operands), text(e.detail), text(e.site),
                                 text(e.fallback), e.begin_ns, e.end_ns, e.bytes, e.thread));
  }
  return result;
}

} // namespace

void register_diagnostics() { tt_set_warning_hook(warn); }

void define_diagnostics(py::module_ &m) {
  m.def("_set_log", [](const std::string &kinds) { TT_CHECK(tt_trace_set_log(kinds.c_str())); });
  m.def("_collect_events", &collect);
  m.def("_stop_events", &stop);
  m.def("_run_deferred", [] { TT_CHECK(tt_run_all_deferred()); }, py::call_guard<py::gil_scoped_release>());
  m.def("_forbid", [](const std::string &kind, bool forbid) {
    tt_trace_forbid(kind == "compile" ? TT_TRACE_compile : TT_TRACE_wait, forbid);
  });
  m.def("_set_recompilation_warning",
        [](const py::object &category) { recompilation_warning = category.inc_ref().ptr(); });
  m.def("_set_progress_callback", &set_progress_callback);
}

} // namespace torch_tpu
