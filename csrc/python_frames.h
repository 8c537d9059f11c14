#pragma once

#include <Python.h>

namespace tiledev {

// One frame of the calling thread's Python stack. Can be walked without the GIL, which torch gives
// up before it calls kernels: a thread's own frames do not change while it is in here.
struct PythonFrame {
  const void* frame = nullptr;
  PyCodeObject* code = nullptr;
  int instruction = 0;  // for PyCode_Addr2Line

  explicit operator bool() const { return frame != nullptr; }
};

PythonFrame innermost_frame();
PythonFrame caller_of(const PythonFrame& frame);

}  // namespace tiledev
