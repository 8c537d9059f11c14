#include "record/shape_rules.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty_strided.h>

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

at::Tensor meta_of_full_size(const c10::TensorImpl& impl) {
  return at::empty_strided(impl.sizes(), impl.strides(),
                           at::TensorOptions().dtype(impl.dtype()).device(c10::kMeta));
}

// The strides that TensorIterator gives a result it allocates.
Dims result_strides(const CallView& call, c10::ScalarType dtype) {
  at::TensorIteratorConfig config;
  std::vector<at::Tensor> inputs;
  for (const c10::TensorImpl* impl : call.operands()) {
    inputs.push_back(meta_of_full_size(*impl));
  }
  config.set_check_mem_overlap(false)
      .check_all_same_dtype(false)
      .declare_static_dtype_and_device(dtype, c10::kMeta)
      .add_owned_output(at::Tensor());
  for (const at::Tensor& input : inputs) {
    config.add_owned_const_input(input);
  }
  return Dims(config.build().output().strides());
}

bool shrunk_to(const at::Tensor& result, c10::IntArrayRef shape) {
  if (result.dim() != static_cast<int64_t>(shape.size())) {
    return false;
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    if (result.size(static_cast<int64_t>(d)) != StandInCall::shrink(shape[d])) {
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
  const int alias = call.op().returns[0].alias_arg;
  PointwiseResult result;
  result.in_place = alias >= 0;
  for (size_t i = 0; i < call.operands().size(); ++i) {
    if (call.written()[i] && call.operands()[i]->sizes() != c10::IntArrayRef(shape)) {
      return std::nullopt;  // an error, or an out= that takes a new shape
    }
  }
  StandInCall call_on_cpu(call, c10::DeviceType::CPU, StandInCall::Mode::kShrunk);
  call_on_cpu.run();
  const at::Tensor& out = call_on_cpu.results()[0].toTensor();
  if (!out.defined() || !shrunk_to(out, shape) || out.is_conj() || out.is_neg()) {
    return std::nullopt;
  }
  if (!result.in_place) {
    result.meta.sizes = Dims(shape.begin(), shape.end());
    result.meta.dtype = out.scalar_type();
    result.meta.numel = c10::multiply_integers(shape);
    result.meta.strides = result_strides(call, out.scalar_type());
  }
  return result;
}

}  // namespace tiledev
