#include "graph/buffer.h"

#include <algorithm>
#include <utility>

#include "graph/task_memory.h"

namespace tiledev {

namespace {

constexpr const char* kNoMore = "but the system has no more. Free tensors";

}  // namespace

Buffer::Buffer(BufferPool* pool, size_t nbytes)
    : pool_(pool), id_(pool->next_id()), nbytes_(nbytes), address_(pool->enlist(*this, nbytes)) {}

Buffer::~Buffer() {
  drop_memory();
  pool_->delist(*this, nbytes_);
}

uintptr_t BufferPool::enlist(Buffer& buffer, size_t nbytes) {
  std::unique_lock lock(mutex_);
  const uintptr_t address = addresses_.allocate(nbytes);
  if (address == 0) {
    lock.unlock();
    refuse(nbytes, "but there are addresses for " + readable_nbytes(addresses_.nbytes()) +
                       " in all. Free tensors");
  }
  counters_.live_buffers.fetch_add(1, std::memory_order_relaxed);
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

std::vector<LiveBuffer> BufferPool::largest() {
  constexpr size_t kShown = 5;
  const auto larger = [](const LiveBuffer& a, const LiveBuffer& b) { return a.nbytes > b.nbytes; };
  std::vector<LiveBuffer> found;
  const std::lock_guard lock(mutex_);
  for (Buffer* buffer = first_; buffer != nullptr; buffer = buffer->next_) {
    const bool small = found.size() == kShown && buffer->nbytes_ <= found.back().nbytes;
    if (small || buffer->nbytes_ == 0 || !buffer->has_memory()) {
      continue;
    }
    const LiveBuffer live{buffer->nbytes_, buffer->origin};
    found.insert(std::upper_bound(found.begin(), found.end(), live, larger), live);
    found.resize(std::min(found.size(), kShown));
  }
  return found;
}

// ---- memory -----------------------------------------------------------------------------------

void BufferPool::set_limit(int64_t nbytes) {
  limit_.store(nbytes, std::memory_order_relaxed);
  host_memory_.trim(cache_room());
}

void BufferPool::charge(size_t nbytes) {
  const int64_t most = limit() == kNoLimit ? kNoLimit : limit() - counters_.work.current();
  if (!counters_.allocated.add_within(static_cast<int64_t>(nbytes), most)) {
    refuse_by_limit(nbytes);
  }
  counters_.buffers.add(1);
}

int64_t BufferPool::room() const {
  if (limit() == kNoLimit) {
    return kNoLimit;
  }
  return std::max(limit() - counters_.allocated.current() - counters_.work.current(), int64_t{0});
}

size_t BufferPool::cache_room() const {
  return limit() == kNoLimit ? SIZE_MAX : static_cast<size_t>(room());
}

c10::DataPtr BufferPool::take_for_work(size_t nbytes) {
  if (static_cast<int64_t>(nbytes) > room()) {
    refuse_by_limit(nbytes);
  }
  c10::DataPtr data = host_memory_.try_allocate(nbytes, cache_room());
  if (!data && nbytes > 0) {
    refuse(nbytes, kNoMore);
  }
  return data;
}

c10::Storage BufferPool::allocate(size_t nbytes) {
  charge(nbytes);
  c10::DataPtr data = host_memory_.try_allocate(nbytes, cache_room());
  if (!data && nbytes > 0) {
    counters_.allocated.remove(static_cast<int64_t>(nbytes));
    counters_.buffers.remove(1);
    refuse(nbytes, kNoMore);
  }
  // A task may resize the storage, with this allocator.
  return c10::Storage(c10::Storage::use_byte_size_t{}, nbytes, std::move(data), &host_memory_,
                      /*resizable=*/true);
}

void BufferPool::refuse_by_limit(size_t nbytes) {
  refuse(nbytes, "but memory_limit is " + readable_nbytes(static_cast<size_t>(limit())) +
                     ". Free tensors, or raise the limit (tiledev.init_context)");
}

void BufferPool::refuse(size_t nbytes, const std::string& why) {
  counters_.failures.fetch_add(1, std::memory_order_relaxed);
  const auto allocated = static_cast<size_t>(counters_.allocated.current());
  throw OutOfMemory("[tiledev] out of memory: asked for " + readable_nbytes(nbytes) + ", with " +
                        readable_nbytes(allocated) + " allocated, " + why,
                    largest());
}

const c10::Storage& Buffer::memory() {
  if (!has_memory()) {
    const std::lock_guard lock(pool_->memory_mutex(id_));
    if (!has_memory()) {
      take(pool_->allocate(nbytes_), /*own=*/true);
    }
  }
  return memory_;
}

void Buffer::adopt(c10::Storage memory) {
  // It counts once: as the buffer's.
  const bool own = TaskMemory::hand_over(memory.data_ptr());
  pool_->charge(memory.nbytes());
  drop_memory();
  take(std::move(memory), own || HostMemory::owns(memory.data_ptr()));
  pool_->host_memory().trim(pool_->cache_room());
}

void Buffer::check_room() const {
  if (!has_memory() && static_cast<int64_t>(nbytes_) > pool_->room()) {
    pool_->refuse_by_limit(nbytes_);
  }
}

void Buffer::take(c10::Storage memory, bool own) {
  memory_ = std::move(memory);
  counted_ = memory_.nbytes();
  foreign_ = counted_ > 0 && !own;
  if (foreign_) {
    pool_->counters().reserved.add(static_cast<int64_t>(counted_));
    pool_->counters().segments.add(1);
  }
  has_memory_.store(true, std::memory_order_release);
}

void Buffer::discard() {
  drop_memory();
  has_memory_.store(false, std::memory_order_release);
  memory_ = {};
  foreign_ = false;
}

void Buffer::drop_memory() {
  if (!has_memory()) {
    return;
  }
  auto& counters = pool_->counters();
  counters.allocated.remove(static_cast<int64_t>(counted_));
  counters.buffers.remove(1);
  if (foreign_) {
    counters.reserved.remove(static_cast<int64_t>(counted_));
    counters.segments.remove(1);
  }
}

}  // namespace tiledev
