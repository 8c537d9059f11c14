#include "runtime/host_view.h"

#include <utility>

namespace tiledev {

at::Tensor host_view(const c10::Storage& memory, const TensorMeta& meta, int64_t offset) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(memory),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(meta.dtype));
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(meta.sizes, meta.strides, offset);
  if (meta.conj) {
    tensor._set_conj(true);
  }
  if (meta.neg) {
    tensor._set_neg(true);
  }
  return tensor;
}

}  // namespace tiledev
