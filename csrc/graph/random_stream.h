#pragma once

#include <ATen/core/Generator.h>

#include "graph/buffer.h"

namespace tiledev {

// A generator as nodes see it: the CPU generator that really draws, and a token that keeps all
// that draws, seeds or reads the state in program order. Same seed, same numbers as on the CPU.
struct RandomStream {
  at::Generator generator;
  BufferPtr token;
};

// What a device's GeneratorImpl derives from besides c10::GeneratorImpl.
class RandomSource {
 public:
  virtual ~RandomSource() = default;
  virtual const RandomStream& stream() = 0;
};

}  // namespace tiledev
