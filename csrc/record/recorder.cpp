#include "record/recorder.h"

#include <c10/core/AutogradState.h>

#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "record/bridge.h"
#include "record/host_call.h"
#include "record/memory_errors.h"
#include "record/ops.h"
#include "record/session.h"
#include "record/storage.h"

namespace tiledev {

namespace {

// The states of all ops that were met. Registration data, not session state.
class OpRegistry {
 public:
  // An op is known by the address of the dispatcher's entry, which a later op may get.
  void forget(const c10::OperatorHandle& op) {
    const std::unique_lock lock(mutex_);
    if (auto it = states_.find(op); it != states_.end()) {
      retired_.push_back(std::move(it->second));  // plans may still refer to it
      states_.erase(it);
    }
  }

  OpState& get(const c10::OperatorHandle& op) {
    {
      const std::shared_lock lock(mutex_);
      if (auto it = states_.find(op); it != states_.end()) {
        return *it->second;
      }
    }
    auto state = std::make_unique<OpState>(op);
    const std::unique_lock lock(mutex_);
    return *states_.try_emplace(op, std::move(state)).first->second;
  }

 private:
  std::shared_mutex mutex_;
  std::unordered_map<c10::OperatorHandle, std::unique_ptr<OpState>> states_;
  std::vector<std::unique_ptr<OpState>> retired_;
};

class ForgetRemovedOps : public c10::OpRegistrationListener {
 public:
  explicit ForgetRemovedOps(OpRegistry& registry) : registry_(registry) {}
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override { registry_.forget(op); }

 private:
  OpRegistry& registry_;
};

// Kernels may be called until the very end, so the registry is never destroyed.
OpRegistry& op_registry() {
  static OpRegistry* registry = [] {
    auto* made = new OpRegistry();
    new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(
        std::make_unique<ForgetRemovedOps>(*made)));
    return made;
  }();
  return *registry;
}

// Gives an out= argument the shape that the op will write.
void apply_resize(c10::TensorImpl& tensor, const TensorMeta& meta) {
  tensor.set_sizes_and_strides(meta.sizes, meta.strides);
  grow_storage(tensor);
}

at::Tensor tensor_of(c10::TensorImpl* impl) {
  return at::Tensor(
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
}

using Results = c10::SmallVector<c10::IValue, 4>;

class Recording {
 public:
  Recording(OpState& state, CallView& call, uint32_t location)
      : state_(state), call_(call), location_(location) {}

  void run(Results& results) {
    Session& session = Session::get();
    session.check_usable();
    check_overlap(call_);
    std::unique_lock lock(session.mutex());
    signature_ = state_.signatures.find(call_.key());
    if (!signature_) {
      lock.unlock();
      signature_ = infer_signature(call_);
      lock.lock();
      state_.signatures.insert(signature_);
    }
    if (!signature_->resized.empty()) {
      lock.unlock();
      for (const auto& [operand, meta] : signature_->resized) {
        apply_resize(*call_.operands()[operand], meta);
      }
      lock.lock();
    }
    Node node;
    node.location = location_;
    fill(node, results);
    session.count_recorded(state_.traits);
    session.append(std::move(node));
    lock.unlock();
    session.after_append();
  }

 private:
  void fill(Node& node, Results& results) {
    for (c10::TensorImpl* impl : call_.operands()) {
      node.operands.push_back({buffer_ptr(*impl), impl->storage_offset()});
    }
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (signature_->operand_written[i] != 0) {
        note_origin(*node.operands[i].buffer, signature_->operands[i]);
      }
    }
    node.values.assign(std::make_move_iterator(call_.values().begin()),
                       std::make_move_iterator(call_.values().end()));
    if (call_.stream() != nullptr) {
      node.token = call_.stream()->token;
    }
    size_t output = 0;
    for (size_t r = 0; r < signature_->return_counts.size(); ++r) {
      if (!state_.traits.returns[r].list) {
        results.emplace_back(make_output(node, signature_->outputs[output++]));
        continue;
      }
      c10::List<at::Tensor> list;
      for (uint32_t i = 0; i < signature_->return_counts[r]; ++i) {
        list.push_back(make_output(node, signature_->outputs[output++]));
      }
      results.emplace_back(std::move(list));
    }
    node.signature = std::move(signature_);
  }

  void note_origin(Buffer& buffer, const TensorMeta& meta) const {
    if (buffer.origin.op == nullptr && !buffer.has_memory()) {
      buffer.origin = {state_.traits.name.c_str(), location_, meta, buffer.nbytes()};
    }
  }

  at::Tensor make_output(Node& node, const OutputMeta& output) {
    switch (output.kind) {
      case OutputMeta::Kind::kOperand:
        return tensor_of(call_.operands()[output.operand]);
      case OutputMeta::Kind::kUndefined:
        node.results.emplace_back();
        return {};
      default: {
        c10::Storage storage = make_storage(output.meta.storage_nbytes());
        node.results.push_back(
            BufferPtr::reclaim_copy(&buffer_of(*storage.unsafeGetStorageImpl())));
        note_origin(*node.results.back(), output.meta);
        return make_tensor(std::move(storage), output.meta);
      }
    }
  }

  OpState& state_;
  CallView& call_;
  const uint32_t location_;
  SignaturePtr signature_;
};

// Autograd runs the backward pass of an accelerator's tensors on a thread of its own, that of CPU
// tensors on the thread that asks for it. Ops are recorded in no time, so here the second is right:
// contributions are added in the CPU's order, and nobody waits for a thread to wake up (0.3 of 11.4
// ms of W1b in benchmarks). Once for each thread, so that what the user says later holds.
void keep_backward_on_this_thread() {
  thread_local const bool once = [] {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace

OpState::OpState(const c10::OperatorHandle& op) : traits(op) {
  classify(traits);
}

OpState& state_of(const c10::OperatorHandle& op) {
  return op_registry().get(op);
}

OpState& state_of(const char* name, const char* overload) {
  return state_of(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

void record(OpState& state, torch::jit::Stack* stack) {
  keep_backward_on_this_thread();
  const OpTraits& traits = state.traits;
  const uint32_t location = bridge().capture_location();
  if (location == kDisplaying || traits.handling == Handling::kReadout) {
    run_on_host(traits, stack);
    return;
  }
  if (traits.handling == Handling::kView) {
    fall_back(traits, stack, "it is a view that the device has no kernel for");
    return;
  }
  if (traits.handling == Handling::kFallback) {
    fall_back(traits, stack, "the shape of its result depends on values");
    return;
  }
  if (traits.accepts_cpu_index) {
    move_indices_to_device(traits, stack);
  }
  Results results;
  try {
    CallView call(traits, torch::jit::last(*stack, traits.args.size()));
    with_largest_buffers([&] { Recording(state, call, location).run(results); });
  } catch (const CannotRecord& why) {
    if (why.cause && !Session::get().settings().cpu_fallback) {
      std::rethrow_exception(why.cause);
    }
    fall_back(traits, stack, why.reason);
    return;
  }
  torch::jit::drop(*stack, traits.args.size());
  std::move(results.begin(), results.end(), std::back_inserter(*stack));
}

void record_byte_copy(const BufferPtr& from, const BufferPtr& to, size_t nbytes) {
  static OpState& copy = state_of("aten::copy_", "");
  TensorMeta bytes;
  bytes.sizes = {static_cast<int64_t>(nbytes)};
  bytes.strides = {1};
  bytes.dtype = c10::ScalarType::Byte;
  bytes.numel = static_cast<int64_t>(nbytes);
  const auto view = [&](const BufferPtr& buffer) {
    c10::Storage storage(c10::Storage::use_byte_size_t{}, buffer->nbytes(), make_data_ptr(buffer),
                         nullptr, /*resizable=*/false);
    return make_tensor(std::move(storage), bytes);
  };
  const bool external_from = from->external();
  const bool external_to = to->external();
  record_op(copy, view(to), view(from), false);
  from->set_external(external_from);  // the views above have come and gone
  to->set_external(external_to);
}

}  // namespace tiledev
