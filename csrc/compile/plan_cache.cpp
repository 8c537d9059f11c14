#include "compile/plan_cache.h"

#include "compile/pipeline.h"

namespace tiledev {

PlanPtr PlanCache::get(const std::vector<Node>& nodes, const Fingerprint& print,
                       const CompileOptions& options) {
  const auto [begin, end] = index_.equal_range(print.hash);
  for (auto it = begin; it != end; ++it) {
    if (it->second->words == print.words) {
      ++stats_.hits;
      entries_.splice(entries_.begin(), entries_, it->second);
      return it->second->plan;
    }
  }
  ++stats_.misses;
  PlanPtr plan = compile(nodes, print, options);
  entries_.push_front({print.words, print.hash, plan});
  index_.emplace(print.hash, entries_.begin());
  words_ += print.words.size();
  evict();
  return plan;
}

void PlanCache::evict() {
  while (entries_.size() > 1 && (entries_.size() > kMaxPlans || words_ > kMaxWords)) {
    const auto last = std::prev(entries_.end());
    const auto [begin, end] = index_.equal_range(last->hash);
    for (auto it = begin; it != end; ++it) {
      if (it->second == last) {
        index_.erase(it);
        break;
      }
    }
    words_ -= last->words.size();
    entries_.pop_back();
    ++stats_.evictions;
  }
}

PlanCache::Stats PlanCache::stats() const {
  Stats stats = stats_;
  stats.plans = entries_.size();
  return stats;
}

void PlanCache::reset_stats() {
  stats_ = {};
}

void PlanCache::clear() {
  index_.clear();
  entries_.clear();
  words_ = 0;
}

}  // namespace tiledev
