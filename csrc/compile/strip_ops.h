#pragma once

#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace tiledev {

// An elementwise op on float32 for which an executor has a kernel that works strip by strip.
struct StripOp {
  static constexpr float kRequired = std::numeric_limits<float>::quiet_NaN();

  std::string_view name;                       // without overload; "mul" also stands for "mul_"
  std::array<std::string_view, 4> inputs;      // arguments: tensors, or numbers for all elements
  std::string_view argument = {}, value = {};  // one more, and what it must be (empty: anything)
  std::array<float, 4> missing = {kRequired, kRequired, kRequired, kRequired};  // None means this
  bool (*accepts)(float last) = nullptr;  // of the last input, if it must be a constant
};

// The op of this name, or null. An overload with other arguments is none.
const StripOp* find_strip_op(std::string_view name);
std::vector<std::string> strip_op_names();

}  // namespace tiledev
