// The pieces of nn.SyncBatchNorm, which the CPU does not have: statistics of one process, their
// combination over processes, and the elementwise parts. Channels are dimension 1.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/var_mean.h>

#include <tuple>
#include <vector>

#include "record/kernels.h"

namespace tiledev {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

std::vector<int64_t> all_but_channels(const Tensor& input) {
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < input.dim(); ++d) {
    dims.push_back(d);
  }
  return dims;
}

// [C] -> [1, C, 1, ...], to meet `input` elementwise.
Tensor by_channel(const Tensor& values, const Tensor& input) {
  std::vector<int64_t> shape(input.dim(), 1);
  shape[1] = -1;
  return values.reshape(shape);
}

at::ScalarType statistics_dtype(const Tensor& input) {
  const auto dtype = input.scalar_type();
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

std::tuple<Tensor, Tensor> stats(const Tensor& input, double eps) {
  const Tensor x = input.to(statistics_dtype(input));
  const auto [var, mean] = at::var_mean(x, all_but_channels(input), /*unbiased=*/false);
  return {mean, at::rsqrt(var + eps)};
}

Tensor elemt(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
             const Tensor& mean, const Tensor& invstd, double) {
  Tensor result =
      (input.to(mean.scalar_type()) - by_channel(mean, input)) * by_channel(invstd, input);
  if (weight && weight->defined()) {
    result = result * by_channel(*weight, input);
  }
  if (bias && bias->defined()) {
    result = result + by_channel(*bias, input);
  }
  return result.to(input.scalar_type());
}

// Chan's formula for the variance of a union of samples.
std::tuple<Tensor, Tensor> gather_stats_with_counts(
    const Tensor&, const Tensor& mean, const Tensor& invstd, const OptionalTensor& running_mean,
    const OptionalTensor& running_var, double momentum, double eps, const Tensor& counts) {
  const Tensor n = counts.to(mean.scalar_type()).reshape({-1, 1});
  const Tensor total = n.sum();
  const Tensor all_mean = (mean * n).sum(0) / total;
  const Tensor var = invstd.pow(-2) - eps;
  const Tensor all_var = ((var + (mean - all_mean).square()) * n).sum(0) / total;
  if (running_mean && running_mean->defined()) {
    running_mean->mul_(1 - momentum).add_(all_mean * momentum);
  }
  if (running_var && running_var->defined()) {
    running_var->mul_(1 - momentum).add_(all_var * (total / (total - 1)) * momentum);
  }
  return {all_mean, at::rsqrt(all_var + eps)};
}

std::tuple<Tensor, Tensor> gather_stats(const Tensor& input, const Tensor& mean,
                                        const Tensor& invstd, const OptionalTensor& running_mean,
                                        const OptionalTensor& running_var, double momentum,
                                        double eps, int64_t count) {
  const Tensor counts = at::ones_like(mean.select(1, 0)) * count;
  return gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps,
                                  counts);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_reduce(const Tensor& grad, const Tensor& input,
                                                           const Tensor& mean, const Tensor& invstd,
                                                           const OptionalTensor&, bool input_grad,
                                                           bool weight_grad, bool bias_grad) {
  const auto dims = all_but_channels(input);
  const Tensor dy = grad.to(mean.scalar_type());
  const Tensor centred = input.to(mean.scalar_type()) - by_channel(mean, input);
  const Tensor sum_dy = dy.sum(dims);
  const Tensor sum_dy_xmu = (dy * centred).sum(dims);
  return {input_grad ? sum_dy : Tensor(), input_grad ? sum_dy_xmu : Tensor(),
          weight_grad ? sum_dy_xmu * invstd : Tensor(), bias_grad ? sum_dy : Tensor()};
}

Tensor backward_elemt(const Tensor& grad, const Tensor& input, const Tensor& mean,
                      const Tensor& invstd, const OptionalTensor& weight, const Tensor& sum_dy,
                      const Tensor& sum_dy_xmu, const Tensor& count) {
  const Tensor total = count.to(mean.scalar_type()).sum();
  const Tensor centred = input.to(mean.scalar_type()) - by_channel(mean, input);
  const Tensor slope = invstd.square() * sum_dy_xmu / total;
  Tensor result = grad.to(mean.scalar_type()) - by_channel(sum_dy / total, input) -
                  centred * by_channel(slope, input);
  result = result * by_channel(invstd, input);
  if (weight && weight->defined()) {
    result = result * by_channel(*weight, input);
  }
  return result.to(input.scalar_type());
}

}  // namespace

void register_sync_batch_norm(torch::Library& m) {
  m.impl("batch_norm_stats", &stats);
  m.impl("batch_norm_elemt", &elemt);
  m.impl("batch_norm_gather_stats", &gather_stats);
  m.impl("batch_norm_gather_stats_with_counts", &gather_stats_with_counts);
  m.impl("batch_norm_backward_reduce", &backward_reduce);
  m.impl("batch_norm_backward_elemt", &backward_elemt);
}

}  // namespace tiledev
