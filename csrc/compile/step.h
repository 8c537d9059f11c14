#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "compile/product_call.h"
#include "graph/node.h"
#include "rules/rule.h"

namespace tiledev {

// Where a view's buffer stands in a list of nodes: an operand of a node, or one of its results.
struct NodeSlot {
  uint32_t node = 0;
  int32_t slot = 0;  // operand number, or ~number of the result

  const BufferPtr& find(const std::vector<Node>& nodes) const {
    const Node& n = nodes[node];
    return slot >= 0 ? n.operands[slot].buffer : n.results[~slot];
  }
};

// A tensor of a step: part of a buffer, and how a tile cuts it.
struct View {
  uint32_t buffer = 0;  // local number in the graph (Fingerprint)
  NodeSlot source;
  TensorMeta meta;
  int64_t offset = 0;  // in elements; of an operand: from the buffer's origin (Fingerprint)
  bool written = false;
  bool fresh = false;        // a result: nothing is read, nothing was there before
  bool overwritten = false;  // all elements, without being read

  int8_t cut_dim = -1;     // the dimension that a tile cuts, or -1: the whole view
  int64_t factor = 1;      // how many of its elements one unit of the segment's axis covers
  int64_t span = 0;        // stride * size of that dimension: how a tile cuts the buffer
  bool internal = false;   // no node knows its buffer; always in scratch
  bool discarded = false;  // a result that nobody wants
  bool partial = false;    // accumulated over the tiles of a lane
  bool scratch = false;    // lives in the worker's scratch, not in the buffer
  bool strip = false;      // ... or not even there: only strips of it exist (StripRun)
  int64_t scratch_at = 0, scratch_nbytes = 0;

  // Where it begins in the memory of a run's buffer.
  int64_t offset_in(const std::vector<Node>& nodes) const {
    return source.slot >= 0 ? nodes[source.node].operands[source.slot].offset : offset;
  }
};

// One call of an op in a plan: a node, or a part of one. It runs on whole tensors or tile by tile.
struct Step {
  enum class Form : uint8_t {
    kNode,        // the node as recorded, whole
    kInPlace,     // an op that writes its arguments only
    kOut,         // the out= variant of a functional op
    kFunctional,  // a functional op; its results are copied into place
  };

  uint32_t node = 0;
  SignaturePtr signature;
  Form form = Form::kNode;
  std::optional<c10::OperatorHandle> callee;
  std::vector<View> operands;  // as in the signature
  std::vector<View> outputs;   // the fresh ones, in order
  // Arguments that differ from the signature's: numbers of dimensions after a collapse.
  c10::SmallVector<std::pair<uint32_t, c10::IValue>, 1> patches;
  int32_t extent_arg = -1;    // an argument that is the extent of the cut axis, or a list of it ...
  int64_t extent_factor = 1;  // ... in so many of its elements for a unit
  // The element of a list of scalars that this part of a node uses: (argument, element).
  int32_t scalar_list_arg = -1;
  uint32_t scalar_list_at = 0;
  Combine combine = Combine::kNone;    // of the partial outputs
  bool accumulates = false;            // mm: later tiles are added by the product itself
  std::optional<ProductCall> product;  // it is one, and kernels/products takes it
  double mean_of = 0;                  // kMean: divide by this many in the end
  int64_t work = 0;                    // elements read and written
  double flops = 0;                    // of products of matrices
  bool whole = false;                  // its rule does not hold for these arguments
  bool alone = false;                  // small, and must come early: never tiled
  std::vector<uint32_t> after;         // earlier steps of the segment whose results it needs

  // All views: the operands, then the outputs.
  size_t view_count() const { return operands.size() + outputs.size(); }
  View& view(size_t t) { return t < operands.size() ? operands[t] : outputs[t - operands.size()]; }
  const View& view(size_t t) const {
    return t < operands.size() ? operands[t] : outputs[t - operands.size()];
  }
};

// Calls f(view, number) for each view of a step.
template <typename S, typename F>
void for_each_view(S& step, F&& f) {
  for (size_t t = 0; t < step.view_count(); ++t) {
    f(step.view(t), t);
  }
}

}  // namespace tiledev
