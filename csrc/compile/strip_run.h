#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <vector>

#include "compile/strip_ops.h"

namespace tiledev {

// Where a call finds its input.
struct StripInput {
  enum class Kind : uint8_t {
    kTile,     // the step's tensor, element by element
    kSlot,     // the strip that an earlier call of the run left there
    kNumber,   // an argument of the step: one number for all elements
    kPattern,  // the step's tensor, broadcast: (e / repeat) % period * stride for element e
  };
  Kind kind = Kind::kTile;
  uint32_t tensor = 0;  // of the step
  uint32_t slot = 0;    // kSlot; kPattern: where its strip is put together
  uint32_t arg = 0;     // kNumber ...
  float missing = 0;    // ... if that is None
  int64_t repeat = 1;
  int64_t stride = 1;
  int64_t period = 0;  // 0: it does not start again within a tile
};

// A step of a run, on one strip.
struct StripCall {
  uint32_t step = 0;  // of the segment
  const StripOp* op = nullptr;
  c10::SmallVector<StripInput, 4> inputs;
  uint32_t tensor = 0;      // its result: a tensor of the step ...
  int32_t slot = -1;        // ... or a strip here
  bool may_stream = false;  // from the slot on to the tensor: nobody here reads that
};

// Neighbouring elementwise steps of a segment that go over a tile together: each strip of it passes
// through all of them. What only they use of each other never leaves L1.
struct StripRun {
  uint32_t first = 0, count = 0;  // steps of the segment
  uint32_t slots = 0;             // strips that it holds at a time
  uint32_t numbers = 0;           // of inputs of this kind
  int64_t elements = 0;           // of a unit of the segment's axis
  std::vector<StripCall> calls;
};

}  // namespace tiledev
