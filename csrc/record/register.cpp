#include <torch/library.h>

#include "record/kernels.h"
#include "record/ops.h"
#include "record/recorder.h"

namespace tiledev {

namespace {

// For ops without a kernel of their own: those of other packages, and what is registered later.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  record(state_of(op), stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_factories(m);
  register_views(m);
  register_transfers(m);
  register_composites(m);
  register_reductions(m);
  register_sync_batch_norm(m);
}

// Copies handle lazy conjugation and negation themselves: resolving them would copy again.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

// As for the zero tensors of autograd, which have no memory.
TORCH_LIBRARY_IMPL(aten, ZeroTensor, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

}  // namespace tiledev
