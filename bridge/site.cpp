// site.cpp - the line of the user's Python that is running: the innermost frame outside torch and this package.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <pybind11/pybind11.h>

#include "base/memory.h"
#include "register.h"
#include "run/site.h"

namespace torch_tpu {
namespace {

// Folders, each with a slash at its end.
std::vector<std::string> &library_dirs() {
  static auto &dirs = *new std::vector<std::string>;
  return dirs;
}

bool is_in_library(const char *file) {
  for (const auto &dir : library_dirs())
    if (std::strncmp(file, dir.c_str(), dir.size()) == 0) return true;
  // Python's own modules, and code that torch.fx makes for a graph.
  return std::strncmp(file, "<frozen ", 8) == 0 || std::strncmp(file, "<eval_with_key>", 15) == 0;
}

char *format(const char *file, int line) {
  const size_t size = std::strlen(file) + 16;
  char *text = static_cast<char *>(tt_malloc(size));
  if (text != nullptr) std::snprintf(text, size, "%s:%d", file, line);
  return text;
}

// Where torch steps through many tensors by itself.
const char *const kLoops[] = {"/torch/optim/", "/torch/nn/utils/"};

// `self` of a frame of torch's nn.Module code, 0 if it has none.
uint64_t layer_of(PyFrameObject *frame, const char *file) {
  if (std::strstr(file, "/torch/nn/modules/") == nullptr) return 0;
  PyObject *locals = PyFrame_GetLocals(frame);
  PyObject *self = locals == nullptr ? nullptr : PyMapping_GetItemString(locals, "self");
  const auto layer = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(self));
  PyErr_Clear();
  Py_XDECREF(self);
  Py_XDECREF(locals);
  return layer;
}

// Keeps an exception that is being raised out of what happens here.
class KeepException {
public:
  KeepException() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~KeepException() { PyErr_Restore(type_, value_, traceback_); }
  KeepException(const KeepException &) = delete;
  KeepException &operator=(const KeepException &) = delete;

private:
  PyObject *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};

// torch lets go of the GIL before it dispatches.
char *python_site(uint64_t *out_layer) {
  if (!Py_IsInitialized() || _Py_IsFinalizing()) return nullptr;
  const pybind11::gil_scoped_acquire locked;
  const KeepException keep;
  char *site = nullptr;
  bool loops = false;
  PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    const char *file = PyUnicode_AsUTF8(code->co_filename);
    if (file == nullptr)
      PyErr_Clear();
    else if (!is_in_library(file))
      site = loops ? nullptr : format(file, PyFrame_GetLineNumber(frame));
    else if (out_layer != nullptr) {
      if (*out_layer == 0) *out_layer = layer_of(frame, file);
      for (const char *folder : kLoops) loops |= std::strstr(file, folder) != nullptr;
    }
    const bool is_user = file != nullptr && !is_in_library(file);
    Py_DECREF(code);
    PyFrameObject *back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
    if (is_user) break;
  }
  Py_XDECREF(frame);
  return site;
}

} // namespace

void register_site() {
  for (const char *name : {"torch", "torch_tpu"}) {
    const auto path = pybind11::module_::import("sys").attr("modules")[name].attr("__path__");
    for (const auto dir : path) library_dirs().push_back(pybind11::cast<std::string>(dir) + "/");
  }
  tt_set_site_hook(python_site);
}

} // namespace torch_tpu
