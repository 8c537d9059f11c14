#include "kernels/products.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "kernels/simd.h"

#if defined(__GNUC__) && !defined(__clang__)
#define TILEDEV_UNROLL(n) _Pragma(TILEDEV_QUOTE(GCC unroll n))
#define TILEDEV_QUOTE(x) #x
#else
#define TILEDEV_UNROLL(n)
#endif

namespace tiledev {

namespace {

// The loops are those of K. Goto and R. van de Geijn, Anatomy of high-performance matrix
// multiplication (ACM TOMS 34, 2008): a panel of b of kDepth rows stays in L1, a block of a in L2.
constexpr int64_t kDepth = 192;
constexpr int64_t kHeight = 192;  // rows of a block of a
constexpr int64_t kWidth = 1024;  // columns of b that are packed at a time

// The rows whose sums are kept in registers: 12 vectors of sums, of 16 or 32 registers.
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

// How much of k goes into the sums before they are added to c: as much as in MKL on CPUs of AMD
// (2024.2). The same order of additions gives the same bits.
int64_t depth_of(int64_t k) {
  return k > kDepth && k < 2 * kDepth ? k / 2 : kDepth;
}

// What a block of sums becomes.
enum class Store : uint8_t { kSet, kAdd, kAddRow };

// R rows of a times a panel. The element (r, k) of a is a[r * row + k * column].
template <int W, int R>
TILEDEV_INLINE void block(const float* a, int64_t row, int64_t column, const float* b,
                          int64_t depth, const float* bias, Store store, float* c,
                          int64_t c_stride) {
  constexpr int V = kPanel / W;
  simd::F<W> sums[R][V];
  TILEDEV_UNROLL(12)
  for (int r = 0; r < R; ++r) {
    TILEDEV_UNROLL(4)
    for (int v = 0; v < V; ++v) {
      sums[r][v] = simd::F<W>{};
    }
    __builtin_prefetch(c + r * c_stride, 1);
  }
  TILEDEV_UNROLL(4)
  for (int64_t k = 0; k < depth; ++k) {
    simd::F<W> y[V];
    TILEDEV_UNROLL(4)
    for (int v = 0; v < V; ++v) {
      y[v] = simd::load<W>(b + k * kPanel + v * W);
    }
    TILEDEV_UNROLL(12)
    for (int r = 0; r < R; ++r) {
      const simd::F<W> x = a[r * row + k * column] - simd::F<W>{};  // exact, so it costs nothing
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
        sums[r][v] += simd::load<W>(to);
      } else if (store == Store::kAddRow) {
        sums[r][v] += simd::load<W>(bias + v * W);
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
  int64_t i = 0;
  for (; i + R <= height; i += R) {
    for (int64_t l = 0; next != nullptr && l < lines; ++l, next += kLine) {
      __builtin_prefetch(next, 0, 2);
    }
    a.template times<R>(i, b, bias, store, c + i * c_stride, c_stride);
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

// Four rows of four columns that lie `stride` apart.
TILEDEV_INLINE void transpose(const float* from, int64_t stride, float* to) {
  const simd::F<4> a = simd::load<4>(from), b = simd::load<4>(from + stride),
                   c = simd::load<4>(from + 2 * stride), d = simd::load<4>(from + 3 * stride);
  const simd::F<4> ab = __builtin_shufflevector(a, b, 0, 4, 1, 5),
                   cd = __builtin_shufflevector(c, d, 0, 4, 1, 5),
                   ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7),
                   cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  simd::store<4>(to, __builtin_shufflevector(ab, cd, 0, 1, 4, 5));
  simd::store<4>(to + kPanel, __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
  simd::store<4>(to + 2 * kPanel, __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5));
  simd::store<4>(to + 3 * kPanel, __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7));
}

// A panel of a matrix whose columns lie in memory one after the other.
TILEDEV_INLINE void pack_columns(const MatrixView& matrix, int64_t rows, float* to) {
  const int64_t stride = matrix.column_stride;
  int64_t k = 0;
  for (; k + 4 <= rows; k += 4) {
    for (int64_t j = 0; j < kPanel; j += 4) {
      transpose(matrix.data + k + j * stride, stride, to + k * kPanel + j);
    }
  }
  for (; k < rows; ++k) {
    for (int64_t j = 0; j < kPanel; ++j) {
      to[k * kPanel + j] = matrix.data[k + j * stride];
    }
  }
}

// `count` panels of a matrix whose rows lie in memory one after the other.
template <int count>
TILEDEV_INLINE void pack_rows_of_panels(const MatrixView& matrix, int64_t rows, float* to) {
  for (int64_t k = 0; k < rows; ++k) {
    const float* from = matrix.data + k * matrix.row_stride;
    TILEDEV_UNROLL(4)
    for (int64_t p = 0; p < count; ++p) {
      std::memcpy(to + (p * rows + k) * kPanel, from + p * kPanel, kPanel * sizeof(float));
    }
  }
}

void pack_last_panel(const MatrixView& matrix, int64_t rows, int64_t columns, float* to) {
  for (int64_t k = 0; k < rows; ++k, to += kPanel) {
    for (int64_t j = 0; j < kPanel; ++j) {
      to[j] = j < columns ? matrix.data[k * matrix.row_stride + j * matrix.column_stride] : 0.f;
    }
  }
}

MatrixView part(const MatrixView& matrix, int64_t row, int64_t column) {
  return {matrix.data + row * matrix.row_stride + column * matrix.column_stride, matrix.row_stride,
          matrix.column_stride};
}

// Panels of a matrix, one after the other.
void pack(const MatrixView& matrix, int64_t rows, int64_t columns, float* to) {
  const bool by_rows = matrix.column_stride == 1;
  int64_t j = 0;
  for (; by_rows && j + 4 * kPanel <= columns; j += 4 * kPanel, to += 4 * kPanel * rows) {
    pack_rows_of_panels<4>(part(matrix, 0, j), rows, to);
  }
  for (; j + kPanel <= columns; j += kPanel, to += kPanel * rows) {
    if (by_rows) {
      pack_rows_of_panels<1>(part(matrix, 0, j), rows, to);
    } else {
      pack_columns(part(matrix, 0, j), rows, to);
    }
  }
  if (j < columns) {
    pack_last_panel(part(matrix, 0, j), rows, columns - j, to);
  }
}

// kRows rows at a time, side by side, of a matrix whose rows have a stride of 1. Eight such groups
// go together: of each cache line that is read, all is used.
template <int W>
TILEDEV_INLINE void pack_rows(const MatrixView& a, int64_t height, int64_t depth, float* to) {
  constexpr int R = kRows<W>;
  constexpr int kGroups = 8;
  int64_t i = 0;
  for (; i + kGroups * R <= height; i += kGroups * R, to += kGroups * R * depth) {
    for (int64_t k = 0; k < depth; ++k) {
      const float* from = a.data + i + k * a.column_stride;
      TILEDEV_UNROLL(8)
      for (int g = 0; g < kGroups; ++g) {
        std::memcpy(to + g * R * depth + k * R, from + g * R, R * sizeof(float));
      }
    }
  }
  for (; i < height; i += R) {
    const auto rows = static_cast<size_t>(std::min<int64_t>(R, height - i));
    for (int64_t k = 0; k < depth; ++k, to += R) {
      std::memcpy(to, a.data + i + k * a.column_stride, rows * sizeof(float));
    }
  }
}

template <int W>
TILEDEV_INLINE void multiply_matrices_loop(const Product& p) {
  static thread_local Workspace rows_of_a, panels_of_b;
  const bool pack_a = p.a.column_stride != 1;
  const int64_t most = depth_of(p.k);
  for (int64_t j0 = 0; j0 < p.n; j0 += kWidth) {
    const int64_t width = std::min(kWidth, p.n - j0);
    for (int64_t k0 = 0; k0 < p.k; k0 += most) {
      const int64_t depth = std::min(most, p.k - k0);
      const Store store = p.accumulate || k0 > 0 ? Store::kAdd
                          : p.row != nullptr     ? Store::kAddRow
                                                 : Store::kSet;
      const float* b = nullptr;
      int64_t panel_stride = 0;
      if (p.packed != nullptr) {
        b = p.packed + j0 * p.packed_rows + k0 * kPanel;
        panel_stride = p.packed_rows * kPanel;
      } else {
        float* to = panels_of_b.take(static_cast<size_t>(packed_size(depth, width)));
        b = to;
        panel_stride = depth * kPanel;
        pack(part(p.b, k0, j0), depth, width, to);
      }
      for (int64_t i0 = 0; i0 < p.m; i0 += kHeight) {
        const int64_t height = std::min(kHeight, p.m - i0);
        const MatrixView part_of_a = part(p.a, i0, k0);
        Rows<W> a{part_of_a.data, part_of_a.row_stride, false, depth};
        if (pack_a) {
          float* to = rows_of_a.take(static_cast<size_t>(kHeight * kDepth));
          pack_rows<W>(part_of_a, height, depth, to);
          a = {to, 0, true, depth};
        }
        for (int64_t j = 0; j < width; j += kPanel) {
          const float* panel = b + j / kPanel * panel_stride;
          const float* bias = p.row != nullptr ? p.row + j0 + j : nullptr;
          float* c = p.c + i0 * p.c_stride + j0 + j;
          if (width - j >= kPanel) {
            const float* next = width - j > kPanel ? panel + panel_stride : nullptr;
            times_panel<W>(a, height, panel, next, bias, store, c, p.c_stride);
          } else {
            times_last_panel<W>(a, height, width - j, panel, bias, store, c, p.c_stride);
          }
        }
      }
    }
  }
}

TILEDEV_FOR_EACH_CPU(multiply_matrices, (const Product& p), (p))

bool suits_cpu() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  return simd::has_avx2() && !simd::has_avx512();
#else
  return false;
#endif
}

}  // namespace

bool has_products() {
  static const bool has = [] {
    const char* asked = std::getenv("TILEDEV_PRODUCTS");
    return asked != nullptr && *asked != '\0' ? std::string_view(asked) != "0" : suits_cpu();
  }();
  return has;
}

void pack_panels(const MatrixView& matrix, int64_t rows, int64_t columns, int64_t begin,
                 int64_t end, float* to) {
  pack(part(matrix, 0, begin * kPanel), rows, std::min(end * kPanel, columns) - begin * kPanel,
       to + begin * kPanel * rows);
}

void multiply(const Product& product) {
  multiply_matrices(product);
}

}  // namespace tiledev
