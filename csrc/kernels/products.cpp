#include "kernels/products.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "kernels/product_block.h"
#include "kernels/simd.h"

namespace tiledev {

namespace {

using simd::kDepth;
using simd::kHeight;
using simd::kRows;
using simd::Rows;
using simd::Store;
using simd::times_last_panel;
using simd::times_panel;
using simd::Workspace;

constexpr int64_t kWidth = 1024;  // columns of b that are packed at a time

// How much of k goes into the sums before they are added to c: as much as in MKL on CPUs of AMD
// (2024.2). The same order of additions gives the same bits.
int64_t depth_of(int64_t k) {
  return k > kDepth && k < 2 * kDepth ? k / 2 : kDepth;
}

// A panel of a matrix whose columns lie in memory one after the other.
TILEDEV_INLINE void pack_columns(const MatrixView& matrix, int64_t rows, float* to) {
  const int64_t stride = matrix.column_stride;
  int64_t k = 0;
  for (; k + 4 <= rows; k += 4) {
    for (int64_t j = 0; j < kPanel; j += 4) {
      const float* from = matrix.data + k + j * stride;
      simd::transpose(from, from + stride, from + 2 * stride, from + 3 * stride,
                      to + k * kPanel + j);
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
