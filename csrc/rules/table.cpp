// THE TABLE: how the axes of each op tile, a line an op, in the order of the op's tensor arguments
// and returns.
//
//   mk,kn->mn     letters are axes; one that is missing on the right is reduced
//   *  D  .       all leading dimensions; those of normalized_shape; all trailing ones (both whole)
//   ~x  _  [x]    broadcast against the others; never cut, whatever its shape; a list of tensors
//   ; sum         (mean, prod, max, min, any, all, hypot, logaddexp) how tiles of a reduced axis
//   come together;
//                 without it a reduced axis stays whole
//   ; dim whole   the dimensions that the argument `dim` names: whole; "reduced": reduced;
//                 "dropped": reduced, but whole; "stacked": new in the result; "indexed": whole,
//                 and in the result the axis i of the indices
//   ; loss        the argument `reduction` says whether all dimensions are reduced, or none
//   ; whole k     axes that stay whole
//   ; extent N n  the argument N, a number or a list of one, repeats the extent of the axis n
//   ; if N=1      the rule holds where the argument N, a number or a bool, has this value; of the
//                 lines of an op the first that holds counts
//
// In-place and out= forms have the rule of their functional form. Ops with ATen's `pointwise` tag
// need no line, nor do the other forms of such ops. Whatever has none runs whole.

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "rules/rule.h"

namespace tiledev {

namespace {

struct TableLine {
  std::string_view op;  // without overload: all overloads
  std::string_view rule;
};

constexpr TableLine kTable[] = {
    // elementwise, without the tag
    {"aten::copy_", "pointwise"},
    {"aten::fill_", "pointwise"},
    {"aten::zero_", "pointwise"},
    {"aten::_to_copy", "pointwise"},
    {"aten::clone", "pointwise"},
    {"aten::hardswish", "pointwise"},
    {"aten::hardswish_backward", "pointwise"},
    {"aten::hardsigmoid_backward", "pointwise"},
    {"aten::hardtanh_backward", "pointwise"},
    {"aten::leaky_relu_backward", "pointwise"},
    {"aten::elu_backward", "pointwise"},
    {"aten::softplus_backward", "pointwise"},
    {"aten::softshrink_backward", "pointwise"},
    {"aten::hardshrink_backward", "pointwise"},
    {"aten::mish_backward", "pointwise"},
    {"aten::log_sigmoid_backward", "pointwise"},
    {"aten::isnan", "pointwise"},
    {"aten::rsub", "pointwise"},
    {"aten::masked_fill", "pointwise"},
    {"aten::_prelu_kernel", "pointwise"},
    {"aten::_prelu_kernel_backward", "pointwise"},
    {"aten::floor_divide", "pointwise"},
    {"aten::log_sigmoid_forward", "pointwise"},

    // products of matrices
    {"aten::mm", "mk,kn->mn; sum"},
    {"aten::addmm", "~mn,mk,kn->mn"},
    {"aten::bmm", "bmk,bkn->bmn; sum"},
    {"aten::baddbmm", "~bmn,bmk,bkn->bmn"},
    {"aten::mv", "mk,k->m; sum"},
    {"aten::addmv", "~m,mk,k->m"},
    {"aten::dot", "k,k->; sum"},
    {"aten::vdot", "k,k->; sum"},

    // reductions
    {"aten::sum", "*->*; sum; dim reduced"},
    {"aten::mean", "*->*; mean; dim reduced"},
    {"aten::prod", "*->*; prod; dim reduced"},
    {"aten::amax", "*->*; max; dim reduced"},
    {"aten::amin", "*->*; min; dim reduced"},
    {"aten::any", "*->*; any; dim reduced"},
    {"aten::all", "*->*; all; dim reduced"},
    {"aten::var", "*->*; dim dropped"},
    {"aten::std", "*->*; dim dropped"},
    {"aten::var_mean", "*->*,*; dim dropped"},
    {"aten::std_mean", "*->*,*; dim dropped"},
    {"aten::linalg_vector_norm", "*->*; hypot; dim reduced; if ord=2"},
    {"aten::linalg_vector_norm", "*->*; sum; dim reduced; if ord=1"},
    {"aten::linalg_vector_norm", "*->*; sum; dim reduced; if ord=0"},
    {"aten::linalg_vector_norm", "*->*; max; dim reduced; if ord=inf"},
    {"aten::linalg_vector_norm", "*->*; min; dim reduced; if ord=-inf"},
    {"aten::linalg_vector_norm", "*->*; dim dropped"},
    {"aten::norm.ScalarOpt_dim", "*->*; hypot; dim reduced; if p=2"},
    {"aten::norm.ScalarOpt_dim", "*->*; dim dropped"},
    {"aten::logsumexp", "*->*; logaddexp; dim reduced"},
    {"aten::max", "*->*; max; dim reduced"},
    {"aten::min", "*->*; min; dim reduced"},
    {"aten::count_nonzero", "*->*; sum; dim reduced"},
    {"aten::argmax", "*->*; dim dropped"},
    {"aten::argmin", "*->*; dim dropped"},
    {"aten::max.dim", "*->*,*; dim dropped"},
    {"aten::max.dim_max", "*->*,*; dim dropped"},
    {"aten::min.dim", "*->*,*; dim dropped"},
    {"aten::min.dim_min", "*->*,*; dim dropped"},
    {"aten::nansum", "*->*; sum; dim reduced"},

    // along one dimension
    {"aten::_softmax", "*->*; dim whole"},
    {"aten::_log_softmax", "*->*; dim whole"},
    {"aten::_softmax_backward_data", "*,*->*; dim whole"},
    {"aten::_log_softmax_backward_data", "*,*->*; dim whole"},
    {"aten::cumsum", "*->*; dim whole"},
    {"aten::cumprod", "*->*; dim whole"},
    {"aten::logcumsumexp", "*->*; dim whole"},
    {"aten::flip", "*->*; dim whole"},
    {"aten::roll", "*->*; dim whole"},
    {"aten::glu", "*->*; dim whole"},
    {"aten::glu_backward", "*,*->*; dim whole"},
    {"aten::tril", "*mn->*mn; whole mn"},
    {"aten::triu", "*mn->*mn; whole mn"},
    {"aten::sort", "*->*,*; dim whole"},
    {"aten::topk", "*->*,*; dim whole"},
    {"aten::kthvalue", "*->*,*; dim dropped"},
    {"aten::median.dim", "*->*,*; dim dropped"},
    {"aten::median.dim_values", "*->*,*; dim dropped"},
    {"aten::nanmedian.dim", "*->*,*; dim dropped"},
    {"aten::nanmedian.dim_values", "*->*,*; dim dropped"},
    {"aten::cat", "[*]->*; dim whole"},
    {"aten::stack", "[*]->*; dim stacked"},
    {"aten::index_select", "*,i->*; dim indexed"},
    {"aten::gather", "*,*->*; dim whole"},
    {"aten::scatter.src", "*,*,*->*; dim whole"},
    {"aten::scatter.value", "*,*->*; dim whole"},
    {"aten::scatter.reduce", "*,*,*->*; dim whole"},
    {"aten::scatter.value_reduce", "*,*->*; dim whole"},
    {"aten::scatter_add", "*,*,*->*; dim whole"},
    {"aten::scatter_reduce", "*,*,*->*; dim whole"},
    {"aten::index_add", "*,_,*->*; dim whole"},
    {"aten::index_copy", "*,_,*->*; dim whole"},
    {"aten::index_reduce", "*,_,*->*; dim whole"},
    {"aten::index_fill.int_Scalar", "*,_->*; dim whole"},

    // normalization
    {"aten::native_layer_norm", "*D,D,D->*D,*D,*D"},
    {"aten::native_layer_norm_backward", "*D,*D,*D,*D,D,D->*D,D,D; sum"},
    {"aten::_fused_rms_norm", "*D,D->*D,*D"},
    {"aten::_fused_rms_norm_backward", "*D,*D,*D,D->*D,D; sum"},
    {"aten::native_group_norm", "n.,_,_->n.,n.,n.; extent N n"},
    {"aten::native_group_norm_backward", "n.,n.,n.,n.,_->n.,_,_; sum; extent N n"},

    {"aten::native_batch_norm", "nc.,c,c,c,c->nc.,c,c; whole n"},
    {"tiledev::batch_norm_inference", "nc.,c,c,c,c->nc."},
    {"aten::native_batch_norm_backward", "nc.,nc.,c,c,c,c,c->nc.,c,c; whole n; if train=True"},
    {"aten::native_batch_norm_backward", "nc.,nc.,c,c,c,_,_->nc.,c,c; sum"},

    // lookups and losses
    {"aten::embedding", "_,*->*e"},
    {"aten::embedding_dense_backward", "*e,_->ve; whole v"},
    {"aten::mse_loss", "*,*->*; sum; loss"},
    {"aten::mse_loss_backward", "~*,*,*->*"},
    {"aten::smooth_l1_loss", "*,*->*; sum; loss"},
    {"aten::smooth_l1_loss_backward", "~*,*,*->*"},
    {"aten::huber_loss", "*,*->*; sum; loss"},
    {"aten::huber_loss_backward", "~*,*,*->*"},
    {"aten::binary_cross_entropy", "*,*,*->*; sum; loss"},
    {"aten::binary_cross_entropy_backward", "~*,*,*,*->*"},
    {"aten::nll_loss_forward", "nc,n,_->n,_; sum; whole c; if reduction=0"},
    {"aten::nll_loss_forward", "nc,n,_->,_; sum; whole c"},
    {"aten::nll_loss_backward", "~n,nc,n,_,_->nc; whole c"},
    {"aten::nll_loss2d_forward", "nchw,nhw,_->nhw,_; sum; whole cw; if reduction=0"},
    {"aten::nll_loss2d_forward", "nchw,nhw,_->,_; sum; whole cw"},
    {"aten::nll_loss2d_backward", "~nhw,nchw,nhw,_,_->nchw; whole cw"},

    // attention, convolution, pooling
    {"aten::_scaled_dot_product_flash_attention_for_cpu",
     "bhq.,bhk.,bhk.,~bhqk->bhq.,bhq; whole k; if is_causal=False"},
    {"aten::_scaled_dot_product_flash_attention_for_cpu",
     "bhq.,bhk.,bhk.,~bhqk->bhq.,bhq; whole qk"},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
     "bhq.,bhq.,bhk.,bhk.,bhq.,bhq,~bhqk->bhq.,bhk.,bhk.; sum; whole k; if is_causal=False"},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
     "bhq.,bhq.,bhk.,bhk.,bhq.,bhq,~bhqk->bhq.,bhk.,bhk.; whole qk"},
    {"aten::convolution", "nc.,oc.,o->no.; whole c; if transposed=False; if groups=1"},
    {"aten::convolution", "nc.,co.,o->no.; whole c; if transposed=True; if groups=1"},
    {"aten::convolution", "nc.,ck.,c->nc.; whole k; extent groups c"},
    {"aten::convolution_backward",
     "no.,nc.,oc.->nc.,oc.,o; sum; whole c; extent bias_sizes o; if transposed=False; if groups=1"},
    {"aten::convolution_backward", "n.,n.,_->n.,_,_; sum"},
    {"aten::max_pool2d_with_indices", "*hw->*ij,*ij; whole hwij"},
    {"aten::max_pool2d_with_indices_backward", "*ij,*hw,*ij->*hw; whole hwij"},
    {"aten::avg_pool2d", "*hw->*ij; whole hwij"},
    {"aten::avg_pool2d_backward", "*ij,*hw->*hw; whole hwij"},
    {"aten::_adaptive_avg_pool2d", "*hw->*ij; whole hwij"},
    {"aten::_adaptive_avg_pool2d_backward", "*ij,*hw->*hw; whole hwij"},
    {"aten::adaptive_max_pool2d", "*hw->*ij,*ij; whole hwij"},
    {"aten::adaptive_max_pool2d_backward", "*ij,*hw,*ij->*hw; whole hwij"},
    {"aten::max_pool3d_with_indices", "*dhw->*kij,*kij; whole dhwkij"},
    {"aten::max_pool3d_with_indices_backward", "*kij,*dhw,*kij->*dhw; whole dhwkij"},
    {"aten::avg_pool3d", "*dhw->*kij; whole dhwkij"},
    {"aten::avg_pool3d_backward", "*kij,*dhw->*dhw; whole dhwkij"},
    {"aten::_adaptive_avg_pool3d", "*dhw->*kij; whole dhwkij"},
    {"aten::_adaptive_avg_pool3d_backward", "*kij,*dhw->*dhw; whole dhwkij"},
};

// Ops with the tag that are not elementwise in the sense needed here.
constexpr std::string_view kNotPointwise[] = {
    "aten::equal",
};

size_t count_tensors(const OpTraits& op) {
  size_t count = 0;
  for (const ArgTraits& arg : op.args) {
    const bool tensor = arg.kind == ArgKind::kTensor || arg.kind == ArgKind::kTensorList ||
                        arg.kind == ArgKind::kOptionalTensorList;
    count += tensor && !(arg.written && arg.overwritten && op.is_out_form) ? 1 : 0;
  }
  return count;
}

bool has_arguments(const TileRule& rule, const OpTraits& op) {
  const auto& schema = op.op.schema();
  return std::all_of(rule.conditions.begin(), rule.conditions.end(),
                     [&](const RuleCondition& c) { return schema.argumentIndexWithName(c.arg); });
}

bool fits(const TileRule& rule, const OpTraits& op) {
  return rule.pointwise || (has_arguments(rule, op) && rule.inputs.size() == count_tensors(op) &&
                            rule.outputs.size() == op.returns.size());
}

// "aten::add_.Tensor" without overload and, if `functional`, without the sign of in-place ops.
std::string base_name(const OpTraits& op, bool functional) {
  std::string name = op.name.substr(0, op.name.find('.'));
  if (functional && name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_') {
    name.pop_back();
  }
  return name;
}

// "aten::where.self" of "aten::where.self_out", "aten::eq.Tensor" of "aten::eq_.Tensor".
std::string functional_form(const OpTraits& op) {
  const size_t dot = op.name.find('.');
  std::string overload = dot == std::string::npos ? "" : op.name.substr(dot + 1);
  constexpr std::string_view kOut = "out";
  if (op.is_out_form && overload.size() >= kOut.size() &&
      overload.compare(overload.size() - kOut.size(), kOut.size(), kOut) == 0) {
    overload.resize(overload.size() - kOut.size());
    if (!overload.empty() && overload.back() == '_') {
      overload.pop_back();
    }
  }
  const std::string name = base_name(op, !op.is_out_form);
  return overload.empty() ? name : name + "." + overload;
}

// ATen gives the tag to some functional ops and not to their other forms.
bool has_pointwise_tag(const std::string& name) {
  const size_t dot = name.find('.');
  const auto op = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
  return op && op->hasTag(at::Tag::pointwise);
}

class Rules {
 public:
  Rules() {
    for (const TableLine& line : kTable) {
      rules_[std::string(line.op)].push_back(
          std::make_unique<TileRule>(parse_rule(line.rule, line.op)));
    }
  }

  // Those of an op, in the order of the table.
  std::vector<const TileRule*> of(const OpTraits& op) {
    const std::lock_guard lock(mutex_);
    auto [it, fresh] = by_op_.try_emplace(op.id);
    if (fresh) {
      it->second = find(op);
    }
    return it->second;
  }

  void add(const std::string& op, TileRule rule) {
    const std::lock_guard lock(mutex_);
    auto& known = rules_[op];
    TORCH_CHECK_VALUE(known.empty() || !known.back()->conditions.empty(), "[tile_rule] ", op,
                      " has a rule already");
    known.push_back(std::make_unique<TileRule>(std::move(rule)));
    by_op_.clear();
  }

 private:
  std::vector<const TileRule*> find(const OpTraits& op) const {
    const std::string functional = functional_form(op);
    for (const std::string& name :
         {op.name, functional, base_name(op, false), base_name(op, true)}) {
      if (auto it = rules_.find(name); it != rules_.end()) {
        std::vector<const TileRule*> fitting;
        for (const auto& rule : it->second) {
          if (fits(*rule, op)) {
            fitting.push_back(rule.get());
          }
        }
        if (!fitting.empty()) {
          return fitting;
        }
      }
    }
    static const TileRule pointwise = parse_rule("pointwise", "pointwise");
    for (const std::string_view name : kNotPointwise) {
      if (base_name(op, false) == name) {
        return {};
      }
    }
    if (op.op.hasTag(at::Tag::pointwise) || has_pointwise_tag(functional)) {
      return {&pointwise};
    }
    return {};
  }

  std::mutex mutex_;
  std::unordered_map<uint64_t, std::vector<const TileRule*>> by_op_;  // OpTraits::id -> rules
  std::unordered_map<std::string, std::vector<std::unique_ptr<TileRule>>> rules_;
};

Rules& rules() {
  static auto* rules = new Rules();
  return *rules;
}

std::string_view without_overload(std::string_view name) {
  return name.substr(0, name.find('.'));
}

// Raises unless each of these ops exists with an overload that its rule fits.
void check_lines(const std::vector<std::pair<std::string_view, TileRule>>& lines) {
  std::unordered_multimap<std::string_view, size_t> numbers;
  for (size_t i = 0; i < lines.size(); ++i) {
    numbers.emplace(lines[i].first, i);
  }
  std::vector<std::optional<bool>> fitting(lines.size());  // of the ops that exist
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::string full = c10::toString(name);
    for (const std::string_view key : {std::string_view(full), without_overload(full)}) {
      const auto [first, last] = numbers.equal_range(key);
      if (first == last) {
        continue;
      }
      const OpTraits traits(*c10::Dispatcher::singleton().findSchema(name));
      for (auto number = first; number != last; ++number) {
        const size_t i = number->second;
        fitting[i] = fitting[i].value_or(false) || fits(lines[i].second, traits);
      }
      break;
    }
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto& [op, rule] = lines[i];
    TORCH_CHECK_VALUE(fitting[i].has_value(), "[tile_rule] there is no op ", op);
    TORCH_CHECK_VALUE(*fitting[i], "[tile_rule] the rule of ", op, " has ", rule.inputs.size(),
                      " inputs, ", rule.outputs.size(), " outputs and ", rule.conditions.size(),
                      " conditions, which fit no overload of the op");
  }
}

}  // namespace

const TileRule* rule_of(const Signature& signature) {
  for (const TileRule* rule : rules().of(*signature.op)) {
    if (std::all_of(rule->conditions.begin(), rule->conditions.end(),
                    [&](const RuleCondition& c) { return c.holds(signature); })) {
      return rule;
    }
  }
  return nullptr;
}

bool has_rule(const OpTraits& op) {
  return !rules().of(op).empty();
}

void check_rules() {
  std::vector<std::pair<std::string_view, TileRule>> lines;
  std::unordered_set<std::string_view> complete;
  for (const TableLine& line : kTable) {
    TORCH_CHECK_VALUE(complete.count(line.op) == 0, "[tile_rule] ", line.op,
                      " stands in the table again after a rule without conditions");
    lines.emplace_back(line.op, parse_rule(line.rule, line.op));
    if (lines.back().second.conditions.empty()) {
      complete.insert(line.op);
    }
  }
  check_lines(lines);
}

void add_rule(const std::string& op, const std::string& text) {
  TileRule rule = parse_rule(text, op);
  check_lines({{op, rule}});
  rules().add(op, std::move(rule));
}

}  // namespace tiledev
