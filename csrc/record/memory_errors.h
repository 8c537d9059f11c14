#pragma once

#include "graph/out_of_memory.h"

namespace tiledev {

// Adds the largest live buffers and the source lines that made them to the error's text. Takes the
// interpreter's lock: not for workers, and not under the session's lock.
void name_largest_buffers(OutOfMemory& error);

// f(), whose out-of-memory errors name them.
template <typename F>
auto with_largest_buffers(F&& f) {
  try {
    return f();
  } catch (OutOfMemory& error) {
    name_largest_buffers(error);
    throw;
  }
}

}  // namespace tiledev
