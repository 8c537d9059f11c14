#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/fill.h>
#include <c10/core/Allocator.h>

#include <limits>

#include "record/kernels.h"
#include "record/storage.h"

namespace tiledev {

namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

void check_options(std::optional<at::Layout> layout, std::optional<at::Device> device,
                   std::optional<bool> pin_memory) {
  TORCH_CHECK(!device.has_value() || device->index() <= 0, "[empty] invalid device ", *device,
              "; there is one tiledev device, tiledev:0");
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kStrided) == at::kStrided,
                              "[empty] tiledev has dense (strided) tensors only, asked for ",
                              *layout);
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

// Deterministic mode makes the use of memory that nobody wrote visible.
void fill_if_deterministic(const at::Tensor& tensor) {
  auto& context = at::globalContext();
  if (!context.deterministicAlgorithms() || !context.deterministicFillUninitializedMemory()) {
    return;
  }
  const auto dtype = tensor.scalar_type();
  if (c10::isFloatingType(dtype) || c10::isComplexType(dtype)) {
    tensor.fill_(std::numeric_limits<double>::quiet_NaN());
  } else if (dtype == at::kBool) {
    tensor.fill_(true);
  } else if (dtype == at::kByte) {
    tensor.fill_(std::numeric_limits<uint8_t>::max());
  } else if (dtype == at::kChar) {
    tensor.fill_(std::numeric_limits<int8_t>::max());
  } else if (dtype == at::kShort) {
    tensor.fill_(std::numeric_limits<int16_t>::max());
  } else if (dtype == at::kInt) {
    tensor.fill_(std::numeric_limits<int32_t>::max());
  } else {
    tensor.fill_(std::numeric_limits<int64_t>::max());
  }
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> memory_format) {
  check_options(layout, device, pin_memory);
  at::Tensor tensor = at::detail::empty_generic(size, c10::GetAllocator(kDevice), kKeys,
                                                c10::dtype_or_default(dtype), memory_format);
  fill_if_deterministic(tensor);
  return tensor;
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, device, pin_memory);
  at::Tensor tensor = at::detail::empty_strided_generic(size, stride, c10::GetAllocator(kDevice),
                                                        kKeys, c10::dtype_or_default(dtype));
  fill_if_deterministic(tensor);
  return tensor;
}

// Autograd's zero tensors have no memory on other devices; here zeros that nobody reads never run.
at::Tensor efficient_zero_tensor(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                                 std::optional<bool> pin_memory) {
  return empty(size, dtype, layout, device, pin_memory, std::nullopt).zero_();
}

}  // namespace

void register_factories(torch::Library& m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_efficientzerotensor", &efficient_zero_tensor);
}

}  // namespace tiledev
