#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compile/step.h"

namespace tiledev {

// An axis that a step walks: where it appears in the step's tensors.
struct Axis {
  int64_t extent = 0;
  bool reduced = false;      // some output lacks it: its tiles are combined
  std::vector<int8_t> dims;  // by tensor (operands, then fresh outputs): its dimension, or -1
};

// The axes of a step that tiles may cut, and the shapes of its tensors that they refer to.
struct StepAxes {
  std::vector<TensorMeta> metas;  // by tensor: operands, then fresh outputs
  std::vector<Axis> axes;         // outermost first
  c10::SmallVector<std::pair<uint32_t, c10::IValue>, 1> patches;
  char extent_letter = 0;
  int extent_axis = -1;  // the axis that an integer argument repeats
};

// By the op's rule; empty if the step must run whole.
std::optional<StepAxes> find_axes(const Step& step);

// The same with neighbouring axes merged that lie one behind the other in every tensor: [b, s, d]
// becomes [b * s * d] for an elementwise op on contiguous tensors. Nothing if none can be merged.
std::optional<StepAxes> collapse(const Step& step, const StepAxes& axes);

// Whether the elements lie in memory in the order of their indices, without gaps.
inline bool contiguous(const TensorMeta& meta) {
  int64_t expected = 1;
  for (size_t d = meta.sizes.size(); d-- > 0;) {
    if (meta.sizes[d] != 1 && meta.strides[d] != expected) {
      return false;
    }
    expected *= meta.sizes[d];
  }
  return true;
}

// Whether two tensors have the same shape, and the same strides where they matter.
bool same_layout(const TensorMeta& a, const TensorMeta& b);

// Whether the elements lie without gaps and overlaps, in whatever order of dimensions.
bool dense(const TensorMeta& meta);

inline int64_t itemsize(const TensorMeta& meta) {
  return static_cast<int64_t>(c10::elementSize(meta.dtype));
}

// The bytes after which the cut repeats, or 0 if the axis does not move through the buffer.
inline int64_t span_of(const TensorMeta& meta, int dim) {
  return dim < 0 ? 0 : meta.strides[dim] * meta.sizes[dim] * itemsize(meta);
}

}  // namespace tiledev
