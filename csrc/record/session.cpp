#include "record/session.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <utility>

#include "record/bridge.h"
#include "record/session_axes.h"

namespace tiledev {

namespace {

// So many plans (steps of a training loop, say) may be in flight when a flush that nobody waits for
// returns: recording stays ahead of running, and the inputs of later steps do not pile up.
constexpr size_t kMaxPlansInFlight = 4;

bool env_flag(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && std::strcmp(value, "0") != 0 && *value != '\0';
}

// What stands in place of a value that will never be computed.
std::shared_ptr<RunError> lost_value(const char* call, const std::string& why) {
  auto error = std::make_shared<RunError>();
  error->op = call;
  error->exception = std::make_exception_ptr(
      c10::Error({__func__, __FILE__, __LINE__}, "[" + error->op + "] " + why));
  return error;
}

void interruptible() {
  bridge().check_interrupt();
}

std::atomic<bool> forked{false};  // set in the child of a fork

void mark_forked() {
  forked.store(true, std::memory_order_relaxed);
}

}  // namespace

Session& Session::get() {
  static Session* session = new Session();  // never destroyed: tensors may outlive everything
  return *session;
}

Session::Session() {
  pthread_atfork(nullptr, nullptr, &mark_forked);
#ifdef TILEDEV_DEBUG
  verify_ = true;
#else
  verify_ = env_flag("TILEDEV_VERIFY");
#endif
}

// ---- life -------------------------------------------------------------------------------------

bool Session::in_bad_fork() const {
  return forked.load(std::memory_order_relaxed) && touched_.load(std::memory_order_relaxed);
}

void Session::check_usable() {
  TORCH_CHECK(
      !in_bad_fork(),
      "[tiledev] cannot be used in a forked child process: its workers live in the parent. ",
      "Use the 'spawn' start method, e.g. torch.multiprocessing.set_start_method('spawn')");
}

void Session::configure(const Settings& settings) {
  check_usable();
  const std::lock_guard lock(mutex_);
  if (executor_ || !graph_.empty()) {
    TORCH_CHECK(settings == settings_,
                "[init_context] work has begun with other settings; call init_context() before the "
                "first tensor is made on tiledev, or call shutdown_context() first");
  }
  settings_ = settings;
  buffers_.set_limit(settings.memory_limit);
  executor();
}

Executor& Session::executor() {
  if (!executor_) {
    const int workers = settings_.workers > 0 ? settings_.workers : at::get_num_threads();
    executor_ = make_native_executor(workers, settings_.pin_workers, buffers_.work_memory());
    executor_ready_ = true;
    touched_.store(true, std::memory_order_relaxed);
  }
  return *executor_;
}

// Kept by whoever waits, so that a shutdown on another thread does not pull it away.
std::shared_ptr<Executor> Session::running_executor() {
  const std::lock_guard lock(mutex_);
  return executor_;
}

void Session::shutdown(bool cancel) {
  if (in_bad_fork()) {
    return;
  }
  const WithoutInterpreter released;
  std::shared_ptr<Executor> executor;
  std::vector<Node> pending;
  std::vector<Compiled> compiled;
  {
    const std::lock_guard lock(mutex_);
    executor = std::move(executor_);
    executor_ready_ = false;
    pending = graph_.take_all();
    compiled = std::move(compiled_);
    settings_ = Settings{};
    buffers_.set_limit(settings_.memory_limit);
  }
  const auto error =
      lost_value("shutdown_context", "the context was shut down before this value was computed");
  const auto poison = [&](const std::vector<Node>& nodes) {
    for (const Node& node : nodes) {
      for_each_access(node, [&](Buffer& buffer, bool, bool writes, bool) {
        if (writes && &buffer != node.token.get()) {
          buffer.error = error;
        }
      });
    }
  };
  if (executor) {
    if (cancel) {
      executor->cancel(error);
    }
    executor->drain(0, [] {});
  }
  poison(pending);
  for (const auto& c : compiled) {
    poison(c.nodes);
  }
}

Settings Session::settings() {
  const std::lock_guard lock(mutex_);
  return settings_;
}

int Session::workers() {
  const std::lock_guard lock(mutex_);
  return executor().workers();
}

// ---- recording --------------------------------------------------------------------------------

void Session::append(Node node) {
  ++nodes_recorded_;
  touched_.store(true, std::memory_order_relaxed);
  graph_.append(std::move(node));
  if (static_cast<int64_t>(graph_.size()) >= settings_.max_pending_nodes ||
      static_cast<int64_t>(graph_.result_nbytes()) >= settings_.max_pending_bytes) {
    over_limit_.store(true, std::memory_order_relaxed);
  }
}

void Session::after_append() {
  if (eager()) {
    wait_all();
  } else if (over_limit_.load(std::memory_order_relaxed)) {
    {
      const std::lock_guard lock(mutex_);
      ++self_flushes_;
    }
    flush();
  }
}

void Session::append_host_call(std::string name, const BufferPtr& token,
                               std::function<void()> body) {
  check_usable();
  Node node;
  node.host = std::make_shared<HostCall>(HostCall{std::move(name), std::move(body)});
  node.token = token;
  node.location = bridge().capture_location();
  {
    const std::lock_guard lock(mutex_);
    append(std::move(node));
  }
  after_append();
}

// ---- flushing ---------------------------------------------------------------------------------

CompileOptions Session::compile_options() {
  CompileOptions options;
  options.workers = executor().workers();
  options.mode = tiling_mode_;
  options.deterministic = at::globalContext().deterministicAlgorithms();
  options.products = executor().takes_products();
  options.verify = verify_;
  options.named = !axis_extents_.empty();
  options.tilings = tilings_;
  return options;
}

void Session::set_tiling_mode(TilingMode mode) {
  const std::lock_guard lock(mutex_);
  if (tiling_mode_ != mode) {
    tiling_mode_ = mode;
    plans_.clear();
  }
}

void Session::compile_nodes(std::vector<Node> nodes) {
  if (nodes.empty()) {
    return;
  }
  const CompileOptions options = compile_options();
  const Fingerprint print = fingerprint(nodes, tiling_word(options), options.named);
  const uint64_t misses = plans_.stats().misses;
  PlanPtr plan;
  try {
    plan = plans_.get(nodes, print, options);
  } catch (...) {
    graph_.put_back(std::move(nodes));
    throw;
  }
  for (const PlanName& name : plan->names) {
    add_axis_name(resolve(nodes, name.buffer), name.axis);
  }
  for (const PlanMemory& learned : plan->memories) {
    resolve(nodes, learned.buffer).axis_memory = learned.memory;
  }
  last_plan_ = plan;
  nodes_dropped_ += static_cast<int64_t>(plan->dropped.size());
  if (settings_.verbose > 0) {
    std::cerr << "[tiledev] plan " << plan->id
              << (plans_.stats().misses > misses ? " made" : " met") << ": " << nodes.size()
              << " nodes, " << plan->dropped.size() << " dropped\n";
  }
  compiled_.push_back({std::move(plan), std::move(nodes)});
}

void Session::submit_compiled() {
  for (auto& compiled : std::exchange(compiled_, {})) {
    ++flushes_;
    executor().submit(std::move(compiled.plan), std::move(compiled.nodes));
  }
}

void Session::compile_pending() {
  const std::lock_guard lock(mutex_);
  over_limit_.store(false, std::memory_order_relaxed);
  compile_nodes(graph_.take_all());
}

void Session::run_compiled() {
  check_usable();
  {
    const std::lock_guard lock(mutex_);
    if (compiled_.empty()) {
      compile_nodes(graph_.take_all());
      over_limit_.store(false, std::memory_order_relaxed);
    }
    submit_compiled();
  }
  throttle();
}

void Session::flush() {
  check_usable();
  {
    const std::lock_guard lock(mutex_);
    over_limit_.store(false, std::memory_order_relaxed);
    compile_nodes(graph_.take_all());
    submit_compiled();
  }
  throttle();
}

void Session::throttle() {
  const auto executor = running_executor();
  if (executor != nullptr && executor->unfinished_plans() > kMaxPlansInFlight) {
    const WithoutInterpreter released;
    executor->drain(kMaxPlansInFlight, interruptible);
  }
}

void Session::reset_graph() {
  std::vector<Node> nodes;
  {
    const std::lock_guard lock(mutex_);
    for (auto& compiled : std::exchange(compiled_, {})) {
      for (auto& node : compiled.nodes) {
        nodes.push_back(std::move(node));
      }
    }
    for (auto& node : graph_.take_all()) {
      nodes.push_back(std::move(node));
    }
    over_limit_.store(false, std::memory_order_relaxed);
    forget_inherited_names();
  }
  const auto error = lost_value("reset_graph", "the node that computes this value was discarded");
  for (const Node& node : nodes) {
    for_each_access(node, [&](Buffer& buffer, bool, bool, bool fresh) {
      if (fresh) {
        buffer.error = error;  // in-place nodes leave the value from before them
      }
    });
  }
}

bool Session::busy() {
  const std::lock_guard lock(mutex_);
  return !graph_.empty() || !compiled_.empty() || (executor_ && executor_->unfinished() > 0);
}

bool Session::has_pending() {
  const std::lock_guard lock(mutex_);
  return !graph_.empty() || !compiled_.empty();
}

std::vector<std::string> Session::pending_op_names() {
  std::vector<std::string> names;
  inspect([&](const std::vector<Node>& nodes) {
    for (const Node& node : nodes) {
      names.push_back(node.name());
    }
  });
  return names;
}

PlanPtr Session::last_plan() {
  const std::lock_guard lock(mutex_);
  return last_plan_;
}

void Session::inspect(const std::function<void(const std::vector<Node>&)>& f) {
  const std::lock_guard lock(mutex_);
  for (const auto& compiled : compiled_) {
    f(compiled.nodes);
  }
  f(graph_.nodes());
}

// ---- waiting ----------------------------------------------------------------------------------

void Session::wait_for(const std::vector<BufferPtr>& buffers, bool for_write) {
  check_usable();
  std::shared_ptr<Executor> executor;
  {
    const std::lock_guard lock(mutex_);
    submit_compiled();
    compile_nodes(graph_.take_for(buffers, for_write));
    submit_compiled();
    executor = executor_;
  }
  if (executor != nullptr) {
    const WithoutInterpreter released;
    for (const auto& buffer : buffers) {
      executor->wait(*buffer, for_write, interruptible);
    }
  }
  for (const auto& buffer : buffers) {
    if (buffer->poisoned()) {
      throw_error(buffer->error, other_failures(executor, *buffer->error));
    }
  }
}

// What else has failed so far, or is about to: whoever hears of one failure hears of all of them,
// and a later wait for something else has nothing to say. Empty if the failure was reported before.
std::vector<std::shared_ptr<RunError>> Session::other_failures(
    const std::shared_ptr<Executor>& executor, RunError& error) {
  std::vector<std::shared_ptr<RunError>> others;
  if (executor == nullptr || error.reported.load(std::memory_order_acquire)) {
    return others;
  }
  {
    const WithoutInterpreter released;
    executor->drain(0, interruptible);
  }
  error.reported.store(true, std::memory_order_release);
  return unreported(*executor);
}

std::vector<std::shared_ptr<RunError>> Session::unreported(Executor& executor) {
  std::vector<std::shared_ptr<RunError>> failed;
  for (auto& error : executor.take_errors()) {
    if (!error->reported.exchange(true)) {
      failed.push_back(std::move(error));
    }
  }
  return failed;
}

void Session::note_host_writes(const std::vector<BufferPtr>& buffers) {
  if (const auto executor = running_executor()) {
    for (const auto& buffer : buffers) {
      executor->release_kept(*buffer);
    }
  }
}

void Session::wait_all() {
  flush();
  const auto executor = running_executor();
  if (executor == nullptr) {
    return;
  }
  {
    const WithoutInterpreter released;
    executor->drain(0, interruptible);
  }
  auto failed = unreported(*executor);
  if (!failed.empty()) {
    const auto first = failed.front();
    failed.erase(failed.begin());
    throw_error(first, failed);
  }
}

}  // namespace tiledev
