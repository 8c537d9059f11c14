#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tiledev {

// How an axis with a name is cut.
struct AxisTiling {
  int64_t uniform = 0;         // size of a tile, or 0
  std::vector<int64_t> sizes;  // if not uniform: of each tile
};

enum class TilingMode : uint8_t {
  kAuto,   // by the cost model
  kWhole,  // no tiles: each op as it would run outside of tiledev
  kTiny,   // for tests: every axis that can be cut is cut into two or three uneven tiles
};

struct CompileOptions {
  int workers = 1;
  bool deterministic = false;  // nothing may depend on the number of workers
  TilingMode mode = TilingMode::kAuto;
  bool named = false;                         // some dimension of some buffer has a name
  std::map<std::string, AxisTiling> tilings;  // by the axis's name
  bool products = false;                      // kernels/products takes the products of tiles
  bool verify = false;
};

}  // namespace tiledev
