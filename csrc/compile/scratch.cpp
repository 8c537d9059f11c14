// Which temporaries live in a worker's scratch, and where. A buffer that only one segment touches
// and that nobody outside can see never gets memory of its own: each worker holds the tile that it
// works on.
//
// Two passes: find_temporaries says which, place_scratch where.

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <vector>

#include "compile/pipeline.h"
#include "compile/scratch_tile.h"

namespace tiledev {

namespace {

constexpr int64_t kAlignment = 64;
constexpr uint32_t kNoSegment = UINT32_MAX;

struct Usage {
  uint32_t segment = kNoSegment;
  bool many = false;      // several segments use it
  bool starts = false;    // the first access writes all of it
  bool excluded = false;  // seen by a node that runs as recorded, partial, or not cut
};

class TemporaryFinder {
 public:
  explicit TemporaryFinder(Compilation& c)
      : c_(c), usage_(c.print.outlives.size() + c.internal_buffers) {}

  void run() {
    for (uint32_t s = 0; s < c_.plan.segments.size(); ++s) {
      for (Step& step : c_.plan.segments[s].steps) {
        note(step, s);
      }
    }
    for (Segment& segment : c_.plan.segments) {
      for (Step& step : segment.steps) {
        for_each_view(step, [&](View& view, size_t) { view.scratch = eligible(view.buffer); });
      }
    }
  }

 private:
  bool internal(uint32_t buffer) const { return buffer >= c_.print.outlives.size(); }

  void note(Step& step, uint32_t s) {
    const Segment& segment = c_.plan.segments[s];
    for_each_view(step, [&](View& view, size_t) {
      Usage& usage = usage_[view.buffer];
      if (usage.segment == kNoSegment) {
        usage.segment = s;
        usage.starts = view.fresh || replaces(view);
      }
      usage.many |= usage.segment != s;
      usage.excluded |= step.form == Step::Form::kNode || view.partial || segment.wide ||
                        unknown_kernel(step) ||
                        (segment.tiled() && view.cut_dim < 0 && !view.discarded) ||
                        (segment.tiled() && view.span == 0 && !view.discarded);
    });
  }

  // Kernels without a rule may look at whole storages.
  static bool unknown_kernel(const Step& step) { return rule_of(*step.signature) == nullptr; }

  bool replaces(const View& view) const {
    return view.source.slot >= 0 && c_.nodes[view.source.node].replaces(view.source.slot);
  }

  bool eligible(uint32_t buffer) const {
    const Usage& usage = usage_[buffer];
    if (internal(buffer)) {
      TORCH_INTERNAL_ASSERT(!usage.many, "[scratch] an internal buffer left its segment");
      return true;
    }
    return usage.starts && !usage.many && !usage.excluded && !c_.print.outlives[buffer];
  }

  Compilation& c_;
  std::vector<Usage> usage_;
};

class ScratchPlanner {
 public:
  explicit ScratchPlanner(Segment& segment) : segment_(segment) {}

  void run() {
    find_places();
    count_traffic();
  }

 private:
  struct Interval {
    uint32_t first = 0, last = 0;  // steps
    int64_t nbytes = 0;
    int64_t at = -1;
  };

  // What a run of the segment moves between memory and the cores, if the cache holds a tile.
  void count_traffic() {
    std::map<std::pair<uint32_t, int64_t>, std::pair<bool, bool>> seen;  // read, written
    for (Step& step : segment_.steps) {
      for_each_view(step, [&](View& view, size_t) {
        if (view.scratch) {
          return;
        }
        const int64_t bytes =
            view.meta.numel * static_cast<int64_t>(c10::elementSize(view.meta.dtype));
        auto& [read, written] = seen[{view.buffer, bytes}];
        read |= !view.written || !(view.fresh || view.overwritten);
        written |= view.written;
      });
    }
    for (const auto& [key, how] : seen) {
      segment_.bytes_read += how.first ? key.second : 0;
      segment_.bytes_written += how.second ? key.second : 0;
    }
  }

  void find_places() {
    std::map<uint32_t, Interval> intervals;
    auto run = segment_.strips.begin();
    for (uint32_t i = 0; i < segment_.steps.size(); ++i) {
      run = std::find_if(run, segment_.strips.end(),
                         [i](const StripRun& r) { return i < r.first + r.count; });
      // The steps of a run of strips take turns: none of what they use begins or ends between them.
      const bool in_run = run != segment_.strips.end() && i >= run->first;
      const uint32_t first = in_run ? run->first : i;
      const uint32_t last = in_run ? run->first + run->count - 1 : i;
      for_each_view(segment_.steps[i], [&](View& view, size_t) {
        if (!view.scratch || view.strip) {
          return;
        }
        auto [it, fresh] = intervals.emplace(view.buffer, Interval{first, last, 0, -1});
        it->second.last = last;
        it->second.nbytes = std::max(it->second.nbytes, scratch_reach(view, segment_));
      });
    }
    if (intervals.empty()) {
      return;
    }
    assign(intervals);
    for (Step& step : segment_.steps) {
      for_each_view(step, [&](View& view, size_t) {
        if (auto it = intervals.find(view.buffer); it != intervals.end()) {
          view.scratch_at = it->second.at;
          view.scratch_nbytes = it->second.nbytes;
        }
      });
    }
  }

  // First fit, in the order of steps.
  void assign(std::map<uint32_t, Interval>& intervals) {
    std::vector<std::pair<uint32_t, Interval*>> order;
    for (auto& [buffer, interval] : intervals) {
      interval.nbytes = (interval.nbytes + kAlignment - 1) / kAlignment * kAlignment;
      order.emplace_back(buffer, &interval);
    }
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return a.second->first < b.second->first;
    });
    std::vector<Interval*> placed;
    for (auto& [buffer, interval] : order) {
      if (Interval* heir = dying_input(intervals, buffer, *interval)) {
        interval->at = heir->at;
        std::erase(placed, heir);  // its place is taken over
      } else {
        interval->at = first_gap(placed, *interval);
      }
      placed.push_back(interval);
      segment_.scratch_bytes = std::max(segment_.scratch_bytes, interval->at + interval->nbytes);
    }
  }

  static int64_t first_gap(std::vector<Interval*>& placed, const Interval& interval) {
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (const Interval* other : placed) {
      if (other->last >= interval.first) {
        taken.emplace_back(other->at, other->at + other->nbytes);
      }
    }
    std::sort(taken.begin(), taken.end());
    int64_t at = 0;
    for (const auto& [begin, end] : taken) {
      if (begin - at >= interval.nbytes) {
        break;
      }
      at = std::max(at, end);
    }
    return at;
  }

  // An elementwise step may write its result over an input of the same shape that ends with it.
  Interval* dying_input(std::map<uint32_t, Interval>& intervals, uint32_t buffer,
                        const Interval& interval) const {
    const Step& step = segment_.steps[interval.first];
    if (step.form != Step::Form::kOut || step.outputs.size() != 1 ||
        step.outputs[0].buffer != buffer) {
      return nullptr;
    }
    const TileRule* rule = rule_of(*step.signature);
    if (rule == nullptr || !rule->pointwise) {
      return nullptr;
    }
    const View& out = step.outputs[0];
    for (const View& in : step.operands) {
      const auto it = intervals.find(in.buffer);
      if (it == intervals.end() || it->second.last != interval.first || it->second.at < 0 ||
          it->second.nbytes != interval.nbytes || in.meta.dtype != out.meta.dtype ||
          in.offset != out.offset || in.meta.sizes != out.meta.sizes ||
          in.meta.strides != out.meta.strides || in.cut_dim != out.cut_dim) {
        continue;
      }
      size_t uses = 0;
      for (const View& other : step.operands) {
        uses += other.buffer == in.buffer &&
                        !(other.offset == in.offset && other.meta.strides == in.meta.strides)
                    ? 1
                    : 0;
      }
      if (uses == 0) {
        return &it->second;
      }
    }
    return nullptr;
  }

  Segment& segment_;
};

}  // namespace

void find_temporaries(Compilation& c) {
  TemporaryFinder(c).run();
}

void place_scratch(Compilation& c) {
  for (Segment& segment : c.plan.segments) {
    ScratchPlanner(segment).run();
  }
}

}  // namespace tiledev
