#pragma once

#include <ATen/core/Tensor.h>

#include "graph/buffer.h"
#include "graph/signature.h"

namespace tiledev {

// A CPU tensor over `memory` with the given metadata: how a task sees an operand. It shares the
// memory, not a copy of it.
at::Tensor host_view(const c10::Storage& memory, const TensorMeta& meta, int64_t offset);

}  // namespace tiledev
