#include "runtime/frame.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <utility>

#include "compile/scratch_tile.h"
#include "runtime/host_view.h"

namespace tiledev {

namespace {

int64_t itemsize(const TensorMeta& meta) {
  return static_cast<int64_t>(c10::elementSize(meta.dtype));
}

const c10::Storage& no_memory() {
  static const auto* storage =
      new c10::Storage(c10::Storage::use_byte_size_t{}, 0, c10::DataPtr(nullptr, c10::kCPU),
                       nullptr, /*resizable=*/false);
  return *storage;
}

}  // namespace

const c10::Storage& Scratch::reserve(int64_t nbytes, c10::Allocator& memory) {
  if (nbytes > nbytes_ || !storage_) {
    release();
    storage_ = c10::Storage(c10::Storage::use_byte_size_t{}, nbytes, &memory, /*resizable=*/false);
    nbytes_ = nbytes;
  }
  return storage_;
}

void Scratch::release() {
  storage_ = {};
  nbytes_ = 0;
}

Frame::Frame(const Segment& segment) : segment_(segment), steps_(segment.steps.size()) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (segment.steps[i].form != Step::Form::kNode) {
      build(segment.steps[i], steps_[i]);
    }
  }
  for (const StripRun& run : segment.strips) {
    auto& kernels = strip_kernels_.emplace_back();
    for (const StripCall& call : run.calls) {
      kernels.push_back(find_strip_kernel(call.op->name));
    }
  }
}

// ---- building -----------------------------------------------------------------------------------

void Frame::build(const Step& step, StepFrame& frame) {
  const Signature& signature = *step.signature;
  const size_t count = step.operands.size() + step.outputs.size();
  for (size_t t = 0; t < count; ++t) {
    frame.tensors.push_back(host_view(no_memory(), step.view(t).meta, 0));
    if (!step.view(t).strip) {
      (step.view(t).scratch ? frame.over_scratch : frame.over_buffers)
          .push_back(static_cast<uint32_t>(t));
    }
  }
  const auto tensor = [&](const TensorRef& ref) -> at::Tensor {
    return ref.kind == TensorRef::Kind::kOperand ? frame.tensors[ref.index] : at::Tensor();
  };
  for (const ArgSlot& slot : signature.args) {
    const auto arg = static_cast<uint32_t>(frame.args.size());
    const auto* refs = signature.tensor_refs.data() + slot.begin;
    if (slot.kind == ArgKind::kTensor) {
      const bool none = refs->kind == TensorRef::Kind::kUndefined;
      frame.args.push_back(none ? slot.constant : c10::IValue(tensor(*refs)));
      if (refs->kind == TensorRef::Kind::kValue) {
        frame.values.emplace_back(arg, refs->index);
      }
    } else if (slot.kind == ArgKind::kTensorList) {
      c10::List<at::Tensor> list;
      for (uint32_t k = 0; k < slot.count; ++k) {
        list.push_back(tensor(refs[k]));
      }
      frame.args.emplace_back(std::move(list));
    } else if (slot.kind == ArgKind::kOptionalTensorList) {
      c10::List<std::optional<at::Tensor>> list;
      for (uint32_t k = 0; k < slot.count; ++k) {
        at::Tensor t = tensor(refs[k]);
        list.push_back(t.defined() ? std::optional(std::move(t)) : std::nullopt);
      }
      frame.args.emplace_back(std::move(list));
    } else if (slot.kind == ArgKind::kScalar || slot.kind == ArgKind::kScalarList ||
               slot.kind == ArgKind::kGenerator) {
      frame.values.emplace_back(arg, slot.begin);
      frame.args.emplace_back();
    } else {
      frame.args.push_back(slot.constant);
    }
  }
  for (const auto& [arg, value] : step.patches) {
    frame.args[arg] = value;
  }
  frame.offsets.resize(count);
  frame.turns.resize(step.outputs.size());
  if (step.form == Step::Form::kOut) {
    for (size_t t = step.operands.size(); t < count; ++t) {
      frame.args.emplace_back(frame.tensors[t]);
    }
  }
}

// ---- binding ------------------------------------------------------------------------------------

void Frame::bind(size_t i, const std::vector<Node>& nodes, const c10::Storage& scratch,
                 const std::vector<c10::Storage>* partials) {
  const Step& step = segment_.steps[i];
  StepFrame& frame = steps_[i];
  if (frame.scratch != scratch.unsafeGetStorageImpl()) {
    frame.scratch = scratch.unsafeGetStorageImpl();
    tile_ = -1;
    for (const uint32_t t : frame.over_scratch) {
      const View& view = step.view(t);
      c10::TensorImpl* impl = frame.tensors[t].unsafeGetTensorImpl();
      impl->set_storage_keep_dtype(scratch);
      impl->set_storage_offset(view.scratch_at / itemsize(view.meta) + view.offset);
    }
  }
  size_t partial = 0;
  for (const uint32_t t : frame.over_buffers) {
    const View& view = step.view(t);
    c10::TensorImpl* impl = frame.tensors[t].unsafeGetTensorImpl();
    if (view.partial && partials != nullptr) {
      impl->set_storage_keep_dtype((*partials)[partial++]);
      frame.offsets[t] = 0;
    } else {
      impl->set_storage_keep_dtype(view.source.find(nodes)->memory());
      frame.offsets[t] = view.offset_in(nodes);
    }
    impl->set_storage_offset(frame.offsets[t]);
  }
  const Node& node = nodes[step.node];
  for (const auto& [arg, value] : frame.values) {
    const c10::IValue& from = node.values[value];
    frame.args[arg] = static_cast<int32_t>(arg) == step.scalar_list_arg
                          ? c10::IValue(from.toListRef()[step.scalar_list_at])
                          : from;
  }
}

void Frame::set_view(const View& view, at::Tensor& tensor, int64_t from, int64_t begin,
                     int64_t end) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const int64_t stride = view.meta.strides[view.cut_dim];
  const bool resize = end - begin != tile_;
  if (!view.scratch) {
    if (resize) {
      Dims sizes = view.meta.sizes;
      sizes[view.cut_dim] = (end - begin) * view.factor;
      impl->set_sizes_and_strides(sizes, view.meta.strides);
    }
    impl->set_storage_offset(from + begin * view.factor * stride);
    return;
  }
  if (!resize) {
    return;
  }
  const ScratchTile tile = scratch_tile(view, segment_, end - begin);
  impl->set_sizes_and_strides(tile.sizes, tile.strides,
                              view.scratch_at / itemsize(view.meta) + tile.offset);
}

void Frame::set_tile(int64_t begin, int64_t end) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = segment_.steps[i];
    StepFrame& frame = steps_[i];
    for (size_t t = 0; t < frame.tensors.size(); ++t) {
      const View& view = step.view(t);
      if (view.cut_dim >= 0 && !view.strip) {
        set_view(view, frame.tensors[t], frame.offsets[t], begin, end);
      }
    }
    if (step.extent_arg >= 0) {
      const int64_t extent = (end - begin) * step.extent_factor;
      c10::IValue& arg = frame.args[step.extent_arg];
      arg = arg.isList() ? c10::IValue(std::vector<int64_t>{extent}) : c10::IValue(extent);
    }
  }
  tile_ = end - begin;
}

void Frame::release() {
  for (StepFrame& frame : steps_) {
    for (const uint32_t t : frame.over_buffers) {
      frame.tensors[t].unsafeGetTensorImpl()->set_storage_keep_dtype(no_memory());
    }
    for (const auto& [arg, value] : frame.values) {
      if (frame.args[arg].isTensor() || frame.args[arg].isList()) {
        frame.args[arg] = c10::IValue();
      }
    }
  }
}

void Frame::release_scratch() {
  for (StepFrame& frame : steps_) {
    frame.scratch = nullptr;
    for (const uint32_t t : frame.over_scratch) {
      frame.tensors[t].unsafeGetTensorImpl()->set_storage_keep_dtype(no_memory());
    }
  }
}

// ---- running ------------------------------------------------------------------------------------

void Frame::run(size_t i, bool first, const ProductContext& products, WorkMemory& memory) {
  const Step& step = segment_.steps[i];
  StepFrame& frame = steps_[i];
  if (step.product && run_product(*step.product, frame.tensors, frame.args,
                                  step.accumulates && !first, products, memory)) {
    return;
  }
  if (step.accumulates && !first) {
    frame.tensors[2].addmm_(frame.tensors[0], frame.tensors[1]);
    return;
  }
  stack_.clear();
  stack_.insert(stack_.end(), frame.args.begin(), frame.args.end());
  constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);
  if (step.form == Step::Form::kFunctional) {
    TaskMemory::Places places;
    offer_places(step, frame, first, places);
    step.callee->redispatchBoxed(kCpu, &stack_);
    places.end();
    store(step, frame, first, places);
  } else {
    step.callee->redispatchBoxed(kCpu, &stack_);
  }
  stack_.clear();
}

void Frame::run_strips(size_t number, const std::vector<bool>& skipped) {
  const StripRun& run = segment_.strips[number];
  StripRunner runner(run, strips_, tile_ * run.elements);
  for (size_t c = 0; c < run.calls.size(); ++c) {
    if (skipped.empty() || !skipped[c]) {
      const StepFrame& frame = steps_[run.calls[c].step];
      runner.add(run.calls[c], strip_kernels_[number][c], frame.tensors, frame.args);
    }
  }
  runner.run();
}

// Where the results of a functional op should lie, so that they need not be copied.
void Frame::offer_places(const Step& step, const StepFrame& frame, bool first,
                         TaskMemory::Places& places) const {
  for (size_t t = step.operands.size(); t < frame.tensors.size(); ++t) {
    const View& view = step.view(t);
    const at::Tensor& tensor = frame.tensors[t];
    if (!view.discarded && !(view.partial && !first) && tensor.is_non_overlapping_and_dense()) {
      places.add(tensor.mutable_data_ptr(), tensor.nbytes(), frame.turns[t - step.operands.size()]);
    }
  }
}

// Copies what a functional op returned to where the plan wants it, if it does not lie there.
void Frame::store(const Step& step, StepFrame& frame, bool first,
                  const TaskMemory::Places& places) {
  c10::SmallVector<std::pair<size_t, at::Tensor>, 4> results;  // tensor of the step, result
  size_t at = step.operands.size();
  size_t returned = 0;
  for (const OutputMeta& output : step.signature->outputs) {
    const c10::IValue& value = stack_[returned++];
    if (output.kind == OutputMeta::Kind::kUndefined) {
      continue;
    }
    const size_t t = at++;
    if (value.isTensor() && value.toTensor().defined() && !step.view(t).discarded) {
      results.emplace_back(t, value.toTensor());
    }
  }
  for (const auto& [t, result] : results) {
    uint32_t& turn = frame.turns[t - step.operands.size()];
    turn = places.turn_of(result.storage().data()).value_or(turn);
  }
  const auto in_place = [&](size_t t, const at::Tensor& result) {
    return result.const_data_ptr() == frame.tensors[t].const_data_ptr() &&
           result.strides() == frame.tensors[t].strides();
  };
  // One that took the place of another, or lies in its own in another order, must make room.
  for (auto& [t, result] : results) {
    const void* memory = result.storage().data();
    for (const auto& [other, ignored] : results) {
      if (memory == frame.tensors[other].const_data_ptr() && memory != nullptr &&
          !(other == t && in_place(t, result))) {
        result = result.clone();
        break;
      }
    }
  }
  for (const auto& [t, result] : results) {
    const View& view = step.view(t);
    if (view.partial && !first) {
      combine_into(frame.tensors[t], result, step.combine);
    } else if (!in_place(t, result)) {
      frame.tensors[t].copy_(result);
    }
  }
}

void combine_into(at::Tensor& acc, const at::Tensor& part, Combine combine) {
  switch (combine) {
    case Combine::kSum:
    case Combine::kMean:
      acc.add_(part);
      break;
    case Combine::kProd:
      acc.mul_(part);
      break;
    case Combine::kMax:
      acc.copy_(acc.maximum(part));
      break;
    case Combine::kMin:
      acc.copy_(acc.minimum(part));
      break;
    case Combine::kAny:
      acc.logical_or_(part);
      break;
    case Combine::kAll:
      acc.logical_and_(part);
      break;
    case Combine::kHypot:
      acc.hypot_(part);
      break;
    case Combine::kLogAddExp:
      acc.copy_(acc.logaddexp(part));
      break;
    case Combine::kNone:
      TORCH_INTERNAL_ASSERT(false, "[tiledev] a partial result without a way to combine it");
  }
}

// ---- pool ---------------------------------------------------------------------------------------

std::unique_ptr<Frame> FramePool::take(uint32_t segment) {
  {
    const std::lock_guard lock(mutex_);
    auto& pool = pools_[segment];
    if (!pool.empty()) {
      auto frame = std::move(pool.back());
      pool.pop_back();
      return frame;
    }
  }
  return std::make_unique<Frame>(plan_.segments[segment]);
}

void FramePool::give_back(uint32_t segment, std::unique_ptr<Frame> frame) {
  const std::lock_guard lock(mutex_);
  pools_[segment].push_back(std::move(frame));
}

}  // namespace tiledev
