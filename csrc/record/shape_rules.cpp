#include "record/shape_rules.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "record/stand_in.h"
#include "record/storage.h"

namespace tiledev {

namespace {

bool applies(const CallView& call) {
  const OpTraits& op = call.op();
  if (op.returns.size() != 1 || op.returns[0].list || !call.has_operand()) {
    return false;
  }
  for (const ArgTraits& arg : op.args) {
    if (arg.kind == ArgKind::kTensorList || arg.kind == ArgKind::kOptionalTensorList) {
      return false;
    }
  }
  return op.op.hasTag(at::Tag::pointwise) || (op.in_place_only && op.args[0].overwritten);
}

std::vector<int64_t> broadcast_shape(const CallView& call) {
  std::vector<int64_t> shape;
  for (size_t i = 0; i < call.operands().size(); ++i) {
    if (!call.written()[i] || call.op().in_place_only) {
      shape = at::infer_size(shape, call.operands()[i]->sizes());
    }
  }
  return shape;
}

// The out= operand of a call, if it must take another shape than it has; else -1.
int operand_to_resize(const CallView& call, c10::IntArrayRef shape) {
  for (size_t i = 0; i < call.operands().size(); ++i) {
    if (call.op().is_out_form && call.written()[i] && call.operands()[i]->sizes() != shape) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

at::Tensor meta_of_full_size(const c10::TensorImpl& impl) {
  return at::empty_strided(impl.sizes(), impl.strides(),
                           at::TensorOptions().dtype(impl.dtype()).device(c10::kMeta));
}

// The strides that TensorIterator gives a result it allocates.
Dims iterator_strides(const std::vector<at::Tensor>& inputs, at::TensorOptions options) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false)
      .check_all_same_dtype(false)
      .declare_static_dtype_and_device(c10::typeMetaToScalarType(options.dtype()), options.device())
      .add_owned_output(at::Tensor());
  for (const at::Tensor& input : inputs) {
    config.add_owned_const_input(input);
  }
  return Dims(config.build().output().strides());
}

// The strides of a result of this shape: in the same order as those of `small`, which the kernel
// gave for operands that were cut down. Empty if that order is neither of the two usual ones.
std::optional<Dims> result_strides(const CallView& call, const StandInCall& stand_in,
                                   const at::Tensor& small, c10::IntArrayRef shape) {
  std::vector<at::Tensor> small_inputs, inputs;
  for (size_t i = 0; i < call.operands().size(); ++i) {
    if (!call.written()[i]) {
      small_inputs.push_back(stand_in.operands()[i]);
      inputs.push_back(meta_of_full_size(*call.operands()[i]));
    }
  }
  if (same_strides(small.sizes(), small.strides(),
                   iterator_strides(small_inputs, small.options()))) {
    return iterator_strides(inputs, small.options().device(c10::kMeta));
  }
  if (!small.is_contiguous()) {
    return std::nullopt;
  }
  Dims strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * std::max<int64_t>(shape[d], 1);
  }
  return strides;
}

bool shrunk_to(const at::Tensor& result, c10::IntArrayRef shape) {
  if (result.dim() != static_cast<int64_t>(shape.size())) {
    return false;
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    if (result.size(static_cast<int64_t>(d)) != StandInCall::Limits().cut(0, d, shape[d])) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::optional<PointwiseResult> pointwise_rule(const CallView& call) {
  if (!applies(call)) {
    return std::nullopt;
  }
  const std::vector<int64_t> shape = broadcast_shape(call);
  PointwiseResult result;
  result.resized = operand_to_resize(call, shape);
  result.in_place = call.op().returns[0].alias_arg >= 0;
  for (size_t i = 0; i < call.operands().size(); ++i) {
    const bool as_expected = static_cast<int>(i) == result.resized ||
                             call.operands()[i]->sizes() == c10::IntArrayRef(shape);
    if (call.written()[i] && !as_expected) {
      return std::nullopt;  // an error
    }
    if (static_cast<int>(i) != result.resized && result.resized >= 0 &&
        call.operands()[i] == call.operands()[result.resized]) {
      return std::nullopt;  // it gives an input a new shape
    }
  }
  StandInCall call_on_cpu(call, StandInCall::Limits());
  call_on_cpu.run();
  const at::Tensor& out = call_on_cpu.results()[0].toTensor();
  if (!out.defined() || !shrunk_to(out, shape) || out.is_conj() || out.is_neg()) {
    return std::nullopt;
  }
  if (!result.in_place || result.resized >= 0) {
    auto strides = result_strides(call, call_on_cpu, out, shape);
    if (!strides) {
      return std::nullopt;
    }
    result.meta.sizes = Dims(shape.begin(), shape.end());
    result.meta.dtype = out.scalar_type();
    result.meta.numel = c10::multiply_integers(shape);
    result.meta.strides = std::move(*strides);
  }
  return result;
}

}  // namespace tiledev
