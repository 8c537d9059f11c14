#pragma once

#include <atomic>
#include <cstdint>

namespace tiledev {

// A quantity that comes and goes, and what is told of it. Thread safe.
class Gauge {
 public:
  void add(int64_t amount);
  // Adds nothing and returns false if the sum would be above `limit`.
  bool add_within(int64_t amount, int64_t limit);
  void remove(int64_t amount);
  void reset_peak() { peak_ = current(); }
  void reset_accumulated();

  int64_t current() const { return current_.load(std::memory_order_relaxed); }
  int64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  int64_t added() const { return added_.load(std::memory_order_relaxed); }
  int64_t removed() const { return removed_.load(std::memory_order_relaxed); }

 private:
  void note(int64_t amount, int64_t now);

  std::atomic<int64_t> current_{0}, peak_{0}, added_{0}, removed_{0};
};

// What torch.tiledev.memory_stats tells.
struct MemoryCounters {
  Gauge allocated;  // bytes of buffers that have memory
  Gauge buffers;    // those buffers
  Gauge reserved;   // bytes that came from the system: in use, cached, or adopted from ATen
  Gauge segments;   // the pieces in which they came
  Gauge work;       // bytes of scratch and partial results
  std::atomic<int64_t> live_buffers{0};  // with and without memory
  std::atomic<int64_t> retries{0};       // the system refused until the cache was given back
  std::atomic<int64_t> failures{0};      // out-of-memory errors

  void reset_peak();
  void reset_accumulated();
};

}  // namespace tiledev
