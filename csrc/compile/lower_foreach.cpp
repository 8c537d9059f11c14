#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compile/lower.h"
#include "compile/out_variant.h"

namespace tiledev {

namespace {

// Arguments by position: lists of tensors against tensors, lists of scalars against scalars; the
// per-tensor op may have a few more, with defaults.
bool fits_per_tensor(const c10::FunctionSchema& list, const c10::FunctionSchema& one) {
  const auto &a = list.arguments(), &b = one.arguments();
  for (size_t i = 0; i < a.size(); ++i) {
    if (i >= b.size()) {
      return false;
    }
    const bool tensor = a[i].type()->isSubtypeOf(*c10::ListType::ofTensors()) ||
                        a[i].type()->kind() == c10::TypeKind::TensorType;
    if (tensor != (b[i].type()->kind() == c10::TypeKind::TensorType)) {
      return false;
    }
  }
  for (size_t i = a.size(); i < b.size(); ++i) {
    if (!b[i].default_value().has_value()) {
      return false;
    }
  }
  return true;
}

// "aten::_foreach_add_.List" -> "aten::add_.Tensor"
std::optional<c10::OperatorHandle> per_tensor(const OpTraits& op) {
  static constexpr std::string_view kPrefix = "aten::_foreach_";
  const bool results = op.returns.size() == 1 && op.returns[0].list && !op.is_out_form;
  if (op.name.rfind(kPrefix, 0) != 0 || !(op.in_place_only || results)) {
    return std::nullopt;
  }
  const size_t dot = op.name.find('.');
  const std::string base = "aten::" + op.name.substr(kPrefix.size(), dot - kPrefix.size());
  const std::string overload = dot == std::string::npos ? "" : op.name.substr(dot + 1);
  static const std::unordered_map<std::string, std::vector<std::string>> kOverloads = {
      {"", {""}},
      {"List", {"Tensor", ""}},
      {"Tensor", {"Tensor", ""}},
      {"Scalar", {"Scalar", ""}},
      {"ScalarList", {"Scalar", ""}},
  };
  const auto names = kOverloads.find(overload);
  if (names == kOverloads.end()) {
    return std::nullopt;
  }
  for (const std::string& name : names->second) {
    const auto handle = c10::Dispatcher::singleton().findSchema({base, name});
    if (handle && fits_per_tensor(op.op.schema(), handle->schema())) {
      return handle;
    }
  }
  return std::nullopt;
}

bool foreach_arg(const Step& whole, Step& part, Signature& signature, size_t a, uint32_t i) {
  const ArgSlot& from = whole.signature->args[a];
  ArgSlot slot = from;
  if (from.kind == ArgKind::kTensorList || from.kind == ArgKind::kTensor) {
    if (from.kind == ArgKind::kTensorList && i >= from.count) {
      return false;
    }
    const uint32_t element = from.kind == ArgKind::kTensorList ? i : 0;
    TensorRef ref = whole.signature->tensor_refs[from.begin + element];
    if (ref.kind == TensorRef::Kind::kUndefined) {
      return false;
    }
    if (ref.kind == TensorRef::Kind::kOperand) {
      View view = whole.operands[ref.index];
      ref.index = static_cast<uint32_t>(part.operands.size());
      signature.operands.push_back(view.meta);
      signature.operand_written.push_back(view.written);
      signature.operand_overwritten.push_back(view.overwritten);
      part.work = std::max(part.work, view.meta.numel);
      part.operands.push_back(std::move(view));
    }
    slot.kind = ArgKind::kTensor;
    slot.begin = static_cast<uint32_t>(signature.tensor_refs.size());
    slot.count = 1;
    signature.tensor_refs.push_back(ref);
  } else if (from.kind == ArgKind::kScalarList) {
    part.scalar_list_arg = static_cast<int32_t>(a);
    part.scalar_list_at = i;
  }
  signature.args.push_back(std::move(slot));
  return true;
}

std::optional<Step> foreach_part(const Step& whole, const c10::OperatorHandle& callee, uint32_t i) {
  Step part;
  part.node = whole.node;
  part.form = Step::Form::kInPlace;
  part.callee = callee;
  auto signature = c10::make_intrusive<Signature>();
  signature->op = &traits_of(callee);
  for (size_t a = 0; a < whole.signature->args.size(); ++a) {
    if (!foreach_arg(whole, part, *signature, a, i)) {
      return std::nullopt;
    }
  }
  const auto& arguments = callee.schema().arguments();
  for (size_t a = whole.signature->args.size(); a < arguments.size(); ++a) {
    ArgSlot slot;
    slot.constant = *arguments[a].default_value();
    signature->args.push_back(std::move(slot));
  }
  // Lists may hold tensors that need more than an elementwise op on tensors of one type.
  const TensorMeta& self = part.operands[0].meta;
  for (const View& view : part.operands) {
    if (view.meta.dtype != self.dtype || view.meta.conj || view.meta.neg) {
      return std::nullopt;
    }
  }
  part.signature = std::move(signature);
  return part;
}

// In place, or the part's element of the list of results.
bool finish_part(const Step& whole, Step& part, uint32_t i) {
  OutputMeta output;
  output.kind = OutputMeta::Kind::kOperand;
  if (!whole.signature->op->in_place_only) {
    const auto* out = out_variant(*part.signature->op);
    if (out == nullptr || i >= whole.outputs.size() ||
        whole.outputs.size() != whole.signature->outputs.size()) {
      return false;
    }
    part.form = Step::Form::kOut;
    part.callee = *out;
    part.outputs = {whole.outputs[i]};
    output = whole.signature->outputs[i];
  }
  part.signature->outputs.push_back(std::move(output));
  part.signature->return_counts = {1};
  return true;
}

}  // namespace

bool split_foreach(Compilation& c, const Step& whole) {
  const auto callee = per_tensor(*whole.signature->op);
  if (!callee) {
    return false;
  }
  return split_each(c, whole.signature->args[0].count, [&](uint32_t i) {
    auto part = foreach_part(whole, *callee, i);
    return part && finish_part(whole, *part, i) ? part : std::nullopt;
  });
}

}  // namespace tiledev
