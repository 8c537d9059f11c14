#include "record/metadata.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>

#include <atomic>
#include <utility>

#include "record/bridge.h"
#include "record/overrides.h"
#include "record/storage.h"

namespace tiledev {

namespace {

uint64_t hash_key(const std::vector<int64_t>& key) {
  uint64_t hash = 0x9E3779B97F4A7C15ull;
  for (const int64_t word : key) {
    hash = (hash ^ static_cast<uint64_t>(word)) * 0xFF51AFD7ED558CCDull;
    hash ^= hash >> 29;
  }
  return hash;
}

at::Tensor meta_like(const c10::TensorImpl& impl) {
  auto tensor = at::empty_strided(
      impl.sizes(), impl.strides(),
      at::TensorOptions().dtype(impl.dtype()).device(c10::DeviceType::Meta));
  if (impl.is_conj()) {
    tensor._set_conj(true);
  }
  if (impl.is_neg()) {
    tensor._set_neg(true);
  }
  if (impl.is_wrapped_number()) {
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return tensor;
}

// The call with Meta tensors in place of the device's.
class MetaCall {
 public:
  explicit MetaCall(const CallView& call) : call_(call) {
    for (size_t i = 0; i < call.args().size(); ++i) {
      stack_.push_back(convert(call.args()[i], call.op().args[i].kind));
    }
  }

  void run() {
    const at::AutoDispatchBelowADInplaceOrView guard;
    try {
      call_.op().op.callBoxed(stack_);
    } catch (const c10::NotImplementedError&) {
      throw CannotRecord{"it has no Meta kernel for these arguments"};
    } catch (const c10::Error&) {
      throw;
    } catch (const std::exception& error) {
      if (bridge().swallow_not_implemented(error)) {
        throw CannotRecord{"its Meta kernel does not support these arguments"};
      }
      throw;
    }
  }

  const torch::jit::Stack& results() const { return stack_; }
  const std::vector<at::Tensor>& operands() const { return operands_; }

 private:
  c10::IValue convert_tensor(const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined()) {
      return value;
    }
    const auto* impl = value.toTensor().unsafeGetTensorImpl();
    if (!on_device(*impl)) {
      return value;
    }
    // One tensor that is named twice stays one (out= that is an input).
    for (size_t i = 0; i < operands_.size(); ++i) {
      if (call_.operands()[i] == impl) {
        operands_.push_back(operands_[i]);
        return operands_.back();
      }
    }
    operands_.push_back(meta_like(*impl));
    return operands_.back();
  }

  c10::IValue convert(const c10::IValue& value, ArgKind kind) {
    switch (kind) {
      case ArgKind::kTensor:
        return convert_tensor(value);
      case ArgKind::kTensorList: {
        if (!value.isList()) {
          return value;
        }
        c10::List<at::Tensor> list;
        for (const c10::IValue& element : value.toListRef()) {
          list.push_back(convert_tensor(element).toTensor());
        }
        return list;
      }
      case ArgKind::kOptionalTensorList: {
        if (!value.isList()) {
          return value;
        }
        c10::List<std::optional<at::Tensor>> list;
        for (const c10::IValue& element : value.toListRef()) {
          const c10::IValue converted = convert_tensor(element);
          list.push_back(converted.isTensor() ? converted.toOptional<at::Tensor>() : std::nullopt);
        }
        return list;
      }
      case ArgKind::kGenerator:
        return {};
      case ArgKind::kDevice:
        return value.isNone() ? value : c10::IValue(c10::Device(c10::DeviceType::Meta));
      default:
        return value;
    }
  }

  const CallView& call_;
  torch::jit::Stack stack_;
  std::vector<at::Tensor> operands_;
};

class SignatureBuilder {
 public:
  explicit SignatureBuilder(const CallView& call) : call_(call) {}

  SignaturePtr build() {
    start();
    if (skips_meta(call_)) {
      finish_in_place();
      return std::move(signature_);
    }
    MetaCall meta(call_);
    meta.run();
    add_outputs(meta);
    add_resized(meta);
    fix_outputs(*signature_);
    return std::move(signature_);
  }

 private:
  void start() {
    static std::atomic<uint64_t> next_id{1};
    signature_->op = &call_.op();
    signature_->id = next_id.fetch_add(1, std::memory_order_relaxed);
    signature_->key = call_.key();
    for (size_t i = 0; i < call_.operands().size(); ++i) {
      TensorMeta meta = meta_of(*call_.operands()[i]);
      signature_->work = std::max(signature_->work, meta.numel);
      signature_->needs_dispatch |= meta.conj || meta.neg;
      signature_->operands.push_back(std::move(meta));
      signature_->operand_written.push_back(call_.written()[i]);
    }
    call_.describe(*signature_);
  }

  // The outputs of an op that only writes into its arguments.
  void finish_in_place() {
    for (const ReturnTraits& ret : call_.op().returns) {
      const ArgSlot& slot = signature_->args[ret.alias_arg];
      signature_->return_counts.push_back(slot.count);
      for (uint32_t i = 0; i < slot.count; ++i) {
        OutputMeta output;
        output.kind = OutputMeta::Kind::kOperand;
        output.operand = signature_->tensor_refs[slot.begin + i].index;
        signature_->outputs.push_back(std::move(output));
      }
    }
  }

  void add_outputs(const MetaCall& meta) {
    const auto& returns = call_.op().returns;
    const auto& results = meta.results();
    TORCH_INTERNAL_ASSERT(results.size() == returns.size());
    for (size_t r = 0; r < returns.size(); ++r) {
      if (returns[r].list) {
        const auto list = results[r].toListRef();
        signature_->return_counts.push_back(static_cast<uint32_t>(list.size()));
        for (size_t i = 0; i < list.size(); ++i) {
          add_output(list[i], returns[r].alias_arg, i);
        }
      } else {
        signature_->return_counts.push_back(1);
        add_output(results[r], returns[r].alias_arg, 0);
      }
    }
  }

  void add_output(const c10::IValue& value, int alias_arg, size_t element) {
    OutputMeta output;
    if (alias_arg >= 0) {
      const ArgSlot& slot = signature_->args[alias_arg];
      const TensorRef& ref = signature_->tensor_refs[slot.begin + element];
      if (ref.kind != TensorRef::Kind::kOperand) {
        throw CannotRecord{"it writes into a host tensor"};
      }
      output.kind = OutputMeta::Kind::kOperand;
      output.operand = ref.index;
    } else if (!value.isTensor() || !value.toTensor().defined()) {
      output.kind = OutputMeta::Kind::kUndefined;
    } else {
      const at::Tensor& tensor = value.toTensor();
      if (tensor.device().type() != c10::DeviceType::Meta || tensor.layout() != c10::kStrided) {
        throw CannotRecord{"it gives a result that is no dense tensor of the device"};
      }
      output.meta = meta_of(*tensor.unsafeGetTensorImpl());
      signature_->work = std::max(signature_->work, output.meta.numel);
    }
    signature_->outputs.push_back(std::move(output));
  }

  void add_resized(const MetaCall& meta) {
    for (uint32_t i = 0; i < signature_->operands.size(); ++i) {
      if (!signature_->operand_written[i]) {
        continue;
      }
      TensorMeta now = meta_of(*meta.operands()[i].unsafeGetTensorImpl());
      if (now.sizes != signature_->operands[i].sizes ||
          now.strides != signature_->operands[i].strides) {
        signature_->operands[i] = now;
        signature_->resized.emplace_back(i, std::move(now));
      }
    }
  }

  const CallView& call_;
  SignaturePtr signature_ = c10::make_intrusive<Signature>();
};

}  // namespace

SignaturePtr SignatureCache::find(const std::vector<int64_t>& key) const {
  if (recent_ && recent_->key == key) {
    return recent_;
  }
  const auto [begin, end] = signatures_.equal_range(hash_key(key));
  for (auto it = begin; it != end; ++it) {
    if (it->second->key == key) {
      recent_ = it->second;
      return it->second;
    }
  }
  return {};
}

void SignatureCache::insert(SignaturePtr signature) {
  if (signatures_.size() >= kMaxSignatures) {
    signatures_.clear();
  }
  const uint64_t hash = hash_key(signature->key);
  recent_ = signature;
  signatures_.emplace(hash, std::move(signature));
}

SignaturePtr infer_signature(const CallView& call) { return SignatureBuilder(call).build(); }

}  // namespace tiledev
