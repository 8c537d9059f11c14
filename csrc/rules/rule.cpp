#include "rules/rule.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>

namespace tiledev {

namespace {

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') {
    text.remove_prefix(1);
  }
  while (!text.empty() && text.back() == ' ') {
    text.remove_suffix(1);
  }
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(trim(text.substr(0, at)));
    if (at == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(at + 1);
  }
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view what) : text_(text), what_(what) {}

  TileRule run() {
    const auto clauses = split(text_, ';');
    if (clauses[0] == "pointwise") {
      rule_.pointwise = true;
    } else {
      parse_items(clauses[0]);
    }
    for (size_t i = 1; i < clauses.size(); ++i) {
      parse_clause(clauses[i]);
    }
    return std::move(rule_);
  }

 private:
  [[noreturn]] void fail(std::string_view why) const {
    TORCH_CHECK_VALUE(false, "[tile_rule] the rule of ", what_, ", \"", text_, "\", ", why,
                      "; write e.g. \"mk,kn->mn; sum\"");
  }

  void parse_items(std::string_view text) {
    const size_t arrow = text.find("->");
    if (arrow == std::string_view::npos) {
      fail("has no arrow");
    }
    for (const auto part : split(text.substr(0, arrow), ',')) {
      rule_.inputs.push_back(parse_item(part));
    }
    for (const auto part : split(text.substr(arrow + 2), ',')) {
      rule_.outputs.push_back(parse_item(part));
    }
  }

  RuleItem parse_item(std::string_view text) {
    RuleItem item;
    if (!text.empty() && text.front() == '[' && text.back() == ']') {
      item.list = true;
      text = text.substr(1, text.size() - 2);
    }
    if (text == "_") {
      item.opaque = true;
      return item;
    }
    if (!text.empty() && text.front() == '~') {
      item.broadcast = true;
      text.remove_prefix(1);
    }
    for (const char c : text) {
      item.dims.push_back(parse_dim(c));
    }
    for (size_t i = 0; i < item.dims.size(); ++i) {
      const auto kind = item.dims[i].kind;
      if ((kind == RuleDim::Kind::kLeading && i != 0) ||
          (kind == RuleDim::Kind::kTrailing && i + 1 != item.dims.size())) {
        fail("has '*' or '.' in the middle of an item");
      }
    }
    return item;
  }

  RuleDim parse_dim(char c) {
    switch (c) {
      case '*':
        return {RuleDim::Kind::kLeading, '*'};
      case '.':
        return {RuleDim::Kind::kTrailing, '.'};
      case 'D':
        return {RuleDim::Kind::kNormalized, 'D'};
      default:
        if (c < 'a' || c > 'z') {
          fail(std::string("has an unknown sign '") + c + "'");
        }
        return {RuleDim::Kind::kAxis, c};
    }
  }

  void parse_clause(std::string_view text) {
    static constexpr std::pair<std::string_view, Combine> kCombines[] = {
        {"sum", Combine::kSum}, {"mean", Combine::kMean},   {"prod", Combine::kProd},
        {"max", Combine::kMax}, {"min", Combine::kMin},     {"any", Combine::kAny},
        {"all", Combine::kAll}, {"hypot", Combine::kHypot}, {"logaddexp", Combine::kLogAddExp},
    };
    static constexpr std::pair<std::string_view, DimArg> kDimArgs[] = {
        {"dim whole", DimArg::kWhole},     {"dim reduced", DimArg::kReduced},
        {"dim dropped", DimArg::kDropped}, {"dim stacked", DimArg::kStacked},
        {"dim indexed", DimArg::kIndexed}, {"loss", DimArg::kReduction},
    };
    for (const auto& [name, combine] : kCombines) {
      if (text == name) {
        rule_.combine = combine;
        return;
      }
    }
    for (const auto& [name, dim_arg] : kDimArgs) {
      if (text == name) {
        rule_.dim_arg = dim_arg;
        return;
      }
    }
    const auto words = split(text, ' ');
    if (words.size() == 2 && words[0] == "if") {
      rule_.conditions.push_back(parse_condition(words[1]));
    } else if (words.size() == 2 && words[0] == "whole") {
      rule_.uncut = std::string(words[1]);
    } else if (words.size() == 3 && words[0] == "extent" && words[2].size() == 1) {
      rule_.extent_arg = std::string(words[1]);
      rule_.extent_letter = words[2][0];
    } else {
      fail("has a clause that nobody knows");
    }
  }

  // "groups=1", "train=False"
  RuleCondition parse_condition(std::string_view text) const {
    const auto sides = split(text, '=');
    if (sides.size() != 2 || sides[0].empty() || sides[1].empty()) {
      fail("has a condition that is none");
    }
    const std::string value(sides[1]);
    if (value == "True" || value == "False") {
      return {std::string(sides[0]), value == "True" ? 1 : 0};
    }
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    if (*end != 0) {
      fail("has a condition on something else than a number or a bool");
    }
    return {std::string(sides[0]), number};
  }

  std::string_view text_, what_;
  TileRule rule_;
};

}  // namespace

bool RuleCondition::holds(const Signature& signature) const {
  const auto index = signature.op->op.schema().argumentIndexWithName(arg);
  if (!index || signature.args[*index].kind != ArgKind::kConstant) {
    return false;
  }
  const c10::IValue& given = signature.args[*index].constant;
  return (given.isBool() && given.toBool() == (value != 0)) ||
         (given.isInt() && static_cast<double>(given.toInt()) == value) ||
         (given.isDouble() && given.toDouble() == value);
}

TileRule parse_rule(std::string_view text, std::string_view what) {
  return Parser(text, what).run();
}

}  // namespace tiledev
