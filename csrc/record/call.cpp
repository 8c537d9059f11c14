#include "record/call.h"

#include <ATen/Context.h>
#include <ATen/core/List.h>
#include <ATen/ops/clone.h>
#include <c10/core/DefaultDtype.h>

#include <bit>
#include <string_view>

#include "record/storage.h"

namespace tiledev {

namespace {

// First words of what a key says of each argument.
enum Tag : int64_t {
  kUndefined = 1,
  kOperandTag,
  kValueTag,
  kListTag,
  kScalarTag,
  kGeneratorTag,
  kDeviceTag,
  kNone,
  kInt,
  kBool,
  kDouble,
  kComplex,
  kString,
  kIntList,
  kDoubleList,
  kBoolList,
  kOther,
};

const RandomStream& (*default_stream)() = nullptr;

int64_t pack(c10::ScalarType dtype, bool conj, bool neg, bool wrapped, size_t dims) {
  return (static_cast<int64_t>(dtype) << 16) | (int64_t{conj} << 10) | (int64_t{neg} << 9) |
         (int64_t{wrapped} << 8) | static_cast<int64_t>(dims);
}

void append_string(std::vector<int64_t>& key, std::string_view text) {
  key.push_back(static_cast<int64_t>(text.size()));
  for (const char c : text) {
    key.push_back(c);
  }
}

int64_t scalar_type_tag(const c10::IValue& value) {
  return value.isNone()            ? kNone
         : value.isBool()          ? kBool
         : value.isInt()           ? kInt
         : value.isComplexDouble() ? kComplex
                                   : kDouble;
}

// The type of a scalar, or the types of a list of them: "int".
std::string type_name(const c10::IValue& value) {
  if (value.isList()) {
    std::string names;
    for (const c10::IValue& element : value.toListRef()) {
      names += (names.empty() ? "" : ", ") + type_name(element);
    }
    return names;
  }
  switch (scalar_type_tag(value)) {
    case kNone:
      return "None";
    case kBool:
      return "bool";
    case kInt:
      return "int";
    case kComplex:
      return "complex";
    default:
      return "float";
  }
}

}  // namespace

void set_default_stream(const RandomStream& (*get)()) {
  default_stream = get;
}

const RandomStream& stream_of(const c10::IValue& value) {
  if (!value.isGenerator() || !value.toGenerator().defined()) {
    return default_stream();
  }
  const at::Generator generator = value.toGenerator();
  auto* source = dynamic_cast<RandomSource*>(generator.unsafeGetGeneratorImpl());
  TORCH_CHECK(source != nullptr, "Expected a '", c10::Device(kDevice),
              "' device type for generator but found '", generator.device(), "'");
  return source->stream();
}

CallView::CallView(const OpTraits& op, c10::ArrayRef<c10::IValue> args)
    : op_(op), args_(args), key_([]() -> std::vector<int64_t>& {
        thread_local std::vector<int64_t> key;
        key.clear();
        return key;
      }()) {
  key_.push_back(static_cast<int64_t>(c10::get_default_dtype_as_scalartype()));
  for (size_t i = 0; i < args.size(); ++i) {
    const c10::IValue& arg = args[i];
    const ArgTraits& traits = op.args[i];
    switch (traits.kind) {
      case ArgKind::kTensor:
        if (arg.isTensor()) {
          add_tensor(arg.toTensor(), traits);
        } else {
          key_.push_back(kNone);
        }
        break;
      case ArgKind::kTensorList:
      case ArgKind::kOptionalTensorList: {
        if (!arg.isList()) {
          key_.push_back(kNone);
          break;
        }
        const auto list = arg.toListRef();
        key_.push_back(kListTag);
        key_.push_back(static_cast<int64_t>(list.size()));
        for (const c10::IValue& element : list) {
          add_tensor(element.isTensor() ? element.toTensor() : at::Tensor(), traits);
        }
        break;
      }
      case ArgKind::kScalar:
        add_scalar(arg);
        break;
      case ArgKind::kScalarList:
        add_scalar_list(arg);
        break;
      case ArgKind::kGenerator:
        add_generator(arg);
        break;
      case ArgKind::kDevice:
        key_.push_back(kDeviceTag);
        break;
      default:
        add_constant(arg);
    }
  }
}

void CallView::add_tensor(const at::Tensor& tensor, const ArgTraits& traits) {
  if (!tensor.defined()) {
    key_.push_back(kUndefined);
    return;
  }
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!on_device(*impl) || !impl->has_storage()) {
    add_value_tensor(tensor);
    return;
  }
  operands_.push_back(impl);
  written_.push_back(traits.written);
  overwritten_.push_back(traits.overwritten);
  const auto sizes = impl->sizes();
  const auto strides = impl->strides();
  key_.push_back(kOperandTag);
  key_.push_back(pack(c10::typeMetaToScalarType(impl->dtype()), impl->is_conj(), impl->is_neg(),
                      impl->is_wrapped_number(), sizes.size()));
  key_.insert(key_.end(), sizes.begin(), sizes.end());
  key_.insert(key_.end(), strides.begin(), strides.end());
}

// A host scalar goes along by value: its owner may change it before the node runs.
void CallView::add_value_tensor(const at::Tensor& tensor) {
  const bool scalar =
      tensor.device().is_cpu() && tensor.layout() == c10::kStrided && tensor.dim() == 0;
  if (!scalar) {
    reject(tensor);
  }
  const bool wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  key_.push_back(kValueTag);
  key_.push_back(pack(tensor.scalar_type(), false, false, wrapped, 0));
  values_.emplace_back(wrapped ? tensor : tensor.detach().clone());
}

void CallView::reject(const at::Tensor& tensor) const {
  if (tensor.layout() != c10::kStrided) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "Could not run '", op_.name, "' with arguments of layout ",
                                tensor.layout(),
                                " together with tensors on tiledev; tiledev has "
                                "dense (strided) tensors only");
  }
  TORCH_CHECK(false,
              "Expected all tensors to be on the same device, but found at least two devices, ",
              c10::Device(kDevice, 0), " and ", tensor.device(), "! (when calling ", op_.name, ")");
}

void CallView::add_scalar(const c10::IValue& value) {
  if (op_.in_key(value)) {
    add_constant(value);
  } else {
    key_.push_back(kScalarTag);
    key_.push_back(scalar_type_tag(value));
  }
  values_.push_back(value);
}

void CallView::add_scalar_list(const c10::IValue& value) {
  key_.push_back(kListTag);
  if (!value.isList()) {
    key_.push_back(kNone);
  } else {
    for (const c10::IValue& element : value.toListRef()) {
      key_.push_back(scalar_type_tag(element));
    }
    key_.push_back(kListTag);
  }
  values_.push_back(value);
}

void CallView::add_generator(const c10::IValue& value) {
  key_.push_back(kGeneratorTag);
  stream_ = &stream_of(value);
  values_.emplace_back(stream_->generator);
}

void CallView::add_constant(const c10::IValue& value) {
  if (value.isNone()) {
    key_.push_back(kNone);
  } else if (value.isInt()) {
    key_.push_back(kInt);
    key_.push_back(value.toInt());
  } else if (value.isBool()) {
    key_.push_back(kBool);
    key_.push_back(value.toBool());
  } else if (value.isDouble()) {
    key_.push_back(kDouble);
    key_.push_back(std::bit_cast<int64_t>(value.toDouble()));
  } else if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    key_.push_back(kComplex);
    key_.push_back(std::bit_cast<int64_t>(number.real()));
    key_.push_back(std::bit_cast<int64_t>(number.imag()));
  } else if (value.isString()) {
    key_.push_back(kString);
    append_string(key_, value.toStringRef());
  } else if (value.isList()) {
    const auto list = value.toListRef();
    key_.push_back(kListTag);
    key_.push_back(static_cast<int64_t>(list.size()));
    for (const c10::IValue& element : list) {
      add_constant(element);
    }
  } else if (value.isSymInt()) {
    key_.push_back(kInt);
    key_.push_back(value.toSymInt().guard_int(__FILE__, __LINE__));
  } else {
    key_.push_back(kOther);
    append_string(key_, c10::str(value.tagKind(), value));
  }
}

void CallView::describe(Signature& signature) const {
  uint32_t operand = 0;
  uint32_t value = 0;
  const auto add_ref = [&](const c10::IValue& element) {
    TensorRef ref;
    if (element.isTensor() && element.toTensor().defined()) {
      const auto* impl = element.toTensor().unsafeGetTensorImpl();
      const bool is_operand = operand < operands_.size() && operands_[operand] == impl;
      ref.kind = is_operand ? TensorRef::Kind::kOperand : TensorRef::Kind::kValue;
      ref.index = is_operand ? operand++ : value++;
    }
    signature.tensor_refs.push_back(ref);
  };
  for (size_t i = 0; i < args_.size(); ++i) {
    ArgSlot slot;
    slot.kind = op_.args[i].kind;
    const c10::IValue& arg = args_[i];
    switch (slot.kind) {
      case ArgKind::kTensor:
        slot.begin = static_cast<uint32_t>(signature.tensor_refs.size());
        slot.count = 1;
        add_ref(arg);
        if (signature.tensor_refs.back().kind == TensorRef::Kind::kUndefined) {
          slot.constant = arg;
        } else if (arg.toTensor().unsafeGetTensorImpl()->is_wrapped_number() ||
                   signature.tensor_refs.back().kind == TensorRef::Kind::kValue) {
          slot.note = c10::str(" (a number of ", arg.toTensor().scalar_type(), ")");
        }
        break;
      case ArgKind::kTensorList:
      case ArgKind::kOptionalTensorList:
        if (!arg.isList()) {
          slot.kind = ArgKind::kConstant;
          break;
        }
        slot.begin = static_cast<uint32_t>(signature.tensor_refs.size());
        slot.count = static_cast<uint32_t>(arg.toListRef().size());
        for (const c10::IValue& element : arg.toListRef()) {
          add_ref(element);
        }
        break;
      case ArgKind::kScalar:
      case ArgKind::kScalarList:
        slot.note = slot.kind == ArgKind::kScalar && op_.in_key(arg) ? "=" + c10::str(arg)
                                                                     : " (" + type_name(arg) + ")";
        slot.begin = value++;
        break;
      case ArgKind::kGenerator:
        slot.begin = value++;
        break;
      case ArgKind::kDevice:
        slot.constant = arg.isNone() ? arg : c10::IValue(c10::Device(c10::kCPU));
        break;
      default:
        slot.constant = arg;
    }
    signature.args.push_back(std::move(slot));
  }
}

}  // namespace tiledev
