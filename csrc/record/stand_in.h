#pragma once

#include <ATen/core/stack.h>

#include <utility>
#include <vector>

#include "record/call.h"

namespace tiledev {

// A call with tensors of another device in place of the operands, of the same sizes, strides and
// dtypes: Meta tensors to learn the shape of the results, or harmless values on the CPU to learn
// what the CPU's own kernel says where Meta kernels are missing, wrong, or word their errors
// differently.
class StandInCall {
 public:
  enum class Mode {
    kPlain,
    kAliased,  // operands that share a buffer share memory here too
    kShrunk,   // no dimension is larger than 2, and strides are contiguous
  };

  StandInCall(const CallView& call, c10::DeviceType device, Mode mode = Mode::kPlain);

  // A size under kShrunk.
  static int64_t shrink(int64_t size) { return size < 2 ? size : 2; }

  void run();  // throws what the kernel throws

  const torch::jit::Stack& results() const { return stack_; }
  const std::vector<at::Tensor>& operands() const { return operands_; }

 private:
  at::Tensor make(const c10::TensorImpl& impl);
  at::Tensor make_alias(const c10::TensorImpl& impl);
  at::Tensor stand_in(const at::Tensor& tensor);
  c10::IValue convert(const c10::IValue& value, ArgKind kind);

  const CallView& call_;
  const c10::DeviceType device_;
  const Mode mode_;
  torch::jit::Stack stack_;
  std::vector<at::Tensor> operands_;
  std::vector<std::pair<const void*, c10::Storage>> memories_;  // by buffer, with kAliased
};

}  // namespace tiledev
