#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace tiledev {

enum class ErrorKind {
  kError,
  kNotImplemented,
  kStop,  // Ctrl-C or exit: nobody may swallow it
};

// Ops that only serve to display a tensor run at once: looking leaves nothing behind.
constexpr uint32_t kDisplaying = UINT32_MAX;

// What the recorder needs of the language that drives it. The Python bindings install theirs; the
// defaults serve plain C++ programs. Everything here may be called with or without the GIL, from
// any thread but a worker.
struct Bridge {
  // A small number for the source line that is being executed; 0 if unknown, kDisplaying if the
  // interpreter is formatting a tensor for display.
  uint32_t (*capture_location)() = [] { return uint32_t{0}; };
  // "file.py:12 in forward", or an empty string.
  std::string (*describe_location)(uint32_t) = [](uint32_t) { return std::string(); };
  // Gives up the interpreter lock around a blocking wait; null if it was not held.
  void* (*release_interpreter)() = [] { return static_cast<void*>(nullptr); };
  void (*restore_interpreter)(void*) = [](void*) {};
  // Throws if the user asked to stop (Ctrl-C).
  void (*check_interrupt)() = [] {};
  // Makes an exception of the interpreter independent of the interpreter's state, so that it can be
  // kept or dropped, and says what it is.
  ErrorKind (*persist_error)(std::exception&) = [](std::exception&) { return ErrorKind::kError; };
  // If it is an exception of the interpreter: the same with a note on where it came from. Else
  // null.
  std::exception_ptr (*with_note)(std::exception&, const std::string&) =
      [](std::exception&, const std::string&) { return std::exception_ptr(); };
};

Bridge& bridge();

// Blocking waits happen in the scope of one of these.
class WithoutInterpreter {
 public:
  WithoutInterpreter() : state_(bridge().release_interpreter()) {}
  ~WithoutInterpreter() { bridge().restore_interpreter(state_); }
  WithoutInterpreter(const WithoutInterpreter&) = delete;
  WithoutInterpreter& operator=(const WithoutInterpreter&) = delete;

 private:
  void* state_;
};

}  // namespace tiledev
