#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <optional>

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

  // Memory where results of a call should lie. A kernel may ask for temporaries of the same size
  // before it asks for a result, but does so in each call alike: the caller says which request to
  // give it to, and learns from each call which it should have been. Where that was wrong, the
  // result lies elsewhere, and the caller copies it.
  class Places {
   public:
    Places();
    ~Places();
    Places(const Places&) = delete;
    Places& operator=(const Places&) = delete;

    // For the request number `turn` for so many bytes. Within a large block of a HostMemory; small
    // ones are not worth it, and ignored.
    void add(void* data, size_t nbytes, uint32_t turn);
    // From now on requests go elsewhere again.
    void end();
    // The place for this request, or null.
    void* take(size_t nbytes);
    // Notes what a request got that had no place.
    void note(void* data, size_t nbytes);
    // The number of the last request that got this memory, among those for as many bytes.
    std::optional<uint32_t> turn_of(const void* data) const;

   private:
    struct Place {
      void* data;
      size_t nbytes;
      uint32_t turn;
    };
    uint32_t requests(size_t nbytes) const;

    c10::SmallVector<Place, 4> places_;
    c10::SmallVector<Place, 4> given_;  // to requests of these sizes, in order
  };

  // Makes it the process' CPU allocator; once. Not if the one there is cannot be stood before.
  static void install();

  // Whether this is such a block; from now on it does not count as `work`: a buffer takes it over.
  static bool hand_over(const c10::DataPtr& data);
};

}  // namespace tiledev
