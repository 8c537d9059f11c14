// CPython's frame layout differs between minor versions; all of that stays in this file.

#define Py_BUILD_CORE 1
#include "python_frames.h"

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000
#undef _PyGC_FINALIZED  // defined twice by CPython's own headers
#include <internal/pycore_frame.h>
#define TILEDEV_HAS_FRAMES 1
#elif PY_VERSION_HEX >= 0x030A0000 && PY_VERSION_HEX < 0x030B0000
#include <frameobject.h>
#endif

namespace tiledev {

namespace {

#ifdef TILEDEV_HAS_FRAMES

using Frame = _PyInterpreterFrame;

Frame* top_frame(PyThreadState* state) {
#if PY_VERSION_HEX >= 0x030D0000
  return state->current_frame;
#else
  return state->cframe != nullptr ? state->cframe->current_frame : nullptr;
#endif
}

PyCodeObject* code_of(Frame* frame) {
#if PY_VERSION_HEX >= 0x030D0000
  return PyCode_Check(frame->f_executable) ? reinterpret_cast<PyCodeObject*>(frame->f_executable)
                                           : nullptr;
#else
  return frame->f_code;
#endif
}

bool usable(Frame* frame) {
#if PY_VERSION_HEX >= 0x030C0000
  return frame->owner != FRAME_OWNED_BY_CSTACK && code_of(frame) != nullptr;
#else
  return code_of(frame) != nullptr;
#endif
}

PythonFrame first_usable(Frame* frame) {
  while (frame != nullptr && !usable(frame)) {
    frame = frame->previous;
  }
  if (frame == nullptr) {
    return {};
  }
  const int unit = static_cast<int>(sizeof(_Py_CODEUNIT));
  return {frame, code_of(frame), _PyInterpreterFrame_LASTI(frame) * unit};
}

#elif PY_VERSION_HEX < 0x030B0000

PythonFrame wrap(PyFrameObject* frame) {
  if (frame == nullptr) {
    return {};
  }
  return {frame, frame->f_code, frame->f_lasti * static_cast<int>(sizeof(_Py_CODEUNIT))};
}

#endif

}  // namespace

PythonFrame innermost_frame() {
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (state == nullptr) {
    return {};
  }
#ifdef TILEDEV_HAS_FRAMES
  return first_usable(top_frame(state));
#elif PY_VERSION_HEX < 0x030B0000
  return wrap(state->frame);
#else
  return {};
#endif
}

PythonFrame caller_of(const PythonFrame& frame) {
#ifdef TILEDEV_HAS_FRAMES
  return first_usable(static_cast<const Frame*>(frame.frame)->previous);
#elif PY_VERSION_HEX < 0x030B0000
  return wrap(static_cast<const PyFrameObject*>(frame.frame)->f_back);
#else
  return {};
#endif
}

}  // namespace tiledev
