#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tiledev {

// Where a dimension stands in an op, seen from another operand of that op. Operands count as in a
// step's signature.
struct AxisPlace {
  uint64_t op = 0;       // OpTraits::id
  uint32_t beside = 0;   // the operand that remembers
  uint32_t operand = 0;  // the one whose dimension it is
  uint32_t dimension = 0;
  uint32_t rank = 0;  // of that operand: of another one it is in another role

  auto operator<=>(const AxisPlace&) const = default;
};

struct RememberedName {
  AxisPlace place;
  std::string name;
  // How many elements of the axis as it was named are how many of the dimension, in lowest terms:
  // one is four in [b * 4, d] for a name on [b, 4, d].
  int64_t named = 1, here = 1;

  auto operator<=>(const RememberedName&) const = default;
};

// The names that dimensions of other operands had beside a buffer: what comes to such a place later
// without a name inherits it. Immutable; buffers and plans share it.
class AxisMemory {
 public:
  static constexpr size_t kMost = 64;             // what comes beyond is not remembered
  static constexpr std::ptrdiff_t kContrary = 2;  // of a place: more would say no more

  explicit AxisMemory(std::vector<RememberedName> names);  // sorted, each of them once

  // What is remembered of a place, or null: no name was there, or different ones were.
  const RememberedName* find(const AxisPlace& place) const;
  const std::vector<RememberedName>& names() const { return names_; }
  uint64_t hash() const { return hash_; }

 private:
  std::vector<RememberedName> names_;
  uint64_t hash_;
};

using AxisMemoryPtr = std::shared_ptr<const AxisMemory>;  // null: nothing is remembered

// The same pointer if that changes nothing.
AxisMemoryPtr remember(const AxisMemoryPtr& memory, const std::vector<RememberedName>& names);
AxisMemoryPtr forget(const AxisMemoryPtr& memory, const std::string& name);

}  // namespace tiledev
