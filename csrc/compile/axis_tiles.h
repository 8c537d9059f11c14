#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compile/axis_groups.h"
#include "compile/options.h"

namespace tiledev {

// The extent that these tiles refer to: the group's, or the one that the sizes add up to.
int64_t tiled_extent(const AxisGroup& group, const AxisTiling& tiling);

// The sizes of the tiles of an axis; raises ValueError if they do not add up to the extent.
std::vector<int64_t> tile_sizes(const std::string& name, const AxisTiling& tiling, int64_t extent);

// The tiles that were asked for a group, or none. An inherited name yields where sizes that do not
// add up are for another axis of the graph, which has the name by itself; else as tile_sizes().
std::vector<int64_t> chosen_tiles(const std::vector<AxisGroup>& groups, const AxisGroup& group,
                                  const std::map<std::string, AxisTiling>& tilings);

}  // namespace tiledev
