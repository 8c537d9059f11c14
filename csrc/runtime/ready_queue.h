#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/instance.h"

namespace tiledev {

// The tasks of a worker that can run: those of the earliest plan first, and of one plan the one
// with the longest way to its end (Segment::rank). Thread safe.
class ReadyQueue {
 public:
  void push(TaskRef task) {
    const double rank = task.instance->plan->segments[task.task].rank;
    const uint64_t sequence = task.instance->sequence;
    const std::lock_guard lock(mutex_);
    heap_.push_back({sequence, rank, std::move(task)});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  // The first task, or none.
  TaskRef pop() {
    const std::lock_guard lock(mutex_);
    if (heap_.empty()) {
      return {};
    }
    std::pop_heap(heap_.begin(), heap_.end(), later);
    TaskRef task = std::move(heap_.back().task);
    heap_.pop_back();
    return task;
  }

 private:
  struct Entry {
    uint64_t sequence;
    double rank;
    TaskRef task;
  };

  static bool later(const Entry& a, const Entry& b) {
    return a.sequence != b.sequence ? a.sequence > b.sequence : a.rank < b.rank;
  }

  std::mutex mutex_;
  std::vector<Entry> heap_;
};

}  // namespace tiledev
