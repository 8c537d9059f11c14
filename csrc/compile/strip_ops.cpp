#include "compile/strip_ops.h"

namespace tiledev {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool is_simple_exponent(float e) {
  return e == 1.f || e == 2.f || e == 3.f || e == -1.f || e == -2.f;
}

constexpr StripOp kStripOps[] = {
    {"abs", {"self"}},
    {"add", {"self", "other", "alpha"}},
    {"addcdiv", {"self", "tensor1", "tensor2", "value"}},
    {"addcmul", {"self", "tensor1", "tensor2", "value"}},
    {.name = "clamp",
     .inputs = {"self", "min", "max"},
     .missing = {StripOp::kRequired, -kInfinity, kInfinity}},
    {"clamp_max", {"self", "max"}},
    {"clamp_min", {"self", "min"}},
    {"copy", {"src"}, "non_blocking"},
    {"div", {"self", "other"}},
    {"exp", {"self"}},
    {"gelu", {"self"}, "approximate", "tanh"},
    {"gelu_backward", {"grad_output", "self"}, "approximate", "tanh"},
    {"hardtanh", {"self", "min_val", "max_val"}},
    {"leaky_relu", {"self", "negative_slope"}},
    {"lerp", {"self", "end", "weight"}},
    {"maximum", {"self", "other"}},
    {"minimum", {"self", "other"}},
    {"mul", {"self", "other"}},
    {"neg", {"self"}},
    {.name = "pow", .inputs = {"self", "exponent"}, .accepts = is_simple_exponent},
    {"reciprocal", {"self"}},
    {"relu", {"self"}},
    {"rsqrt", {"self"}},
    {"rsub", {"self", "other", "alpha"}},
    {"sigmoid", {"self"}},
    {"sigmoid_backward", {"grad_output", "output"}},
    {"silu", {"self"}},
    {"silu_backward", {"grad_output", "self"}},
    {"sqrt", {"self"}},
    {"square", {"self"}},
    {"sub", {"self", "other", "alpha"}},
    {"tanh", {"self"}},
    {"tanh_backward", {"grad_output", "output"}},
    {"threshold", {"self", "threshold", "value"}},
    {"threshold_backward", {"grad_output", "self", "threshold"}},
};

}  // namespace

const StripOp* find_strip_op(std::string_view name) {
  for (const StripOp& op : kStripOps) {
    if (op.name == name) {
      return &op;
    }
  }
  return nullptr;
}

std::vector<std::string> strip_op_names() {
  std::vector<std::string> names;
  for (const StripOp& op : kStripOps) {
    names.emplace_back(op.name);
  }
  return names;
}

}  // namespace tiledev
