#include "graph/host_memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <iterator>
#include <new>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define TILEDEV_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TILEDEV_ASAN 1
#endif
#endif
#ifdef TILEDEV_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace tiledev {

struct alignas(64) HostMemory::Block {
  HostMemory* owner;
  void* data;
  size_t nbytes;
  size_t size_class;      // kClasses: a large block
  Block* next = nullptr;  // in a list of cached blocks
  uint64_t age = 0;       // in the cache of large blocks
};

namespace {

constexpr size_t kLarge = HostMemory::kLarge;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMost = size_t{1} << 60;  // beyond it sums could overflow
constexpr int64_t kMinBound = int64_t{256} << 20;
constexpr std::chrono::seconds kWindow{30};

// 64, 128, 192, 256, then four steps to each power of two: at most a quarter is wasted.
constexpr size_t class_of(size_t nbytes) {
  if (nbytes <= 256) {
    return (std::max(nbytes, size_t{1}) - 1) / 64;
  }
  const auto power = static_cast<size_t>(std::bit_width(nbytes - 1)) - 1;
  const size_t step = (nbytes - 1 - (size_t{1} << power)) >> (power - 2);
  return 4 + (power - 8) * 4 + step;
}

constexpr size_t class_nbytes(size_t size_class) {
  if (size_class < 4) {
    return (size_class + 1) * 64;
  }
  const size_t power = 8 + (size_class - 4) / 4;
  return (size_t{1} << power) + ((size_class % 4 + 1) << (power - 2));
}

static_assert(class_of(1) == 0 && class_of(256) == 3 && class_of(257) == 4);
static_assert(class_nbytes(class_of(257)) == 320 && class_nbytes(class_of(320)) == 320);
static_assert(class_of(kLarge - 1) == 51 && class_nbytes(51) == kLarge);

// Eighths of a power of two, and from 16 MiB on whole huge pages.
constexpr size_t large_nbytes(size_t nbytes) {
  const size_t step = std::min(kHugePage, std::bit_floor(nbytes) / 8);
  return (nbytes + step - 1) / step * step;
}

void* aligned(size_t alignment, size_t nbytes) {
  void* data = nullptr;
  return posix_memalign(&data, alignment, nbytes) == 0 ? data : nullptr;
}

// Huge pages cut the number of faults by 512; they need the alignment.
#ifdef MADV_HUGEPAGE
void* map_large(size_t nbytes) {
  const size_t alignment = nbytes >= kHugePage ? kHugePage : 0;
  void* base =
      mmap(nullptr, nbytes + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return nullptr;
  }
  if (alignment == 0) {
    return base;
  }
  const auto begin = reinterpret_cast<uintptr_t>(base);
  const uintptr_t data = (begin + alignment - 1) / alignment * alignment;
  if (data > begin) {
    munmap(base, data - begin);
  }
  munmap(reinterpret_cast<void*>(data + nbytes), begin + alignment - data);
  madvise(reinterpret_cast<void*>(data), nbytes, MADV_HUGEPAGE);
  return reinterpret_cast<void*>(data);
}

void unmap_large(void* data, size_t nbytes) {
  munmap(data, nbytes);
}
#else
void* map_large(size_t nbytes) {
  return aligned(kHugePage, nbytes);
}

void unmap_large(void* data, size_t) {
  std::free(data);
}
#endif

// The large blocks of all HostMemories.
class Ranges {
 public:
  static Ranges& get() {
    static auto* ranges = new Ranges();
    return *ranges;
  }

  void add(const void* data, size_t nbytes) {
    const std::lock_guard lock(mutex_);
    ends_[reinterpret_cast<uintptr_t>(data)] = reinterpret_cast<uintptr_t>(data) + nbytes;
  }
  void remove(const void* data) {
    const std::lock_guard lock(mutex_);
    ends_.erase(reinterpret_cast<uintptr_t>(data));
  }
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  bool contain(const void* address) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    const std::lock_guard lock(mutex_);
    const auto next = ends_.upper_bound(at);
    return next != ends_.begin() && at < std::prev(next)->second;
  }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, uintptr_t> ends_;  // by beginning
};

// Under the address sanitizer a cached block is as forbidden as a freed one.
void forbid([[maybe_unused]] void* data, [[maybe_unused]] size_t nbytes) {
#ifdef TILEDEV_ASAN
  __asan_poison_memory_region(data, nbytes);
#endif
}

void permit([[maybe_unused]] void* data, [[maybe_unused]] size_t nbytes) {
#ifdef TILEDEV_ASAN
  __asan_unpoison_memory_region(data, nbytes);
#endif
}

}  // namespace

bool HostMemory::contains(const void* address) {
  return Ranges::get().contain(address);
}

void HostMemory::lock_ranges() {
  Ranges::get().lock();
}

void HostMemory::unlock_ranges() {
  Ranges::get().unlock();
}

// ---- taking and releasing ---------------------------------------------------------------------

c10::DataPtr HostMemory::allocate(size_t nbytes) {
  c10::DataPtr data = try_allocate(nbytes);
  TORCH_CHECK_WITH(OutOfMemoryError, data || nbytes == 0,
                   "[tiledev] out of memory: the system has no ", nbytes, " bytes more");
  return data;
}

c10::DataPtr HostMemory::try_allocate(size_t nbytes, size_t keep) {
  if (nbytes == 0 || nbytes > kMost) {
    return {nullptr, c10::Device(c10::kCPU)};
  }
  const size_t size_class = nbytes < kLarge ? class_of(nbytes) : kClasses;
  const size_t rounded = nbytes < kLarge ? class_nbytes(size_class) : large_nbytes(nbytes);
  Block* block = nbytes < kLarge ? take_small(size_class)
                                 : take_large(rounded, std::max(rounded, nbytes + nbytes / 8));
  if (keep != SIZE_MAX) {
    trim(keep);
  }
  if (block == nullptr) {
    block = create(rounded, size_class);
  }
  if (block == nullptr) {
    return {nullptr, c10::Device(c10::kCPU)};
  }
  if (nbytes >= kLarge) {
    note_use();
  }
  permit(block->data, block->nbytes);
  return {block->data, block, &HostMemory::release, c10::Device(c10::kCPU)};
}

void HostMemory::copy_data(void* to, const void* from, size_t count) const {
  default_copy_data(to, from, count);
}

// A thread looks at its own shelf first. One thread may free what another one takes, so it looks at
// the others before it asks the system.
HostMemory::Block* HostMemory::take_small(size_t size_class) {
  const size_t own = own_shelf();
  for (size_t i = 0; i < kShelves; ++i) {
    Shelf& shelf = small_[size_class][(own + i) % kShelves];
    const std::lock_guard lock(shelf.mutex);
    if (Block* block = shelf.first) {
      shelf.first = block->next;
      ++shelf.reuse.hits;
      cached_.fetch_sub(static_cast<int64_t>(block->nbytes), std::memory_order_relaxed);
      return block;
    }
    shelf.reuse.misses += i + 1 == kShelves ? 1 : 0;
  }
  return nullptr;
}

size_t HostMemory::own_shelf() {
  static std::atomic<size_t> threads{0};
  thread_local const size_t own = threads.fetch_add(1, std::memory_order_relaxed) % kShelves;
  return own;
}

HostMemory::Block* HostMemory::take_large(size_t nbytes, size_t most) {
  const std::lock_guard lock(large_mutex_);
  const auto found = large_.lower_bound({nbytes, 0});
  if (found == large_.end() || found->first.first > most) {
    ++large_reuse_.misses;
    return nullptr;
  }
  Block* block = found->second;
  large_.erase(found);
  large_by_age_.erase(block->age);
  ++large_reuse_.hits;
  cached_.fetch_sub(static_cast<int64_t>(block->nbytes), std::memory_order_relaxed);
  return block;
}

void HostMemory::release(void* context) {
  auto* block = static_cast<Block*>(context);
  block->owner->cache(block);
}

void HostMemory::cache(Block* block) {
  forbid(block->data, block->nbytes);
  const auto nbytes = static_cast<int64_t>(block->nbytes);
  int64_t cached = 0;
  if (block->size_class == kClasses) {
    const std::lock_guard lock(large_mutex_);
    block->age = ++freed_;
    large_.emplace(std::pair(block->nbytes, UINT64_MAX - block->age), block);
    large_by_age_.emplace(block->age, block);
    cached = cached_.fetch_add(nbytes, std::memory_order_relaxed) + nbytes;
  } else {
    Shelf& shelf = small_[block->size_class][own_shelf()];
    const std::lock_guard lock(shelf.mutex);
    block->next = std::exchange(shelf.first, block);
    cached = cached_.fetch_add(nbytes, std::memory_order_relaxed) + nbytes;
  }
  if (const int64_t bound = bound_.load(std::memory_order_relaxed); cached > bound) {
    trim(static_cast<size_t>(bound));
  }
}

// ---- the system -------------------------------------------------------------------------------

HostMemory::Block* HostMemory::create(size_t nbytes, size_t size_class) {
  // The description of a small block stands before it, so that a malloc gives both.
  const bool large = size_class == kClasses;
  const auto get = [&] {
    return large ? map_large(nbytes) : aligned(kAlignment, sizeof(Block) + nbytes);
  };
  void* memory = get();
  if (memory == nullptr && cached_nbytes() > 0) {
    counters_.retries.fetch_add(1, std::memory_order_relaxed);
    trim(0);
    memory = get();
  }
  if (memory == nullptr) {
    return nullptr;
  }
  Block* block = large ? new Block{this, memory, nbytes, size_class}
                       : new (memory) Block{this, static_cast<char*>(memory) + sizeof(Block),
                                            nbytes, size_class};
  if (large) {
    Ranges::get().add(memory, nbytes);
  }
  reserved_.fetch_add(static_cast<int64_t>(nbytes), std::memory_order_relaxed);
  counters_.reserved.add(static_cast<int64_t>(nbytes));
  counters_.segments.add(1);
  if (!large) {
    note_use();
  }
  return block;
}

void HostMemory::destroy(Block* block) {
  const auto nbytes = static_cast<int64_t>(block->nbytes);
  reserved_.fetch_sub(nbytes, std::memory_order_relaxed);
  counters_.reserved.remove(nbytes);
  counters_.segments.remove(1);
  permit(block->data, block->nbytes);
  if (block->size_class == kClasses) {
    Ranges::get().remove(block->data);
    unmap_large(block->data, block->nbytes);
    delete block;
  } else {
    std::free(block);
  }
}

// ---- the bound --------------------------------------------------------------------------------

void HostMemory::trim(size_t keep) {
  if (cached_nbytes() <= keep) {
    return;
  }
  // Unmapping is slow: not under the locks.
  for (Block* dropped : {uncache_large(keep), uncache_small(keep)}) {
    while (dropped != nullptr) {
      destroy(std::exchange(dropped, dropped->next));
    }
  }
}

HostMemory::Block* HostMemory::uncache_large(size_t keep) {
  Block* dropped = nullptr;
  const std::lock_guard lock(large_mutex_);
  while (cached_nbytes() > keep && !large_by_age_.empty()) {
    Block* block = large_by_age_.begin()->second;
    large_by_age_.erase(large_by_age_.begin());
    large_.erase({block->nbytes, UINT64_MAX - block->age});
    cached_.fetch_sub(static_cast<int64_t>(block->nbytes), std::memory_order_relaxed);
    block->next = std::exchange(dropped, block);
  }
  return dropped;
}

HostMemory::Block* HostMemory::uncache_small(size_t keep) {
  Block* dropped = nullptr;
  for (size_t i = kClasses * kShelves; i-- > 0 && cached_nbytes() > keep;) {
    Shelf& shelf = small_[i / kShelves][i % kShelves];
    const std::lock_guard lock(shelf.mutex);
    while (cached_nbytes() > keep && shelf.first != nullptr) {
      Block* block = std::exchange(shelf.first, shelf.first->next);
      cached_.fetch_sub(static_cast<int64_t>(block->nbytes), std::memory_order_relaxed);
      block->next = std::exchange(dropped, block);
    }
  }
  return dropped;
}

// The cache may hold what was in use at a time during this window or the one before it, so that a
// training loop finds all of its blocks again, and a phase that took more is forgotten.
void HostMemory::note_use() {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(peak_mutex_);
  if (now - window_start_ > kWindow) {
    window_start_ = now;
    previous_peak_ = std::exchange(window_peak_, 0);
  }
  window_peak_ = std::max(window_peak_, reserved_.load() - cached_.load());
  bound_ = std::max({kMinBound, previous_peak_, window_peak_});
}

HostMemory::Reuse HostMemory::reuse() {
  Reuse sum;
  const auto add = [&](std::mutex& mutex, const Reuse& reuse) {
    const std::lock_guard lock(mutex);
    sum.hits += reuse.hits;
    sum.misses += reuse.misses;
  };
  add(large_mutex_, large_reuse_);
  for (auto& shelves : small_) {
    for (Shelf& shelf : shelves) {
      add(shelf.mutex, shelf.reuse);
    }
  }
  return sum;
}

}  // namespace tiledev
