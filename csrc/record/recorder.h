#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

#include <memory>

#include "record/metadata.h"

namespace tiledev {

// An op with its signatures. Made on the op's registration or first call, never freed.
struct OpState {
  explicit OpState(const c10::OperatorHandle& op);

  OpTraits traits;
  SignatureCache signatures;
};

// The state of an op; the same object on every call. Thread safe.
OpState& state_of(const c10::OperatorHandle& op);
OpState& state_of(const char* name, const char* overload);

// THE recorder: replaces the arguments on the stack by the results, and remembers a node. Whatever
// cannot be a node goes to the host at once (record/host_call.h).
void record(OpState& state, torch::jit::Stack* stack);

// Records with typed arguments, for kernels that are written by hand.
template <typename... Args>
torch::jit::Stack record_op(OpState& state, Args&&... args) {
  torch::jit::Stack stack;
  stack.reserve(sizeof...(Args));
  (stack.emplace_back(std::forward<Args>(args)), ...);
  record(state, &stack);
  return stack;
}

// Copies the first bytes of one buffer to another, as a node.
void record_byte_copy(const BufferPtr& from, const BufferPtr& to, size_t nbytes);

// The boxed kernel that is registered for one op.
class RecordKernel final : public c10::OperatorKernel {
 public:
  explicit RecordKernel(OpState& state) : state_(state) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    record(state_, stack);
  }

 private:
  OpState& state_;
};

}  // namespace tiledev
