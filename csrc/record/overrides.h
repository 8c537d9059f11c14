#pragma once

#include "record/call.h"

namespace tiledev {

// Ops whose outputs follow from other things than a run on stand-ins.

// Whether the outputs follow from the arguments without a Meta kernel.
bool skips_meta(const CallView& call);

// Why the shape of the outputs depends on values, or null.
const char* needs_values(const CallView& call);

}  // namespace tiledev
