#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "compile/axes.h"
#include "compile/axis_groups.h"
#include "compile/pipeline.h"

namespace tiledev {

// An axis group with tiles of given sizes.
struct NamedTiling {
  int64_t extent = 0;           // of the axis as it was named; views of it may have another
  std::vector<int64_t> bounds;  // 0, ..., extent
};

// A step's shapes and one of its axes.
struct Candidate {
  const StepAxes* axes;
  size_t axis;

  int64_t extent() const { return axes->axes[axis].extent; }
};

// The tiles that the user chose, by the dimensions that they hold for.
class NamedTilings {
 public:
  // Raises ValueError if the sizes do not fit the graph's extents.
  explicit NamedTilings(const Compilation& c);

  // What holds for this axis of a step, or null: also if tiles would begin between its units.
  const NamedTiling* find(const Step& step, const Candidate& candidate) const;
  // Whether tiles of these sizes begin and end at units of a segment with that many.
  static bool representable(const NamedTiling& tiling, int64_t extent);

 private:
  std::vector<std::unique_ptr<NamedTiling>> tilings_;
  std::map<AxisKey, const NamedTiling*> by_axis_;
};

}  // namespace tiledev
