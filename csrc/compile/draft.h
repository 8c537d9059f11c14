#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "compile/named_tilings.h"
#include "compile/plan.h"

namespace tiledev {

// How the steps of a segment cut a buffer.
struct Cut {
  int64_t span = 0;   // in bytes; 0: not cut
  bool plain = true;  // every access has this span, and stays within its tile
  bool written = false;
  bool partial = false;
};

// Whether two steps that cut a buffer like this can run on one tile after the other.
inline bool agree(const Cut& before, const Cut& now) {
  if (before.partial) {
    return false;
  }
  return (!before.written && !now.written) ||
         (before.plain && now.plain && before.span == now.span && now.span > 0);
}

// A segment that is being put together.
struct Draft {
  enum class Kind : uint8_t { kTiled, kChain, kWide };
  Kind kind = Kind::kChain;
  size_t position = 0;
  int64_t extent = 0;
  const NamedTiling* tiling = nullptr;  // what the user asked for along this axis
  Segment segment;
  std::unordered_map<uint32_t, Cut> cuts;
  std::set<Draft*> successors;  // that must run later
};

// A segment that nobody needs before a later one, and whose tiles line up with that one's, joins
// it: an update's first ops wait for the gradients and then run with the others.
void merge_forward(std::vector<Draft*>& order);

}  // namespace tiledev
