#include "compile/out_variant.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tiledev {

namespace {

bool same_arguments(const c10::FunctionSchema& functional, const c10::FunctionSchema& out) {
  const auto &a = functional.arguments(), &b = out.arguments();
  if (b.size() != a.size() + functional.returns().size()) {
    return false;
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].name() != b[i].name() || *a[i].type() != *b[i].type() ||
        b[i].alias_info() != nullptr) {
      return false;
    }
  }
  for (size_t i = a.size(); i < b.size(); ++i) {
    if (!b[i].is_out() || b[i].type()->kind() != c10::TypeKind::TensorType) {
      return false;
    }
  }
  return true;
}

// The kernels in kernels/ have the name of ATen's op in the namespace tiledev: out= variants, and
// some functional ones.
std::string own_name(const std::string& name) {
  constexpr std::string_view kAten = "aten::";
  return name.rfind(kAten, 0) == 0 ? "tiledev::" + name.substr(kAten.size()) : std::string();
}

// All overloads.
const std::vector<c10::OperatorName>& overloads(const std::string& op_name) {
  static const auto* by_name = [] {
    auto* names = new std::unordered_map<std::string, std::vector<c10::OperatorName>>();
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      (*names)[name.name].push_back(name);
    }
    return names;
  }();
  static const std::vector<c10::OperatorName> none;
  const auto found = by_name->find(op_name);
  return found == by_name->end() ? none : found->second;
}

std::optional<c10::OperatorHandle> find_out_variant(const c10::FunctionSchema& schema,
                                                    const std::string& op_name) {
  for (const c10::OperatorName& name : overloads(op_name)) {
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (handle && handle->hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
        same_arguments(schema, handle->schema())) {
      return handle;
    }
  }
  return std::nullopt;
}

// An op of the same form in kernels/.
std::optional<c10::OperatorHandle> find_own_form(const c10::FunctionSchema& schema) {
  const auto handle = c10::Dispatcher::singleton().findSchema({own_name(schema.name()), ""});
  const auto same = [](const c10::Argument& a, const c10::Argument& b) {
    return a.name() == b.name() && *a.type() == *b.type();
  };
  if (!handle || schema.overload_name() != "" ||
      !std::equal(schema.arguments().begin(), schema.arguments().end(),
                  handle->schema().arguments().begin(), handle->schema().arguments().end(), same)) {
    return std::nullopt;
  }
  return handle;
}

std::optional<c10::OperatorHandle> find_functional(const c10::FunctionSchema& schema) {
  for (const c10::OperatorName& name : overloads(schema.name())) {
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (handle && same_arguments(handle->schema(), schema)) {
      return handle;
    }
  }
  return std::nullopt;
}

struct OutVariants {
  std::optional<c10::OperatorHandle> aten, own, own_form;
  std::optional<c10::OperatorHandle> functional;  // of an op with out= arguments
};

// Ops whose out= kernel is of no use: the losses make their result large first and resize it; batch
// norm leaves save_mean as it was if the input is not contiguous (torch 2.13).
constexpr std::string_view kUnusable[] = {"aten::binary_cross_entropy", "aten::huber_loss",
                                          "aten::mse_loss", "aten::smooth_l1_loss",
                                          "aten::native_batch_norm"};

OutVariants find_out_variants(const c10::FunctionSchema& schema) {
  const bool unusable =
      std::find(std::begin(kUnusable), std::end(kUnusable), schema.name()) != std::end(kUnusable);
  return {unusable ? std::nullopt : find_out_variant(schema, schema.name()),
          find_out_variant(schema, own_name(schema.name())), find_own_form(schema),
          find_functional(schema)};
}

template <size_t n>
bool is_one_of(const OpTraits& op, const std::string_view (&names)[n]) {
  return std::find(std::begin(names), std::end(names), op.op.schema().name()) != std::end(names);
}

// Those of kernels/arithmetic.cpp. In a tile ATen's are as good.
constexpr std::string_view kArithmetic[] = {"aten::add", "aten::sub", "aten::mul", "aten::div"};
// Those of kernels/reduced_products.cpp. For other types ATen's are the best.
constexpr std::string_view kProducts[] = {"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"};

// Those of kernels/attention.cpp, which hands other types to ATen: better called as they are.
constexpr std::string_view kAttention[] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward"};

bool is_reduced_product(const OpTraits& op, c10::ScalarType result) {
  return c10::isReducedFloatingType(result) && is_one_of(op, kProducts);
}

const OutVariants& out_variants(const OpTraits& op) {
  static std::mutex mutex;
  static auto* known = new std::unordered_map<uint64_t, OutVariants>();
  const std::lock_guard lock(mutex);
  auto found = known->find(op.id);
  if (found == known->end()) {
    found = known->emplace(op.id, find_out_variants(op.op.schema())).first;
  }
  return found->second;
}

}  // namespace

const c10::OperatorHandle* out_variant(const OpTraits& op) {
  const auto& variant = out_variants(op).aten;
  return variant ? &*variant : nullptr;
}

const c10::OperatorHandle* tile_kernel(const OpTraits& op, c10::ScalarType result) {
  const auto& variant = out_variants(op).own;
  const bool fits =
      is_reduced_product(op, result) || !(is_one_of(op, kArithmetic) || is_one_of(op, kProducts) ||
                                          (is_one_of(op, kAttention) && result != at::kFloat));
  return variant && fits ? &*variant : nullptr;
}

const c10::OperatorHandle* tile_form(const OpTraits& op) {
  const auto& form = out_variants(op).own_form;
  return form ? &*form : nullptr;
}

const c10::OperatorHandle* functional_form(const OpTraits& op) {
  const auto& form = out_variants(op).functional;
  return form ? &*form : nullptr;
}

const c10::OperatorHandle* small_kernel(const OpTraits& op, c10::ScalarType result) {
  const auto& variant = out_variants(op).own;
  const bool fits = is_reduced_product(op, result) || is_one_of(op, kArithmetic);
  return variant && fits ? &*variant : nullptr;
}

bool has_unusable_out(const OpTraits& op) {
  return is_one_of(op, kUnusable);
}

bool ignores_strides(const OpTraits& op) {
  static constexpr std::string_view kOps[] = {
      "aten::_softmax",
      "aten::_log_softmax",
      "aten::_softmax_backward_data",
      "aten::_log_softmax_backward_data",
      "aten::sort",
      "aten::max_pool3d_with_indices",
      "aten::max_pool3d_with_indices_backward",
      "aten::avg_pool3d",
      "aten::avg_pool3d_backward",
  };
  const std::string_view name = std::string_view(op.name).substr(0, op.name.find('.'));
  return std::find(std::begin(kOps), std::end(kOps), name) != std::end(kOps);
}

}  // namespace tiledev
