#include "record/overrides.h"

#include <ATen/core/Tensor.h>

#include <string_view>

#include "record/storage.h"

namespace tiledev {

namespace {

bool is_index_put(std::string_view name) {
  return name == "aten::index_put_" || name == "aten::_index_put_impl_";
}

// Whether one of the indices of an indexing op is a mask.
bool has_mask(const CallView& call) {
  for (size_t i = 0; i < call.args().size(); ++i) {
    if (call.op().args[i].kind != ArgKind::kOptionalTensorList) {
      continue;
    }
    for (const c10::IValue& element : call.args()[i].toListRef()) {
      const auto tensor = element.toOptional<at::Tensor>();
      if (tensor && tensor->defined() &&
          (tensor->scalar_type() == at::kBool || tensor->scalar_type() == at::kByte)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

bool skips_meta(const CallView& call) {
  // A mask has as many elements to write as it has true values, but what is written into is known.
  return is_index_put(call.op().name) && has_mask(call);
}

const char* needs_values(const CallView& call) {
  const std::string_view name = call.op().name;
  const bool index =
      name.rfind("aten::index.Tensor", 0) == 0 || name.rfind("aten::_unsafe_index.Tensor", 0) == 0;
  return index && has_mask(call) ? "a mask selects as many elements as it has true values"
                                 : nullptr;
}

}  // namespace tiledev
