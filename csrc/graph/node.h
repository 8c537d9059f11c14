#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "graph/buffer.h"
#include "graph/signature.h"

namespace tiledev {

// A view of a buffer as a node uses it; sizes and strides stand in the signature.
struct Operand {
  BufferPtr buffer;
  int64_t offset = 0;  // in elements
};

// Work that is not an ATen op but keeps its place in program order, such as seeding a generator.
struct HostCall {
  std::string name;
  std::function<void()> body;
};

// One recorded op. `operands` are what it reads and writes, `results` the buffers that it fills for
// the first time, `tokens` what only orders it (a generator's stream), read and written.
struct Node {
  SignaturePtr signature;  // null for a host call
  c10::SmallVector<Operand, 3> operands;
  c10::SmallVector<BufferPtr, 1> results;
  c10::SmallVector<c10::IValue, 1> values;  // scalars, host scalars, generators: not in a plan
  BufferPtr token;
  std::shared_ptr<HostCall> host;
  uint32_t location = 0;

  const std::string& name() const { return host ? host->name : signature->op->name; }
  bool writes(size_t operand) const { return signature->operand_written[operand] != 0; }
  // Whether nothing of the operand's buffer is left, or read, once the node has run.
  bool replaces(size_t operand) const {
    const TensorMeta& meta = signature->operands[operand];
    return signature->operand_overwritten[operand] != 0 && operands[operand].offset == 0 &&
           static_cast<size_t>(meta.numel) * c10::elementSize(meta.dtype) ==
               operands[operand].buffer->nbytes();
  }
};

// Calls f(buffer, reads, writes, fresh) for every buffer that a node touches.
template <typename F>
void for_each_access(const Node& node, F&& f) {
  for (size_t i = 0; i < node.operands.size(); ++i) {
    f(*node.operands[i].buffer, true, node.writes(i), false);
  }
  if (node.token) {
    f(*node.token, true, true, false);
  }
  for (const auto& buffer : node.results) {
    if (buffer) {
      f(*buffer, false, true, true);
    }
  }
}

}  // namespace tiledev
