#include "compile/lower.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "compile/axes.h"
#include "compile/out_variant.h"

namespace tiledev {

namespace {

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

bool split_each(Compilation& c, uint32_t count,
                const std::function<std::optional<Step>(uint32_t)>& make) {
  std::vector<Step> parts;
  for (uint32_t i = 0; i < count; ++i) {
    auto part = make(i);
    if (!part) {
      return false;
    }
    parts.push_back(std::move(*part));
  }
  std::move(parts.begin(), parts.end(), std::back_inserter(c.steps));
  return true;
}

void lower_nodes(Compilation& c) {
  Lowering(c).run();
}

}  // namespace tiledev
