#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace at::autocast {

namespace {

// binary_cross_entropy is refused under autocast, as on CUDA.
Tensor refuse_binary_cross_entropy(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                                   int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
              "autocast.\nUse torch.nn.functional.binary_cross_entropy_with_logits or "
              "torch.nn.BCEWithLogitsLoss, which combine a sigmoid with the loss and are safe to "
              "autocast.");
}

}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

// CUDA's lists.
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define TILEDEV_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define TILEDEV_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define TILEDEV_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define TILEDEV_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(TILEDEV_LOWER_PRECISION)
  AT_FORALL_FP32(TILEDEV_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(TILEDEV_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(TILEDEV_PROMOTE)
#undef TILEDEV_LOWER_PRECISION
#undef TILEDEV_FP32
#undef TILEDEV_FP32_SET_OPT_DTYPE
#undef TILEDEV_PROMOTE
  m.impl(TORCH_SELECTIVE_NAME("aten::binary_cross_entropy"),
         TORCH_FN((&refuse_binary_cross_entropy)));
}

}  // namespace at::autocast
