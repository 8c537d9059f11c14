#pragma once

#include <vector>

#include "compile/fingerprint.h"
#include "compile/plan.h"

namespace tiledev {

// What the passes work on. Each pass fills in its part of the plan.
struct Compilation {
  const std::vector<Node>& nodes;
  const Fingerprint& print;
  std::vector<uint32_t> first_access;  // of each node, into print.accesses
  std::vector<uint8_t> live;           // by node
  Plan plan;
};

// Compiles a list of nodes. With `verify` the plan is checked after every pass.
PlanPtr compile(const std::vector<Node>& nodes, const Fingerprint& print, bool verify);

// The passes, in order; see pipeline.cpp for the list.
void find_dead_nodes(Compilation& c);
void find_dependences(Compilation& c);

}  // namespace tiledev
