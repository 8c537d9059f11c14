#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/node.h"

namespace tiledev {

// The structure of a list of nodes: which ops with which metadata touch which buffers, and which
// buffers outlive it. Neither buffer identities nor the values of float scalars are part of it, nor
// where in a buffer its views begin, but for where they lie to each other; and if nobody writes the
// buffer, but for which of them begin at the same place.
struct Fingerprint {
  std::vector<uint64_t> words;
  uint64_t hash = 0;
  std::vector<uint32_t> accesses;  // local buffer number of each access, in order
  std::vector<uint8_t> outlives;   // by local buffer number
  std::vector<uint8_t> written;    // likewise: whether the graph writes it
  std::vector<int64_t> origins;    // likewise: where its first view begins, in elements
};

// Needs the session's lock (it uses the marks of the buffers). `options` stands for what else the
// plan depends on; with `named` the names of axes count, too.
Fingerprint fingerprint(const std::vector<Node>& nodes, uint64_t options, bool named);

// What the first word says that differs from those of nodes with the same signatures: "node 1
// (aten::add.Tensor): `other` starts at element 64, there at element 0".
std::string explain_difference(const std::vector<Node>& nodes, const Fingerprint& print,
                               const std::vector<uint64_t>& others, bool named);

}  // namespace tiledev
