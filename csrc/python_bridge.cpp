#include "python_bridge.h"

#include <Python.h>
#include <frameobject.h>
#include <torch/csrc/Exceptions.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "record/bridge.h"

namespace tiledev {

namespace {

struct Location {
  PyCodeObject* code;
  int instruction;
};

struct LocationHash {
  size_t operator()(const std::pair<PyCodeObject*, int>& key) const {
    return std::hash<void*>{}(key.first) * 31 + static_cast<size_t>(key.second);
  }
};

// The source lines that were met, by number. Code objects are kept alive so that a number stays
// what it is; the count is bounded by the size of the program, and by kMax for programs that
// generate code without end. Used under the GIL.
class Locations {
 public:
  uint32_t number(PyCodeObject* code, int instruction) {
    const auto key = std::make_pair(code, instruction);
    if (const auto it = numbers_.find(key); it != numbers_.end()) {
      return it->second;
    }
    if (list_.size() >= kMax) {
      return 0;
    }
    Py_INCREF(code);
    list_.push_back({code, instruction});
    const auto number = static_cast<uint32_t>(list_.size());
    numbers_.emplace(key, number);
    return number;
  }

  const Location* find(uint32_t number) const {
    return number == 0 || number > list_.size() ? nullptr : &list_[number - 1];
  }

  // Lines inside of torch say little; whoever called torch is meant.
  bool is_library(PyCodeObject* code) {
    const auto [it, fresh] = library_.try_emplace(code, false);
    if (fresh) {
      Py_INCREF(code);
      const char* file = PyUnicode_AsUTF8(code->co_filename);
      if (file == nullptr) {
        PyErr_Clear();
      } else {
        it->second = std::strstr(file, "/torch/") != nullptr ||
                     std::strstr(file, "/tiledev/") != nullptr || file[0] == '<';
      }
    }
    return it->second;
  }

 private:
  static constexpr size_t kMax = 200000;
  std::vector<Location> list_;
  std::unordered_map<std::pair<PyCodeObject*, int>, uint32_t, LocationHash> numbers_;
  std::unordered_map<PyCodeObject*, bool> library_;
};

Locations& locations() {
  static auto* instance = new Locations();
  return *instance;
}

// Where the last op was recorded by a thread that runs Python: what backward's threads report.
std::atomic<uint32_t> last_location{0};

bool interpreter_alive() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() && !Py_IsFinalizing();
#else
  return Py_IsInitialized() && !_Py_IsFinalizing();
#endif
}

uint32_t capture_location() {
  if (!PyGILState_Check()) {
    return last_location.load(std::memory_order_relaxed);
  }
  PyFrameObject* frame = PyEval_GetFrame();  // borrowed
  if (frame == nullptr) {
    return last_location.load(std::memory_order_relaxed);
  }
  Py_INCREF(frame);
  uint32_t number = 0;
  for (int depth = 0; frame != nullptr && depth < 32; ++depth) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const bool library = locations().is_library(code);
    if (!library || number == 0) {
#if PY_VERSION_HEX >= 0x030B0000
      number = locations().number(code, PyFrame_GetLasti(frame));
#else
      number = locations().number(code, PyFrame_GetLineNumber(frame));
#endif
    }
    Py_DECREF(code);
    if (!library) {
      break;
    }
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  last_location.store(number, std::memory_order_relaxed);
  return number;
}

std::string describe_location(uint32_t number) {
  if (number == 0 || !interpreter_alive()) {
    return {};
  }
  const pybind11::gil_scoped_acquire gil;
  const Location* location = locations().find(number);
  if (location == nullptr) {
    return {};
  }
#if PY_VERSION_HEX >= 0x030B0000
  const int line = PyCode_Addr2Line(location->code, location->instruction);
  const char* function = PyUnicode_AsUTF8(location->code->co_qualname);
#else
  const int line = location->instruction;
  const char* function = PyUnicode_AsUTF8(location->code->co_name);
#endif
  const char* file = PyUnicode_AsUTF8(location->code->co_filename);
  if (file == nullptr || function == nullptr) {
    PyErr_Clear();
    return {};
  }
  return std::string(file) + ":" + std::to_string(line) + " in " + function;
}

void* release_interpreter() {
  return interpreter_alive() && PyGILState_Check() ? PyEval_SaveThread() : nullptr;
}

void restore_interpreter(void* state) {
  if (state != nullptr) {
    PyEval_RestoreThread(static_cast<PyThreadState*>(state));
  }
}

void check_interrupt() {
  if (!interpreter_alive()) {
    return;
  }
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) {
    python_error error;
    error.persist();
    throw error;
  }
}

bool persist_error(std::exception& error) {
  auto* python = dynamic_cast<python_error*>(&error);
  if (python == nullptr) {
    return false;
  }
  python->persist();
  const pybind11::gil_scoped_acquire gil;
  return python->type != nullptr &&
         PyErr_GivenExceptionMatches(python->type, PyExc_NotImplementedError) != 0;
}

// torch formats tensors of foreign devices with ops on the device itself.
bool is_printing() {
  if (!PyGILState_Check()) {
    return false;
  }
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame == nullptr) {
    return false;
  }
  PyCodeObject* code = PyFrame_GetCode(frame);
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  const bool printing = file != nullptr && std::strstr(file, "torch/_tensor_str.py") != nullptr;
  if (file == nullptr) {
    PyErr_Clear();
  }
  Py_DECREF(code);
  return printing;
}

}  // namespace

void install_python_bridge() {
  Bridge& b = bridge();
  b.capture_location = &capture_location;
  b.describe_location = &describe_location;
  b.release_interpreter = &release_interpreter;
  b.restore_interpreter = &restore_interpreter;
  b.check_interrupt = &check_interrupt;
  b.persist_error = &persist_error;
  b.is_printing = &is_printing;
}

}  // namespace tiledev
