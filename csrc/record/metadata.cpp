#include "record/metadata.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "graph/hash.h"
#include "record/bridge.h"
#include "record/native_meta.h"
#include "record/overrides.h"
#include "record/result_order.h"
#include "record/shape_rules.h"
#include "record/stand_in.h"
#include "record/storage.h"

namespace tiledev {

namespace {

// A run on the CPU costs what the op costs, so only small ones are run to learn metadata, and
// larger ones only where the alternative is an error.
constexpr int64_t kSmall = int64_t{1} << 16;
constexpr int64_t kBearable = int64_t{1} << 24;
constexpr double kBoundedWork = double{1 << 26};

// What came out of a run on stand-ins.
struct Outcome {
  SignaturePtr signature;    // null if the run failed
  std::exception_ptr error;  // why
  bool missing = false;      // it failed since there is no kernel for these arguments
};

class SignatureBuilder {
 public:
  explicit SignatureBuilder(const CallView& call) : call_(call) { start(); }

  // The outputs are the written arguments.
  SignaturePtr in_place() {
    for (const ReturnTraits& ret : call_.op().returns) {
      const ArgSlot& slot = signature_->args[ret.alias_arg];
      signature_->return_counts.push_back(slot.count);
      for (uint32_t i = 0; i < slot.count; ++i) {
        add_operand_output(signature_->tensor_refs[slot.begin + i]);
      }
    }
    return std::move(signature_);
  }

  SignaturePtr pointwise(PointwiseResult result) {
    if (result.resized >= 0) {
      const auto operand = static_cast<uint32_t>(result.resized);
      signature_->work = std::max(signature_->work, result.meta.numel);
      signature_->operands[operand] = result.meta;
      signature_->resized.emplace_back(operand, std::move(result.meta));
    }
    if (result.in_place) {
      return in_place();
    }
    signature_->work = std::max(signature_->work, result.meta.numel);
    signature_->return_counts.push_back(1);
    OutputMeta output;
    output.meta = std::move(result.meta);
    signature_->outputs.push_back(std::move(output));
    return std::move(signature_);
  }

  Outcome run(c10::DeviceType device) {
    device_ = device;
    try {
      StandInCall stand_in(call_, device_);
      stand_in.run();
      add_outputs(stand_in);
      add_resized(stand_in);
    } catch (const c10::NotImplementedError&) {
      return {{}, std::current_exception(), true};
    } catch (const CannotRecord&) {
      return {{}, std::current_exception(), true};
    } catch (std::exception& error) {
      const ErrorKind kind = bridge().persist_error(error);
      if (kind == ErrorKind::kStop) {
        throw;
      }
      return {{}, std::current_exception(), kind == ErrorKind::kNotImplemented};
    }
    return {std::move(signature_), nullptr};
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
      signature_->operand_overwritten.push_back(overwrites(i));
    }
    call_.describe(*signature_);
  }

  // Whether the op replaces all elements of this operand without looking at the old ones.
  bool overwrites(size_t operand) const {
    const c10::TensorImpl& impl = *call_.operands()[operand];
    return call_.overwritten()[operand] && impl.is_non_overlapping_and_dense();
  }

  void add_operand_output(const TensorRef& ref) {
    if (ref.kind != TensorRef::Kind::kOperand) {
      throw CannotRecord{"it writes into a host tensor"};
    }
    OutputMeta output;
    output.kind = OutputMeta::Kind::kOperand;
    output.operand = ref.index;
    signature_->outputs.push_back(std::move(output));
  }

  void add_outputs(const StandInCall& stand_in) {
    const auto& returns = call_.op().returns;
    const auto& results = stand_in.results();
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
    if (alias_arg >= 0) {
      add_operand_output(signature_->tensor_refs[signature_->args[alias_arg].begin + element]);
      return;
    }
    OutputMeta output;
    if (!value.isTensor() || !value.toTensor().defined()) {
      output.kind = OutputMeta::Kind::kUndefined;
    } else {
      const at::Tensor& tensor = value.toTensor();
      if (tensor.device().type() != device_ || tensor.layout() != c10::kStrided) {
        throw CannotRecord{"it gives a result that is no dense tensor of the device"};
      }
      output.meta = meta_of(*tensor.unsafeGetTensorImpl());
      signature_->work = std::max(signature_->work, output.meta.numel);
    }
    signature_->outputs.push_back(std::move(output));
  }

  void add_resized(const StandInCall& stand_in) {
    for (uint32_t i = 0; i < signature_->operands.size(); ++i) {
      if (!signature_->operand_written[i]) {
        continue;
      }
      TensorMeta now = meta_of(*stand_in.operands()[i].unsafeGetTensorImpl());
      if (now.sizes != signature_->operands[i].sizes ||
          now.strides != signature_->operands[i].strides) {
        for (size_t j = 0; j < i + 1; ++j) {
          if (j != i && call_.operands()[j] == call_.operands()[i]) {
            throw CannotRecord{"it gives an input a new shape"};
          }
        }
        signature_->operands[i] = now;
        signature_->resized.emplace_back(i, std::move(now));
      }
    }
  }

  const CallView& call_;
  c10::DeviceType device_ = c10::DeviceType::Meta;
  SignaturePtr signature_ = c10::make_intrusive<Signature>();
};

// Whether an error of a run on stand-ins may come from their values rather than their shapes and
// dtypes; then the real values will tell when they are there.
bool depends_on_values(const std::exception_ptr& error, const OpTraits& op) {
  if (op.name.rfind("aten::_assert", 0) == 0) {
    return true;
  }
  try {
    std::rethrow_exception(error);
  } catch (const c10::LinAlgError&) {
    return true;
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (const c10::Error& e) {
    return std::string_view(e.what()).find("ZeroDivisionError") != std::string_view::npos;
  } catch (...) {
    return true;
  }
}

int64_t total_elements(const CallView& call) {
  int64_t total = 0;
  for (const c10::TensorImpl* impl : call.operands()) {
    total += impl->numel();
  }
  return total;
}

double largest_integer(const c10::IValue& value) {
  if (value.isInt()) {
    return std::abs(static_cast<double>(value.toInt()));
  }
  if (value.isDouble()) {
    return std::abs(value.toDouble());
  }
  double product = 1;
  if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      product *= std::max(1.0, largest_integer(element));
    }
  }
  return product;
}

// Whether running the op on the CPU is cheap for sure: neither its operands are large, nor can its
// results be, whatever the op makes of sizes and integers.
bool is_small(const CallView& call) {
  if (total_elements(call) > kSmall) {
    return false;
  }
  double bound = 1;
  for (const c10::TensorImpl* impl : call.operands()) {
    bound *= static_cast<double>(std::max<int64_t>(1, impl->numel()));
  }
  for (size_t i = 0; i < call.args().size(); ++i) {
    const ArgKind kind = call.op().args[i].kind;
    if (kind == ArgKind::kConstant || (kind == ArgKind::kScalar && call.op().scalars_in_key)) {
      bound *= std::max(1.0, largest_integer(call.args()[i]));
    }
  }
  return bound <= kBoundedWork;
}

}  // namespace

SignaturePtr SignatureCache::find(const std::vector<int64_t>& key) const {
  if (recent_ && recent_->key == key) {
    return recent_;
  }
  const auto [begin, end] = signatures_.equal_range(hash_words(key));
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
  const uint64_t hash = hash_words(signature->key);
  recent_ = signature;
  signatures_.emplace(hash, std::move(signature));
}

void check_overlap(const CallView& call) {
  const auto& operands = call.operands();
  for (size_t i = 0; i < operands.size(); ++i) {
    for (size_t j = 0; call.written()[i] && j < operands.size(); ++j) {
      const auto &a = *operands[i], &b = *operands[j];
      if (i == j || !a.unsafe_storage().is_alias_of(b.unsafe_storage())) {
        continue;
      }
      const bool same = a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
                        a.strides() == b.strides();
      if (!same && static_cast<int64_t>(buffer_of(a).nbytes()) <= kSmall * 16) {
        StandInCall(call, c10::DeviceType::CPU, StandInCall::Mode::kAliased).run();
        return;
      }
    }
  }
}

namespace {

// Ops whose Meta kernel promises other shapes than the CPU's kernel gives (found by comparing both
// over PyTorch's op database): one of the results is empty on the CPU where it is not needed.
bool meta_misleads(const OpTraits& op) {
  static const std::unordered_set<std::string> ops = {
      "aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit.no_stats",
      "aten::_embedding_bag", "aten::_embedding_bag_forward_only"};
  return ops.count(op.name) > 0;
}

// An op for which neither Meta nor the CPU has an answer.
[[noreturn]] void refuse(const Outcome& meta, const Outcome& cpu, bool native) {
  if (meta.missing) {
    throw CannotRecord{"there is no Meta kernel for these arguments"};
  }
  if (!native) {
    // Fake kernels raise many things where shapes depend on values; if the arguments are at fault,
    // the op itself will say so.
    throw CannotRecord{"its Meta kernel raises an error", meta.error};
  }
  std::rethrow_exception(cpu.error ? cpu.error : meta.error);  // worded as on the CPU
}

}  // namespace

SignaturePtr infer_signature(const CallView& call) {
  if (const char* reason = needs_values(call)) {
    throw CannotRecord{reason};
  }
  if (skips_meta(call)) {
    return SignatureBuilder(call).in_place();
  }
  const bool native = call.op().name.rfind("aten::", 0) == 0;
  Outcome cpu;
  if (native && is_small(call)) {
    cpu = SignatureBuilder(call).run(c10::DeviceType::CPU);
    if (cpu.signature) {
      return std::move(cpu.signature);
    }
    if (!cpu.missing && !depends_on_values(cpu.error, call.op())) {
      std::rethrow_exception(cpu.error);
    }
  } else if (native) {
    if (auto result = pointwise_rule(call)) {
      return SignatureBuilder(call).pointwise(std::move(*result));
    }
  }
  const bool misleading = meta_misleads(call.op());
  Outcome meta;
  if (!misleading) {
    meta = SignatureBuilder(call).run(c10::DeviceType::Meta);
  }
  if (meta.signature) {
    if (cpu.error && !depends_on_values(cpu.error, call.op())) {
      std::rethrow_exception(cpu.error);  // "not implemented for 'Bool'"
    }
    if (native && native_meta(call.op().name) == nullptr) {
      correct_order(call, *meta.signature);
    }
    return std::move(meta.signature);
  }
  if (native && !cpu.error && total_elements(call) <= kBearable) {
    cpu = SignatureBuilder(call).run(c10::DeviceType::CPU);
    if (cpu.signature) {
      return std::move(cpu.signature);
    }
  }
  if (native && call.op().in_place_only && (meta.missing || misleading)) {
    if (cpu.missing) {
      std::rethrow_exception(cpu.error);  // "not implemented for 'ComplexFloat'"
    }
    return SignatureBuilder(call).in_place();  // errors of shape come when it runs
  }
  if (misleading && !cpu.error) {
    throw CannotRecord{"its Meta kernel gives other shapes than the CPU's kernel"};
  }
  refuse(meta, cpu, native);
}

}  // namespace tiledev
