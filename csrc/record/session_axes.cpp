// Named axes and the tiles that users choose for them.

#include "record/session_axes.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <set>

#include "compile/axis_groups.h"
#include "compile/pipeline.h"
#include "record/session.h"
#include "record/storage.h"
#include "rules/rule.h"

namespace tiledev {

void add_axis_name(Buffer& buffer, const AxisName& axis) {
  for (AxisName& known : buffer.axis_names) {
    if (known.span == axis.span) {
      if (axis.given || (!known.given && known.name == axis.name)) {
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
        taken.insert(take_axis_name(buffer, tensor, dim));
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

// A name that no dimension has from the user himself goes from those that ops gave it to, too.
void Session::forget_unused_name(const std::string& name) {
  bool used = false;
  buffers_.for_each([&](const Buffer& buffer) {
    for (const AxisName& axis : buffer.axis_names) {
      used |= axis.given && axis.name == name;
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
    TORCH_CHECK_VALUE(known.span != span || known.name == name,
                      "[set_axis_group_name] got the name '", name, "' for dimension ", dim,
                      " of a tensor whose axis group has the name '", known.name,
                      "' already; an axis group has one name");
  }
  add_axis_name(buffer, {span, extent, name, true});
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
  for (AxisGroup& group : pending_axis_groups(graph_.nodes())) {
    GroupInfo info;
    if (const auto tiling = tilings_.find(group.name); tiling != tilings_.end()) {
      group.extent = tiled_extent(group, tiling->second);
      info.tiles = tile_sizes(group.name, tiling->second, group.extent);
    }
    info.group = std::move(group);
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
