#include <utility>

#include "compile/pipeline.h"

namespace tiledev {

namespace {

// How a buffer stands at one point of program order.
struct BufferState {
  bool touched = false;
  int64_t writer = -1;
  c10::SmallVector<uint32_t, 2> readers;  // since the last write
  AccessRef ref;
};

class DependenceBuilder {
 public:
  explicit DependenceBuilder(Compilation& c) : c_(c), states_(c.print.outlives.size()) {}

  void run() {
    for (uint32_t task = 0; task < c_.plan.tasks.size(); ++task) {
      visit(task);
    }
    for (size_t b = 0; b < states_.size(); ++b) {
      BufferState& state = states_[b];
      if (state.touched && c_.print.outlives[b]) {
        c_.plan.exits.push_back({state.ref, state.writer, std::move(state.readers)});
      }
    }
  }

 private:
  void visit(uint32_t task) {
    const uint32_t node = c_.plan.tasks[task].node;
    const uint32_t first = c_.first_access[node];
    uint32_t ordinal = 0;
    for_each_access(c_.nodes[node], [&](const Buffer&, bool, bool writes, bool fresh) {
      BufferState& state = states_[c_.print.accesses[first + ordinal]];
      if (!std::exchange(state.touched, true)) {
        state.ref = {node, ordinal};
      }
      // Nobody outside of the graph can have touched a buffer that starts here.
      if (!fresh && state.writer < 0) {
        c_.plan.entries.push_back({task, {node, ordinal}, writes});
      }
      access(task, state, writes);
      ++ordinal;
    });
  }

  void access(uint32_t task, BufferState& state, bool writes) {
    if (state.writer >= 0) {
      add_edge(static_cast<uint32_t>(state.writer), task);
    }
    if (!writes) {
      state.readers.push_back(task);
      return;
    }
    for (const uint32_t reader : state.readers) {
      add_edge(reader, task);
    }
    state.readers.clear();
    state.writer = task;
  }

  void add_edge(uint32_t from, uint32_t to) {
    if (from == to) {
      return;
    }
    auto& successors = c_.plan.tasks[from].successors;
    if (successors.empty() || successors.back() != to) {  // edges to one task come in a row
      successors.push_back(to);
      ++c_.plan.tasks[to].predecessors;
    }
  }

  Compilation& c_;
  std::vector<BufferState> states_;
};

}  // namespace

// Read after write, write after read and write after write, within the graph; what it depends on
// from before it (entries) and what later work depends on (exits).
void find_dependences(Compilation& c) {
  DependenceBuilder(c).run();
}

}  // namespace tiledev
