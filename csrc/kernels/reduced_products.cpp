// Products of matrices of bfloat16 and float16 where the CPU has no instructions for them: by way
// of float32. ATen's own loops take 1,080 ms (one thread, whatever their number) for a product of
// 1024 x 768 x 768 with AVX2, or 60 ms if the second matrix is transposed, where BLAS takes 7 ms in
// float32. Both add up in float32 and round once.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

namespace tiledev {

namespace {

bool ask(const char* op) {
  const auto handle = c10::Dispatcher::singleton().findSchema({op, ""});
  return handle && handle->typed<bool()>().call();
}

bool has_instructions(c10::ScalarType type) {
  static const bool bfloat16 = ask("mkldnn::_is_mkldnn_bf16_supported");
  static const bool half = ask("mkldnn::_is_mkldnn_fp16_supported");
  return type == at::kBFloat16 ? bfloat16 : type == at::kHalf ? half : true;
}

at::Tensor wide(const at::Tensor& tensor) {
  return tensor.to(at::kFloat);
}

at::Tensor& mm_out(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
  return has_instructions(out.scalar_type()) ? at::mm_out(out, self, mat2)
                                             : out.copy_(at::mm(wide(self), wide(mat2)));
}

at::Tensor& bmm_out(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
  return has_instructions(out.scalar_type()) ? at::bmm_out(out, self, mat2)
                                             : out.copy_(at::bmm(wide(self), wide(mat2)));
}

at::Tensor& addmm_out(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                      const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  return has_instructions(out.scalar_type())
             ? at::addmm_out(out, self, mat1, mat2, beta, alpha)
             : out.copy_(at::addmm(wide(self), wide(mat1), wide(mat2), beta, alpha));
}

at::Tensor& baddbmm_out(const at::Tensor& self, const at::Tensor& batch1, const at::Tensor& batch2,
                        const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  return has_instructions(out.scalar_type())
             ? at::baddbmm_out(out, self, batch1, batch2, beta, alpha)
             : out.copy_(at::baddbmm(wide(self), wide(batch1), wide(batch2), beta, alpha));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tiledev, library) {
  library.def("mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)");
  library.def("bmm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)");
  library.def(
      "addmm.out(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, "
      "Tensor(a!) out) -> Tensor(a!)");
  library.def(
      "baddbmm.out(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1, "
      "Tensor(a!) out) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(tiledev, CPU, library) {
  library.impl("mm.out", mm_out);
  library.impl("bmm.out", bmm_out);
  library.impl("addmm.out", addmm_out);
  library.impl("baddbmm.out", baddbmm_out);
}

}  // namespace tiledev
