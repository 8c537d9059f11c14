#include "graph/task_memory.h"

#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "graph/host_memory.h"

namespace tiledev {

namespace {

constexpr size_t kLarge = HostMemory::kLarge;

thread_local WorkMemory* current = nullptr;
thread_local TaskMemory::Places* places = nullptr;

void leave(void*) {}

class Allocator final : public c10::Allocator {
 public:
  explicit Allocator(c10::Allocator& next) : next_(next) {}

  c10::DataPtr allocate(size_t nbytes) override {
    if (current == nullptr || nbytes < kLarge) {
      return next_.allocate(nbytes);
    }
    if (void* place = places != nullptr ? places->take(nbytes) : nullptr) {
      return {place, place, &leave, c10::Device(c10::DeviceType::CPU)};
    }
    c10::DataPtr memory = lend(current->allocate(nbytes));
    if (places != nullptr) {
      places->note(memory.get(), nbytes);
    }
    return memory;
  }

  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

  // oneDNN's blocks come and go as plain addresses.
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }

  bool hand_over(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = lent_.find(data);
    if (found == lent_.end()) {
      return false;
    }
    WorkMemory::hand_over(found->second);
    return true;
  }

  void lock() {
    mutex_.lock();
    HostMemory::lock_ranges();
  }
  void unlock() {
    HostMemory::unlock_ranges();
    mutex_.unlock();
  }

  static Allocator* installed;

 private:
  c10::DataPtr lend(c10::DataPtr memory) {
    void* data = memory.get();
    const std::lock_guard lock(mutex_);
    lent_.emplace(data, std::move(memory));
    return {data, data, &give_back, c10::Device(c10::DeviceType::CPU)};
  }

  // Of a block of either allocator, or of a place.
  static void give_back(void* data) {
    if (!installed->take_back(data) && !HostMemory::contains(data)) {
      installed->next_.raw_deallocate(data);
    }
  }

  bool take_back(void* data) {
    c10::DataPtr memory;  // goes after the lock
    {
      const std::lock_guard lock(mutex_);
      const auto found = lent_.find(data);
      if (found == lent_.end()) {
        return false;
      }
      memory = std::move(found->second);
      lent_.erase(found);
    }
    return true;
  }

  c10::Allocator& next_;
  std::mutex mutex_;
  std::unordered_map<void*, c10::DataPtr> lent_;
};

Allocator* Allocator::installed = nullptr;

}  // namespace

TaskMemory::Scope::Scope(WorkMemory& memory) : before_(std::exchange(current, &memory)) {}

TaskMemory::Scope::~Scope() {
  current = before_;
}

TaskMemory::Places::Places() {
  places = this;
}

TaskMemory::Places::~Places() {
  end();
}

void TaskMemory::Places::end() {
  places = nullptr;
}

void TaskMemory::Places::add(void* data, size_t nbytes, uint32_t turn) {
  if (nbytes >= kLarge && Allocator::installed != nullptr) {
    places_.push_back({data, nbytes, turn});
  }
}

uint32_t TaskMemory::Places::requests(size_t nbytes) const {
  return static_cast<uint32_t>(
      std::count_if(given_.begin(), given_.end(),
                    [nbytes](const Place& given) { return given.nbytes == nbytes; }));
}

void* TaskMemory::Places::take(size_t nbytes) {
  const uint32_t turn = requests(nbytes);
  const auto found = std::find_if(places_.begin(), places_.end(), [=](const Place& place) {
    return place.nbytes == nbytes && place.turn == turn;
  });
  if (found == places_.end()) {
    return nullptr;
  }
  given_.push_back(*found);
  return found->data;
}

void TaskMemory::Places::note(void* data, size_t nbytes) {
  const bool wanted = std::any_of(places_.begin(), places_.end(),
                                  [nbytes](const Place& place) { return place.nbytes == nbytes; });
  if (wanted) {
    given_.push_back({data, nbytes, requests(nbytes)});
  }
}

std::optional<uint32_t> TaskMemory::Places::turn_of(const void* data) const {
  const auto found = std::find_if(given_.rbegin(), given_.rend(),
                                  [data](const Place& given) { return given.data == data; });
  return found == given_.rend() ? std::nullopt : std::optional(found->turn);
}

void TaskMemory::install() {
  static const bool once = [] {
    c10::Allocator* next = c10::GetCPUAllocator();
    if (next->raw_deleter() != nullptr) {
      Allocator::installed = new Allocator(*next);  // never destroyed: blocks may outlive all else
      constexpr uint8_t kPriority = 100;
      c10::SetCPUAllocator(Allocator::installed, kPriority);
      // A forked process may go on with the CPU: it must not find a lock that a worker held.
      pthread_atfork([] { Allocator::installed->lock(); }, [] { Allocator::installed->unlock(); },
                     [] { Allocator::installed->unlock(); });
    }
    return true;
  }();
  (void)once;
}

bool TaskMemory::hand_over(const c10::DataPtr& data) {
  return Allocator::installed != nullptr && Allocator::installed->hand_over(data.get());
}

}  // namespace tiledev
