#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "compile/plan.h"
#include "graph/node.h"
#include "graph/task_memory.h"
#include "runtime/products.h"
#include "runtime/strips.h"

namespace tiledev {

// Memory of one worker for the temporaries of the tile that it works on.
class Scratch {
 public:
  // At least this much, from now on; what was there is lost.
  const c10::Storage& reserve(int64_t nbytes, c10::Allocator& memory);
  void release();
  int64_t nbytes() const { return nbytes_; }

 private:
  c10::Storage storage_;
  int64_t nbytes_ = 0;
};

// The arguments of a segment's steps, made once and bound again for every run: CPU tensors over
// scratch and over the memory of buffers. One thread uses a frame at a time.
class Frame {
 public:
  explicit Frame(const Segment& segment);

  // Points the tensors of step `i` at the memory of this run. Partial results of lanes after the
  // first one go to `partials`, in the order of the views. May allocate, and throw.
  void bind(size_t i, const std::vector<Node>& nodes, const c10::Storage& scratch,
            const std::vector<c10::Storage>* partials);
  // Cuts all tensors to the tile of these units.
  void set_tile(int64_t begin, int64_t end);
  // Runs a step on the tile. `first` in its lane: partial results start here.
  void run(size_t i, bool first, const ProductContext& products, WorkMemory& memory);
  // Runs the steps of a run of strips on the tile, but for those that are `skipped` (by call;
  // empty: none).
  void run_strips(size_t number, const std::vector<bool>& skipped);
  // Lets go of the memory of buffers, and of scratch.
  void release();
  void release_scratch();

 private:
  struct StepFrame {
    std::vector<c10::IValue> args;
    std::vector<at::Tensor> tensors;                            // operands, then outputs
    c10::SmallVector<std::pair<uint32_t, uint32_t>, 2> values;  // argument <- value of the node
    c10::SmallVector<uint32_t, 4> over_buffers, over_scratch;   // tensors
    const void* scratch = nullptr;  // what those over scratch are bound to
    std::vector<int64_t> offsets;   // of tensors over buffers, in these; by tensor
    std::vector<uint32_t> turns;    // functional: which requests for memory are for the results
  };

  void build(const Step& step, StepFrame& frame);
  void set_view(const View& view, at::Tensor& tensor, int64_t from, int64_t begin, int64_t end);
  void offer_places(const Step& step, const StepFrame& frame, bool first,
                    TaskMemory::Places& places) const;
  void store(const Step& step, StepFrame& frame, bool first, const TaskMemory::Places& places);

  const Segment& segment_;
  std::vector<StepFrame> steps_;
  torch::jit::Stack stack_;
  std::vector<std::vector<StripKernel>> strip_kernels_;  // by run and call
  StripMemory strips_;
  int64_t tile_ = -1;  // units of the tile that the tensors are cut to
};

// acc = acc (+, max, ...) part
void combine_into(at::Tensor& acc, const at::Tensor& part, Combine combine);

// The frames of a plan that are not in use.
class FramePool final : public PlanCompanion {
 public:
  explicit FramePool(const Plan& plan) : plan_(plan), pools_(plan.segments.size()) {}

  std::unique_ptr<Frame> take(uint32_t segment);
  void give_back(uint32_t segment, std::unique_ptr<Frame> frame);

 private:
  const Plan& plan_;
  std::mutex mutex_;
  std::vector<std::vector<std::unique_ptr<Frame>>> pools_;
};

// The frames of one segment.
struct FrameSource {
  FramePool& pool;
  uint32_t segment;

  std::unique_ptr<Frame> take() const { return pool.take(segment); }
  void give_back(std::unique_ptr<Frame> frame) const { pool.give_back(segment, std::move(frame)); }
};

}  // namespace tiledev
