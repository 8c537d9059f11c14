#pragma once

#include <cstdint>
#include <limits>

#include "kernels/simd.h"

// Sums and maxima of a row of floats, on vectors (simd.h).

namespace tiledev::simd {

// Floats add up to at most so many; blocks add up in double.
inline constexpr int64_t kBlock = 4096;

template <int W, typename Function>
TILEDEV_INLINE double sum_block(const float* x, int64_t n, float neutral, Function f) {
  F<W> a{}, b{}, c{}, d{};
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    a += f(load<W>(x + i));
    b += f(load<W>(x + i + W));
    c += f(load<W>(x + i + 2 * W));
    d += f(load<W>(x + i + 3 * W));
  }
  for (; i + W <= n; i += W) {
    a += f(load<W>(x + i));
  }
  if (i < n) {
    b += f(load_part<W>(x + i, n - i, neutral));
  }
  return sum_of<W>((a + b) + (c + d));
}

// The sum of f(x); f(neutral) is zero.
template <int W, typename Function>
TILEDEV_INLINE double sum(const float* x, int64_t n, float neutral, Function f) {
  double total = 0;
  for (int64_t i = 0; i < n; i += kBlock) {
    total += sum_block<W>(x + i, n - i < kBlock ? n - i : kBlock, neutral, f);
  }
  return total;
}

// The same in double from the first addition on: for sums whose errors a whole tensor would share.
template <int W, typename Function>
TILEDEV_INLINE double exact_sum(const float* x, const float* y, int64_t n, float neutral,
                                Function f) {
  D<W> a{}, b{};
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W) {
    a += __builtin_convertvector(f(load<W>(x + i), load<W>(y + i)), D<W>);
    b += __builtin_convertvector(f(load<W>(x + i + W), load<W>(y + i + W)), D<W>);
  }
  for (; i < n; i += W) {
    const int64_t left = n - i;
    const F<W> v = left >= W
                       ? f(load<W>(x + i), load<W>(y + i))
                       : f(load_part<W>(x + i, left, neutral), load_part<W>(y + i, left, 0.f));
    a += __builtin_convertvector(v, D<W>);
  }
  a += b;
  double total = 0;
  for (int k = 0; k < W; ++k) {
    total += a[k];
  }
  return total;
}

// The largest of n floats; NaNs do not count.
template <int W>
TILEDEV_INLINE float maximum(const float* x, int64_t n) {
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  F<W> a = all<W>(kLeast), b = a;
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W) {
    const F<W> u = load<W>(x + i), v = load<W>(x + i + W);
    a = u > a ? u : a;
    b = v > b ? v : b;
  }
  for (; i < n; i += W) {
    const F<W> v = n - i >= W ? load<W>(x + i) : load_part<W>(x + i, n - i, kLeast);
    a = v > a ? v : a;
  }
  return max_of<W>(a > b ? a : b);
}

}  // namespace tiledev::simd
