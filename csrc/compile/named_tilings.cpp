#include "compile/named_tilings.h"

#include <utility>

#include "compile/axis_tiles.h"

namespace tiledev {

NamedTilings::NamedTilings(const Compilation& c) {
  if (c.options.tilings.empty() || c.options.mode != TilingMode::kAuto) {
    return;
  }
  for (const AxisGroup& group : c.groups) {
    const std::vector<int64_t> sizes = chosen_tiles(c.groups, group, c.options.tilings);
    if (sizes.empty()) {
      continue;
    }
    auto tiling = std::make_unique<NamedTiling>();
    tiling->bounds = {0};
    for (const int64_t size : sizes) {
      tiling->bounds.push_back(tiling->bounds.back() + size);
    }
    tiling->extent = tiling->bounds.back();
    for (const AxisKey& member : group.members) {
      by_axis_[member] = tiling.get();
    }
    tilings_.push_back(std::move(tiling));
  }
}

const NamedTiling* NamedTilings::find(const Step& step, const Candidate& candidate) const {
  if (by_axis_.empty()) {
    return nullptr;
  }
  const StepAxes& axes = *candidate.axes;
  for (size_t t = 0; t < axes.metas.size(); ++t) {
    const int64_t span = span_of(axes.metas[t], axes.axes[candidate.axis].dims[t]);
    const auto found = by_axis_.find({step.view(t).buffer, span});
    if (span > 0 && found != by_axis_.end()) {
      return representable(*found->second, candidate.extent()) ? found->second : nullptr;
    }
  }
  return nullptr;
}

bool NamedTilings::representable(const NamedTiling& tiling, int64_t extent) {
  for (const int64_t bound : tiling.bounds) {
    if (bound * extent % tiling.extent != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace tiledev
