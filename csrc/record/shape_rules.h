#pragma once

#include <optional>

#include "record/call.h"

namespace tiledev {

// What an elementwise op gives, found without running it at full size.
struct PointwiseResult {
  TensorMeta meta;        // of the result
  bool in_place = false;  // the result is the written operand
  int resized = -1;       // an out= operand that takes this shape
};

// For ops with ATen's pointwise tag, and in-place fills: the shape by broadcasting, the dtype and
// the errors from the CPU's kernel on tensors whose dimensions are cut down to at most 2, strides
// from TensorIterator or contiguous, as the kernel gave them there. Empty if the rule does not
// apply; raises what the CPU raises.
std::optional<PointwiseResult> pointwise_rule(const CallView& call);

}  // namespace tiledev
