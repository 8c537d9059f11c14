#pragma once

#include <string>
#include <vector>

#include "compile/plan.h"

namespace tiledev {

// "mm, relu x2, mm": what a segment runs, at most so many names.
std::string describe_steps(const Segment& segment, size_t most);

// What a plan does, for people: a line for each segment and what it runs.
std::string explain_text(const Plan& plan);

// The same as JSON: {"plan", "nodes", "dropped", "segments": [{"ops", "how", "tiles", ...}]}.
std::string explain_json(const Plan& plan);

// The same as a graph in Graphviz's language: segments, and what each waits for.
std::string explain_dot(const Plan& plan);

}  // namespace tiledev
