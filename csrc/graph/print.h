#pragma once

#include <string>
#include <vector>

#include "graph/node.h"

namespace tiledev {

// One line a node: "%3 = aten::add.Tensor(%1[2, 3] float, %2[3] float)".
std::string to_text(const std::vector<Node>& nodes);

// "aten::add.Tensor([2, 3] float, [3] float)"; "a host call" for null.
std::string describe(const SignaturePtr& signature);

// Graphviz; nodes are ops, edges the buffers between them.
std::string to_dot(const std::vector<Node>& nodes);

}  // namespace tiledev
