// Batch norm in training, forward and backward, of some channels: what a tile of a batch of images
// is. ATen's fast kernels want all channels of a contiguous tensor; for some of them they take 3
// times as long, and they make results of their own.

#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <optional>
#include <tuple>

#include "kernels/reductions.h"
#include "kernels/simd.h"

namespace tiledev {

namespace {

using simd::F;
using Optional = std::optional<at::Tensor>;
using Results = std::tuple<at::Tensor&, at::Tensor&, at::Tensor&>;

// [N, C, ...] whose last dimensions lie without gaps: an image for each sample and channel.
struct Images {
  float* data;
  int64_t sample, channel;  // strides

  float* at(int64_t n, int64_t c) const { return data + n * sample + c * channel; }
};

struct Shape {
  int64_t samples, channels, pixels;

  int64_t count() const { return samples * pixels; }
};

struct Forward {
  Shape shape;
  Images x, y;
  const float *weight, *bias;         // or null
  float *running_mean, *running_var;  // or null
  float *mean, *invstd;
  double momentum, eps;
};

struct Inference {
  Shape shape;
  Images x, y;
  const float *weight, *bias, *mean, *var;
  double eps;
};

struct Backward {
  Shape shape;
  Images grad, x, grad_x;
  const float *weight, *mean, *invstd;  // weight: or null
  float *grad_weight, *grad_bias;
};

// y = (x - mean) / sqrt(var + eps) * weight + bias by channel, with the mean and the biased
// variance over samples and pixels; the running variance takes the unbiased one (Ioffe and Szegedy,
// arXiv:1502.03167).
template <int W>
TILEDEV_INLINE void forward_loop(const Forward& f) {
  const auto [samples, channels, pixels] = f.shape;
  const auto count = static_cast<double>(f.shape.count());
  for (int64_t c = 0; c < channels; ++c) {
    double sum = 0, squares = 0;
    for (int64_t n = 0; n < samples; ++n) {
      sum += simd::exact_sum<W>(f.x.at(n, c), f.x.at(n, c), pixels, 0.f,
                                [](F<W> v, F<W>) TILEDEV_LAMBDA { return v; });
    }
    const auto mean = static_cast<float>(sum / count);
    for (int64_t n = 0; n < samples; ++n) {
      squares += simd::sum<W>(f.x.at(n, c), pixels, mean,
                              [mean](F<W> v) TILEDEV_LAMBDA { return (v - mean) * (v - mean); });
    }
    const auto invstd = static_cast<float>(1 / std::sqrt(squares / count + f.eps));
    const float scale = f.weight != nullptr ? invstd * f.weight[c] : invstd;
    const float shift = (f.bias != nullptr ? f.bias[c] : 0.f) - mean * scale;
    for (int64_t n = 0; n < samples; ++n) {
      simd::map<W>(
          f.y.at(n, c), pixels, [scale, shift](F<W> v) TILEDEV_LAMBDA { return v * scale + shift; },
          f.x.at(n, c));
    }
    f.mean[c] = mean;
    f.invstd[c] = invstd;
    const auto follow = [&](float* running, double value) {
      if (running != nullptr) {
        running[c] = static_cast<float>(f.momentum * value + (1 - f.momentum) * running[c]);
      }
    };
    follow(f.running_mean, mean);
    follow(f.running_var, squares / (count - 1));
  }
}

// y = (x - mean) / sqrt(var + eps) * weight + bias with given mean and variance.
template <int W>
TILEDEV_INLINE void inference_loop(const Inference& f) {
  for (int64_t c = 0; c < f.shape.channels; ++c) {
    const float scale = f.weight[c] / std::sqrt(f.var[c] + static_cast<float>(f.eps));
    const float shift = f.bias[c] - f.mean[c] * scale;
    for (int64_t n = 0; n < f.shape.samples; ++n) {
      simd::map<W>(
          f.y.at(n, c), f.shape.pixels,
          [scale, shift](F<W> v) TILEDEV_LAMBDA { return v * scale + shift; }, f.x.at(n, c));
    }
  }
}

// With d = x - mean and sums over samples and pixels:
// grad_x = (grad - sum(grad) / count - d invstd^2 sum(grad d) / count) invstd weight.
template <int W>
TILEDEV_INLINE void backward_loop(const Backward& b) {
  const auto [samples, channels, pixels] = b.shape;
  const auto count = static_cast<double>(b.shape.count());
  for (int64_t c = 0; c < channels; ++c) {
    const float mean = b.mean[c], invstd = b.invstd[c];
    double sum = 0, products = 0;
    for (int64_t n = 0; n < samples; ++n) {
      sum += simd::sum<W>(b.grad.at(n, c), pixels, 0.f, [](F<W> v) TILEDEV_LAMBDA { return v; });
      products +=
          simd::exact_sum<W>(b.grad.at(n, c), b.x.at(n, c), pixels, 0.f,
                             [mean](F<W> g, F<W> v) TILEDEV_LAMBDA { return g * (v - mean); });
    }
    const auto offset = static_cast<float>(sum / count);
    const auto slope = static_cast<float>(products * invstd * invstd / count);
    const float scale = b.weight != nullptr ? invstd * b.weight[c] : invstd;
    for (int64_t n = 0; n < samples; ++n) {
      simd::map<W>(
          b.grad_x.at(n, c), pixels,
          [=](F<W> g, F<W> v) TILEDEV_LAMBDA { return (g - offset - (v - mean) * slope) * scale; },
          b.grad.at(n, c), b.x.at(n, c));
    }
    b.grad_weight[c] = static_cast<float>(products * invstd);
    b.grad_bias[c] = static_cast<float>(sum);
  }
}

TILEDEV_FOR_EACH_CPU(forward, (const Forward& f), (f))
TILEDEV_FOR_EACH_CPU(inference, (const Inference& f), (f))
TILEDEV_FOR_EACH_CPU(backward, (const Backward& b), (b))

// ---- when --------------------------------------------------------------------------------------

// Smaller images are ATen's: the loops run over pixels.
constexpr int64_t kFewPixels = 16;

Shape shape_of(const at::Tensor& x) {
  const int64_t rows = x.size(0) * x.size(1);
  return {x.size(0), x.size(1), rows == 0 ? 0 : x.numel() / rows};
}

bool are_images(const at::Tensor& x) {
  if (x.scalar_type() != at::kFloat || x.dim() < 3 || x.numel() == 0 ||
      shape_of(x).pixels < kFewPixels || shape_of(x).count() < 2) {
    return false;
  }
  int64_t expected = 1;
  for (int64_t d = x.dim(); d-- > 2;) {
    if (x.size(d) != 1 && x.stride(d) != expected) {
      return false;
    }
    expected *= x.size(d);
  }
  return true;
}

Images images(const at::Tensor& x) {
  return {x.mutable_data_ptr<float>(), x.stride(0), x.stride(1)};
}

bool plain(const Optional& x) {
  return !x || !x->defined() || (x->scalar_type() == at::kFloat && x->is_contiguous());
}

float* data_of(const Optional& x) {
  return x && x->defined() ? x->mutable_data_ptr<float>() : nullptr;
}

template <size_t n>
void copy_to(const std::tuple<at::Tensor, at::Tensor, at::Tensor>& results,
             std::array<at::Tensor*, n> outs) {
  const at::Tensor* from[] = {&std::get<0>(results), &std::get<1>(results), &std::get<2>(results)};
  for (size_t i = 0; i < n; ++i) {
    outs[i]->copy_(*from[i]);
  }
}

Results forward_out(const at::Tensor& input, const Optional& weight, const Optional& bias,
                    const Optional& running_mean, const Optional& running_var, bool training,
                    double momentum, double eps, at::Tensor& out, at::Tensor& save_mean,
                    at::Tensor& save_invstd) {
  if (training && are_images(input) && are_images(out) && plain(weight) && plain(bias) &&
      plain(running_mean) && plain(running_var) && plain(save_mean) && plain(save_invstd)) {
    forward({shape_of(input), images(input), images(out), data_of(weight), data_of(bias),
             data_of(running_mean), data_of(running_var), data_of(save_mean), data_of(save_invstd),
             momentum, eps});
  } else {
    copy_to<3>(at::native_batch_norm(input, weight, bias, running_mean, running_var, training,
                                     momentum, eps),
               {&out, &save_mean, &save_invstd});
  }
  return {out, save_mean, save_invstd};
}

at::Tensor& inference_out(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& mean, const at::Tensor& var, double eps,
                          at::Tensor& out) {
  if (are_images(input) && are_images(out) && plain(weight) && plain(bias) && plain(mean) &&
      plain(var)) {
    inference({shape_of(input), images(input), images(out), data_of(weight), data_of(bias),
               data_of(mean), data_of(var), eps});
    return out;
  }
  return out.copy_(std::get<0>(at::native_batch_norm(input, weight, bias, mean, var,
                                                     /*training=*/false, /*momentum=*/0, eps)));
}

at::Tensor inference_fresh(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias, const at::Tensor& mean, const at::Tensor& var,
                           double eps) {
  at::Tensor out = at::empty_like(input);
  return inference_out(input, weight, bias, mean, var, eps, out);
}

Results backward_out(const at::Tensor& grad_out, const at::Tensor& input, const Optional& weight,
                     const Optional& running_mean, const Optional& running_var,
                     const Optional& save_mean, const Optional& save_invstd, bool train, double eps,
                     std::array<bool, 3> output_mask, at::Tensor& out0, at::Tensor& out1,
                     at::Tensor& out2) {
  if (train && are_images(grad_out) && are_images(input) && are_images(out0) && plain(weight) &&
      plain(save_mean) && plain(save_invstd) && data_of(save_mean) != nullptr &&
      data_of(save_invstd) != nullptr && plain(out1) && plain(out2)) {
    backward({shape_of(input), images(grad_out), images(input), images(out0), data_of(weight),
              data_of(save_mean), data_of(save_invstd), data_of(out1), data_of(out2)});
  } else {
    copy_to<3>(at::native_batch_norm_backward(grad_out, input, weight, running_mean, running_var,
                                              save_mean, save_invstd, train, eps, output_mask),
               {&out0, &out1, &out2});
  }
  return {out0, out1, out2};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tiledev, library) {
  library.def(
      "native_batch_norm.out(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, "
      "Tensor? running_var, bool training, float momentum, float eps, *, Tensor(a!) out, "
      "Tensor(b!) save_mean, Tensor(c!) save_invstd) -> (Tensor(a!), Tensor(b!), Tensor(c!))");
  library.def(
      "batch_norm_inference(Tensor input, Tensor weight, Tensor bias, Tensor mean, Tensor var, "
      "float "
      "eps) -> Tensor");
  library.def(
      "batch_norm_inference.out(Tensor input, Tensor weight, Tensor bias, Tensor mean, Tensor var, "
      "float eps, *, Tensor(a!) out) -> Tensor(a!)");
  library.def(
      "native_batch_norm_backward.out(Tensor grad_out, Tensor input, Tensor? weight, Tensor? "
      "running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, "
      "float eps, bool[3] output_mask, *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> "
      "(Tensor(a!), Tensor(b!), Tensor(c!))");
}

TORCH_LIBRARY_IMPL(tiledev, CPU, library) {
  library.impl("native_batch_norm.out", forward_out);
  library.impl("batch_norm_inference", inference_fresh);
  library.impl("batch_norm_inference.out", inference_out);
  library.impl("native_batch_norm_backward.out", backward_out);
}

}  // namespace tiledev
