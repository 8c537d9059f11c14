#include <algorithm>
#include <unordered_map>
#include <utility>

#include "compile/cost_model.h"
#include "compile/pipeline.h"

namespace tiledev {

namespace {

// How a buffer stands at one point of the plan.
struct BufferState {
  bool touched = false;
  int64_t writer = -1;
  c10::SmallVector<uint32_t, 2> readers;  // since the last write
  AccessRef ref;
  bool scratch = false;
  uint32_t first = 0, last = 0;  // segments that use it
};

class DependenceBuilder {
 public:
  explicit DependenceBuilder(Compilation& c) : c_(c), states_(c.print.outlives.size()) {}

  void run() {
    for (uint32_t s = 0; s < c_.plan.segments.size(); ++s) {
      for (const Step& step : c_.plan.segments[s].steps) {
        visit(s, step);
      }
    }
    for (Segment& segment : c_.plan.segments) {
      for (const uint32_t successor : segment.successors) {
        ++c_.plan.segments[successor].predecessors;
      }
      order_steps(segment);
    }
    rank_segments();
    for (size_t b = 0; b < states_.size(); ++b) {
      BufferState& state = states_[b];
      if (state.touched && c_.print.outlives[b]) {
        c_.plan.exits.push_back({state.ref, state.writer, std::move(state.readers)});
      }
    }
    find_last_uses();
    measure_temporaries();
  }

 private:
  void visit(uint32_t segment, const Step& step) {
    for (const View& view : step.operands) {
      touch(segment, step, view.buffer, ordinal_of(view), view.written, view.fresh, view.scratch);
    }
    const Node& node = c_.nodes[step.node];
    if (node.token) {
      const auto ordinal = static_cast<uint32_t>(node.operands.size());
      touch(segment, step, c_.print.accesses[c_.first_access[step.node] + ordinal], ordinal, true,
            false, false);
    }
    for (const View& view : step.outputs) {
      touch(segment, step, view.buffer, ordinal_of(view), true, view.fresh, view.scratch);
    }
  }

  // The place of a view among its node's accesses.
  uint32_t ordinal_of(const View& view) const {
    const Node& node = c_.nodes[view.source.node];
    if (view.source.slot >= 0) {
      return static_cast<uint32_t>(view.source.slot);
    }
    auto ordinal = static_cast<uint32_t>(node.operands.size()) + (node.token ? 1 : 0);
    for (int32_t r = 0; r < ~view.source.slot; ++r) {
      ordinal += node.results[r] ? 1 : 0;
    }
    return ordinal;
  }

  void touch(uint32_t segment, const Step& step, uint32_t buffer, uint32_t ordinal, bool writes,
             bool fresh, bool scratch) {
    if (buffer >= states_.size()) {
      return;  // internal: never leaves its segment
    }
    BufferState& state = states_[buffer];
    if (!std::exchange(state.touched, true)) {
      state.ref = {step.node, ordinal};
      state.first = segment;
      state.scratch = scratch;
    }
    state.last = segment;
    // Nobody outside of the graph can have touched a buffer that starts here.
    if (!fresh && state.writer < 0) {
      c_.plan.entries.push_back({segment, {step.node, ordinal}, writes});
    }
    access(segment, state, writes);
  }

  void access(uint32_t segment, BufferState& state, bool writes) {
    if (state.writer >= 0) {
      add_edge(static_cast<uint32_t>(state.writer), segment);
    }
    if (!writes) {
      if (state.readers.empty() || state.readers.back() != segment) {
        state.readers.push_back(segment);
      }
      return;
    }
    for (const uint32_t reader : state.readers) {
      add_edge(reader, segment);
    }
    state.readers.clear();
    state.writer = segment;
  }

  void add_edge(uint32_t from, uint32_t to) {
    if (from == to) {
      return;
    }
    auto& successors = c_.plan.segments[from].successors;
    if (std::find(successors.rbegin(), successors.rend(), to) == successors.rend()) {
      successors.push_back(to);
    }
  }

  // The length of the longest chain of segments that starts here: what lies on the critical path
  // runs first.
  void rank_segments() {
    auto& segments = c_.plan.segments;
    for (size_t s = segments.size(); s-- > 0;) {
      auto& successors = segments[s].successors;
      std::stable_sort(successors.begin(), successors.end(),
                       [&](uint32_t a, uint32_t b) { return segments[a].rank > segments[b].rank; });
      const double after = successors.empty() ? 0 : segments[successors[0]].rank;
      segments[s].rank = after + estimated_time(segments[s]);
    }
  }

  // Which earlier steps of its segment each step builds on: if one of them fails, it is skipped.
  void order_steps(Segment& segment) {
    if (segment.steps.size() < 2) {
      return;
    }
    std::unordered_map<uint32_t, uint32_t> writers;  // buffer -> step
    for (uint32_t i = 0; i < segment.steps.size(); ++i) {
      Step& step = segment.steps[i];
      const auto follow = [&](const View& view) {
        const auto writer = writers.find(view.buffer);
        if (writer != writers.end() && !(view.fresh || view.overwritten)) {
          step.after.push_back(writer->second);
        }
      };
      std::for_each(step.operands.begin(), step.operands.end(), follow);
      for (const View& view : step.operands) {
        if (view.written) {
          writers[view.buffer] = i;
        }
      }
      for (const View& view : step.outputs) {
        writers[view.buffer] = i;
      }
    }
  }

  // Temporaries that several segments use have memory from their first write to their last use.
  // What that amounts to at most, if segments run in the order of the plan.
  void measure_temporaries() {
    std::vector<int64_t> change(c_.plan.segments.size() + 1, 0);
    for (size_t b = 0; b < states_.size(); ++b) {
      const BufferState& state = states_[b];
      if (state.touched && !c_.print.outlives[b] && !state.scratch) {
        const auto nbytes = static_cast<int64_t>(resolve(c_.nodes, state.ref).nbytes());
        change[state.first] += nbytes;
        change[state.last + 1] -= nbytes;
      }
    }
    int64_t live = 0;
    for (const int64_t nbytes : change) {
      live += nbytes;
      c_.plan.temporary_bytes = std::max(c_.plan.temporary_bytes, live);
    }
  }

  void find_last_uses() {
    std::vector<std::vector<uint32_t>> users(c_.nodes.size());
    for (uint32_t s = 0; s < c_.plan.segments.size(); ++s) {
      for (const Step& step : c_.plan.segments[s].steps) {
        auto& list = users[step.node];
        if (list.empty() || list.back() != s) {
          list.push_back(s);
        }
      }
    }
    for (uint32_t n = 0; n < users.size(); ++n) {
      if (users[n].size() == 1) {
        c_.plan.segments[users[n][0]].last_use_of.push_back(n);
      } else if (users[n].size() > 1) {
        const auto index = static_cast<uint32_t>(c_.plan.shared.size());
        c_.plan.shared.push_back({n, static_cast<uint32_t>(users[n].size())});
        for (const uint32_t s : users[n]) {
          c_.plan.segments[s].shares.push_back(index);
        }
      }
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
