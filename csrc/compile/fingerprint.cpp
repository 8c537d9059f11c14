#include "compile/fingerprint.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <sstream>
#include <utility>

#include "graph/graph.h"
#include "graph/hash.h"
#include "graph/print.h"

namespace tiledev {

namespace {

// Numbers the buffers, and finds where the first view of each begins. Where a buffer is seen in
// types of several sizes, and where the graph makes it, that is its own begin.
class BufferPass {
 public:
  explicit BufferPass(Fingerprint& print) : print_(print) {}

  void run(const std::vector<Node>& nodes) {
    const uint64_t pass = next_mark();
    for (const Node& node : nodes) {
      const size_t first = print_.accesses.size();
      for_each_access(node, [&](Buffer& buffer, bool, bool writes, bool fresh) {
        if (buffer.mark != pass) {
          buffer.mark = pass;
          buffer.mark_index = static_cast<uint32_t>(print_.outlives.size());
          print_.outlives.push_back(buffer.external() || buffer.pending_uses > 0);
          print_.origins.push_back(fresh ? 0 : kUnknown);
          print_.written.push_back(0);
        }
        print_.written[buffer.mark_index] |= writes ? 1 : 0;
        print_.accesses.push_back(buffer.mark_index);
      });
      for (size_t i = 0; i < node.operands.size(); ++i) {
        note(print_.accesses[first + i], node, i);
      }
    }
    std::replace(print_.origins.begin(), print_.origins.end(), kUnknown, int64_t{0});
  }

 private:
  static constexpr int64_t kUnknown = INT64_MAX;

  void note(uint32_t buffer, const Node& node, size_t operand) {
    int64_t& origin = print_.origins[buffer];
    const int64_t offset = node.operands[operand].offset;
    if (offset == 0 || origin == 0) {
      origin = 0;
      return;
    }
    const auto size =
        static_cast<uint8_t>(c10::elementSize(node.signature->operands[operand].dtype));
    sizes_.resize(std::max<size_t>(sizes_.size(), buffer + 1));
    if (origin == kUnknown) {
      sizes_[buffer] = size;
      origin = offset;
    } else {
      origin = sizes_[buffer] == size ? std::min(origin, offset) : 0;
    }
  }

  Fingerprint& print_;
  std::vector<uint8_t> sizes_;  // of the elements, by buffer, while its origin is not 0
};

// Where a word of a fingerprint comes from.
struct Source {
  enum class Kind : uint8_t { kOptions, kNode, kOffset, kBits, kName, kAccess, kOutlives };
  Kind kind = Kind::kOptions;
  uint32_t node = 0;
  uint32_t index = 0;  // kOffset: of the operand; kName, kAccess: of the access, among all; kBits,
                       // kOutlives: of the word's first bit
};

// What a plan depends on in the place where a view begins.
class Places {
 public:
  explicit Places(const Fingerprint& print) : print_(print) {}

  uint64_t word(uint32_t buffer, int64_t offset) {
    const int64_t distance = offset - print_.origins[buffer];
    if (distance == 0 || print_.written[buffer] != 0) {
      return static_cast<uint64_t>(distance);
    }
    // How views that are only read lie to each other matters to nobody, but for whether they are
    // one.
    const auto known = std::find(places_.begin(), places_.end(), std::pair(buffer, distance));
    const auto number = static_cast<uint64_t>(known - places_.begin());
    if (known == places_.end()) {
      if (places_.size() == kMost) {
        return kFar | static_cast<uint64_t>(distance);
      }
      places_.emplace_back(buffer, distance);
    }
    return number + 1;
  }

 private:
  static constexpr size_t kMost = 64;  // that are looked through
  static constexpr uint64_t kFar = uint64_t{1} << 63;

  const Fingerprint& print_;
  std::vector<std::pair<uint32_t, int64_t>> places_;
};

uint64_t node_word(const Node& node) {
  if (node.host) {
    return ~std::hash<std::string>{}(node.host->name);
  }
  return node.signature->id;
}

// Calls f(bit) for what else the plan depends on in a node.
template <typename F>
void for_each_bit(const Node& node, F&& f) {
  f(static_cast<bool>(node.token));
  for (size_t i = 0; i < node.operands.size(); ++i) {
    if (node.writes(i)) {
      f(node.replaces(i));
    }
  }
  for (const auto& buffer : node.results) {
    f(static_cast<bool>(buffer));
  }
}

// Bits as words, behind a one that says how many they are.
template <typename F>
class BitWords {
 public:
  explicit BitWords(F f) : f_(std::move(f)) {}
  void add(bool bit) {
    word_ = word_ * 2 + (bit ? 1 : 0);
    ++count_;
    if (word_ >> 62) {
      end();
    }
  }
  void end() {
    f_(word_, begin_);
    word_ = 1;
    begin_ = count_;
  }

 private:
  F f_;
  uint64_t word_ = 1;
  uint32_t begin_ = 0, count_ = 0;
};

// Calls f(word) for the names on a buffer, and those that it remembers.
template <typename F>
void for_each_name_word(const Buffer& buffer, F&& f) {
  for (const AxisName& axis : buffer.axis_names) {
    f(std::hash<std::string>{}(axis.name));
    f(static_cast<uint64_t>(axis.span));
    f(static_cast<uint64_t>(axis.extent) * 4 + static_cast<uint64_t>(axis.level));
  }
  if (buffer.axis_memory) {
    f(buffer.axis_memory->hash());
  }
}

// Calls f(word, source) for the words of a fingerprint, whose buffers are known.
template <typename F>
void for_each_word(const std::vector<Node>& nodes, const Fingerprint& print, uint64_t options,
                   bool named, F&& f) {
  using Kind = Source::Kind;
  f(options, Source{Kind::kOptions, 0, 0});
  uint32_t at = 0, known = 0;  // accesses, buffers
  Places places(print);
  for (uint32_t n = 0; n < nodes.size(); ++n) {
    const Node& node = nodes[n];
    f(node_word(node), Source{Kind::kNode, n, 0});
    for (uint32_t i = 0; i < node.operands.size(); ++i) {
      f(places.word(print.accesses[at + i], node.operands[i].offset), Source{Kind::kOffset, n, i});
    }
    BitWords bits([&](uint64_t word, uint32_t begin) { f(word, Source{Kind::kBits, n, begin}); });
    for_each_bit(node, [&](bool bit) { bits.add(bit); });
    bits.end();
    for_each_access(node, [&](const Buffer& buffer, bool, bool, bool) {
      const uint32_t number = print.accesses[at];
      if (number == known) {
        ++known;
        if (named) {
          for_each_name_word(buffer, [&](uint64_t word) { f(word, Source{Kind::kName, n, at}); });
        }
      }
      f(number, Source{Kind::kAccess, n, at++});
    });
  }
  BitWords bits([&](uint64_t word, uint32_t begin) { f(word, Source{Kind::kOutlives, 0, begin}); });
  for (const uint8_t bit : print.outlives) {
    bits.add(bit != 0);
  }
  bits.end();
}

// ---- in words -----------------------------------------------------------------------------------

// Says what a word means, and what another one would in its place.
class WordReader {
 public:
  WordReader(const std::vector<Node>& nodes, const Fingerprint& print)
      : nodes_(nodes), print_(print) {}

  std::string read(const Source& source, uint64_t word, uint64_t other) {
    using Kind = Source::Kind;
    out_.str({});
    switch (source.kind) {
      case Kind::kOptions:
        out_
            << "other tiles, or other settings (workers, deterministic algorithms), were asked for";
        break;
      case Kind::kNode:
        out_ << "node " << source.node << " is the host call '" << nodes_[source.node].name()
             << "', there another one";
        break;
      case Kind::kOffset:
        read_place(source, word, other);
        break;
      case Kind::kBits:
        read_bit(source, first_bit(word, other) + source.index, word, other);
        break;
      case Kind::kName:
        out_ << "the dimensions of " << access(source.node, source.index)
             << " are named in another way than there";
        break;
      case Kind::kAccess:
        out_ << access(source.node, source.index) << " lies in " << memory(source.index, word)
             << ", there in " << memory(source.index, other);
        break;
      case Kind::kOutlives: {
        const uint32_t buffer = first_bit(word, other) + source.index;
        const bool here = (print_.outlives[buffer]) != 0;
        out_ << "other tensors outlive the graph: a tensor refers to " << first_access(buffer)
             << (here ? " here and not there" : " there and not here");
      }
    }
    return out_.str();
  }

 private:
  void read_place(const Source& source, uint64_t word, uint64_t other) {
    const bool written =
        print_.written[print_.accesses[accesses_before(source.node) + source.index]] != 0;
    const auto place = [&](uint64_t w) {
      const std::string first_view = "the first view of its memory";
      return w == 0    ? "with " + first_view
             : written ? std::to_string(w) + " elements behind " + first_view
                       : "behind " + first_view + " (place " + std::to_string(w) + ")";
    };
    node(source.node);
    out_ << ": `" << operand_name(*nodes_[source.node].signature, source.index) << "` begins "
         << place(word) << ", there " << place(other);
  }

  uint32_t accesses_before(uint32_t n) const {
    uint32_t count = 0;
    for (uint32_t before = 0; before < n; ++before) {
      for_each_access(nodes_[before], [&](const Buffer&, bool, bool, bool) { ++count; });
    }
    return count;
  }

  void node(uint32_t n) { out_ << "node " << n << " (" << nodes_[n].name() << ')'; }

  // The first bit that differs, counted from the one that is highest but for the leading one.
  static uint32_t first_bit(uint64_t word, uint64_t other) {
    const uint64_t differ = word ^ other;
    return differ == 0 ? 0 : std::bit_width(word) - 1 - std::bit_width(differ);
  }

  void read_bit(const Source& source, uint32_t bit, uint64_t word, uint64_t other) {
    const Node& of = nodes_[source.node];
    node(source.node);
    uint32_t at = 0;
    bool here = false;
    for_each_bit(of, [&](bool value) { here = at++ == bit ? value : here; });
    const char* sides = here ? " here and not there" : " there and not here";
    if (bit == 0) {
      out_ << " draws random numbers" << sides;
      return;
    }
    at = 1;
    for (size_t i = 0; i < of.operands.size(); ++i) {
      if (of.writes(i) && at++ == bit) {
        out_ << ": `" << operand_name(*of.signature, i) << "` is all of its memory, overwritten"
             << sides;
        return;
      }
    }
    out_ << ": result " << bit - at << " exists" << sides;
  }

  // An operand, result or generator of a node: `other` of node 1 (aten::add.Tensor)
  std::string access(uint32_t n, uint32_t at) const {
    const Node& of = nodes_[n];
    const uint32_t i = at - accesses_before(n);
    const std::string name = "node " + std::to_string(n) + " (" + of.name() + ")";
    if (i < of.operands.size()) {
      return '`' + operand_name(*of.signature, i) + "` of " + name;
    }
    return (of.token && i == of.operands.size() ? "the generator of " : "the result of ") + name;
  }

  std::string first_access(uint32_t buffer) const {
    const auto found = std::find(print_.accesses.begin(), print_.accesses.end(), buffer);
    const auto at = static_cast<uint32_t>(found - print_.accesses.begin());
    uint32_t n = 0;
    for (uint32_t end = 0; n < nodes_.size(); ++n) {
      for_each_access(nodes_[n], [&](const Buffer&, bool, bool, bool) { ++end; });
      if (at < end) {
        break;
      }
    }
    return access(n, at);
  }

  std::string memory(uint32_t at, uint64_t buffer) const {
    const auto end = print_.accesses.begin() + at;
    const bool known = std::find(print_.accesses.begin(), end, buffer) != end;
    return known ? "the memory of " + first_access(static_cast<uint32_t>(buffer))
                 : "memory of its own";
  }

  const std::vector<Node>& nodes_;
  const Fingerprint& print_;
  std::ostringstream out_;
};

}  // namespace

Fingerprint fingerprint(const std::vector<Node>& nodes, uint64_t options, bool named) {
  Fingerprint print;
  print.words.reserve(nodes.size() * 7);
  BufferPass(print).run(nodes);
  for_each_word(nodes, print, options, named,
                [&](uint64_t word, const Source&) { print.words.push_back(word); });
  print.hash = hash_words(print.words);
  return print;
}

std::string explain_difference(const std::vector<Node>& nodes, const Fingerprint& print,
                               const std::vector<uint64_t>& others, bool named) {
  std::string text;
  size_t at = 0;
  for_each_word(nodes, print, print.words[0], named, [&](uint64_t word, const Source& source) {
    if (text.empty() && at < others.size() && others[at] != word) {
      text = WordReader(nodes, print).read(source, word, others[at]);
    }
    ++at;
  });
  return text.empty() ? "the dimensions of tensors are named in another way" : text;
}

}  // namespace tiledev
