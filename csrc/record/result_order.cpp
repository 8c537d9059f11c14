#include "record/result_order.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "record/stand_in.h"

namespace tiledev {

namespace {

// What kernels ask of sizes differs: a window must fit, channels must be a multiple of something.
constexpr StandInCall::Limits kAttempts[] = {
    {.size = 2}, {.size = 8}, {.size = 8, .batch = 2, .first_alone = true}};

constexpr int64_t kAffordable = int64_t{1} << 17;  // elements of the operands that are cut down

int64_t elements(const StandInCall& call) {
  int64_t total = 0;
  for (const at::Tensor& operand : call.operands()) {
    total += operand.numel();
  }
  return total;
}

// The strides of a tensor of these sizes in the order of a small one; nothing if that does not show
// the order.
std::optional<Dims> strides_like(const at::Tensor& small, const Dims& sizes) {
  if (!small.defined() || small.dim() != static_cast<int64_t>(sizes.size()) ||
      !small.is_non_overlapping_and_dense()) {
    return std::nullopt;
  }
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && small.size(static_cast<int64_t>(d)) < 2) {
      return std::nullopt;
    }
  }
  return dense_strides(sizes, small.strides());
}

// A result, or an out= argument that takes a new shape.
struct Open {
  TensorMeta* meta;
  size_t number;  // of the result, or of the operand
  bool operand;
};

// Those whose order matters: with two dimensions, and dense.
std::vector<Open> open_results(Signature& signature) {
  std::vector<Open> open;
  const auto add = [&](TensorMeta& meta, size_t number, bool operand) {
    const auto wide = [](int64_t size) { return size > 1; };
    if (meta.numel > 0 && std::count_if(meta.sizes.begin(), meta.sizes.end(), wide) > 1 &&
        same_strides(meta.sizes, meta.strides, dense_strides(meta.sizes, meta.strides))) {
      open.push_back({&meta, number, operand});
    }
  };
  for (size_t i = 0; i < signature.outputs.size(); ++i) {
    if (signature.outputs[i].kind == OutputMeta::Kind::kFresh) {
      add(signature.outputs[i].meta, i, false);
    }
  }
  for (auto& [operand, meta] : signature.resized) {
    add(meta, operand, true);
  }
  return open;
}

// All results, one after the other.
std::vector<at::Tensor> flat_results(const StandInCall& call) {
  std::vector<at::Tensor> flat;
  for (const c10::IValue& value : call.results()) {
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        flat.push_back(tensor);
      }
    } else {
      flat.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
    }
  }
  return flat;
}

// Operands that are cut down may not fit each other: what kernels say of it is nobody's concern.
struct Silent final : c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

}  // namespace

void correct_order(const CallView& call, Signature& signature) {
  std::vector<Open> open = open_results(signature);
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  for (const StandInCall::Limits& limits : kAttempts) {
    if (open.empty()) {
      return;
    }
    try {
      StandInCall small(call, limits);
      if (elements(small) > kAffordable) {
        continue;
      }
      small.run();
      const std::vector<at::Tensor> results = flat_results(small);
      std::erase_if(open, [&](const Open& one) {
        const auto& tensors = one.operand ? small.operands() : results;
        const auto strides = one.number < tensors.size()
                                 ? strides_like(tensors[one.number], one.meta->sizes)
                                 : std::nullopt;
        if (strides && !same_strides(one.meta->sizes, one.meta->strides, *strides)) {
          one.meta->strides = *strides;
          if (one.operand) {
            signature.operands[one.number].strides = *strides;
          }
        }
        return strides.has_value();
      });
    } catch (const std::exception&) {  // sizes that do not suit the op
    }
  }
}

}  // namespace tiledev
