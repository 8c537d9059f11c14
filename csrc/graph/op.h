#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tiledev {

// How an argument of an op takes part in a node. It follows from the schema alone.
enum class ArgKind : uint8_t {
  kTensor,              // Tensor, Tensor?
  kTensorList,          // Tensor[]
  kOptionalTensorList,  // Tensor?[]
  kGenerator,           // Generator?: ordered by its stream's token
  kDevice,              // Device?: replaced by the executing device
  kScalar,              // Scalar, float: its type is part of a signature, its value is not
  kScalarList,          // Scalar[]: as kScalar, for each element
  kConstant,            // all else: part of the signature
};

struct ArgTraits {
  ArgKind kind = ArgKind::kConstant;
  bool written = false;      // Tensor(a!)
  bool overwritten = false;  // written without being read: out=, fill_, the target of copy_
};

struct ReturnTraits {
  bool list = false;
  bool tensor = true;
  int alias_arg = -1;  // the written argument that this return is
};

// How the recorder treats an op. See record/ops.cpp for who decides.
enum class Handling : uint8_t {
  kRecord,    // becomes a node
  kFallback,  // runs at once on the host, counted
  kReadout,   // reads values back (equal, item): runs at once, by nature
  kView,      // a view without a kernel of its own: the host finds it
};

// Everything known about an op before its first call. One for each op, never freed.
struct OpTraits {
  explicit OpTraits(const c10::OperatorHandle& handle);

  c10::OperatorHandle op;
  std::string name;  // "aten::add.Tensor"
  std::vector<ArgTraits> args;
  std::vector<ReturnTraits> returns;
  Handling handling = Handling::kRecord;
  bool is_out_form = false;        // it has out= arguments
  bool in_place_only = false;      // every return is a written argument, and nothing is resized
  bool scalars_in_key = false;     // a Scalar's value decides a shape or an error (arange, pow)
  bool floats_in_key = true;       // ... also one of type float, whatever its value
  bool accepts_cpu_index = false;  // index tensors may live on the host
  uint64_t id = 0;

  // Whether the value of this Scalar argument is part of signatures.
  bool in_key(const c10::IValue& scalar) const;
};

}  // namespace tiledev
