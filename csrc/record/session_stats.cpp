// The session's modes and counters.

#include <c10/util/Exception.h>

#include "record/session.h"

namespace tiledev {

bool Session::set_eager(bool eager) {
  if (eager) {
    wait_all();
  }
  return eager_.exchange(eager);
}

void Session::set_memory_limit(int64_t nbytes) {
  const std::lock_guard lock(mutex_);
  settings_.memory_limit = nbytes;
  buffers_.set_limit(nbytes);
  if (executor_ && nbytes != BufferPool::kNoLimit) {
    executor_->release_kept();
    buffers_.set_limit(nbytes);  // what that gave to the cache counts as well
  }
}

void Session::empty_cache() {
  if (const auto executor = running_executor()) {
    executor->release_kept();
  }
  buffers_.host_memory().trim(0);
}

void Session::restrict_workers(const std::string& kind) {
  TORCH_CHECK(kind == "cpu", "[restrict_", kind, "] this context has no ", kind,
              " workers; it was made with cpu workers alone");
}

void Session::restore_workers() {}

void Session::count_fallback(const std::string& op, const char* reason) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK_NOT_IMPLEMENTED(settings_.cpu_fallback, "[", op,
                                "] cannot be recorded on tiledev (", reason,
                                "), and init_context(cpu_fallback=False) forbids to run it "
                                "on the host at once");
    first = fallbacks_[op]++ == 0;
  }
  if (first) {
    TORCH_WARN("[", op, "] cannot be recorded on tiledev (", reason,
               "): it waits for its inputs and runs on the host at once. This warning appears once "
               "for each op; see tiledev.fallback_stats()");
  }
}

void Session::count_recorded(const OpTraits& op) {
  if (recorded_.size() <= op.id) {
    recorded_.resize(op.id + 1, {nullptr, 0});
  }
  recorded_[op.id].first = &op;
  ++recorded_[op.id].second;
}

std::map<std::string, int64_t> Session::fallback_stats() {
  const std::lock_guard lock(mutex_);
  return fallbacks_;
}

std::map<std::string, int64_t> Session::recorded_stats() {
  const std::lock_guard lock(mutex_);
  std::map<std::string, int64_t> stats;
  for (const auto& [op, count] : recorded_) {
    if (count > 0) {
      stats[op->name] += count;
    }
  }
  return stats;
}

std::map<std::string, int64_t> Session::plan_cache_stats() {
  const std::lock_guard lock(mutex_);
  const auto stats = plans_.stats();
  return {{"hits", static_cast<int64_t>(stats.hits)},
          {"misses", static_cast<int64_t>(stats.misses)},
          {"evictions", static_cast<int64_t>(stats.evictions)},
          {"plans", static_cast<int64_t>(stats.plans)}};
}

std::string Session::explain_miss() {
  const std::lock_guard lock(mutex_);
  return plans_.last_miss();
}

void Session::start_trace() {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(!executor().trace().on(),
              "[trace] another trace is being taken; let its `with` block end first");
  executor().trace().start();
}

std::vector<TraceEvent> Session::stop_trace() {
  const std::lock_guard lock(mutex_);
  return executor().trace().stop();
}

std::map<std::string, int64_t> Session::counters() {
  const std::lock_guard lock(mutex_);
  const auto run = executor_ ? executor_->stats() : Executor::Stats{};
  int64_t live = static_cast<int64_t>(graph_.size());
  for (const auto& compiled : compiled_) {
    live += static_cast<int64_t>(compiled.nodes.size());
  }
  return {{"live_nodes", live},
          {"live_buffers", buffers_.counters().live_buffers.load()},
          {"nodes_recorded", nodes_recorded_},
          {"nodes_dropped", nodes_dropped_},
          {"nodes_run", static_cast<int64_t>(run.tasks_run)},
          {"nodes_failed", static_cast<int64_t>(run.tasks_failed)},
          {"nodes_skipped", static_cast<int64_t>(run.tasks_skipped)},
          {"nodes_in_flight", executor_ ? static_cast<int64_t>(executor_->unfinished()) : 0},
          {"plans_in_flight", executor_ ? static_cast<int64_t>(executor_->unfinished_plans()) : 0},
          {"flushes", flushes_},
          {"self_flushes", self_flushes_},
          {"allocated_bytes", buffers_.counters().allocated.current()}};
}

void Session::reset_stats() {
  const std::lock_guard lock(mutex_);
  fallbacks_.clear();
  for (auto& [op, count] : recorded_) {
    count = 0;
  }
  plans_.reset_stats();
  nodes_recorded_ = nodes_dropped_ = flushes_ = self_flushes_ = 0;
}

}  // namespace tiledev
