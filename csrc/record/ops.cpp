#include "record/ops.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "record/recorder.h"
#include "record/storage.h"

namespace tiledev {

namespace {

constexpr auto kKey = c10::DispatchKey::PrivateUse1;

std::string_view base_name(const OpTraits& traits) {
  std::string_view name = traits.name;
  name.remove_prefix(std::min(name.size(), name.find("::") + 2));
  return name.substr(0, name.find('.'));
}

template <size_t N>
bool one_of(std::string_view name, const std::string_view (&names)[N]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// The value of a Scalar argument decides the shape of the result, or whether the call is an error.
// (A float that is an exponent, or has one, decides nothing; those that are whole have kernels of
// their own in strips.)
constexpr std::string_view kScalarsInKey[] = {
    "arange",
    "range",
    "linspace",
    "logspace",
    "pow",
    "pow_",
    "float_power",
    "_linalg_check_errors",
    "histc",
    "_histogramdd_bin_edges",
    "_histogramdd_from_bin_cts",
};

// The order of a norm, on which its tile rule depends, is a constant like the dimensions.
constexpr std::string_view kScalarsConstant[] = {"linalg_vector_norm", "norm"};

// In-place ops whose result does not depend on what was there before.
constexpr std::string_view kOverwriting[] = {
    "copy_",   "fill_",      "zero_",        "normal_",    "uniform_",    "random_",
    "cauchy_", "bernoulli_", "exponential_", "geometric_", "log_normal_",
};

constexpr std::string_view kCpuIndex[] = {
    "index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put",
};

// Results whose shape depends on values although no tag says so.
constexpr std::string_view kDataDependent[] = {
    "segment_reduce",         "_unique", "_unique2", "unique_dim", "unique_consecutive",
    "unique_dim_consecutive",
};

// A tag says so, but only masks as indices make it true (overrides.cpp).
constexpr std::string_view kSometimesDataDependent[] = {"index", "_unsafe_index"};

bool data_dependent(const OpTraits& traits) {
  if (one_of(base_name(traits), kSometimesDataDependent) || traits.name == "aten::_ctc_loss") {
    return false;
  }
  return traits.op.hasTag(at::Tag::dynamic_output_shape) ||
         traits.op.hasTag(at::Tag::data_dependent_output) ||
         one_of(base_name(traits), kDataDependent);
}

bool has_cpu_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

// Ops that the CPU composes of others but that stay whole here: their pieces do not exist for a
// device like this one, or they refuse devices that they do not know.
constexpr std::string_view kWhole[] = {"aten::convolution", "aten::convolution_backward",
                                       "aten::mode.values"};

// Arguments that an op writes although its schema does not say so.
struct HiddenWrite {
  std::string_view op;
  std::string_view argument;
};
constexpr HiddenWrite kHiddenWrites[] = {
    {"native_batch_norm", "running_mean"},
    {"native_batch_norm", "running_var"},
    {"batch_norm_update_stats", "running_mean"},
    {"batch_norm_update_stats", "running_var"},
};

// Ops with a CPU kernel that have better be composed here too.
constexpr std::string_view kComposed[] = {
    "is_pinned",
    "_pin_memory",
    "_nested_tensor_from_mask",
    "_nested_tensor_from_mask_left_aligned",
};

bool wanted(const OpTraits& traits) {
  const auto& op = traits.op;
  if (op.hasKernelForDispatchKey(kKey) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    return false;
  }
  const std::string_view name = base_name(traits);
  if (one_of(name, kComposed) || traits.name.rfind("aten::", 0) != 0) {
    return false;
  }
  // What changes the shape of a tensor in place is done at once, not recorded.
  return (has_cpu_kernel(op) && !op.hasTag(at::Tag::inplace_view)) || one_of(traits.name, kWhole);
}

const char* handling_name(Handling handling) {
  switch (handling) {
    case Handling::kRecord:
      return "record";
    case Handling::kFallback:
      return "fallback";
    case Handling::kReadout:
      return "readout";
    default:
      return "view";
  }
}

}  // namespace

void classify(OpTraits& traits) {
  const std::string_view name = base_name(traits);
  for (const HiddenWrite& write : kHiddenWrites) {
    if (write.op == name) {
      traits.args[*traits.op.schema().argumentIndexWithName(std::string(write.argument))].written =
          true;
    }
  }
  if (one_of(name, kOverwriting) && traits.args[0].written) {
    traits.args[0].overwritten = true;
  }
  for (ArgTraits& arg : traits.args) {
    if (arg.kind == ArgKind::kScalar && one_of(name, kScalarsConstant)) {
      arg.kind = ArgKind::kConstant;
    }
  }
  traits.scalars_in_key = one_of(name, kScalarsInKey);
  traits.floats_in_key = name != "pow" && name != "pow_";
  traits.accepts_cpu_index = one_of(name, kCpuIndex);
  if (traits.handling == Handling::kRecord && data_dependent(traits)) {
    traits.handling = Handling::kFallback;
  }
}

void register_recorded_ops() {
  auto& dispatcher = c10::Dispatcher::singleton();
  // Never destroyed: that would unregister the kernels while other threads may still call them.
  static auto* registrations = new std::vector<c10::RegistrationHandleRAII>();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || name.name.rfind("aten::", 0) != 0) {
      continue;
    }
    OpState& state = state_of(*op);
    // A factory has no tensor to dispatch on; all that it needs is written by hand.
    if (!wanted(state.traits) || state.traits.handling == Handling::kView) {
      continue;
    }
    registrations->push_back(dispatcher.registerImpl(
        name, kKey,
        c10::KernelFunction::makeFromBoxedKernel(
            c10::BoxedKernel::makeFromFunctor(std::make_unique<RecordKernel>(state))),
        std::nullopt, nullptr, "tiledev recorder"));
  }
}

std::map<std::string, std::string> registered_ops() {
  std::map<std::string, std::string> result;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || !op->hasKernelForDispatchKey(kKey)) {
      continue;
    }
    const OpTraits& traits = state_of(*op).traits;
    result[traits.name] = handling_name(traits.handling);
  }
  return result;
}

}  // namespace tiledev
