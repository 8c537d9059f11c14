#include "compile/axis_groups.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "compile/axes.h"
#include "compile/axis_tiles.h"
#include "compile/pipeline.h"

namespace tiledev {

namespace {

constexpr size_t kMostNeighbours = 16;  // operands of an op that remember each other's names

class GroupFinder {
 public:
  explicit GroupFinder(const Compilation& c) : c_(c), buffers_(c.print.outlives.size()) {}

  FoundAxes run() {
    for (const Step& step : c_.steps) {
      if (!step.signature) {
        continue;
      }
      note_views(step);
      if (const auto axes = find_axes(step)) {
        tie(step, *axes);
        note_neighbours(step, *axes);
      }
      note_source(step);
    }
    for (uint32_t n = 0; n < c_.nodes.size(); ++n) {
      if (c_.live[n]) {
        note_names(n);
      }
    }
    FoundAxes found;
    take_names();
    found.memories = learn();
    inherit(found.memories);
    found.groups = collect();
    return found;
  }

 private:
  // A dimension of an operand beside a buffer that can remember its name.
  struct Neighbour {
    uint32_t buffer = 0;
    AxisPlace place;
    size_t key = 0;
    int64_t extent = 0;
  };
  struct InheritedName {
    size_t key = 0;
    int64_t extent = 0;
    std::string name;
    bool exact = true;  // the extent is known, not scaled
  };
  // Of a group. Without a name if inherited ones contradict each other.
  struct GroupName {
    std::string name;
    std::vector<int64_t> extents;
    bool inherited = false;
  };

  size_t key(uint32_t buffer, int64_t span, int64_t extent) {
    const auto [it, fresh] = index_.emplace(AxisKey{buffer, span}, parent_.size());
    if (fresh) {
      parent_.push_back(parent_.size());
      extent_.push_back(extent);
      names_.emplace_back();
    }
    extent_[it->second] = std::min(extent_[it->second], extent);
    return it->second;
  }

  size_t root(size_t i) {
    while (parent_[i] != i) {
      i = parent_[i] = parent_[parent_[i]];
    }
    return i;
  }

  void unite(size_t a, size_t b) {
    a = root(a);
    b = root(b);
    if (a != b) {
      parent_[std::max(a, b)] = std::min(a, b);
      const size_t kept = std::min(a, b);
      extent_[kept] = std::min(extent_[a], extent_[b]);
    }
  }

  void note_views(const Step& step) {
    const auto note = [&](const View& view) {
      for (size_t d = 0; d < view.meta.sizes.size(); ++d) {
        if (view.meta.sizes[d] > 1 && view.meta.strides[d] > 0) {
          key(view.buffer, span_of(view.meta, static_cast<int>(d)), view.meta.sizes[d]);
        }
      }
    };
    std::for_each(step.operands.begin(), step.operands.end(), note);
    std::for_each(step.outputs.begin(), step.outputs.end(), note);
  }

  void tie(const Step& step, const StepAxes& axes) {
    for (const Axis& axis : axes.axes) {
      int64_t first = -1;
      for (size_t t = 0; t < axes.metas.size(); ++t) {
        const int8_t d = axis.dims[t];
        if (d < 0 || axes.metas[t].strides[d] == 0) {
          continue;
        }
        const View& view = step.view(t);
        const size_t k = key(view.buffer, span_of(axes.metas[t], d), axes.metas[t].sizes[d]);
        if (first >= 0) {
          unite(static_cast<size_t>(first), k);
        }
        first = static_cast<int64_t>(k);
      }
    }
  }

  // Which dimensions of other operands stand beside a buffer that outlives the graph, along axes
  // that it does not have itself. A single number stands beside all sorts of things: it says
  // nothing.
  void note_neighbours(const Step& step, const StepAxes& axes) {
    const size_t count = std::min(step.operands.size(), kMostNeighbours);
    for (size_t t = 0; t < count; ++t) {
      if (step.operands[t].meta.numel <= 1) {
        continue;
      }
      const uint32_t buffer = step.operands[t].buffer, source = source_of(buffer);
      if (outlives(buffer)) {
        note_neighbours(step, axes, t, buffer);
      }
      if (source != buffer && outlives(source)) {
        note_neighbours(step, axes, t, source);
      }
    }
  }

  void note_neighbours(const Step& step, const StepAxes& axes, size_t beside, uint32_t buffer) {
    const auto moves = [&](const Axis& axis, size_t t) {
      const int8_t d = axis.dims[t];
      return d >= 0 && axes.metas[t].sizes[d] > 1 && axes.metas[t].strides[d] > 0;
    };
    const size_t count = std::min(step.operands.size(), kMostNeighbours);
    for (const Axis& axis : axes.axes) {
      for (size_t t = 0; t < count; ++t) {
        if (!moves(axis, t) || moves(axis, beside) ||
            source_of(step.operands[t].buffer) == source_of(buffer)) {
          continue;
        }
        const TensorMeta& meta = axes.metas[t];
        const int8_t d = axis.dims[t];
        const AxisPlace place{step.signature->op->id, static_cast<uint32_t>(beside),
                              static_cast<uint32_t>(t), static_cast<uint32_t>(d),
                              static_cast<uint32_t>(meta.sizes.size())};
        neighbours_.push_back({buffer, place,
                               key(step.operands[t].buffer, span_of(meta, d), meta.sizes[d]),
                               meta.sizes[d]});
      }
    }
  }

  // What comes from one tensor alone (a weight in another type) stands for it.
  void note_source(const Step& step) {
    const View* source = nullptr;
    for (const View& operand : step.operands) {
      if (operand.overwritten) {
        continue;
      }
      if (source != nullptr) {
        return;
      }
      source = &operand;
    }
    if (source == nullptr) {
      return;
    }
    const uint32_t from = source_of(source->buffer);
    for_each_view(step, [&](const View& view, size_t) {
      if (view.overwritten || view.fresh) {
        sources_[view.buffer] = from;
      }
    });
  }

  uint32_t source_of(uint32_t buffer) const {
    const auto found = sources_.find(buffer);
    return found == sources_.end() ? buffer : found->second;
  }

  bool outlives(uint32_t buffer) const {
    return buffer < c_.print.outlives.size() && c_.print.outlives[buffer] != 0;
  }

  // The names of dimensions of the buffers.
  void note_names(uint32_t n) {
    const uint32_t* access = c_.print.accesses.data() + c_.first_access[n];
    for_each_access(c_.nodes[n], [&](const Buffer& buffer, bool, bool, bool) {
      buffers_[*access] = &buffer;
      for (const AxisName& axis : buffer.axis_names) {
        const size_t at = key(*access, axis.span, axis.extent);
        if (axis.level == NameLevel::kInherited) {
          inherited_.push_back({at, axis.extent, axis.name});
        } else {
          names_[at] = axis;
        }
      }
      ++access;
    });
  }

  // By the names that the user gave, or that ops tied to those.
  void take_names() {
    std::set<size_t> given;  // groups with a dimension that the user named himself
    for (const auto& [axis, i] : index_) {
      if (names_[i].level == NameLevel::kGiven) {
        given.insert(root(i));
      }
    }
    for (const auto& [axis, i] : index_) {
      const AxisName& named = names_[i];
      if (named.name.empty()) {
        continue;
      }
      GroupName& group = group_names_[root(i)];
      TORCH_CHECK_VALUE(group.name.empty() || named.name == group.name, "[axis groups] the names '",
                        group.name, "' and '", named.name, "' meet in one axis group of extent ",
                        extent_[root(i)],
                        ": ops tie these dimensions together. Give them the same name");
      group.name = named.name;
      if (named.level == NameLevel::kGiven || given.count(root(i)) == 0) {
        group.extents.push_back(named.extent);
      }
    }
  }

  // What stands beside buffers with a name that was given, or tied to one.
  std::map<uint32_t, AxisMemoryPtr> learn() {
    std::map<uint32_t, std::vector<RememberedName>> seen;
    for (const Neighbour& neighbour : neighbours_) {
      const auto group = group_names_.find(root(neighbour.key));
      if (group == group_names_.end()) {
        continue;
      }
      const auto& [name, extents, inherited] = group->second;
      const int64_t here = neighbour.extent;
      const bool same = std::find(extents.begin(), extents.end(), here) != extents.end();
      const int64_t named = same ? here : *std::max_element(extents.begin(), extents.end());
      const int64_t common = std::gcd(named, here);
      seen[neighbour.buffer].push_back({neighbour.place, name, named / common, here / common});
    }
    std::map<uint32_t, AxisMemoryPtr> memories;
    for (const auto& [buffer, names] : seen) {
      const AxisMemoryPtr& before = buffers_[buffer]->axis_memory;
      if (AxisMemoryPtr after = remember(before, names); after != before) {
        memories[buffer] = std::move(after);
      }
    }
    return memories;
  }

  // Names for the groups that have none.
  void inherit(const std::map<uint32_t, AxisMemoryPtr>& memories) {
    for (const Neighbour& neighbour : neighbours_) {
      const auto learned = memories.find(neighbour.buffer);
      const AxisMemory* memory = learned == memories.end()
                                     ? buffers_[neighbour.buffer]->axis_memory.get()
                                     : learned->second.get();
      const RememberedName* known = memory == nullptr ? nullptr : memory->find(neighbour.place);
      if (known != nullptr && neighbour.extent % known->here == 0) {
        inherited_.push_back({neighbour.key, neighbour.extent / known->here * known->named,
                              known->name, known->here == known->named});
      }
    }
    // In program order: the first is nearest to an input. Extents that had to be scaled come last:
    // the other factor may have changed.
    std::stable_partition(inherited_.begin(), inherited_.end(),
                          [](const InheritedName& inherited) { return inherited.exact; });
    for (const InheritedName& inherited : inherited_) {
      const auto [it, first] = group_names_.try_emplace(root(inherited.key));
      GroupName& group = it->second;
      if (first) {
        group = {inherited.name, {inherited.extent}, true};
      } else if (group.inherited && group.name != inherited.name) {
        group = {{}, {}, true};
      } else if (group.inherited && inherited.exact) {
        group.extents.push_back(inherited.extent);
      }
    }
  }

  std::vector<AxisGroup> collect() {
    std::map<size_t, AxisGroup> groups;
    for (const auto& [axis, i] : index_) {
      AxisGroup& group = groups[root(i)];
      group.extent = extent_[root(i)];
      group.members.push_back(axis);
    }
    std::vector<AxisGroup> result;
    for (auto& [at, group] : groups) {
      if (const auto named = group_names_.find(at); named != group_names_.end()) {
        group.name = named->second.name;
        group.extents = named->second.extents;
        group.inherited = named->second.inherited;
      }
      if (!group.extents.empty()) {
        group.extent = group.inherited
                           ? group.extents.front()
                           : *std::max_element(group.extents.begin(), group.extents.end());
      }
      result.push_back(std::move(group));
    }
    return result;
  }

  const Compilation& c_;
  std::vector<const Buffer*> buffers_;  // by local number
  std::map<AxisKey, size_t> index_;
  std::vector<size_t> parent_;
  std::vector<int64_t> extent_;
  std::vector<AxisName> names_;  // without a name where nobody gave one
  std::vector<InheritedName> inherited_;
  std::vector<Neighbour> neighbours_;        // in program order
  std::map<uint32_t, uint32_t> sources_;     // of buffers that come from one other alone
  std::map<size_t, GroupName> group_names_;  // by root
};

}  // namespace

FoundAxes find_axis_groups(const Compilation& c) {
  return GroupFinder(c).run();
}

// Groups keep their names beyond the graph, through the buffers that outlive it.
void name_axes(Compilation& c) {
  if (!c.options.named) {
    return;
  }
  FoundAxes found = find_axis_groups(c);
  c.groups = std::move(found.groups);
  std::vector<std::optional<AccessRef>> refs(c.print.outlives.size());
  for (uint32_t n = 0; n < c.nodes.size(); ++n) {
    const uint32_t* access = c.print.accesses.data() + c.first_access[n];
    uint32_t ordinal = 0;
    for_each_access(c.nodes[n], [&](const Buffer&, bool, bool, bool) {
      auto& ref = refs[access[ordinal]];
      ref = ref ? ref : AccessRef{n, ordinal};
      ++ordinal;
    });
  }
  for (const AxisGroup& group : c.groups) {
    const auto tiling = c.options.tilings.find(group.name);
    const int64_t extent =
        tiling == c.options.tilings.end() ? group.extent : tiled_extent(group, tiling->second);
    const NameLevel level = group.inherited ? NameLevel::kInherited : NameLevel::kTied;
    for (const auto& [buffer, span] : group.members) {
      if (!group.name.empty() && buffer < refs.size() && c.print.outlives[buffer] && refs[buffer]) {
        c.plan.names.push_back({*refs[buffer], {span, extent, group.name, level}});
      }
    }
  }
  for (auto& [buffer, memory] : found.memories) {
    c.plan.memories.push_back({*refs[buffer], std::move(memory)});
  }
}

}  // namespace tiledev
