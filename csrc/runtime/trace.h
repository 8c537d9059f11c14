#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "compile/plan.h"

namespace tiledev {

// A piece of work as a worker ran it.
struct TraceEvent {
  std::string name;
  size_t worker = 0;
  int64_t begin_ns = 0;  // since the trace began
  int64_t duration_ns = 0;
  uint64_t plan = 0;
  uint32_t segment = 0;
  uint32_t unit = 0;
  bool helps = false;  // with units of others
};

// Records what workers do, while somebody asks for it.
class Trace {
 public:
  void start();
  std::vector<TraceEvent> stop();
  bool on() const { return on_.load(std::memory_order_relaxed); }

  // Records a unit, or help with some, from construction to destruction, if the trace is on.
  class Scope {
   public:
    Scope(Trace& trace, size_t worker, const Plan& plan, uint32_t segment,
          std::optional<uint32_t> unit);
    ~Scope();
    void drop() { trace_ = nullptr; }  // nothing happened
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Trace* trace_ = nullptr;  // null: off
    TraceEvent event_;
  };

 private:
  int64_t now() const;

  std::atomic<bool> on_{false};
  std::mutex mutex_;  // for what follows
  std::chrono::steady_clock::time_point begin_;
  std::vector<TraceEvent> events_;
};

}  // namespace tiledev
