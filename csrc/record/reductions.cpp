// Reductions of all elements of a large tensor, composed of ops that can be cut into tiles.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "record/kernels.h"
#include "record/recorder.h"

namespace tiledev {

namespace {

using at::Tensor;
using Correction = std::optional<at::Scalar>;

// Worth to be taken apart, so that the parts can be cut into tiles.
bool large(const Tensor& self) {
  constexpr int64_t kLarge = 32768;
  return self.numel() >= kLarge &&
         (self.scalar_type() == at::kFloat || self.scalar_type() == at::kDouble);
}

bool all_dims(const Tensor& self, at::OptionalIntArrayRef dim) {
  if (!dim.has_value() || dim->empty()) {
    return true;
  }
  std::vector<bool> named(static_cast<size_t>(self.dim()));
  for (const int64_t d : *dim) {
    const int64_t wrapped = d < 0 ? d + self.dim() : d;
    if (wrapped < 0 || wrapped >= self.dim() || named[static_cast<size_t>(wrapped)]) {
      return false;  // an error, which the op itself raises
    }
    named[static_cast<size_t>(wrapped)] = true;
  }
  return std::find(named.begin(), named.end(), false) == named.end();
}

double degrees_of_freedom(const Tensor& self, const Correction& correction) {
  return static_cast<double>(self.numel()) - (correction ? correction->toDouble() : 1.0);
}

// ATen warns where no degree of freedom is left.
bool composed(const Tensor& self, at::OptionalIntArrayRef dim, const Correction& correction) {
  return large(self) && all_dims(self, dim) && degrees_of_freedom(self, correction) > 0;
}

// Mean, and sum of squared deviations over n - correction.
std::pair<Tensor, Tensor> moments(const Tensor& self, const Correction& correction, bool keepdim) {
  std::vector<int64_t> dims(static_cast<size_t>(self.dim()));
  std::iota(dims.begin(), dims.end(), 0);
  const Tensor mean = self.mean(dims, keepdim);
  const Tensor deviation = self - mean;
  Tensor variance =
      (deviation * deviation).sum(dims, keepdim).div_(degrees_of_freedom(self, correction));
  return {std::move(variance), mean};
}

// The variance, or its root.
Tensor spread(OpState& state, bool root, const Tensor& self, at::OptionalIntArrayRef dim,
              const Correction& correction, bool keepdim) {
  if (!composed(self, dim, correction)) {
    return record_op(state, self, dim, correction, keepdim).back().toTensor();
  }
  Tensor variance = moments(self, correction, keepdim).first;
  return root ? variance.sqrt_() : variance;
}

std::tuple<Tensor, Tensor> spread_and_mean(OpState& state, bool root, const Tensor& self,
                                           at::OptionalIntArrayRef dim,
                                           const Correction& correction, bool keepdim) {
  if (!composed(self, dim, correction)) {
    const auto results = record_op(state, self, dim, correction, keepdim);
    return {results[0].toTensor(), results[1].toTensor()};
  }
  auto [variance, mean] = moments(self, correction, keepdim);
  return {root ? variance.sqrt_() : variance, mean};
}

Tensor var(const Tensor& self, at::OptionalIntArrayRef dim, const Correction& correction,
           bool keepdim) {
  static OpState& state = state_of("aten::var", "correction");
  return spread(state, /*root=*/false, self, dim, correction, keepdim);
}

Tensor std_deviation(const Tensor& self, at::OptionalIntArrayRef dim, const Correction& correction,
                     bool keepdim) {
  static OpState& state = state_of("aten::std", "correction");
  return spread(state, /*root=*/true, self, dim, correction, keepdim);
}

std::tuple<Tensor, Tensor> var_mean(const Tensor& self, at::OptionalIntArrayRef dim,
                                    const Correction& correction, bool keepdim) {
  static OpState& state = state_of("aten::var_mean", "correction");
  return spread_and_mean(state, /*root=*/false, self, dim, correction, keepdim);
}

std::tuple<Tensor, Tensor> std_mean(const Tensor& self, at::OptionalIntArrayRef dim,
                                    const Correction& correction, bool keepdim) {
  static OpState& state = state_of("aten::std_mean", "correction");
  return spread_and_mean(state, /*root=*/true, self, dim, correction, keepdim);
}

// How many rows of equal length to make of n elements: 0 if there are no good ones.
int64_t rows_of(int64_t n) {
  constexpr int64_t kFewest = 64, kMost = 1024;
  for (int64_t rows = kFewest; rows <= kMost; ++rows) {
    if (n % rows == 0) {
      return rows;
    }
  }
  return 0;
}

// The index of the first largest or smallest element, by way of those of rows.
template <typename ByRow, typename OfRows>
Tensor arg_extreme(OpState& state, const Tensor& self, std::optional<int64_t> dim, bool keepdim,
                   ByRow&& by_row, OfRows&& of_rows) {
  const int64_t rows = large(self) && !dim && self.is_contiguous() ? rows_of(self.numel()) : 0;
  if (rows == 0) {
    return record_op(state, self, dim, keepdim).back().toTensor();
  }
  const int64_t columns = self.numel() / rows;
  const auto [values, indices] = by_row(self.reshape({rows, columns}));
  const Tensor row = of_rows(values).view({1});
  const Tensor index = indices.index_select(0, row) + row * columns;
  return index.view(keepdim ? std::vector<int64_t>(static_cast<size_t>(self.dim()), 1)
                            : std::vector<int64_t>());
}

Tensor argmax(const Tensor& self, std::optional<int64_t> dim, bool keepdim) {
  static OpState& state = state_of("aten::argmax", "");
  return arg_extreme(
      state, self, dim, keepdim, [](const Tensor& t) { return t.max(1); },
      [](const Tensor& t) { return t.argmax(); });
}

Tensor argmin(const Tensor& self, std::optional<int64_t> dim, bool keepdim) {
  static OpState& state = state_of("aten::argmin", "");
  return arg_extreme(
      state, self, dim, keepdim, [](const Tensor& t) { return t.min(1); },
      [](const Tensor& t) { return t.argmin(); });
}

}  // namespace

void register_reductions(torch::Library& m) {
  m.impl("argmax", &argmax);
  m.impl("argmin", &argmin);
  m.impl("var.correction", &var);
  m.impl("std.correction", &std_deviation);
  m.impl("var_mean.correction", &var_mean);
  m.impl("std_mean.correction", &std_mean);
}

}  // namespace tiledev
