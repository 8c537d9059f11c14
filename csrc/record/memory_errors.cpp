#include "record/memory_errors.h"

#include <string>

#include "record/bridge.h"

namespace tiledev {

void name_largest_buffers(OutOfMemory& error) {
  std::string text;
  for (const LiveBuffer& buffer : error.take_largest()) {
    const std::string where = bridge().describe_location(buffer.origin.location);
    text += "\n" + buffer.describe() + (where.empty() ? "" : " at " + where);
  }
  if (!text.empty()) {
    error.add_context("the largest live tensors:" + text);
  }
}

}  // namespace tiledev
