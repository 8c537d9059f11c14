#pragma once

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <optional>
#include <utility>
#include <vector>

#include "graph/node.h"
#include "graph/op.h"
#include "graph/random_stream.h"

namespace tiledev {

// One call of an op, taken apart: which device tensors it names, what goes into the key of its
// signature, and the values that do not. Built afresh for each call, without copying tensors.
class CallView {
 public:
  CallView(const OpTraits& op, c10::ArrayRef<c10::IValue> args);

  const OpTraits& op() const { return op_; }
  c10::ArrayRef<c10::IValue> args() const { return args_; }
  const std::vector<int64_t>& key() const { return key_; }
  const c10::SmallVector<c10::TensorImpl*, 6>& operands() const { return operands_; }
  const c10::SmallVector<uint8_t, 6>& written() const { return written_; }
  const c10::SmallVector<uint8_t, 6>& overwritten() const { return overwritten_; }
  c10::SmallVector<c10::IValue, 2>& values() { return values_; }
  const RandomStream* stream() const { return stream_; }
  // The signature's argument slots and tensor references, for a signature's first call.
  void describe(Signature& signature) const;
  bool has_operand() const { return !operands_.empty(); }

 private:
  void add_tensor(const at::Tensor& tensor, const ArgTraits& traits);
  void add_value_tensor(const at::Tensor& tensor);
  void add_scalar(const c10::IValue& value);
  void add_scalar_list(const c10::IValue& value);
  void add_generator(const c10::IValue& value);
  void add_constant(const c10::IValue& value);
  [[noreturn]] void reject(const at::Tensor& tensor) const;

  const OpTraits& op_;
  c10::ArrayRef<c10::IValue> args_;
  std::vector<int64_t>& key_;
  c10::SmallVector<c10::TensorImpl*, 6> operands_;
  c10::SmallVector<uint8_t, 6> written_;
  c10::SmallVector<uint8_t, 6> overwritten_;
  c10::SmallVector<c10::IValue, 2> values_;
  const RandomStream* stream_ = nullptr;
};

// A tensor argument, or a list of them, with f applied to each defined tensor.
template <typename F>
c10::IValue map_tensors(const c10::IValue& value, ArgKind kind, F&& f) {
  const auto apply = [&](const c10::IValue& element) {
    const bool defined = element.isTensor() && element.toTensor().defined();
    return defined ? f(element.toTensor()) : at::Tensor();
  };
  if (kind == ArgKind::kTensor) {
    return value.isTensor() && value.toTensor().defined() ? c10::IValue(apply(value)) : value;
  }
  if (!value.isList()) {
    return value;
  }
  c10::List<at::Tensor> plain;
  c10::List<std::optional<at::Tensor>> optional;
  for (const c10::IValue& element : value.toListRef()) {
    at::Tensor tensor = apply(element);
    if (kind == ArgKind::kTensorList) {
      plain.push_back(std::move(tensor));
    } else {
      optional.push_back(tensor.defined() ? std::optional(std::move(tensor)) : std::nullopt);
    }
  }
  return kind == ArgKind::kTensorList ? c10::IValue(std::move(plain))
                                      : c10::IValue(std::move(optional));
}

// The stream of a Generator argument; the default generator's for None.
const RandomStream& stream_of(const c10::IValue& generator);
// Installed by device/generator.cpp.
void set_default_stream(const RandomStream& (*get)());

}  // namespace tiledev
