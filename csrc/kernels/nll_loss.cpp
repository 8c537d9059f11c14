// The total weight of a negative log likelihood loss, by which its mean divides: the number of the
// targets that are not ignored, or the sum of their classes' weights. It needs no tile of the
// input.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>

namespace tiledev {

namespace {

// Targets beyond the classes are the loss's own error.
at::Tensor& nll_total_weight_out(const at::Tensor& target, const std::optional<at::Tensor>& weight,
                                 int64_t ignore_index, at::Tensor& out) {
  const at::Tensor targets = target.to(at::kLong).contiguous();
  const auto* const classes = targets.const_data_ptr<int64_t>();
  const int64_t n = targets.numel();
  double total = 0;
  if (weight && weight->defined()) {
    const at::Tensor weights = weight->to(at::kDouble).contiguous();
    const auto* const w = weights.const_data_ptr<double>();
    for (int64_t i = 0; i < n; ++i) {
      const int64_t c = classes[i];
      total += c != ignore_index && c >= 0 && c < weights.numel() ? w[c] : 0;
    }
  } else {
    int64_t counted = 0;
    for (int64_t i = 0; i < n; ++i) {
      counted += classes[i] != ignore_index ? 1 : 0;
    }
    total = static_cast<double>(counted);
  }
  return out.fill_(total);
}

at::Tensor nll_total_weight(const at::Tensor& target, const std::optional<at::Tensor>& weight,
                            int64_t ignore_index) {
  at::Tensor out = at::empty({}, target.options().dtype(at::kFloat));
  return nll_total_weight_out(target, weight, ignore_index, out);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tiledev, library) {
  library.def("nll_total_weight(Tensor target, Tensor? weight, int ignore_index) -> Tensor");
  library.def(
      "nll_total_weight.out(Tensor target, Tensor? weight, int ignore_index, *, Tensor(a!) out) -> "
      "Tensor(a!)");
}

TORCH_LIBRARY_IMPL(tiledev, CPU, library) {
  library.impl("nll_total_weight", nll_total_weight);
  library.impl("nll_total_weight.out", nll_total_weight_out);
}

}  // namespace tiledev
