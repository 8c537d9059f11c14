#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tiledev {

struct TensorMeta;

// Where the value of a buffer came from, for messages about memory. Small, since every buffer has
// one: only the sizes of the shapes that are met in practice are kept.
struct Origin {
  const char* op = nullptr;  // never freed; null: unknown
  uint32_t location = 0;     // see record/bridge.h
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  uint8_t dims = kUnknown;
  std::array<uint32_t, 5> sizes{};

  static constexpr uint8_t kUnknown = UINT8_MAX;

  Origin() = default;
  Origin(const char* op, uint32_t location, const TensorMeta& meta, size_t buffer_nbytes);
};

struct LiveBuffer {
  size_t nbytes = 0;
  Origin origin;

  // "   64.0 MiB  Float[4096, 4096]  aten::mm"
  std::string describe() const;
};

// There is no memory for a buffer. The text says what was asked for and what there is. The largest
// live buffers are kept apart, since workers cannot say which source line a location stands for:
// whoever hands the error to the user adds them (record/memory_errors.h).
class OutOfMemory final : public c10::OutOfMemoryError {
 public:
  OutOfMemory(std::string text, std::vector<LiveBuffer> largest);
  // The buffers, once; then none.
  std::vector<LiveBuffer> take_largest();

 private:
  std::vector<LiveBuffer> largest_;
};

// "3.5 MiB"
std::string readable_nbytes(size_t nbytes);

}  // namespace tiledev
