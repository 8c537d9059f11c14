// relu into given memory: ATen's has no out= form, so each tile would be copied once more. Its own
// kernel for relu is this one.

#include <ATen/ops/clamp_min.h>
#include <torch/library.h>

namespace tiledev {

namespace {

at::Tensor& relu_out(const at::Tensor& self, at::Tensor& out) {
  return at::clamp_min_out(out, self, 0);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tiledev, library) {
  library.def("relu.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(tiledev, CPU, library) {
  library.impl("relu.out", relu_out);
}

}  // namespace tiledev
