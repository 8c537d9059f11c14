#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/node.h"

namespace tiledev {

// One buffer access of a node, found again in another graph of the same structure: `ordinal` counts
// the node's accesses in the order of for_each_access.
struct AccessRef {
  uint32_t node = 0;
  uint32_t ordinal = 0;
};

Buffer& resolve(const std::vector<Node>& nodes, AccessRef ref);

struct PlanTask {
  uint32_t node = 0;
  uint32_t predecessors = 0;
  c10::SmallVector<uint32_t, 2> successors;
};

// A dependence on work submitted before this plan: the task's first touch of a buffer.
struct PlanEntry {
  uint32_t task = 0;
  AccessRef buffer;
  bool writes = false;
};

// What later plans must wait for: a buffer's last writer here, and its readers since.
struct PlanExit {
  AccessRef buffer;
  int64_t writer = -1;
  c10::SmallVector<uint32_t, 2> readers;
};

// What to run for a graph of a given structure, and in which order. Immutable and shared by all of
// its runs; holds no buffer.
struct Plan {
  uint64_t id = 0;
  size_t node_count = 0;
  std::vector<PlanTask> tasks;    // in program order
  std::vector<uint32_t> dropped;  // dead nodes
  std::vector<PlanEntry> entries;
  std::vector<PlanExit> exits;
};

using PlanPtr = std::shared_ptr<const Plan>;

}  // namespace tiledev
