#pragma once

#include "record/call.h"

namespace tiledev {

// Meta kernels give results of some calls other strides than the CPU's kernels do: contiguous ones
// to a convolution of channels_last inputs, for instance. Where the CPU's kernel runs on operands
// that are cut down, the dimensions of its results lie in memory in the order that is right.
void correct_order(const CallView& call, Signature& signature);

}  // namespace tiledev
