#include "graph/signature.h"

#include <algorithm>

namespace tiledev {

size_t TensorMeta::storage_nbytes() const {
  if (numel == 0) {
    return 0;
  }
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    last += (sizes[i] - 1) * strides[i];
  }
  return static_cast<size_t>(last + 1) * c10::elementSize(dtype);
}

}  // namespace tiledev
