#include "compile/axis_tiles.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

namespace tiledev {

namespace {

std::string join(const std::vector<int64_t>& sizes) {
  std::string text;
  for (const int64_t size : sizes) {
    text += (text.empty() ? "" : ",") + std::to_string(size);
  }
  return text;
}

}  // namespace

int64_t tiled_extent(const AxisGroup& group, const AxisTiling& tiling) {
  const int64_t total = std::accumulate(tiling.sizes.begin(), tiling.sizes.end(), int64_t{0});
  const bool adds_up =
      std::find(group.extents.begin(), group.extents.end(), total) != group.extents.end();
  return adds_up ? total : group.extent;
}

std::vector<int64_t> tile_sizes(const std::string& name, const AxisTiling& tiling, int64_t extent) {
  if (tiling.uniform > 0) {
    std::vector<int64_t> sizes(static_cast<size_t>(extent / tiling.uniform), tiling.uniform);
    if (extent % tiling.uniform != 0) {
      sizes.push_back(extent % tiling.uniform);
    }
    return sizes;
  }
  const int64_t total = std::accumulate(tiling.sizes.begin(), tiling.sizes.end(), int64_t{0});
  TORCH_CHECK_VALUE(total == extent, "[set_axis_group_tiling] the tiles ", join(tiling.sizes),
                    " of axis group '", name, "' add up to ", total, ", but the axis has extent ",
                    extent, "; pass sizes that add up to it, or one int for tiles of that size");
  return tiling.sizes;
}

std::vector<int64_t> chosen_tiles(const std::vector<AxisGroup>& groups, const AxisGroup& group,
                                  const std::map<std::string, AxisTiling>& tilings) {
  const auto asked = tilings.find(group.name);
  if (group.name.empty() || asked == tilings.end()) {
    return {};
  }
  const int64_t extent = tiled_extent(group, asked->second);
  const auto& sizes = asked->second.sizes;
  if (group.inherited && asked->second.uniform == 0 &&
      std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) != extent) {
    const auto by_itself = [&](const AxisGroup& other) {
      return !other.inherited && other.name == group.name;
    };
    if (std::any_of(groups.begin(), groups.end(), by_itself)) {
      return {};
    }
  }
  return tile_sizes(group.name, asked->second, extent);
}

}  // namespace tiledev
