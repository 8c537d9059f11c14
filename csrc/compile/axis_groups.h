#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "compile/options.h"
#include "compile/step.h"

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
  std::vector<AxisKey> members;
};

// The groups of a list of steps: union-find over what the tile rules say. Raises ValueError if two
// different names meet.
std::vector<AxisGroup> find_axis_groups(const Compilation& c);

// The extent that these tiles refer to: the group's, or the one that the sizes add up to.
int64_t tiled_extent(const AxisGroup& group, const AxisTiling& tiling);

// The sizes of the tiles of an axis; raises ValueError if they do not add up to the extent.
std::vector<int64_t> tile_sizes(const std::string& name, const AxisTiling& tiling, int64_t extent);

}  // namespace tiledev
