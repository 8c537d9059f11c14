#include "compile/pipeline.h"

#include <atomic>
#include <memory>
#include <utility>

#include "compile/verify.h"

namespace tiledev {

namespace {

struct Pass {
  const char* name;
  void (*run)(Compilation&);
};

// THE LIST: what a graph goes through on its way to a plan.
constexpr Pass kPasses[] = {
    {"dead_nodes", find_dead_nodes},    // by node: is it needed?
    {"lower", lower_nodes},             // nodes -> steps
    {"axis_groups", name_axes},         // which dimensions are the same axis, if names are in use
    {"segments", form_segments},        // steps -> segments, each cut along one axis
    {"tiling", choose_tiles},           // where the tiles begin and end
    {"temporaries", find_temporaries},  // which of them live in a worker's scratch
    {"products", find_products},        // which products we take ourselves, and what they share
    {"strips", form_strips},            // elementwise steps that go strip by strip through L1
    {"scratch", place_scratch},         // where in the scratch the other temporaries lie
    {"dependences", find_dependences},
};

std::vector<uint32_t> index_accesses(const std::vector<Node>& nodes) {
  std::vector<uint32_t> first;
  first.reserve(nodes.size() + 1);
  uint32_t count = 0;
  for (const Node& node : nodes) {
    first.push_back(count);
    for_each_access(node, [&](const Buffer&, bool, bool, bool) { ++count; });
  }
  first.push_back(count);
  return first;
}

}  // namespace

std::vector<AxisGroup> pending_axis_groups(const std::vector<Node>& nodes) {
  Fingerprint print = fingerprint(nodes, 0, false);
  const uint32_t* access = print.accesses.data();
  for (const Node& node : nodes) {
    for_each_access(node, [&](const Buffer& buffer, bool, bool, bool) {
      print.outlives[*access++] = buffer.external();  // the pending nodes do not count
    });
  }
  const CompileOptions options;
  Compilation c{nodes, print, options, index_accesses(nodes), {}, {}, {}, 0, {}};
  find_dead_nodes(c);
  lower_nodes(c);
  return find_axis_groups(c).groups;
}

PlanPtr compile(const std::vector<Node>& nodes, const Fingerprint& print,
                const CompileOptions& options) {
  static std::atomic<uint64_t> next_id{1};
  Compilation c{nodes, print, options, index_accesses(nodes), {}, {}, {}, 0, {}};
  c.plan.id = next_id.fetch_add(1, std::memory_order_relaxed);
  c.plan.node_count = nodes.size();
  c.plan.deterministic = options.deterministic;
  for (const Pass& pass : kPasses) {
    pass.run(c);
    if (options.verify) {
      verify_compilation(c, pass.name);
    }
  }
  return std::make_shared<const Plan>(std::move(c.plan));
}

}  // namespace tiledev
