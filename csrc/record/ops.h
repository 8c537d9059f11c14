#pragma once

#include <map>
#include <string>

#include "graph/op.h"

namespace tiledev {

// What the schema does not say about an op: the recorder's only list of names.
void classify(OpTraits& traits);

// Registers the recorder for every op that the CPU runs with a kernel of its own. Ops that are
// composed of others on the CPU are composed of the same others here, so that the numbers agree.
// Called once, at import, after the kernels written by hand.
void register_recorded_ops();

// Overload name -> "record", "fallback", "readout", "view" or "kernel" (written by hand).
std::map<std::string, std::string> registered_ops();

}  // namespace tiledev
