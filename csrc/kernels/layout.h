#pragma once

#include <ATen/core/Tensor.h>

namespace tiledev {

// Whether elements at the same place in memory are elements at the same index, without gaps: then a
// loop over the memory is a loop over the tensors.
inline bool walk_together(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.is_non_overlapping_and_dense();
}

}  // namespace tiledev
