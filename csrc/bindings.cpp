// The compiled module tiledev._C. Thin: every function calls the session. Types in _C.pyi.

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/extension.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "compile/explain.h"
#include "compile/strip_ops.h"
#include "device/generator.h"
#include "device/hooks.h"
#include "graph/print.h"
#include "python_bridge.h"
#include "record/bridge.h"
#include "record/ops.h"
#include "record/session.h"
#include "record/storage.h"
#include "rules/rule.h"

namespace py = pybind11;

namespace tiledev {

namespace {

Session& session() {
  return Session::get();
}

// nodes, tensors, and for each group: extent, name, sizes of the tiles, members.
py::tuple axis_groups() {
  const Session::GroupReport report = session().axis_groups();
  py::list groups;
  for (const auto& info : report.groups) {
    groups.append(
        py::make_tuple(info.group.extent, info.group.name, info.tiles, info.group.members.size()));
  }
  return py::make_tuple(report.nodes, report.tensors, groups);
}

void init_context(int ncpu, int ncuda, bool cpu_fallback, int verbose, int64_t max_pending_nodes,
                  int64_t max_pending_bytes, int64_t memory_limit, bool pin_workers) {
  TORCH_CHECK_NOT_IMPLEMENTED(ncuda == 0, "[init_context] CUDA workers are not there yet, got ",
                              "ncuda=", ncuda);
  Settings settings;
  settings.workers = ncpu;
  settings.cpu_fallback = cpu_fallback;
  settings.verbose = verbose;
  settings.pin_workers = pin_workers;
  if (max_pending_nodes > 0) {
    settings.max_pending_nodes = max_pending_nodes;
  }
  if (max_pending_bytes > 0) {
    settings.max_pending_bytes = max_pending_bytes;
  }
  if (memory_limit > 0) {
    settings.memory_limit = memory_limit;
  }
  session().configure(settings);
}

py::dict context_settings() {
  const Settings settings = session().settings();
  py::dict result;
  result["ncpu"] = session().workers();
  result["ncuda"] = 0;
  result["cpu_fallback"] = settings.cpu_fallback;
  result["verbose"] = settings.verbose;
  result["max_pending_nodes"] = settings.max_pending_nodes;
  result["max_pending_bytes"] = settings.max_pending_bytes;
  result["pin_workers"] = settings.pin_workers;
  result["memory_limit"] = settings.memory_limit == BufferPool::kNoLimit
                               ? py::object(py::none())
                               : py::object(py::int_(settings.memory_limit));
  return result;
}

std::string format_graph(const std::string& format) {
  TORCH_CHECK_VALUE(format == "text" || format == "dot",
                    "[format_graph] expected 'text' or 'dot', ", "got '", format, "'");
  std::string result;
  session().inspect([&](const std::vector<Node>& nodes) {
    if (!nodes.empty() || result.empty()) {
      result += format == "text" ? to_text(nodes) : to_dot(nodes);
    }
  });
  return result;
}

using c10::CachingAllocator::StatArray;

// The keys of torch.cuda.memory_stats; then those of the cache, which have no counterpart there.
std::map<std::string, int64_t> memory_stats() {
  const auto device = c10::getDeviceAllocator(kDevice)->getDeviceStats(0);
  std::map<std::string, int64_t> stats = {{"num_alloc_retries", device.num_alloc_retries},
                                          {"num_ooms", device.num_ooms},
                                          {"num_device_alloc", device.num_device_alloc},
                                          {"num_device_free", device.num_device_free}};
  const auto fill = [&](const std::string& key, const StatArray& array) {
    constexpr const char* kPools[] = {".all", ".small_pool", ".large_pool"};  // StatType's order
    for (size_t pool = 0; pool < array.size(); ++pool) {
      stats[key + kPools[pool] + ".current"] = array[pool].current;
      stats[key + kPools[pool] + ".peak"] = array[pool].peak;
      stats[key + kPools[pool] + ".allocated"] = array[pool].allocated;
      stats[key + kPools[pool] + ".freed"] = array[pool].freed;
    }
  };
  fill("allocation", device.allocation);
  fill("segment", device.segment);
  fill("active", device.active);
  fill("inactive_split", device.inactive_split);
  fill("allocated_bytes", device.allocated_bytes);
  fill("reserved_bytes", device.reserved_bytes);
  fill("active_bytes", device.active_bytes);
  fill("inactive_split_bytes", device.inactive_split_bytes);
  fill("requested_bytes", device.requested_bytes);
  const Gauge& work = session().buffers().counters().work;
  stats["work_bytes.all.current"] = work.current();
  stats["work_bytes.all.peak"] = work.peak();
  auto& memory = session().buffers().host_memory();
  const auto [hits, misses] = memory.reuse();
  stats["cached_bytes"] = static_cast<int64_t>(memory.cached_nbytes());
  stats["cache_hits"] = static_cast<int64_t>(hits);
  stats["cache_misses"] = static_cast<int64_t>(misses);
  return stats;
}

std::map<std::string, std::string> built_with() {
  return {{"torch", TORCH_VERSION},
#ifdef __clang__
          {"compiler", "clang " __clang_version__},
#else
          {"compiler", "gcc " __VERSION__},
#endif
#ifdef TILEDEV_DEBUG
          {"build_type", "debug"},
#else
          {"build_type", "release"},
#endif
          {"cxx", std::to_string(__cplusplus)}};
}

// Whether a thread of autograd's engine is alive. Its threads are detached: only the system knows.
bool autograd_thread_alive() {
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream comm(task.path() / "comm");
    std::string name;
    if (std::getline(comm, name) && name.rfind("pt_autograd_", 0) == 0) {
      return true;
    }
  }
  return false;
}

// Ends the threads of autograd's engine while the interpreter is still there: before Python 3.12
// they take the GIL when they end, and abort the process if that happens after finalisation.
void stop_autograd_threads() {
#if PY_VERSION_HEX < 0x030C0000
  constexpr auto kStep = std::chrono::microseconds(200);
  constexpr int kSteps = 5000;
  const py::gil_scoped_release released;
  torch::autograd::Engine::get_default_engine().stop();
  for (int i = 0; i < kSteps && autograd_thread_alive(); ++i) {
    std::this_thread::sleep_for(kStep);
  }
#endif
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  install_python_bridge();
  register_hooks();
  register_recorded_ops();

  m.def("init_context", torch::wrap_pybind_function(&init_context));
  m.def("shutdown_context",
        torch::wrap_pybind_function([](bool cancel) { session().shutdown(cancel); }),
        py::arg("cancel") = false);
  m.def("is_context_initialized", [] { return session().initialized(); });
  m.def("context_settings", torch::wrap_pybind_function(&context_settings));
  m.def("compile_graph", torch::wrap_pybind_function([] { session().compile_pending(); }));
  m.def("run", torch::wrap_pybind_function([] { session().run_compiled(); }));
  m.def("execute", torch::wrap_pybind_function([] { session().flush(); }));
  m.def("wait", torch::wrap_pybind_function([] { session().wait_all(); }));
  m.def("reset_graph", torch::wrap_pybind_function([] { session().reset_graph(); }));
  m.def("has_pending_graph", [] { return session().has_pending(); });
  m.def("pending_op_names",
        torch::wrap_pybind_function([] { return session().pending_op_names(); }));
  m.def("restrict_workers", torch::wrap_pybind_function(
                                [](const std::string& kind) { session().restrict_workers(kind); }));
  m.def("restore_workers", torch::wrap_pybind_function([] { session().restore_workers(); }));
  m.def("set_eager",
        torch::wrap_pybind_function([](bool eager) { return session().set_eager(eager); }));
  m.def("is_eager", [] { return session().eager(); });
  m.def("fallback_stats", torch::wrap_pybind_function([] { return session().fallback_stats(); }));
  m.def("recorded_stats", torch::wrap_pybind_function([] { return session().recorded_stats(); }));
  m.def("reset_stats", torch::wrap_pybind_function([] { session().reset_stats(); }));
  m.def("plan_cache_stats",
        torch::wrap_pybind_function([] { return session().plan_cache_stats(); }));
  m.def("counters", torch::wrap_pybind_function([] { return session().counters(); }));
  m.def("format_graph", torch::wrap_pybind_function(&format_graph));
  m.def("registered_ops", torch::wrap_pybind_function([] { return registered_ops(); }));
  m.def("built_with", torch::wrap_pybind_function(&built_with));
  m.def("is_in_bad_fork", [] { return session().in_bad_fork(); });
  m.def("memory_stats", torch::wrap_pybind_function(&memory_stats));
  m.def("reset_peak_memory_stats", [] { session().buffers().counters().reset_peak(); });
  m.def("reset_accumulated_memory_stats",
        [] { session().buffers().counters().reset_accumulated(); });
  m.def("explain", torch::wrap_pybind_function([](const std::string& format) -> std::string {
          const PlanPtr plan = session().last_plan();
          if (!plan) {
            return "";
          }
          return format == "dot"    ? explain_dot(*plan)
                 : format == "json" ? explain_json(*plan)
                                    : explain_text(*plan);
        }));
  m.def("set_axis_group_name",
        torch::wrap_pybind_function([](const at::Tensor& tensor, const Session::AxisNames& names) {
          session().name_axes(*tensor.unsafeGetTensorImpl(), names);
        }));
  m.def("set_axis_group_tiling",
        torch::wrap_pybind_function(
            [](const std::string& name, int64_t uniform, std::vector<int64_t> sizes) {
              session().set_axis_tiling(name, {uniform, std::move(sizes)});
            }));
  m.def("clear_axis_group_tiling",
        torch::wrap_pybind_function(
            [](const std::optional<std::string>& name) { session().clear_axis_tiling(name); }));
  m.def("axis_groups", torch::wrap_pybind_function(&axis_groups));
  m.def("explain_miss", torch::wrap_pybind_function([] { return session().explain_miss(); }));
  m.def("start_trace", torch::wrap_pybind_function([] { session().start_trace(); }));
  m.def("stop_trace", torch::wrap_pybind_function([] {
          py::list events;
          for (const TraceEvent& e : session().stop_trace()) {
            events.append(py::make_tuple(e.name, e.worker, e.begin_ns, e.duration_ns, e.plan,
                                         e.segment, e.unit, e.helps));
          }
          return events;
        }));
  m.def("set_tiling_mode", torch::wrap_pybind_function([](const std::string& mode) {
          TORCH_CHECK_VALUE(mode == "auto" || mode == "whole" || mode == "tiny",
                            "[set_tiling_mode] got mode=\"", mode,
                            "\"; pass \"auto\", \"whole\" or \"tiny\"");
          session().set_tiling_mode(mode == "auto"    ? TilingMode::kAuto
                                    : mode == "whole" ? TilingMode::kWhole
                                                      : TilingMode::kTiny);
        }));
  m.def("check_rules", torch::wrap_pybind_function(&check_rules));
  m.def("strip_ops", &strip_op_names);
  m.def("add_rule", torch::wrap_pybind_function([](const std::string& op, const std::string& rule) {
          session().add_tile_rule(op, rule);
        }));
  m.def("empty_cache", torch::wrap_pybind_function([] {
          const WithoutInterpreter released;
          session().empty_cache();
        }));
  m.def("set_memory_limit",
        torch::wrap_pybind_function([](int64_t nbytes) { session().set_memory_limit(nbytes); }));
  m.def("stop_autograd_threads", torch::wrap_pybind_function(&stop_autograd_threads));
  m.def("default_generator", torch::wrap_pybind_function([](int index) {
          TORCH_CHECK_INDEX(index <= 0,
                            "[default_generator] there is one tiledev device, got index ", index);
          return default_generator();
        }));
}

}  // namespace tiledev
