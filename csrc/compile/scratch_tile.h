#pragma once

#include <algorithm>
#include <cstdint>

#include "compile/plan.h"

namespace tiledev {

// How a tile of a view lies in a worker's scratch.
struct ScratchTile {
  Dims sizes, strides;
  int64_t offset = 0;  // from the temporary's place, in elements

  // The elements from the temporary's place to the end of the tile.
  int64_t reach() const {
    int64_t last = offset;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] == 0) {
        return 0;
      }
      last += (sizes[d] - 1) * strides[d];
    }
    return last + 1;
  }
};

// In scratch a tile lies alone: what lay a period of the axis apart lies a tile's part of it apart.
inline ScratchTile scratch_tile(const View& view, const Segment& segment, int64_t units) {
  ScratchTile tile{view.meta.sizes, view.meta.strides, view.offset};
  if (!segment.tiled() || view.cut_dim < 0 || view.span == 0) {
    return tile;
  }
  const int64_t part = view.span / segment.extent * units;
  tile.sizes[view.cut_dim] = units * view.factor;
  for (int64_t& stride : tile.strides) {
    stride = stride >= view.span ? stride / view.span * part : stride;
  }
  tile.offset = view.offset / view.span * part + view.offset % view.span;
  return tile;
}

inline int64_t longest_tile(const Segment& segment) {
  int64_t longest = 0;
  for (size_t t = 0; t + 1 < segment.bounds.size(); ++t) {
    longest = std::max(longest, segment.bounds[t + 1] - segment.bounds[t]);
  }
  return longest;
}

// The bytes from the temporary's place to the end of the view's longest tile.
inline int64_t scratch_reach(const View& view, const Segment& segment) {
  return scratch_tile(view, segment, longest_tile(segment)).reach() *
         static_cast<int64_t>(c10::elementSize(view.meta.dtype));
}

}  // namespace tiledev
