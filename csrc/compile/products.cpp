// Which products of matrices kernels/products takes, and which of their operands are laid out once
// for all tiles of a segment.

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "compile/cost_model.h"
#include "compile/pipeline.h"

namespace tiledev {

namespace {

bool plain_matrix(const TensorMeta& meta) {
  return meta.sizes.size() == 2 && meta.dtype == at::kFloat && !meta.neg && !meta.conj &&
         meta.numel > 0;
}

// Whether the elements of each row lie side by side, or those of each column.
bool has_unit_stride(const TensorMeta& meta) {
  return plain_matrix(meta) && (meta.strides[0] == 1 || meta.strides[1] == 1);
}

bool is_row(const View& view, int64_t columns) {
  const TensorMeta& meta = view.meta;
  return meta.dtype == at::kFloat && !meta.neg && !meta.conj && meta.numel == columns &&
         !meta.sizes.empty() && meta.sizes.back() == columns &&
         (meta.strides.back() == 1 || columns == 1);
}

std::unordered_set<uint32_t> written_buffers(const Segment& segment) {
  std::unordered_set<uint32_t> written;
  for (const Step& step : segment.steps) {
    for_each_view(step, [&](const View& view, size_t) {
      if (view.written) {
        written.insert(view.buffer);
      }
    });
  }
  return written;
}

class Products {
 public:
  explicit Products(Segment& segment) : segment_(segment), written_(written_buffers(segment)) {}

  void run() {
    for (uint32_t i = 0; i < segment_.steps.size(); ++i) {
      Step& step = segment_.steps[i];
      if (auto call = product_call(step)) {
        call->packed = share(i, call->b);
        step.product = call;
      }
    }
  }

 private:
  static std::optional<ProductCall> product_call(const Step& step) {
    if (step.form != Step::Form::kOut || !step.signature || !step.patches.empty() ||
        step.outputs.size() != 1 || (step.combine != Combine::kNone && !step.accumulates)) {
      return std::nullopt;
    }
    const std::string_view name = step.signature->op->name;
    const bool adds = name == "aten::addmm";
    if (!(adds || name == "aten::mm") || step.operands.size() != (adds ? 3 : 2)) {
      return std::nullopt;
    }
    ProductCall call;
    call.a = adds ? 1 : 0;
    call.b = call.a + 1;
    call.row = adds ? 0 : -1;
    const View& out = step.outputs[0];
    if (out.discarded || !plain_matrix(out.meta) ||
        !(out.meta.strides[1] == 1 || out.meta.sizes[1] == 1) ||
        !has_unit_stride(step.operands[call.a].meta) ||
        !has_unit_stride(step.operands[call.b].meta) ||
        (adds && !is_row(step.operands[0], out.meta.sizes[1]))) {
      return std::nullopt;
    }
    return call;
  }

  // The number of a matrix that all tiles read and none writes.
  int32_t share(uint32_t i, uint32_t operand) {
    const View& view = segment_.steps[i].operands[operand];
    if (view.cut_dim >= 0 || view.scratch || view.internal || segment_.tiles() < 2 ||
        written_.count(view.buffer) > 0) {
      return -1;
    }
    for (size_t n = 0; n < segment_.packed.size(); ++n) {
      const PackedOperand& known = segment_.packed[n];
      const View& other = segment_.steps[known.step].operands[known.operand];
      if (other.buffer == view.buffer && other.offset == view.offset &&
          other.meta.sizes == view.meta.sizes && other.meta.strides == view.meta.strides) {
        return static_cast<int32_t>(n);
      }
    }
    constexpr int64_t kPanel = 16;  // columns are filled up to a multiple (kernels/products)
    const int64_t columns = (view.meta.sizes[1] + kPanel - 1) / kPanel * kPanel;
    const int64_t bytes = view.meta.sizes[0] * columns * static_cast<int64_t>(sizeof(float));
    if (packed_bytes_ + bytes > kPackedBytes) {
      return -1;
    }
    packed_bytes_ += bytes;
    segment_.packed.push_back({i, operand});
    return static_cast<int32_t>(segment_.packed.size() - 1);
  }

  Segment& segment_;
  const std::unordered_set<uint32_t> written_;
  int64_t packed_bytes_ = 0;
};

}  // namespace

void find_products(Compilation& c) {
  if (!c.options.products) {
    return;
  }
  std::unordered_set<uint32_t> written;
  for (Segment& segment : c.plan.segments) {
    written.merge(written_buffers(segment));
    if (segment.tiled()) {
      Products(segment).run();
    }
  }
  for (Segment& segment : c.plan.segments) {
    for (PackedOperand& packed : segment.packed) {
      const uint32_t buffer = segment.steps[packed.step].operands[packed.operand].buffer;
      packed.lasts = c.print.outlives[buffer] != 0 && written.count(buffer) == 0;
    }
  }
}

}  // namespace tiledev
