#include "compile/strip_call.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "compile/axes.h"

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

bool plain_float(const TensorMeta& meta) {
  return meta.dtype == at::kFloat && !meta.neg && !meta.conj;
}

// Whether the tile of a view lies in memory without gaps.
bool dense_tile(const View& view) {
  return view.cut_dim >= 0 && plain_float(view.meta) && view.meta.numel > 0 && dense(view.meta) &&
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
           node_.signature->op->in_key(node_.values[slot.begin]) &&
           op_->accepts(node_.values[slot.begin].toScalar().toFloat());
  }

  const Node& node_;
  const Segment& segment_;
  const Step& step_;
  const StripOp* op_ = nullptr;
  StripCall call_;
};

}  // namespace

std::optional<StripCall> strip_call(const std::vector<Node>& nodes, const Segment& segment,
                                    uint32_t i) {
  return CallBuilder(nodes, segment, i).run();
}

}  // namespace tiledev
