#include "record/native_meta.h"

#include <ATen/ops/_log_softmax_backward_data_meta_dispatch.h>
#include <ATen/ops/_log_softmax_meta_dispatch.h>
#include <ATen/ops/_softmax_backward_data_meta_dispatch.h>
#include <ATen/ops/_softmax_meta_dispatch.h>
#include <ATen/ops/addmm_meta_dispatch.h>
#include <ATen/ops/amax_meta_dispatch.h>
#include <ATen/ops/amin_meta_dispatch.h>
#include <ATen/ops/baddbmm_meta_dispatch.h>
#include <ATen/ops/bmm_meta_dispatch.h>
#include <ATen/ops/cat_meta_dispatch.h>
#include <ATen/ops/cumprod_meta_dispatch.h>
#include <ATen/ops/cumsum_meta_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean_meta_dispatch.h>
#include <ATen/ops/mm_meta_dispatch.h>
#include <ATen/ops/nll_loss_backward_meta_dispatch.h>
#include <ATen/ops/nll_loss_forward_meta_dispatch.h>
#include <ATen/ops/sum_meta_dispatch.h>
#include <c10/core/CompileTimeFunctionPointer.h>

#include <array>
#include <optional>
#include <tuple>
#include <unordered_map>

namespace tiledev {

namespace {

using Kernels = std::unordered_map<std::string, c10::KernelFunction>;

// PyTorch's are Python, and give save_mean a size in evaluation, where the CPU leaves it empty.
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Optional = std::optional<at::Tensor>;

at::Tensor of_channels(const at::Tensor& input, const Optional& weight, const Optional& mean,
                       bool empty) {
  const bool weighted = weight && weight->defined();
  const bool running = mean && mean->defined();
  const auto dtype = weighted  ? weight->scalar_type()
                     : running ? mean->scalar_type()
                               : input.scalar_type();
  return at::empty({empty ? 0 : input.size(1)}, input.options().dtype(dtype));
}

Three native_batch_norm(const at::Tensor& input, const Optional& weight, const Optional& bias,
                        const Optional& mean, const Optional& var, bool training, double momentum,
                        double eps) {
  return {at::empty_like(input, input.suggest_memory_format()),
          of_channels(input, weight, mean, !training), of_channels(input, weight, mean, !training)};
}

Three native_batch_norm_backward(const at::Tensor& grad, const at::Tensor& input,
                                 const Optional& weight, const Optional& mean, const Optional& var,
                                 const Optional& save_mean, const Optional& save_invstd,
                                 bool training, double eps, std::array<bool, 3> mask) {
  const auto channels = [&](bool wanted) {
    return wanted ? of_channels(input, weight, mean, false) : at::Tensor();
  };
  return {mask[0] ? at::empty_like(input, input.suggest_memory_format()) : at::Tensor(),
          channels(mask[1]), channels(mask[2])};
}

#define TILEDEV_KERNEL(f) c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(f))

// One line an op that large models call in every step.
const Kernels& kernels() {
  static const auto* table = new Kernels{
      {"aten::mm", TILEDEV_KERNEL(at::meta::mm)},
      {"aten::bmm", TILEDEV_KERNEL(at::meta::bmm)},
      {"aten::addmm", TILEDEV_KERNEL(at::meta::addmm)},
      {"aten::baddbmm", TILEDEV_KERNEL(at::meta::baddbmm)},
      {"aten::sum.dim_IntList", TILEDEV_KERNEL(at::meta::sum)},
      {"aten::mean.dim", TILEDEV_KERNEL(at::meta::mean)},
      {"aten::amax", TILEDEV_KERNEL(at::meta::amax)},
      {"aten::amin", TILEDEV_KERNEL(at::meta::amin)},
      {"aten::cat", TILEDEV_KERNEL(at::meta::cat)},
      {"aten::cumsum", TILEDEV_KERNEL(at::meta::cumsum)},
      {"aten::cumprod", TILEDEV_KERNEL(at::meta::cumprod)},
      {"aten::_softmax", TILEDEV_KERNEL(at::meta::_softmax)},
      {"aten::_softmax_backward_data", TILEDEV_KERNEL(at::meta::_softmax_backward_data)},
      {"aten::_log_softmax", TILEDEV_KERNEL(at::meta::_log_softmax)},
      {"aten::_log_softmax_backward_data", TILEDEV_KERNEL(at::meta::_log_softmax_backward_data)},
      {"aten::native_batch_norm", TILEDEV_KERNEL(native_batch_norm)},
      {"aten::native_batch_norm_backward", TILEDEV_KERNEL(native_batch_norm_backward)},
      {"aten::nll_loss_forward", TILEDEV_KERNEL(at::meta::nll_loss_forward)},
      {"aten::nll_loss_backward", TILEDEV_KERNEL(at::meta::nll_loss_backward)},
  };
  return *table;
}

#undef TILEDEV_KERNEL

}  // namespace

const c10::KernelFunction* native_meta(const std::string& op) {
  const auto it = kernels().find(op);
  return it == kernels().end() ? nullptr : &it->second;
}

}  // namespace tiledev
