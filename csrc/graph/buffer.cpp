#include "graph/buffer.h"

#include <c10/core/CPUAllocator.h>

#include <utility>

namespace tiledev {

void MemoryCounters::add(int64_t nbytes) {
  const int64_t now = allocated.fetch_add(nbytes, std::memory_order_relaxed) + nbytes;
  total_allocated.fetch_add(nbytes, std::memory_order_relaxed);
  allocations.fetch_add(1, std::memory_order_relaxed);
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (now > seen && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
  }
}

void MemoryCounters::remove(int64_t nbytes) {
  allocated.fetch_sub(nbytes, std::memory_order_relaxed);
  total_freed.fetch_add(nbytes, std::memory_order_relaxed);
  frees.fetch_add(1, std::memory_order_relaxed);
}

void MemoryCounters::reset_peak() {
  peak = allocated.load();
}

void MemoryCounters::reset_accumulated() {
  total_allocated = allocated.load();
  total_freed = 0;
}

Buffer::Buffer(BufferPool* pool, size_t nbytes)
    : pool_(pool), id_(pool->next_id()), nbytes_(nbytes), address_(pool->enlist(*this, nbytes)) {}

Buffer::~Buffer() {
  if (has_memory()) {
    pool_->counters().remove(static_cast<int64_t>(counted_));
  }
  pool_->delist(*this, nbytes_);
}

uintptr_t BufferPool::enlist(Buffer& buffer, size_t nbytes) {
  counters_.live_buffers.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  const uintptr_t address = addresses_.allocate(nbytes);
  buffer.previous_ = nullptr;
  buffer.next_ = first_;
  if (first_ != nullptr) {
    first_->previous_ = &buffer;
  }
  first_ = &buffer;
  return address;
}

void BufferPool::delist(Buffer& buffer, size_t nbytes) {
  counters_.live_buffers.fetch_sub(1, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  (buffer.previous_ != nullptr ? buffer.previous_->next_ : first_) = buffer.next_;
  if (buffer.next_ != nullptr) {
    buffer.next_->previous_ = buffer.previous_;
  }
  addresses_.release(buffer.address_, nbytes);
}

c10::intrusive_ptr<Buffer> BufferPool::find(uintptr_t address) {
  const std::lock_guard lock(mutex_);
  for (Buffer* buffer = first_; buffer != nullptr; buffer = buffer->next_) {
    if (buffer->address_ == address) {
      // It may be on its way out: then nobody may take hold of it again.
      return c10::weak_intrusive_ptr<Buffer>::reclaim_copy(buffer).lock();
    }
  }
  return {};
}

const c10::Storage& Buffer::memory() {
  if (!has_memory()) {
    const std::lock_guard lock(pool_->memory_mutex(id_));
    if (!has_memory()) {
      memory_ = c10::Storage(c10::Storage::use_byte_size_t{}, nbytes_, c10::GetCPUAllocator(),
                             /*resizable=*/true);
      counted_ = nbytes_;
      pool_->counters().add(static_cast<int64_t>(counted_));
      has_memory_.store(true, std::memory_order_release);
    }
  }
  return memory_;
}

void Buffer::adopt(c10::Storage memory) {
  if (has_memory()) {
    pool_->counters().remove(static_cast<int64_t>(counted_));
  }
  memory_ = std::move(memory);
  counted_ = memory_.nbytes();
  pool_->counters().add(static_cast<int64_t>(counted_));
  has_memory_.store(true, std::memory_order_release);
}

}  // namespace tiledev
