#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_resize_output_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

#include "record/kernels.h"
#include "record/storage.h"

namespace tiledev {

namespace {

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size,
                          std::optional<at::MemoryFormat> memory_format) {
  auto& impl = *self.unsafeGetTensorImpl();
  if (impl.sizes() != size) {
    at::detail::check_size_nonnegative(size);
    impl.set_sizes_contiguous(size);
    grow_storage(impl);
  }
  if (memory_format.has_value()) {
    TORCH_CHECK(*memory_format != at::MemoryFormat::Preserve, "Unsupported memory format ",
                *memory_format);
    impl.empty_tensor_restride(*memory_format);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  auto& impl = *self.unsafeGetTensorImpl();
  if (stride.data() != nullptr) {
    impl.set_sizes_and_strides(size, stride, offset);
  } else {
    impl.set_storage_offset(offset);
    impl.set_sizes_contiguous(size);
  }
  grow_storage(impl);
  return self;
}

at::Tensor& set_storage_whole(at::Tensor& self, at::Storage source) {
  const auto itemsize = static_cast<int64_t>(self.dtype().itemsize());
  const int64_t size = static_cast<int64_t>(source.nbytes()) / itemsize;
  return set_storage(self, std::move(source), 0, {size}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl()) {
    return self;
  }
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(),
                     source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  return set_storage(self, make_storage(0), 0, {0}, {});
}

bool has_compatible_shallow_copy_type(const at::Tensor&, const at::Tensor&) {
  return true;
}

}  // namespace

void register_views(torch::Library& m) {
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", &resize_);
  m.impl("_resize_output_", &at::native::_resize_output_);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_storage_whole);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_empty);
  m.impl("is_set_to", &at::native::is_set_to);
  // nn.Module.to then moves parameters in place: ties and optimizer references survive.
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

}  // namespace tiledev
