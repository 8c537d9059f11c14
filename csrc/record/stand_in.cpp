#include "record/stand_in.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "record/native_meta.h"
#include "record/plain_dispatch.h"
#include "record/storage.h"
#include "runtime/host_view.h"

namespace tiledev {

namespace {

bool takes_pivots(const std::string& op) {
  return op.find("lu_solve") != std::string::npos || op.find("lu_unpack") != std::string::npos ||
         op.find("ldl_solve") != std::string::npos;
}

// Values that kernels accept: indices within bounds, probabilities, and matrices that are positive
// definite. Elementwise ops may divide by integers, and pivots of a factorisation count from one.
void fill_harmless(const at::Tensor& tensor, const OpTraits& op) {
  if (!tensor.is_floating_point() && !tensor.is_complex()) {
    tensor.fill_(op.op.hasTag(at::Tag::pointwise) || takes_pivots(op.name) ? 1 : 0);
    return;
  }
  tensor.fill_(0.5);
  const auto strides = tensor.strides();
  const bool overlaps = std::find(strides.begin(), strides.end(), 0) != strides.end();
  if (tensor.dim() >= 2 && tensor.numel() > 0 && !overlaps && tensor.itemsize() > 1) {
    tensor.diagonal(0, -2, -1).fill_(1);
  }
}

}  // namespace

Dims dense_strides(const Dims& sizes, c10::IntArrayRef like) {
  c10::SmallVector<size_t, 5> order(sizes.size());  // innermost first
  std::iota(order.rbegin(), order.rend(), size_t{0});
  if (std::find(like.begin(), like.end(), 0) == like.end()) {
    std::stable_sort(order.begin(), order.end(),
                     [like](size_t a, size_t b) { return like[a] < like[b]; });
  }
  Dims strides(sizes.size());
  int64_t next = 1;
  for (const size_t d : order) {
    strides[d] = next;
    next *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

bool same_strides(c10::IntArrayRef sizes, c10::IntArrayRef a, c10::IntArrayRef b) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1 && a[d] != b[d]) {
      return false;
    }
  }
  return true;
}

StandInCall::StandInCall(const CallView& call, c10::DeviceType device, Mode mode)
    : StandInCall(call, device, mode, Limits()) {}

StandInCall::StandInCall(const CallView& call, const Limits& limits)
    : StandInCall(call, c10::DeviceType::CPU, Mode::kShrunk, limits) {}

StandInCall::StandInCall(const CallView& call, c10::DeviceType device, Mode mode,
                         const Limits& limits)
    : call_(call), device_(device), mode_(mode), limits_(limits) {
  const PlainDispatch plain;
  for (size_t i = 0; i < call.args().size(); ++i) {
    stack_.push_back(convert(call.args()[i], call.op().args[i].kind));
  }
}

void StandInCall::run() {
  const PlainDispatch plain;
  const auto& op = call_.op().op;
  const c10::KernelFunction* native =
      device_ == c10::DeviceType::Meta ? native_meta(call_.op().name) : nullptr;
  if (native != nullptr) {
    native->callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack_);
  } else {
    op.callBoxed(stack_);
  }
}

at::Tensor StandInCall::make_alias(const c10::TensorImpl& impl) {
  Buffer& buffer = buffer_of(impl);
  for (const auto& [key, memory] : memories_) {
    if (key == &buffer) {
      return host_view(memory, meta_of(impl), impl.storage_offset());
    }
  }
  auto bytes = at::zeros({static_cast<int64_t>(buffer.nbytes())}, at::kByte);
  memories_.emplace_back(&buffer, bytes.storage());
  return host_view(bytes.storage(), meta_of(impl), impl.storage_offset());
}

at::Tensor StandInCall::make(const c10::TensorImpl& impl) {
  if (mode_ == Mode::kAliased) {
    return make_alias(impl);
  }
  const auto options = at::TensorOptions().dtype(impl.dtype()).device(device_);
  at::Tensor tensor;
  if (mode_ == Mode::kShrunk) {
    Dims sizes(impl.sizes());
    for (size_t d = 0; d < sizes.size(); ++d) {
      sizes[d] = limits_.cut(operands_.size(), d, sizes[d]);
    }
    tensor = at::empty_strided(sizes, dense_strides(sizes, impl.strides()), options);
  } else {
    tensor = at::empty_strided(impl.sizes(), impl.strides(), options);
  }
  if (device_ == c10::DeviceType::CPU) {
    fill_harmless(tensor, call_.op());
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

at::Tensor StandInCall::stand_in(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  if (!on_device(*impl)) {
    return tensor;
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
    case ArgKind::kTensorList:
    case ArgKind::kOptionalTensorList:
      return map_tensors(value, kind, [this](const at::Tensor& t) { return stand_in(t); });
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
