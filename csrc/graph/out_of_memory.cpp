#include "graph/out_of_memory.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "graph/signature.h"

namespace tiledev {

Origin::Origin(const char* name, uint32_t where, const TensorMeta& meta, size_t buffer_nbytes)
    : op(name), location(where), dtype(meta.dtype) {
  // The shape of a view says nothing about its buffer.
  if (meta.sizes.size() > sizes.size() ||
      static_cast<size_t>(meta.numel) * c10::elementSize(meta.dtype) != buffer_nbytes) {
    return;
  }
  for (size_t i = 0; i < meta.sizes.size(); ++i) {
    if (meta.sizes[i] > UINT32_MAX) {
      return;
    }
    sizes[i] = static_cast<uint32_t>(meta.sizes[i]);
  }
  dims = static_cast<uint8_t>(meta.sizes.size());
}

std::string LiveBuffer::describe() const {
  constexpr size_t kWidth = 12;
  std::string text = readable_nbytes(nbytes);
  text.insert(0, std::max(text.size(), kWidth) - text.size(), ' ');
  if (origin.dtype != c10::ScalarType::Undefined) {
    text += std::string("  ") + c10::toString(origin.dtype);
  }
  if (origin.dims != Origin::kUnknown) {
    text += '[';
    for (size_t i = 0; i < origin.dims; ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(origin.sizes[i]);
    }
    text += ']';
  }
  return origin.op == nullptr ? text : text + "  " + origin.op;
}

OutOfMemory::OutOfMemory(std::string text, std::vector<LiveBuffer> largest)
    : c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, std::move(text)),
      largest_(std::move(largest)) {}

std::vector<LiveBuffer> OutOfMemory::take_largest() {
  return std::exchange(largest_, {});
}

std::string readable_nbytes(size_t nbytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (nbytes < 1024) {
    return std::to_string(nbytes) + " B";
  }
  auto value = static_cast<double>(nbytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) {
    value /= 1024;
  }
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f %s", value, kUnits[unit]);
  return text;
}

}  // namespace tiledev
