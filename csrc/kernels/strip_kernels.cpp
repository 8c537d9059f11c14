// Elementwise ops on strips of float32. Those of one or two roundings (+ - * / sqrt, comparisons)
// have the bits of ATen's kernels; exp, tanh and what builds on them are within about 2 ulp of the
// exact value, as ATen's are. ATen takes Sleef's tanh, 3.2 ns an element with AVX2 on one core;
// this one takes 0.5.

#include "kernels/strip_kernels.h"

#include <string_view>

#include "kernels/simd.h"

namespace tiledev {

namespace {

using simd::F;

// ---- functions ---------------------------------------------------------------------------------

// A NaN on either side is the result.
template <int W>
TILEDEV_INLINE F<W> maximum(F<W> x, F<W> y) {
  return x != x ? x : (x > y ? x : y);
}
template <int W>
TILEDEV_INLINE F<W> minimum(F<W> x, F<W> y) {
  return x != x ? x : (x < y ? x : y);
}

// 1 / (1 + exp(-x)), and zero below -last. By default that is where exp(-x) overflows in float.
template <int W>
TILEDEV_INLINE F<W> sigmoid(F<W> x, float last = 88.f) {
  const F<W> s = 1.f / (1.f + simd::exp<W>(simd::at_most<W>(simd::at_least<W>(-x, -last), last)));
  return x < -last ? simd::all<W>(0.f) : s;
}

template <int W>
TILEDEV_INLINE F<W> silu_backward(F<W> grad, F<W> x) {
  const F<W> s = sigmoid<W>(x);
  return grad * s * (1.f + x * (1.f - s));
}

// gelu(x) = x (1 + tanh u) / 2 = x s with u = sqrt(2 / pi) (x + 0.044715 x^3) and
// s = 1 / (1 + exp(-2 u)); Hendrycks and Gimpel, arXiv:1606.08415.
constexpr float kTwoBeta = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float kKappa = 0.044715f;

template <int W>
TILEDEV_INLINE F<W> gelu_gate(F<W> x) {
  // Below -80 tanh is -1 in float, and the CPU's result is zero (NaN for -inf).
  return sigmoid<W>(kTwoBeta * x * (1.f + kKappa * (x * x)), 80.f);
}

// d gelu / dx = s + x s' with s' = s (1 - s) d(2 u) / dx.
template <int W>
TILEDEV_INLINE F<W> gelu_backward(F<W> grad, F<W> x) {
  const F<W> s = gelu_gate<W>(x);
  const F<W> slope = kTwoBeta * (1.f + 3.f * kKappa * (x * x));
  return grad * (s + x * (s * (1.f - s)) * slope);
}

// The exponents for which ATen does not call pow(); there are no others here.
template <int W>
TILEDEV_INLINE F<W> power(F<W> x, float exponent) {
  return exponent == 2.f    ? x * x
         : exponent == 3.f  ? x * x * x
         : exponent == -1.f ? 1.f / x
         : exponent == -2.f ? 1.f / (x * x)
                            : x;
}

// From x to y; as ATen, from the nearer end.
template <int W>
TILEDEV_INLINE F<W> lerp(F<W> x, F<W> y, F<W> weight) {
  const F<W> size = simd::from_bits<W>(simd::bits<W>(weight) & 0x7fffffff);
  const F<W> coefficient = size < 0.5f ? weight : weight - 1.f;
  const F<W> base = size < 0.5f ? x : y;
  return coefficient * (y - x) + base;
}

// ---- kernels -----------------------------------------------------------------------------------

#define TILEDEV_STRIP(name, inputs, parameters, expression)                        \
  template <int W>                                                                 \
  TILEDEV_INLINE void name##_loop(const float* const* in, float* out, int64_t n) { \
    const auto f = [] parameters TILEDEV_LAMBDA -> F<W> { return expression; };    \
    simd::map<W> inputs;                                                           \
  }                                                                                \
  TILEDEV_FOR_EACH_CPU(name, (const float* const* in, float* out, int64_t n), (in, out, n))

#define TILEDEV_STRIP1(name, expression) \
  TILEDEV_STRIP(name, (out, n, f, in[0]), (F<W> x), expression)
#define TILEDEV_STRIP2(name, expression) \
  TILEDEV_STRIP(name, (out, n, f, in[0], in[1]), (F<W> x, F<W> y), expression)
#define TILEDEV_STRIP3(name, expression) \
  TILEDEV_STRIP(name, (out, n, f, in[0], in[1], in[2]), (F<W> x, F<W> y, F<W> z), expression)
#define TILEDEV_STRIP4(name, expression)                                                         \
  TILEDEV_STRIP(name, (out, n, f, in[0], in[1], in[2], in[3]), (F<W> x, F<W> y, F<W> z, F<W> u), \
                expression)

TILEDEV_STRIP1(copy_strip, x)
TILEDEV_STRIP1(neg_strip, -x)
TILEDEV_STRIP1(abs_strip, simd::from_bits<W>(simd::bits<W>(x) & 0x7fffffff))
TILEDEV_STRIP1(relu_strip, (x < 0.f ? simd::all<W>(0.f) : x))
TILEDEV_STRIP1(sqrt_strip, simd::sqrt<W>(x))
TILEDEV_STRIP1(rsqrt_strip, 1.f / simd::sqrt<W>(x))
TILEDEV_STRIP1(reciprocal_strip, 1.f / x)
TILEDEV_STRIP1(square_strip, x* x)
TILEDEV_STRIP1(exp_strip, simd::exp_of_any<W>(x))
TILEDEV_STRIP1(tanh_strip, simd::tanh<W>(x))
TILEDEV_STRIP1(sigmoid_strip, sigmoid<W>(x))
TILEDEV_STRIP1(silu_strip, x* sigmoid<W>(x))
TILEDEV_STRIP1(gelu_strip, x* gelu_gate<W>(x))

// add, sub: self + alpha * other, rounded once as ATen's.
TILEDEV_STRIP3(add_strip, x + z * y)
TILEDEV_STRIP3(sub_strip, x - z * y)
TILEDEV_STRIP3(rsub_strip, y - z * x)
TILEDEV_STRIP2(mul_strip, x* y)
TILEDEV_STRIP2(div_strip, x / y)
TILEDEV_STRIP2(maximum_strip, maximum<W>(x, y))
TILEDEV_STRIP2(minimum_strip, minimum<W>(x, y))
TILEDEV_STRIP2(leaky_relu_strip, (x > 0.f ? x : x * y))
TILEDEV_STRIP2(tanh_backward_strip, x * (1.f - y * y))
TILEDEV_STRIP2(sigmoid_backward_strip, x * (1.f - y) * y)
TILEDEV_STRIP2(silu_backward_strip, silu_backward<W>(x, y))
TILEDEV_STRIP2(gelu_backward_strip, gelu_backward<W>(x, y))
TILEDEV_STRIP3(threshold_backward_strip, (y <= z ? simd::all<W>(0.f) : x))
TILEDEV_STRIP3(threshold_strip, (x <= y ? z : x))
TILEDEV_STRIP3(clamp_strip, minimum<W>(maximum<W>(x, y), z))
TILEDEV_STRIP3(lerp_strip, lerp<W>(x, y, z))
TILEDEV_STRIP4(addcmul_strip, x + u * y * z)
TILEDEV_STRIP4(addcdiv_strip, x + u * y / z)

// in[1]: the exponent, the same for all.
template <int W>
TILEDEV_INLINE void pow_strip_loop(const float* const* in, float* out, int64_t n) {
  const float exponent = in[1][0];
  simd::map<W>(out, n, [exponent](F<W> x) TILEDEV_LAMBDA { return power<W>(x, exponent); }, in[0]);
}
TILEDEV_FOR_EACH_CPU(pow_strip, (const float* const* in, float* out, int64_t n), (in, out, n))

struct NamedKernel {
  std::string_view op;
  StripKernel kernel;
};

// Inputs as compile/strip_ops.cpp lists them.
constexpr NamedKernel kKernels[] = {
    {"abs", abs_strip},
    {"add", add_strip},
    {"addcdiv", addcdiv_strip},
    {"addcmul", addcmul_strip},
    {"clamp", clamp_strip},
    {"clamp_max", minimum_strip},
    {"clamp_min", maximum_strip},
    {"copy", copy_strip},
    {"div", div_strip},
    {"exp", exp_strip},
    {"gelu", gelu_strip},
    {"gelu_backward", gelu_backward_strip},
    {"hardtanh", clamp_strip},
    {"leaky_relu", leaky_relu_strip},
    {"lerp", lerp_strip},
    {"maximum", maximum_strip},
    {"minimum", minimum_strip},
    {"mul", mul_strip},
    {"neg", neg_strip},
    {"pow", pow_strip},
    {"reciprocal", reciprocal_strip},
    {"relu", relu_strip},
    {"rsqrt", rsqrt_strip},
    {"rsub", rsub_strip},
    {"sigmoid", sigmoid_strip},
    {"sigmoid_backward", sigmoid_backward_strip},
    {"silu", silu_strip},
    {"silu_backward", silu_backward_strip},
    {"sqrt", sqrt_strip},
    {"square", square_strip},
    {"sub", sub_strip},
    {"tanh", tanh_strip},
    {"tanh_backward", tanh_backward_strip},
    {"threshold", threshold_strip},
    {"threshold_backward", threshold_backward_strip},
};

}  // namespace

StripKernel find_strip_kernel(std::string_view op) {
  for (const NamedKernel& entry : kKernels) {
    if (entry.op == op) {
      return entry.kernel;
    }
  }
  return nullptr;
}

}  // namespace tiledev
