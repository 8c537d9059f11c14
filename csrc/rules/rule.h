#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/signature.h"

namespace tiledev {

// How the parts of a reduction that was cut into tiles come together.
enum class Combine : uint8_t {
  kNone,
  kSum,
  kMean,
  kProd,
  kMax,
  kMin,
  kAny,
  kAll,
  kHypot,      // sqrt(a^2 + b^2)
  kLogAddExp,  // log(exp(a) + exp(b))
};

// What one letter of an item stands for.
struct RuleDim {
  enum class Kind : uint8_t {
    kAxis,        // a letter: one dimension
    kLeading,     // '*': all dimensions before the rest, each an axis of its own
    kNormalized,  // 'D': as many dimensions as the argument normalized_shape has; whole
    kTrailing,    // '.': all dimensions after the rest; whole
  };
  Kind kind = Kind::kAxis;
  char letter = 0;
};

// One tensor of a rule: its dimensions.
struct RuleItem {
  bool opaque = false;     // '_': read or written as a whole, whatever its shape
  bool broadcast = false;  // '~': aligned to the right, missing and unit dimensions allowed
  bool list = false;       // '[x]': a list of tensors that all look like x
  c10::SmallVector<RuleDim, 4> dims;
};

// What the dimensions that the argument `dim` names are.
enum class DimArg : uint8_t {
  kAbsent,     // there is no such argument, or it does not matter
  kWhole,      // never cut
  kReduced,    // gone from the results: may be cut if the rule combines
  kDropped,    // gone from the results, never cut
  kStacked,    // new in the results
  kIndexed,    // whole; in the results it is the axis i of another input
  kReduction,  // all are reduced, or none, as the argument `reduction` of a loss says
};

// What an argument of a call must be for the rule to hold.
struct RuleCondition {
  std::string arg;
  double value = 0;  // of a bool 0 or 1

  bool holds(const Signature& signature) const;
};

// How the axes of an op tile; parsed from a line of index notation (see table.cpp).
struct TileRule {
  std::vector<RuleItem> inputs;   // by tensor argument of the schema
  std::vector<RuleItem> outputs;  // by tensor return
  bool pointwise = false;         // every tensor is "~*"
  Combine combine = Combine::kNone;
  std::string uncut;       // letters that must stay whole
  std::string extent_arg;  // an argument that repeats the extent of ...
  char extent_letter = 0;  // ... this axis
  DimArg dim_arg = DimArg::kAbsent;
  std::vector<RuleCondition> conditions;  // all must hold
};

// Parses "mk,kn->mn; sum"; raises ValueError for text that is no rule. `what` names it in errors.
TileRule parse_rule(std::string_view text, std::string_view what);

// The rule of a call, or null if it must run whole.
const TileRule* rule_of(const Signature& signature);

// Whether calls of the op may have a rule. The answer is kept with the op.
bool has_rule(const OpTraits& op);

// Checks the table: every op exists and its rule fits its arity. Raises what is wrong.
void check_rules();

// Gives an op that is not in the table a rule; raises if it has one or if it does not fit.
void add_rule(const std::string& op, const std::string& text);

}  // namespace tiledev
