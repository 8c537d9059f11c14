// Which steps run together on a tile.
//
// Steps come in program order. Each goes to the earliest place that its dependences allow: into the
// segment of its latest predecessor if its tiles line up with what the segment does, else into a
// later one, else into a new one: small steps right behind their predecessors, so that they never
// part a chain, large ones at the end. In the end segments move forward to those that need them.

#include <algorithm>
#include <iterator>
#include <memory>
#include <numeric>
#include <unordered_map>

#include "compile/axes.h"
#include "compile/cost_model.h"
#include "compile/draft.h"
#include "compile/named_tilings.h"
#include "compile/out_variant.h"
#include "compile/pipeline.h"

namespace tiledev {

namespace {

// Whether unit u of the axis touches unit u of the buffer, and nothing else.
bool stays_within_tile(const TensorMeta& meta, int64_t offset, int dim, int64_t extent) {
  const int64_t span = meta.strides[dim] * meta.sizes[dim];
  const int64_t unit = span / extent;
  int64_t reach = offset % span + (meta.sizes[dim] / extent - 1) * meta.strides[dim];
  for (size_t d = 0; d < meta.sizes.size(); ++d) {
    if (static_cast<int>(d) == dim || meta.sizes[d] == 1) {
      continue;
    }
    if (meta.strides[d] >= span) {
      if (meta.strides[d] % span != 0) {
        return false;
      }
    } else {
      reach += (meta.sizes[d] - 1) * meta.strides[d];
    }
  }
  return reach < unit;
}

class SegmentBuilder {
 public:
  explicit SegmentBuilder(Compilation& c)
      : c_(c), states_(c.print.outlives.size() + c.internal_buffers), tilings_(c) {}

  void run() {
    for (Step& step : c_.steps) {
      place(step);
    }
    merge_forward(order_);
    for (Draft* draft : order_) {
      finish(*draft);
      c_.plan.segments.push_back(std::move(draft->segment));
    }
    c_.steps.clear();
  }

 private:
  struct State {
    Draft* writer = nullptr;
    c10::SmallVector<Draft*, 2> readers;
  };

  // The node's token is a buffer without a view.
  template <typename F>
  void for_each_buffer(Step& step, F&& f) {
    for_each_view(step, [&](const View& view, size_t) { f(view.buffer, view.written); });
    const Node& node = c_.nodes[step.node];
    if (node.token) {
      f(c_.print.accesses[c_.first_access[step.node] + node.operands.size()], true);
    }
  }

  // ---- where a step goes ------------------------------------------------------------------------

  void place(Step& step) {
    const int64_t first = first_position(step);
    find_candidates(step);
    named_ = named_axis(step);
    Draft* home = nullptr;
    const auto from = static_cast<size_t>(std::max<int64_t>(first, 0));
    const size_t end = std::min(order_.size(), from + kMaxTries);
    for (size_t p = from; p < end && home == nullptr; ++p) {
      // A small step that comes late would hold up those that need it.
      const bool early = static_cast<int64_t>(p) <= first + 1;
      if (join(*order_[p], step, early)) {
        home = order_[p];
      }
    }
    if (home == nullptr) {
      home = open(step, static_cast<size_t>(first + 1));
    }
    for_each_buffer(step, [&](uint32_t buffer, bool written) {
      State& state = states_[buffer];
      note_edges(state, written, home);
      if (written) {
        state.writer = home;
        state.readers.clear();
      } else if (state.readers.empty() || state.readers.back() != home) {
        state.readers.push_back(home);
      }
    });
    Segment& segment = home->segment;
    segment.work += step.work;
    segment.flops += step.flops;
    segment.steps.push_back(std::move(step));
  }

  // The axes that the step may be cut along: first those of its collapsed form.
  void find_candidates(const Step& step) {
    candidates_.clear();
    axes_ = c_.options.mode == TilingMode::kWhole || step.alone ? std::nullopt : find_axes(step);
    collapsed_ = axes_ ? collapse(step, *axes_) : std::nullopt;
    for (const auto* axes : {&collapsed_, &axes_}) {
      for (size_t a = 0; *axes && a < (*axes)->axes.size(); ++a) {
        candidates_.push_back({&**axes, a});
      }
    }
  }

  static void note_edges(const State& state, bool written, Draft* home) {
    if (state.writer != nullptr && state.writer != home) {
      state.writer->successors.insert(home);
    }
    for (Draft* reader : state.readers) {
      if (written && reader != home) {
        reader->successors.insert(home);
      }
    }
  }

  // The position of the last segment that this step depends on, or -1.
  int64_t first_position(Step& step) {
    int64_t position = -1;
    const auto after = [&](const Draft* draft) {
      if (draft != nullptr) {
        position = std::max(position, static_cast<int64_t>(draft->position));
      }
    };
    for_each_buffer(step, [&](uint32_t buffer, bool written) {
      after(states_[buffer].writer);
      if (written) {
        for (const Draft* reader : states_[buffer].readers) {
          after(reader);
        }
      }
    });
    return position;
  }

  bool is_small(const Step& step) const {
    return (step.work <= kSmallWork && step.flops <= kSmallFlops) || step.alone;
  }

  bool join(Draft& draft, Step& step, bool early) {
    const Segment& segment = draft.segment;
    switch (draft.kind) {
      case Draft::Kind::kChain:
        return early && !named_ && !(axes_ && c_.options.mode == TilingMode::kTiny) &&
               (step.alone ||
                (is_small(step) && segment.work <= kChainWork && segment.flops <= kSmallFlops * 8));
      case Draft::Kind::kTiled:
        return join_tiled(draft, step);
      default:
        return false;
    }
  }

  Draft* insert(size_t position, Draft::Kind kind) {
    drafts_.push_back(std::make_unique<Draft>());
    Draft* draft = drafts_.back().get();
    draft->kind = kind;
    order_.insert(order_.begin() + static_cast<std::ptrdiff_t>(position), draft);
    for (size_t p = position; p < order_.size(); ++p) {
      order_[p]->position = p;
    }
    return draft;
  }

  Draft* open(Step& step, size_t position) {
    const bool tiny = c_.options.mode == TilingMode::kTiny;
    if (axes_ && (tiny || !is_small(step) || named_)) {
      if (auto candidate = named_ ? named_ : first_axis(step)) {
        Draft* draft = insert(order_.size(), Draft::Kind::kTiled);
        draft->extent = candidate->extent();
        draft->tiling = tilings_.find(step, *candidate);
        commit(*draft, step, *candidate);
        return draft;
      }
    }
    Draft* draft = is_small(step) ? insert(position, Draft::Kind::kChain)
                                  : insert(order_.size(), Draft::Kind::kWide);
    draft->segment.whole_reason = whole_reason(step);
    return draft;
  }

  std::string whole_reason(const Step& step) const {
    if (is_small(step)) {
      return "small";
    }
    if (c_.options.mode == TilingMode::kWhole) {
      return "tiling is off";
    }
    if (!step.signature) {
      return "a host call";
    }
    if (c_.nodes[step.node].token) {
      return "draws random numbers";
    }
    return rule_of(*step.signature) == nullptr ? "no tile rule" : "no axis that can be cut";
  }

  // ---- tiled segments ---------------------------------------------------------------------------

  // Enough units that all workers have something to do.
  int64_t wanted_units() const { return 2 * planned_workers(c_.options); }

  // The outermost axis whose tiles the user chose.
  std::optional<Candidate> named_axis(const Step& step) const {
    for (const Candidate& candidate : candidates_) {
      if (tilings_.find(step, candidate) != nullptr && opens(step, candidate)) {
        return candidate;
      }
    }
    return std::nullopt;
  }

  std::optional<Candidate> first_axis(const Step& step) const {
    std::optional<Candidate> best;
    for (const Candidate& candidate : candidates_) {
      if (!opens(step, candidate)) {
        continue;
      }
      if (candidate.extent() >= wanted_units()) {
        return candidate;
      }
      if (!best || candidate.extent() > best->extent()) {
        best = candidate;
      }
    }
    return best;
  }

  bool opens(const Step& step, const Candidate& candidate) const {
    Draft empty;
    empty.extent = candidate.extent();
    return lines_up(empty, step, candidate, empty.extent).possible;
  }

  struct Fit {
    bool possible = false;
    bool shares = false;  // a buffer that the segment cuts the same way
  };

  // Whether the step's tiles along this axis can run with those of the segment.
  Fit lines_up(const Draft& draft, const Step& step, const Candidate& candidate,
               int64_t extent) const {
    const StepAxes& axes = *candidate.axes;
    const Axis& axis = axes.axes[candidate.axis];
    Fit fit{true, false};
    // A step may name one buffer several times: what it did itself counts, too.
    c10::SmallVector<std::pair<size_t, Cut>, 4> own;  // by tensor
    for (size_t t = 0; t < axes.metas.size(); ++t) {
      const View& view = step.view(t);
      const Cut now = cut_of(view, axes.metas[t], axis.dims[t], extent);
      if (now.partial || view.discarded) {
        if (!view.fresh && !view.discarded && draft.cuts.count(view.buffer) > 0) {
          return {};  // what was there before is still read
        }
        continue;
      }
      if (view.written && (now.span == 0 || !now.plain)) {
        return {};
      }
      const auto known = draft.cuts.find(view.buffer);
      if (known != draft.cuts.end() && !agree(known->second, now)) {
        return {};
      }
      for (const auto& [other, cut] : own) {
        const View& before = step.view(other);
        const bool one = before.buffer == view.buffer;
        // Tiles of overlapping views may overlap in ways that the whole views do not.
        const bool differ = before.offset != view.offset ||
                            axes.metas[other].sizes != axes.metas[t].sizes ||
                            axes.metas[other].strides != axes.metas[t].strides;
        if (one && (!agree(cut, now) || (differ && (cut.written || now.written)))) {
          return {};
        }
      }
      fit.shares |= known != draft.cuts.end() && now.span > 0 && known->second.span == now.span;
      own.emplace_back(t, now);
    }
    return fit;
  }

  static Cut cut_of(const View& view, const TensorMeta& meta, int dim, int64_t extent) {
    Cut cut;
    cut.span = span_of(meta, dim);
    cut.written = view.written;
    cut.partial = (view.fresh || view.overwritten) && dim < 0 && !view.discarded;
    cut.plain = cut.span > 0 && stays_within_tile(meta, view.offset, dim, extent);
    return cut;
  }

  bool join_tiled(Draft& draft, Step& step) {
    if (!axes_ || (named_ && draft.tiling == nullptr)) {
      return false;
    }
    for (const Candidate& candidate : candidates_) {
      const int64_t extent = std::gcd(draft.extent, candidate.extent());
      if (!allows(draft, extent) || !same_tiles(draft, step, candidate)) {
        continue;
      }
      const Fit fit = lines_up(draft, step, candidate, extent);
      if (fit.possible && fit.shares) {
        draft.extent = extent;
        commit(draft, step, candidate);
        return true;
      }
    }
    return false;
  }

  // Not if the user wants other tiles along this axis.
  bool same_tiles(const Draft& draft, const Step& step, const Candidate& candidate) const {
    const NamedTiling* tiling = tilings_.find(step, candidate);
    return tiling == nullptr || tiling == draft.tiling;
  }

  // Whether the segment may have so few units.
  bool allows(const Draft& draft, int64_t extent) const {
    if (draft.tiling != nullptr && !NamedTilings::representable(*draft.tiling, extent)) {
      return false;
    }
    return extent >= 2 &&
           (extent == draft.extent || extent >= wanted_units() || draft.tiling != nullptr);
  }

  void commit(Draft& draft, Step& step, const Candidate& candidate) {
    const StepAxes& axes = *candidate.axes;
    const Axis& axis = axes.axes[candidate.axis];
    for_each_view(step, [&](View& view, size_t t) {
      const Cut now = cut_of(view, axes.metas[t], axis.dims[t], draft.extent);
      view.meta = axes.metas[t];
      view.cut_dim = axis.dims[t];
      view.factor = axis.extent;  // of elements; per unit once the extent is final
      view.span = view.cut_dim < 0 ? 0 : view.meta.strides[view.cut_dim] * axis.extent;
      view.partial = now.partial;
      if (view.discarded) {
        return;
      }
      auto [known, fresh] = draft.cuts.emplace(view.buffer, now);
      if (!fresh) {
        Cut& cut = known->second;
        cut.plain &= now.plain && cut.span == now.span;
        cut.written |= now.written;
      }
    });
    for (const auto& patch : axes.patches) {
      step.patches.push_back(patch);
    }
    set_reduction(step, axis);
    const auto* kernel = axis.reduced || step.form == Step::Form::kInPlace ||
                                 step.outputs.empty() ||
                                 step.outputs.size() != step.signature->op->returns.size()
                             ? nullptr
                             : tile_kernel(*step.signature->op, step.outputs[0].meta.dtype);
    if (kernel != nullptr) {
      step.form = Step::Form::kOut;
      step.callee = *kernel;
    } else if (const auto* form = tile_form(*step.signature->op);
               form != nullptr && step.form == Step::Form::kFunctional) {
      step.callee = *form;
    }
    if (step.form == Step::Form::kOut && ignores_strides(*step.signature->op) &&
        step.outputs[0].cut_dim > 0) {
      step.form = Step::Form::kFunctional;
      step.callee = step.signature->op->op;
    }
    if (axes.extent_axis == static_cast<int>(candidate.axis)) {
      const auto index = step.signature->op->op.schema().argumentIndexWithName(
          rule_of(*step.signature)->extent_arg);
      step.extent_arg = index ? static_cast<int32_t>(*index) : -1;
    }
    step.extent_factor = axis.extent;
  }

  // Parts of a mean are sums.
  static void set_reduction(Step& step, const Axis& axis) {
    if (!axis.reduced) {
      return;
    }
    step.combine = rule_of(*step.signature)->combine;
    step.accumulates = step.signature->op->name == "aten::mm" && step.form == Step::Form::kOut;
    if (!step.accumulates) {
      step.form = Step::Form::kFunctional;
      step.callee = step.signature->op->op;
    }
    if (step.combine == Combine::kMean) {
      const auto& to = step.outputs[0].meta;
      step.mean_of = static_cast<double>(step.operands[0].meta.numel) /
                     static_cast<double>(std::max<int64_t>(1, to.numel));
      step.callee = c10::Dispatcher::singleton().findSchemaOrThrow(
          "aten::sum", step.signature->op->name == "aten::mean" ? "" : "dim_IntList");
    }
  }

  void finish(Draft& draft) {
    Segment& segment = draft.segment;
    segment.wide = draft.kind == Draft::Kind::kWide;
    for (Step& step : segment.steps) {
      if (segment.wide && step.form == Step::Form::kFunctional && step.patches.empty()) {
        step.form = Step::Form::kNode;  // its result becomes the buffer's memory
      }
    }
    for (Step& step : segment.steps) {
      if (draft.kind != Draft::Kind::kChain || step.form != Step::Form::kOut) {
        continue;
      }
      if (const auto* kernel = small_kernel(*step.signature->op, step.outputs[0].meta.dtype)) {
        step.callee = *kernel;
      }
    }
    if (draft.kind != Draft::Kind::kTiled) {
      return;
    }
    segment.extent = draft.extent;
    if (draft.tiling != nullptr) {
      for (const int64_t bound : draft.tiling->bounds) {
        segment.bounds.push_back(bound * draft.extent / draft.tiling->extent);
      }
    }
    for (Step& step : segment.steps) {
      step.extent_factor /= draft.extent;
      for_each_view(step, [&](View& view, size_t) { view.factor /= draft.extent; });
    }
  }

  static constexpr size_t kMaxTries = 24;

  Compilation& c_;
  std::vector<State> states_;
  std::vector<std::unique_ptr<Draft>> drafts_;
  std::vector<Draft*> order_;
  const NamedTilings tilings_;
  std::optional<StepAxes> axes_, collapsed_;  // of the step that is being placed
  std::vector<Candidate> candidates_;
  std::optional<Candidate> named_;  // its axis with tiles that the user chose
};

}  // namespace

void form_segments(Compilation& c) {
  SegmentBuilder(c).run();
}

}  // namespace tiledev
