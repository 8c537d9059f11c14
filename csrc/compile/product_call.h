#pragma once

#include <cstdint>

namespace tiledev {

// A product of float32 matrices that kernels/products takes on each tile: out = a b (+ row).
struct ProductCall {
  uint32_t a = 0, b = 0;  // operands of the step
  int32_t row = -1;       // the operand that is added to each row
  int32_t packed = -1;    // b, as a number into Segment::packed
};

// A matrix that a product of every tile reads whole: packed once, for all tiles.
struct PackedOperand {
  uint32_t step = 0, operand = 0;  // one of those that read it
  bool lasts = false;              // it outlives the plan, which does not write it
};

}  // namespace tiledev
