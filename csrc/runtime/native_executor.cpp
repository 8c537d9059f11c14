#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <c10/util/thread_name.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include "graph/task_memory.h"
#include "kernels/products.h"
#include "runtime/executor.h"
#include "runtime/instance.h"
#include "runtime/intra_op.h"
#include "runtime/pinning.h"
#include "runtime/ready_queue.h"

namespace tiledev {

namespace {

class NativeExecutor final : public Executor {
 public:
  NativeExecutor(int workers, bool pinned, WorkMemory& memory);
  ~NativeExecutor() override;

  void submit(PlanPtr plan, std::vector<Node> nodes) override;
  void wait(Buffer& buffer, bool for_write, const std::function<void()>& interrupt) override;
  void drain(size_t plans, const std::function<void()>& interrupt) override;
  void cancel(std::shared_ptr<RunError> error) override;
  std::vector<std::shared_ptr<RunError>> take_errors() override;
  void release_kept(Buffer& buffer) override {
    const std::lock_guard lock(submit_mutex_);
    if (auto* use = static_cast<BufferUse*>(buffer.executor_state.get())) {
      use->packed.reset();
    }
  }
  void release_kept() override {
    const std::lock_guard lock(submit_mutex_);
    kept_.clear();
  }
  Trace& trace() override { return trace_; }
  size_t unfinished() const override { return unfinished_.load(std::memory_order_acquire); }
  size_t unfinished_plans() const override { return plans_.load(std::memory_order_acquire); }
  int workers() const override { return static_cast<int>(workers_.size()); }
  bool takes_products() const override { return has_products(); }
  bool supports(const Node&) const override { return true; }
  Stats stats() const override;

 private:
  struct Worker {
    ReadyQueue ready;
    std::thread thread;
    Scratch scratch;  // of the worker's thread alone
  };

  void link_entries(const InstancePtr& instance);
  void keep_packed(Instance& instance);
  void publish_exits(const InstancePtr& instance);
  void follow(const TaskRef& earlier, const TaskRef& later);
  void push(size_t worker, TaskRef task);
  TaskRef take(size_t worker);
  TaskRef wait_for_task(size_t worker);
  void work(size_t worker);
  TaskRef run(TaskRef task, size_t worker);
  void start(const TaskRef& task, size_t worker);
  void help(const TaskRef& task, size_t worker);
  void run_unit(const TaskRef& task, uint32_t unit, size_t worker, bool& last);
  TaskRef complete(const TaskRef& task, size_t worker);
  void finish(const TaskRef& task);
  void release_nodes(Instance& instance, const Segment& segment);
  void task_done(Instance& instance);

  WorkMemory& memory_;  // for scratch and partial results
  const bool pinned_;   // each worker to a core
  std::vector<std::unique_ptr<Worker>> workers_;
  std::mutex submit_mutex_;
  AllKeptMatrices kept_;  // protected by the submit mutex

  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::atomic<int64_t> ready_{0};
  std::mutex wide_mutex_;  // held by the worker that runs a wide op
  std::atomic<int> sleepers_{0};
  bool stop_ = false;
  size_t next_worker_ = 0;
  std::atomic<uint64_t> next_sequence_{0};  // of plans

  std::atomic<size_t> unfinished_{0};
  std::atomic<size_t> plans_{0};  // that have not finished
  std::mutex drain_mutex_;
  std::condition_variable drained_;

  Cancellation cancellation_;

  Trace trace_;
  std::mutex error_mutex_;
  std::vector<std::shared_ptr<RunError>> errors_;

  std::atomic<uint64_t> tasks_run_{0}, tasks_failed_{0}, tasks_skipped_{0};
};

NativeExecutor::NativeExecutor(int workers, bool pinned, WorkMemory& memory)
    : memory_(memory), pinned_(pinned && can_pin()) {
  TaskMemory::install();
  for (int i = 0; i < workers; ++i) {
    workers_.push_back(std::make_unique<Worker>());
  }
  for (size_t i = 0; i < workers_.size(); ++i) {
    workers_[i]->thread = std::thread([this, i] { work(i); });
  }
}

NativeExecutor::~NativeExecutor() {
  {
    const std::lock_guard lock(sleep_mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) {
    worker->thread.join();
  }
  release_kept();
}

Executor::Stats NativeExecutor::stats() const {
  return {tasks_run_.load(), tasks_failed_.load(), tasks_skipped_.load()};
}

// ---- submitting -------------------------------------------------------------------------------

void NativeExecutor::submit(PlanPtr plan, std::vector<Node> nodes) {
  if (!plan->companion) {
    plan->companion = std::make_shared<FramePool>(*plan);
  }
  auto instance = c10::make_intrusive<Instance>(std::move(plan), std::move(nodes));
  instance->sequence = next_sequence_.fetch_add(1, std::memory_order_relaxed);
  const size_t count = instance->tasks.size();
  for (const uint32_t dropped : instance->plan->dropped) {
    instance->nodes[dropped] = Node{};
  }
  if (count == 0) {
    return;
  }
  for (size_t t = 0; t < count; ++t) {
    instance->tasks[t].waiting.store(instance->plan->segments[t].predecessors + 1,
                                     std::memory_order_relaxed);
  }
  unfinished_.fetch_add(count, std::memory_order_acq_rel);
  plans_.fetch_add(1, std::memory_order_acq_rel);
  {
    const std::lock_guard lock(submit_mutex_);
    link_entries(instance);
    keep_packed(*instance);
    publish_exits(instance);
  }
  for (uint32_t t = 0; t < count; ++t) {
    // Only roots can become ready here: others still wait for their predecessors in the plan.
    if (instance->tasks[t].waiting.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      push(next_worker_++ % workers_.size(), {instance, t});
    }
  }
}

void NativeExecutor::link_entries(const InstancePtr& instance) {
  for (const PlanEntry& entry : instance->plan->entries) {
    Buffer& buffer = resolve(instance->nodes, entry.buffer);
    auto* use = static_cast<BufferUse*>(buffer.executor_state.get());
    if (use == nullptr) {
      continue;
    }
    const TaskRef later{instance, entry.segment};
    if (use->writer) {
      follow(use->writer, later);
    }
    if (entry.writes) {
      for (const TaskRef& reader : use->readers) {
        follow(reader, later);
      }
    }
  }
}

// Between plans that leave a matrix as it is, its packed form stays.
void NativeExecutor::keep_packed(Instance& instance) {
  if (memory_.scarce()) {
    return;
  }
  for (size_t t = 0; t < instance.tasks.size(); ++t) {
    const Segment& segment = instance.plan->segments[t];
    for (size_t p = 0; p < segment.packed.size(); ++p) {
      const PackedOperand& packed = segment.packed[p];
      const View& view = segment.steps[packed.step].operands[packed.operand];
      if (!packed.lasts) {
        continue;
      }
      auto* use = static_cast<BufferUse*>(view.source.find(instance.nodes)->executor_state.get());
      if (use == nullptr) {
        continue;
      }
      kept_.ensure(use->packed);
      instance.tasks[t].run.use_packed(segment, p,
                                       use->packed->find(view.meta, view.offset_in(instance.nodes),
                                                         [this] { return kept_.room(); }));
    }
  }
}

void NativeExecutor::publish_exits(const InstancePtr& instance) {
  for (const PlanExit& exit : instance->plan->exits) {
    Buffer& buffer = resolve(instance->nodes, exit.buffer);
    if (!buffer.executor_state) {
      buffer.executor_state = std::make_unique<BufferUse>();
    }
    auto& use = static_cast<BufferUse&>(*buffer.executor_state);
    if (exit.writer >= 0) {
      use.writer = {instance, static_cast<uint32_t>(exit.writer)};
      use.readers.clear();
      use.packed.reset();
    } else {
      const auto gone = std::remove_if(use.readers.begin(), use.readers.end(), finished);
      use.readers.erase(gone, use.readers.end());
    }
    for (const uint32_t reader : exit.readers) {
      use.readers.push_back({instance, reader});
    }
  }
}

void NativeExecutor::follow(const TaskRef& earlier, const TaskRef& later) {
  auto& waiting = later.instance->tasks[later.task].waiting;
  waiting.fetch_add(1, std::memory_order_relaxed);
  auto follower = std::make_unique<Follower>();
  follower->task = later;
  if (!add_follower(earlier.instance->tasks[earlier.task], follower)) {
    waiting.fetch_sub(1, std::memory_order_relaxed);
  }
}

// ---- workers ----------------------------------------------------------------------------------

void NativeExecutor::push(size_t worker, TaskRef task) {
  workers_[worker]->ready.push(std::move(task));
  ready_.fetch_add(1);
  if (sleepers_.load() > 0) {
    const std::lock_guard lock(sleep_mutex_);
    wake_.notify_one();
  }
}

// One of its own tasks, or else another worker's.
TaskRef NativeExecutor::take(size_t worker) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (TaskRef task = workers_[(worker + i) % workers_.size()]->ready.pop()) {
      ready_.fetch_sub(1);
      return task;
    }
  }
  return {};
}

TaskRef NativeExecutor::wait_for_task(size_t worker) {
  constexpr int kSpins =
      200;  // some microseconds; then sleep, so that an idle device costs nothing
  while (true) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (ready_.load(std::memory_order_relaxed) > 0) {
        if (TaskRef task = take(worker)) {
          return task;
        }
      }
    }
    std::unique_lock lock(sleep_mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [this] { return stop_ || ready_.load() > 0; });
    sleepers_.fetch_sub(1);
    if (stop_) {
      return {};
    }
  }
}

void NativeExecutor::work(size_t worker) {
  c10::setThreadName("tiledev_" + std::to_string(worker));
  if (pinned_) {
    pin_this_thread(static_cast<int>(worker));
  }
  while (TaskRef task = wait_for_task(worker)) {
    while (task) {
      task = run(std::move(task), worker);
    }
  }
}

// The first worker that meets a segment looks whether its inputs have failed, and calls the others
// if there is something to share.
void NativeExecutor::start(const TaskRef& task, size_t worker) {
  const Segment& segment = task.instance->plan->segments[task.task];
  SegmentRun& run = task.instance->tasks[task.task].run;
  run.heed(cancellation_);
  run.prepare(segment, task.instance->nodes);
  run.share(segment, workers_.size(), memory_.scarce());
  const size_t helpers = std::min(segment.units(), workers_.size()) - 1;
  for (size_t i = 1; i <= helpers; ++i) {
    push((worker + i) % workers_.size(), task);
  }
}

// Takes units of a segment until there are none left. The worker that finishes the last one returns
// a task that became ready through it.
TaskRef NativeExecutor::run(TaskRef task, size_t worker) {
  TaskState& state = task.instance->tasks[task.task];
  const Segment& segment = task.instance->plan->segments[task.task];
  if (!state.started.exchange(true, std::memory_order_acq_rel)) {
    start(task, worker);
  }
  bool last = false;
  uint32_t unit = 0;
  while (state.run.claim(segment, worker, unit)) {
    run_unit(task, unit, worker, last);
  }
  if (!last) {
    help(task, worker);
    return {};
  }
  finish(task);
  return complete(task, worker);
}

// Others still run units of this segment; there are none left to take.
void NativeExecutor::help(const TaskRef& task, size_t worker) {
  const Plan& plan = *task.instance->plan;
  Trace::Scope traced(trace_, worker, plan, task.task, std::nullopt);
  const auto wanted = [this] { return ready_.load(std::memory_order_relaxed) > 0; };
  if (!task.instance->tasks[task.task].run.help(plan.segments[task.task], wanted)) {
    traced.drop();
  }
}

// Whole ops use as many threads as they would outside of the executor, whatever else runs: timing
// must not decide how a sum is rounded; in deterministic plans they have one. Large ones take
// turns, since each has use for all cores.
void NativeExecutor::run_unit(const TaskRef& task, uint32_t unit, size_t worker, bool& last) {
  Instance& instance = *task.instance;
  const Segment& segment = instance.plan->segments[task.task];
  auto& frames = static_cast<FramePool&>(*instance.plan->companion);
  std::unique_lock<std::mutex> wide;
  if (segment.wide) {
    wide = std::unique_lock(wide_mutex_);
  }
  const Unpinned unpinned(pinned_ && !segment.tiled(), static_cast<int>(worker));
  const Trace::Scope traced(trace_, worker, *instance.plan, task.task, unit);
  const TaskMemory::Scope memory(memory_);
  set_intra_op_threads(segment.tiled() || instance.plan->deterministic ? 1 : workers());
  last |= instance.tasks[task.task].run.run_unit(segment, instance.nodes, unit, worker,
                                                 {frames, task.task}, workers_[worker]->scratch,
                                                 memory_);
}

void NativeExecutor::finish(const TaskRef& task) {
  Instance& instance = *task.instance;
  const Segment& segment = instance.plan->segments[task.task];
  auto outcome = instance.tasks[task.task].run.finish(segment, instance.nodes);
  tasks_run_.fetch_add(outcome.run, std::memory_order_relaxed);
  if (outcome.failed + outcome.skipped > 0) {
    tasks_failed_.fetch_add(outcome.failed, std::memory_order_relaxed);
    tasks_skipped_.fetch_add(outcome.skipped, std::memory_order_relaxed);
    const std::lock_guard lock(error_mutex_);
    std::move(outcome.errors.begin(), outcome.errors.end(), std::back_inserter(errors_));
  }
  release_nodes(instance, segment);
}

// The last reference to a temporary frees its memory here.
void NativeExecutor::release_nodes(Instance& instance, const Segment& segment) {
  for (const uint32_t node : segment.last_use_of) {
    instance.nodes[node] = Node{};
  }
  for (const uint32_t index : segment.shares) {
    if (instance.shared[index].fetch_sub(1, std::memory_order_acq_rel) == 1) {
      instance.nodes[instance.plan->shared[index].node] = Node{};
    }
  }
}

TaskRef NativeExecutor::complete(const TaskRef& task, size_t worker) {
  Instance& instance = *task.instance;
  TaskRef next;
  // Successors stand in the order of their ranks; the first that is ready runs here, at once.
  const auto release = [&](const TaskRef& ready) {
    if (ready.instance->tasks[ready.task].waiting.fetch_sub(1, std::memory_order_acq_rel) != 1) {
      return;
    }
    if (!next) {
      next = ready;
    } else {
      push(worker, ready);
    }
  };
  for (const uint32_t successor : instance.plan->segments[task.task].successors) {
    release({task.instance, successor});
  }
  Follower* follower =
      instance.tasks[task.task].followers.exchange(kClosed, std::memory_order_acq_rel);
  while (follower != nullptr) {
    const std::unique_ptr<Follower> current(std::exchange(follower, follower->next));
    if (current->waiter) {
      current->waiter->finish_one();
    } else {
      release(current->task);
    }
  }
  task_done(instance);
  return next;
}

void NativeExecutor::task_done(Instance& instance) {
  unfinished_.fetch_sub(1, std::memory_order_acq_rel);
  if (instance.left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    const std::lock_guard lock(drain_mutex_);
    plans_.fetch_sub(1, std::memory_order_acq_rel);
    drained_.notify_all();
  }
}

// ---- waiting ----------------------------------------------------------------------------------

constexpr auto kInterruptPeriod = std::chrono::milliseconds(50);

void NativeExecutor::wait(Buffer& buffer, bool for_write, const std::function<void()>& interrupt) {
  auto waiter = c10::make_intrusive<Waiter>();
  {
    const std::lock_guard lock(submit_mutex_);
    auto* use = static_cast<BufferUse*>(buffer.executor_state.get());
    if (use == nullptr) {
      return;
    }
    const auto attach = [&](const TaskRef& ref) {
      auto follower = std::make_unique<Follower>();
      follower->waiter = waiter;
      {
        const std::lock_guard waiter_lock(waiter->mutex);
        ++waiter->open;
      }
      if (!add_follower(ref.instance->tasks[ref.task], follower)) {
        waiter->finish_one();
      }
    };
    if (use->writer) {
      attach(use->writer);
    }
    if (for_write) {
      use->packed.reset();
      for (const TaskRef& reader : use->readers) {
        attach(reader);
      }
    }
  }
  std::unique_lock lock(waiter->mutex);
  while (!waiter->done.wait_for(lock, kInterruptPeriod, [&] { return waiter->open == 0; })) {
    lock.unlock();
    interrupt();
    lock.lock();
  }
}

void NativeExecutor::drain(size_t plans, const std::function<void()>& interrupt) {
  std::unique_lock lock(drain_mutex_);
  while (!drained_.wait_for(lock, kInterruptPeriod, [&] { return plans_.load() <= plans; })) {
    lock.unlock();
    interrupt();
    lock.lock();
  }
}

void NativeExecutor::cancel(std::shared_ptr<RunError> error) {
  cancellation_.error = std::move(error);
  cancellation_.asked.store(true, std::memory_order_release);
}

std::vector<std::shared_ptr<RunError>> NativeExecutor::take_errors() {
  const std::lock_guard lock(error_mutex_);
  return std::exchange(errors_, {});
}

}  // namespace

std::unique_ptr<Executor> make_native_executor(int workers, bool pinned, WorkMemory& memory) {
  TORCH_CHECK_VALUE(workers >= 1, "[init_context] needs at least one worker, got ", workers);
  return std::make_unique<NativeExecutor>(workers, pinned, memory);
}

}  // namespace tiledev
