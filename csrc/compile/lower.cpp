#include "compile/lower.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace tiledev {

namespace {

// Below this a loss is not worth parting.
constexpr int64_t kWorthParting = 1024;

bool same_arguments(const c10::FunctionSchema& functional, const c10::FunctionSchema& out) {
  const auto &a = functional.arguments(), &b = out.arguments();
  if (b.size() != a.size() + functional.returns().size()) {
    return false;
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].name() != b[i].name() || *a[i].type() != *b[i].type() ||
        b[i].alias_info() != nullptr) {
      return false;
    }
  }
  for (size_t i = a.size(); i < b.size(); ++i) {
    if (!b[i].is_out() || b[i].type()->kind() != c10::TypeKind::TensorType) {
      return false;
    }
  }
  return true;
}

std::optional<c10::OperatorHandle> find_out_variant(const OpTraits& op) {
  const auto& schema = op.op.schema();
  static const auto* by_name = [] {
    auto* names = new std::unordered_map<std::string, std::vector<c10::OperatorName>>();
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      (*names)[name.name].push_back(name);
    }
    return names;
  }();
  const auto found = by_name->find(schema.name());
  if (found == by_name->end()) {
    return std::nullopt;
  }
  for (const c10::OperatorName& name : found->second) {
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (handle && handle->hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
        same_arguments(schema, handle->schema())) {
      return handle;
    }
  }
  return std::nullopt;
}

// Results that the kernel may leave undefined or shape as it likes need the functional form.
bool writes_in_place(const Step& step) {
  return step.signature->op->in_place_only || step.signature->op->is_out_form;
}

class Lowering {
 public:
  explicit Lowering(Compilation& c) : c_(c) {}

  void run() {
    for (uint32_t n = 0; n < c_.nodes.size(); ++n) {
      if (c_.live[n]) {
        lower(n);
      } else {
        c_.plan.dropped.push_back(n);
      }
    }
  }

 private:
  void lower(uint32_t n) {
    const Node& node = c_.nodes[n];
    Step step = whole(n);
    if (node.signature && !node.token && node.signature->resized.empty() &&
        !node.signature->needs_dispatch) {
      if (split_foreach(step)) {
        return;
      }
      choose_form(step);
      if (split_nll_loss(step) || split_cat(step)) {
        return;
      }
    }
    c_.steps.push_back(std::move(step));
  }

  Step whole(uint32_t n) {
    const Node& node = c_.nodes[n];
    Step step;
    step.node = n;
    step.signature = node.signature;
    if (!node.signature) {
      return step;
    }
    const uint32_t* access = c_.print.accesses.data() + c_.first_access[n];
    for (size_t i = 0; i < node.operands.size(); ++i) {
      View view;
      view.buffer = access[i];
      view.source = {n, static_cast<int32_t>(i)};
      view.meta = node.signature->operands[i];
      view.offset = node.operands[i].offset;
      view.written = node.writes(i);
      view.overwritten = node.signature->operand_overwritten[i] != 0;
      step.work = std::max(step.work, view.meta.numel);
      step.operands.push_back(std::move(view));
    }
    add_outputs(step, node, access + node.operands.size() + (node.token ? 1 : 0));
    step.flops = flops(step);
    return step;
  }

  void add_outputs(Step& step, const Node& node, const uint32_t* access) {
    size_t result = 0;
    for (const OutputMeta& output : node.signature->outputs) {
      if (output.kind == OutputMeta::Kind::kOperand) {
        continue;
      }
      const auto slot = ~static_cast<int32_t>(result);
      if (node.results[result++]) {
        View view;
        view.buffer = *access++;
        view.source = {step.node, slot};
        view.meta = output.meta;
        view.written = view.fresh = view.overwritten = true;
        step.work = std::max(step.work, view.meta.numel);
        step.outputs.push_back(std::move(view));
      }
    }
  }

  static double flops(const Step& step) {
    const std::string& name = step.signature->op->name;
    static constexpr std::string_view kProducts[] = {"aten::mm", "aten::addmm", "aten::bmm",
                                                     "aten::baddbmm", "aten::mv"};
    for (const std::string_view product : kProducts) {
      if (name.substr(0, name.find('.')) == product && step.operands.size() >= 2 &&
          step.outputs.size() == 1) {
        const TensorMeta& left = step.operands[step.operands.size() - 2].meta;
        return 2.0 * static_cast<double>(step.outputs[0].meta.numel) *
               static_cast<double>(left.sizes.back());
      }
    }
    if (name.rfind("aten::convolution", 0) == 0) {
      // Forward: (input, weight, bias); backward: (grad of the output, input, weight), two
      // products.
      const bool backward = name.rfind("aten::convolution_backward", 0) == 0;
      const TensorMeta& out = backward ? step.operands[0].meta : step.outputs[0].meta;
      const TensorMeta& weight = step.operands[backward ? 2 : 1].meta;
      return (backward ? 4.0 : 2.0) * static_cast<double>(out.numel) *
             static_cast<double>(weight.numel) /
             static_cast<double>(std::max<int64_t>(1, weight.sizes.empty() ? 1 : weight.sizes[0]));
    }
    if (name.find("attention") != std::string::npos) {
      const TensorMeta& q = step.operands[0].meta;
      return 4.0 * static_cast<double>(q.numel) * static_cast<double>(q.sizes[q.sizes.size() - 2]);
    }
    return 0;
  }

  void choose_form(Step& step) {
    const OpTraits& op = *step.signature->op;
    if (writes_in_place(step)) {
      step.form = Step::Form::kInPlace;
      step.callee = op.op;
      return;
    }
    // out= variants of odd kernels have odder manners, and products of complex numbers are rounded
    // in another way where TensorIterator walks a given result.
    if (rule_of(op) == nullptr || is_complex(step)) {
      return;
    }
    bool all_fresh = true;
    for (const OutputMeta& output : step.signature->outputs) {
      if (output.kind == OutputMeta::Kind::kOperand) {
        return;
      }
      all_fresh &= output.kind == OutputMeta::Kind::kFresh;
    }
    const auto* out = all_fresh ? out_variant(op) : nullptr;
    if (out != nullptr && out->schema().returns().size() == step.outputs.size() &&
        !(ignores_strides(op) && !contiguous(step.outputs[0].meta))) {
      step.form = Step::Form::kOut;
      step.callee = *out;
      return;
    }
    if (lower_copy(step)) {
      return;
    }
    step.form = Step::Form::kFunctional;
    step.callee = op.op;
  }

  static bool is_complex(const Step& step) {
    const auto complex = [](const View& view) { return c10::isComplexType(view.meta.dtype); };
    return std::any_of(step.operands.begin(), step.operands.end(), complex) ||
           std::any_of(step.outputs.begin(), step.outputs.end(), complex);
  }

  static bool contiguous(const TensorMeta& meta) {
    int64_t expected = 1;
    for (size_t d = meta.sizes.size(); d-- > 0;) {
      if (meta.sizes[d] != 1 && meta.strides[d] != expected) {
        return false;
      }
      expected *= meta.sizes[d];
    }
    return true;
  }

  // `clone` and `to` are copies into a result of the right layout.
  bool lower_copy(Step& step) {
    const std::string& name = step.signature->op->name;
    if ((name != "aten::clone" && name != "aten::_to_copy") || step.operands.size() != 1) {
      return false;
    }
    step = make_step(step.node, "aten::copy_", "", "", {step.outputs[0], step.operands[0]}, {});
    step.signature->args.push_back({ArgKind::kConstant, 0, 0, c10::IValue(false)});
    return true;
  }

  // ---- nll_loss_forward -------------------------------------------------------------------------

  // The total weight depends on the targets alone, and the backward needs nothing but it: computed
  // apart, it frees the chain forward - loss - backward. mean = sum of the losses / total weight.
  bool split_nll_loss(Step& step) {
    constexpr int64_t kMean = 1, kSum = 2;
    if (step.signature->op->name != "aten::nll_loss_forward") {
      return false;
    }
    step.whole = true;
    if (step.form != Step::Form::kOut || step.operands.size() != 2 ||
        step.operands[0].meta.sizes.size() != 2 || step.work < kWorthParting) {
      return false;
    }
    const int64_t reduction = step.signature->args[3].constant.toInt();
    if (reduction != kMean && reduction != kSum) {
      return false;
    }
    step.whole = false;
    add_total_weight(step);
    const View loss = step.outputs[0];
    const View total = step.outputs[1];
    View& unused = step.outputs[1];
    unused.buffer = new_internal();
    unused.internal = unused.discarded = true;
    step.patches.emplace_back(3, c10::IValue(kSum));
    c_.steps.push_back(std::move(step));
    if (reduction == kMean) {
      add_division(c_.steps.back().node, loss, total);
    }
    return true;
  }

  uint32_t new_internal() {
    return static_cast<uint32_t>(c_.print.outlives.size()) + c_.internal_buffers++;
  }

  // counted = target != ignore_index; total = sum(counted)
  void add_total_weight(const Step& loss) {
    const View& target = loss.operands[1];
    View counted = target;
    counted.buffer = new_internal();
    counted.meta.dtype = c10::ScalarType::Bool;
    counted.offset = 0;
    counted.internal = true;
    counted.written = counted.fresh = counted.overwritten = true;
    Step compare = make_step(loss.node, "aten::ne", "Scalar", "Scalar_out", {target}, {counted});
    compare.signature->args.push_back({ArgKind::kConstant, 0, 0, loss.signature->args[4].constant});
    compare.alone = true;
    c_.steps.push_back(std::move(compare));
    counted.written = counted.fresh = counted.overwritten = false;
    View total = loss.outputs[1];
    Step sum = make_step(loss.node, "aten::sum", "dim_IntList", "IntList_out", {counted}, {total});
    auto& args = sum.signature->args;
    args.push_back({ArgKind::kConstant, 0, 0, c10::IValue()});
    args.push_back({ArgKind::kConstant, 0, 0, c10::IValue(false)});
    args.push_back({ArgKind::kConstant, 0, 0, c10::IValue(static_cast<int64_t>(total.meta.dtype))});
    sum.alone = true;
    c_.steps.push_back(std::move(sum));
  }

  void add_division(uint32_t node, View loss, View total) {
    loss.fresh = loss.overwritten = false;
    total.written = total.fresh = total.overwritten = false;
    Step divide = make_step(node, "aten::div_", "Tensor", "Tensor", {loss, total}, {});
    c_.steps.push_back(std::move(divide));
  }

  // A step whose first arguments are these tensors, all in order.
  static Step make_step(uint32_t node, const char* name, const char* overload,
                        const char* callee_overload, std::vector<View> operands,
                        std::vector<View> outputs) {
    auto& dispatcher = c10::Dispatcher::singleton();
    Step step;
    step.node = node;
    step.callee = dispatcher.findSchemaOrThrow(name, callee_overload);
    step.form = outputs.empty() ? Step::Form::kInPlace : Step::Form::kOut;
    auto signature = c10::make_intrusive<Signature>();
    signature->op = &traits_of(dispatcher.findSchemaOrThrow(name, overload));
    for (const View& view : operands) {
      const auto index = static_cast<uint32_t>(signature->operands.size());
      signature->operands.push_back(view.meta);
      signature->operand_written.push_back(view.written);
      signature->operand_overwritten.push_back(view.overwritten);
      signature->tensor_refs.push_back({TensorRef::Kind::kOperand, index});
      signature->args.push_back({ArgKind::kTensor, index, 1, {}});
      step.work = std::max(step.work, view.meta.numel);
    }
    for (const View& view : outputs) {
      signature->outputs.push_back({OutputMeta::Kind::kFresh, 0, view.meta});
    }
    if (outputs.empty()) {
      signature->outputs.push_back({OutputMeta::Kind::kOperand, 0, {}});
    }
    signature->return_counts = {1};
    step.signature = std::move(signature);
    step.operands = std::move(operands);
    step.outputs = std::move(outputs);
    return step;
  }

  // ---- cat --------------------------------------------------------------------------------------

  // A large cat is a copy of each input into its part of the result: so the pieces may come from
  // tiles that the dimension itself is cut into (the gradient of unbind).
  bool split_cat(Step& step) {
    constexpr size_t kMostParts = 16;
    if (step.signature->op->name != "aten::cat" || step.form != Step::Form::kOut ||
        step.work < kWorthParting || step.operands.size() > kMostParts ||
        step.signature->args[0].count != step.operands.size()) {
      return false;
    }
    const View& whole = step.outputs[0];
    const auto rank = static_cast<int64_t>(whole.meta.sizes.size());
    const int64_t dim = step.signature->args[1].constant.toInt();
    const int64_t d = dim < 0 ? dim + rank : dim;
    for (const View& view : step.operands) {
      if (static_cast<int64_t>(view.meta.sizes.size()) != rank ||
          view.meta.dtype != whole.meta.dtype || view.meta.numel == 0) {
        return false;
      }
    }
    int64_t at = 0;
    for (const View& from : step.operands) {
      View to = whole;
      to.offset = at * whole.meta.strides[d];
      to.meta.sizes[d] = from.meta.sizes[d];
      to.meta.numel = from.meta.numel;
      to.fresh = to.overwritten = at == 0;
      at += from.meta.sizes[d];
      Step copy = make_step(step.node, "aten::copy_", "", "", {to, from}, {});
      copy.signature->args.push_back({ArgKind::kConstant, 0, 0, c10::IValue(false)});
      c_.steps.push_back(std::move(copy));
    }
    return true;
  }

  // ---- _foreach_* as their per-tensor ops -------------------------------------------------------

  // "aten::_foreach_add_.List" -> "aten::add_.Tensor"
  static std::optional<c10::OperatorHandle> per_tensor(const OpTraits& op) {
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

  // Arguments by position: lists of tensors against tensors, lists of scalars against scalars; the
  // per-tensor op may have a few more, with defaults.
  static bool fits_per_tensor(const c10::FunctionSchema& list, const c10::FunctionSchema& one) {
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

  bool split_foreach(const Step& whole) {
    const auto callee = per_tensor(*whole.signature->op);
    if (!callee) {
      return false;
    }
    const uint32_t count = whole.signature->args[0].count;
    std::vector<Step> parts;
    for (uint32_t i = 0; i < count; ++i) {
      auto part = foreach_part(whole, *callee, i);
      if (!part || !finish_part(whole, *part, i)) {
        return false;
      }
      parts.push_back(std::move(*part));
    }
    for (Step& part : parts) {
      c_.steps.push_back(std::move(part));
    }
    return true;
  }

  static const OpTraits& traits_of(const c10::OperatorHandle& op) {
    static std::mutex mutex;
    static auto* known = new std::unordered_map<c10::OperatorHandle, std::unique_ptr<OpTraits>>();
    const std::lock_guard lock(mutex);
    auto& traits = (*known)[op];
    if (!traits) {
      traits = std::make_unique<OpTraits>(op);
    }
    return *traits;
  }

  std::optional<Step> foreach_part(const Step& whole, const c10::OperatorHandle& callee,
                                   uint32_t i) {
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
  static bool finish_part(const Step& whole, Step& part, uint32_t i) {
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

  Compilation& c_;
};

}  // namespace

const c10::OperatorHandle* out_variant(const OpTraits& op) {
  static std::mutex mutex;
  static auto* known = new std::unordered_map<uint64_t, std::optional<c10::OperatorHandle>>();
  const std::lock_guard lock(mutex);
  auto found = known->find(op.id);
  if (found == known->end()) {
    found = known->emplace(op.id, find_out_variant(op)).first;
  }
  return found->second ? &*found->second : nullptr;
}

bool ignores_strides(const OpTraits& op) {
  static constexpr std::string_view kOps[] = {
      "aten::_softmax",
      "aten::_log_softmax",
      "aten::_softmax_backward_data",
      "aten::_log_softmax_backward_data",
      "aten::sort",
  };
  const std::string_view name = std::string_view(op.name).substr(0, op.name.find('.'));
  return std::find(std::begin(kOps), std::end(kOps), name) != std::end(kOps);
}

void lower_nodes(Compilation& c) {
  Lowering(c).run();
}

}  // namespace tiledev
