// Named axes and the tiles that users choose for them.

#include "record/session_axes.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "compile/axis_groups.h"
#include "compile/axis_tiles.h"
#include "compile/pipeline.h"
#include "record/session.h"
#include "record/storage.h"
#include "rules/rule.h"

namespace tiledev {

void add_axis_name(Buffer& buffer, const AxisName& axis) {
  for (AxisName& known : buffer.axis_names) {
    if (known.span == axis.span) {
      const bool renewed =
          axis.level == known.level && (axis.level == NameLevel::kGiven || axis.name == known.name);
      if (axis.level > known.level || renewed) {
        known = axis;
      }
      return;
    }
  }
  buffer.axis_names.push_back(axis);
}

uint64_t Session::tiling_word(const CompileOptions& options) {
  uint64_t word = 1;
  const auto add = [&](uint64_t value) { word = (word ^ value) * 0xFF51AFD7ED558CCDull + 1; };
  add(static_cast<uint64_t>(options.workers));
  add(static_cast<uint64_t>(options.mode));
  add(options.deterministic ? 1 : 0);
  add(options.named ? 1 : 0);
  for (const auto& [name, tiling] : options.tilings) {
    add(std::hash<std::string>{}(name));
    add(static_cast<uint64_t>(tiling.uniform));
    for (const int64_t size : tiling.sizes) {
      add(static_cast<uint64_t>(size));
    }
  }
  return word;
}

namespace {

int64_t span_of(const c10::TensorImpl& tensor, int64_t dim) {
  return tensor.strides()[dim] * tensor.sizes()[dim] * static_cast<int64_t>(tensor.itemsize());
}

// The name that pending nodes give to a dimension without one, because others had it in its place.
std::string inherited_name(const std::vector<Node>& nodes, const Buffer& buffer, int64_t span) {
  std::set<const Buffer*> before;  // as many as its local number
  bool found = false;
  for (const Node& node : nodes) {
    for_each_access(node, [&](const Buffer& other, bool, bool, bool) {
      found |= &other == &buffer;
      if (!found) {
        before.insert(&other);
      }
    });
  }
  if (!found) {
    return {};
  }
  const AxisKey key{static_cast<uint32_t>(before.size()), span};
  for (const AxisGroup& group : pending_axis_groups(nodes)) {
    const auto& members = group.members;
    if (group.inherited && std::find(members.begin(), members.end(), key) != members.end()) {
      return group.name;
    }
  }
  return {};
}

// The name that the dimension had, or an empty one.
std::string take_axis_name(Buffer& buffer, const c10::TensorImpl& tensor, int64_t dim) {
  auto& names = buffer.axis_names;
  const auto found = std::find_if(names.begin(), names.end(), [&](const AxisName& axis) {
    return tensor.sizes()[dim] > 1 && axis.span == span_of(tensor, dim);
  });
  if (found == names.end()) {
    return {};
  }
  const std::string name = found->name;
  names.erase(found);
  return name;
}

}  // namespace

void Session::name_axes(const c10::TensorImpl& tensor, const AxisNames& names) {
  const std::lock_guard lock(mutex_);
  Buffer& buffer = buffer_of(tensor);
  const auto before = buffer.axis_names;
  std::set<std::string> taken;
  try {
    for (const auto& [dim, name] : names) {
      if (!name) {
        std::string had = take_axis_name(buffer, tensor, dim);
        if (had.empty() && tensor.sizes()[dim] > 1) {
          had = inherited_name(graph_.nodes(), buffer, span_of(tensor, dim));
        }
        if (!had.empty()) {
          taken.insert(std::move(had));
        }
      }
    }
    for (const auto& [dim, name] : names) {
      if (name) {
        name_axis(buffer, tensor, dim, *name);
      }
    }
    pending_axis_groups(graph_.nodes());  // do two names meet?
  } catch (...) {
    buffer.axis_names = before;
    throw;
  }
  for (const auto& [dim, name] : names) {
    const int64_t extent = tensor.sizes()[dim];
    if (name && extent == 1) {
      axis_extents_.emplace(*name, extent);  // says nothing about the others of this name
    } else if (name) {
      axis_extents_[*name] = extent;
    }
  }
  for (const std::string& name : taken) {
    forget_unused_name(name);
  }
}

// A name that no dimension has from the user himself goes from those that ops gave it to, too, and
// nobody inherits it any more.
void Session::forget_unused_name(const std::string& name) {
  bool used = false;
  buffers_.for_each([&](const Buffer& buffer) {
    for (const AxisName& axis : buffer.axis_names) {
      used |= axis.level == NameLevel::kGiven && axis.name == name;
    }
  });
  if (used) {
    return;
  }
  buffers_.for_each([&](Buffer& buffer) {
    auto& names = buffer.axis_names;
    names.erase(std::remove_if(names.begin(), names.end(),
                               [&](const AxisName& axis) { return axis.name == name; }),
                names.end());
    buffer.axis_memory = forget(buffer.axis_memory, name);
  });
}

void Session::forget_inherited_names() {
  if (axis_extents_.empty()) {
    return;
  }
  buffers_.for_each([&](Buffer& buffer) {
    auto& names = buffer.axis_names;
    names.erase(
        std::remove_if(names.begin(), names.end(),
                       [](const AxisName& axis) { return axis.level == NameLevel::kInherited; }),
        names.end());
    buffer.axis_memory.reset();
  });
}

void Session::name_axis(Buffer& buffer, const c10::TensorImpl& tensor, int64_t dim,
                        const std::string& name) {
  const int64_t extent = tensor.sizes()[dim];
  if (extent == 1) {
    return;  // cannot be cut, and its span is that of another dimension
  }
  if (const auto tiling = tilings_.find(name); tiling != tilings_.end()) {
    tile_sizes(name, tiling->second, extent);
  }
  const int64_t span = span_of(tensor, dim);
  if (span == 0) {
    return;  // expanded: does not move through the buffer
  }
  for (const AxisName& known : buffer.axis_names) {
    TORCH_CHECK_VALUE(
        known.span != span || known.name == name || known.level == NameLevel::kInherited,
        "[set_axis_group_name] got the name '", name, "' for dimension ", dim,
        " of a tensor whose axis group has the name '", known.name,
        "' already; an axis group has one name");
  }
  add_axis_name(buffer, {span, extent, name, NameLevel::kGiven});
}

void Session::set_axis_tiling(const std::string& name, AxisTiling tiling) {
  const std::lock_guard lock(mutex_);
  const auto known = axis_extents_.find(name);
  if (known == axis_extents_.end()) {
    std::string names;
    for (const auto& [other, extent] : axis_extents_) {
      names += (names.empty() ? "'" : ", '") + other + "'";
    }
    TORCH_CHECK_VALUE(false, "[set_axis_group_tiling] there is no axis group named '", name,
                      "' (known: ", names.empty() ? "none" : names,
                      "); name one with set_axis_group_name first");
  }
  tile_sizes(name, tiling, known->second);
  tilings_[name] = std::move(tiling);
}

void Session::clear_axis_tiling(const std::optional<std::string>& name) {
  const std::lock_guard lock(mutex_);
  if (!name) {
    tilings_.clear();
    return;
  }
  TORCH_CHECK_VALUE(axis_extents_.count(*name) > 0,
                    "[clear_axis_group_tiling] there is no axis group named '", *name, "'");
  tilings_.erase(*name);
}

Session::GroupReport Session::axis_groups() {
  const std::lock_guard lock(mutex_);
  GroupReport report;
  report.nodes = graph_.nodes().size();
  std::set<AxisKey> seen;
  std::set<const Buffer*> buffers;
  for (const Node& node : graph_.nodes()) {
    for_each_access(node, [&](const Buffer& b, bool, bool, bool) { buffers.insert(&b); });
  }
  report.tensors = buffers.size();
  const std::vector<AxisGroup> groups = pending_axis_groups(graph_.nodes());
  for (const AxisGroup& group : groups) {
    GroupInfo info{group, chosen_tiles(groups, group, tilings_)};
    if (!info.tiles.empty()) {
      info.group.extent = std::accumulate(info.tiles.begin(), info.tiles.end(), int64_t{0});
    }
    report.groups.push_back(std::move(info));
  }
  return report;
}

void Session::add_tile_rule(const std::string& op, const std::string& rule) {
  add_rule(op, rule);
  const std::lock_guard lock(mutex_);
  plans_.clear();
}

}  // namespace tiledev
