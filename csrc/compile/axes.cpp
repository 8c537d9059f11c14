#include "compile/axes.h"

#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <map>
#include <string>

namespace tiledev {

namespace {

using DimSet = std::vector<bool>;

// Marks of dimensions that no axis claims.
constexpr int kUncut = -1;

class AxisFinder {
 public:
  AxisFinder(const Step& step, const TileRule& rule)
      : step_(step), rule_(rule), op_(*step.signature->op) {}

  std::optional<StepAxes> run() {
    for (const View& view : step_.operands) {
      result_.metas.push_back(view.meta);
    }
    for (const View& view : step_.outputs) {
      result_.metas.push_back(view.meta);
    }
    axis_of_.resize(result_.metas.size());
    for (size_t t = 0; t < axis_of_.size(); ++t) {
      axis_of_[t].assign(result_.metas[t].sizes.size(), kUncut);
    }
    seen_.assign(axis_of_.size(), false);
    find_dim_argument();
    if (!read_inputs() || !read_outputs() ||
        std::find(seen_.begin(), seen_.end(), false) != seen_.end()) {
      return std::nullopt;
    }
    build();
    return std::move(result_);
  }

 private:
  // Letters are axes by name; '*' dimensions by their distance from the rule's suffix.
  using Name = std::pair<char, int64_t>;

  struct NamedAxis {
    Name name;
    int64_t extent = 0;
    bool usable = true;
  };

  int axis(const Name& name, int64_t extent) {
    for (size_t a = 0; a < named_.size(); ++a) {
      if (named_[a].name == name) {
        if (named_[a].extent == 1) {
          named_[a].extent = extent;
        }
        named_[a].usable &= named_[a].extent == extent || extent == 1;
        return static_cast<int>(a);
      }
    }
    const bool usable = name.first == '*' || rule_.uncut.find(name.first) == std::string::npos;
    named_.push_back({name, extent, usable});
    return static_cast<int>(named_.size()) - 1;
  }

  size_t normalized_count() const {
    const auto& schema = op_.op.schema();
    const auto index = schema.argumentIndexWithName("normalized_shape");
    return index ? step_.signature->args[*index].constant.toListRef().size() : 0;
  }

  // What the argument `dim` (of a loss: `reduction`) names: all dimensions if absent or empty.
  void find_dim_argument() {
    if (rule_.dim_arg == DimArg::kAbsent) {
      return;
    }
    const auto& schema = op_.op.schema();
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      const std::string& name = schema.arguments()[i].name();
      if (rule_.dim_arg == DimArg::kReduction ? name == "reduction"
                                              : name == "dim" || name == "dims") {
        dim_index_ = static_cast<int>(i);
      } else if (name == "keepdim") {
        keepdim_ = step_.signature->args[i].constant.toBool();
      }
    }
  }

  DimSet named_dims(size_t rank) const {
    const c10::IValue none;
    const c10::IValue& dim = dim_index_ >= 0 ? step_.signature->args[dim_index_].constant : none;
    if (rule_.dim_arg == DimArg::kReduction) {
      return DimSet(rank, dim.toInt() != 0);
    }
    const bool all = dim.isNone() || (dim.isList() && dim.toListRef().empty());
    DimSet set(rank, all);
    const auto mark = [&](int64_t d) {
      const int64_t wrapped = d < 0 ? d + static_cast<int64_t>(rank) : d;
      if (wrapped >= 0 && wrapped < static_cast<int64_t>(rank)) {
        set[wrapped] = true;  // cat takes empty tensors of a lower rank
      }
    };
    if (dim.isInt()) {
      mark(dim.toInt());
    } else if (dim.isList()) {
      for (const c10::IValue& d : dim.toListRef()) {
        mark(d.toInt());
      }
    }
    return set;
  }

  bool read_inputs() {
    static const RuleItem any_shape = pointwise_item();
    size_t input = 0;
    for (size_t i = 0; i < op_.args.size(); ++i) {
      const ArgKind kind = op_.args[i].kind;
      const bool tensor = kind == ArgKind::kTensor || kind == ArgKind::kTensorList ||
                          kind == ArgKind::kOptionalTensorList;
      if (!tensor || (op_.is_out_form && op_.args[i].overwritten)) {
        continue;
      }
      const RuleItem& item = rule_.pointwise ? any_shape : rule_.inputs[input++];
      if ((kind != ArgKind::kTensor) != item.list && !rule_.pointwise) {
        return false;
      }
      const ArgSlot& slot = step_.signature->args[i];
      for (uint32_t k = 0; k < slot.count; ++k) {
        const TensorRef& ref = step_.signature->tensor_refs[slot.begin + k];
        if (ref.kind == TensorRef::Kind::kOperand && !read_item(item, ref.index, true)) {
          return false;
        }
      }
    }
    return true;
  }

  bool read_outputs() {
    static const RuleItem any_shape = pointwise_item();
    const Signature& signature = *step_.signature;
    size_t output = 0;
    size_t fresh = step_.operands.size();
    for (size_t r = 0; r < signature.return_counts.size(); ++r) {
      const RuleItem& item = rule_.pointwise ? any_shape : rule_.outputs[r];
      for (uint32_t k = 0; k < signature.return_counts[r]; ++k) {
        const OutputMeta& meta = signature.outputs[output++];
        if (meta.kind == OutputMeta::Kind::kUndefined) {
          continue;
        }
        const size_t tensor = meta.kind == OutputMeta::Kind::kFresh ? fresh++ : meta.operand;
        if (!read_item(item, tensor, false)) {
          return false;
        }
      }
    }
    return true;
  }

  static RuleItem pointwise_item() {
    RuleItem item;
    item.broadcast = true;
    item.dims.push_back({RuleDim::Kind::kLeading, '*'});
    return item;
  }

  // Gives each dimension of a tensor its axis. False if the tensor does not look like the item.
  bool read_item(const RuleItem& item, size_t tensor, bool input) {
    seen_[tensor] = true;
    if (item.opaque) {
      return true;
    }
    if (result_.metas[tensor].numel == 0) {
      return false;
    }
    const auto& sizes = result_.metas[tensor].sizes;
    const bool named = rule_.dim_arg != DimArg::kAbsent;
    if (named && !input) {
      return read_kept(tensor);
    }
    const bool index = rule_.dim_arg == DimArg::kIndexed && item.dims[0].letter == 'i';
    if (named && !index) {
      return read_named(tensor);
    }
    const size_t rank = sizes.size();
    size_t suffix = 0;
    size_t trailing = 0;
    for (const RuleDim& dim : item.dims) {
      suffix += dim.kind == RuleDim::Kind::kAxis ? 1 : 0;
      suffix += dim.kind == RuleDim::Kind::kNormalized ? normalized_count() : 0;
    }
    const bool leading = !item.dims.empty() && item.dims[0].kind == RuleDim::Kind::kLeading;
    const bool open = !item.dims.empty() && item.dims.back().kind == RuleDim::Kind::kTrailing;
    if (open) {
      if (rank < suffix) {
        return false;
      }
      trailing = rank - suffix;
    } else if (!leading && !item.broadcast && rank != suffix) {
      return false;
    } else if (leading && rank < suffix) {
      return false;
    } else if (!leading && rank > suffix) {
      return false;
    }
    return assign(item, tensor, rank, suffix, trailing);
  }

  bool assign(const RuleItem& item, size_t tensor, size_t rank, size_t suffix, size_t trailing) {
    const auto& sizes = result_.metas[tensor].sizes;
    int64_t d = static_cast<int64_t>(rank) - 1 - static_cast<int64_t>(trailing);
    for (size_t i = item.dims.size(); i-- > 0;) {
      const RuleDim& dim = item.dims[i];
      if (dim.kind == RuleDim::Kind::kAxis) {
        if (d >= 0) {
          set(tensor, d, axis({dim.letter, 0}, sizes[d]), item.broadcast);
        }
        --d;
      } else if (dim.kind == RuleDim::Kind::kNormalized) {
        d -= static_cast<int64_t>(normalized_count());
      } else if (dim.kind == RuleDim::Kind::kLeading) {
        for (int64_t k = 0; d >= 0; --d, ++k) {
          set(tensor, d, axis({'*', k}, sizes[d]), item.broadcast);
        }
      }
    }
    return true;
  }

  void set(size_t tensor, int64_t d, int axis, bool broadcast) {
    if (result_.metas[tensor].sizes[d] == 1) {
      if (!broadcast) {
        strict_units_.push_back(axis);  // fine only if the dimension is one for all others, too
      }
      return;
    }
    axis_of_[tensor][d] = axis;
  }

  // An input of an op with a `dim`: axes by position from the left.
  bool read_named(size_t tensor) {
    const auto& sizes = result_.metas[tensor].sizes;
    if (sizes.empty() || (rank_ > 0 && rank_ != sizes.size())) {
      return false;  // cat takes empty tensors of another rank
    }
    rank_ = sizes.size();
    const DimSet named = named_dims(rank_);
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (rule_.dim_arg == DimArg::kIndexed && named[d]) {
        continue;
      }
      const int a = axis({'*', static_cast<int64_t>(d)}, sizes[d]);
      if (rule_.dim_arg == DimArg::kWhole || rule_.dim_arg == DimArg::kDropped) {
        named_[a].usable &= !named[d];
      }
      set(tensor, static_cast<int64_t>(d), a, false);
    }
    return true;
  }

  // A result of such an op: the dimensions that are kept, in order.
  bool read_kept(size_t tensor) {
    const auto& sizes = result_.metas[tensor].sizes;
    const DimSet named = named_dims(rule_.dim_arg == DimArg::kStacked ? rank_ + 1 : rank_);
    const bool drops = rule_.dim_arg == DimArg::kReduced || rule_.dim_arg == DimArg::kDropped ||
                       rule_.dim_arg == DimArg::kReduction;
    size_t at = 0;  // dimension of the result
    size_t from = 0;
    for (size_t d = 0; d < named.size(); ++d) {
      if (rule_.dim_arg == DimArg::kStacked && named[d]) {
        ++at;
        continue;
      }
      const size_t axis_index = from++;
      if (drops && named[d] && !keepdim_) {
        continue;
      }
      if (at >= sizes.size()) {
        return false;
      }
      if (!(drops && named[d])) {
        const bool index = rule_.dim_arg == DimArg::kIndexed && named[d];
        const Name name = index ? Name{'i', 0} : Name{'*', static_cast<int64_t>(axis_index)};
        const int a = axis(name, sizes[at]);
        set(tensor, static_cast<int64_t>(at), a, false);
      }
      ++at;
    }
    return at == sizes.size();
  }

  void build() {
    const size_t first_output = step_.operands.size();
    for (const int a : strict_units_) {
      named_[a].usable &= named_[a].extent == 1;
    }
    for (size_t a = 0; a < named_.size(); ++a) {
      if (!named_[a].usable || named_[a].extent < 2) {
        continue;
      }
      Axis axis;
      axis.extent = named_[a].extent;
      const bool repeated = rule_.extent_letter != 0 &&
                            named_[a].name.first == rule_.extent_letter && !extent_left_out();
      bool fits = !repeated || repeats_extent(axis.extent);
      for (size_t t = 0; t < axis_of_.size(); ++t) {
        int found = -1;
        for (size_t d = 0; d < axis_of_[t].size(); ++d) {
          if (axis_of_[t][d] == static_cast<int>(a)) {
            fits &= found < 0 && result_.metas[t].sizes[d] == axis.extent;
            found = static_cast<int>(d);
          }
        }
        axis.dims.push_back(static_cast<int8_t>(found));
        if (found >= 0) {
          continue;
        }
        if (t >= first_output && step_.outputs[t - first_output].discarded) {
          continue;
        }
        if (t >= first_output) {
          axis.reduced = true;
          fits &= can_combine(result_.metas[t]);
        } else if (step_.operands[t].written) {
          fits = false;
        }
      }
      if (fits) {
        if (repeated) {
          result_.extent_axis = static_cast<int>(result_.axes.size());
        }
        result_.axes.push_back(std::move(axis));
      }
    }
    order();
  }

  // Whether the argument that should repeat an extent is left out: none, or the shape of no tensor.
  bool extent_left_out() const {
    const c10::IValue& given = extent_argument();
    return given.isNone() || (given.isIntList() && given.toIntVector() == std::vector<int64_t>{0});
  }

  bool repeats_extent(int64_t extent) const {
    const c10::IValue& given = extent_argument();
    return (given.isInt() && given.toInt() == extent) ||
           (given.isIntList() && given.toIntVector() == std::vector<int64_t>{extent});
  }

  const c10::IValue& extent_argument() const {
    const auto index = op_.op.schema().argumentIndexWithName(rule_.extent_arg);
    return step_.signature->args[*index].constant;
  }

  // Parts of a sum are kept in the result's type, which must be as good as float32 for that.
  bool can_combine(const TensorMeta& meta) const {
    return rule_.combine != Combine::kNone && meta.dtype != c10::ScalarType::Half &&
           meta.dtype != c10::ScalarType::BFloat16;
  }

  // Free axes before reduced ones, outermost (of the output, or of the first operand) first.
  void order() {
    const size_t lead = step_.outputs.empty() ? 0 : step_.operands.size();
    std::vector<size_t> index(result_.axes.size());
    for (size_t i = 0; i < index.size(); ++i) {
      index[i] = i;
    }
    const auto rank_of = [&](const Axis& axis) {
      return axis.dims[lead] >= 0 ? axis.dims[lead] : 100;
    };
    std::stable_sort(index.begin(), index.end(), [&](size_t x, size_t y) {
      const Axis &a = result_.axes[x], &b = result_.axes[y];
      return std::make_pair(a.reduced, rank_of(a)) < std::make_pair(b.reduced, rank_of(b));
    });
    std::vector<Axis> sorted;
    int extent_axis = -1;
    for (const size_t i : index) {
      if (static_cast<int>(i) == result_.extent_axis) {
        extent_axis = static_cast<int>(sorted.size());
      }
      sorted.push_back(std::move(result_.axes[i]));
    }
    result_.axes = std::move(sorted);
    result_.extent_axis = extent_axis;
  }

  const Step& step_;
  const TileRule& rule_;
  const OpTraits& op_;
  StepAxes result_;
  std::vector<NamedAxis> named_;
  std::vector<std::vector<int>> axis_of_;
  std::vector<bool> seen_;
  std::vector<int> strict_units_;
  int dim_index_ = -1;
  bool keepdim_ = false;
  size_t rank_ = 0;
};

// ---- merging axes -------------------------------------------------------------------------------

// Whether `inner` follows `outer` in every tensor, in shape and in memory.
bool adjacent(const StepAxes& axes, const Axis& outer, const Axis& inner) {
  if (outer.reduced != inner.reduced) {
    return false;
  }
  for (size_t t = 0; t < axes.metas.size(); ++t) {
    const int8_t o = outer.dims[t], i = inner.dims[t];
    if ((o < 0) != (i < 0)) {
      return false;
    }
    if (o < 0) {
      continue;
    }
    const TensorMeta& meta = axes.metas[t];
    if (i != o + 1 || meta.strides[o] != meta.strides[i] * meta.sizes[i]) {
      return false;
    }
  }
  return true;
}

// The dimension that an axis has in tensors of full rank; operands are aligned to the right.
int64_t position(const StepAxes& axes, const Axis& axis, int64_t full_rank) {
  for (size_t t = 0; t < axes.metas.size(); ++t) {
    if (axis.dims[t] >= 0) {
      return axis.dims[t] + full_rank - static_cast<int64_t>(axes.metas[t].sizes.size());
    }
  }
  return -1;
}

void merge(StepAxes& axes, size_t outer, size_t inner) {
  Axis& into = axes.axes[outer];
  const Axis gone = axes.axes[inner];
  int64_t full_rank = 0;
  for (const TensorMeta& meta : axes.metas) {
    full_rank = std::max(full_rank, static_cast<int64_t>(meta.sizes.size()));
  }
  const int64_t at = position(axes, gone, full_rank);
  into.extent *= gone.extent;
  for (size_t t = 0; t < axes.metas.size(); ++t) {
    TensorMeta& meta = axes.metas[t];
    int64_t d = gone.dims[t];
    if (d >= 0) {
      meta.sizes[d - 1] *= meta.sizes[d];
      meta.strides[d - 1] = meta.strides[d];
    } else {
      // Broadcast along both: two unit dimensions become one.
      d = at - (full_rank - static_cast<int64_t>(meta.sizes.size()));
      if (d < 1) {
        continue;
      }
    }
    meta.sizes.erase(meta.sizes.begin() + d);
    meta.strides.erase(meta.strides.begin() + d);
    for (Axis& axis : axes.axes) {
      axis.dims[t] -= axis.dims[t] > d ? 1 : 0;
    }
  }
  axes.axes.erase(axes.axes.begin() + static_cast<std::ptrdiff_t>(inner));
}

// Ops whose arguments are numbers of dimensions (or shapes) keep their shapes, unless they are
// elementwise; for those with a `dim` the number is corrected.
bool may_change_rank(const Step& step) {
  const TileRule* rule = rule_of(*step.signature);
  return rule != nullptr && (rule->pointwise || rule->dim_arg == DimArg::kWhole);
}

// Corrects the argument `dim` where that is easy: the first or the last dimension.
bool patch_dim(const Step& step, const StepAxes& before, StepAxes& after) {
  if (rule_of(*step.signature)->pointwise) {
    return true;
  }
  const auto index = step.signature->op->op.schema().argumentIndexWithName("dim");
  if (!index || !step.signature->args[*index].constant.isInt()) {
    return false;
  }
  const auto rank = static_cast<int64_t>(before.metas[0].sizes.size());
  const auto rank_now = static_cast<int64_t>(after.metas[0].sizes.size());
  const int64_t dim =
      c10::maybe_wrap_dim(step.signature->args[*index].constant.toInt(), rank, true);
  if (dim != 0 && dim != rank - 1) {
    return false;
  }
  after.patches.emplace_back(static_cast<uint32_t>(*index), dim == 0 ? 0 : rank_now - 1);
  return true;
}

}  // namespace

bool same_layout(const TensorMeta& a, const TensorMeta& b) {
  if (a.sizes != b.sizes) {
    return false;
  }
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.sizes[d] != 1 && a.strides[d] != b.strides[d]) {
      return false;
    }
  }
  return true;
}

bool dense(const TensorMeta& meta) {
  c10::SmallVector<std::pair<int64_t, int64_t>, 5> dims;  // stride, size
  for (size_t d = 0; d < meta.sizes.size(); ++d) {
    if (meta.sizes[d] != 1) {
      dims.emplace_back(meta.strides[d], meta.sizes[d]);
    }
  }
  std::sort(dims.begin(), dims.end());
  int64_t expected = 1;
  for (const auto& [stride, size] : dims) {
    if (stride != expected) {
      return false;
    }
    expected *= size;
  }
  return true;
}

std::optional<StepAxes> find_axes(const Step& step) {
  if (step.form == Step::Form::kNode || step.whole || step.alone) {
    return std::nullopt;
  }
  const TileRule* rule = rule_of(*step.signature);
  if (rule == nullptr) {
    return std::nullopt;
  }
  auto axes = AxisFinder(step, *rule).run();
  if (!axes || axes->axes.empty()) {
    return std::nullopt;
  }
  return axes;
}

std::optional<StepAxes> collapse(const Step& step, const StepAxes& axes) {
  if (!may_change_rank(step)) {
    return std::nullopt;
  }
  StepAxes merged = axes;
  bool any = false;
  for (size_t outer = 0; outer < merged.axes.size();) {
    bool found = false;
    for (size_t inner = 0; inner < merged.axes.size() && !found; ++inner) {
      if (inner != outer && adjacent(merged, merged.axes[outer], merged.axes[inner])) {
        merge(merged, outer, inner);
        outer -= inner < outer ? 1 : 0;
        found = any = true;
      }
    }
    outer += found ? 0 : 1;
  }
  if (!any || !patch_dim(step, axes, merged)) {
    return std::nullopt;
  }
  return merged;
}

}  // namespace tiledev
