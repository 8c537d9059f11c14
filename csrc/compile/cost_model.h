#pragma once

#include <algorithm>
#include <cstdint>

#include "compile/options.h"
#include "compile/plan.h"

// The measured numbers that tiling goes by. Measured on 2 cores of Zen 3 (512 KiB of L2 each, 32
// MiB of L3 shared), torch 2.13, with benchmarks/compare.py.

namespace tiledev {

// Ops of at most this size run one after the other in one task: handing over costs more (1-2 us).
inline constexpr int64_t kSmallWork = 32768;  // elements; ATen's own grain size
inline constexpr double kSmallFlops = 4e6;
inline constexpr int64_t kChainWork = 16 * kSmallWork;  // of all ops of such a task

// What the tile of a segment should occupy of the cache.
inline constexpr int64_t kTileBytes = 1 << 20;         // elementwise: L2 and a little of L3
inline constexpr int64_t kProductTileBytes = 4 << 20;  // with matrix products: inside of L3
// Below so many FLOPs of a product, and so many rows, speed is lost: by BLAS, which packs both
// matrices in each call, and by kernels/products.
struct ProductTile {
  double flops;
  int64_t rows;
};
inline constexpr ProductTile kBlasTile{2e7, 128}, kOwnProductTile{1e7, 64};
inline constexpr double kFlopsPerByte = 4;  // above this products decide

// Tiles for each worker, so that a slow core holds nobody up.
inline constexpr int64_t kTilesPerWorker = 4;
// oneDNN lays out the weights of a convolution anew in each call.
inline constexpr int64_t kConvolutionTilesPerWorker = 1;
// What a segment may hold of matrices that are laid out anew for its products.
inline constexpr int64_t kPackedBytes = 20 << 20;
// What may be kept of them between plans.
inline constexpr int64_t kKeptBytes = 256 << 20;
// Lanes where tiles must not depend on the number of workers.
inline constexpr int kFixedLanes = 4;

// What a segment takes on one core, in us: handing over, traffic of memory, products. Only the
// order of such numbers matters (priorities).
inline double estimated_time(const Segment& segment) {
  constexpr double kHandOver = 1, kElementsPerMicrosecond = 1000, kFlopsPerMicrosecond = 8e4;
  return kHandOver + static_cast<double>(segment.work) / kElementsPerMicrosecond +
         segment.flops / kFlopsPerMicrosecond;
}

// How many workers tiles are chosen for.
inline int planned_workers(const CompileOptions& options) {
  if (options.mode == TilingMode::kTiny) {
    return 1;
  }
  return options.deterministic ? kFixedLanes : std::max(1, options.workers);
}

}  // namespace tiledev
