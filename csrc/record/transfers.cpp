#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zero.h>

#include <algorithm>
#include <utility>

#include "record/bridge.h"
#include "record/host_call.h"
#include "record/kernels.h"
#include "record/plain_dispatch.h"
#include "record/recorder.h"
#include "record/session.h"
#include "record/storage.h"

namespace tiledev {

namespace {

// Nobody has read or written the buffer yet, nor is about to.
bool untouched(Buffer& buffer) {
  const std::lock_guard lock(Session::get().mutex());
  return buffer.pending_uses == 0 && !buffer.executor_state && !buffer.has_memory();
}

void copy_on_host(const at::Tensor& to, const at::Tensor& from) {
  const WithoutInterpreter released;
  const PlainDispatch plain;
  to.copy_(from);
}

// A device tensor whose value is a copy of `source`, as it is now.
at::Tensor capture(const at::Tensor& source, at::ScalarType dtype) {
  TensorMeta meta;
  meta.sizes = Dims(source.sizes());
  meta.strides.resize(meta.sizes.size());
  int64_t stride = 1;
  for (size_t d = meta.sizes.size(); d-- > 0;) {
    meta.strides[d] = stride;
    stride *= std::max<int64_t>(1, meta.sizes[d]);
  }
  meta.dtype = dtype;
  meta.numel = source.numel();
  // Not by at::empty, which fills in deterministic mode: later than the copy below.
  at::Tensor staged = make_tensor(make_storage(meta.storage_nbytes()), meta);
  copy_on_host(host_alias(staged), source);
  return staged;
}

// A copy of a view onto itself does nothing, on the CPU before it looks at anything else.
bool same_view(const at::Tensor& to, const at::Tensor& from) {
  return to.is_alias_of(from) && to.storage_offset() == from.storage_offset() &&
         to.sizes() == from.sizes() && to.strides() == from.strides() &&
         to.scalar_type() == from.scalar_type() && to.is_conj() == from.is_conj() &&
         to.is_neg() == from.is_neg();
}

// A single element, spread out by expand().
bool is_spread(const at::Tensor& tensor) {
  const auto strides = tensor.strides();
  return std::all_of(strides.begin(), strides.end(), [](int64_t stride) { return stride == 0; });
}

void copy_within_device(const at::Tensor& to, const at::Tensor& from) {
  if (same_view(to, from)) {
    return;
  }
  if (to.dim() > 0 && to.sizes() == from.sizes() && to.is_alias_of(from) && is_spread(from)) {
    // `x[...] = x[0]` is a fill on the CPU, which may read from what it writes.
    static OpState& fill = state_of("aten::fill_", "Tensor");
    record_op(fill, to, from.as_strided({}, {}));
    return;
  }
  static OpState& copy = state_of("aten::copy_", "");
  record_op(copy, to, from, false);
}

void copy_to_device(const at::Tensor& to, const at::Tensor& from) {
  if (untouched(buffer_of(*to.unsafeGetTensorImpl()))) {
    Buffer& buffer = buffer_of(*to.unsafeGetTensorImpl());
    const TensorMeta meta = meta_of(*to.unsafeGetTensorImpl());
    buffer.origin = {"aten::copy_", bridge().capture_location(), meta, buffer.nbytes()};
    copy_on_host(host_alias(to), from);
    return;
  }
  copy_within_device(to, capture(from, to.scalar_type()));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool) {
  Session::get().check_usable();
  TORCH_CHECK(!dst._is_zerotensor(), "ZeroTensors are immutable. Please materialize the tensor ",
              "with `.clone()`, if you want a mutable zero tensor.");
  if (self._is_zerotensor()) {
    dst.zero_();
    return dst;
  }
  const bool from_device = on_device(*self.unsafeGetTensorImpl());
  const bool to_device = on_device(*dst.unsafeGetTensorImpl());
  TORCH_CHECK((from_device || self.is_cpu()) && (to_device || dst.is_cpu()),
              "[copy_] tiledev copies from and to the CPU only, not from ", self.device(), " to ",
              dst.device(), "; copy by way of the CPU");
  if (from_device && to_device) {
    copy_within_device(dst, self);
  } else if (to_device) {
    copy_to_device(dst, self);
  } else {
    copy_on_host(dst, read_out(self));
  }
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  return at::_local_scalar_dense(read_out(self));
}

// Everything runs in program order on one stream.
void record_stream(at::Tensor&, c10::Stream) {}

}  // namespace

void register_transfers(torch::Library& m) {
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("record_stream", &record_stream);
}

}  // namespace tiledev
