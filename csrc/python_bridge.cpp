#include "python_bridge.h"

#include <Python.h>
#include <torch/csrc/Exceptions.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "python_frames.h"
#include "record/bridge.h"

namespace tiledev {

namespace {

bool interpreter_alive() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() && !Py_IsFinalizing();
#else
  return Py_IsInitialized() && !_Py_IsFinalizing();
#endif
}

struct Location {
  PyCodeObject* code;
  int instruction;
};

enum class Owner : uint8_t { kUser, kLibrary, kDisplay };

// The source lines that were met, by number. Code objects are kept alive so that a number stays
// what it is; their count is bounded by the size of the program, and by kMax for programs that
// generate code without end.
class Locations {
 public:
  uint32_t number(const PythonFrame& frame) {
    const Key key{frame.code, frame.instruction};
    {
      const std::lock_guard lock(mutex_);
      if (const auto it = numbers_.find(key); it != numbers_.end()) {
        return it->second;
      }
      if (list_.size() >= kMax) {
        return 0;
      }
    }
    keep(frame.code);
    const std::lock_guard lock(mutex_);
    list_.push_back({frame.code, frame.instruction});
    return numbers_.try_emplace(key, static_cast<uint32_t>(list_.size())).first->second;
  }

  Location find(uint32_t number) {
    const std::lock_guard lock(mutex_);
    return number == 0 || number > list_.size() ? Location{} : list_[number - 1];
  }

  // Lines inside of torch say little; whoever called torch is meant.
  Owner owner(PyCodeObject* code) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto it = owners_.find(code); it != owners_.end()) {
        return it->second;
      }
    }
    const Owner owner = keep(code);
    const std::lock_guard lock(mutex_);
    return owners_.try_emplace(code, owner).first->second;
  }

 private:
  struct Key {
    PyCodeObject* code;
    int instruction;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      return std::hash<void*>{}(key.code) * 31 + static_cast<size_t>(key.instruction);
    }
  };

  // Keeps a code object alive and says whose it is.
  static Owner keep(PyCodeObject* code) {
    const pybind11::gil_scoped_acquire gil;
    Py_INCREF(code);
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    if (file == nullptr) {
      PyErr_Clear();
      return Owner::kUser;
    }
    if (std::strstr(file, "/torch/_tensor_str.py") != nullptr) {
      return Owner::kDisplay;
    }
    const bool library =
        std::strstr(file, "/torch/") != nullptr || std::strstr(file, "/tiledev/") != nullptr ||
        std::strncmp(file, "<frozen", 7) == 0 || std::strncmp(file, "<__array", 8) == 0;
    return library ? Owner::kLibrary : Owner::kUser;
  }

  static constexpr size_t kMax = 200000;
  std::mutex mutex_;
  std::vector<Location> list_;
  std::unordered_map<Key, uint32_t, Hash> numbers_;
  std::unordered_map<PyCodeObject*, Owner> owners_;
};

Locations& locations() {
  static auto* instance = new Locations();
  return *instance;
}

// Where an op was last recorded by a thread that runs Python: what autograd's threads report.
std::atomic<uint32_t> last_location{0};

uint32_t capture_location() {
  const PythonFrame top = innermost_frame();
  if (!top) {
    return last_location.load(std::memory_order_relaxed);
  }
  thread_local PythonFrame previous;  // loops record at the same place again and again
  thread_local uint32_t previous_number = 0;
  if (top.code == previous.code && top.instruction == previous.instruction) {
    return previous_number;
  }
  constexpr int kMaxDepth = 32;
  PythonFrame user = top;
  const Owner owner = locations().owner(user.code);
  if (owner == Owner::kDisplay) {
    return kDisplaying;
  }
  bool library = owner == Owner::kLibrary;
  for (int depth = 0; library && depth < kMaxDepth; ++depth) {
    const PythonFrame caller = caller_of(user);
    if (!caller) {
      break;
    }
    user = caller;
    library = locations().owner(user.code) == Owner::kLibrary;
  }
  const uint32_t number = locations().number(library ? top : user);
  if (user.frame == top.frame) {
    previous = top;
    previous_number = number;
  }
  last_location.store(number, std::memory_order_relaxed);
  return number;
}

std::string describe_location(uint32_t number) {
  const Location location = locations().find(number);
  if (location.code == nullptr || !interpreter_alive()) {
    return {};
  }
  const pybind11::gil_scoped_acquire gil;
  const int line = PyCode_Addr2Line(location.code, location.instruction);
#if PY_VERSION_HEX >= 0x030B0000
  const char* function = PyUnicode_AsUTF8(location.code->co_qualname);
#else
  const char* function = PyUnicode_AsUTF8(location.code->co_name);
#endif
  const char* file = PyUnicode_AsUTF8(location.code->co_filename);
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

ErrorKind persist_error(std::exception& error) {
  auto* python = dynamic_cast<python_error*>(&error);
  if (python == nullptr) {
    return ErrorKind::kError;
  }
  python->persist();
  const pybind11::gil_scoped_acquire gil;
  if (python->type == nullptr) {
    return ErrorKind::kError;
  }
  if (PyErr_GivenExceptionMatches(python->type, PyExc_NotImplementedError) != 0) {
    return ErrorKind::kNotImplemented;
  }
  return PyErr_GivenExceptionMatches(python->type, PyExc_Exception) != 0 ? ErrorKind::kError
                                                                         : ErrorKind::kStop;
}

// add_note() shows the note in tracebacks from Python 3.11 on; before that it is an attribute.
void add_note(PyObject* exception, const std::string& note) {
  const pybind11::object error = pybind11::reinterpret_borrow<pybind11::object>(exception);
  try {
    if (pybind11::hasattr(error, "add_note")) {
      error.attr("add_note")(note);
    } else {
      error.attr("__notes__") = pybind11::make_tuple(note);
    }
  } catch (pybind11::error_already_set&) {
    // An exception that takes no attributes goes without.
  }
}

// A Python kernel of another package raises pybind11's or torch's C++ form of a Python exception.
std::exception_ptr with_note(std::exception& error, const std::string& note) {
  auto* python = dynamic_cast<python_error*>(&error);
  auto* bound = dynamic_cast<pybind11::error_already_set*>(&error);
  if (python == nullptr && bound == nullptr) {
    return nullptr;
  }
  const pybind11::gil_scoped_acquire gil;
  if (bound != nullptr) {
    add_note(bound->value().ptr(), note);
    bound->restore();
    python_error copy;
    copy.persist();
    return std::make_exception_ptr(copy);
  }
  if (python->value != nullptr) {
    add_note(python->value, note);
  }
  return std::make_exception_ptr(*python);
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
  b.with_note = &with_note;
}

}  // namespace tiledev
