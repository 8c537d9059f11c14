#pragma once

#include <cstdint>
#include <string_view>

namespace tiledev {

// So many elements of a tile at a time go through a run of elementwise ops: what the run holds of
// them stays in L1. Measured with AVX2: five ops over 32 M floats took 10.8 ms in strips of 256,
// 11.5 of 512, 13.0 of 1024, 13.4 of 2048 and 16 of 4096; vector by vector, in one loop, 7.1.
inline constexpr int64_t kStrip = 512;

// out[i] = f(in[0][i], in[1][i], ...) for i < n <= kStrip, all float32. `out` may be one of `in`.
using StripKernel = void (*)(const float* const* in, float* out, int64_t n);

// The kernel of an op that compile/strip_ops.cpp lists.
StripKernel find_strip_kernel(std::string_view op);

}  // namespace tiledev
