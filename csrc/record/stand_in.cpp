#include "record/stand_in.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "record/storage.h"

namespace tiledev {

StandInCall::StandInCall(const CallView& call, c10::DeviceType device)
    : call_(call), device_(device) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (size_t i = 0; i < call.args().size(); ++i) {
    stack_.push_back(convert(call.args()[i], call.op().args[i].kind));
  }
}

void StandInCall::run() {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  call_.op().op.callBoxed(stack_);
}

at::Tensor StandInCall::make(const c10::TensorImpl& impl) const {
  auto tensor = at::empty_strided(impl.sizes(), impl.strides(),
                                  at::TensorOptions().dtype(impl.dtype()).device(device_));
  if (device_ == c10::DeviceType::CPU) {
    tensor.zero_();
  }
  if (impl.is_conj()) {
    tensor._set_conj(true);
  }
  if (impl.is_neg()) {
    tensor._set_neg(true);
  }
  if (impl.is_wrapped_number()) {
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return tensor;
}

c10::IValue StandInCall::convert_tensor(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) {
    return value;
  }
  const auto* impl = value.toTensor().unsafeGetTensorImpl();
  if (!on_device(*impl)) {
    return value;
  }
  // One tensor that is named twice stays one (out= that is an input).
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (call_.operands()[i] == impl) {
      operands_.push_back(operands_[i]);
      return operands_.back();
    }
  }
  operands_.push_back(make(*impl));
  return operands_.back();
}

c10::IValue StandInCall::convert(const c10::IValue& value, ArgKind kind) {
  switch (kind) {
    case ArgKind::kTensor:
      return convert_tensor(value);
    case ArgKind::kTensorList: {
      if (!value.isList()) {
        return value;
      }
      c10::List<at::Tensor> list;
      for (const c10::IValue& element : value.toListRef()) {
        list.push_back(convert_tensor(element).toTensor());
      }
      return list;
    }
    case ArgKind::kOptionalTensorList: {
      if (!value.isList()) {
        return value;
      }
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& element : value.toListRef()) {
        const c10::IValue converted = convert_tensor(element);
        list.push_back(converted.isTensor() ? converted.toOptional<at::Tensor>() : std::nullopt);
      }
      return list;
    }
    case ArgKind::kGenerator:
      // Never the real generator: learning a shape must not draw from it.
      return device_ == c10::DeviceType::CPU ? c10::IValue(at::detail::createCPUGenerator())
                                             : c10::IValue();
    case ArgKind::kDevice:
      return value.isNone() ? value : c10::IValue(c10::Device(device_));
    default:
      return value;
  }
}

}  // namespace tiledev
