#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compile/axes.h"
#include "compile/lower.h"

namespace tiledev {

namespace {

// "aten::_fused_adam_" -> "tiledev::_fused_adam_", which takes one tensor for each list
// (kernels/fused_optimizers).
std::optional<c10::OperatorHandle> one_tensor_form(const OpTraits& op) {
  static constexpr std::string_view kPrefix = "aten::_fused_";
  if (op.name.rfind(kPrefix, 0) != 0 || !op.in_place_only || !op.returns.empty()) {
    return std::nullopt;
  }
  const c10::OperatorName& name = op.op.operator_name();
  return c10::Dispatcher::singleton().findSchema(
      {"tiledev::" + name.name.substr(name.name.find("::") + 2), name.overload_name});
}

// ATen's kernels walk over the memory: elements are the same only where all lies in the same order.
bool walk_together(const TensorMeta& a, const TensorMeta& b) {
  return same_layout(a, b) && a.dtype == b.dtype && !b.conj && !b.neg && dense(b);
}

// ATen's SGD on bfloat16 and float16 does not move what its vector loop takes (torch 2.13), so
// where vectors begin changes results.
bool misses_vectors(const OpTraits& op, c10::ScalarType dtype) {
  return c10::isReducedFloatingType(dtype) && op.op.schema().name() == "aten::_fused_sgd_";
}

class FusedPart {
 public:
  FusedPart(const Step& whole, const c10::OperatorHandle& callee)
      : whole_(whole), signature_(c10::make_intrusive<Signature>()) {
    step_.node = whole.node;
    step_.form = Step::Form::kInPlace;
    step_.callee = callee;
    signature_->op = &traits_of(callee);
  }

  // The step for element i of the lists, unless its tensors do not fit each other.
  std::optional<Step> make(uint32_t i) {
    const auto& arguments = whole_.signature->op->op.schema().arguments();
    for (size_t a = 0; a < arguments.size(); ++a) {
      const ArgSlot& from = whole_.signature->args[a];
      if (from.kind == ArgKind::kTensorList && from.count > 0 && i >= from.count) {
        return std::nullopt;
      }
      if (from.kind == ArgKind::kTensorList || from.kind == ArgKind::kTensor) {
        add_tensor(from, from.kind == ArgKind::kTensorList ? i : 0, arguments[a].name());
      } else {
        signature_->args.push_back(from);
      }
    }
    if (!fits_) {
      return std::nullopt;
    }
    step_.whole = misses_vectors(*whole_.signature->op, step_.operands[0].meta.dtype);
    step_.signature = std::move(signature_);
    return std::move(step_);
  }

 private:
  void add_tensor(const ArgSlot& from, uint32_t element, const std::string& name) {
    TensorRef ref;
    if (from.count > 0) {
      ref = whole_.signature->tensor_refs[from.begin + element];
    }
    if (ref.kind == TensorRef::Kind::kOperand) {
      View view = whole_.operands[ref.index];
      // The gradient is written where it is scaled back, and the count of steps never.
      view.written &= name == "grads" ? scales() : name != "state_steps";
      if (from.kind == ArgKind::kTensorList && name != "state_steps") {
        const TensorMeta& self = step_.operands.empty() ? view.meta : step_.operands[0].meta;
        fits_ &= walk_together(self, view.meta);
      } else {
        fits_ &= view.meta.numel == 1;
      }
      ref.index = static_cast<uint32_t>(step_.operands.size());
      signature_->operands.push_back(view.meta);
      signature_->operand_written.push_back(view.written);
      signature_->operand_overwritten.push_back(view.overwritten);
      step_.work = std::max(step_.work, view.meta.numel);
      step_.operands.push_back(std::move(view));
    }
    ArgSlot slot;
    slot.kind = ArgKind::kTensor;
    slot.begin = static_cast<uint32_t>(signature_->tensor_refs.size());
    slot.count = 1;
    signature_->tensor_refs.push_back(ref);
    signature_->args.push_back(std::move(slot));
  }

  bool scales() const {
    const auto index = whole_.signature->op->op.schema().argumentIndexWithName("grad_scale");
    const uint32_t at = whole_.signature->args[*index].begin;
    return whole_.signature->tensor_refs[at].kind != TensorRef::Kind::kUndefined;
  }

  const Step& whole_;
  Step step_;
  c10::intrusive_ptr<Signature> signature_;
  bool fits_ = true;
};

}  // namespace

bool split_fused(Compilation& c, const Step& whole) {
  const auto callee = one_tensor_form(*whole.signature->op);
  if (!callee) {
    return false;
  }
  return split_each(c, whole.signature->args[0].count,
                    [&](uint32_t i) { return FusedPart(whole, *callee).make(i); });
}

}  // namespace tiledev
