#pragma once

#include <c10/core/Allocator.h>

namespace tiledev {

class BufferPool;

// The memory that tasks need for themselves: scratch, partial results, temporaries of kernels. It
// comes from the pool's host memory, counts as `work`, not as allocated, and keeps to the pool's
// limit.
class WorkMemory final : public c10::Allocator {
 public:
  explicit WorkMemory(BufferPool& pool) : pool_(pool) {}

  // Memory with arbitrary contents. Throws OutOfMemory.
  c10::DataPtr allocate(size_t nbytes) override;
  void copy_data(void* to, const void* from, size_t count) const override;
  // No longer counts this memory, which came from here, as `work`.
  static void hand_over(c10::DataPtr& memory);
  // Whether there is a limit, so that nothing should be kept for later.
  bool scarce() const;

 private:
  BufferPool& pool_;
};

}  // namespace tiledev
