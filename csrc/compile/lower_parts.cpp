// Ops that copy or move parts of tensors, and batch norm: what they fall apart into.

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "compile/lower.h"

namespace tiledev {

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

}  // namespace tiledev
