#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/axis_groups.h"
#include "compile/fingerprint.h"
#include "compile/options.h"
#include "compile/plan.h"

namespace tiledev {

// What the passes work on. Each pass fills in its part of the plan.
struct Compilation {
  const std::vector<Node>& nodes;
  const Fingerprint& print;
  const CompileOptions& options;
  std::vector<uint32_t> first_access;  // of each node, into print.accesses
  std::vector<uint8_t> live;           // by node
  std::vector<Step> steps;             // the live nodes, taken apart, in program order
  std::vector<AxisGroup> groups;       // if names are in use
  uint32_t internal_buffers = 0;       // temporaries that no node knows; numbered after the others
  Plan plan;
};

// The groups of the nodes as they stand, but for those whose results nobody can see any more.
std::vector<AxisGroup> pending_axis_groups(const std::vector<Node>& nodes);

// Compiles a list of nodes. With `options.verify` the plan is checked after every pass.
PlanPtr compile(const std::vector<Node>& nodes, const Fingerprint& print,
                const CompileOptions& options);

// The passes, in order; see pipeline.cpp for the list.
void find_dead_nodes(Compilation& c);
void lower_nodes(Compilation& c);
void name_axes(Compilation& c);
void form_segments(Compilation& c);
void choose_tiles(Compilation& c);
void find_temporaries(Compilation& c);
void find_products(Compilation& c);
void form_strips(Compilation& c);
void place_scratch(Compilation& c);
void find_dependences(Compilation& c);

}  // namespace tiledev
