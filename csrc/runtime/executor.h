#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "compile/plan.h"
#include "graph/node.h"
#include "graph/work_memory.h"
#include "runtime/trace.h"

namespace tiledev {

// Runs plans asynchronously. Tasks of one plan, and of plans submitted after each other, run as
// soon as the accesses to their buffers allow; the order of submission is the program order.
//
// Errors never leave a worker: they are kept in the buffers that the failed task should have
// written (Buffer::error), and tasks that depend on those are skipped.
class Executor {
 public:
  struct Stats {
    uint64_t tasks_run = 0;
    uint64_t tasks_failed = 0;
    uint64_t tasks_skipped = 0;
  };

  virtual ~Executor() = default;

  // Takes over the nodes. The caller orders concurrent submissions.
  virtual void submit(PlanPtr plan, std::vector<Node> nodes) = 0;

  // Blocks until the value of `buffer` is there; with `for_write` until nobody uses it any more.
  // `interrupt` is called now and then and may throw, which ends the wait.
  virtual void wait(Buffer& buffer, bool for_write, const std::function<void()>& interrupt) = 0;

  // Blocks until at most `plans` submitted plans have not finished.
  virtual void drain(size_t plans, const std::function<void()>& interrupt) = 0;

  // Lets tasks that have not started fail with this error instead of running. For the end only.
  virtual void cancel(std::shared_ptr<RunError> error) = 0;

  // The errors that no wait has reported yet, oldest first; they count as taken.
  virtual std::vector<std::shared_ptr<RunError>> take_errors() = 0;

  // Lets go of memory that is kept for later plans.
  virtual void release_kept() = 0;
  // The same for what is derived from this buffer, which somebody wrote on the host.
  virtual void release_kept(Buffer& buffer) = 0;

  // Who runs what, and when.
  virtual Trace& trace() = 0;

  virtual size_t unfinished() const = 0;  // tasks
  virtual size_t unfinished_plans() const = 0;
  virtual int workers() const = 0;
  // Whether products of tiles are its own, where the plan says so (Step::product).
  virtual bool takes_products() const = 0;
  virtual bool supports(const Node& node) const = 0;
  virtual Stats stats() const = 0;
};

// CPU threads as workers. `workers` >= 1; `memory` is for what they need beside the buffers.
std::unique_ptr<Executor> make_native_executor(int workers, bool pinned, WorkMemory& memory);

}  // namespace tiledev
