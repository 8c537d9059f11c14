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
#include "graph/axis_memory.h"
#include "graph/host_memory.h"
#include "graph/memory_counters.h"
#include "graph/out_of_memory.h"
#include "graph/work_memory.h"

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

// Where the name of a dimension comes from. What is stronger replaces what is weaker.
enum class NameLevel : uint8_t {
  kInherited,  // from a dimension that stood in its place before (AxisMemory)
  kTied,       // from a dimension that ops tie to this one
  kGiven,      // from the user
};

// A name of a dimension of a buffer, whatever view of it was looked at.
struct AxisName {
  int64_t span = 0;    // stride times size, in bytes
  int64_t extent = 0;  // of the axis as it was named: what the sizes of its tiles refer to
  std::string name;
  NameLevel level = NameLevel::kTied;
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

  // The host memory, allocated on the first call, with arbitrary contents. May be called by tasks
  // that run at once. Throws OutOfMemory.
  const c10::Storage& memory();
  bool has_memory() const { return has_memory_.load(std::memory_order_acquire); }
  // Takes over a storage that holds the buffer's value. The caller is its only writer. Throws
  // OutOfMemory, and leaves the buffer as it was, if the limit on memory forbids it.
  void adopt(c10::Storage memory);
  // Forgets the memory of a value that could not be computed.
  void discard();
  // Throws OutOfMemory if memory() or adopt() would, as things stand.
  void check_room() const;

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
  std::vector<AxisName> axis_names;
  AxisMemoryPtr axis_memory;  // names of other operands beside it
  Origin origin;              // complete before the buffer has memory
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
  void take(c10::Storage memory, bool own);  // whether it is the pool's
  void drop_memory();

  std::atomic<bool> has_memory_{false};
  size_t counted_ = 0;
  bool foreign_ = false;  // the memory is ATen's, not the pool's
  c10::Storage memory_;
};

using BufferPtr = c10::intrusive_ptr<Buffer>;

// Makes buffers, gives them memory and counts both. Outlives all of its buffers.
class BufferPool {
 public:
  static constexpr int64_t kNoLimit = INT64_MAX;

  // Throws OutOfMemory if there is no address for it.
  BufferPtr create(size_t nbytes) { return c10::make_intrusive<Buffer>(this, nbytes); }
  const AddressSpace& addresses() const { return addresses_; }
  MemoryCounters& counters() { return counters_; }
  HostMemory& host_memory() { return host_memory_; }
  WorkMemory& work_memory() { return work_memory_; }
  uint64_t next_id() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  // The live buffer at an address, or null. Walks all of them: for rare needs only.
  c10::intrusive_ptr<Buffer> find(uintptr_t address);
  // Calls f(buffer) for each live buffer; f may not make or release any.
  template <typename F>
  void for_each(F&& f) {
    const std::lock_guard lock(mutex_);
    for (Buffer* buffer = first_; buffer != nullptr; buffer = buffer->next_) {
      f(*buffer);
    }
  }
  // The live buffers that have the most memory, largest first.
  std::vector<LiveBuffer> largest();

  // Memory for a task itself; see WorkMemory. Throws OutOfMemory.
  c10::DataPtr take_for_work(size_t nbytes);

  // How many bytes buffers and tasks may have; the cache shrinks before they reach that.
  void set_limit(int64_t nbytes);
  int64_t limit() const { return limit_.load(std::memory_order_relaxed); }

 private:
  friend class Buffer;
  static constexpr size_t kMutexes = 16;

  // Give a buffer its address and take it back. Throws OutOfMemory.
  uintptr_t enlist(Buffer& buffer, size_t nbytes);
  void delist(Buffer& buffer, size_t nbytes);
  // Counts bytes that a buffer gets; throws OutOfMemory if they are too many.
  void charge(size_t nbytes);
  c10::Storage allocate(size_t nbytes);  // charges as well
  int64_t room() const;                  // what the limit leaves
  size_t cache_room() const;
  [[noreturn]] void refuse(size_t nbytes, const std::string& why);
  [[noreturn]] void refuse_by_limit(size_t nbytes);
  std::mutex& memory_mutex(uint64_t id) { return memory_mutexes_[id % kMutexes]; }

  AddressSpace addresses_;
  MemoryCounters counters_;
  HostMemory host_memory_{counters_};
  WorkMemory work_memory_{*this};
  std::atomic<int64_t> limit_{kNoLimit};
  std::atomic<uint64_t> next_id_{1};
  std::mutex memory_mutexes_[kMutexes];
  std::mutex mutex_;  // for the addresses and the list
  Buffer* first_ = nullptr;
};

}  // namespace tiledev
