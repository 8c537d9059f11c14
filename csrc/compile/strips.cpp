// Which elementwise steps go over a tile together, strip by strip. A tile of each tensor fits L2; a
// strip of all of them fits L1, which is several times as fast.

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "compile/pipeline.h"
#include "compile/strip_call.h"

namespace tiledev {

namespace {

// Puts the calls of a segment together to runs.
class RunBuilder {
 public:
  RunBuilder(const std::vector<Node>& nodes, Segment& segment) : nodes_(nodes), segment_(segment) {
    for (uint32_t i = 0; i < segment.steps.size(); ++i) {
      for_each_view(segment.steps[i], [&](const View& view, size_t) {
        uses_.emplace(view.buffer, Lifetime{i, i}).first->second.last = i;
      });
    }
  }

  void run() {
    for (uint32_t i = 0; i < segment_.steps.size(); ++i) {
      auto call = strip_call(nodes_, segment_, i);
      if (!call) {
        close();
        continue;
      }
      if (!fits(*call)) {
        close();
      }
      add(std::move(*call));
    }
    close();
    for (StripRun& run : segment_.strips) {
      assign_slots(run);
    }
  }

 private:
  // The first and the last step of the segment that use a buffer.
  struct Lifetime {
    uint32_t first = 0, last = 0;
  };

  // How a run accesses a buffer.
  struct Access {
    int64_t offset = 0;
    bool whole = false;  // every access is of this part, element by element
    bool written = false;
  };

  int64_t elements(const StripCall& call) const {
    return segment_.steps[call.step].view(call.tensor).meta.numel / segment_.extent;
  }

  template <typename F>
  void for_each_access(const StripCall& call, F&& f) const {
    const Step& step = segment_.steps[call.step];
    for (const StripInput& input : call.inputs) {
      if (input.kind == StripInput::Kind::kTile || input.kind == StripInput::Kind::kPattern) {
        const View& view = step.view(input.tensor);
        f(view, Access{view.offset, input.kind == StripInput::Kind::kTile, false});
      }
    }
    const View& out = step.view(call.tensor);
    f(out, Access{out.offset, true, true});
  }

  // Strips part what tiles held together: a buffer that the run writes must be accessed in the same
  // way by all of its steps.
  bool fits(const StripCall& call) const {
    bool fits = calls_.empty() || elements(call) == elements(calls_.front());
    for_each_access(call, [&](const View& view, const Access& now) {
      const auto known = accesses_.find(view.buffer);
      if (known != accesses_.end() && (known->second.written || now.written)) {
        fits &= known->second.whole && now.whole && known->second.offset == now.offset;
      }
    });
    return fits;
  }

  void add(StripCall call) {
    for_each_access(call, [&](const View& view, const Access& now) {
      auto [known, fresh] = accesses_.emplace(view.buffer, now);
      if (!fresh) {
        known->second.whole &= now.whole && known->second.offset == now.offset;
        known->second.written |= now.written;
      }
    });
    calls_.push_back(std::move(call));
  }

  void close() {
    if (!calls_.empty()) {
      StripRun run;
      run.first = calls_.front().step;
      run.count = static_cast<uint32_t>(calls_.size());
      run.elements = elements(calls_.front());
      run.calls = std::move(calls_);
      segment_.strips.push_back(std::move(run));
    }
    calls_.clear();
    accesses_.clear();
  }

  // ---- what stays in strips --------------------------------------------------------------------

  std::unordered_map<uint32_t, Lifetime> find_kept(const StripRun& run) const {
    std::unordered_map<uint32_t, Lifetime> kept;
    std::unordered_map<uint32_t, bool> broadcast;
    for (const StripCall& call : run.calls) {
      for_each_access(
          call, [&](const View& view, const Access& now) { broadcast[view.buffer] |= !now.whole; });
    }
    for (const StripCall& call : run.calls) {
      const View& out = segment_.steps[call.step].view(call.tensor);
      const auto [first, last] = uses_.at(out.buffer);
      // An op that is in scratch begins with a write of all of it.
      if (out.scratch && !broadcast[out.buffer] && first >= run.first &&
          last < run.first + run.count) {
        kept[out.buffer] = {first, last};
      }
    }
    return kept;
  }

  void assign_slots(StripRun& run) {
    const auto kept = find_kept(run);
    std::unordered_map<uint32_t, uint32_t> slot_of;  // buffer -> slot
    std::vector<uint32_t> free;
    const auto take = [&] {
      if (free.empty()) {
        return run.slots++;
      }
      const uint32_t slot = free.back();
      free.pop_back();
      return slot;
    };
    for (StripCall& call : run.calls) {
      Step& step = segment_.steps[call.step];
      std::vector<uint32_t> done;
      for (StripInput& input : call.inputs) {
        if (input.kind == StripInput::Kind::kNumber) {
          ++run.numbers;
        } else if (input.kind == StripInput::Kind::kPattern) {
          input.slot = take();
          done.push_back(input.slot);
        } else if (const auto found = slot_of.find(step.view(input.tensor).buffer);
                   found != slot_of.end()) {
          input.kind = StripInput::Kind::kSlot;
          input.slot = found->second;
        }
      }
      place_result(run, call, kept, slot_of, take, done);
      for (const StripInput& input : call.inputs) {
        const uint32_t buffer = step.view(input.tensor).buffer;
        const auto life = kept.find(buffer);
        if (input.kind == StripInput::Kind::kSlot && life != kept.end() &&
            life->second.last == call.step && slot_of.erase(buffer) > 0) {
          done.push_back(input.slot);
        }
      }
      free.insert(free.end(), done.begin(), done.end());
      for_each_view(step, [&](View& view, size_t) { view.strip = kept.count(view.buffer) > 0; });
    }
  }

  template <typename Take>
  void place_result(StripRun& run, StripCall& call,
                    const std::unordered_map<uint32_t, Lifetime>& kept,
                    std::unordered_map<uint32_t, uint32_t>& slot_of, Take& take,
                    std::vector<uint32_t>& done) {
    const View& out = segment_.steps[call.step].view(call.tensor);
    if (kept.count(out.buffer) == 0) {
      if (may_stream(out)) {
        call.may_stream = true;
        call.slot = static_cast<int32_t>(take());
        done.push_back(static_cast<uint32_t>(call.slot));
      }
      return;
    }
    const auto known = slot_of.find(out.buffer);
    const uint32_t slot = known != slot_of.end() ? known->second : take();
    call.slot = static_cast<int32_t>(slot);
    if (kept.at(out.buffer).last == call.step) {
      slot_of.erase(out.buffer);  // nobody reads it
      done.push_back(slot);
    } else {
      slot_of[out.buffer] = slot;
    }
  }

  // Whether it may be written past the caches: nobody else in the segment uses it.
  bool may_stream(const View& out) const {
    const auto [first, last] = uses_.at(out.buffer);
    return !out.scratch && out.fresh && first == last;
  }

  const std::vector<Node>& nodes_;
  Segment& segment_;
  std::unordered_map<uint32_t, Lifetime> uses_;  // by buffer
  std::vector<StripCall> calls_;
  std::unordered_map<uint32_t, Access> accesses_;  // of calls_
};

}  // namespace

void form_strips(Compilation& c) {
  for (Segment& segment : c.plan.segments) {
    if (segment.tiled()) {
      RunBuilder(c.nodes, segment).run();
    }
  }
}

}  // namespace tiledev
