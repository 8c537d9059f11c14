#pragma once

#include <cstdint>
#include <vector>

#include "compile/pipeline.h"

namespace tiledev {

// The variant `X.out` of a functional op, if the CPU has a kernel of its own for it: same
// arguments, then one out= argument for each return. Kept with the op.
const c10::OperatorHandle* out_variant(const OpTraits& op);

// Whether the out= kernel writes its result contiguously, whatever its strides are.
bool ignores_strides(const OpTraits& op);

}  // namespace tiledev
