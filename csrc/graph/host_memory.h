#pragma once

#include <c10/core/Allocator.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "graph/memory_counters.h"

namespace tiledev {

// The host memory behind buffers, and what tasks need besides (scratch, partial results). A freed
// block stays in a cache for the next one of its size: fresh memory costs a fault for each page,
// which is more than most ops cost that fill it.
//
// Blocks below 1 MiB come in classes, four to each power of two, from malloc. Larger ones are
// mapped for themselves, in huge pages where the system has them, and serve any request of which
// they waste at most an eighth. The cache holds at most what was in use at a time lately, or 256
// MiB.
//
// Thread safe. Never destroyed before its last block.
class HostMemory final : public c10::Allocator {
 public:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kLarge = size_t{1} << 20;  // from here on blocks are mapped one by one

  explicit HostMemory(MemoryCounters& counters) : counters_(counters) {}

  // Memory with arbitrary contents; null for 0 bytes. Throws c10::OutOfMemoryError.
  c10::DataPtr allocate(size_t nbytes) override;
  // The same, but null where the system has no more; leaves at most `keep` bytes cached, and gives
  // the others back before it asks the system for more.
  c10::DataPtr try_allocate(size_t nbytes, size_t keep = SIZE_MAX);
  void copy_data(void* to, const void* from, size_t count) const override;

  // Whether this memory came from a HostMemory.
  static bool owns(const c10::DataPtr& data) { return data.get_deleter() == &release; }

  // Whether this address lies in a large block of any HostMemory.
  static bool contains(const void* address);
  // Keep everyone else from asking that, over a fork.
  static void lock_ranges();
  static void unlock_ranges();

  // Gives cached blocks back to the system until at most `keep` bytes are cached, those first that
  // were freed first.
  void trim(size_t keep);
  size_t cached_nbytes() const { return static_cast<size_t>(cached_.load()); }

  struct Reuse {
    uint64_t hits = 0;    // blocks that came from the cache
    uint64_t misses = 0;  // and from the system
  };
  Reuse reuse();

 private:
  struct Block;
  struct alignas(64) Shelf {
    std::mutex mutex;
    Block* first = nullptr;
    Reuse reuse;
  };
  static constexpr size_t kClasses = 52;
  static constexpr size_t kShelves = 8;  // of each class: threads seldom meet at one

  static void release(void* context);
  static size_t own_shelf();
  Block* take_small(size_t size_class);
  Block* take_large(size_t nbytes, size_t most);
  Block* create(size_t nbytes, size_t size_class);
  void cache(Block* block);
  void destroy(Block* block);
  Block* uncache_large(size_t keep);
  Block* uncache_small(size_t keep);
  void note_use();

  MemoryCounters& counters_;
  std::atomic<int64_t> reserved_{0};  // bytes from the system
  std::atomic<int64_t> cached_{0};    // those that nobody uses; changed with the lists' locks held
  std::array<std::array<Shelf, kShelves>, kClasses> small_;

  std::mutex large_mutex_;
  std::map<std::pair<size_t, uint64_t>, Block*> large_;  // by size, then the newest first
  std::map<uint64_t, Block*> large_by_age_;
  uint64_t freed_ = 0;  // the age of a large block: how many were freed before it
  Reuse large_reuse_;

  std::mutex peak_mutex_;
  std::chrono::steady_clock::time_point window_start_{};
  int64_t window_peak_ = 0;
  int64_t previous_peak_ = 0;
  std::atomic<int64_t> bound_{int64_t{256} << 20};
};

}  // namespace tiledev
