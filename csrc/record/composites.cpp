// Ops that PyTorch gives to every device but the CPU in a fused form. Here they are composed of the
// ops that the CPU uses in their place, so that they are recorded and give the CPU's numbers.

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/cross_entropy_loss_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nll_loss_nd.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <tuple>
#include <utility>
#include <vector>

#include "record/kernels.h"
#include "record/recorder.h"

namespace tiledev {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool given(const OptionalTensor& tensor) {
  return tensor.has_value() && tensor->defined();
}

Tensor add_bias(const Tensor& gates, const OptionalTensor& bias) {
  return given(bias) ? gates + *bias : gates;
}

// As F.dropout on the CPU: a noise tensor drawn in the layout of the input.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p,
                                          std::optional<bool> train) {
  if (input.numel() == 0 || !train.value_or(true)) {
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  const double kept = 1.0 - p;
  Tensor noise = at::empty_like(input).bernoulli_(kept);
  Tensor mask = noise.to(at::kBool);
  if (kept > 0.0) {
    noise.div_(kept);
  }
  return {input * noise, mask};
}

// LSTM cell: i, f, o = sigmoid, g = tanh of the gates; c' = f c + i g; h' = o tanh(c').
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const OptionalTensor& input_bias,
                                             const OptionalTensor& hidden_bias) {
  const Tensor gates = add_bias(hidden_gates, hidden_bias) + add_bias(input_gates, input_bias);
  const auto parts = gates.chunk(4, 1);
  const Tensor in = at::sigmoid(parts[0]);
  const Tensor forget = at::sigmoid(parts[1]);
  const Tensor cell = at::tanh(parts[2]);
  const Tensor out = at::sigmoid(parts[3]);
  const Tensor cy = (forget * cx).add_(in * cell);
  const Tensor hy = out * cy.tanh();
  return {hy, cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy,
                                                      const OptionalTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  if (!given(grad_hy) && !given(grad_cy)) {
    return {};
  }
  const auto parts = workspace.chunk(4, 1);
  const Tensor &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  const Tensor gcx = cy.tanh();
  const Tensor gh = given(grad_hy) ? *grad_hy : at::zeros_like(cy);
  Tensor gc = gh * out * (1 - gcx * gcx);
  if (given(grad_cy)) {
    gc = gc + *grad_cy;
  }
  const Tensor grad_gates = at::cat({gc * cell * (1 - in) * in, gc * cx * (1 - forget) * forget,
                                     gc * in * (1 - cell * cell), gh * gcx * (1 - out) * out},
                                    1);
  return {grad_gates, gc * forget, has_bias ? grad_gates.sum(0) : Tensor()};
}

// GRU cell: r, z = sigmoid, n = tanh(in + r hn); h' = n + z (h - n).
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const OptionalTensor& input_bias,
                                    const OptionalTensor& hidden_bias) {
  const auto in = add_bias(input_gates, input_bias).chunk(3, 1);
  const auto hidden = add_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = at::sigmoid(hidden[0] + in[0]);
  const Tensor update = at::sigmoid(hidden[1] + in[1]);
  const Tensor fresh = at::tanh(in[2] + hidden[2] * reset);
  const Tensor hy = (hx - fresh).mul_(update).add_(fresh);
  return {hy, at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  const auto parts = workspace.chunk(5, 1);
  const Tensor &reset = parts[0], &update = parts[1], &fresh = parts[2], &hx = parts[3],
               &hidden = parts[4];
  const Tensor grad_update = grad_hy * (hx - fresh) * (1 - update) * update;
  const Tensor grad_in = grad_hy * (1 - update) * (1 - fresh * fresh);
  const Tensor grad_hidden = grad_in * reset;
  const Tensor grad_reset = grad_in * hidden * (1 - reset) * reset;
  const Tensor input_gates = at::cat({grad_reset, grad_update, grad_in}, 1);
  const Tensor hidden_gates = at::cat({grad_reset, grad_update, grad_hidden}, 1);
  return {input_gates, hidden_gates, grad_hy * update, has_bias ? input_gates.sum(0) : Tensor(),
          has_bias ? hidden_gates.sum(0) : Tensor()};
}

int64_t fused_sdp_choice(const Tensor& query, const Tensor& key, const Tensor& value,
                         const OptionalTensor& mask, double dropout_p, bool is_causal,
                         std::optional<double> scale, bool enable_gqa) {
  return at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout_p, is_causal, scale,
                                           enable_gqa);
}

// What _convolution calls on devices that PyTorch does not know.
Tensor convolution(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                   at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                   bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  return at::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                         groups);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  return at::convolution_backward(grad, input, weight, at::IntArrayRef{channels}, stride, padding,
                                  dilation, transposed, output_padding, groups, mask);
}

// Products in another dtype than that of the factors.
Tensor mm_dtype(const Tensor& self, const Tensor& other, at::ScalarType dtype) {
  return at::mm(self.to(dtype), other.to(dtype));
}

Tensor bmm_dtype(const Tensor& self, const Tensor& other, at::ScalarType dtype) {
  return at::bmm(self.to(dtype), other.to(dtype));
}

Tensor addmm_dtype(const Tensor& self, const Tensor& a, const Tensor& b, at::ScalarType dtype,
                   const at::Scalar& beta, const at::Scalar& alpha) {
  return at::addmm(self.to(dtype), a.to(dtype), b.to(dtype), beta, alpha);
}

Tensor baddbmm_dtype(const Tensor& self, const Tensor& a, const Tensor& b, at::ScalarType dtype,
                     const at::Scalar& beta, const at::Scalar& alpha) {
  return at::baddbmm(self.to(dtype), a.to(dtype), b.to(dtype), beta, alpha);
}

// Counts of integers, as CUDA has them; the CPU counts floating-point numbers only.
Tensor histc(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  static OpState& state = state_of("aten::histc", "");
  if (!at::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
    return record_op(state, self, bins, min, max).back().toTensor();
  }
  return at::histc(self.to(at::kDouble), bins, min, max).to(self.scalar_type());
}

// F.cross_entropy with labels, weights and smoothing: the weights of the labels that count are
// masked here, where the CPU selects them, since a selection's size depends on values.
Tensor smooth_weighted_loss(const Tensor& self, const Tensor& target, const Tensor& weight,
                            int64_t ignore_index, double smoothing) {
  const int64_t dim = self.dim() == 1 ? 0 : 1;
  const Tensor input = at::log_softmax(self, dim, self.scalar_type());
  const Tensor nll = at::nll_loss_nd(input, target, weight, at::Reduction::Mean, ignore_index);
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[static_cast<size_t>(dim)] = weight.size(0);
  const Tensor ignored = target == ignore_index;
  const Tensor smooth = -(input * weight.view(shape)).sum(dim).masked_fill(ignored, 0);
  const Tensor weights =
      weight.gather(0, target.masked_fill(ignored, 0).flatten()).masked_fill(ignored.flatten(), 0);
  return (1 - smoothing) * nll +
         smooth.sum() / weights.sum() * (smoothing / static_cast<double>(input.size(dim)));
}

Tensor cross_entropy_loss(const Tensor& self, const Tensor& target, const OptionalTensor& weight,
                          int64_t reduction, c10::SymInt ignore_index, double label_smoothing) {
  if (given(weight) && label_smoothing > 0 && label_smoothing <= 1 &&
      reduction == at::Reduction::Mean && self.sizes() != target.sizes()) {
    return smooth_weighted_loss(self, target, *weight, ignore_index.expect_int(), label_smoothing);
  }
  return at::native::cross_entropy_loss_symint(self, target, weight, reduction,
                                               std::move(ignore_index), label_smoothing);
}

}  // namespace

void register_composites(torch::Library& m) {
  m.impl("native_dropout", &native_dropout);
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
  m.impl("_fused_sdp_choice", &fused_sdp_choice);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("mm.dtype", &mm_dtype);
  m.impl("bmm.dtype", &bmm_dtype);
  m.impl("addmm.dtype", &addmm_dtype);
  m.impl("baddbmm.dtype", &baddbmm_dtype);
  m.impl("histc", &histc);
  m.impl("cross_entropy_loss", &cross_entropy_loss);
}

// Made of differentiable ops; a kernel for the device alone would hide PyTorch's formula.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("cross_entropy_loss", &cross_entropy_loss);
}

}  // namespace tiledev

namespace at::native {

// F.scaled_dot_product_attention asks here which form to take: the one that the CPU would take.
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &tiledev::fused_sdp_choice)

}  // namespace at::native
