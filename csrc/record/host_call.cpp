#include "record/host_call.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/clone.h>

#include <utility>

#include "record/bridge.h"
#include "record/call.h"
#include "record/memory_errors.h"
#include "record/plain_dispatch.h"
#include "record/session.h"
#include "record/storage.h"
#include "runtime/host_view.h"

namespace tiledev {

namespace {

class HostCallRunner {
 public:
  HostCallRunner(const OpTraits& traits, torch::jit::Stack* stack)
      : traits_(traits), stack_(stack), args_(torch::jit::last(*stack, traits.args.size())) {}

  void run() {
    collect();
    Session::get().wait_for(reads_, false);
    Session::get().wait_for(writes_, true);
    torch::jit::Stack host;
    for (size_t i = 0; i < args_.size(); ++i) {
      host.push_back(to_host(args_[i], traits_.args[i].kind));
    }
    {
      const Written written{writes_};
      call(host);
    }
    for (size_t i = 0; i < tensors_.size(); ++i) {
      sync_metadata(*tensors_[i], aliases_[i]);
    }
    std::vector<c10::IValue> results;
    for (size_t r = 0; r < traits_.returns.size(); ++r) {
      results.push_back(to_device(host[r], traits_.returns[r]));
    }
    torch::jit::drop(*stack_, args_.size());
    std::move(results.begin(), results.end(), std::back_inserter(*stack_));
  }

 private:
  // Other threads may have read the buffers since the wait; they must not go by that from now on.
  struct Written {
    const std::vector<BufferPtr>& buffers;
    ~Written() { Session::get().note_host_writes(buffers); }
  };

  void collect() {
    for (size_t i = 0; i < args_.size(); ++i) {
      auto& list = traits_.args[i].written ? writes_ : reads_;
      if (traits_.args[i].kind == ArgKind::kGenerator) {
        writes_.push_back(stream_of(args_[i]).token);
      } else if (args_[i].isTensor()) {
        add_buffer(args_[i].toTensor(), list);
      } else if (args_[i].isList() && traits_.args[i].kind != ArgKind::kConstant) {
        for (const c10::IValue& element : args_[i].toListRef()) {
          add_buffer(element.isTensor() ? element.toTensor() : at::Tensor(), list);
        }
      }
    }
  }

  static void add_buffer(const at::Tensor& tensor, std::vector<BufferPtr>& list) {
    if (tensor.defined() && on_device(*tensor.unsafeGetTensorImpl()) && tensor.has_storage()) {
      list.push_back(buffer_ptr(*tensor.unsafeGetTensorImpl()));
    }
  }

  void call(torch::jit::Stack& host) {
    const WithoutInterpreter released;
    const PlainDispatch plain;
    traits_.op.callBoxed(host);
  }

  c10::IValue to_host(const c10::IValue& value, ArgKind kind) {
    switch (kind) {
      case ArgKind::kTensor:
      case ArgKind::kTensorList:
      case ArgKind::kOptionalTensorList:
        return map_tensors(value, kind, [this](const at::Tensor& t) { return alias(t); });
      case ArgKind::kGenerator:
        return stream_of(value).generator;
      case ArgKind::kDevice:
        return value.isNone() ? value : c10::IValue(c10::Device(c10::kCPU));
      default:
        return value;
    }
  }

  at::Tensor alias(const at::Tensor& tensor) {
    if (!on_device(*tensor.unsafeGetTensorImpl()) || !tensor.has_storage()) {
      return tensor;
    }
    tensors_.push_back(tensor.unsafeGetTensorImpl());
    aliases_.push_back(host_alias(tensor));
    return aliases_.back();
  }

  // An op may have resized what it wrote.
  static void sync_metadata(c10::TensorImpl& tensor, const at::Tensor& alias) {
    auto& storage = *tensor.unsafe_storage().unsafeGetStorageImpl();
    const auto& memory = alias.storage();
    if (memory.nbytes() != storage.nbytes()) {
      auto fresh = Session::get().buffers().create(memory.nbytes());
      fresh->adopt(memory);
      storage.set_data_ptr_noswap(make_data_ptr(std::move(fresh)));
      storage.set_nbytes(memory.nbytes());
    }
    if (alias.sizes() != tensor.sizes() || alias.strides() != tensor.strides()) {
      tensor.set_sizes_and_strides(alias.sizes(), alias.strides());
    }
  }

  c10::IValue to_device(const c10::IValue& value, const ReturnTraits& ret) {
    if (ret.alias_arg >= 0 && traits_.args[ret.alias_arg].written) {
      return args_[ret.alias_arg];
    }
    if (value.isTensor()) {
      return view_or_copy(value.toTensor());
    }
    if (ret.list && ret.tensor) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& element : value.toListRef()) {
        list.push_back(view_or_copy(element.toTensor()));
      }
      return list;
    }
    return value;
  }

  // A view's result lies in the memory of an argument, at the same place as in the argument's
  // alias.
  at::Tensor view_or_copy(const at::Tensor& result) {
    for (size_t i = 0; traits_.handling == Handling::kView && i < aliases_.size(); ++i) {
      if (result.defined() && aliases_[i].storage().is_alias_of(result.storage())) {
        return make_tensor(tensors_[i]->storage(), meta_of(*result.unsafeGetTensorImpl()),
                           result.storage_offset());
      }
    }
    return adopt(result);
  }

  at::Tensor adopt(at::Tensor result) {
    if (!result.defined() || !result.device().is_cpu()) {
      return result;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == c10::kStrided, "[", traits_.name, "] gives a ",
                                result.layout(),
                                " tensor; tiledev has dense tensors only. "
                                "Move the input to the CPU first");
    bool own = result.storage_offset() == 0 && result.storage().resizable();
    for (const auto& alias : aliases_) {
      own &= !alias.storage().is_alias_of(result.storage());
    }
    own &= result.storage().use_count() <= 2;  // the result's, and the stack's
    if (!own || result.is_conj() || result.is_neg()) {
      result = result.resolve_conj().resolve_neg().clone();
    }
    const TensorMeta meta = meta_of(*result.unsafeGetTensorImpl());
    auto buffer = Session::get().buffers().create(result.storage().nbytes());
    const size_t nbytes = buffer->nbytes();
    buffer->origin = {traits_.name.c_str(), bridge().capture_location(), meta, nbytes};
    buffer->adopt(result.storage());
    c10::Storage storage(c10::Storage::use_byte_size_t{}, nbytes, make_data_ptr(std::move(buffer)),
                         c10::GetAllocator(kDevice), /*resizable=*/true);
    return make_tensor(std::move(storage), meta);
  }

  const OpTraits& traits_;
  torch::jit::Stack* stack_;
  c10::ArrayRef<c10::IValue> args_;
  std::vector<BufferPtr> reads_, writes_;
  std::vector<c10::TensorImpl*> tensors_;
  std::vector<at::Tensor> aliases_;
};

}  // namespace

void run_on_host(const OpTraits& traits, torch::jit::Stack* stack) {
  Session::get().check_usable();
  with_largest_buffers([&] { HostCallRunner(traits, stack).run(); });
}

void fall_back(const OpTraits& traits, torch::jit::Stack* stack, const char* reason) {
  Session::get().check_usable();
  Session::get().count_fallback(traits.name, reason);
  run_on_host(traits, stack);
}

void move_indices_to_device(const OpTraits& traits, torch::jit::Stack* stack) {
  const size_t first = stack->size() - traits.args.size();
  for (size_t i = 0; i < traits.args.size(); ++i) {
    c10::IValue& arg = (*stack)[first + i];
    if (traits.args[i].kind == ArgKind::kOptionalTensorList) {
      arg = map_tensors(arg, traits.args[i].kind, [](const at::Tensor& tensor) {
        return tensor.device().is_cpu() ? tensor.to(c10::Device(kDevice, 0)) : tensor;
      });
    }
  }
}

at::Tensor host_alias(const at::Tensor& tensor) {
  const auto& impl = *tensor.unsafeGetTensorImpl();
  return with_largest_buffers(
      [&] { return host_view(buffer_of(impl).memory(), meta_of(impl), impl.storage_offset()); });
}

at::Tensor read_out(const at::Tensor& tensor) {
  Session::get().wait_for({buffer_ptr(*tensor.unsafeGetTensorImpl())}, false);
  return host_alias(tensor);
}

}  // namespace tiledev
