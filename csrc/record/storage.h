#pragma once

#include <ATen/core/Tensor.h>

#include "graph/buffer.h"
#include "graph/signature.h"

namespace tiledev {

constexpr c10::DeviceType kDevice = c10::DeviceType::PrivateUse1;

inline bool on_device(const c10::TensorImpl& impl) {
  return impl.device_type() == kDevice;
}

// A buffer for a storage on the device. Its out-of-memory errors name the largest ones, so not
// under the session's lock.
BufferPtr make_buffer(size_t nbytes);

// The data pointer of a storage on the device: the buffer's address, owning the buffer.
c10::DataPtr make_data_ptr(BufferPtr buffer);

// A storage over a new buffer.
c10::Storage make_storage(size_t nbytes);

// A tensor over a storage on the device. The metadata must fit.
at::Tensor make_tensor(c10::Storage storage, const TensorMeta& meta, int64_t offset = 0);

// The buffer behind a storage or tensor of the device.
Buffer& buffer_of(const c10::StorageImpl& storage);
Buffer& buffer_of(const c10::TensorImpl& tensor);
BufferPtr buffer_ptr(const c10::TensorImpl& tensor);

// Gives the storage a buffer of another size that starts with the old bytes, as a node.
void resize_storage(c10::StorageImpl& storage, size_t nbytes);

// Makes the storage large enough for the tensor's sizes, strides and offset; what it holds stays.
void grow_storage(c10::TensorImpl& tensor);

TensorMeta meta_of(const c10::TensorImpl& tensor);

}  // namespace tiledev
