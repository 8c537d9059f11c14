// Which call a step makes: the op itself, its out= variant, or another form of it.

#include <algorithm>
#include <utility>

#include "compile/axes.h"
#include "compile/lower.h"
#include "compile/out_variant.h"

namespace tiledev {

namespace {

// Results that the kernel may leave undefined or shape as it likes need the functional form.
bool writes_in_place(const Step& step) {
  return step.signature->op->in_place_only || step.signature->op->is_out_form;
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

}  // namespace

bool is_complex(const Step& step) {
  const auto complex = [](const View& view) { return c10::isComplexType(view.meta.dtype); };
  return std::any_of(step.operands.begin(), step.operands.end(), complex) ||
         std::any_of(step.outputs.begin(), step.outputs.end(), complex);
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

}  // namespace tiledev
