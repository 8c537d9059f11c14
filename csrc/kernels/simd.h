#pragma once

#include <cstdint>
#include <cstring>

// Vectors of W floats, by the compiler's vector extension, and elementary functions on them.
//
// A kernel is a function template over W whose instances are compiled for several instruction sets;
// TILEDEV_FOR_EACH_CPU makes the instances and picks one when the process starts.

#define TILEDEV_INLINE __attribute__((always_inline)) inline
#define TILEDEV_LAMBDA __attribute__((always_inline))

namespace tiledev::simd {

template <int W>
struct Types {
  typedef float F __attribute__((vector_size(W * sizeof(float))));
  typedef int32_t I __attribute__((vector_size(W * sizeof(int32_t))));
  typedef double D __attribute__((vector_size(W * sizeof(double))));
};
template <int W>
using F = typename Types<W>::F;
template <int W>
using I = typename Types<W>::I;
template <int W>
using D = typename Types<W>::D;

template <int W>
TILEDEV_INLINE F<W> load(const float* p) {
  F<W> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <int W>
TILEDEV_INLINE void store(float* p, F<W> v) {
  std::memcpy(p, &v, sizeof v);
}

// The first n < W floats, the others `fill`.
template <int W>
TILEDEV_INLINE F<W> load_part(const float* p, int64_t n, float fill) {
  float padded[W];
  for (int i = 0; i < W; ++i) {
    padded[i] = i < n ? p[i] : fill;
  }
  return load<W>(padded);
}

template <int W>
TILEDEV_INLINE void store_part(float* p, F<W> v, int64_t n) {
  float padded[W];
  store<W>(padded, v);
  std::memcpy(p, padded, static_cast<size_t>(n) * sizeof(float));
}

template <int W>
TILEDEV_INLINE F<W> all(float x) {
  return F<W>{} + x;
}

template <int W>
TILEDEV_INLINE I<W> bits(F<W> x) {
  I<W> i;
  std::memcpy(&i, &x, sizeof i);
  return i;
}

template <int W>
TILEDEV_INLINE F<W> from_bits(I<W> x) {
  F<W> f;
  std::memcpy(&f, &x, sizeof f);
  return f;
}

// y = f(in ...), for n floats. What stands behind the last ones is 1 while f works on it.
template <int W, typename Function, typename... Inputs>
TILEDEV_INLINE void map(float* y, int64_t n, Function f, const Inputs*... in) {
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    store<W>(y + i, f(load<W>(in + i)...));
  }
  if (i < n) {
    store_part<W>(y + i, f(load_part<W>(in + i, n - i, 1.f)...), n - i);
  }
}

// A NaN in x stays one.
template <int W>
TILEDEV_INLINE F<W> at_most(F<W> x, float bound) {
  return x > bound ? all<W>(bound) : x;
}
template <int W>
TILEDEV_INLINE F<W> at_least(F<W> x, float bound) {
  return x < bound ? all<W>(bound) : x;
}

// All elements put together by f, halves first.
template <int W, typename Function>
TILEDEV_INLINE float fold(F<W> v, Function f) {
  float parts[W];
  store<W>(parts, v);
  for (int half = W / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      parts[i] = f(parts[i], parts[i + half]);
    }
  }
  return parts[0];
}

template <int W>
TILEDEV_INLINE float max_of(F<W> v) {
  return fold<W>(v, [](float a, float b) TILEDEV_LAMBDA { return b > a ? b : a; });
}

template <int W>
TILEDEV_INLINE float sum_of(F<W> v) {
  return fold<W>(v, [](float a, float b) TILEDEV_LAMBDA { return a + b; });
}

// e^r for |r| <= log(2) / 2. The method and the polynomial are those of expf in Cephes (S. L.
// Moshier).
template <int W>
TILEDEV_INLINE F<W> exp_polynomial(F<W> r) {
  F<W> p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * (r * r) + r + 1.f;
}

// e^x with an error of about 1 ulp for |x| <= 88; arguments beyond are the caller's to clamp. NaN
// gives NaN.
template <int W>
TILEDEV_INLINE F<W> exp(F<W> x) {
  constexpr float kRound = 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer
  const F<W> shifted = x * 1.44269504088896341f + kRound;
  const F<W> n = shifted - kRound;
  const F<W> r = x - n * 0.693359375f + n * 2.12194440e-4f;
  // The low bits of `shifted` are n; 2^n has them as its exponent.
  return exp_polynomial<W>(r) * from_bits<W>((bits<W>(shifted) + 127) << 23);
}

// e^x for x <= 0 or NaN. What lies between a denormal and the smallest normal float becomes zero.
template <int W>
TILEDEV_INLINE F<W> exp_below_zero(F<W> x) {
  constexpr float kLast = -87.f;
  const F<W> e = exp<W>(at_least<W>(x, kLast));
  return x < kLast ? all<W>(0.f) : e;
}

// e^x for all x: overflow gives infinity, underflow a denormal or zero.
template <int W>
TILEDEV_INLINE F<W> exp_of_any(F<W> x) {
  constexpr float kRound = 12582912.f;
  const F<W> bounded = at_most<W>(at_least<W>(x, -110.f), 100.f);
  const F<W> shifted = bounded * 1.44269504088896341f + kRound;
  const F<W> n = shifted - kRound;
  const F<W> r = bounded - n * 0.693359375f + n * 2.12194440e-4f;
  // 2^n in two steps, since n may be beyond the exponents of floats.
  const I<W> whole = bits<W>(shifted) - bits<W>(all<W>(kRound));
  const I<W> half = whole >> 1;
  return exp_polynomial<W>(r) * from_bits<W>((half + 127) << 23) *
         from_bits<W>((whole - half + 127) << 23);
}

template <int W>
TILEDEV_INLINE F<W> sqrt(F<W> x) {
  F<W> y;
  for (int i = 0; i < W; ++i) {
    y[i] = __builtin_sqrtf(x[i]);
  }
  return y;
}

// tanh x with an error of about 1 ulp; the polynomial is that of tanhf in Cephes.
template <int W>
TILEDEV_INLINE F<W> tanh(F<W> x) {
  const I<W> sign = bits<W>(x) & static_cast<int32_t>(0x80000000);
  const F<W> a = from_bits<W>(bits<W>(x) ^ sign);
  const F<W> large = 1.f - 2.f / (exp<W>(at_most<W>(a + a, 20.f)) + 1.f);
  const F<W> z = a * a;
  F<W> p = z * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const F<W> small = p * z * a + a;
  return from_bits<W>(bits<W>(a < 0.625f ? small : large) | sign);
}

}  // namespace tiledev::simd

// Defines `name parameters`, which calls name##_loop<W> compiled for the best instruction set that
// this CPU has.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TILEDEV_FOR_EACH_CPU(name, parameters, arguments)                                \
  __attribute__((                                                                        \
      target("avx512f,avx512bw,avx512dq,avx512vl,fma"))) void name##_avx512 parameters { \
    name##_loop<16> arguments;                                                           \
  }                                                                                      \
  __attribute__((target("avx2,fma"))) void name##_avx2 parameters {                      \
    name##_loop<8> arguments;                                                            \
  }                                                                                      \
  void name##_any parameters {                                                           \
    name##_loop<4> arguments;                                                            \
  }                                                                                      \
  void name parameters {                                                                 \
    static const auto best = simd::has_avx512() ? name##_avx512                          \
                             : simd::has_avx2() ? name##_avx2                            \
                                                : name##_any;                            \
    best arguments;                                                                      \
  }
namespace tiledev::simd {
inline bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
inline bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
}  // namespace tiledev::simd
#else
#define TILEDEV_FOR_EACH_CPU(name, parameters, arguments) \
  void name parameters {                                  \
    name##_loop<4> arguments;                             \
  }
#endif
