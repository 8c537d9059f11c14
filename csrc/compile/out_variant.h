#pragma once

#include "graph/op.h"

namespace tiledev {

// The variant `X.out` of a functional op, if the CPU has a kernel of its own for it: same
// arguments, then one out= argument for each return. With `own`, rather the one in kernels/.
// Kept with the op; nullptr if there is none.
const c10::OperatorHandle* out_variant(const OpTraits& op, bool own);

// Whether the out= kernel writes its result contiguously, whatever its strides are.
bool ignores_strides(const OpTraits& op);

}  // namespace tiledev
