#pragma once

#include "graph/node.h"

namespace tiledev {

// Runs one node on the calling thread: ATen's own CPU kernel on tensors that share the buffers'
// memory. Results land in the memory of the node's buffers. Throws what the kernel throws.
void run_node(Node& node);

}  // namespace tiledev
