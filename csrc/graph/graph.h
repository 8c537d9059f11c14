#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/node.h"

namespace tiledev {

// The nodes that were recorded and not yet handed to the executor, in program order. Program order
// and the buffers that each node reads and writes define all dependences (sequential task flow).
// Not thread safe: the session's lock protects it.
class Graph {
 public:
  void append(Node node);

  bool empty() const { return nodes_.empty(); }
  size_t size() const { return nodes_.size(); }
  size_t result_nbytes() const { return result_nbytes_; }  // of results not yet computed
  const std::vector<Node>& nodes() const { return nodes_; }

  // Puts nodes that were just taken back, before all others.
  void put_back(std::vector<Node> nodes);

  // Removes and returns every node.
  std::vector<Node> take_all();

  // Removes and returns the nodes that must run before `target` holds its value, in program order:
  // its writers, what they read, and whatever must read a buffer before one of them overwrites it.
  // With `for_write` also the readers of `target`, so that the caller may write into it.
  std::vector<Node> take_for(const std::vector<BufferPtr>& targets, bool for_write);

 private:
  void forget(const Node& node);

  std::vector<Node> nodes_;
  size_t result_nbytes_ = 0;
};

// The next value for Buffer::mark, so that marks of earlier passes never count.
uint64_t next_mark();

}  // namespace tiledev
