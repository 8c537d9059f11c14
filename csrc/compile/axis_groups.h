#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "compile/step.h"
#include "graph/axis_memory.h"

namespace tiledev {

struct Compilation;

// A dimension of a buffer, whatever view of it is looked at: the bytes after which it repeats.
// [b, s, d] and [b * s, d] share the outer one.
using AxisKey = std::pair<uint32_t, int64_t>;  // local buffer number, span in bytes

// Dimensions that ops tie to each other.
struct AxisGroup {
  int64_t extent = 0;            // as it was named; without a name, of the outermost factor
  std::string name;              // empty: nobody named it
  std::vector<int64_t> extents;  // that it was named with: several if one name stands on views
  bool inherited = false;        // nobody gave the name to a member, nor did ops tie it to one
  std::vector<AxisKey> members;
};

struct FoundAxes {
  std::vector<AxisGroup> groups;
  std::map<uint32_t, AxisMemoryPtr> memories;  // by local buffer number: what it learns here
};

// The groups of a list of steps: union-find over what the tile rules say. Raises ValueError if two
// different names meet; where inherited ones do, the group has no name.
FoundAxes find_axis_groups(const Compilation& c);

}  // namespace tiledev
