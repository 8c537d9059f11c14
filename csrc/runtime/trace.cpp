#include "runtime/trace.h"

#include <utility>

#include "compile/explain.h"

namespace tiledev {

void Trace::start() {
  const std::lock_guard lock(mutex_);
  events_.clear();
  begin_ = std::chrono::steady_clock::now();
  on_.store(true, std::memory_order_release);
}

std::vector<TraceEvent> Trace::stop() {
  on_.store(false, std::memory_order_release);
  const std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

int64_t Trace::now() const {
  const auto since = std::chrono::steady_clock::now() - begin_;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

Trace::Scope::Scope(Trace& trace, size_t worker, const Plan& plan, uint32_t segment,
                    std::optional<uint32_t> unit) {
  if (!trace.on()) {
    return;
  }
  trace_ = &trace;
  event_.name = describe_steps(plan.segments[segment], 6);
  event_.worker = worker;
  event_.plan = plan.id;
  event_.segment = segment;
  event_.unit = unit.value_or(0);
  event_.helps = !unit;
  event_.begin_ns = trace.now();
}

Trace::Scope::~Scope() {
  if (trace_ == nullptr) {
    return;
  }
  event_.duration_ns = trace_->now() - event_.begin_ns;
  const std::lock_guard lock(trace_->mutex_);
  if (trace_->on()) {
    trace_->events_.push_back(std::move(event_));
  }
}

}  // namespace tiledev
