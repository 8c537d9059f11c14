#include "runtime/task_body.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>

#include <utility>

#include "runtime/host_view.h"

namespace tiledev {

namespace {

class Call {
 public:
  explicit Call(Node& node) : node_(node), signature_(*node.signature) {
    tensors_.reserve(node.operands.size());
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const Operand& operand = node.operands[i];
      tensors_.push_back(
          host_view(operand.buffer->memory(), signature_.operands[i], operand.offset));
    }
  }

  void run() {
    for (const BufferPtr& result : node_.results) {
      if (result) {
        result->check_room();  // before the kernel fills memory that nobody may keep
      }
    }
    stack_.reserve(std::max(signature_.args.size(), signature_.return_counts.size()));
    for (const ArgSlot& slot : signature_.args) {
      push(slot);
    }
    const auto& op = signature_.op->op;
    if (signature_.needs_dispatch) {
      op.callBoxed(stack_);
    } else {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    }
    store_results();
  }

 private:
  at::Tensor tensor(const TensorRef& ref) const {
    switch (ref.kind) {
      case TensorRef::Kind::kOperand:
        return tensors_[ref.index];
      case TensorRef::Kind::kValue:
        return node_.values[ref.index].toTensor();
      default:
        return {};
    }
  }

  void push(const ArgSlot& slot) {
    switch (slot.kind) {
      case ArgKind::kTensor:
        if (const auto& ref = signature_.tensor_refs[slot.begin];
            ref.kind == TensorRef::Kind::kUndefined) {
          stack_.emplace_back(slot.constant);  // None, or an undefined tensor
        } else {
          stack_.emplace_back(tensor(ref));
        }
        break;
      case ArgKind::kTensorList: {
        c10::List<at::Tensor> list;
        list.reserve(slot.count);
        for (uint32_t i = 0; i < slot.count; ++i) {
          list.push_back(tensor(signature_.tensor_refs[slot.begin + i]));
        }
        stack_.emplace_back(std::move(list));
        break;
      }
      case ArgKind::kOptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(slot.count);
        for (uint32_t i = 0; i < slot.count; ++i) {
          at::Tensor t = tensor(signature_.tensor_refs[slot.begin + i]);
          list.push_back(t.defined() ? std::optional<at::Tensor>(std::move(t)) : std::nullopt);
        }
        stack_.emplace_back(std::move(list));
        break;
      }
      case ArgKind::kScalar:
      case ArgKind::kScalarList:
      case ArgKind::kGenerator:
        stack_.emplace_back(node_.values[slot.begin]);
        break;
      default:
        stack_.emplace_back(slot.constant);
    }
  }

  void store_results() {
    size_t output = 0;
    size_t result = 0;
    for (size_t r = 0; r < signature_.return_counts.size(); ++r) {
      const uint32_t count = signature_.return_counts[r];
      if (signature_.op->returns[r].list) {
        const auto list = stack_[r].toTensorVector();
        check_count(list.size(), count);
        for (const auto& tensor : list) {
          store(tensor, signature_.outputs[output++], result);
        }
      } else {
        store(stack_[r].toTensor(), signature_.outputs[output++], result);
      }
    }
  }

  void check_count(size_t came, size_t expected) const {
    TORCH_CHECK(came == expected, "[", signature_.op->name, "] returned ", came,
                " tensors where its Meta kernel promised ", expected);
  }

  void store(const at::Tensor& tensor, const OutputMeta& output, size_t& result) {
    if (output.kind == OutputMeta::Kind::kOperand) {
      return;
    }
    BufferPtr& buffer = node_.results[result++];
    if (output.kind == OutputMeta::Kind::kUndefined) {
      return;
    }
    const TensorMeta& meta = output.meta;
    if (!tensor.defined()) {
      // The kernel leaves out what nobody may look at (saved statistics in evaluation mode).
      buffer->memory();
      return;
    }
    TORCH_CHECK(
        tensor.sizes() == c10::IntArrayRef(meta.sizes) && tensor.scalar_type() == meta.dtype, "[",
        signature_.op->name, "] gave ", tensor.scalar_type(), tensor.sizes(),
        " where its Meta kernel promised ", meta.dtype, c10::IntArrayRef(meta.sizes));
    if (can_adopt(tensor, meta, *buffer)) {
      buffer->adopt(tensor.storage());
    } else {
      at::Tensor target = host_view(buffer->memory(), meta, 0);
      target.copy_(tensor);
    }
  }

  bool can_adopt(const at::Tensor& tensor, const TensorMeta& meta, const Buffer& buffer) const {
    const auto& storage = tensor.storage();
    if (tensor.storage_offset() != 0 || tensor.strides() != c10::IntArrayRef(meta.strides) ||
        tensor.is_conj() != meta.conj || tensor.is_neg() != meta.neg ||
        storage.nbytes() < buffer.nbytes() || storage.nbytes() > buffer.nbytes() + 64 ||
        !storage.resizable()) {
      return false;
    }
    return !shared(storage);
  }

  // Kernels may return an input as it is, or two outputs over one storage.
  bool shared(const c10::Storage& storage) const {
    for (const auto& t : tensors_) {
      if (t.storage().is_alias_of(storage)) {
        return true;
      }
    }
    for (const auto& value : node_.values) {
      if (value.isTensor() && value.toTensor().storage().is_alias_of(storage)) {
        return true;
      }
    }
    return storage.use_count() > 1;
  }

  Node& node_;
  const Signature& signature_;
  c10::SmallVector<at::Tensor, 4> tensors_;
  torch::jit::Stack stack_;
};

}  // namespace

void run_node(Node& node) {
  if (node.host) {
    node.host->body();
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  Call(node).run();
}

}  // namespace tiledev
