#pragma once

#include <cstdint>
#include <memory>

#include "kernels/products.h"
#include "kernels/simd.h"

// The inner loops of products of float32 matrices: a block of rows of the first times panels of the
// second (products.h).

#if defined(__GNUC__) && !defined(__clang__)
#define TILEDEV_UNROLL(n) _Pragma(TILEDEV_QUOTE(GCC unroll n))
#define TILEDEV_QUOTE(x) #x
#else
#define TILEDEV_UNROLL(n)
#endif

namespace tiledev::simd {

// K. Goto and R. van de Geijn, Anatomy of high-performance matrix multiplication (ACM TOMS 34,
// 2008): a panel of b of kDepth rows stays in L1, a block of a in L2.
inline constexpr int64_t kDepth = 192;
inline constexpr int64_t kHeight = 192;  // rows of a block of a

// The rows whose sums are kept in registers: 12 vectors of 8 or 16 floats, or 8 of 4.
template <int W>
constexpr int kRows = W == 16  ? 12
                      : W == 8 ? 6
                               : 2;

// Room for the panels of a thread.
struct Workspace {
  static constexpr size_t kAlignment = 64;

  float* take(size_t floats) {
    if (floats > size_) {
      memory_.reset(new float[floats + kAlignment / sizeof(float)]);
      size_ = floats;
    }
    const auto address = reinterpret_cast<uintptr_t>(memory_.get());
    return memory_.get() + (kAlignment - address % kAlignment) % kAlignment / sizeof(float);
  }

 private:
  std::unique_ptr<float[]> memory_;
  size_t size_ = 0;
};

// What a block of sums becomes.
enum class Store : uint8_t { kSet, kAdd, kAddRow };

// R rows of a times a panel. The element (r, k) of a is a[r * row + k * column].
template <int W, int R>
TILEDEV_INLINE void block(const float* a, int64_t row, int64_t column, const float* b,
                          int64_t depth, const float* bias, Store store, float* c,
                          int64_t c_stride) {
  constexpr int V = kPanel / W;
  F<W> sums[R][V];
  TILEDEV_UNROLL(12)
  for (int r = 0; r < R; ++r) {
    TILEDEV_UNROLL(4)
    for (int v = 0; v < V; ++v) {
      sums[r][v] = F<W>{};
    }
    __builtin_prefetch(c + r * c_stride, 1);
  }
  TILEDEV_UNROLL(4)
  for (int64_t k = 0; k < depth; ++k) {
    F<W> y[V];
    TILEDEV_UNROLL(4)
    for (int v = 0; v < V; ++v) {
      y[v] = load<W>(b + k * kPanel + v * W);
    }
    TILEDEV_UNROLL(12)
    for (int r = 0; r < R; ++r) {
      const F<W> x = a[r * row + k * column] - F<W>{};  // exact, so it costs nothing
      TILEDEV_UNROLL(4)
      for (int v = 0; v < V; ++v) {
        sums[r][v] += x * y[v];
      }
    }
  }
  TILEDEV_UNROLL(12)
  for (int r = 0; r < R; ++r) {
    TILEDEV_UNROLL(4)
    for (int v = 0; v < V; ++v) {
      float* const to = c + r * c_stride + v * W;
      if (store == Store::kAdd) {
        sums[r][v] += load<W>(to);
      } else if (store == Store::kAddRow) {
        sums[r][v] += load<W>(bias + v * W);
      }
      simd::store<W>(to, sums[r][v]);
    }
  }
}

// The rows of a block of a: as they lie in memory, or kRows at a time side by side.
template <int W>
struct Rows {
  const float* data = nullptr;
  int64_t stride = 0;
  bool packed = false;
  int64_t depth = 0;

  template <int R>
  TILEDEV_INLINE void times(int64_t i, const float* b, const float* bias, Store store, float* c,
                            int64_t c_stride) const {
    if (packed) {
      block<W, R>(data + i * depth, 1, kRows<W>, b, depth, bias, store, c, c_stride);
    } else {
      block<W, R>(data + i * stride, stride, 1, b, depth, bias, store, c, c_stride);
    }
  }
};

// Fewer than kRows rows.
template <int W, int R>
TILEDEV_INLINE void times_rest(const Rows<W>& a, int64_t i, int64_t rows, const float* b,
                               const float* bias, Store store, float* c, int64_t c_stride) {
  if (rows == R) {
    a.template times<R>(i, b, bias, store, c, c_stride);
  } else if constexpr (R > 1) {
    times_rest<W, R - 1>(a, i, rows, b, bias, store, c, c_stride);
  }
}

// The product of a block of a and a panel. While it runs, the next panel comes closer.
template <int W>
TILEDEV_INLINE void times_panel(const Rows<W>& a, int64_t height, const float* b, const float* next,
                                const float* bias, Store store, float* c, int64_t c_stride) {
  constexpr int R = kRows<W>;
  constexpr int64_t kLine = 16;
  const int64_t steps = (height + R - 1) / R;
  const int64_t lines = (a.depth * kPanel / kLine + steps - 1) / steps;
  // One or two rows alone have too few sums to hide how long an addition takes: the last kRows and
  // they are halved instead. Rows that are packed stay in their groups.
  const int64_t rest = height % R;
  const bool halves = R > 2 && !a.packed && rest > 0 && rest <= R / 2 && height > R;
  const int64_t end = height - rest - (halves ? R : 0);
  int64_t i = 0;
  for (; i < end; i += R) {
    for (int64_t l = 0; next != nullptr && l < lines; ++l, next += kLine) {
      __builtin_prefetch(next, 0, 2);
    }
    a.template times<R>(i, b, bias, store, c + i * c_stride, c_stride);
  }
  if (halves) {
    const int64_t rows = (height - i + 1) / 2;
    times_rest<W, R - 1>(a, i, rows, b, bias, store, c + i * c_stride, c_stride);
    i += rows;
  }
  if (i < height) {
    times_rest<W, R - 1>(a, i, height - i, b, bias, store, c + i * c_stride, c_stride);
  }
}

// The last panel may have fewer columns than it is wide.
template <int W>
TILEDEV_INLINE void times_last_panel(const Rows<W>& a, int64_t height, int64_t columns,
                                     const float* b, const float* bias, Store store, float* c,
                                     int64_t c_stride) {
  alignas(64) float sums[kHeight * kPanel];
  times_panel<W>(a, height, b, nullptr, nullptr, Store::kSet, sums, kPanel);
  for (int64_t i = 0; i < height; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      float& to = c[i * c_stride + j];
      const float sum = sums[i * kPanel + j];
      to = store == Store::kAdd ? to + sum : store == Store::kAddRow ? bias[j] + sum : sum;
    }
  }
}

// Four rows of a panel, from four columns.
TILEDEV_INLINE void transpose(const float* first, const float* second, const float* third,
                              const float* fourth, float* to) {
  const F<4> a = load<4>(first), b = load<4>(second), c = load<4>(third), d = load<4>(fourth);
  const F<4> ab = __builtin_shufflevector(a, b, 0, 4, 1, 5),
             cd = __builtin_shufflevector(c, d, 0, 4, 1, 5),
             ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7),
             cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  store<4>(to, __builtin_shufflevector(ab, cd, 0, 1, 4, 5));
  store<4>(to + kPanel, __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
  store<4>(to + 2 * kPanel, __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5));
  store<4>(to + 3 * kPanel, __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7));
}

}  // namespace tiledev::simd
