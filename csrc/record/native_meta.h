#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include <string>

namespace tiledev {

// PyTorch's own C++ Meta kernel of an op, or null. The dispatcher prefers Python ones, which cost
// 75-500 us a call, import torch._dynamo at the first, and word their errors differently.
const c10::KernelFunction* native_meta(const std::string& op);

}  // namespace tiledev
