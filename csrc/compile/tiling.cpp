// Where the tiles of each segment begin and end, and what they move.

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "compile/cost_model.h"
#include "compile/pipeline.h"

namespace tiledev {

namespace {

int64_t nbytes(const TensorMeta& meta) {
  return meta.numel * static_cast<int64_t>(c10::elementSize(meta.dtype));
}

bool is_own_product(const Step& step) {
  const std::string_view name = step.signature->op->name;
  return step.outputs[0].meta.dtype == at::kFloat &&
         (name == "aten::mm" || name == "aten::addmm" ||
          name.find("attention") != std::string_view::npos);
}

class Tiler {
 public:
  // `share`: the segment's part of all the work that can run at the same time.
  Tiler(const CompileOptions& options, Segment& segment, double share)
      : options_(options), segment_(segment), share_(share) {}

  void run() {
    measure();
    if (!segment_.tiled()) {
      return;
    }
    const bool given = !segment_.bounds.empty();
    if (options_.mode == TilingMode::kTiny) {
      cut_tiny();
    } else if (!given) {
      cut(tile_count());
    }
    if (partial_) {
      segment_.lanes =
          static_cast<uint32_t>(std::min(segment_.tiles(), static_cast<size_t>(lanes(given))));
    }
  }

 private:
  // Tiles that the user chose give the same bits for any number of workers. Otherwise a lane is
  // what one worker sums up, as one thread does on the CPU: more lanes even out slow cores (W1b in
  // benchmarks: 6 % on a busy machine), but were ten times as far from the CPU's numbers.
  int lanes(bool given) const {
    if (options_.mode == TilingMode::kTiny) {
      return 2;
    }
    return given ? kFixedLanes : planned_workers(options_);
  }

  void measure() {
    std::unordered_map<uint32_t, int64_t> cut;  // bytes by buffer
    for (const Step& step : segment_.steps) {
      for_each_view(step, [&](const View& view, size_t) {
        partial_ |= view.partial;
        if (view.cut_dim >= 0 && view.span > 0) {
          auto& bytes = cut[view.buffer];
          bytes = std::max(bytes, nbytes(view.meta));
        }
      });
    }
    for (const auto& [buffer, bytes] : cut) {
      cut_bytes_ += bytes;
    }
    for (const Step& step : segment_.steps) {
      products_ += step.flops > 0 ? 1 : 0;
      own_products_ &= step.flops == 0 || is_own_product(step);
      if (step.flops > 0 && step.outputs.size() == 1 && step.outputs[0].cut_dim == 0 &&
          step.outputs[0].meta.sizes.size() == 2) {
        rows_ = std::min(rows_, step.outputs[0].meta.sizes[0]);
      }
      convolves_ |= step.signature && step.signature->op->name.rfind("aten::convolution", 0) == 0;
    }
    products_ = std::max<int64_t>(1, products_);
  }

  // Few enough for the ops to run at full rate, many enough for the cache and for all workers.
  int64_t tile_count() const {
    const int64_t workers = planned_workers(options_);
    if (convolves_) {
      return std::min(workers * kConvolutionTilesPerWorker, segment_.extent);
    }
    const bool products =
        segment_.flops > kFlopsPerByte * static_cast<double>(std::max<int64_t>(1, cut_bytes_));
    const int64_t target = products ? kProductTileBytes : kTileBytes;
    int64_t tiles = std::max<int64_t>(1, (cut_bytes_ + target - 1) / target);
    tiles = std::max(tiles, workers * kTilesPerWorker);
    if (products) {
      const ProductTile& least = options_.products && own_products_ ? kOwnProductTile : kBlasTile;
      const auto most =
          static_cast<int64_t>(segment_.flops / static_cast<double>(products_) / least.flops);
      tiles = std::min({tiles, std::max(most, workers), std::max(rows_ / least.rows, workers)});
    } else {
      // Of many segments side by side each needs few tiles to keep all workers busy.
      const auto fair =
          static_cast<int64_t>(std::ceil(share_ * static_cast<double>(workers * kTilesPerWorker)));
      tiles = std::max((cut_bytes_ + target - 1) / target, fair);
      tiles = std::min(tiles, std::max<int64_t>(1, segment_.work / kSmallWork));
      if (fair < workers) {
        return std::min(tiles, segment_.extent);
      }
    }
    tiles = (tiles + workers - 1) / workers * workers;
    return std::min(tiles, segment_.extent);
  }

  void cut(int64_t tiles) {
    const int64_t extent = segment_.extent;
    constexpr int64_t kAligned = 64;  // whole vectors, whole cache lines
    const bool align = extent / tiles >= 4 * kAligned;
    segment_.bounds = {0};
    for (int64_t t = 1; t < tiles; ++t) {
      int64_t bound = extent / tiles * t + extent % tiles * t / tiles;
      bound = align ? bound / kAligned * kAligned : bound;
      segment_.bounds.push_back(bound);
    }
    segment_.bounds.push_back(extent);
  }

  void cut_tiny() {
    const int64_t extent = segment_.extent;
    segment_.bounds = {0, std::max<int64_t>(1, extent / 3)};
    if (extent > 3) {
      segment_.bounds.push_back(extent - 1);
    }
    segment_.bounds.push_back(extent);
  }

  const CompileOptions& options_;
  Segment& segment_;
  double share_ = 1;
  int64_t cut_bytes_ = 0;
  int64_t products_ = 0;      // how many steps are products of matrices
  int64_t rows_ = INT64_MAX;  // of the shortest product that is cut by rows
  bool convolves_ = false;
  bool own_products_ = true;  // kernels/products takes all of them
  bool partial_ = false;
};

// How many segments must run before each at least, one after the other.
std::vector<size_t> depths(const Compilation& c) {
  struct Touched {
    size_t written = 0, read = 0;  // the depths at which segments that do may run next
  };
  std::vector<Touched> buffers(c.print.outlives.size() + c.internal_buffers);
  std::vector<size_t> result;
  for (const Segment& segment : c.plan.segments) {
    size_t depth = 0;
    for (const Step& step : segment.steps) {
      for_each_view(step, [&](const View& view, size_t) {
        const Touched& before = buffers[view.buffer];
        depth = std::max({depth, before.written, view.written ? before.read : 0});
      });
    }
    for (const Step& step : segment.steps) {
      for_each_view(step, [&](const View& view, size_t) {
        Touched& touched = buffers[view.buffer];
        size_t& next = view.written ? touched.written : touched.read;
        next = std::max(next, depth + 1);
      });
    }
    result.push_back(depth);
  }
  return result;
}

}  // namespace

void choose_tiles(Compilation& c) {
  auto& segments = c.plan.segments;
  const std::vector<size_t> depth = depths(c);
  std::vector<double> time(segments.size() + 1);  // of all segments of a depth
  for (size_t s = 0; s < segments.size(); ++s) {
    time[depth[s]] += estimated_time(segments[s]);
  }
  for (size_t s = 0; s < segments.size(); ++s) {
    Tiler(c.options, segments[s], estimated_time(segments[s]) / time[depth[s]]).run();
  }
}

}  // namespace tiledev
