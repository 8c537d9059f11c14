#include "record/storage.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <utility>

#include "record/memory_errors.h"
#include "record/recorder.h"
#include "record/session.h"

namespace tiledev {

namespace {

void release_buffer(void* context) {
  auto buffer = BufferPtr::reclaim(static_cast<Buffer*>(context));
  buffer->set_external(false);
}

c10::Allocator* device_allocator() {
  static c10::Allocator* const allocator = c10::GetAllocator(kDevice);
  return allocator;
}

}  // namespace

BufferPtr make_buffer(size_t nbytes) {
  return with_largest_buffers([nbytes] { return Session::get().buffers().create(nbytes); });
}

c10::DataPtr make_data_ptr(BufferPtr buffer) {
  buffer->set_external(true);
  void* const address = reinterpret_cast<void*>(buffer->address());
  return {address, buffer.release(), &release_buffer, c10::Device(kDevice, 0)};
}

c10::Storage make_storage(size_t nbytes) {
  return c10::Storage(c10::Storage::use_byte_size_t{}, nbytes,
                      make_data_ptr(Session::get().buffers().create(nbytes)), device_allocator(),
                      /*resizable=*/true);
}

at::Tensor make_tensor(c10::Storage storage, const TensorMeta& meta, int64_t offset) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(meta.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes, meta.strides, offset);
  if (meta.conj) {
    tensor._set_conj(true);
  }
  if (meta.neg) {
    tensor._set_neg(true);
  }
  return tensor;
}

Buffer& buffer_of(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  if (data.get_deleter() == &release_buffer) {
    return *static_cast<Buffer*>(data.get_context());
  }
  // Somebody wrapped a device pointer, as from_blob does: the owner keeps the buffer alive.
  const auto buffer = Session::get().buffers().find(reinterpret_cast<uintptr_t>(data.get()));
  TORCH_CHECK(buffer, "[tiledev] the storage of this tensor was not made by tiledev");
  return *buffer;
}

Buffer& buffer_of(const c10::TensorImpl& tensor) {
  return buffer_of(*tensor.unsafe_storage().unsafeGetStorageImpl());
}

BufferPtr buffer_ptr(const c10::TensorImpl& tensor) {
  return BufferPtr::reclaim_copy(&buffer_of(tensor));
}

void resize_storage(c10::StorageImpl& storage, size_t nbytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  const auto old = BufferPtr::reclaim_copy(&buffer_of(storage));
  auto fresh = make_buffer(nbytes);
  const size_t kept = std::min(old->nbytes(), nbytes);
  c10::DataPtr data = make_data_ptr(fresh);
  if (kept > 0) {
    record_byte_copy(old, fresh, kept);
  }
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(nbytes);
}

void grow_storage(c10::TensorImpl& tensor) {
  if (tensor.numel() == 0) {
    return;
  }
  const size_t needed = at::detail::computeStorageNbytes(
      tensor.sizes(), tensor.strides(), tensor.itemsize(), tensor.storage_offset());
  auto& storage = *tensor.unsafe_storage().unsafeGetStorageImpl();
  if (needed > storage.nbytes()) {
    resize_storage(storage, needed);
  }
}

TensorMeta meta_of(const c10::TensorImpl& tensor) {
  TensorMeta meta;
  meta.sizes = Dims(tensor.sizes());
  meta.strides = Dims(tensor.strides());
  meta.dtype = c10::typeMetaToScalarType(tensor.dtype());
  meta.conj = tensor.is_conj();
  meta.neg = tensor.is_neg();
  meta.numel = tensor.numel();
  return meta;
}

}  // namespace tiledev
