#include "graph/axis_memory.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "graph/hash.h"

namespace tiledev {

namespace {

uint64_t hash_of(const std::vector<RememberedName>& names) {
  std::vector<uint64_t> words;
  words.reserve(names.size() * 8);
  for (const auto& [place, name, named, here] : names) {
    words.insert(words.end(), {place.op, place.beside, place.operand, place.dimension, place.rank,
                               std::hash<std::string>{}(name), static_cast<uint64_t>(named),
                               static_cast<uint64_t>(here)});
  }
  return hash_words(words);
}

auto at_place(const std::vector<RememberedName>& names, const AxisPlace& place) {
  const auto begin = std::partition_point(names.begin(), names.end(),
                                          [&](const auto& known) { return known.place < place; });
  return std::pair(begin, std::find_if(begin, names.end(),
                                       [&](const auto& known) { return known.place != place; }));
}

}  // namespace

AxisMemory::AxisMemory(std::vector<RememberedName> names)
    : names_(std::move(names)), hash_(hash_of(names_)) {}

const RememberedName* AxisMemory::find(const AxisPlace& place) const {
  const auto [begin, end] = at_place(names_, place);
  return end - begin == 1 ? &*begin : nullptr;
}

AxisMemoryPtr remember(const AxisMemoryPtr& memory, const std::vector<RememberedName>& names) {
  std::vector<RememberedName> all = memory ? memory->names() : std::vector<RememberedName>{};
  const size_t before = all.size();
  for (const RememberedName& seen : names) {
    const auto [begin, end] = at_place(all, seen.place);
    if (all.size() < AxisMemory::kMost && end - begin < AxisMemory::kContrary &&
        std::find(begin, end, seen) == end) {
      all.insert(std::lower_bound(begin, end, seen), seen);
    }
  }
  return all.size() == before ? memory : std::make_shared<const AxisMemory>(std::move(all));
}

AxisMemoryPtr forget(const AxisMemoryPtr& memory, const std::string& name) {
  if (!memory) {
    return memory;
  }
  std::vector<RememberedName> kept;
  for (const RememberedName& known : memory->names()) {
    if (known.name != name) {
      kept.push_back(known);
    }
  }
  if (kept.size() == memory->names().size()) {
    return memory;
  }
  return kept.empty() ? nullptr : std::make_shared<const AxisMemory>(std::move(kept));
}

}  // namespace tiledev
