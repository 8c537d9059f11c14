#include "compile/plan_cache.h"

#include <sstream>

#include "compile/pipeline.h"
#include "graph/print.h"

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
  last_miss_ = describe_miss(nodes, print, options.named);
  PlanPtr plan = compile(nodes, print, options);
  std::vector<SignaturePtr> signatures;
  signatures.reserve(nodes.size());
  for (const Node& node : nodes) {
    signatures.push_back(node.signature);
  }
  entries_.push_front({print.words, print.hash, plan, std::move(signatures)});
  index_.emplace(print.hash, entries_.begin());
  words_ += print.words.size();
  evict();
  return plan;
}

std::string PlanCache::describe_miss(const std::vector<Node>& nodes, const Fingerprint& print,
                                     bool named) const {
  constexpr size_t kLooked = 64;
  const Entry* nearest = nullptr;
  size_t same = 0;  // nodes in a row, from the first, with equal signatures
  int best = -1;    // among those with as many
  size_t looked = 0;
  for (const Entry& entry : entries_) {
    if (looked++ == kLooked) {
      break;
    }
    size_t n = 0;
    while (n < nodes.size() && n < entry.signatures.size() &&
           entry.signatures[n] == nodes[n].signature) {
      ++n;
    }
    const bool same_op = n < nodes.size() && n < entry.signatures.size() && nodes[n].signature &&
                         entry.signatures[n] && nodes[n].signature->op == entry.signatures[n]->op;
    const int likeness = (entry.signatures.size() == nodes.size() ? 2 : 0) + (same_op ? 1 : 0);
    if (nearest == nullptr || n > same || (n == same && likeness > best)) {
      nearest = &entry;
      same = n;
      best = likeness;
    }
  }
  std::ostringstream out;
  out << "a graph of " << nodes.size() << " nodes";
  if (nearest == nullptr) {
    out << ": the first one";
    return out.str();
  }
  out << "; the nearest plan is " << nearest->plan->id << " with " << nearest->signatures.size()
      << " nodes";
  if (same < nodes.size() && same < nearest->signatures.size()) {
    const SignaturePtr &here = nodes[same].signature, &there = nearest->signatures[same];
    const std::string text = describe(here), other = describe(there);
    out << ". First difference: node " << same << " is " << text;
    if (text == other) {
      const auto [mine, its] = differences(*here, *there);
      out << " with " << mine << ", there with " << its;
    } else {
      out << ", there " << other;
    }
  } else if (nodes.size() != nearest->signatures.size()) {
    out << ", which begins with the same nodes";
  } else {
    out << ": the same ops on the same shapes, but "
        << explain_difference(nodes, print, nearest->words, named);
  }
  return out.str();
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
