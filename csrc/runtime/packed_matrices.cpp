#include "runtime/packed_matrices.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "compile/cost_model.h"

namespace tiledev {

MatrixView view_of(const at::Tensor& matrix) {
  return {matrix.const_data_ptr<float>(), matrix.stride(0), matrix.stride(1)};
}

float* PackedMatrix::reserve(size_t floats, c10::Allocator& memory) {
  const std::lock_guard lock(mutex_);
  if (!tried_) {
    tried_ = true;
    try {
      memory_ = c10::Storage(c10::Storage::use_byte_size_t{}, floats * sizeof(float), &memory,
                             /*resizable=*/false);
    } catch (const std::exception&) {
      return nullptr;  // each product packs for itself
    }
  }
  return memory_ ? static_cast<float*>(memory_.mutable_data()) : nullptr;
}

const float* PackedMatrix::get(const at::Tensor& matrix, c10::Allocator& memory) {
  constexpr int64_t kShare = 4;  // panels that a thread takes at a time
  const int64_t rows = matrix.size(0), columns = matrix.size(1), all = panels(columns);
  if (done_.load(std::memory_order_acquire) < all) {
    float* const to = reserve(static_cast<size_t>(packed_size(rows, columns)), memory);
    if (to == nullptr) {
      return nullptr;
    }
    const MatrixView view = view_of(matrix);
    while (true) {
      const int64_t begin = next_.fetch_add(kShare, std::memory_order_relaxed);
      if (begin >= all) {
        break;
      }
      const int64_t end = std::min(all, begin + kShare);
      pack_panels(view, rows, columns, begin, end, to);
      done_.fetch_add(end - begin, std::memory_order_acq_rel);
    }
    while (done_.load(std::memory_order_acquire) < all) {
      std::this_thread::yield();  // for another thread's last panels: microseconds
    }
  }
  return static_cast<const float*>(memory_.data());
}

std::shared_ptr<PackedMatrix> KeptMatrices::find(const TensorMeta& meta, int64_t offset,
                                                 const std::function<int64_t()>& room) {
  for (Entry& entry : entries_) {
    if (entry.offset == offset && entry.sizes == meta.sizes && entry.strides == meta.strides) {
      if (!entry.matrix && entry.nbytes() <= room()) {
        entry.matrix = std::make_shared<PackedMatrix>();
      }
      return entry.matrix;
    }
  }
  constexpr size_t kMost = 16;  // views of a buffer: of a table whose parts are read in turn, say
  if (entries_.size() == kMost) {
    entries_.erase(entries_.begin());
  }
  entries_.push_back({offset, meta.sizes, meta.strides, nullptr});
  return nullptr;
}

int64_t KeptMatrices::nbytes() const {
  int64_t total = 0;
  for (const Entry& entry : entries_) {
    total += entry.matrix ? entry.nbytes() : 0;
  }
  return total;
}

uint64_t AllKeptMatrices::next_id() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

void AllKeptMatrices::ensure(std::shared_ptr<KeptMatrices>& kept) {
  if (kept && kept->owner() == id_) {
    return;
  }
  if (all_.size() == all_.capacity()) {
    std::erase_if(all_, [](const auto& kept) { return kept.expired(); });
    all_.reserve(std::max<size_t>(64, 2 * all_.size()));
  }
  kept = std::make_shared<KeptMatrices>(id_);
  all_.push_back(kept);
}

int64_t AllKeptMatrices::room() const {
  int64_t room = kKeptBytes;
  for (const auto& one : all_) {
    const auto kept = one.lock();
    room -= kept ? kept->nbytes() : 0;
  }
  return room;
}

void AllKeptMatrices::clear() {
  for (const auto& one : all_) {
    if (const auto kept = one.lock()) {
      kept->clear();
    }
  }
}

}  // namespace tiledev
