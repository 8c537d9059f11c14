#include "compile/verify.h"

#include <c10/util/Exception.h>

#include <string_view>

namespace tiledev {

namespace {

void verify_live_nodes(const Compilation& c, const char* pass) {
  std::vector<uint8_t> live(c.nodes.size(), 0);
  uint32_t previous = 0;
  for (const PlanTask& task : c.plan.tasks) {
    TORCH_INTERNAL_ASSERT(task.node < c.nodes.size() && task.node >= previous, "[", pass,
                          "] tasks do not follow program order at node ", task.node);
    previous = task.node;
    live[task.node] = 1;
  }
  TORCH_INTERNAL_ASSERT(c.plan.tasks.size() + c.plan.dropped.size() == c.nodes.size(), "[", pass,
                        "] nodes are neither live nor dropped");
  // A live node must not read what a dropped node should have written.
  std::vector<uint8_t> missing(c.print.outlives.size(), 0);
  for (size_t i = 0; i < c.nodes.size(); ++i) {
    const uint32_t* access = c.print.accesses.data() + c.first_access[i];
    for_each_access(c.nodes[i], [&](const Buffer&, bool reads, bool writes, bool) {
      TORCH_INTERNAL_ASSERT(!(live[i] && reads && missing[*access]), "[", pass, "] node ", i, " (",
                            c.nodes[i].name(), ") reads what a dropped node writes");
      if (!live[i] && writes) {
        missing[*access] = 1;
      }
      ++access;
    });
  }
  for (size_t b = 0; b < missing.size(); ++b) {
    TORCH_INTERNAL_ASSERT(!(missing[b] && c.print.outlives[b]), "[", pass,
                          "] the writer of a buffer that outlives the graph was dropped");
  }
}

// Every pair of accesses to one buffer with a write among them is ordered by a path of edges. With
// program order as a topological order it is enough to compare each access with the last writer,
// and each write with the reads since: these are direct edges.
void verify_hazards(const Compilation& c, const char* pass) {
  struct State {
    int64_t writer = -1;
    std::vector<uint32_t> readers;
  };
  std::vector<State> states(c.print.outlives.size());
  const auto has_edge = [&](uint32_t from, uint32_t to) {
    for (const uint32_t successor : c.plan.tasks[from].successors) {
      if (successor == to) {
        return true;
      }
    }
    return from == to;
  };
  for (uint32_t t = 0; t < c.plan.tasks.size(); ++t) {
    const uint32_t node = c.plan.tasks[t].node;
    const uint32_t* access = c.print.accesses.data() + c.first_access[node];
    for_each_access(c.nodes[node], [&](const Buffer&, bool, bool writes, bool) {
      State& state = states[*access++];
      TORCH_INTERNAL_ASSERT(state.writer < 0 || has_edge(state.writer, t), "[", pass, "] task ", t,
                            " (", c.nodes[node].name(), ") does not wait for the writer ",
                            state.writer);
      if (writes) {
        for (const uint32_t reader : state.readers) {
          TORCH_INTERNAL_ASSERT(has_edge(reader, t), "[", pass, "] task ", t, " (",
                                c.nodes[node].name(), ") overwrites what ", reader, " reads");
        }
        state.readers.clear();
        state.writer = t;
      } else {
        state.readers.push_back(t);
      }
    });
  }
}

}  // namespace

void verify_compilation(const Compilation& c, const char* pass) {
  verify_live_nodes(c, pass);
  if (std::string_view(pass) != "dead_nodes") {
    verify_hazards(c, pass);
  }
}

}  // namespace tiledev
