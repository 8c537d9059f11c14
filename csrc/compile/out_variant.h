#pragma once

#include <c10/core/ScalarType.h>

#include "graph/op.h"

namespace tiledev {

// The variant `X.out` of a functional op, if the CPU has a kernel of its own for it: same
// arguments, then one out= argument for each return. Kept with the op; nullptr if there is none.
const c10::OperatorHandle* out_variant(const OpTraits& op);

// The same in kernels/, for tiles of a result of this type: what runs whole runs the CPU's kernel
// and gives its bits.
const c10::OperatorHandle* tile_kernel(const OpTraits& op, c10::ScalarType result);

// The same for small ops, on one thread.
const c10::OperatorHandle* small_kernel(const OpTraits& op, c10::ScalarType result);

// The functional op in kernels/ that a tile calls instead of this one; nullptr if there is none.
const c10::OperatorHandle* tile_form(const OpTraits& op);

// Whether the out= kernel writes its result contiguously, whatever its strides are.
bool ignores_strides(const OpTraits& op);

// Whether the out= kernel is wrong, or makes the result large first and resizes it: no tile of a
// result may be given to it.
bool has_unusable_out(const OpTraits& op);

// The functional op of an op with out= arguments, or null.
const c10::OperatorHandle* functional_form(const OpTraits& op);

}  // namespace tiledev
