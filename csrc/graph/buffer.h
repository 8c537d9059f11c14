#pragma once

#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "graph/address_space.h"

namespace tiledev {

class BufferPool;

// A failure while a task ran. It stays with every buffer that the task should have written, and
// with what depends on them.
struct RunError {
  std::exception_ptr exception;
  std::string op;
  uint32_t location = 0;                // where the op was recorded (see record/bridge.h)
  std::atomic<bool> described = false;  // the location was added to the message
  std::atomic<bool> reported = false;   // the user has seen it
};

// What an executor remembers about a buffer between plans. Owned by the executor that set it.
struct ExecutorState {
  virtual ~ExecutorState() = default;
};

// The memory behind one storage. It is created without memory; memory appears when the first node
// that needs it runs, and goes with the last reference: from the storage (`external`), from pending
// nodes, or from tasks in flight. A buffer of no bytes also serves as a pure ordering token.
class Buffer final : public c10::intrusive_ptr_target {
 public:
  Buffer(BufferPool* pool, size_t nbytes);
  ~Buffer() override;

  uint64_t id() const { return id_; }
  size_t nbytes() const { return nbytes_; }
  uintptr_t address() const { return address_; }

  // Whether a tensor outside of the graph can still see this buffer.
  bool external() const { return external_.load(std::memory_order_acquire); }
  void set_external(bool value) { external_.store(value, std::memory_order_release); }

  // The host memory, allocated on the first call. May be called by tasks that run at once.
  const c10::Storage& memory();
  bool has_memory() const { return has_memory_.load(std::memory_order_acquire); }
  // Takes over a storage that holds the buffer's value. The caller is its only writer.
  void adopt(c10::Storage memory);

  // Written by the task that failed or was skipped, read by those that depend on it.
  std::shared_ptr<RunError> error;
  // A failed in-place op leaves memory behind: usable again once the user knows of the failure.
  bool poisoned() const {
    return error && !(has_memory() && error->reported.load(std::memory_order_acquire));
  }

  // The fields below belong to whoever holds the session's lock.
  uint32_t pending_uses = 0;    // pending nodes that read or write it
  uint32_t pending_writes = 0;  // those that write it
  uint64_t mark = 0;            // scratch of one pass over the graph: pass number ...
  uint32_t mark_index = 0;      // ... and value
  std::unique_ptr<ExecutorState> executor_state;

 private:
  friend class BufferPool;

  BufferPool* const pool_;
  Buffer* previous_ = nullptr;  // the pool's list of live buffers
  Buffer* next_ = nullptr;
  const uint64_t id_;
  const size_t nbytes_;
  const uintptr_t address_;
  std::atomic<bool> external_{false};
  std::atomic<bool> has_memory_{false};
  size_t counted_ = 0;
  c10::Storage memory_;
};

using BufferPtr = c10::intrusive_ptr<Buffer>;

struct MemoryCounters {
  std::atomic<int64_t> allocated{0}, peak{0}, total_allocated{0}, total_freed{0};
  std::atomic<int64_t> allocations{0}, frees{0}, live_buffers{0};

  void add(int64_t nbytes);
  void remove(int64_t nbytes);
  void reset_peak();
  void reset_accumulated();
};

// Makes buffers and counts them. Outlives all of its buffers.
class BufferPool {
 public:
  BufferPtr create(size_t nbytes) { return c10::make_intrusive<Buffer>(this, nbytes); }
  const AddressSpace& addresses() const { return addresses_; }
  MemoryCounters& counters() { return counters_; }
  uint64_t next_id() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  // The live buffer at an address, or null. Walks all of them: for rare needs only.
  c10::intrusive_ptr<Buffer> find(uintptr_t address);
  // Give a buffer its address and take it back; called by the buffer itself.
  uintptr_t enlist(Buffer& buffer, size_t nbytes);
  void delist(Buffer& buffer, size_t nbytes);
  std::mutex& memory_mutex(uint64_t id) { return memory_mutexes_[id % kMutexes]; }

 private:
  static constexpr size_t kMutexes = 16;
  AddressSpace addresses_;
  MemoryCounters counters_;
  std::atomic<uint64_t> next_id_{1};
  std::mutex memory_mutexes_[kMutexes];
  std::mutex mutex_;  // for the addresses and the list
  Buffer* first_ = nullptr;
};

}  // namespace tiledev
