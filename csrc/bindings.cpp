// The compiled module tiledev._C. Thin: every function calls the session. Types in _C.pyi.

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/extension.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "compile/explain.h"
#include "device/generator.h"
#include "device/hooks.h"
#include "graph/print.h"
#include "python_bridge.h"
#include "record/ops.h"
#include "record/session.h"
#include "rules/rule.h"

namespace py = pybind11;

namespace tiledev {

namespace {

Session& session() {
  return Session::get();
}

void init_context(int ncpu, int ncuda, bool cpu_fallback, int verbose, int64_t max_pending_nodes,
                  int64_t max_pending_bytes) {
  TORCH_CHECK_NOT_IMPLEMENTED(ncuda == 0, "[init_context] CUDA workers are not there yet, got ",
                              "ncuda=", ncuda);
  Settings settings;
  settings.workers = ncpu;
  settings.cpu_fallback = cpu_fallback;
  settings.verbose = verbose;
  if (max_pending_nodes > 0) {
    settings.max_pending_nodes = max_pending_nodes;
  }
  if (max_pending_bytes > 0) {
    settings.max_pending_bytes = max_pending_bytes;
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

std::map<std::string, int64_t> memory_stats() {
  const auto& c = session().buffers().counters();
  std::map<std::string, int64_t> stats;
  const auto fill = [&](const std::string& key, int64_t current, int64_t peak, int64_t in,
                        int64_t out) {
    for (const char* pool : {".all", ".large_pool", ".small_pool"}) {
      const bool all = std::string(pool) == ".all";
      stats[key + pool + ".current"] = all ? current : 0;
      stats[key + pool + ".peak"] = all ? peak : 0;
      stats[key + pool + ".allocated"] = all ? in : 0;
      stats[key + pool + ".freed"] = all ? out : 0;
    }
  };
  for (const char* key : {"allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"}) {
    fill(key, c.allocated, c.peak, c.total_allocated, c.total_freed);
  }
  const int64_t live = c.allocations - c.frees;
  for (const char* key : {"allocation", "segment", "active"}) {
    fill(key, live, live, c.allocations, c.frees);
  }
  fill("inactive_split", 0, 0, 0, 0);
  fill("inactive_split_bytes", 0, 0, 0, 0);
  stats["num_alloc_retries"] = 0;
  stats["num_ooms"] = 0;
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
          return format == "dot" ? explain_dot(*plan) : explain_text(*plan);
        }));
  m.def("set_tiling_mode", torch::wrap_pybind_function([](const std::string& mode) {
          TORCH_CHECK_VALUE(mode == "auto" || mode == "whole" || mode == "tiny",
                            "[set_tiling_mode] got mode=\"", mode,
                            "\"; pass \"auto\", \"whole\" or \"tiny\"");
          session().set_tiling_mode(mode == "auto"    ? TilingMode::kAuto
                                    : mode == "whole" ? TilingMode::kWhole
                                                      : TilingMode::kTiny);
        }));
  m.def("empty_cache", [] {});
  m.def("check_rules", torch::wrap_pybind_function(&check_rules));
  m.def("stop_autograd_threads", torch::wrap_pybind_function(&stop_autograd_threads));
  m.def("default_generator", torch::wrap_pybind_function([](int index) {
          TORCH_CHECK_INDEX(index <= 0,
                            "[default_generator] there is one tiledev device, got index ", index);
          return default_generator();
        }));
}

}  // namespace tiledev
