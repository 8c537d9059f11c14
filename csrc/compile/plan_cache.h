#pragma once

#include <cstdint>
#include <list>
#include <string>
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

  // Why the last plan had to be made: what differs from the nearest one.
  const std::string& last_miss() const { return last_miss_; }

  Stats stats() const;
  void reset_stats();
  void clear();

 private:
  struct Entry {
    std::vector<uint64_t> words;
    uint64_t hash = 0;
    PlanPtr plan;
    std::vector<SignaturePtr> signatures;  // of the nodes; null for a host call
  };
  using Entries = std::list<Entry>;

  void evict();
  std::string describe_miss(const std::vector<Node>& nodes, const Fingerprint& print,
                            bool named) const;

  static constexpr size_t kMaxPlans = 1024;
  static constexpr size_t kMaxWords = size_t{1} << 24;

  Entries entries_;  // most recently used first
  std::unordered_multimap<uint64_t, Entries::iterator> index_;
  size_t words_ = 0;
  Stats stats_;
  std::string last_miss_;
};

}  // namespace tiledev
