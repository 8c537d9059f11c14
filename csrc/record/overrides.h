#pragma once

#include "record/call.h"

namespace tiledev {

// Where the Meta kernels of PyTorch and its CPU kernels do not agree, and who is right.

// Whether the outputs follow from the arguments without a Meta kernel.
bool skips_meta(const CallView& call);

// Mends the metadata that a Meta kernel gave.
void fix_outputs(Signature& signature);

}  // namespace tiledev
