#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "compile/lower.h"

namespace tiledev {

namespace {

// at::Reduction
constexpr int64_t kNone = 0, kMean = 1, kSum = 2;

uint32_t new_internal(Compilation& c) {
  return static_cast<uint32_t>(c.print.outlives.size()) + c.internal_buffers++;
}

// A buffer that an earlier part of the node has written.
View written_before(View view) {
  view.fresh = view.overwritten = false;
  return view;
}

View read_only(View view) {
  view.written = view.fresh = view.overwritten = false;
  return view;
}

// ---- nll_loss_forward ---------------------------------------------------------------------------

void add_total_weight(Compilation& c, const Step& loss) {
  // Of the targets, and of the weights of the classes if there are any.
  const std::vector<View> operands(loss.operands.begin() + 1, loss.operands.end());
  Step total =
      make_step(loss.node, "tiledev::nll_total_weight", "", "out", operands, {loss.outputs[1]});
  if (operands.size() == 1) {
    add_constant(total, {});
  }
  add_constant(total, loss.signature->args[4].constant);  // ignore_index
  total.alone = true;
  c.steps.push_back(std::move(total));
}

// The total weight depends on the targets alone, and the backward needs nothing but it: computed
// apart, it frees the chain forward - loss - backward. mean = sum of the losses / total weight.
bool split_nll_loss(Compilation& c, Step& step, size_t rank) {
  const int64_t reduction = step.signature->args[3].constant.toInt();
  step.whole = step.form != Step::Form::kOut || step.operands.size() < 2 ||
               step.operands[0].meta.sizes.size() != rank;
  if (step.whole || reduction == kNone) {
    return false;
  }
  step.whole = !worth_parting(c, step);
  if (step.whole) {
    return false;
  }
  add_total_weight(c, step);
  const View loss = step.outputs[0];
  const View total = step.outputs[1];
  View& unused = step.outputs[1];
  unused.buffer = new_internal(c);
  unused.internal = unused.discarded = true;
  step.patches.emplace_back(3, c10::IValue(kSum));
  c.steps.push_back(std::move(step));
  if (reduction == kMean) {
    c.steps.push_back(make_step(c.steps.back().node, "aten::div_", "Tensor", "Tensor",
                                {written_before(loss), read_only(total)}, {}));
  }
  return true;
}

// ---- elementwise losses -------------------------------------------------------------------------

// mean = sum / count, for the loss and for its gradient: a tile does not know the count. Types that
// a sum may overflow run whole.
bool split_mean(Compilation& c, Step& step, const View& to, uint32_t reduction) {
  const View result = to;
  if (result.meta.dtype != c10::kFloat && result.meta.dtype != c10::kDouble) {
    step.whole = true;
    return false;
  }
  int64_t count = 0;
  for (const View& view : step.operands) {
    count = std::max(count, view.meta.numel);
  }
  step.patches.emplace_back(reduction, c10::IValue(kSum));
  c.steps.push_back(std::move(step));
  Step divide = make_step(c.steps.back().node, "aten::div_", "Scalar", "Scalar",
                          {written_before(result)}, {});
  add_constant(divide, static_cast<double>(count));
  c.steps.push_back(std::move(divide));
  return true;
}

// The one tensor that a step writes, or null.
const View* only_result(const Step& step) {
  const View* result = step.outputs.size() == 1 ? &step.outputs[0] : nullptr;
  for (const View& view : step.operands) {
    if (view.written) {
      result = result == nullptr && step.outputs.empty() ? &view : nullptr;
    }
  }
  return result;
}

}  // namespace

bool split_loss(Compilation& c, Step& step) {
  const OpTraits& op = *step.signature->op;
  if (op.name == "aten::nll_loss_forward") {
    return split_nll_loss(c, step, 2);
  }
  if (op.name == "aten::nll_loss2d_forward") {
    return split_nll_loss(c, step, 4);
  }
  const auto reduction = op.op.schema().argumentIndexWithName("reduction");
  if (!reduction || step.form == Step::Form::kNode || op.name.rfind("aten::nll_loss", 0) == 0 ||
      step.signature->args[*reduction].constant.toInt() != kMean) {
    return false;
  }
  const View* result = only_result(step);
  if (result == nullptr || !worth_parting(c, step)) {
    step.whole = true;
    return false;
  }
  return split_mean(c, step, *result, static_cast<uint32_t>(*reduction));
}

}  // namespace tiledev
