#include "runtime/segment_run.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <exception>
#include <unordered_set>
#include <utility>

#include "runtime/host_view.h"
#include "runtime/task_body.h"

namespace tiledev {

namespace {

// Whether the view's op overwrites all of its buffer.
bool replaces(const View& view, const std::vector<Node>& nodes) {
  return view.written && view.source.slot >= 0 &&
         nodes[view.source.node].replaces(view.source.slot);
}

}  // namespace

void SegmentRun::make_errors(const Segment& segment) {
  if (errors_.empty()) {
    errors_.resize(segment.steps.size());
  }
  failed_.store(true, std::memory_order_release);
}

void SegmentRun::prepare(const Segment& segment, const std::vector<Node>& nodes) {
  std::unordered_set<const Buffer*> replaced;
  for (size_t i = 0; i < segment.steps.size(); ++i) {
    const Step& step = segment.steps[i];
    for (const View& view : step.operands) {
      if (view.scratch || view.fresh) {
        continue;
      }
      const Buffer& buffer = *view.source.find(nodes);
      if (!buffer.error) {
        continue;
      }
      if (replaces(view, nodes)) {
        replaced.insert(&buffer);
      } else if (buffer.poisoned() && replaced.count(&buffer) == 0) {
        const std::lock_guard lock(mutex_);
        make_errors(segment);
        errors_[i] = buffer.error;
      }
    }
  }
}

void SegmentRun::cancel(const Segment& segment, const std::shared_ptr<RunError>& error) {
  const std::lock_guard lock(mutex_);
  make_errors(segment);
  for (auto& e : errors_) {
    e = e ? e : error;
  }
}

void SegmentRun::share(const Segment& segment, size_t workers, bool scarce_memory) {
  packed_.resize(segment.packed.size());
  for (auto& matrix : packed_) {
    if (!matrix && !scarce_memory) {
      matrix = std::make_shared<PackedMatrix>();
    }
  }
  const auto is_product = [](const Step& step) { return step.product.has_value(); };
  if (workers > 1 && segment.units() > 1 &&
      std::any_of(segment.steps.begin(), segment.steps.end(), is_product)) {
    products_ = std::make_unique<SharedProducts>(workers);
  }
  if (workers > 1 && segment.units() >= workers) {
    shares_ = workers;
    taken_ = std::make_unique<std::atomic<uint32_t>[]>(workers);
  }
}

bool SegmentRun::claim(const Segment& segment, size_t worker, uint32_t& unit) {
  const size_t units = segment.units();
  if (!taken_) {
    unit = next_.fetch_add(1, std::memory_order_relaxed);
    return unit < units;
  }
  for (size_t i = 0; i < shares_; ++i) {
    const size_t share = (worker + i) % shares_;
    const size_t begin = units * share / shares_;
    const size_t end = units * (share + 1) / shares_;
    const size_t taken = taken_[share].fetch_add(1, std::memory_order_relaxed);
    if (begin + taken < end) {
      unit = static_cast<uint32_t>(begin + taken);
      return true;
    }
  }
  return false;
}

// ---- units --------------------------------------------------------------------------------------

const std::vector<c10::Storage>* SegmentRun::partials_of(const Segment& segment, uint32_t unit,
                                                         size_t step, WorkMemory& allocator) {
  if (segment.lanes == 0 || unit == 0) {
    return nullptr;  // the first lane accumulates in the result itself
  }
  const Step& s = segment.steps[step];
  if (s.combine == Combine::kNone) {
    return nullptr;
  }
  std::vector<c10::Storage>* memory = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (partials_.empty()) {
      partials_.resize(segment.lanes - 1);
    }
    auto& lane = partials_[unit - 1];
    if (lane.empty()) {
      lane.resize(segment.steps.size());
    }
    memory = &lane[step];
  }
  for (const View& view : s.outputs) {
    if (view.partial) {
      memory->emplace_back(c10::Storage::use_byte_size_t{}, view.meta.storage_nbytes(), &allocator,
                           /*resizable=*/false);
    }
  }
  return memory;
}

// Whether the step has failed, or something that it needs.
bool SegmentRun::skips(const Segment& segment, size_t step) {
  if (cancellation_ != nullptr && cancellation_->asked.load(std::memory_order_acquire)) {
    cancel(segment, cancellation_->error);
  }
  if (!failed_.load(std::memory_order_acquire)) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  for (const uint32_t before : segment.steps[step].after) {
    if (!errors_[step] && errors_[before]) {
      errors_[step] = errors_[before];
    }
  }
  return errors_[step] != nullptr;
}

// The calls of a run of strips that cannot run; empty if all can. None of them fails by itself.
std::vector<bool> SegmentRun::skipped_calls(const Segment& segment, const StripRun& run) {
  std::vector<bool> skipped;
  for (size_t c = 0; failed_.load(std::memory_order_acquire) && c < run.calls.size(); ++c) {
    skipped.resize(run.calls.size());
    skipped[c] = skips(segment, run.calls[c].step);
  }
  return skipped;
}

void SegmentRun::fail(const Segment& segment, size_t step, const std::vector<Node>& nodes) {
  auto error = std::make_shared<RunError>();
  error->exception = std::current_exception();
  error->op = nodes[segment.steps[step].node].name();
  error->location = nodes[segment.steps[step].node].location;
  const std::lock_guard lock(mutex_);
  make_errors(segment);
  if (!errors_[step]) {
    ++failures_;
    errors_[step] = error;
    fresh_.push_back(std::move(error));
  }
}

bool SegmentRun::run_unit(const Segment& segment, std::vector<Node>& nodes, uint32_t unit,
                          size_t worker, const FrameSource& frames, Scratch& scratch,
                          WorkMemory& allocator) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  std::unique_ptr<Frame> frame;
  try {
    frame = frames.take();
    run_tiles(segment, nodes, unit, worker, *frame,
              scratch.reserve(segment.scratch_bytes, allocator), allocator);
  } catch (...) {
    fail(segment, 0, nodes);  // there is no memory for what all steps need
    const std::lock_guard lock(mutex_);
    for (auto& error : errors_) {
      error = error ? error : errors_[0];
    }
  }
  if (frame) {
    frame->release();
    // A kept frame would keep the block alive when the worker has a larger one, or is gone.
    constexpr int64_t kWorthKeeping = 64 << 10;
    if (allocator.scarce() || scratch.nbytes() > kWorthKeeping) {
      frame->release_scratch();
    }
    if (allocator.scarce()) {
      scratch.release();
    }
    frames.give_back(std::move(frame));
  }
  return done_.fetch_add(1, std::memory_order_acq_rel) + 1 == segment.units();
}

bool SegmentRun::help(const Segment& segment, const std::function<bool()>& wanted) {
  return products_ && products_->help([&] {
    return done_.load(std::memory_order_acquire) == segment.units() || wanted();
  });
}

void SegmentRun::run_tiles(const Segment& segment, std::vector<Node>& nodes, uint32_t unit,
                           size_t worker, Frame& frame, const c10::Storage& scratch,
                           WorkMemory& allocator) {
  const size_t tiles = segment.tiles();
  const size_t begin = segment.lanes > 0 ? unit * tiles / segment.lanes : unit;
  const size_t end = segment.lanes > 0 ? (unit + 1) * tiles / segment.lanes : unit + 1;
  const auto bind = [&](size_t i) {
    frame.bind(i, nodes, scratch, partials_of(segment, unit, i, allocator));
  };
  for (size_t i = 0; segment.tiled() && i < segment.steps.size(); ++i) {
    guarded(segment, i, nodes, [&] { bind(i); });
  }
  for (size_t t = begin; t < end; ++t) {
    if (segment.tiled()) {
      frame.set_tile(segment.bounds[t], segment.bounds[t + 1]);
    }
    size_t strips = 0;
    for (size_t i = 0; i < segment.steps.size(); ++i) {
      if (strips < segment.strips.size() && segment.strips[strips].first == i) {
        const StripRun& run = segment.strips[strips];
        frame.run_strips(strips++, skipped_calls(segment, run));
        i += run.count - 1;
        continue;
      }
      guarded(segment, i, nodes, [&] {
        if (segment.steps[i].form == Step::Form::kNode) {
          run_node(nodes[segment.steps[i].node]);  // which may give its results new memory
          return;
        }
        if (!segment.tiled()) {
          bind(i);
        }
        frame.run(i, t == begin, {packed_, products_.get(), worker}, allocator);
      });
    }
  }
}

// ---- the end ------------------------------------------------------------------------------------

void SegmentRun::combine(const Segment& segment, const std::vector<Node>& nodes) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  for (size_t i = 0; i < segment.steps.size(); ++i) {
    if (segment.steps[i].combine == Combine::kNone || skips(segment, i)) {
      continue;
    }
    try {
      combine_step(segment.steps[i], i, nodes);
    } catch (...) {
      fail(segment, i, nodes);
    }
  }
}

void SegmentRun::combine_step(const Step& step, size_t i, const std::vector<Node>& nodes) {
  size_t partial = 0;
  for (const View& view : step.outputs) {
    if (!view.partial) {
      continue;
    }
    at::Tensor acc = host_view(view.source.find(nodes)->memory(), view.meta, view.offset_in(nodes));
    for (const auto& lane : partials_) {
      combine_into(acc, host_view(lane[i][partial], view.meta, 0), step.combine);
    }
    if (step.combine == Combine::kMean) {
      acc.div_(step.mean_of);
    }
    ++partial;
  }
}

void SegmentRun::mark(const Segment& segment, std::vector<Node>& nodes, size_t i,
                      const std::shared_ptr<RunError>& error) {
  const Step& step = segment.steps[i];
  const auto mark_view = [&](const View& view) {
    if (!view.written || view.internal || (view.scratch && !error)) {
      return;
    }
    Buffer& buffer = *view.source.find(nodes);
    if (error) {
      buffer.error = error;
      if (view.fresh) {
        buffer.discard();
      }
    } else if (buffer.error && replaces(view, nodes)) {
      buffer.error.reset();  // a failure before is overwritten
    }
  };
  for (const View& view : step.operands) {
    mark_view(view);
  }
  for (const View& view : step.outputs) {
    mark_view(view);
  }
}

SegmentRun::Outcome SegmentRun::finish(const Segment& segment, std::vector<Node>& nodes) {
  if (segment.lanes > 0) {
    combine(segment, nodes);
  }
  Outcome outcome;
  uint64_t broken = 0;
  for (size_t i = 0; i < segment.steps.size(); ++i) {
    const auto error = skips(segment, i) ? errors_[i] : nullptr;
    broken += error ? 1 : 0;
    mark(segment, nodes, i, error);
  }
  outcome.failed = failures_;
  outcome.skipped = broken - std::min(broken, failures_);
  outcome.run = segment.steps.size() - broken;
  outcome.errors = std::move(fresh_);
  partials_.clear();
  packed_.clear();
  return outcome;
}

}  // namespace tiledev
