#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "compile/strip_run.h"
#include "kernels/strip_kernels.h"

namespace tiledev {

// Room for the strips of a run. It grows to what the largest one needs.
class StripMemory {
 public:
  // So many strips, aligned for vectors; what was there is lost.
  float* reserve(size_t strips);

 private:
  std::unique_ptr<float[]> memory_;
  size_t floats_ = 0;
};

// A run of strips on one tile.
class StripRunner {
 public:
  StripRunner(const StripRun& run, StripMemory& memory, int64_t elements);

  // The next call; its step's tensors, cut to the tile, and its arguments.
  void add(const StripCall& call, StripKernel kernel, const std::vector<at::Tensor>& tensors,
           const std::vector<c10::IValue>& args);
  void run();

 private:
  struct Input {
    const float* data = nullptr;  // of the tile, or of a strip that stays
    const StripInput* pattern = nullptr;
    bool moves = false;  // with the strip through the tile
  };
  struct Call {
    StripKernel kernel = nullptr;
    uint32_t count = 0;
    Input inputs[4];
    float* slot = nullptr;
    float* out = nullptr;
    bool stream = false;
  };

  float* slot(uint32_t number) const { return strips_ + number * kStrip; }
  const float* number(float value);
  const float* fill(const StripInput& pattern, const float* data, int64_t at, int64_t n) const;

  const StripRun& run_;
  const int64_t elements_;
  float* const strips_;
  uint32_t numbers_ = 0;  // that have a strip of their own so far
  c10::SmallVector<Call, 8> calls_;
};

}  // namespace tiledev
