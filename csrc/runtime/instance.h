#pragma once

#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "compile/plan.h"
#include "graph/buffer.h"
#include "runtime/segment_run.h"

// One run of a plan in the native executor, and how tasks of different plans and waiting threads
// follow each other.

namespace tiledev {

struct Instance;
using InstancePtr = c10::intrusive_ptr<Instance>;

struct TaskRef {
  InstancePtr instance;
  uint32_t task = 0;

  explicit operator bool() const { return static_cast<bool>(instance); }
};

// A thread that waits for a number of tasks.
struct Waiter : c10::intrusive_ptr_target {
  std::mutex mutex;
  std::condition_variable done;
  size_t open = 0;

  void finish_one() {
    const std::lock_guard lock(mutex);
    if (--open == 0) {
      done.notify_all();
    }
  }
};

// What follows a task from outside of its plan: a task of a later plan, or a waiting thread. Kept
// as a lock-free list at the task, closed when the task has finished.
struct Follower {
  Follower* next = nullptr;
  TaskRef task;
  c10::intrusive_ptr<Waiter> waiter;
};

inline Follower* const kClosed = reinterpret_cast<Follower*>(uintptr_t{1});

// A segment of a plan in one of its runs.
struct TaskState {
  std::atomic<int64_t> waiting{0};  // predecessors that have not finished, plus one until submitted
  std::atomic<Follower*> followers{nullptr};
  std::atomic<bool> started{false};
  SegmentRun run;
};

// One run of a plan.
struct Instance final : c10::intrusive_ptr_target {
  Instance(PlanPtr p, std::vector<Node> n)
      : plan(std::move(p)),
        nodes(std::move(n)),
        tasks(plan->segments.size()),
        shared(plan->shared.size()),
        left(tasks.size()) {
    for (size_t i = 0; i < shared.size(); ++i) {
      shared[i].store(plan->shared[i].segments, std::memory_order_relaxed);
    }
  }

  ~Instance() override {
    for (auto& state : tasks) {
      Follower* follower = state.followers.load();
      while (follower != nullptr && follower != kClosed) {
        delete std::exchange(follower, follower->next);
      }
    }
  }

  PlanPtr plan;
  uint64_t sequence = 0;  // plans are submitted in this order
  std::vector<Node> nodes;
  std::vector<TaskState> tasks;               // by segment
  std::vector<std::atomic<uint32_t>> shared;  // segments that still need a node (Plan::shared)
  std::atomic<size_t> left;                   // tasks that have not finished
};

// False if the task has finished already; then `follower` is not taken over.
inline bool add_follower(TaskState& state, std::unique_ptr<Follower>& follower) {
  Follower* head = state.followers.load(std::memory_order_acquire);
  do {
    if (head == kClosed) {
      return false;
    }
    follower->next = head;
  } while (!state.followers.compare_exchange_weak(head, follower.get(), std::memory_order_acq_rel,
                                                  std::memory_order_acquire));
  follower.release();
  return true;
}

inline bool finished(const TaskRef& ref) {
  return ref.instance->tasks[ref.task].followers.load(std::memory_order_acquire) == kClosed;
}

// Who used a buffer last, over all plans submitted so far. Protected by the submit mutex.
struct BufferUse final : ExecutorState {
  TaskRef writer;
  c10::SmallVector<TaskRef, 2> readers;
  std::shared_ptr<KeptMatrices> packed;  // or null
};

}  // namespace tiledev
