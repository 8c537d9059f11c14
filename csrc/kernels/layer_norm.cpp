// layer_norm into given memory: ATen's has no out= kernel, so each tile would be copied once more.

#include <ATen/ops/native_layer_norm.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include <cmath>
#include <optional>
#include <tuple>

#include "kernels/reductions.h"
#include "kernels/simd.h"
#include "kernels/streaming.h"

namespace tiledev {

namespace {

using simd::F;

struct Rows {
  const float* x;
  const float* weight;  // or null
  const float* bias;    // or null
  float* y;
  float* mean;
  float* rstd;
  int64_t rows, n;
  double eps;
  bool stream;
};

template <int W>
TILEDEV_INLINE F<W> affine(const Rows& r, F<W> v, int64_t i, int64_t left) {
  if (r.weight != nullptr) {
    v *= left >= W ? simd::load<W>(r.weight + i) : simd::load_part<W>(r.weight + i, left, 0.f);
  }
  if (r.bias != nullptr) {
    v += left >= W ? simd::load<W>(r.bias + i) : simd::load_part<W>(r.bias + i, left, 0.f);
  }
  return v;
}

// y = (x - mean) / sqrt(var + eps) * weight + bias, row by row (Ba et al., arXiv:1607.06450), with
// the variance as the mean of squared deviations.
template <int W>
TILEDEV_INLINE void layer_norm_loop(const Rows& r) {
  RowWriter writer(r.y, r.n, r.stream);
  for (int64_t row = 0; row < r.rows; ++row) {
    const float* x = r.x + row * r.n;
    float* y = writer.row(row);
    const auto n = static_cast<double>(r.n);
    const auto mean =
        static_cast<float>(simd::sum<W>(x, r.n, 0.f, [](F<W> v) TILEDEV_LAMBDA { return v; }) / n);
    const double squares = simd::sum<W>(
        x, r.n, mean, [mean](F<W> v) TILEDEV_LAMBDA { return (v - mean) * (v - mean); });
    const auto rstd = static_cast<float>(1 / std::sqrt(squares / n + r.eps));
    int64_t i = 0;
    for (; i + W <= r.n; i += W) {
      simd::store<W>(y + i, affine<W>(r, (simd::load<W>(x + i) - mean) * rstd, i, W));
    }
    if (i < r.n) {
      const int64_t left = r.n - i;
      const F<W> v = (simd::load_part<W>(x + i, left, mean) - mean) * rstd;
      simd::store_part<W>(y + i, affine<W>(r, v, i, left), left);
    }
    writer.finish(row);
    r.mean[row] = mean;
    r.rstd[row] = rstd;
  }
}

TILEDEV_FOR_EACH_CPU(layer_norm, (const Rows& rows), (rows))

bool plain(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
}

bool plain(const std::optional<at::Tensor>& tensor) {
  return !tensor || plain(*tensor);
}

const float* data_of(const std::optional<at::Tensor>& tensor) {
  return tensor && tensor->defined() ? tensor->const_data_ptr<float>() : nullptr;
}

std::tuple<at::Tensor&, at::Tensor&, at::Tensor&> layer_norm_out(
    const at::Tensor& input, at::IntArrayRef normalized_shape,
    const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias, double eps,
    at::Tensor& out0, at::Tensor& out1, at::Tensor& out2) {
  const int64_t n = c10::multiply_integers(normalized_shape);
  if (plain(input) && plain(weight) && plain(bias) && plain(out0) && plain(out1) && plain(out2) &&
      n > 0) {
    layer_norm({input.const_data_ptr<float>(), data_of(weight), data_of(bias),
                out0.mutable_data_ptr<float>(), out1.mutable_data_ptr<float>(),
                out2.mutable_data_ptr<float>(), input.numel() / n, n, eps, beyond_caches(out0)});
  } else {
    const auto results = at::native_layer_norm(input, normalized_shape, weight, bias, eps);
    out0.copy_(std::get<0>(results));
    out1.copy_(std::get<1>(results));
    out2.copy_(std::get<2>(results));
  }
  return {out0, out1, out2};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tiledev, library) {
  library.def(
      "native_layer_norm.out(Tensor input, int[] normalized_shape, Tensor? weight, Tensor? "
      "bias, float eps, *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), "
      "Tensor(b!), Tensor(c!))");
}

TORCH_LIBRARY_IMPL(tiledev, CPU, library) {
  library.impl("native_layer_norm.out", layer_norm_out);
}

}  // namespace tiledev
