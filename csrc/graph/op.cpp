#include "graph/op.h"

#include <ATen/core/jit_type.h>

#include <atomic>
#include <cmath>

namespace tiledev {

namespace {

ArgKind arg_kind(const c10::Argument& arg) {
  c10::TypePtr type = arg.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return ArgKind::kTensor;
    case c10::TypeKind::ListType: {
      const auto element = type->castRaw<c10::ListType>()->getElementType();
      if (element->kind() == c10::TypeKind::TensorType) {
        return ArgKind::kTensorList;
      }
      if (element->kind() == c10::TypeKind::NumberType) {
        return ArgKind::kScalarList;
      }
      const auto optional = element->cast<c10::OptionalType>();
      if (optional && optional->getElementType()->kind() == c10::TypeKind::TensorType) {
        return ArgKind::kOptionalTensorList;
      }
      return ArgKind::kConstant;
    }
    case c10::TypeKind::GeneratorType:
      return ArgKind::kGenerator;
    case c10::TypeKind::DeviceObjType:
      return ArgKind::kDevice;
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
      return ArgKind::kScalar;
    default:
      return ArgKind::kConstant;
  }
}

bool written(const c10::Argument& arg) {
  return arg.alias_info() != nullptr && arg.alias_info()->isWrite();
}

int aliased_arg(const c10::FunctionSchema& schema, const c10::Argument& ret) {
  if (ret.alias_info() == nullptr) {
    return -1;
  }
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* info = schema.arguments()[i].alias_info();
    if (info != nullptr && info->beforeSets() == ret.alias_info()->beforeSets()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

bool is_out_argument(const c10::Argument& arg) {
  return arg.is_out();
}

}  // namespace

OpTraits::OpTraits(const c10::OperatorHandle& handle)
    : op(handle), name(c10::toString(handle.operator_name())) {
  static std::atomic<uint64_t> next_id{1};
  id = next_id.fetch_add(1, std::memory_order_relaxed);
  const auto& schema = handle.schema();
  bool resizes = false;
  for (const auto& arg : schema.arguments()) {
    args.push_back({arg_kind(arg), written(arg), is_out_argument(arg)});
    resizes |= written(arg) && is_out_argument(arg);
  }
  is_out_form = resizes;
  in_place_only = !resizes;
  for (const auto& ret : schema.returns()) {
    ReturnTraits traits;
    const auto& type = ret.real_type();
    traits.list = type->kind() == c10::TypeKind::ListType;
    traits.tensor = type->isSubtypeOf(*c10::TensorType::get()) ||
                    type->isSubtypeOf(*c10::ListType::ofTensors());
    traits.alias_arg = aliased_arg(schema, ret);
    in_place_only &= traits.alias_arg >= 0 && args[traits.alias_arg].written;
    if (!traits.tensor) {
      handling = Handling::kReadout;
    }
    if (ret.alias_info() != nullptr && !ret.alias_info()->isWrite()) {
      handling = Handling::kView;
    }
    returns.push_back(traits);
  }
}

bool OpTraits::in_key(const c10::IValue& scalar) const {
  if (!scalars_in_key || floats_in_key || !scalar.isDouble()) {
    return scalars_in_key;
  }
  const double value = scalar.toDouble();
  return value == std::trunc(value) && std::abs(value) <= 3;
}

}  // namespace tiledev
