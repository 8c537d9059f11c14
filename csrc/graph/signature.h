#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <vector>

#include "graph/op.h"

namespace tiledev {

using Dims = c10::SmallVector<int64_t, 5>;

// What is known of a tensor without its values and without its place in a buffer.
struct TensorMeta {
  Dims sizes;
  Dims strides;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  bool conj = false;
  bool neg = false;
  int64_t numel = 0;

  // The bytes of a buffer that holds just this tensor.
  size_t storage_nbytes() const;
};

struct OutputMeta {
  enum class Kind : uint8_t { kFresh, kOperand, kUndefined };
  Kind kind = Kind::kFresh;
  uint32_t operand = 0;  // of kOperand
  TensorMeta meta;       // of kFresh
};

// Where a tensor argument, or an element of a list of tensors, comes from.
struct TensorRef {
  enum class Kind : uint8_t { kOperand, kValue, kUndefined };
  Kind kind = Kind::kUndefined;
  uint32_t index = 0;  // of the node's operands or values
};

// One argument of the call that runs a node.
struct ArgSlot {
  ArgKind kind = ArgKind::kConstant;
  uint32_t begin =
      0;  // tensors: the range in `tensor_refs`; kScalar, kGenerator: the value's index
  uint32_t count = 0;
  c10::IValue constant;
  std::string note;  // what the key has of a value: "=2.5", or " (float)" of its type alone
};

// An op together with the metadata of its operands, its constant arguments and the metadata that
// follows for its outputs: all of a node that does not differ from one step to the next. Equal
// signatures are one object. Immutable once made.
struct Signature final : c10::intrusive_ptr_target {
  const OpTraits* op = nullptr;
  uint64_t id = 0;
  std::vector<int64_t> key;
  std::vector<TensorMeta> operands;
  std::vector<uint8_t> operand_written;
  std::vector<uint8_t> operand_overwritten;  // all of its elements, without being read
  std::vector<TensorRef> tensor_refs;
  std::vector<ArgSlot> args;
  std::vector<OutputMeta> outputs;      // flat
  std::vector<uint32_t> return_counts;  // of outputs, for each return of the schema
  std::vector<std::pair<uint32_t, TensorMeta>> resized;  // out= operands that take a new shape
  int64_t work = 0;             // elements read and written: large ones run one after the other
  bool needs_dispatch = false;  // an operand has a lazy bit: run through the whole dispatcher
};

using SignaturePtr = c10::intrusive_ptr<Signature>;

}  // namespace tiledev
