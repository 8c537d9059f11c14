#pragma once

#include <cstdint>
#include <vector>

namespace tiledev {

// A hash of a sequence of words; keys that collide are told apart by comparing them.
template <typename Word>
uint64_t hash_words(const std::vector<Word>& words) {
  uint64_t hash = 0x9E3779B97F4A7C15ull;
  for (const Word word : words) {
    hash = (hash ^ static_cast<uint64_t>(word)) * 0xFF51AFD7ED558CCDull;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace tiledev
