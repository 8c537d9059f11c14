#pragma once

#include <string>
#include <utility>
#include <vector>

#include "graph/node.h"

namespace tiledev {

// One line a node: "%3 = aten::add.Tensor(%1[2, 3] float, %2[3] float)".
std::string to_text(const std::vector<Node>& nodes);

// "aten::add.Tensor([2, 3] float, [3] float)"; "a host call" for null.
std::string describe(const SignaturePtr& signature);

// What differs between two signatures that describe() tells nothing apart of, as said of each:
// "dim=[0]" and "dim=[1]".
std::pair<std::string, std::string> differences(const Signature& a, const Signature& b);

// The argument that an operand comes from: "self", or "tensors[2]".
std::string operand_name(const Signature& signature, size_t operand);

// Graphviz; nodes are ops, edges the buffers between them.
std::string to_dot(const std::vector<Node>& nodes);

}  // namespace tiledev
