// Which elementwise steps go over a tile together, strip by strip. A tile of each tensor fits L2; a
// strip of all of them fits L1, which is several times as fast.

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "compile/pipeline.h"

namespace tiledev {

namespace {

std::string_view base_name(const OpTraits& op) {
  std::string_view name = op.name;
  if (name.rfind("aten::", 0) != 0) {
    return {};
  }
  name.remove_prefix(6);
  name = name.substr(0, name.find('.'));
  return !name.empty() && name.back() == '_' ? name.substr(0, name.size() - 1) : name;
}

bool same_layout(const TensorMeta& a, const TensorMeta& b) {
  if (a.sizes != b.sizes) {
    return false;
  }
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.sizes[d] != 1 && a.strides[d] != b.strides[d]) {
      return false;
    }
  }
  return true;
}

// Whether the elements fill their memory, each place once.
bool dense(const TensorMeta& meta) {
  c10::SmallVector<std::pair<int64_t, int64_t>, 5> dims;  // stride, size
  for (size_t d = 0; d < meta.sizes.size(); ++d) {
    if (meta.sizes[d] != 1) {
      dims.emplace_back(meta.strides[d], meta.sizes[d]);
    }
  }
  std::sort(dims.begin(), dims.end());
  int64_t expected = 1;
  for (const auto& [stride, size] : dims) {
    if (stride != expected) {
      return false;
    }
    expected *= size;
  }
  return meta.numel > 0;
}

bool contiguous(const TensorMeta& meta) {
  int64_t expected = 1;
  for (size_t d = meta.sizes.size(); d-- > 0;) {
    if (meta.sizes[d] != 1 && meta.strides[d] != expected) {
      return false;
    }
    expected *= meta.sizes[d];
  }
  return true;
}

bool plain_float(const TensorMeta& meta) {
  return meta.dtype == at::kFloat && !meta.neg && !meta.conj;
}

// Whether the tile of a view lies in memory without gaps.
bool dense_tile(const View& view) {
  return view.cut_dim >= 0 && plain_float(view.meta) && dense(view.meta) &&
         (view.scratch || view.span == view.meta.numel);
}

// The call that runs one step strip by strip, if there is one.
class CallBuilder {
 public:
  CallBuilder(const std::vector<Node>& nodes, const Segment& segment, uint32_t i)
      : node_(nodes[segment.steps[i].node]), segment_(segment), step_(segment.steps[i]) {
    call_.step = i;
  }

  std::optional<StripCall> run() {
    if (step_.form == Step::Form::kNode || !step_.signature || step_.combine != Combine::kNone ||
        !step_.patches.empty() || !find_output()) {
      return std::nullopt;
    }
    op_ = find_strip_op(base_name(*step_.signature->op));
    if (op_ == nullptr || !covers_arguments()) {
      return std::nullopt;
    }
    call_.op = op_;
    for (size_t i = 0; i < op_->inputs.size() && !op_->inputs[i].empty(); ++i) {
      if (!add_input(i)) {
        return std::nullopt;
      }
    }
    if (op_->accepts != nullptr && !accepts_last()) {
      return std::nullopt;
    }
    return std::move(call_);
  }

 private:
  const View& out() const { return step_.view(call_.tensor); }

  // One tensor is written, and its tile has no gaps.
  bool find_output() {
    size_t written = 0;
    for_each_view(step_, [&](const View& view, size_t t) {
      if (view.written) {
        ++written;
        call_.tensor = static_cast<uint32_t>(t);
      }
    });
    return written == 1 && !out().partial && !out().discarded && dense_tile(out());
  }

  bool is_input(std::string_view name) const {
    return std::find(op_->inputs.begin(), op_->inputs.end(), name) != op_->inputs.end();
  }

  // Every argument is an input, the result, or has the value that the kernel stands for.
  bool covers_arguments() const {
    const auto& arguments = step_.signature->op->op.schema().arguments();
    for (size_t a = 0; a < arguments.size(); ++a) {
      const auto& argument = arguments[a];
      const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
      if (written || is_input(argument.name())) {
        continue;
      }
      if (argument.name() != op_->argument || a >= step_.signature->args.size()) {
        return false;
      }
      const c10::IValue& value = step_.signature->args[a].constant;
      if (!op_->value.empty() && !(value.isString() && value.toStringRef() == op_->value)) {
        return false;
      }
    }
    return true;
  }

  bool add_input(size_t i) {
    const auto& schema = step_.signature->op->op.schema();
    const auto index = schema.argumentIndexWithName(std::string(op_->inputs[i]));
    if (!index || static_cast<size_t>(*index) >= step_.signature->args.size()) {
      return false;
    }
    const ArgSlot& slot = step_.signature->args[*index];
    StripInput input;
    input.arg = static_cast<uint32_t>(*index);
    input.missing = op_->missing[i];
    if (slot.kind == ArgKind::kTensor) {
      const TensorRef& ref = step_.signature->tensor_refs[slot.begin];
      if (ref.kind == TensorRef::Kind::kOperand) {
        return add_tensor(input, ref.index);
      }
      if (ref.kind == TensorRef::Kind::kValue) {
        return add_number(input);
      }
    }
    if (slot.kind == ArgKind::kScalar || slot.kind == ArgKind::kScalarList) {
      return add_number(input);
    }
    if (slot.kind == ArgKind::kConstant || slot.kind == ArgKind::kTensor) {
      const bool none = slot.constant.isNone() && input.missing == input.missing;
      return (none || slot.constant.isDouble() || slot.constant.isInt() ||
              slot.constant.isBool()) &&
             add_number(input);
    }
    return false;
  }

  bool add_number(StripInput input) {
    input.kind = StripInput::Kind::kNumber;
    call_.inputs.push_back(input);
    return true;
  }

  bool add_tensor(StripInput input, uint32_t t) {
    const View& view = step_.operands[t];
    input.tensor = t;
    if (!plain_float(view.meta)) {
      return false;
    }
    if (same_layout(view.meta, out().meta)) {
      if (!dense_tile(view) || view.cut_dim != out().cut_dim) {
        return false;
      }
      input.kind = StripInput::Kind::kTile;
    } else if (!find_pattern(view, input)) {
      return false;
    }
    call_.inputs.push_back(input);
    return true;
  }

  // Dimensions of the result that the view lacks may stand before and behind those it has.
  bool find_pattern(const View& view, StripInput& input) const {
    const TensorMeta& to = out().meta;
    if (!contiguous(to) || view.meta.sizes.size() > to.sizes.size()) {
      return false;
    }
    input.kind = StripInput::Kind::kPattern;
    int64_t repeat = 1, period = 1, stride = 1;
    bool before = false;  // a missing dimension stands before those it has
    for (size_t d = to.sizes.size(); d-- > 0;) {
      const size_t missing = to.sizes.size() - view.meta.sizes.size();
      const bool has =
          d >= missing && view.meta.sizes[d - missing] != 1 && view.meta.strides[d - missing] != 0;
      if (to.sizes[d] == 1) {
        continue;
      }
      if (!has) {
        before |= period > 1;
        repeat *= period > 1 ? 1 : to.sizes[d];
        continue;
      }
      stride = period == 1 ? view.meta.strides[d - missing] : stride;
      if (before || view.meta.strides[d - missing] != period * stride) {
        return false;  // it would stop and go on
      }
      period *= to.sizes[d];
    }
    input.repeat = repeat;
    input.stride = stride;
    if (view.cut_dim >= 0) {
      // Its tile lies alone if nothing stands before the dimension that is cut.
      return !before && (view.scratch || view.span == period * stride);
    }
    input.period = period;
    return period == 1 || elements_of_unit(to) % (repeat * period) == 0;
  }

  int64_t elements_of_unit(const TensorMeta& meta) const { return meta.numel / segment_.extent; }

  bool accepts_last() const {
    const StripInput& last = call_.inputs.back();
    if (last.kind != StripInput::Kind::kNumber) {
      return false;
    }
    const ArgSlot& slot = step_.signature->args[last.arg];
    // Other scalars may differ from run to run.
    return slot.kind == ArgKind::kScalar && step_.signature == node_.signature &&
           node_.signature->op->scalars_in_key &&
           op_->accepts(node_.values[slot.begin].toScalar().toFloat());
  }

  const Node& node_;
  const Segment& segment_;
  const Step& step_;
  const StripOp* op_ = nullptr;
  StripCall call_;
};

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
      auto call = CallBuilder(nodes_, segment_, i).run();
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

  // ---- what stays in strips
  // -----------------------------------------------------------------------

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
