#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compile/plan.h"

namespace tiledev {

// The call that runs step `i` of a tiled segment strip by strip, without its slots; empty if it is
// no elementwise op on float32 that compile/strip_ops lists, or if its tiles have gaps.
std::optional<StripCall> strip_call(const std::vector<Node>& nodes, const Segment& segment,
                                    uint32_t i);

}  // namespace tiledev
