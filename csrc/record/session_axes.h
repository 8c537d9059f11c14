#pragma once

#include "graph/buffer.h"

namespace tiledev {

// Gives a dimension of a buffer a name, unless it has another. What the user gave holds; otherwise
// the extent that was met last. Needs the session's lock.
void add_axis_name(Buffer& buffer, const AxisName& axis);

}  // namespace tiledev
