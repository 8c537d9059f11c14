#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "compile/step.h"
#include "kernels/products.h"

namespace tiledev {

MatrixView view_of(const at::Tensor& matrix);

// A matrix as kernels/products reads it; packed by the first who need it.
class PackedMatrix {
 public:
  // Threads that need it at the same time share the work. Null if there is no memory for it.
  const float* get(const at::Tensor& matrix, c10::Allocator& memory);

 private:
  float* reserve(size_t floats, c10::Allocator& memory);

  std::mutex mutex_;  // for the memory
  bool tried_ = false;
  c10::Storage memory_;
  std::atomic<int64_t> next_{0}, done_{0};  // panels
};

// Those of a run of a segment, by their numbers in Segment::packed.
using PackedMatrices = std::vector<std::shared_ptr<PackedMatrix>>;

// Packed matrices of a buffer that stay while its value does: of weights between the steps of
// inference, or of accumulated gradients. One is kept once a second run meets the same
// value: a weight that changes in each step is not worth the memory.
class KeptMatrices {
 public:
  explicit KeptMatrices(uint64_t owner) : owner_(owner) {}
  // The AllKeptMatrices that made it.
  uint64_t owner() const { return owner_; }
  // The packed matrix of the view of the buffer that begins at `offset`, for the next run of a
  // plan. Null at first, and if it is larger than `room`.
  std::shared_ptr<PackedMatrix> find(const TensorMeta& meta, int64_t offset,
                                     const std::function<int64_t()>& room);
  void clear() { entries_.clear(); }
  int64_t nbytes() const;

 private:
  struct Entry {
    int64_t offset = 0;
    Dims sizes, strides;
    std::shared_ptr<PackedMatrix> matrix;

    int64_t nbytes() const { return packed_size(sizes[0], sizes[1]) * int64_t{sizeof(float)}; }
  };
  const uint64_t owner_;
  std::vector<Entry> entries_;
};

// Those of all buffers. A buffer may outlive it and come to another one.
class AllKeptMatrices {
 public:
  // Gives a buffer one of its own, unless `kept` is that.
  void ensure(std::shared_ptr<KeptMatrices>& kept);
  // How many bytes more may be kept.
  int64_t room() const;
  void clear();

 private:
  const uint64_t id_ = next_id();
  static uint64_t next_id();

  std::vector<std::weak_ptr<KeptMatrices>> all_;
};

}  // namespace tiledev
