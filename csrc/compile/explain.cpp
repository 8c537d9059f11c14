#include "compile/explain.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <sstream>

namespace tiledev {

namespace {

std::string bytes(int64_t count) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(count);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text.data();
}

std::string name_of(const Step& step) {
  if (!step.signature) {
    return "host call";
  }
  const std::string& name = step.signature->op->name;
  const size_t colons = name.find("::");
  const bool aten = name.rfind("aten::", 0) == 0;
  return name.substr(aten ? colons + 2 : 0, name.find('.') - (aten ? colons + 2 : 0));
}

size_t ops_in_strips(const Segment& segment) {
  size_t ops = 0;
  for (const StripRun& run : segment.strips) {
    ops += run.count;
  }
  return ops;
}

size_t products(const Segment& segment) {
  return std::count_if(segment.steps.begin(), segment.steps.end(),
                       [](const Step& step) { return step.product.has_value(); });
}

std::string how(const Segment& segment) {
  std::ostringstream out;
  if (segment.tiled()) {
    out << segment.tiles() << " tiles of " << segment.extent << " units";
    if (segment.lanes > 0) {
      out << " in " << segment.lanes << " lanes";
    }
    if (const size_t ops = ops_in_strips(segment)) {
      out << ", " << ops << " ops in strips";
    }
    if (const size_t count = products(segment)) {
      out << ", " << count << " products with " << segment.packed.size() << " packed matrices";
    }
  } else {
    out << "whole (" << segment.whole_reason << ')';
  }
  return out.str();
}

std::string traffic(const Segment& segment) {
  std::ostringstream out;
  out << "reads " << bytes(segment.bytes_read) << ", writes " << bytes(segment.bytes_written)
      << ", scratch " << bytes(segment.scratch_bytes);
  return out.str();
}

}  // namespace

std::string describe_steps(const Segment& segment, size_t most) {
  std::ostringstream out;
  size_t shown = 0;
  for (size_t i = 0; i < segment.steps.size();) {
    const std::string name = name_of(segment.steps[i]);
    size_t count = 0;
    while (i < segment.steps.size() && name_of(segment.steps[i]) == name) {
      ++count;
      ++i;
    }
    if (shown++ == most) {
      out << ", ...";
      break;
    }
    out << (shown == 1 ? "" : ", ") << name;
    if (count > 1) {
      out << " x" << count;
    }
  }
  return out.str();
}

std::string explain_text(const Plan& plan) {
  std::ostringstream out;
  size_t tiled = 0;
  for (const Segment& segment : plan.segments) {
    tiled += segment.tiled() ? 1 : 0;
  }
  out << "Plan " << plan.id << ": nodes=" << plan.node_count << ", dropped=" << plan.dropped.size()
      << ", segments=" << plan.segments.size() << ", tiled=" << tiled
      << ", temporaries=" << bytes(plan.temporary_bytes) << '\n';
  for (size_t s = 0; s < plan.segments.size(); ++s) {
    const Segment& segment = plan.segments[s];
    out << "  " << s << ": " << segment.steps.size() << " ops, " << how(segment) << ", "
        << traffic(segment) << "\n      " << describe_steps(segment, 64) << '\n';
  }
  return out.str();
}

std::string explain_json(const Plan& plan) {
  std::ostringstream out;
  out << "{\"plan\": " << plan.id << ", \"nodes\": " << plan.node_count
      << ", \"dropped\": " << plan.dropped.size()
      << ", \"temporary_bytes\": " << plan.temporary_bytes << ", \"segments\": [";
  const char* comma = "";
  for (const Segment& segment : plan.segments) {
    out << comma << "{\"ops\": \"" << describe_steps(segment, SIZE_MAX)
        << "\", \"count\": " << segment.steps.size() << ", \"how\": \"" << how(segment)
        << "\", \"tiled\": " << (segment.tiled() ? "true" : "false")
        << ", \"tiles\": " << segment.tiles() << ", \"lanes\": " << segment.lanes
        << ", \"strips\": " << ops_in_strips(segment) << ", \"products\": " << products(segment)
        << ", \"packed\": " << segment.packed.size() << ", \"bytes_read\": " << segment.bytes_read
        << ", \"bytes_written\": " << segment.bytes_written
        << ", \"scratch_bytes\": " << segment.scratch_bytes << ", \"successors\": [";
    for (size_t i = 0; i < segment.successors.size(); ++i) {
      out << (i == 0 ? "" : ", ") << segment.successors[i];
    }
    out << "]}";
    comma = ", ";
  }
  out << "]}";
  return out.str();
}

std::string explain_dot(const Plan& plan) {
  std::ostringstream out;
  out << "digraph plan {\n  node [shape=box];\n";
  for (size_t s = 0; s < plan.segments.size(); ++s) {
    const Segment& segment = plan.segments[s];
    out << "  s" << s << " [label=\"" << s << ": " << describe_steps(segment, 8) << "\\n"
        << how(segment) << "\\n"
        << traffic(segment) << "\"" << (segment.tiled() ? ", style=bold" : "") << "];\n";
    for (const uint32_t successor : segment.successors) {
      out << "  s" << s << " -> s" << successor << ";\n";
    }
  }
  out << "}\n";
  return out.str();
}

}  // namespace tiledev
