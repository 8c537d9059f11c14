#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "compile/step.h"
#include "compile/strip_run.h"
#include "graph/node.h"

namespace tiledev {

// One buffer access of a node, found again in another graph of the same structure: `ordinal` counts
// the node's accesses in the order of for_each_access.
struct AccessRef {
  uint32_t node = 0;
  uint32_t ordinal = 0;
};

Buffer& resolve(const std::vector<Node>& nodes, AccessRef ref);

// Steps that run one after the other on each tile: a task of the plan. Tiles are independent of
// each other, but for partial results, which a lane of tiles accumulates in order.
struct Segment {
  std::vector<Step> steps;
  int64_t extent = 0;            // units of the axis that is cut; 0: not tiled
  std::vector<int64_t> bounds;   // of the tiles, in units: 0, ..., extent
  uint32_t lanes = 0;            // runs of tiles with partial results of their own; 0: none
  int64_t scratch_bytes = 0;     // of a worker, for the longest tile
  std::vector<StripRun> strips;  // in order
  std::vector<PackedOperand> packed;
  bool wide = false;         // not tiled, and large: its ops use all cores
  std::string whole_reason;  // why it is not tiled

  int64_t work = 0;  // elements read and written
  double flops = 0;
  double rank = 0;  // estimated time from its start to the end of the plan, in us
  int64_t bytes_read = 0, bytes_written = 0;  // of memory, not of scratch

  uint32_t predecessors = 0;
  c10::SmallVector<uint32_t, 2> successors;  // by falling rank
  std::vector<uint32_t> last_use_of;         // nodes that only this segment needs
  std::vector<uint32_t> shares;              // others, as numbers into Plan::shared

  bool tiled() const { return extent > 0; }
  size_t tiles() const { return bounds.size() < 2 ? 1 : bounds.size() - 1; }
  // Independent pieces that workers take: lanes, or tiles.
  size_t units() const { return lanes > 0 ? lanes : tiles(); }
};

// A dependence on work submitted before this plan: the segment's first touch of a buffer.
struct PlanEntry {
  uint32_t segment = 0;
  AccessRef buffer;
  bool writes = false;
};

// What later plans must wait for: a buffer's last writer here, and its readers since.
struct PlanExit {
  AccessRef buffer;
  int64_t writer = -1;
  c10::SmallVector<uint32_t, 2> readers;
};

// A node whose parts stand in several segments.
struct SharedNode {
  uint32_t node = 0;
  uint32_t segments = 0;
};

// A buffer that belongs to a named axis group when the plan has run.
struct PlanName {
  AccessRef buffer;
  AxisName axis;
};

// What a buffer remembers when the plan has run.
struct PlanMemory {
  AccessRef buffer;
  AxisMemoryPtr memory;
};

// What an executor keeps with a plan between its runs.
struct PlanCompanion {
  virtual ~PlanCompanion() = default;
};

// What to run for a graph of a given structure, and in which order. Immutable and shared by all of
// its runs (but for the executor's companion); holds no buffer.
struct Plan {
  uint64_t id = 0;
  size_t node_count = 0;
  std::vector<Segment> segments;  // in an order that respects all dependences
  std::vector<uint32_t> dropped;  // dead nodes
  std::vector<SharedNode> shared;
  std::vector<PlanEntry> entries;
  std::vector<PlanExit> exits;
  std::vector<PlanName> names;
  std::vector<PlanMemory> memories;  // that differ from what the buffers remembered before
  bool deterministic = false;   // ops that run whole have one thread, for any number of workers
  int64_t temporary_bytes = 0;  // the most that live at a time, scratch apart
  mutable std::shared_ptr<PlanCompanion> companion;  // the executor's; set before the first run
};

using PlanPtr = std::shared_ptr<const Plan>;

}  // namespace tiledev
