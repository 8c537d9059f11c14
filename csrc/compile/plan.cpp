#include "compile/plan.h"

#include <c10/util/Exception.h>

namespace tiledev {

Buffer& resolve(const std::vector<Node>& nodes, AccessRef ref) {
  const Node& node = nodes[ref.node];
  uint32_t ordinal = ref.ordinal;
  if (ordinal < node.operands.size()) {
    return *node.operands[ordinal].buffer;
  }
  ordinal -= static_cast<uint32_t>(node.operands.size());
  if (node.token) {
    if (ordinal == 0) {
      return *node.token;
    }
    --ordinal;
  }
  for (const auto& buffer : node.results) {
    if (buffer && ordinal-- == 0) {
      return *buffer;
    }
  }
  TORCH_INTERNAL_ASSERT(false, "[tiledev] a plan refers to an access that its graph lacks");
}

}  // namespace tiledev
