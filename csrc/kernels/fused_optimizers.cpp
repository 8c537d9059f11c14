// The fused optimizers for one tensor each, as elementwise ops: `_fused_sgd_` and its like take
// lists of tensors and ignore strides, so they can be called neither for a tile nor for a part of a
// list.

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tiledev {

namespace {

constexpr const char* kOps[] = {"_fused_sgd_", "_fused_adam_", "_fused_adamw_", "_fused_adagrad_"};
constexpr const char* kOverloads[] = {"", "tensor_lr"};

bool is_list(const c10::Argument& arg) {
  return arg.type()->isSubtypeOf(*c10::ListType::ofTensors());
}

// Lists of tensors become tensors; an empty one (`max_exp_avg_sqs`) becomes None.
c10::FunctionSchema one_tensor_schema(const c10::FunctionSchema& lists) {
  std::vector<c10::Argument> arguments;
  for (const c10::Argument& arg : lists.arguments()) {
    std::optional<c10::AliasInfo> alias;
    if (arg.alias_info() != nullptr) {
      alias = *arg.alias_info();
    }
    const c10::TypePtr type =
        is_list(arg) ? c10::TypePtr(c10::OptionalType::ofTensor()) : arg.real_type();
    arguments.emplace_back(arg.name(), type, type, arg.N(), arg.default_value(), arg.kwarg_only(),
                           std::move(alias));
  }
  const std::string name = lists.name().substr(lists.name().find("::") + 2);
  return {"tiledev::" + name, lists.overload_name(), std::move(arguments), lists.returns()};
}

class OneTensor final : public c10::OperatorKernel {
 public:
  explicit OneTensor(c10::OperatorHandle lists) : lists_(std::move(lists)) {
    for (const c10::Argument& arg : lists_.schema().arguments()) {
      is_list_.push_back(is_list(arg));
      walked_.push_back(is_list(arg) && arg.name() != "state_steps");
    }
  }

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto first = stack->end() - static_cast<std::ptrdiff_t>(is_list_.size());
    std::vector<c10::IValue> args(std::make_move_iterator(first),
                                  std::make_move_iterator(stack->end()));
    stack->erase(first, stack->end());
    run(args);
  }

 private:
  // Part by part along the outermost dimension, until what is left lies in memory without gaps.
  void run(const std::vector<c10::IValue>& args) const {
    if (dense(args)) {
      call(args);
      return;
    }
    const at::Tensor& self = args[0].toTensor();
    int64_t outermost = 0;
    for (int64_t d = 1; d < self.dim(); ++d) {
      const bool further = self.stride(d) > self.stride(outermost) || self.size(outermost) == 1;
      outermost = further && self.size(d) != 1 ? d : outermost;
    }
    std::vector<c10::IValue> part = args;
    for (int64_t i = 0; i < self.size(outermost); ++i) {
      for (size_t a = 0; a < args.size(); ++a) {
        if (walked_[a] && args[a].isTensor()) {
          part[a] = args[a].toTensor().select(outermost, i);
        }
      }
      run(part);
    }
  }

  // Whether a walk over the memory meets the same elements of all tensors.
  bool dense(const std::vector<c10::IValue>& args) const {
    const at::Tensor& self = args[0].toTensor();
    for (size_t a = 0; a < args.size(); ++a) {
      if (!walked_[a] || !args[a].isTensor()) {
        continue;
      }
      const at::Tensor& tensor = args[a].toTensor();
      if (!tensor.is_non_overlapping_and_dense()) {
        return false;
      }
      for (int64_t d = 0; d < self.dim(); ++d) {
        if (self.size(d) != 1 && tensor.stride(d) != self.stride(d)) {
          return false;
        }
      }
    }
    return true;
  }

  void call(const std::vector<c10::IValue>& args) const {
    torch::jit::Stack stack;
    for (size_t a = 0; a < args.size(); ++a) {
      if (is_list_[a]) {
        c10::List<at::Tensor> list;
        if (args[a].isTensor()) {
          list.push_back(args[a].toTensor());
        }
        stack.emplace_back(std::move(list));
      } else {
        stack.push_back(args[a]);
      }
    }
    lists_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  }

  c10::OperatorHandle lists_;
  std::vector<bool> is_list_, walked_;  // by argument
};

template <typename F>
void for_each_op(F&& f) {
  for (const char* op : kOps) {
    for (const char* overload : kOverloads) {
      f(c10::Dispatcher::singleton().findSchemaOrThrow((std::string("aten::") + op).c_str(),
                                                       overload));
    }
  }
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tiledev, library) {
  for_each_op([&](const c10::OperatorHandle& op) {
    library.def(one_tensor_schema(op.schema()), {at::Tag::pointwise});
  });
}

TORCH_LIBRARY_IMPL(tiledev, CPU, library) {
  for_each_op([&](const c10::OperatorHandle& op) {
    const std::string name = c10::toString(op.operator_name());
    library.impl(name.substr(name.find("::") + 2).c_str(),
                 torch::CppFunction::makeFromBoxedFunctor(std::make_unique<OneTensor>(op)));
  });
}

}  // namespace tiledev
