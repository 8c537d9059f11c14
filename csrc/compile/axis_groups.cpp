#include "compile/axis_groups.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "compile/axes.h"
#include "compile/pipeline.h"

namespace tiledev {

namespace {

std::string join(const std::vector<int64_t>& sizes) {
  std::string text;
  for (const int64_t size : sizes) {
    text += (text.empty() ? "" : ",") + std::to_string(size);
  }
  return text;
}

class GroupFinder {
 public:
  explicit GroupFinder(const Compilation& c) : c_(c) {}

  std::vector<AxisGroup> run() {
    for (const Step& step : c_.steps) {
      if (!step.signature) {
        continue;
      }
      note_views(step);
      if (const auto axes = find_axes(step)) {
        tie(step, *axes);
      }
    }
    for (size_t n = 0; n < c_.nodes.size(); ++n) {
      if (c_.live[n]) {
        note_names(static_cast<uint32_t>(n));
      }
    }
    return collect();
  }

 private:
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

  // The names that users gave to dimensions of the buffers.
  void note_names(uint32_t n) {
    const uint32_t* access = c_.print.accesses.data() + c_.first_access[n];
    for_each_access(c_.nodes[n], [&](const Buffer& buffer, bool, bool, bool) {
      for (const AxisName& axis : buffer.axis_names) {
        names_[key(*access, axis.span, axis.extent)] = axis;
      }
      ++access;
    });
  }

  std::vector<AxisGroup> collect() {
    std::map<size_t, AxisGroup> groups;
    std::set<size_t> given;  // groups with a dimension that the user named himself
    for (const auto& [axis, i] : index_) {
      if (names_[i].given) {
        given.insert(root(i));
      }
    }
    for (const auto& [axis, i] : index_) {
      AxisGroup& group = groups[root(i)];
      group.extent = extent_[root(i)];
      group.members.push_back(axis);
      const AxisName& named = names_[i];
      if (named.name.empty()) {
        continue;
      }
      TORCH_CHECK_VALUE(group.name.empty() || named.name == group.name, "[axis groups] the names '",
                        group.name, "' and '", named.name, "' meet in one axis group of extent ",
                        group.extent,
                        ": ops tie these dimensions together. Give them the same name");
      group.name = named.name;
      if (named.given || given.count(root(i)) == 0) {
        group.extents.push_back(named.extent);
      }
    }
    std::vector<AxisGroup> result;
    for (auto& [at, group] : groups) {
      if (!group.extents.empty()) {
        group.extent = *std::max_element(group.extents.begin(), group.extents.end());
      }
      result.push_back(std::move(group));
    }
    return result;
  }

  const Compilation& c_;
  std::map<AxisKey, size_t> index_;
  std::vector<size_t> parent_;
  std::vector<int64_t> extent_;
  std::vector<AxisName> names_;  // without a name where nobody gave one
};

}  // namespace

std::vector<AxisGroup> find_axis_groups(const Compilation& c) {
  return GroupFinder(c).run();
}

// Groups keep their names beyond the graph, through the buffers that outlive it.
void name_axes(Compilation& c) {
  if (!c.options.named) {
    return;
  }
  c.groups = find_axis_groups(c);
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
    for (const auto& [buffer, span] : group.members) {
      if (!group.name.empty() && buffer < refs.size() && c.print.outlives[buffer] && refs[buffer]) {
        c.plan.names.push_back({*refs[buffer], {span, extent, group.name, false}});
      }
    }
  }
}

int64_t tiled_extent(const AxisGroup& group, const AxisTiling& tiling) {
  const int64_t total = std::accumulate(tiling.sizes.begin(), tiling.sizes.end(), int64_t{0});
  const bool adds_up =
      std::find(group.extents.begin(), group.extents.end(), total) != group.extents.end();
  return adds_up ? total : group.extent;
}

std::vector<int64_t> tile_sizes(const std::string& name, const AxisTiling& tiling, int64_t extent) {
  if (tiling.uniform > 0) {
    std::vector<int64_t> sizes(static_cast<size_t>(extent / tiling.uniform), tiling.uniform);
    if (extent % tiling.uniform != 0) {
      sizes.push_back(extent % tiling.uniform);
    }
    return sizes;
  }
  const int64_t total = std::accumulate(tiling.sizes.begin(), tiling.sizes.end(), int64_t{0});
  TORCH_CHECK_VALUE(total == extent, "[set_axis_group_tiling] the tiles ", join(tiling.sizes),
                    " of axis group '", name, "' add up to ", total, ", but the axis has extent ",
                    extent, "; pass sizes that add up to it, or one int for tiles of that size");
  return tiling.sizes;
}

}  // namespace tiledev
