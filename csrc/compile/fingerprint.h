#pragma once

#include <cstdint>
#include <vector>

#include "graph/node.h"

namespace tiledev {

// The structure of a list of nodes: which ops with which metadata touch which buffers, and which
// buffers outlive it. Neither buffer identities nor the values of float scalars are part of it.
struct Fingerprint {
  std::vector<uint64_t> words;
  uint64_t hash = 0;
  std::vector<uint32_t> accesses;  // local buffer number of each access, in order
  std::vector<uint8_t> outlives;   // by local buffer number
};

// Needs the session's lock (it uses the marks of the buffers). `options` stands for what else the
// plan depends on; with `named` the names of axes count, too.
Fingerprint fingerprint(const std::vector<Node>& nodes, uint64_t options, bool named);

}  // namespace tiledev
