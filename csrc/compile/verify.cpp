#include "compile/verify.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "compile/scratch_tile.h"

namespace tiledev {

namespace {

// A live node must not read what a dropped node should have written.
void verify_live_nodes(const Compilation& c, const char* pass) {
  std::vector<uint8_t> missing(c.print.outlives.size(), 0);
  for (size_t i = 0; i < c.nodes.size(); ++i) {
    const uint32_t* access = c.print.accesses.data() + c.first_access[i];
    for_each_access(c.nodes[i], [&](const Buffer&, bool reads, bool writes, bool) {
      TORCH_INTERNAL_ASSERT(!(c.live[i] && reads && missing[*access]), "[", pass, "] node ", i,
                            " (", c.nodes[i].name(), ") reads what a dropped node writes");
      if (!c.live[i] && writes) {
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

// In which segment, and where in it, the parts of a node run: the first and the last of them.
struct Place {
  int64_t first = -1;
  int64_t last = -1;
  bool parted = false;  // they are several, or other ops than the node's
};

std::vector<Place> places(const Compilation& c) {
  std::vector<Place> result(c.nodes.size());
  int64_t time = 0;
  for (const Segment& segment : c.plan.segments) {
    for (const Step& step : segment.steps) {
      Place& place = result[step.node];
      place.parted |= place.first >= 0 || step.signature != c.nodes[step.node].signature;
      place.first = place.first < 0 ? time : place.first;
      place.last = time++;
    }
  }
  return result;
}

// Segments run in an order that keeps every pair of accesses to one buffer, with a write among
// them, in program order. (Parts of nodes that were taken apart are checked by their tensors.)
void verify_order(const Compilation& c, const char* pass) {
  struct State {
    int64_t writer = -1;
    std::vector<uint32_t> readers;
  };
  const std::vector<Place> place = places(c);
  std::vector<State> states(c.print.outlives.size());
  const auto check = [&](int64_t before, uint32_t after) {
    const bool parted = place[before].parted || place[after].parted;
    TORCH_INTERNAL_ASSERT(parted || place[before].last < place[after].first, "[", pass, "] node ",
                          after, " (", c.nodes[after].name(), ") runs before node ", before, " (",
                          c.nodes[before].name(), "), which it depends on");
  };
  for (uint32_t n = 0; n < c.nodes.size(); ++n) {
    if (!c.live[n]) {
      continue;
    }
    TORCH_INTERNAL_ASSERT(place[n].first >= 0, "[", pass, "] live node ", n, " runs nowhere");
    const uint32_t* access = c.print.accesses.data() + c.first_access[n];
    for_each_access(c.nodes[n], [&](const Buffer&, bool, bool writes, bool) {
      State& state = states[*access++];
      if (state.writer >= 0 && state.writer != n) {
        check(state.writer, n);
      }
      if (!writes) {
        state.readers.push_back(n);
        return;
      }
      for (const uint32_t reader : state.readers) {
        if (reader != n) {
          check(reader, n);
        }
      }
      state.readers.clear();
      state.writer = n;
    });
  }
}

void verify_tiles(const Segment& segment, const char* pass) {
  if (!segment.tiled() || segment.bounds.empty()) {
    return;
  }
  TORCH_INTERNAL_ASSERT(segment.bounds.front() == 0 && segment.bounds.back() == segment.extent, "[",
                        pass, "] tiles do not cover their axis");
  for (size_t t = 0; t + 1 < segment.bounds.size(); ++t) {
    TORCH_INTERNAL_ASSERT(segment.bounds[t] < segment.bounds[t + 1], "[", pass,
                          "] a tile is empty");
  }
  for (const Step& step : segment.steps) {
    const auto check = [&](const View& view) {
      TORCH_INTERNAL_ASSERT(
          view.cut_dim < 0 || view.meta.sizes[view.cut_dim] == view.factor * segment.extent, "[",
          pass, "] a view of ", step.signature->op->name, " is not cut along its segment's axis");
      TORCH_INTERNAL_ASSERT(!view.written || view.cut_dim >= 0 || view.partial || view.discarded,
                            "[", pass, "] tiles of ", step.signature->op->name,
                            " would write the same memory");
    };
    std::for_each(step.operands.begin(), step.operands.end(), check);
    std::for_each(step.outputs.begin(), step.outputs.end(), check);
  }
}

// The steps among which a step of a segment takes turns with others: a run of strips, or itself.
std::pair<uint32_t, uint32_t> turns(const Segment& segment, uint32_t i) {
  for (const StripRun& run : segment.strips) {
    if (run.first <= i && i < run.first + run.count) {
      return {run.first, run.first + run.count - 1};
    }
  }
  return {i, i};
}

// No two temporaries that live at the same time share a byte of scratch, unless one is written over
// the other by the step that ends it.
void verify_scratch(const Segment& segment, const char* pass) {
  struct Interval {
    uint32_t first, last;
    int64_t begin, end;  // bytes
  };
  std::unordered_map<uint32_t, Interval> intervals;
  for (uint32_t i = 0; i < segment.steps.size(); ++i) {
    const auto [first, last] = turns(segment, i);
    for_each_view(segment.steps[i], [&, first = first, last = last](const View& view, size_t) {
      if (!view.scratch || view.strip || view.meta.numel == 0) {
        return;
      }
      const int64_t end = view.scratch_at + view.scratch_nbytes;
      auto [it, fresh] =
          intervals.emplace(view.buffer, Interval{first, last, view.scratch_at, end});
      it->second.last = last;
      TORCH_INTERNAL_ASSERT(it->second.begin == view.scratch_at && it->second.end == end, "[", pass,
                            "] a temporary has two places");
      TORCH_INTERNAL_ASSERT(view.scratch_at >= 0 && end <= segment.scratch_bytes, "[", pass,
                            "] a temporary lies beyond the scratch");
      TORCH_INTERNAL_ASSERT(scratch_reach(view, segment) <= view.scratch_nbytes, "[", pass,
                            "] a view reaches beyond the place of its temporary");
    });
  }
  std::vector<Interval> order;
  for (const auto& [buffer, interval] : intervals) {
    order.push_back(interval);
  }
  std::sort(order.begin(), order.end(),
            [](const Interval& a, const Interval& b) { return a.first < b.first; });
  std::vector<Interval> live;
  for (const Interval& x : order) {
    std::erase_if(live, [&](const Interval& y) { return y.last < x.first; });
    for (const Interval& y : live) {
      const bool apart = x.end <= y.begin || y.end <= x.begin;
      const bool over = x.begin == y.begin && x.end == y.end && y.last == x.first;
      TORCH_INTERNAL_ASSERT(apart || over, "[", pass, "] two live temporaries share scratch");
    }
    live.push_back(x);
  }
}

// Strips of a temporary that has no tile are written before they are read, and by nobody else until
// then.
void verify_strips(const Segment& segment, const char* pass) {
  for (const StripRun& run : segment.strips) {
    std::unordered_map<uint32_t, uint32_t> holds;  // slot -> buffer
    for (const StripCall& call : run.calls) {
      const Step& step = segment.steps[call.step];
      TORCH_INTERNAL_ASSERT(run.first <= call.step && call.step < run.first + run.count, "[", pass,
                            "] a run of strips calls a step that is not its own");
      for (const StripInput& input : call.inputs) {
        TORCH_INTERNAL_ASSERT(input.kind != StripInput::Kind::kSlot ||
                                  holds[input.slot] == step.view(input.tensor).buffer,
                              "[", pass, "] ", step.signature->op->name,
                              " reads a strip that holds something else");
        if (input.kind == StripInput::Kind::kPattern) {
          holds.erase(input.slot);
        }
      }
      if (call.slot >= 0) {
        holds[static_cast<uint32_t>(call.slot)] = step.view(call.tensor).buffer;
      }
    }
  }
}

// A plan holds for wherever its views begin: they begin where the nodes say, from the origins of
// their buffers on. In scratch, and where the graph makes a buffer, that is its own begin.
void verify_offsets(const Compilation& c, const Segment& segment, const char* pass) {
  for (const Step& step : segment.steps) {
    for_each_view(step, [&](const View& view, size_t) {
      if (view.internal) {
        return;
      }
      const int64_t origin = c.print.origins[view.buffer];
      const bool as_recorded =
          view.source.slot < 0 ? origin == 0 : view.offset_in(c.nodes) == origin + view.offset;
      TORCH_INTERNAL_ASSERT(as_recorded && view.offset >= 0 && (origin == 0 || !view.scratch), "[",
                            pass, "] a view of ", step.signature->op->name,
                            " begins where its node does not");
    });
  }
}

// What is packed once for all tiles is the same for all: read whole, and written by nobody here.
void verify_products(const Segment& segment, const char* pass) {
  for (const PackedOperand& packed : segment.packed) {
    const View& matrix = segment.steps[packed.step].operands[packed.operand];
    TORCH_INTERNAL_ASSERT(matrix.cut_dim < 0 && !matrix.scratch, "[", pass,
                          "] a packed matrix is not the same for all tiles");
    for (const Step& step : segment.steps) {
      for_each_view(step, [&](const View& view, size_t) {
        TORCH_INTERNAL_ASSERT(!view.written || view.buffer != matrix.buffer, "[", pass, "] ",
                              step.signature->op->name, " writes a matrix that is packed before");
      });
    }
  }
}

// Every pair of accesses of two segments to one buffer, with a write among them, has an edge.
void verify_edges(const Compilation& c, const char* pass) {
  struct State {
    int64_t writer = -1;
    std::vector<uint32_t> readers;
  };
  std::vector<State> states(c.print.outlives.size() + c.internal_buffers);
  const auto check = [&](int64_t from, uint32_t to) {
    const auto& successors = c.plan.segments[from].successors;
    TORCH_INTERNAL_ASSERT(
        from == to || std::find(successors.begin(), successors.end(), to) != successors.end(), "[",
        pass, "] segment ", to, " does not wait for segment ", from);
  };
  for (uint32_t s = 0; s < c.plan.segments.size(); ++s) {
    for (const Step& step : c.plan.segments[s].steps) {
      const auto visit = [&](const View& view) {
        State& state = states[view.buffer];
        if (state.writer >= 0) {
          check(state.writer, s);
        }
        if (!view.written) {
          state.readers.push_back(s);
          return;
        }
        for (const uint32_t reader : state.readers) {
          check(reader, s);
        }
        state.readers.clear();
        state.writer = s;
      };
      std::for_each(step.operands.begin(), step.operands.end(), visit);
      std::for_each(step.outputs.begin(), step.outputs.end(), visit);
    }
  }
}

}  // namespace

void verify_compilation(const Compilation& c, const char* pass) {
  const std::string_view name = pass;
  if (name == "dead_nodes") {
    verify_live_nodes(c, pass);
  }
  if (name == "dead_nodes" || name == "lower" || name == "axis_groups") {
    return;
  }
  verify_order(c, pass);
  for (const Segment& segment : c.plan.segments) {
    verify_tiles(segment, pass);
    verify_offsets(c, segment, pass);
    verify_strips(segment, pass);
    verify_products(segment, pass);
    if (name == "scratch" || name == "dependences") {
      verify_scratch(segment, pass);
    }
  }
  if (name == "dependences") {
    verify_edges(c, pass);
  }
}

}  // namespace tiledev
