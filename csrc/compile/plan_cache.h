#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "compile/fingerprint.h"
#include "compile/options.h"
#include "compile/plan.h"

namespace tiledev {

// Plans by structure, least recently used out first. Not thread safe: the session's lock.
class PlanCache {
 public:
  struct Stats {
    uint64_t hits = 0;
    uint64_t misses = 0;
    uint64_t evictions = 0;
    uint64_t plans = 0;
  };

  // The plan for `nodes`, compiled unless one of the same structure is kept.
  PlanPtr get(const std::vector<Node>& nodes, const Fingerprint& print,
              const CompileOptions& options);

  Stats stats() const;
  void reset_stats();
  void clear();

 private:
  struct Entry {
    std::vector<uint64_t> words;
    uint64_t hash = 0;
    PlanPtr plan;
  };
  using Entries = std::list<Entry>;

  void evict();

  static constexpr size_t kMaxPlans = 1024;
  static constexpr size_t kMaxWords = size_t{1} << 24;

  Entries entries_;  // most recently used first
  std::unordered_multimap<uint64_t, Entries::iterator> index_;
  size_t words_ = 0;
  Stats stats_;
};

}  // namespace tiledev
