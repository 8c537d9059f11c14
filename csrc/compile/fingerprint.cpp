#include "compile/fingerprint.h"

#include <functional>

#include "graph/graph.h"
#include "graph/hash.h"

namespace tiledev {

namespace {

uint64_t node_word(const Node& node) {
  if (node.host) {
    return ~std::hash<std::string>{}(node.host->name);
  }
  return node.signature->id;
}

void append_names(std::vector<uint64_t>& words, const Buffer& buffer) {
  for (const AxisName& axis : buffer.axis_names) {
    words.push_back(std::hash<std::string>{}(axis.name));
    words.push_back(static_cast<uint64_t>(axis.span));
    words.push_back(static_cast<uint64_t>(axis.extent) * 2 + (axis.given ? 1 : 0));
  }
}

}  // namespace

Fingerprint fingerprint(const std::vector<Node>& nodes, uint64_t options, bool named) {
  Fingerprint print;
  print.words.reserve(nodes.size() * 6);
  print.words.push_back(options);
  const uint64_t pass = next_mark();
  for (const Node& node : nodes) {
    print.words.push_back(node_word(node));
    uint64_t shape = 2 | (node.token ? 1 : 0);
    for (size_t i = 0; i < node.operands.size(); ++i) {
      print.words.push_back(static_cast<uint64_t>(node.operands[i].offset));
      if (node.writes(i)) {
        shape = shape * 2 + (node.replaces(i) ? 1 : 0);
      }
    }
    for (const auto& buffer : node.results) {
      shape = shape * 2 + (buffer ? 1 : 0);
    }
    print.words.push_back(shape);
    for_each_access(node, [&](Buffer& buffer, bool, bool, bool) {
      if (buffer.mark != pass) {
        buffer.mark = pass;
        buffer.mark_index = static_cast<uint32_t>(print.outlives.size());
        if (named) {
          append_names(print.words, buffer);
        }
        print.outlives.push_back(buffer.external() || buffer.pending_uses > 0);
      }
      print.accesses.push_back(buffer.mark_index);
      print.words.push_back(buffer.mark_index);
    });
  }
  uint64_t packed = 1;
  for (const uint8_t bit : print.outlives) {
    packed = packed * 2 + bit;
    if (packed >> 62) {
      print.words.push_back(packed);
      packed = 1;
    }
  }
  print.words.push_back(packed);
  print.hash = hash_words(print.words);
  return print;
}

}  // namespace tiledev
