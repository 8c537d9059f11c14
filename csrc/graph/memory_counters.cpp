#include "graph/memory_counters.h"

namespace tiledev {

void Gauge::add(int64_t amount) {
  note(amount, current_.fetch_add(amount, std::memory_order_relaxed) + amount);
}

bool Gauge::add_within(int64_t amount, int64_t limit) {
  int64_t seen = current();
  do {
    if (amount > limit - seen) {
      return false;
    }
  } while (!current_.compare_exchange_weak(seen, seen + amount, std::memory_order_relaxed));
  note(amount, seen + amount);
  return true;
}

void Gauge::note(int64_t amount, int64_t now) {
  added_.fetch_add(amount, std::memory_order_relaxed);
  int64_t seen = peak();
  while (now > seen && !peak_.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
  }
}

void Gauge::remove(int64_t amount) {
  current_.fetch_sub(amount, std::memory_order_relaxed);
  removed_.fetch_add(amount, std::memory_order_relaxed);
}

void Gauge::reset_accumulated() {
  added_ = current();
  removed_ = 0;
}

void MemoryCounters::reset_peak() {
  for (Gauge* gauge : {&allocated, &buffers, &reserved, &segments, &work}) {
    gauge->reset_peak();
  }
}

void MemoryCounters::reset_accumulated() {
  for (Gauge* gauge : {&allocated, &buffers, &reserved, &segments, &work}) {
    gauge->reset_accumulated();
  }
  retries = failures = 0;
}

}  // namespace tiledev
