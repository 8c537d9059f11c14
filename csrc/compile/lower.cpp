#include "compile/lower.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "compile/axes.h"
#include "compile/out_variant.h"

namespace tiledev {

namespace {

// Results that the kernel may leave undefined or shape as it likes need the functional form.
bool writes_in_place(const Step& step) {
  return step.signature->op->in_place_only || step.signature->op->is_out_form;
}

bool is_complex(const Step& step) {
  const auto complex = [](const View& view) { return c10::isComplexType(view.meta.dtype); };
  return std::any_of(step.operands.begin(), step.operands.end(), complex) ||
         std::any_of(step.outputs.begin(), step.outputs.end(), complex);
}

// `clone` and `to` are copies into a result of the right layout.
bool lower_copy(Step& step) {
  const std::string& name = step.signature->op->name;
  if ((name != "aten::clone" && name != "aten::_to_copy") || step.operands.size() != 1) {
    return false;
  }
  step = make_step(step.node, "aten::copy_", "", "", {step.outputs[0], step.operands[0]}, {});
  add_constant(step, false);
  return true;
}

// Whether no argument shares memory with one that the op writes.
bool writes_apart(const Step& step) {
  for (size_t i = 0; i < step.operands.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (step.operands[i].buffer == step.operands[j].buffer &&
          (step.operands[i].written || step.operands[j].written)) {
        return false;
      }
    }
  }
  return true;
}

// Whether the functional form would give results of just these types, in which layout soever. Some
// ops go by the type of out=.
bool gives_same_results(const Step& step, size_t inputs) {
  const OpTraits& op = *step.signature->op;
  const c10::ScalarType dtype = step.operands[0].meta.dtype;
  for (size_t t = inputs; t < step.operands.size(); ++t) {
    const TensorMeta& meta = step.operands[t].meta;
    const bool index = t > inputs && meta.dtype == c10::ScalarType::Long;
    if ((meta.dtype != dtype && !index) || (ignores_strides(op) && !contiguous(meta))) {
      return false;
    }
  }
  return true;
}

// An op with out= arguments is its functional form with results that have memory already: so their
// tiles may come together from parts. (Elementwise ops have none, and may write over an input.)
void lower_out_form(Step& step) {
  const Signature& from = *step.signature;
  const TileRule* rule = from.op->is_out_form ? rule_of(from) : nullptr;
  const auto* form = rule != nullptr && !rule->pointwise ? functional_form(*from.op) : nullptr;
  if (form == nullptr || is_complex(step) || !writes_apart(step)) {
    return;
  }
  const size_t results = form->schema().returns().size();
  const size_t inputs = step.operands.size() - results;
  if (inputs == 0 || !gives_same_results(step, inputs)) {
    return;
  }
  auto to = c10::make_intrusive<Signature>();
  to->op = &traits_of(*form);
  to->operands.assign(from.operands.begin(), from.operands.begin() + inputs);
  to->operand_written.assign(inputs, 0);
  to->operand_overwritten.assign(inputs, 0);
  to->tensor_refs.assign(from.tensor_refs.begin(), from.tensor_refs.end() - results);
  to->args.assign(from.args.begin(), from.args.end() - results);
  to->return_counts.assign(results, 1);
  for (size_t t = inputs; t < step.operands.size(); ++t) {
    to->outputs.push_back({OutputMeta::Kind::kFresh, 0, step.operands[t].meta});
    step.outputs.push_back(std::move(step.operands[t]));
  }
  step.operands.resize(inputs);
  step.signature = std::move(to);
}

// `gather` and `scatter` touch no more of a tensor than the index has, but for the dimension that
// is indexed; what a functional `scatter` leaves alone is part of its result, though.
void narrow_to_index(Step& step) {
  static constexpr std::string_view kOps[] = {"gather",         "scatter",  "scatter_add",
                                              "scatter_reduce", "scatter_", "scatter_add_",
                                              "scatter_reduce_"};
  std::string_view name = step.signature->op->name;
  name.remove_prefix(std::min(name.size(), std::string_view("aten::").size()));
  name = name.substr(0, name.find('.'));
  if (step.form == Step::Form::kNode || step.operands.size() < 2 ||
      std::find(std::begin(kOps), std::end(kOps), name) == std::end(kOps) ||
      (step.signature->op->is_out_form && name != "gather")) {
    return;
  }
  const Dims& index = step.operands[1].meta.sizes;
  const auto rank = static_cast<int64_t>(index.size());
  const int64_t dim = step.signature->args[1].constant.toInt();
  for (size_t t = 0; t < step.operands.size(); ++t) {
    TensorMeta& meta = step.operands[t].meta;
    const bool kept = t == 0 && name != "gather" && name.back() != '_';
    if (kept || (name == "gather" && t > 1) || static_cast<int64_t>(meta.sizes.size()) != rank) {
      continue;
    }
    meta.numel = 1;
    for (int64_t d = 0; d < rank; ++d) {
      const bool indexed = d == (dim < 0 ? dim + rank : dim) && t == 0;
      meta.sizes[d] = indexed ? meta.sizes[d] : std::min(meta.sizes[d], index[d]);
      meta.numel *= meta.sizes[d];
    }
  }
}

// An out= argument had its new shape when the op was recorded; the kernel finds it so.
bool resizes_input(const Signature& signature) {
  return !signature.resized.empty() && !signature.op->is_out_form;
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
    if (node.signature && !node.token && !resizes_input(*node.signature) &&
        !node.signature->needs_dispatch) {
      if (split_foreach(c_, step) || split_fused(c_, step)) {
        return;
      }
      lower_out_form(step);
      choose_form(step);
      if (split_loss(c_, step) || split_cat(c_, step) || split_batch_norm(c_, step) ||
          split_select_backward(c_, step)) {
        return;
      }
      narrow_to_index(step);
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
      view.offset = node.operands[i].offset - c_.print.origins[access[i]];
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

  Compilation& c_;
};

}  // namespace

// A large cat is a copy of each input into its part of the result: so the pieces may come from
// tiles that the dimension itself is cut into (the gradient of unbind).
bool split_cat(Compilation& c, Step& step) {
  constexpr size_t kMostParts = 16;
  if (step.signature->op->name != "aten::cat" || step.form != Step::Form::kOut ||
      !worth_parting(c, step) || step.operands.size() > kMostParts ||
      step.signature->args[0].count != step.operands.size() || !step.outputs[0].fresh) {
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
    add_constant(copy, false);
    c.steps.push_back(std::move(copy));
  }
  return true;
}

bool split_select_backward(Compilation& c, const Step& step) {
  if (step.signature->op->name != "aten::select_backward" || step.outputs.size() != 1 ||
      step.operands.size() != 1 || is_complex(step) ||
      step.operands[0].meta.dtype != step.outputs[0].meta.dtype || step.work == 0 ||
      !step.outputs[0].fresh) {
    return false;
  }
  const View& grad = step.operands[0];
  View part = step.outputs[0];
  c.steps.push_back(make_step(step.node, "aten::zero_", "", "", {part}, {}));
  const auto rank = static_cast<int64_t>(part.meta.sizes.size());
  const auto number = [&](size_t arg, int64_t bound) {
    const int64_t given = step.signature->args[arg].constant.toInt();
    return given < 0 ? given + bound : given;
  };
  const int64_t dim = number(2, rank);
  part.offset = number(3, part.meta.sizes[dim]) * part.meta.strides[dim];
  part.meta.numel /= part.meta.sizes[dim];
  part.meta.sizes.erase(part.meta.sizes.begin() + dim);
  part.meta.strides.erase(part.meta.strides.begin() + dim);
  part.fresh = part.overwritten = false;
  Step copy = make_step(step.node, "aten::copy_", "", "", {part, grad}, {});
  add_constant(copy, false);
  c.steps.push_back(std::move(copy));
  return true;
}

bool split_batch_norm(Compilation& c, Step& step) {
  const Signature& signature = *step.signature;
  if (signature.op->name != "aten::native_batch_norm" || signature.args[5].constant.toBool() ||
      step.operands.size() != 5 || step.outputs.size() != 3 || !worth_parting(c, step) ||
      step.outputs[1].meta.numel + step.outputs[2].meta.numel > 0) {
    return false;
  }
  for (View& view : step.operands) {
    if (view.meta.dtype != c10::ScalarType::Float) {
      return false;
    }
    view.written = view.overwritten = false;  // the running statistics stay as they are
  }
  Step inference = make_step(step.node, "tiledev::batch_norm_inference", "", "out", step.operands,
                             {step.outputs[0]});
  inference.signature->args.push_back(signature.args[7]);  // eps
  c.steps.push_back(std::move(inference));
  return true;
}

void choose_form(Step& step) {
  const OpTraits& op = *step.signature->op;
  if (writes_in_place(step)) {
    step.form = Step::Form::kInPlace;
    step.callee = op.op;
    step.whole = op.is_out_form && (ignores_strides(op) || has_unusable_out(op));
    return;
  }
  // out= variants of odd kernels have odder manners.
  if (rule_of(*step.signature) == nullptr) {
    return;
  }
  bool all_fresh = true;
  for (const OutputMeta& output : step.signature->outputs) {
    if (output.kind == OutputMeta::Kind::kOperand) {
      return;
    }
    all_fresh &= output.kind == OutputMeta::Kind::kFresh;
  }
  // Products of complex numbers are rounded in another way where TensorIterator walks a given
  // result.
  const auto* out = all_fresh && !is_complex(step) ? out_variant(op) : nullptr;
  if (out != nullptr && out->schema().returns().size() == step.outputs.size() &&
      !(ignores_strides(op) && !contiguous(step.outputs[0].meta))) {
    step.form = Step::Form::kOut;
    step.callee = *out;
    return;
  }
  if (!is_complex(step) && lower_copy(step)) {
    return;
  }
  step.form = Step::Form::kFunctional;
  step.callee = op.op;
}

const OpTraits& traits_of(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static auto* known = new std::unordered_map<c10::OperatorHandle, std::unique_ptr<OpTraits>>();
  const std::lock_guard lock(mutex);
  auto& traits = (*known)[op];
  if (!traits) {
    traits = std::make_unique<OpTraits>(op);
  }
  return *traits;
}

// A step whose first arguments are these tensors, all in order.
Step make_step(uint32_t node, const char* name, const char* overload, const char* callee_overload,
               std::vector<View> operands, std::vector<View> outputs) {
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

void add_constant(Step& step, c10::IValue value) {
  step.signature->args.push_back({ArgKind::kConstant, 0, 0, std::move(value)});
}

void lower_nodes(Compilation& c) {
  Lowering(c).run();
}

}  // namespace tiledev
