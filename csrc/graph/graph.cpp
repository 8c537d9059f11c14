#include "graph/graph.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

namespace tiledev {

namespace {

// What a backward scan wants of a buffer; held in Buffer::mark_index.
enum Want : uint32_t { kNothing = 0, kValue = 1, kOverwrite = 2 };

constexpr size_t kMaxReserved = 4096;

class Scan {
 public:
  Scan() : pass_(next_mark()) {}

  void want(Buffer& buffer, uint32_t what) {
    if (buffer.mark != pass_) {
      buffer.mark = pass_;
      buffer.mark_index = kNothing;
    }
    buffer.mark_index |= what;
  }

  bool needs(const Node& node) const {
    bool needed = false;
    for_each_access(node, [&](const Buffer& buffer, bool reads, bool writes, bool) {
      const uint32_t wanted = buffer.mark == pass_ ? buffer.mark_index : kNothing;
      needed |= (writes && (wanted & kValue)) || (reads && (wanted & kOverwrite)) ||
                (writes && (wanted & kOverwrite));
    });
    return needed;
  }

  void include(const Node& node) {
    for_each_access(node, [&](Buffer& buffer, bool reads, bool writes, bool) {
      want(buffer, (reads ? kValue : kNothing) | (writes ? kOverwrite : kNothing));
    });
  }

 private:
  const uint64_t pass_;
};

}  // namespace

uint64_t next_mark() {
  static std::atomic<uint64_t> pass{0};
  return pass.fetch_add(1, std::memory_order_relaxed) + 1;
}

void Graph::append(Node node) {
  for_each_access(node, [](Buffer& buffer, bool, bool writes, bool) {
    ++buffer.pending_uses;
    buffer.pending_writes += writes ? 1 : 0;
  });
  for (const auto& buffer : node.results) {
    result_nbytes_ += buffer ? buffer->nbytes() : 0;
  }
  nodes_.push_back(std::move(node));
}

void Graph::put_back(std::vector<Node> nodes) {
  std::vector<Node> later = std::exchange(nodes_, {});
  for (Node& node : nodes) {
    append(std::move(node));
  }
  std::move(later.begin(), later.end(), std::back_inserter(nodes_));
}

void Graph::forget(const Node& node) {
  for_each_access(node, [](Buffer& buffer, bool, bool writes, bool) {
    --buffer.pending_uses;
    buffer.pending_writes -= writes ? 1 : 0;
  });
  for (const auto& buffer : node.results) {
    result_nbytes_ -= buffer ? buffer->nbytes() : 0;
  }
}

std::vector<Node> Graph::take_all() {
  for (const Node& node : nodes_) {
    forget(node);
  }
  std::vector<Node> nodes = std::exchange(nodes_, {});
  nodes_.reserve(std::min(nodes.size(), kMaxReserved));  // the next step is likely as long
  return nodes;
}

std::vector<Node> Graph::take_for(const std::vector<BufferPtr>& targets, bool for_write) {
  Scan scan;
  bool any = false;
  for (const auto& target : targets) {
    scan.want(*target, kValue | (for_write ? kOverwrite : kNothing));
    any |= target->pending_writes > 0 || (for_write && target->pending_uses > 0);
  }
  if (!any) {
    return {};
  }
  std::vector<bool> taken(nodes_.size(), false);
  size_t count = 0;
  for (size_t i = nodes_.size(); i-- > 0;) {
    if (scan.needs(nodes_[i])) {
      scan.include(nodes_[i]);
      taken[i] = true;
      ++count;
    }
  }
  std::vector<Node> result;
  result.reserve(count);
  size_t kept = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (taken[i]) {
      forget(nodes_[i]);
      result.push_back(std::move(nodes_[i]));
    } else {
      if (kept != i) {
        nodes_[kept] = std::move(nodes_[i]);
      }
      ++kept;
    }
  }
  nodes_.resize(kept);
  return result;
}

}  // namespace tiledev
