#include "runtime/strips.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/streaming.h"

namespace tiledev {

namespace {

// A tensor is a number that the user gave to an op between tensors.
float number_in(const c10::IValue& value, float missing) {
  if (value.isNone()) {
    return missing;
  }
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    switch (tensor.scalar_type()) {
      case at::kDouble:
        return static_cast<float>(*tensor.const_data_ptr<double>());
      case at::kFloat:
        return *tensor.const_data_ptr<float>();
      case at::kLong:
        return static_cast<float>(*tensor.const_data_ptr<int64_t>());
      default:
        return tensor.item().toFloat();
    }
  }
  return value.toScalar().toFloat();
}

float* data_of(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return static_cast<float*>(impl->unsafe_storage().unsafeGetStorageImpl()->mutable_data()) +
         impl->storage_offset();
}

}  // namespace

float* StripMemory::reserve(size_t strips) {
  constexpr size_t kVector = 16;
  const size_t floats = strips * kStrip + kVector;
  if (floats > floats_) {
    memory_.reset(new float[floats]);
    floats_ = floats;
  }
  const auto address = reinterpret_cast<uintptr_t>(memory_.get());
  constexpr uintptr_t kAlignment = kVector * sizeof(float);
  return memory_.get() + (kAlignment - address % kAlignment) % kAlignment / sizeof(float);
}

StripRunner::StripRunner(const StripRun& run, StripMemory& memory, int64_t elements)
    : run_(run), elements_(elements), strips_(memory.reserve(run.slots + run.numbers)) {}

void StripRunner::add(const StripCall& call, StripKernel kernel,
                      const std::vector<at::Tensor>& tensors,
                      const std::vector<c10::IValue>& args) {
  Call& to = calls_.emplace_back();
  to.kernel = kernel;
  for (const StripInput& input : call.inputs) {
    Input& in = to.inputs[to.count++];
    switch (input.kind) {
      case StripInput::Kind::kTile:
        in.data = data_of(tensors[input.tensor]);
        in.moves = true;
        break;
      case StripInput::Kind::kSlot:
        in.data = slot(input.slot);
        break;
      case StripInput::Kind::kNumber:
        in.data = number(number_in(args[input.arg], input.missing));
        break;
      case StripInput::Kind::kPattern:
        in.data = data_of(tensors[input.tensor]);
        in.pattern = &input;
        break;
    }
  }
  to.stream = call.may_stream && beyond_caches(tensors[call.tensor]);
  if (call.slot < 0 || call.may_stream) {
    to.out = data_of(tensors[call.tensor]);
  }
  if (to.out == nullptr || to.stream) {
    to.slot = slot(static_cast<uint32_t>(call.slot));
  }
}

// A strip of this number; one for all inputs that have it.
const float* StripRunner::number(float value) {
  for (uint32_t i = 0; i < numbers_; ++i) {
    const float* strip = slot(run_.slots + i);
    if (std::bit_cast<uint32_t>(*strip) == std::bit_cast<uint32_t>(value)) {
      return strip;
    }
  }
  float* strip = slot(run_.slots + numbers_++);
  std::fill_n(strip, std::min(kStrip, elements_), value);
  return strip;
}

// The strip of a broadcast tensor that begins at element `at` of the tile.
const float* StripRunner::fill(const StripInput& pattern, const float* data, int64_t at,
                               int64_t n) const {
  const int64_t repeat = pattern.repeat, period = pattern.period, stride = pattern.stride;
  int64_t from = period > 0 ? at / repeat % period : at / repeat;
  float* const strip = slot(pattern.slot);
  if (repeat == 1 && stride == 1) {
    if (period == 0 || from + n <= period) {
      return data + from;
    }
    for (int64_t i = 0; i < n;) {
      const int64_t some = std::min(n - i, period - from);
      std::memcpy(strip + i, data + from, static_cast<size_t>(some) * sizeof(float));
      i += some;
      from = 0;
    }
    return strip;
  }
  if (repeat == 1) {
    for (int64_t i = 0; i < n; ++i) {
      strip[i] = data[from * stride];
      from = from + 1 == period ? 0 : from + 1;
    }
    return strip;
  }
  int64_t left = repeat - at % repeat;
  for (int64_t i = 0; i < n;) {
    const int64_t some = std::min(n - i, left);
    std::fill_n(strip + i, some, data[from * stride]);
    i += some;
    from = from + 1 == period ? 0 : from + 1;
    left = repeat;
  }
  return strip;
}

void StripRunner::run() {
  for (int64_t at = 0; at < elements_; at += kStrip) {
    const int64_t n = std::min(kStrip, elements_ - at);
    for (const Call& call : calls_) {
      const float* in[4];
      for (uint32_t i = 0; i < call.count; ++i) {
        const Input& input = call.inputs[i];
        in[i] = input.pattern != nullptr ? fill(*input.pattern, input.data, at, n)
                                         : input.data + (input.moves ? at : 0);
      }
      float* const out = call.slot != nullptr ? call.slot : call.out + at;
      call.kernel(in, out, n);
      if (call.stream) {
        stream_copy(out, call.out + at, n);
      }
    }
  }
  if (std::any_of(calls_.begin(), calls_.end(), [](const Call& call) { return call.stream; })) {
    stream_fence();
  }
}

}  // namespace tiledev
