#pragma once

#include <cstdint>

// Products of float32 matrices on one thread, for tiles. BLAS lays out both matrices anew in each
// call; of a weight that all tiles share it need be done once. Measured on one core with AVX2 (Zen
// 3, 102 GFLOP/s at most), tiles of 128 rows, 20 weights in turn, GFLOP/s:
//
//   k x n             MKL    here, laid out before
//   256 x 768          77     94
//   256 x 4096         73     94
//   1024 x 256         81     91
//
// MKL's own packed matrices (cblas_sgemm_compute) gain 0-8 % there, oneDNN is slower than MKL.

namespace tiledev {

// Whether the product of a tile should be taken here: on CPUs with AVX2 and without AVX-512, where
// it was measured. TILEDEV_PRODUCTS=0 and =1 decide otherwise.
bool has_products();

// The element (i, j) of a matrix is data[i * row_stride + j * column_stride]. One stride is 1.
struct MatrixView {
  const float* data = nullptr;
  int64_t row_stride = 0, column_stride = 0;
};

// A matrix in the order that the product reads it: panels of 16 columns, row by row; columns beyond
// the last one are zero.
inline constexpr int64_t kPanel = 16;
inline int64_t panels(int64_t columns) {
  return (columns + kPanel - 1) / kPanel;
}
inline int64_t packed_size(int64_t rows, int64_t columns) {  // floats
  return panels(columns) * kPanel * rows;
}
// Packs the panels from `begin` to `end` of a matrix; `to` is where its panel 0 belongs.
void pack_panels(const MatrixView& matrix, int64_t rows, int64_t columns, int64_t begin,
                 int64_t end, float* to);

// c = a b, c = a b + row, or c += a b, for a of m x k and b of k x n. The order of additions does
// not depend on m and n, and is that of MKL on CPUs of AMD, so the bits are the same as well.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  MatrixView a, b;
  const float* packed = nullptr;  // b, if it was packed before: its first panel, ...
  int64_t packed_rows = 0;     // ... and the rows of a panel; those behind the first k do not count
  const float* row = nullptr;  // added to each row of the product
  bool accumulate = false;     // onto what is in c
  float* c = nullptr;
  int64_t c_stride = 0;  // of its rows; columns have 1
};
void multiply(const Product& product);

}  // namespace tiledev
