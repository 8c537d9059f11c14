#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "compile/plan.h"
#include "runtime/frame.h"

namespace tiledev {

// An executor that is to stop: what has not run yet gets this error.
struct Cancellation {
  std::atomic<bool> asked{false};
  std::shared_ptr<RunError> error;  // written before
};

// One run of a segment: its units (tiles, or lanes of tiles), which any number of workers take, and
// the errors of its steps.
class SegmentRun {
 public:
  // How many steps ran, failed, and were skipped since something that they need had failed.
  struct Outcome {
    uint64_t run = 0, failed = 0, skipped = 0;
    std::vector<std::shared_ptr<RunError>> errors;  // new ones
  };

  // Looks whether inputs have failed. Called once, before the first unit.
  void prepare(const Segment& segment, const std::vector<Node>& nodes);
  // Lets every step fail that has not run when this is asked for.
  void heed(const Cancellation& cancellation) { cancellation_ = &cancellation; }

  // Gives it a packed matrix that other runs use, too (Segment::packed).
  void use_packed(const Segment& segment, size_t number, std::shared_ptr<PackedMatrix> matrix) {
    packed_.resize(segment.packed.size());
    packed_[number] = std::move(matrix);
  }
  // Deals the units out: each worker has a range of its own, the same in segments of as many units,
  // so that a tile meets the cache that it was in last. Nothing is packed for all tiles if memory
  // is scarce. Called once, before the first unit.
  void share(const Segment& segment, size_t workers, bool scarce_memory);
  // Takes a unit, of its own or of another worker's; false if there are none left.
  bool claim(const Segment& segment, size_t worker, uint32_t& unit);
  // Runs it. True if it was the last one to finish: then the caller calls finish().
  bool run_unit(const Segment& segment, std::vector<Node>& nodes, uint32_t unit, size_t worker,
                const FrameSource& frames, Scratch& scratch, WorkMemory& memory);
  // Helps those that still run units with their products, until they are done or it is `wanted`
  // elsewhere. Whether there was something to do.
  bool help(const Segment& segment, const std::function<bool()>& wanted);
  // Combines partial results and hands errors to the buffers that the failed steps should have
  // written.
  Outcome finish(const Segment& segment, std::vector<Node>& nodes);

 private:
  void run_tiles(const Segment& segment, std::vector<Node>& nodes, uint32_t unit, size_t worker,
                 Frame& frame, const c10::Storage& scratch, WorkMemory& memory);
  // Runs f for a step unless it or what it needs has failed; an exception is the step's error.
  template <typename F>
  void guarded(const Segment& segment, size_t step, const std::vector<Node>& nodes, F&& f) {
    if (skips(segment, step)) {
      return;
    }
    try {
      f();
    } catch (...) {
      fail(segment, step, nodes);
    }
  }
  bool skips(const Segment& segment, size_t step);
  void cancel(const Segment& segment, const std::shared_ptr<RunError>& error);
  std::vector<bool> skipped_calls(const Segment& segment, const StripRun& run);
  void fail(const Segment& segment, size_t step, const std::vector<Node>& nodes);
  void make_errors(const Segment& segment);
  const std::vector<c10::Storage>* partials_of(const Segment& segment, uint32_t unit, size_t step,
                                               WorkMemory& memory);
  void combine(const Segment& segment, const std::vector<Node>& nodes);
  void combine_step(const Step& step, size_t i, const std::vector<Node>& nodes);
  void mark(const Segment& segment, std::vector<Node>& nodes, size_t step,
            const std::shared_ptr<RunError>& error);

  const Cancellation* cancellation_ = nullptr;
  PackedMatrices packed_;
  std::unique_ptr<SharedProducts> products_;  // null if there are none, or nobody to help
  size_t shares_ = 1;
  std::atomic<uint32_t> next_{0};                   // if there is one share
  std::unique_ptr<std::atomic<uint32_t>[]> taken_;  // else: of each
  std::atomic<uint32_t> done_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;                               // for what follows
  std::vector<std::shared_ptr<RunError>> errors_;  // by step; empty while nothing has failed
  std::vector<std::shared_ptr<RunError>> fresh_;   // that began here
  uint64_t failures_ = 0;
  // [lane - 1][step]: memory for partial results.
  std::vector<std::vector<std::vector<c10::Storage>>> partials_;
};

}  // namespace tiledev
