#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compile/axis_groups.h"
#include "compile/plan_cache.h"
#include "graph/graph.h"
#include "runtime/executor.h"

namespace tiledev {

struct Settings {
  int workers = -1;  // -1: as many as ATen would use
  bool cpu_fallback = true;
  int verbose = 0;
  int64_t max_pending_nodes = 20000;
  int64_t max_pending_bytes = int64_t{4} << 30;
  int64_t memory_limit = BufferPool::kNoLimit;
  bool pin_workers = false;

  bool operator==(const Settings&) const = default;
};

// All state of the device: the pending graph, the plans, the executor. One object for a process,
// made on first use and never destroyed (tensors may outlive the interpreter); shutdown() stops its
// threads. Every public function is thread safe. Lock order: this session's lock, then the
// executor's; nobody takes the interpreter's lock while holding one of them.
class Session {
 public:
  static Session& get();

  // Fails if work began with other settings.
  void configure(const Settings& settings);
  // Finishes what runs, or with `cancel` only the tasks that have started; what is pending is lost.
  void shutdown(bool cancel);
  bool initialized() const { return executor_ready_.load(std::memory_order_acquire); }
  Settings settings();
  int workers();
  // Changes this setting at any time.
  void set_memory_limit(int64_t nbytes);
  // Gives memory that is kept for later use back to the system.
  void empty_cache();

  BufferPool& buffers() { return buffers_; }
  // The lock for the fields of buffers and for append().
  std::mutex& mutex() { return mutex_; }
  // Raises in a forked child, where no worker lives.
  void check_usable();
  bool in_bad_fork() const;

  // Needs the lock. The caller calls after_append() once it has let go of the lock.
  void append(Node node);
  // Flushes when the graph has passed a limit, or always in eager mode.
  void after_append();

  void compile_pending();  // pending nodes become a plan that waits for run_compiled()
  void run_compiled();
  void flush();  // both, for everything; returns before the tasks have run
  void reset_graph();
  bool has_pending();
  bool busy();  // something is pending or runs
  std::vector<std::string> pending_op_names();
  PlanPtr last_plan();  // of the last flush, or null
  // Calls f(nodes) under the lock.
  void inspect(const std::function<void(const std::vector<Node>&)>& f);

  // Runs what the buffers need, waits for it and raises their errors. With `for_write` nobody reads
  // or writes them any more afterwards either.
  void wait_for(const std::vector<BufferPtr>& buffers, bool for_write);
  // Tells it that the host has written these buffers.
  void note_host_writes(const std::vector<BufferPtr>& buffers);
  // Flushes and waits for everything; raises the first error not yet reported.
  void wait_all();
  // Puts work that is no ATen op into program order, ordered by `token`.
  void append_host_call(std::string name, const BufferPtr& token, std::function<void()> body);

  // Plans made from now on; those made before are forgotten.
  void set_tiling_mode(TilingMode mode);

  // Names dimensions of a tensor, all or none; without a name, takes theirs back. Raises ValueError
  // if an axis group has another name.
  using AxisNames = std::vector<std::pair<int64_t, std::optional<std::string>>>;
  void name_axes(const c10::TensorImpl& tensor, const AxisNames& names);
  void set_axis_tiling(const std::string& name, AxisTiling tiling);
  void clear_axis_tiling(const std::optional<std::string>& name);  // nothing: all
  struct GroupInfo {
    AxisGroup group;
    std::vector<int64_t> tiles;  // empty: automatic
  };
  struct GroupReport {
    size_t nodes = 0, tensors = 0;
    std::vector<GroupInfo> groups;
  };
  GroupReport axis_groups();

  void start_trace();
  std::vector<TraceEvent> stop_trace();  // waits for nothing

  // Gives an op of another package a rule; plans made without it are forgotten.
  void add_tile_rule(const std::string& op, const std::string& rule);

  bool set_eager(bool eager);
  bool eager() const { return eager_.load(std::memory_order_relaxed); }
  void restrict_workers(const std::string& kind);
  void restore_workers();

  // Counts an op that was run through the fallback; warns at its first time, or raises
  // NotImplementedError if the settings forbid it.
  void count_fallback(const std::string& op, const char* reason);
  void count_recorded(const OpTraits& op);

  std::map<std::string, int64_t> fallback_stats();
  std::map<std::string, int64_t> recorded_stats();
  std::map<std::string, int64_t> plan_cache_stats();
  std::string explain_miss();
  std::map<std::string, int64_t> counters();
  void reset_stats();

 private:
  struct Compiled {
    PlanPtr plan;
    std::vector<Node> nodes;
  };

  Session();
  Executor& executor();                          // needs the lock; makes it
  std::shared_ptr<Executor> running_executor();  // null if there is none
  CompileOptions compile_options();              // needs the lock
  // Needs the lock. Dimensions that cannot be cut get no name.
  void name_axis(Buffer& buffer, const c10::TensorImpl& tensor, int64_t dim,
                 const std::string& name);
  void forget_unused_name(const std::string& name);  // needs the lock
  void forget_inherited_names();                     // needs the lock; also what is remembered
  void compile_nodes(std::vector<Node> nodes);       // needs the lock
  // Stands for the options in a fingerprint.
  static uint64_t tiling_word(const CompileOptions& options);
  void submit_compiled();  // needs the lock
  void throttle();
  // Failures that no wait has reported; they count as reported now.
  static std::vector<std::shared_ptr<RunError>> unreported(Executor& executor);
  static std::vector<std::shared_ptr<RunError>> other_failures(
      const std::shared_ptr<Executor>& executor, RunError& error);
  // `others` failed at the same time and will not be raised.
  [[noreturn]] void throw_error(const std::shared_ptr<RunError>& error,
                                const std::vector<std::shared_ptr<RunError>>& others = {});

  std::mutex mutex_;
  BufferPool buffers_;
  Settings settings_;
  Graph graph_;
  PlanCache plans_;
  std::vector<Compiled> compiled_;
  PlanPtr last_plan_;
  std::shared_ptr<Executor> executor_;
  std::atomic<bool> executor_ready_{false};
  std::atomic<bool> over_limit_{false};
  std::atomic<bool> eager_{false};
  std::atomic<bool> touched_{false};  // a fork from now on has lost something
  bool verify_ = false;
  TilingMode tiling_mode_ = TilingMode::kAuto;
  std::map<std::string, AxisTiling> tilings_;
  std::map<std::string, int64_t> axis_extents_;  // of every name given so far, the latest

  std::map<std::string, int64_t> fallbacks_;
  std::vector<std::pair<const OpTraits*, int64_t>> recorded_;  // by OpTraits::id
  int64_t nodes_recorded_ = 0;
  int64_t flushes_ = 0;
  int64_t self_flushes_ = 0;
  int64_t nodes_dropped_ = 0;
};

}  // namespace tiledev
