// The gradients of a convolution's weights, and of its input if it has a stride, as products of
// matrices (products.h). Of the 102 GFLOP/s of a core with AVX2 (Zen 3) oneDNN makes 48-72 of the
// first (3 x 3, 64 channels or more) and 5-31 of the second; here it is 74-94 and 44-74. For all
// else oneDNN is as good (85-95).

#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <tuple>
#include <vector>

#include "kernels/product_block.h"

namespace tiledev {

namespace {

using simd::kDepth;
using simd::kHeight;
using simd::kRows;
using simd::Rows;
using simd::Store;
using simd::Workspace;

constexpr int64_t kGroup = 16;  // panels of taps that are packed at a time

// Sizes of a convolution of images in rows of pixels.
struct Shape {
  int64_t images = 0, channels = 0, height = 0, width = 0;  // of the input
  int64_t out_channels = 0, out_height = 0, out_width = 0;
  int64_t kernel_height = 0, kernel_width = 0;
  std::array<int64_t, 2> stride{}, padding{}, dilation{};

  int64_t pixels() const { return out_height * out_width; }
  int64_t taps() const { return kernel_height * kernel_width; }
  int64_t columns() const { return channels * taps(); }
  int64_t padded_height() const { return height + 2 * padding[0]; }
  int64_t padded_width() const { return width + 2 * padding[1]; }
  int64_t padded_plane() const { return padded_height() * padded_width(); }
};

struct WeightGradient {
  Shape shape;
  const float* grad = nullptr;   // [image, out channel, pixel]
  const float* input = nullptr;  // [image, channel, pixel]
  float* out = nullptr;          // [out channel, channel, tap]
  float* padded = nullptr;       // room for padded_size()
  float* packed = nullptr;       // room for packed_size()

  // As many images at a time as a product likes: one, or several small ones.
  int64_t together() const {
    return std::max<int64_t>(1, std::min(shape.images, kDepth / shape.pixels()));
  }
  int64_t padded_size() const { return together() * shape.channels * shape.padded_plane(); }
  int64_t packed_size() const {
    constexpr int64_t kMostRows = 16;  // beyond the last channel
    return together() > 1 ? (shape.out_channels + kMostRows) * together() * shape.pixels() : 0;
  }
};

// Some output pixels, of one image or of several, whose products are added up at a time.
struct Positions {
  struct Run {  // in a row of the output
    int64_t image, y, x, length;
  };
  std::vector<Run> runs;
  int64_t first_image = 0, first_pixel = 0;
  int64_t images = 1;  // whole ones, if there are several
  int64_t count = 0;
};

Positions positions(const Shape& s, int64_t image, int64_t pixel, int64_t images, int64_t count) {
  Positions p{{}, image, pixel, images, count * images};
  for (int64_t i = 0; i < images; ++i) {
    for (int64_t at = pixel; at < pixel + count;) {
      const int64_t x = at % s.out_width;
      const int64_t length = std::min(s.out_width - x, pixel + count - at);
      p.runs.push_back({image + i, at / s.out_width, x, length});
      at += length;
    }
  }
  return p;
}

// The images from `first` on with zeros around them.
void pad(const WeightGradient& g, int64_t first, int64_t images, float* to) {
  const Shape& s = g.shape;
  std::fill_n(to, images * s.channels * s.padded_plane(), 0.f);
  const float* from = g.input + first * s.channels * s.height * s.width;
  for (int64_t plane = 0; plane < images * s.channels; ++plane, to += s.padded_plane()) {
    for (int64_t y = 0; y < s.height; ++y, from += s.width) {
      std::memcpy(to + (y + s.padding[0]) * s.padded_width() + s.padding[1], from,
                  static_cast<size_t>(s.width) * sizeof(float));
    }
  }
}

// What taps read at the positions: a panel of 16 pairs of channel and tap, from number `column` on.
// Those beyond the last one are zero.
void pack_taps(const Shape& s, const Positions& p, const float* padded, int64_t column, float* to) {
  std::array<int64_t, kPanel> offsets{};
  const int64_t some = std::min(kPanel, s.columns() - column);
  for (int64_t t = 0; t < some; ++t) {
    const int64_t channel = (column + t) / s.taps(), tap = (column + t) % s.taps();
    offsets[t] = channel * s.padded_plane() +
                 tap / s.kernel_width * s.dilation[0] * s.padded_width() +
                 tap % s.kernel_width * s.dilation[1];
  }
  const int64_t step = s.stride[1];
  for (const Positions::Run& run : p.runs) {
    const float* base = padded + (run.image - p.first_image) * s.channels * s.padded_plane() +
                        run.y * s.stride[0] * s.padded_width() + run.x * step;
    int64_t x = 0;
    for (; step == 1 && some == kPanel && x + 4 <= run.length; x += 4, to += 4 * kPanel) {
      for (int64_t t = 0; t < kPanel; t += 4) {
        simd::transpose(base + x + offsets[t], base + x + offsets[t + 1], base + x + offsets[t + 2],
                        base + x + offsets[t + 3], to + t);
      }
    }
    for (; x < run.length; ++x, to += kPanel) {
      for (int64_t t = 0; t < kPanel; ++t) {
        to[t] = t < some ? base[x * step + offsets[t]] : 0.f;
      }
    }
  }
}

// Gradients of several images, kRows channels side by side.
template <int W>
TILEDEV_INLINE void pack_gradients(const WeightGradient& g, const Positions& p, float* to) {
  constexpr int R = kRows<W>;
  const Shape& s = g.shape;
  for (int64_t o = 0; o < s.out_channels; o += R) {
    const int64_t rows = std::min<int64_t>(R, s.out_channels - o);
    for (int64_t i = 0; i < p.images; ++i) {
      const float* from = g.grad + ((p.first_image + i) * s.out_channels + o) * s.pixels();
      for (int64_t pixel = 0; pixel < s.pixels(); ++pixel, to += R) {
        for (int64_t r = 0; r < rows; ++r) {
          to[r] = from[r * s.pixels() + pixel];
        }
      }
    }
  }
}

// out = sum over images of grad [out channel, pixel] times taps [pixel, channel and tap].
template <int W>
TILEDEV_INLINE void add_weight_gradient(const WeightGradient& g, const Positions& p, bool first,
                                        float* panels_of_taps) {
  const Shape& s = g.shape;
  const Store store = first ? Store::kSet : Store::kAdd;
  Rows<W> rows{g.grad + p.first_image * s.out_channels * s.pixels() + p.first_pixel, s.pixels(),
               false, p.count};
  if (p.images > 1) {
    pack_gradients<W>(g, p, g.packed);
    rows = {g.packed, 0, true, p.count};
  }
  const int64_t n = s.columns();
  for (int64_t j0 = 0; j0 < n; j0 += kGroup * kPanel) {
    const int64_t end = std::min(n, j0 + kGroup * kPanel);
    for (int64_t j = j0; j < end; j += kPanel) {
      pack_taps(s, p, g.padded, j, panels_of_taps + (j - j0) * p.count);
    }
    for (int64_t i0 = 0; i0 < s.out_channels; i0 += kHeight) {
      const int64_t height = std::min(kHeight, s.out_channels - i0);
      Rows<W> some = rows;
      some.data += i0 * (rows.packed ? rows.depth : rows.stride);
      for (int64_t j = j0; j < end; j += kPanel) {
        const float* panel = panels_of_taps + (j - j0) * p.count;
        float* c = g.out + i0 * n + j;
        if (n - j >= kPanel) {
          simd::times_panel<W>(some, height, panel, nullptr, nullptr, store, c, n);
        } else {
          simd::times_last_panel<W>(some, height, n - j, panel, nullptr, store, c, n);
        }
      }
    }
  }
}

template <int W>
TILEDEV_INLINE void weight_gradient_loop(const WeightGradient& g) {
  static thread_local Workspace panels_of_taps;
  const Shape& s = g.shape;
  const int64_t pixels = s.pixels(), together = g.together();
  float* const taps = panels_of_taps.take(static_cast<size_t>(kGroup * kPanel * kDepth));
  for (int64_t image = 0; image < s.images; image += together) {
    const int64_t images = std::min(together, s.images - image);
    pad(g, image, images, g.padded);
    for (int64_t pixel = 0; pixel < pixels; pixel += kDepth) {
      const int64_t count = std::min(kDepth, pixels - pixel);
      add_weight_gradient<W>(g, positions(s, image, pixel, images, count), image == 0 && pixel == 0,
                             taps);
    }
  }
}

TILEDEV_FOR_EACH_CPU(weight_gradient, (const WeightGradient& g), (g))

// Adds what [channel, tap, pixel] holds to the padded planes where the taps read.
void add_taps(const Shape& s, const float* from, int64_t channels, float* padded) {
  for (int64_t c = 0; c < channels; ++c, padded += s.padded_plane()) {
    for (int64_t tap = 0; tap < s.taps(); ++tap) {
      float* row = padded + tap / s.kernel_width * s.dilation[0] * s.padded_width() +
                   tap % s.kernel_width * s.dilation[1];
      for (int64_t y = 0; y < s.out_height; ++y, row += s.stride[0] * s.padded_width()) {
        for (int64_t x = 0; x < s.out_width; ++x) {
          row[x * s.stride[1]] += *from++;
        }
      }
    }
  }
}

// ---- tensors ------------------------------------------------------------------------------------

bool plain_images(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.dim() == 4 && tensor.numel() > 0 &&
         tensor.is_contiguous() && !tensor.is_neg();
}

Shape shape_of(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
               at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation) {
  const auto pair = [](at::IntArrayRef values) {
    return std::array<int64_t, 2>{values[0], values[values.size() - 1]};
  };
  Shape s;
  s.images = input.size(0);
  s.channels = input.size(1);
  s.height = input.size(2);
  s.width = input.size(3);
  s.out_channels = grad.size(1);
  s.out_height = grad.size(2);
  s.out_width = grad.size(3);
  s.kernel_height = weight.size(2);
  s.kernel_width = weight.size(3);
  s.stride = pair(stride);
  s.padding = pair(padding);
  s.dilation = pair(dilation);
  return s;
}

// Weights [channel and tap, out channel] times grad [out channel, pixel], image by image, and each
// of the products added to the pixel of the input that the tap read.
at::Tensor strided_input_gradient(const Shape& s, const at::Tensor& grad, const at::Tensor& input,
                                  const at::Tensor& weight) {
  constexpr int64_t kChannels = 16;  // at a time
  const at::Tensor products = at::empty({kChannels * s.taps() * s.pixels()}, grad.options());
  const at::Tensor packed = at::empty({packed_size(s.out_channels, s.pixels())}, grad.options());
  const at::Tensor padded = at::empty({s.channels * s.padded_plane()}, grad.options());
  at::Tensor result = at::empty_like(input);
  auto* const sums = padded.mutable_data_ptr<float>();
  auto* const panels_of_grad = packed.mutable_data_ptr<float>();
  auto* to = result.mutable_data_ptr<float>();
  Product p;
  p.n = s.pixels();
  p.k = s.out_channels;
  p.packed = panels_of_grad;
  p.packed_rows = s.out_channels;
  p.c = products.mutable_data_ptr<float>();
  p.c_stride = s.pixels();
  for (int64_t image = 0; image < s.images; ++image) {
    std::fill_n(sums, s.channels * s.padded_plane(), 0.f);
    pack_panels({grad.const_data_ptr<float>() + image * s.out_channels * s.pixels(), s.pixels(), 1},
                s.out_channels, s.pixels(), 0, panels(s.pixels()), panels_of_grad);
    for (int64_t channel = 0; channel < s.channels; channel += kChannels) {
      const int64_t some = std::min(kChannels, s.channels - channel);
      p.m = some * s.taps();
      p.a = {weight.const_data_ptr<float>() + channel * s.taps(), 1, s.columns()};
      multiply(p);
      add_taps(s, p.c, some, sums + channel * s.padded_plane());
    }
    for (int64_t c = 0; c < s.channels; ++c) {
      const float* from = sums + c * s.padded_plane() + s.padding[0] * s.padded_width();
      for (int64_t y = 0; y < s.height; ++y, to += s.width, from += s.padded_width()) {
        std::memcpy(to, from + s.padding[1], static_cast<size_t>(s.width) * sizeof(float));
      }
    }
  }
  return result;
}

bool no_padding(const Shape& s) {
  return s.padding[0] == 0 && s.padding[1] == 0;
}

at::Tensor run_weight_gradient(const Shape& s, const at::Tensor& grad, const at::Tensor& input,
                               const at::Tensor& weight) {
  at::Tensor result = at::empty_like(weight);
  WeightGradient g;
  g.shape = s;
  g.grad = grad.const_data_ptr<float>();
  g.input = input.const_data_ptr<float>();
  g.out = result.mutable_data_ptr<float>();
  const at::Tensor padded = at::empty({g.padded_size()}, grad.options());
  const at::Tensor packed = at::empty({g.packed_size()}, grad.options());
  g.padded = padded.mutable_data_ptr<float>();
  g.packed = packed.mutable_data_ptr<float>();
  weight_gradient(g);
  return result;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
    at::OptionalIntArrayRef bias_sizes, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> output_mask) {
  constexpr int64_t kEnough = 32;  // channels: less does not keep the products busy
  const bool suits = plain_images(grad) && plain_images(input) && plain_images(weight) &&
                     !transposed && groups == 1 && grad.size(1) >= kEnough;
  std::array<bool, 3> left = output_mask;
  at::Tensor grad_input, grad_weight, grad_bias;
  if (suits) {
    const Shape s = shape_of(grad, input, weight, stride, padding, dilation);
    if (output_mask[0] && (s.stride[0] > 1 || s.stride[1] > 1)) {
      grad_input = strided_input_gradient(s, grad, input, weight);
      left[0] = false;
    }
    if (output_mask[1]) {
      grad_weight = run_weight_gradient(s, grad, input, weight);
      // The zeros around an image times an infinite gradient are NaN, which nobody should see.
      left[1] = !no_padding(s) && std::isnan(grad_weight.sum().item<float>());
    }
    if (output_mask[2]) {  // oneDNN takes the gradient of the weights with it
      grad_bias = grad.sum({0, 2, 3});
      left[2] = false;
    }
  }
  if (left[0] || left[1] || left[2]) {
    auto results = at::convolution_backward(grad, input, weight, bias_sizes, stride, padding,
                                            dilation, transposed, output_padding, groups, left);
    grad_input = left[0] ? std::get<0>(results) : grad_input;
    grad_weight = left[1] ? std::get<1>(results) : grad_weight;
    grad_bias = left[2] ? std::get<2>(results) : grad_bias;
  }
  return {grad_input, grad_weight, grad_bias};
}

}  // namespace

// Only where products are taken here.
TORCH_LIBRARY_FRAGMENT(tiledev, library) {
  if (has_products()) {
    library.def(
        "convolution_backward(Tensor grad_output, Tensor input, Tensor weight, int[]? bias_sizes, "
        "int[] stride, int[] padding, int[] dilation, bool transposed, int[] output_padding, int "
        "groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)");
  }
}

TORCH_LIBRARY_IMPL(tiledev, CPU, library) {
  if (has_products()) {
    library.impl("convolution_backward", convolution_backward);
  }
}

}  // namespace tiledev
