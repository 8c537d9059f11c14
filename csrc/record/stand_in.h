#pragma once

#include <ATen/core/stack.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "record/call.h"

namespace tiledev {

// The strides of a dense tensor of these sizes whose dimensions lie in memory in the order of
// `like`; contiguous where that leaves it open.
Dims dense_strides(const Dims& sizes, c10::IntArrayRef like);
// Whether two lists of strides say the same of a tensor of these sizes.
bool same_strides(c10::IntArrayRef sizes, c10::IntArrayRef a, c10::IntArrayRef b);

// A call with tensors of another device in place of the operands, of the same sizes, strides and
// dtypes: Meta tensors to learn the shape of the results, or harmless values on the CPU to learn
// what the CPU's own kernel says where Meta kernels are missing, wrong, or word their errors
// differently.
class StandInCall {
 public:
  enum class Mode {
    kPlain,
    kAliased,  // operands that share a buffer share memory here too
    kShrunk,   // operands are cut down, dense, and their dimensions lie in memory as before
  };
  // How operands are cut down.
  struct Limits {
    int64_t size = 2;          // of each dimension
    int64_t batch = size;      // of the first one
    bool first_alone = false;  // only the first operand is, and the second dimension is not

    int64_t cut(size_t operand, size_t dim, int64_t whole) const {
      if (first_alone && (operand > 0 || dim == 1)) {
        return whole;
      }
      return std::min(whole, dim == 0 ? batch : size);
    }
  };

  StandInCall(const CallView& call, c10::DeviceType device, Mode mode = Mode::kPlain);
  // On the CPU, with operands that are cut down.
  StandInCall(const CallView& call, const Limits& limits);

  void run();  // throws what the kernel throws

  const torch::jit::Stack& results() const { return stack_; }
  const std::vector<at::Tensor>& operands() const { return operands_; }

 private:
  StandInCall(const CallView& call, c10::DeviceType device, Mode mode, const Limits& limits);
  at::Tensor make(const c10::TensorImpl& impl);
  at::Tensor make_alias(const c10::TensorImpl& impl);
  at::Tensor stand_in(const at::Tensor& tensor);
  c10::IValue convert(const c10::IValue& value, ArgKind kind);

  const CallView& call_;
  const c10::DeviceType device_;
  const Mode mode_;
  const Limits limits_;
  torch::jit::Stack stack_;
  std::vector<at::Tensor> operands_;
  std::vector<std::pair<const void*, c10::Storage>> memories_;  // by buffer, with kAliased
};

}  // namespace tiledev
