// module.cpp - the Python extension torch_tpu._C: what the package torch_tpu calls, and the registrations at load.
#include <cmath>
#include <optional>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>

#include "aot/aot.h"
#include "cache.h"
#include "compiled.h"
#include "control_flow.h"
#include "diagnostics.h"
#include "exported.h"
#include "generator.h"
#include "register.h"
#include "run/progress.h"
#include "support.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

// C++ classes are those of one minor version of torch.
void check_torch_version() {
  const auto version = py::module_::import("torch").attr("__version__").cast<std::string>();
  if (version.starts_with("2.13.")) return;
  throw py::import_error("torch_tpu is built for torch 2.13, but torch " + version +
                         " is installed: pip install 'torch>=2.13,<2.14'");
}

void register_all() {
  register_allocator();
  register_guard();
  register_host_allocator();
  register_hooks();
  register_basics();
  register_counted();
  register_kernels();
  register_fallback();
  register_sparse();
  register_nested();
  register_autocast();
  register_attention();
  register_linalg();
  register_site();
  register_diagnostics();
  register_profiler();
}

void set_search_dirs(const std::vector<std::string> &dirs) {
  std::vector<const char *> texts;
  for (const auto &dir : dirs) texts.push_back(dir.c_str());
  TT_CHECK(tt_runtime_set_search_dirs(texts.data(), texts.size()));
}

std::string info() {
  char *text = nullptr;
  TT_CHECK(tt_runtime_info_json(&text));
  std::string info = text;
  tt_text_free(text);
  return info;
}

py::dict device_properties(int index) {
  tt_device_properties properties;
  TT_CHECK(tt_device_get_properties(index, &properties));
  py::dict result;
  result["name"] = properties.name;
  result["platform"] = properties.platform;
  result["total_memory"] = properties.total_memory;
  result["generation"] = properties.generation;
  result["multi_processor_count"] = properties.multi_processor_count;
  return result;
}

py::dict memory(int index) {
  tt_memory_snapshot snapshot;
  TT_CHECK(tt_device_memory(index, &snapshot));
  py::dict result;
#define X(field) result[#field] = snapshot.field;
  X(current)
  X(peak)
  X(reserved_peak)
  X(allocated)
  X(freed)
  X(blocks_current)
  X(blocks_peak)
  X(blocks_allocated)
  X(blocks_freed)
  X(out_of_memory_count)
  X(limit)
#undef X
  return result;
}

std::pair<int64_t, int64_t> mem_get_info(int index) {
  int64_t free = 0, total = 0;
  TT_CHECK(tt_device_free_memory(index, &free, &total));
  return {free, total};
}

py::dict counters() {
  {
    const py::gil_scoped_release unlocked;
    tt_start_closed_graphs();
  }
  warn_late_in_python();
  py::dict result, fallbacks;
  for (int i = 0; i < TT_COUNTER_COUNT; ++i) {
    const auto counter = static_cast<tt_counter>(i);
    result[tt_counter_name(counter)] = tt_counter_get(counter);
  }
  const auto add = [](void *user, const char *op, int64_t count) { (*static_cast<py::dict *>(user))[op] = count; };
  tt_each_fallback(add, &fallbacks);
  result["fallbacks"] = fallbacks;
  return result;
}

// What is pending for the tensor, in the form of a tt_graph_format.
std::string pending_graph(const at::Tensor &tensor, int format) {
  const tt_tensor described = describe(tensor);
  char *text = nullptr;
  TT_CHECK(tt_pending_graph(described.device_index, described.storage, format, &text));
  std::string graph = text;
  tt_text_free(text);
  return graph;
}

py::list ops() {
  py::list result;
  for (const auto &op : supported_ops()) result.append(py::make_tuple(op.name, op.how, op.row));
  return result;
}

py::list sparse_ops() {
  py::list result;
  for (const auto &op : sparse_ops_on_cpu()) result.append(py::make_tuple(op.name, op.layout));
  return result;
}

// The rows of the core's table with the .def files that hold them.
py::list op_rows() {
  py::list result;
  for (int i = 0; i < tt_op_count(); ++i) result.append(py::make_tuple(tt_op_at(i)->name, tt_op_at(i)->file));
  return result;
}

// A dict of tt_aot_report's fields; None where the compiler says nothing.
py::dict aot_compile(const std::string &plugin, const std::string &topology, const std::string &text) {
  tt_aot_report report;
  {
    const py::gil_scoped_release unlocked;
    TT_CHECK(tt_aot_compile(plugin.c_str(), topology.c_str(), text.data(), static_cast<int64_t>(text.size()), &report));
  }
  py::dict result;
  result["optimal_seconds"] =
      std::isnan(report.optimal_seconds) ? py::object(py::none()) : py::float_(report.optimal_seconds);
#define X(field) result[#field] = report.field < 0 ? py::object(py::none()) : py::int_(report.field);
  X(code_bytes)
  X(argument_bytes)
  X(output_bytes)
  X(alias_bytes)
  X(temporary_bytes)
#undef X
  return result;
}

constexpr const char *kFallbacks[] = {"error", "warn", "allow"}; // by tt_fallback

void set_fallback(const std::string &policy) {
  for (int i = TT_FALLBACK_ERROR; i <= TT_FALLBACK_ALLOW; ++i)
    if (policy == kFallbacks[i]) return tt_set_fallback(static_cast<tt_fallback>(i));
  throw py::value_error("torch.tpu.fallback must be 'error', 'warn' or 'allow', not '" + policy + "'");
}

void define(py::module_ &m) {
  // Exceptions as in torch's own functions.
  py::register_local_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(raised);
    } catch (const c10::Error &) {
      torch::translate_exception_to_python(raised);
    } catch (python_error &error) {
      error.restore();
    }
  });
  using unlocked = py::call_guard<py::gil_scoped_release>;

  m.def("_start", [] { TT_CHECK(tt_runtime_start()); }, unlocked());
  m.def("_started", &tt_runtime_started);
  m.def("_in_bad_fork", &tt_runtime_in_bad_fork);
  m.def("_forget_programs", &tt_plans_forget, unlocked());
  m.def(
      "_settle",
      [] {
        tt_progress_stop();
        tt_runtime_settle();
      },
      unlocked());
  m.def("_tpu_attached", &tt_runtime_tpu_attached);
  m.def("_set_search_dirs", &set_search_dirs);
  m.def("_info", &info, unlocked());

  m.def("_device_count", &tt_runtime_device_count, unlocked());
  m.def("_current_device", &tt_current_device);
  m.def("_set_device", [](int index) { TT_CHECK(tt_set_current_device(index)); });
  m.def("_synchronize", [](int index) { TT_CHECK(tt_synchronize(index)); }, unlocked());
  m.def("_device_properties", &device_properties);

  m.def("_memory", &memory);
  m.def("_reset_peak_memory", [](int index) { TT_CHECK(tt_device_reset_peak_memory(index)); });
  m.def("_reset_accumulated_memory", [](int index) { TT_CHECK(tt_device_reset_accumulated_memory(index)); });
  m.def("_mem_get_info", &mem_get_info);
  m.def("_empty_cache", [] { TT_CHECK(tt_device_empty_cache()); }, unlocked());

  m.def("_get_eager_mode", [] { return static_cast<int>(tt_get_eager_mode()); });
  m.def("_set_eager_mode", [](int mode) { TT_CHECK(tt_set_eager_mode(static_cast<tt_eager_mode>(mode))); }, unlocked());
  m.def("_pending_graph", &pending_graph);
  m.def("_get_precision", &tt_get_precision);
  m.def("_set_precision", &tt_set_precision);
  m.def("_get_fallback", [] { return kFallbacks[tt_get_fallback()]; });
  m.def("_set_fallback", &set_fallback);

  define_diagnostics(m);
  m.def("_counters", &counters);
  m.def(
      "_reset_counters",
      [] {
        tt_start_closed_graphs();
        tt_counters_reset();
      },
      unlocked());
  m.def("_ops", &ops);
  m.def("_op_rows", &op_rows);
  m.def("_sparse_ops_on_cpu", &sparse_ops);
  m.def("_aot_collect",
        [](const std::optional<std::string> &folder) { TT_CHECK(tt_aot_collect(folder ? folder->c_str() : nullptr)); });
  m.def("_aot_compile", &aot_compile);
  define_cache(m);
  define_compiled(m);
  define_exported(m);
  define_control_flow(m);
  m.def("_set_decomposition_hook",
        [](const py::object &hook) { set_decomposition_hook(hook.is_none() ? nullptr : hook.ptr()); });
  m.def("_default_generator", [](int index) {
    return py::reinterpret_steal<py::object>(
        THPGenerator_initDefaultGenerator(default_generator(static_cast<c10::DeviceIndex>(index))));
  });
}

} // namespace
} // namespace torch_tpu

PYBIND11_MODULE(_C, m) {
  torch_tpu::check_torch_version();
  torch_tpu::register_all();
  torch_tpu::define(m);
}
