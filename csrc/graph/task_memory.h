#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>

#include "graph/work_memory.h"

namespace tiledev {

// Where kernels that run in tasks get the memory of large tensors that they make for themselves:
// results of functional calls, what oneDNN lays out anew. ATen's allocator gives such blocks back
// to the system each time, and each of their pages costs a fault when it is touched again; the
// pool's host memory keeps them.
//
// c10 has one CPU allocator for the process, so this one stands before it, and hands everything on
// that is small or is asked for outside of a task.
class TaskMemory {
 public:
  // From here to its end, on this thread, large blocks come from this memory.
  class Scope {
   public:
    explicit Scope(WorkMemory& memory);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    WorkMemory* const before_;
  };

  // Memory where results of a call should lie. Whoever asks for as many bytes on this thread, first
  // of all the kernel for its result, gets it. If another takes it, it is no more than a
  // temporary's memory, and the caller copies the result there afterwards.
  class Places {
   public:
    Places();
    ~Places();
    Places(const Places&) = delete;
    Places& operator=(const Places&) = delete;

    // Within a large block of a HostMemory; small ones are not worth it, and ignored.
    void add(void* data, size_t nbytes);
    // Takes one that has this size; null if there is none.
    void* take(size_t nbytes);

   private:
    struct Place {
      void* data;
      size_t nbytes;
    };
    c10::SmallVector<Place, 4> free_;
  };

  // Makes it the process' CPU allocator; once. Not if the one there is cannot be stood before.
  static void install();

  // Whether this is such a block; from now on it does not count as `work`: a buffer takes it over.
  static bool hand_over(const c10::DataPtr& data);
};

}  // namespace tiledev
