// tanh and the GELU that is approximated with it. ATen computes both with Sleef's tanh, which takes
// 3.2 ns an element with AVX2 on one core, where exp takes 1.0; these take 0.4 to 0.5.

#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/tanh.h>
#include <torch/library.h>

#include "kernels/layout.h"
#include "kernels/simd.h"

namespace tiledev {

namespace {

using simd::F;

template <int W>
TILEDEV_INLINE void tanh_loop(const float* x, float* y, int64_t n) {
  simd::map<W>(x, y, n, [](F<W> v) TILEDEV_LAMBDA { return simd::tanh<W>(v); });
}

// gelu(x) = x (1 + tanh u) / 2 = x s with u = sqrt(2 / pi) (x + 0.044715 x^3) and
// s = 1 / (1 + exp(-2 u)); Hendrycks and Gimpel, arXiv:1606.08415.
constexpr float kTwoBeta = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float kKappa = 0.044715f;

template <int W>
TILEDEV_INLINE F<W> gelu_gate(F<W> x) {
  const F<W> v = kTwoBeta * x * (1.f + kKappa * (x * x));
  // Beyond this tanh is -1 in float, and the CPU's result is zero (NaN for -inf).
  const F<W> s = 1.f / (1.f + simd::exp<W>(simd::at_most<W>(simd::at_least<W>(-v, -80.f), 80.f)));
  return v < -80.f ? simd::all<W>(0.f) : s;
}

template <int W>
TILEDEV_INLINE void gelu_loop(const float* x, float* y, int64_t n) {
  simd::map<W>(x, y, n, [](F<W> v) TILEDEV_LAMBDA { return v * gelu_gate<W>(v); });
}

// d gelu / dx = s + x s' with s' = s (1 - s) d(2 u) / dx.
template <int W>
TILEDEV_INLINE void gelu_backward_loop(const float* grad, const float* x, float* y, int64_t n) {
  simd::map<W>(grad, x, y, n, [](F<W> g, F<W> v) TILEDEV_LAMBDA {
    const F<W> s = gelu_gate<W>(v);
    const F<W> slope = kTwoBeta * (1.f + 3.f * kKappa * (v * v));
    return g * (s + v * (s * (1.f - s)) * slope);
  });
}

TILEDEV_FOR_EACH_CPU(tanh, (const float* x, float* y, int64_t n), (x, y, n))
TILEDEV_FOR_EACH_CPU(gelu, (const float* x, float* y, int64_t n), (x, y, n))
TILEDEV_FOR_EACH_CPU(gelu_backward, (const float* grad, const float* x, float* y, int64_t n),
                     (grad, x, y, n))

bool floats_together(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kFloat && walk_together(a, b);
}

at::Tensor& tanh_out(const at::Tensor& self, at::Tensor& out) {
  if (!floats_together(self, out)) {
    return at::tanh_out(out, self);
  }
  tanh(self.const_data_ptr<float>(), out.mutable_data_ptr<float>(), self.numel());
  return out;
}

at::Tensor& gelu_out(const at::Tensor& self, c10::string_view approximate, at::Tensor& out) {
  if (approximate != "tanh" || !floats_together(self, out)) {
    return at::gelu_out(out, self, approximate);
  }
  gelu(self.const_data_ptr<float>(), out.mutable_data_ptr<float>(), self.numel());
  return out;
}

at::Tensor& gelu_backward_out(const at::Tensor& grad_output, const at::Tensor& self,
                              c10::string_view approximate, at::Tensor& grad_input) {
  if (approximate != "tanh" || !floats_together(self, grad_input) ||
      !floats_together(grad_output, self)) {
    return at::gelu_backward_out(grad_input, grad_output, self, approximate);
  }
  gelu_backward(grad_output.const_data_ptr<float>(), self.const_data_ptr<float>(),
                grad_input.mutable_data_ptr<float>(), self.numel());
  return grad_input;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tiledev, library) {
  library.def("tanh.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)");
  library.def("gelu.out(Tensor self, *, str approximate='none', Tensor(a!) out) -> Tensor(a!)");
  library.def(
      "gelu_backward.grad_input(Tensor grad_output, Tensor self, *, str approximate='none', "
      "Tensor(a!) grad_input) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(tiledev, CPU, library) {
  library.impl("tanh.out", tanh_out);
  library.impl("gelu.out", gelu_out);
  library.impl("gelu_backward.grad_input", gelu_backward_out);
}

}  // namespace tiledev
